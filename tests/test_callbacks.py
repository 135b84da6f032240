"""Tests of callbacks: their events, their metrics, stopping a run, and resuming their state."""

from __future__ import annotations

import functools
import itertools
import json
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from flatout import (
    A2C,
    PPO,
    Callback,
    Evaluate,
    FlatoutError,
    RecordEvery,
    Run,
    SaveEvery,
    StopOnNoImprovement,
    StopOnReward,
    StopOnTime,
    UsageError,
)
from flatout.config.settings import resolve
from flatout.run.progress import Progress
from flatout.storage import checkpoint
from tests import tiny
from tests.device_envs import corridor

pytestmark = pytest.mark.usefixtures("shared_programs")

SETTINGS: dict[str, Any] = tiny.python("ppo", seed=1, placement="cpu", tensorboard=False)
SMALL: dict[str, Any] = tiny.python("a2c", seed=1, placement="cpu", tensorboard=False)
"""For tests that compile separate programs, because A2C's compile faster than PPO's."""
OBS = np.random.default_rng(0).uniform(-0.2, 0.2, (16, 4)).astype(np.float32)


class Goal(gym.Env[Any, Any]):
    """An environment of four steps; it succeeds if the last action is 1.

    The info of the last step has scalars and other values.
    """

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.step_ = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.step_ += 1
        over = self.step_ == 4
        info = {"is_success": bool(action), "twice": np.float64(2 * action), "text": "no",
                "many": np.zeros(3)} if over else {"is_success": True}  # fmt: skip
        return np.full(2, self.step_ / 4, np.float32), float(action), over, False, info


