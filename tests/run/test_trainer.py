"""What a run does when: rows, checkpoints, evaluations, callbacks, signals, and its end."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.config.schema import rows_every
from flatout.config.settings import resolve
from flatout.envs.make import factory  # noqa: F401 - imported early: its time is not a test's
from flatout.errors import CallbackFailure, EnvironmentFailure, UsageError
from flatout.run.progress import Display, Progress
from flatout.run.resume import Start
from flatout.run.trainer import Trainer
from flatout.storage import checkpoint
from flatout.storage.run_folder import RunFolder
from flatout.types import Snapshot, UserCode
from tests import tiny
from tests.bad_envs import Good, Raises
from tests.kills import assert_same

ROW = tiny.ITERATION


class Watched(Display):
    """Remembers what it was shown."""

    shows = True

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[int] = []
        self.closed = 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    def update(self, progress: Progress, row: dict[str, float], wall_s: float) -> None:
        self.steps.append(progress.steps)

    def close(self) -> None:
        self.closed += 1

    @property
    def evaluated(self) -> list[int]:
        """The steps of its evaluations."""
        said = [note for note in self.notes if note.startswith("evaluation at step ")]
        return [int(note.split()[3].rstrip(":").replace(",", "")) for note in said]


class Envs:
    """A factory that keeps what it made."""

    def __init__(self, kind: type[Good] = Good, **settings: Any) -> None:
        self.kind, self.settings, self.made = kind, settings, list[Good]()

    def __call__(self, **kwargs: Any) -> Good:
        self.made.append(self.kind(**self.settings | kwargs))
        return self.made[-1]

    @property
    def all_closed(self) -> bool:
        return [env.closed for env in self.made] == [1] * len(self.made)


class Run:
    """A trainer of PPO on scripted environments of 20 steps, and all that it leaves.

    Args:
        path: of its folder; None for none.
        settings: by name.
    """

    def __init__(
        self, path: Path | None = None, *, callback: Any = None, resume: bool = False,
        envs: Envs | None = None, initial: Any = None, **settings: Any,
    ) -> None:  # fmt: skip
        small = tiny.settings(
            "ppo", env="scripted", keep_checkpoints=99, tensorboard=False, steps=5 * ROW
        )
        self.path, self.envs, self.display = path, envs or Envs(), Watched()
        self.folder = None if path is None else RunFolder(path, resume)
        config = resolve("ppo", small | settings)
        self.trainer = Trainer(
            config, code=UserCode(env=self.envs), folder=self.folder, resume=resume,
            callback=callback, display=self.display,
            programs=tiny.programs(("trainer", settings.get("network"))),
            start=None if initial is None else Start(Snapshot(initial, {})),
        )  # fmt: skip

    def go(self) -> dict[str, Any]:
        try:
            return self.trainer.run()
        finally:
            if self.folder is not None:
                self.folder.close()

    @property
    def rows(self) -> list[dict[str, float]]:
        assert self.path is not None
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]

    @property
    def saved(self) -> list[int]:
        """The steps of its checkpoints."""
        assert self.path is not None
        names = [path.name for path in checkpoint.checkpoints(self.path / "checkpoints")]
        return [int(name.removeprefix("step_")) for name in names]


def stop_at(steps: int) -> Callable[[Progress, dict[str, float]], bool]:
    return lambda progress, metrics: progress.steps < steps


# --- What is due when -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "due"),
    [
        (1, [64, 128, 192, 256, 320]),
        (64, [64, 128, 192, 256, 320]),
        (100, [64, 128, 256, 320]),  # the first boundary at or after 0, 100, 200 and 300
        (150, [64, 192, 320]),
        (10_000, [64, 320]),  # the first and the last
    ],
)
def test_rows_are_logged_at_the_first_boundary_that_is_due(
    every: int, due: list[int], tmp_path: Path
) -> None:
    run = Run(tmp_path / "run", log_every=every)
    run.go()
    assert [row["step"] for row in run.rows] == due
    assert run.display.steps == [64, 128, 192, 256, 320]


def test_by_default_a_short_run_has_a_curve_and_a_long_one_few_rows() -> None:
    def rows(steps: int, iteration: int) -> list[int]:
        progress, due = Progress(), list[int]()
        for progress.steps in range(iteration, steps + 1, iteration):
            if progress.steps >= progress.next_log:
                due.append(progress.steps)
                progress.next_log = progress.after(rows_every(None, progress.steps))
        return due

    assert len(rows(1_644, 4)) >= 12
    assert rows(100_000, 64) == sorted(rows(100_000, 64))
    assert len(rows(10_000_000, 64)) < 10_000_000 // 2048 + 40
    late = rows(100_000, 64)[-10:]
    assert {after - before for before, after in itertools.pairwise(late)} == {2048}
    assert rows(8_192, 2_048) == [2_048, 4_096, 6_144, 8_192], "at least one iteration"


def test_a_row_is_the_mean_of_its_iterations(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []
    run = Run(
        tmp_path / "run", log_every=150, callback=lambda progress, metrics: seen.append(metrics)
    )
    run.go()
    parts = [seen[:1], seen[1:3], seen[3:]]
    for row, part in zip(run.rows, parts, strict=True):
        for name in part[0]:
            assert row[name] == pytest.approx(np.mean([one[name] for one in part]), rel=1e-6), name
        assert row["time/iterations"] == row["step"] // ROW
        assert row["train/updates"] == row["step"] // ROW * tiny.UPDATES
        assert row["rollout/episodes"] == 2 * (row["step"] // 40)  # of 20 steps each


@pytest.mark.parametrize(
    ("every", "due"),
    [
        (1, [64, 128, 192, 256, 320]),
        (100, [128, 256, 320]),
        (150, [192, 320]),
        (0, [320]),  # the end alone
        (10_000, [320]),
    ],
)
def test_checkpoints_are_saved_where_they_are_due_and_at_the_end(
    every: int, due: list[int], tmp_path: Path
) -> None:
    run = Run(tmp_path / "run", checkpoint_every=every)
    run.go()
    assert run.saved == due


def test_by_default_each_tenth_of_a_run_is_saved(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", steps=40 * ROW)
    run.go()
    assert run.saved == [number * 4 * ROW for number in range(1, 11)]


def test_a_resumed_run_has_the_intervals_that_it_is_given(tmp_path: Path) -> None:
    rare: dict[str, Any] = {"checkpoint_every": 10_000, "log_every": 10_000}
    Run(tmp_path / "run", steps=2 * ROW, **rare).go()
    often = Run(tmp_path / "run", resume=True, steps=4 * ROW, checkpoint_every=1, log_every=1)
    often.go()
    assert often.saved == [128, 192, 256]
    assert [row["step"] for row in often.rows] == [64, 128, 192, 256]
    never = Run(tmp_path / "run", resume=True, checkpoint_every=0, log_every=10_000)
    never.go()
    assert never.saved == [128, 192, 256, 320]
    assert never.trainer.progress.next_checkpoint == 0, "nothing is due after each iteration"


@pytest.mark.parametrize(
    ("every", "due"),
    [(1, [64, 128, 192, 256, 320]), (100, [128, 256, 320]), (10_000, [320]), (0, [])],
)
def test_evaluations_come_where_they_are_due_and_once_at_the_end(
    every: int, due: list[int], tmp_path: Path
) -> None:
    run = Run(tmp_path / "run", eval_every=every, eval_episodes=2, log_every=1)
    summary = run.go()
    assert run.display.evaluated == due
    assert [row["step"] for row in run.rows if "eval/return_mean" in row] == due
    assert (tmp_path / "run" / "best.safetensors").exists() == bool(due)
    assert (summary["best_eval_return"] is None) == (not due)
    assert run.envs.all_closed


def test_a_run_that_reaches_its_return_is_evaluated_at_its_end(tmp_path: Path) -> None:
    """Else a sweep would compare its training return with the evaluations of other trials."""
    steps = 33 * ROW  # its 100th episode ends in the 32nd iteration
    run = Run(tmp_path / "run", eval_every=steps, eval_episodes=2, steps=steps, stop_at_return=-1e9)
    summary = run.go()
    assert summary["ended"] == "return"
    assert run.display.evaluated == [summary["steps"]] == [32 * ROW]
    assert run.rows[-1]["eval/return_mean"] == summary["last_eval_return"]
    again = Run(eval_every=steps, eval_episodes=2, steps=2 * steps, stop_at_return=-1e9)
    assert run.trainer.final is not None
    again.trainer.start = Start(run.trainer.final, continues=True)  # as a second `learn` begins
    found = again.go()
    assert (found["ended"], found["steps"]) == ("return", summary["steps"])
    assert again.display.evaluated == [], "nothing was learned since"
    assert found["last_eval_return"] == summary["last_eval_return"]


def test_evaluation_changes_nothing_of_what_is_learned() -> None:
    with_it, without = Run(eval_every=ROW, eval_episodes=3), Run()
    with_it.go()
    without.go()
    assert with_it.trainer.final is not None
    assert without.trainer.final is not None
    assert_same(with_it.trainer.final.arrays, without.trainer.final.arrays)


# --- The end ----------------------------------------------------------------------------------


def test_a_callback_that_says_false_ends_the_run_whole(tmp_path: Path) -> None:
    """With its last row, its checkpoint and its parameters, and it may go on from there."""
    run = Run(tmp_path / "run", callback=stop_at(128), log_every=10_000)
    summary = run.go()
    assert (summary["ended"], summary["steps"]) == ("callback", 128)
    assert summary["updates"] == 2 * tiny.UPDATES
    assert [row["step"] for row in run.rows] == [64, 128]
    assert run.saved[-1] == 128
    assert run.trainer.progress.counts == (128, 2 * tiny.UPDATES, 2)
    assert (tmp_path / "run" / "params.safetensors").exists()
    assert run.envs.all_closed
    again = Run(tmp_path / "run", resume=True)
    again.go()
    whole = Run()
    whole.go()
    assert again.trainer.progress.counts == (320, 5 * tiny.UPDATES, 5)
    assert again.trainer.final is not None
    assert whole.trainer.final is not None
    assert_same(again.trainer.final.arrays, whole.trainer.final.arrays)


@pytest.mark.parametrize("answer", [None, True, 0, "", np.True_])
def test_any_other_answer_goes_on(answer: Any) -> None:
    assert Run(callback=lambda progress, metrics: answer).go()["steps"] == 320


def test_the_last_trajectory_is_whole() -> None:
    """A run makes at least its steps."""
    summary = Run(steps=100).go()
    assert (summary["ended"], summary["steps"]) == ("steps", 128)


def test_a_callback_that_raises_ends_the_run_and_closes_everything(tmp_path: Path) -> None:
    def callback(progress: Progress, metrics: dict[str, float]) -> None:
        if progress.iterations == 3:
            raise LookupError("mine")

    run = Run(tmp_path / "run", callback=callback, checkpoint_every=ROW)
    with pytest.raises(
        CallbackFailure, match=r"callback .*callback raised LookupError: mine \(.*:\d"
    ):
        run.go()
    assert run.envs.all_closed
    assert run.display.closed
    assert run.saved == [64, 128, 192]
    again = Run(tmp_path / "run", resume=True)
    assert again.go()["steps"] == 320


def test_a_signal_ends_the_run_at_a_boundary(tmp_path: Path) -> None:
    def callback(progress: Progress, metrics: dict[str, float]) -> None:
        if progress.iterations == 2:
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    run = Run(tmp_path / "run", callback=callback, checkpoint_every=0)
    summary = run.go()
    assert run.trainer.interrupted == run.trainer.interrupts.signum == signal.SIGTERM
    assert summary["ended"] == "signal"
    assert run.saved == [128]
    assert not (tmp_path / "run" / "params.safetensors").exists()
    assert signal.getsignal(signal.SIGTERM) is before
    assert run.envs.all_closed
    assert Run(tmp_path / "run", resume=True).go()["ended"] == "steps"


def test_an_environment_that_fails_leaves_the_boundary_before(tmp_path: Path) -> None:
    """Though nothing was due to be saved there."""
    run = Run(tmp_path / "run", envs=Envs(Raises, at=80), checkpoint_every=0)
    with pytest.raises(EnvironmentFailure, match="the bridge is out"):
        run.go()
    assert run.saved == [128]
    assert run.envs.all_closed
    assert run.display.closed


def test_a_finished_run_says_how_to_go_on(tmp_path: Path) -> None:
    Run(tmp_path / "run").go()
    again = Run(tmp_path / "run", resume=True)
    summary = again.go()
    assert summary["steps"] == 320
    assert again.display.steps == []
    assert any("--steps 640" in note for note in again.display.notes)
    longer = Run(tmp_path / "run", resume=True, steps=384)
    assert longer.go()["steps"] == 384
    assert longer.display.steps == [384]


def test_a_run_without_a_folder_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is due; its end is in memory."""
    monkeypatch.chdir(tmp_path)
    run = Run(
        eval_every=ROW, eval_episodes=1, checkpoint_every=ROW, log_every=ROW, trace=True,
        tensorboard=True,
    )  # fmt: skip
    summary = run.go()
    assert not list(tmp_path.iterdir())
    assert summary["run_dir"] is None
    assert run.trainer.final is not None
    assert run.envs.all_closed
    begun = Run(initial=run.trainer.final.arrays, learning_rate=1e-12, steps=ROW)
    begun.go()
    assert begun.trainer.final is not None
    for name, array in run.trainer.final.arrays.items():
        if ".params" in name:
            np.testing.assert_allclose(begun.trainer.final.arrays[name], array, atol=1e-6)


def test_what_cannot_begin_closes_what_is_open(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", network="nature")
    with pytest.raises(UsageError, match="nature"):
        run.go()
    assert run.envs.all_closed
    assert run.display.closed
    assert not (tmp_path / "run").exists()