class Recorder(Callback):
    """A callback that records every event and episode."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.episodes: list[Any] = []

    def on_start(self, run: Run) -> None:
        self.events.append(("start", run.progress.steps))

    def on_iteration(self, run: Run) -> None:
        self.events.append(("iteration", run.progress.steps))
        assert np.isfinite(run.metrics["train/policy_loss"])
        assert len(run.episodes) <= run.progress.episodes

    def on_episode(self, run: Run) -> None:
        assert run.episode in run.episodes
        self.episodes.append(run.episode)

    def on_evaluation(self, run: Run) -> None:
        self.events.append(("evaluation", run.progress.steps))
        assert run.metrics["eval/return_mean"] > 0

    def on_checkpoint(self, run: Run) -> None:
        self.events.append(("checkpoint", run.progress.steps))

    def on_end(self, run: Run) -> None:
        self.events.append(("end", run.progress.steps))


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_events_happen_in_order_at_their_steps(tmp_path: Path) -> None:
    seen = Recorder()
    agent = PPO("CartPole-v1", eval_every=128, eval_episodes=1, checkpoint_every=128, **SETTINGS)
    agent.learn(256, callback=seen, run_dir=tmp_path / "run")
    assert seen.events == [
        ("start", 0), ("iteration", 64), ("iteration", 128), ("evaluation", 128),
        ("checkpoint", 128), ("iteration", 192), ("iteration", 256), ("evaluation", 256),
        ("checkpoint", 256), ("end", 256),
    ]  # fmt: skip
    assert len(seen.episodes) == agent.summary["episodes"] > 0
    assert all(one.episode_return == one.length for one in seen.episodes)


class Interrupting(Callback):
    """A callback to which Ctrl-C comes in the first iteration."""

    def on_iteration(self, run: Run) -> None:
        run.agent._run[0].interrupts.signum = signal.SIGINT


class Logs(Recorder):
    """Logs a number before each checkpoint."""

    def on_checkpoint(self, run: Run) -> None:
        super().on_checkpoint(run)
        run.log("my/saved", 1.0)


def test_every_checkpoint_is_announced_before_it_is_written(tmp_path: Path) -> None:
    last, stopped, alone, again = Logs(), Logs(), Recorder(), Recorder()
    agent = PPO("CartPole-v1", checkpoint_every=0, **SETTINGS)
    agent.learn(128, callback=last, run_dir=tmp_path / "last")
    assert last.events[-3:] == [("iteration", 128), ("checkpoint", 128), ("end", 128)]
    assert rows(tmp_path / "last")[-1]["my/saved"] == 1.0
    agent = PPO("CartPole-v1", checkpoint_every=64, **SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(640, callback=[Interrupting(), stopped], run_dir=tmp_path / "stopped")
    assert stopped.events[1:] == [("iteration", 64), ("checkpoint", 64), ("end", 64)]
    PPO("CartPole-v1", **SETTINGS).learn(64, callback=alone)
    assert "checkpoint" not in dict(alone.events), "nothing is saved"
    PPO.load(tmp_path / "last").learn(64, callback=again, run_dir=tmp_path / "again")
    assert again.events == [
        ("start", 0), ("checkpoint", 0), ("iteration", 64), ("checkpoint", 64), ("end", 64)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "placement",
    [
        "cpu", "schedule=overlapped",
        pytest.param("sampler=processes workers=2x1", marks=pytest.mark.slow),
        pytest.param("sampler=processes workers=1x2 inference=local", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_episodes_have_the_scalars_of_their_final_info(placement: str, tmp_path: Path) -> None:
    seen = Recorder()
    agent = A2C(Goal, **SMALL | {"placement": placement})
    agent.learn(128, callback=seen, run_dir=tmp_path / "run")
    assert len(seen.episodes) == 128 // 4
    for one in seen.episodes:
        assert set(one.info) == {"is_success", "twice"}
        assert one.info["twice"] == 2 * one.info["is_success"]
    reached = [one.info["is_success"] for one in seen.episodes]
    assert set(reached) == {0.0, 1.0}
    assert rows(tmp_path / "run")[-1]["rollout/success_rate"] == pytest.approx(np.mean(reached))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"env_backend": "host", "placement": "cpu"}, marks=pytest.mark.slow),
        pytest.param({"placement": "sampler=device"}, marks=pytest.mark.slow),
        pytest.param({"shards": 2}, marks=pytest.mark.slow),
        pytest.param(
            {"env_backend": "host", "placement": "sampler=processes workers=1x2"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)  # fmt: skip
def test_episodes_have_the_declared_info_of_a_device_environment(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    seen = Recorder()
    placed = {"placement": "auto", "env_backend": "device"}
    agent = A2C(corridor, **SMALL | placed | settings)
    agent.learn(512, callback=seen, run_dir=tmp_path / "run")
    played = agent.evaluate(8)
    assert played.success_rate == played.return_mean, "the only reward is for reaching the end"
    assert len(seen.episodes) == agent.summary["episodes"] > 10
    for one in seen.episodes:
        assert one.info == {"is_success": one.episode_return, "walked": one.length}
    reached = [one.info["is_success"] for one in seen.episodes][-100:]
    assert set(reached) == {0.0, 1.0}
    assert rows(tmp_path / "run")[-1]["rollout/success_rate"] == pytest.approx(np.mean(reached))


def test_the_agent_acts_with_its_newest_parameters() -> None:
    outputs: list[np.ndarray] = []
    agent = PPO("CartPole-v1", **SETTINGS | {"learning_rate": 0.01})

    def callback(progress: Any, metrics: Any) -> None:
        outputs.append(np.array(agent.predict(OBS, deterministic=False)[0]))

    def look(run: Any) -> None:
        arrays.append({n: a.copy() for n, a in run.agent._acting.arrays.items()})

    class Looks(Callback):
        def on_iteration(self, run: Run) -> None:
            look(run)

    arrays: list[dict[str, np.ndarray]] = []
    agent.learn(256, callback=[callback, Looks()])
    name = next(n for n in arrays[0] if "networks" in n and arrays[0][n].size > 10)
    assert all(np.abs(a[name] - b[name]).max() > 1e-4 for a, b in itertools.pairwise(arrays))
    final = agent._acting.arrays
    assert final is not None
    np.testing.assert_array_equal(final[name], arrays[-1][name])
    assert len(outputs) == 4


@pytest.mark.bits
def test_inspecting_a_compiled_loop_changes_nothing(tmp_path: Path) -> None:
    """The loop runs several iterations per dispatch, and returns to one that is inspected."""

    class Looks(Callback):
        def __init__(self) -> None:
            self.seen: list[tuple[int, float]] = []

        def on_iteration(self, run: Run) -> None:
            if run.progress.iterations % 3 == 0:
                run.agent.predict(OBS, deterministic=True)
                counters = run.agent._acting.arrays
                steps = next(a for n, a in counters.items() if n.endswith("counters.step"))
                self.seen.append((run.progress.steps, float(steps)))

    settings = SMALL | {"env_backend": "device", "placement": "cpu"}
    looks = Looks()
    watched = A2C("CartPole-v1", **settings).learn(320, callback=looks)
    plain = A2C("CartPole-v1", **settings).learn(320)
    assert looks.seen
    assert all(steps == counted for steps, counted in looks.seen)
    assert watched.summary["iterations"] == plain.summary["iterations"] == 20
    one, other = watched._acting.arrays, plain._acting.arrays
    assert one is not None
    assert other is not None
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_logged_metrics_are_in_the_rows_as_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    online: list[tuple[int, dict[str, float]]] = []
    there = SimpleNamespace(
        step=0, log=lambda row, step: online.append((step, row)),
        finish=lambda: online.append((0, {})),
    )  # fmt: skip
    wandb = SimpleNamespace(init=lambda project, **_: there if project == "mine" else None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)

    class Logs(Callback):
        def on_iteration(self, run: Run) -> None:
            run.log("my/steps", run.progress.steps)

        def on_end(self, run: Run) -> None:
            run.log("my/last", np.float32(0.5))

    run = tmp_path / "run"
    settings = SETTINGS | {"tensorboard": True, "log_every": 128, "wandb": "mine"}
    PPO("CartPole-v1", **settings).learn(256, callback=Logs(), run_dir=run)
    found = rows(run)
    assert [row.get("my/steps") for row in found] == [64, 128, 224, None]
    assert found[-1]["my/last"] == 0.5
    events = next(run.glob("events.out.tfevents*")).read_bytes()
    assert b"my/steps" in events
    assert b"my/last" in events
    assert [step for step, _ in online] == [row["step"] for row in found] + [0]
    for (_, row), kept in zip(online, found, strict=False):
        assert row.items() >= {n: v for n, v in kept.items() if n.startswith("my/")}.items()


class Raises(Callback):
    def __init__(self, event: str, what: Any) -> None:
        self.event, self.what = event, what
        setattr(self, event, self.raises)

    def raises(self, run: Run) -> None:
        if self.event != "on_iteration" or run.progress.iterations == 2:
            self.what(run)


def fails(run: Run) -> None:
    raise LookupError("mine\nand more")


@pytest.mark.parametrize(
    ("event", "what", "words"),
    [
        ("on_start", fails, r"Raises raised LookupError in on_start: mine and more \(.*:\d+\)"),
        ("on_iteration", fails, "Raises raised LookupError in on_iteration"),
        pytest.param("on_end", fails, "in on_end", marks=pytest.mark.slow),
        ("on_end", lambda run: sys.exit("mine"), "raised SystemExit in on_end: mine"),
        pytest.param(
            "on_iteration",
            lambda run: json.loads("{"),
            r"JSONDecodeError.*test_callbacks\.py:\d+\)",
            marks=pytest.mark.slow,
        ),
        ("on_iteration", lambda run: run.agent.learn(64), "this agent is training"),
        ("on_iteration", lambda run: run.log("step", 1), "'step'.*metric of Flatout's own"),
        pytest.param(
            "on_iteration", lambda run: run.log("phase/env", 1), "metric of Flatout's own",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "on_end", lambda run: run.log("time/wall_s", 1), "metric of Flatout's own",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_callback_that_fails_is_named_and_the_run_is_saved(
    event: str, what: Any, words: str, tmp_path: Path
) -> None:
    agent = PPO("CartPole-v1", **SETTINGS | {"log_every": 1})
    with pytest.raises(FlatoutError, match=words) as raised:
        agent.learn(256, callback=Raises(event, what), run_dir=tmp_path / "run")
    assert "\n" not in str(raised.value)
    if event == "on_start":
        return
    step = 256 if event == "on_end" else 128
    saved = checkpoint.latest(tmp_path / "run")
    assert saved.name == f"step_{step:012d}"
    agent.predict(OBS, deterministic=True)  # it has the parameters of that step
    if what is fails or event == "on_end":
        assert agent.learn(64).summary["steps"] == step + 64


class Forgets(Callback):
    """A callback whose state cannot be saved after two iterations."""

    def on_iteration(self, run: Run) -> None:
        self.seen = run.progress.iterations

    def state(self) -> dict[str, Any]:
        return {} if getattr(self, "seen", 0) < 2 else fails  # type: ignore[return-value]


def test_a_callback_state_that_cannot_be_saved_loses_nothing_else(tmp_path: Path) -> None:
    agent = PPO("CartPole-v1", **SETTINGS)
    with pytest.raises(FlatoutError, match="callback Forgets raised TypeError in state"):
        agent.learn(128, callback=Forgets(), run_dir=tmp_path / "run")
    assert checkpoint.latest(tmp_path / "run").name == "step_000000000128"
    agent.predict(OBS, deterministic=True)
    agent = PPO.load(tmp_path / "run").learn(64, [Counts()], run_dir=tmp_path / "run")
    assert agent.summary["steps"] == 192
    assert any(
        "the callbacks start without saved states" in note for note in agent.summary["notes"]
    )


class Misnamed(Callback):
    """A callback with a method of Stable-Baselines3's that is never called here."""

    def _on_step(self) -> bool:
        return True


class WithoutRun(Callback):
    """A callback whose method lacks its argument."""

    def on_iteration(self) -> None:  # type: ignore[override]
        pass


def one_argument(progress: Progress, /) -> None:
    pass


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (
            one_argument,
            r"one_argument is called with \(progress, metrics\), but it takes \(progress, /\) "
            r"\(.*test_callbacks\.py:\d+\)\.$",
        ),
        (lambda a, *, b=0: None, r"<lambda> is called with .*takes \(a, \*, b\) \(.*\.py:\d+\)"),
        (WithoutRun(), r"WithoutRun\.on_iteration is called with \(run\), but it takes \(\) \("),
        (functools.partial(one_argument, 1), r"partial is called with .* it takes \(\)\.$"),
        (3, "not 3"), (StopOnTime, "not the class StopOnTime"), ([StopOnTime(1), "x"], "not 'x'"),
        (Misnamed(), r"Misnamed\._on_step would never be called.*on_start, on_iteration"),
        (StopOnReward(1, evaluation=True), "StopOnReward looks at evaluations.*eval_every"),
        (StopOnNoImprovement(1), "eval_every"), (SaveEvery(64), "needs a folder"),
    ],
)  # fmt: skip
def test_invalid_callbacks_are_refused(callback: Any, words: str) -> None:
    with pytest.raises(FlatoutError, match=words):
        PPO("CartPole-v1", **SETTINGS).learn(64, callback=callback)
    for every in (0, "1000"):
        with pytest.raises(UsageError, match=f"every = {every!r} is no number"):
            SaveEvery(every)  # type: ignore[arg-type]


def new_run() -> Run:
    return Run(None, resolve("ppo"), None, Progress(), lambda: 0.0)


@pytest.mark.parametrize("value", [np.zeros(2), None, "1", [1], {}])
def test_a_metric_is_one_number(value: Any) -> None:
    run = new_run()
    for good in (1, 2.5, True, np.float32(3), np.array(4)):
        run.log("good", good)
    assert run.progress.logged["good"] == [11.5, 5.0]
    with pytest.raises(UsageError, match=r"one number"):
        run.log("bad", value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("a\ud800", 1, r"run\.log\('a.*under a name"),
        ("a", "b", r"run\.log\('a', 'b'\).*one number"),
        ("rollout/episodes", 1, "metric of Flatout's own"),
    ],
)
def test_a_metric_that_cannot_be_logged_is_named(name: str, value: Any, words: str) -> None:
    run = new_run()
    with pytest.raises(FlatoutError, match=words) as raised:  # noqa: PT012 - in one of them
        run.log(name, value)
        run.progress.drain()
    assert "\n" not in str(raised.value)


# Callbacks that come with Flatout


@pytest.mark.parametrize(
    ("callback", "steps"),
    [
        (StopOnReward(1.0, evaluation=True), 64), (StopOnNoImprovement(2, least=1e6), 192),
        (StopOnTime(0.0), 64), (StopOnReward(1.0), 256),  # fewer than 100 episodes end
    ],
)  # fmt: skip
def test_ready_callbacks_stop(callback: Callback, steps: int) -> None:
    evaluated = {"eval_every": 64, "eval_episodes": 1, "learning_rate": 1e-5, "steps": 256}
    agent = PPO("CartPole-v1", **SETTINGS | evaluated)
    assert agent.learn(callback=callback).summary["steps"] == steps


def test_ready_callbacks_evaluate_save_and_record(tmp_path: Path) -> None:
    run = tmp_path / "run"
    agent = PPO("CartPole-v1", **SETTINGS | {"log_every": 1})
    agent.learn(
        192, run_dir=run,
        callback=[
            Evaluate(lambda agent: {"left": np.mean(agent.predict(OBS)[0] == 0)}, 128),
            Evaluate(lambda agent: 2.0, 64), SaveEvery(128), RecordEvery(192, tmp_path / "seen"),
        ],
    )  # fmt: skip
    assert [("eval/left" in row, row["eval/score"]) for row in rows(run)] == [
        (False, 2.0), (True, 2.0), (False, 2.0),
    ]  # fmt: skip
    assert [path.name for path in run.glob("agent_*")] == ["agent_000000000128.safetensors"]
    PPO.load(run / "agent_000000000128.safetensors").predict(OBS, deterministic=True)
    assert (tmp_path / "seen" / "video_000000000192.gif").read_bytes()[:3] == b"GIF"


# Resuming


class Counts(Callback):
    """A callback that sums metrics, counts events, and stops after `most` iterations."""

    def __init__(self, most: int = 1000) -> None:
        self.total, self.events, self._most = 0.0, 0, most

    def on_iteration(self, run: Run) -> Any:
        self.total += run.metrics["train/policy_loss"]
        self.events += 1
        return run.progress.iterations < self._most

    def on_evaluation(self, run: Run) -> None:
        self.total += run.metrics["eval/return_mean"]

    def on_checkpoint(self, run: Run) -> None:
        self.events += 1

    def state(self) -> dict[str, Any]:
        return {"total": self.total, "events": self.events}

    def restore(self, values: dict[str, Any]) -> None:
        self.total, self.events = values["total"], values["events"]


class Dies(Callback):
    def __init__(self, at: int) -> None:
        self._at = at

    def on_iteration(self, run: Run) -> None:
        if run.progress.steps == self._at:
            raise LookupError("here")


@pytest.mark.bits
@pytest.mark.parametrize("killed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_state_of_a_callback_is_resumed_exactly(killed: bool, tmp_path: Path) -> None:
    """A new agent with new callbacks resumes it, as in another process."""
    settings = SETTINGS | {
        "eval_every": 128, "eval_episodes": 1, "checkpoint_every": 128, "steps": 384
    }  # fmt: skip
    whole, run = Counts(), tmp_path / "run"
    PPO("CartPole-v1", **settings).learn(callback=whole, run_dir=tmp_path / "whole")
    with pytest.raises(FlatoutError, match="here"):
        PPO("CartPole-v1", **settings).learn(callback=[Counts(), Dies(320)], run_dir=run)
    if killed:  # then the run saved nothing when it ended
        shutil.rmtree(checkpoint.latest(run))
    again = Counts()
    agent = PPO.load(run).learn(callback=[again, Dies(0)], run_dir=run)
    assert agent.summary["steps"] == 384
    assert (again.total, again.events) == (whole.total, whole.events)
    assert [row["step"] for row in rows(run)] == [row["step"] for row in rows(tmp_path / "whole")]


def test_different_callbacks_start_without_state_and_a_note_says_so(tmp_path: Path) -> None:
    agent = PPO("CartPole-v1", **SETTINGS).learn(64, callback=Counts(), run_dir=tmp_path / "run")
    agent.learn(64, callback=[Counts(), StopOnTime(1e6)], run_dir=tmp_path / "run")
    note = "the callbacks start without saved states: they were Counts, and are Counts, StopOnTime"
    assert note in agent.summary["notes"]


def test_a_state_that_cannot_be_saved_is_reported_at_once() -> None:
    class Bad(Callback):
        def state(self) -> dict[str, Any]:
            return {"values": (1, 2)}

    with pytest.raises(FlatoutError, match=r"callback .*Bad raised TypeError in state"):
        PPO("CartPole-v1", **SETTINGS).learn(64, callback=Bad())
