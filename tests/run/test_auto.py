"""Placement auto: a run that plans while it goes on ends with the bits of the placement it took."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from flatout.config.placement import Placement, parse
from flatout.config.settings import resolve
from flatout.errors import FlatoutError
from flatout.hardware.inventory import inventory
from flatout.planning.answer import Answer, Question
from flatout.planning.predict import Prediction
from flatout.planning.stages import Stages
from flatout.run import auto
from flatout.run.planner import Planner
from flatout.spans import Spans
from flatout.types import NAMED
from tests import tiny
from tests.run.test_loggers import shown

pytestmark = pytest.mark.usefixtures("shared_programs")

STEPS = 640
SETTINGS: dict[str, Any] = tiny.settings("ppo", steps=STEPS, quiet=True, log_every=64)
RUN = ("train", "ppo", *tiny.flags("ppo"), "--steps", STEPS, "--quiet", "--log-every", 64)
UNSAVED = (*RUN, "--checkpoint-every", 0)
"""A run that may begin again for as long as it lasts: it saves nothing before its end."""
ROWS = list(range(64, STEPS + 1, 64))
ONE_GROUP = "act=cpu sampler=processes workers=2x1 groups=1"
TWO_GROUPS = "act=cpu sampler=processes workers=2x1 groups=2"
HERE, THERE = "act=cpu sampler=processes workers=2x1", "act=cpu sampler=cluster workers=2x1"


def planned(placement: str, rate: float = 1e3, low: float = 1.0, high: float = 1e9) -> Answer:
    stages = Stages(
        envs=2, horizon=32, cores=2, env=(1e-5,), act={"cpu": ((2, 1e-5),)}, learn={"cpu cpu": 1e-3}
    )  # fmt: skip
    return Answer(stages, ("inline",), [Prediction(parse(placement), rate, low, high)], [], 1.0)


@pytest.fixture(autouse=True)
def soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is long enough to be planned, at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("LOOK_S", "SHORT_S", "STARTING_S", "WORTH"):
        monkeypatch.setattr(f"flatout.run.planner.{name}", 0.0)
    monkeypatch.setattr("flatout.run.planner.SHARE", 1e9)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer | FlatoutError], list[Question]]:
    """What measuring answers, instead of measuring; gives the questions."""

    def set_(answer: Answer | FlatoutError) -> list[Question]:
        asked: list[Question] = []

        def ask(question: Question, *given: Any) -> Answer:
            asked.append(question)
            if isinstance(answer, FlatoutError):
                raise answer
            return answer

        monkeypatch.setattr("flatout.run.planner.ask", ask)
        return asked

    return set_


@pytest.mark.slow
@pytest.mark.parametrize("placement", [ONE_GROUP, TWO_GROUPS])
def test_the_bits_are_those_of_the_placement_it_took(
    placement: str, flatout: Callable[..., Any], answers: Any, tmp_path: Path
) -> None:
    asked = answers(planned(placement))
    one, other = tmp_path / "auto", tmp_path / "given"
    assert flatout(*UNSAVED, "--run-dir", one).code == 0
    assert len(asked) == 1
    assert flatout(*UNSAVED, "--run-dir", other, "--placement", placement).code == 0
    assert len(asked) == 1, "a given placement is not planned"
    for run in (one, other):
        summary = json.loads((run / "summary.json").read_text())
        assert (summary["steps"], summary["placement"]) == (STEPS, placement)
        assert json.loads((run / "config.json").read_text())["placement"] == placement
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == ROWS, "no row twice"
        assert shown(run) == ROWS, "nor in TensorBoard"
    mine, theirs = (load_file(run / "params.safetensors") for run in (one, other))
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)


def test_the_rules_placement_stays_where_it_is_as_good(
    flatout: Callable[..., Any], answers: Any, tmp_path: Path
) -> None:
    asked = answers(planned("cpu"))
    assert flatout(*RUN, "--run-dir", tmp_path / "a").code == 0
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["placement"] == "cpu"
    # The same command again takes the kept answer.
    assert flatout(*RUN, "--run-dir", tmp_path / "b", "--seed", 1).code == 0
    assert len(asked) == 1
    assert flatout(*RUN, "--run-dir", tmp_path / "c", "--remeasure").code == 0
    assert len(asked) == 2


def test_a_kept_plan_is_taken_and_a_resumed_run_keeps_it(
    flatout: Callable[..., Any], answers: Any, tmp_path: Path
) -> None:
    config = resolve("ppo", SETTINGS)
    auto.remember(config, inventory(), NAMED, planned(ONE_GROUP))
    asked = answers(FlatoutError("nothing is measured"))
    run = tmp_path / "run"
    assert flatout(*RUN, "--run-dir", run).code == 0
    assert json.loads((run / "summary.json").read_text())["placement"] == ONE_GROUP
    auto.remember(config, inventory(), NAMED, planned("cpu"))
    assert flatout("train", "--resume", run, "--steps", 768, "--quiet").code == 0
    assert json.loads((run / "summary.json").read_text())["placement"] == ONE_GROUP
    assert asked == []


FUSED = "act=cpu sampler=device schedule=fused"


@pytest.mark.parametrize(
    ("placement", "backend"),
    [pytest.param(FUSED, "device", marks=pytest.mark.slow), ("cpu", "host")],
)
def test_a_kept_plan_decides_where_a_twins_environments_step(
    placement: str, backend: str, flatout: Callable[..., Any], answers: Any, tmp_path: Path
) -> None:
    config = resolve("ppo", SETTINGS | {"env_backend": "auto"})
    auto.remember(config, inventory(), NAMED, planned(placement))
    asked = answers(FlatoutError("nothing is measured"))
    run, words = tmp_path / "run", (*RUN, "--env-backend", "auto")
    assert flatout(*words, "--run-dir", run).code == 0
    saved = json.loads((run / "config.json").read_text())["settings"]
    assert (saved["placement"], saved["env_backend"]) == (placement, backend)
    # Resumed it goes on there, whatever would be chosen now, also if the flag is said again.
    auto.remember(config, inventory(), NAMED, planned("cpu" if placement == FUSED else FUSED))
    more = ("--steps", 768, "--quiet", "--env-backend", "auto")
    again = flatout("train", "--resume", run, *more)
    assert again.code == 0, again.err
    assert json.loads((run / "summary.json").read_text())["placement"] == placement
    assert asked == []
    given = tmp_path / "given"
    assert flatout(*RUN, "--run-dir", given, "--env-backend", backend, "--placement", placement,
                   "--steps", 768).code == 0  # fmt: skip
    mine, theirs = (load_file(each / "params.safetensors") for each in (run, given))
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)


def test_a_run_moves_to_the_host_only_from_its_start(
    flatout: Callable[..., Any], answers: Any, tmp_path: Path
) -> None:
    asked = answers(planned("cpu"))
    words = (*UNSAVED, "--env-backend", "auto")
    assert flatout(*words, "--run-dir", tmp_path / "a").code == 0
    assert str(asked[0].base) == FUSED, "a proven twin is the rule"
    rows = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == ROWS, "no row twice"
    settings = json.loads((tmp_path / "a" / "config.json").read_text())["settings"]
    assert (settings["placement"], settings["env_backend"]) == ("cpu", "host")
    assert flatout(*RUN, "--run-dir", tmp_path / "b", "--placement", "cpu").code == 0
    mine, theirs = (load_file(tmp_path / r / "params.safetensors") for r in "ab")
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)


def test_a_run_that_somebody_watches_stays_on_the_device(answers: Any) -> None:
    notes: list[str] = []
    answers(planned("cpu"))
    planner = Planner(
        resolve("ppo", SETTINGS | {"steps": 10**9, "env_backend": "auto"}), parse(FUSED),
        inventory(), NAMED, notes.append, Spans(), keeps=True,
    )  # fmt: skip
    assert planner.look(100) is None
    assert planner.look(200) is None
    assert "in another program" in notes[-1]
    assert "stays" in notes[-1]


def test_a_run_that_has_saved_a_checkpoint_does_not_begin_again(answers: Any) -> None:
    answers(planned(TWO_GROUPS))
    for saved, begins_again in ((False, True), (True, False)):
        planner = Planner(
            resolve("ppo", SETTINGS | {"steps": 10**9}), Placement(), inventory(), NAMED,
            lambda note: None, Spans(),
        )  # fmt: skip
        assert planner.look(100) is None
        if saved:
            planner.check(100)
        assert (planner.look(200) is not None) is begins_again


def test_a_run_never_fails_because_planning_did(
    flatout: Callable[..., Any], answers: Any, tmp_path: Path
) -> None:
    answers(FlatoutError("the physics exploded"))
    assert flatout(*RUN, "--run-dir", tmp_path / "a", "--json").code == 0
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert (summary["steps"], summary["placement"]) == (STEPS, "cpu")


@pytest.mark.parametrize(
    ("placement", "taken"),
    [pytest.param(ONE_GROUP, ONE_GROUP, marks=pytest.mark.slow), (TWO_GROUPS, "cpu")],
)
def test_a_callback_never_sees_a_run_begin_again(placement: str, taken: str, answers: Any) -> None:
    from flatout import PPO, Callback, Run

    class Witness(Callback):
        def on_start(self, run: Run) -> None:
            steps.append(0)

        def on_iteration(self, run: Run) -> None:
            steps.append(run.progress.steps)

    answers(planned(placement))
    steps: list[int] = []
    agent = PPO("CartPole-v1", **tiny.python("ppo"))
    agent.learn(STEPS, callback=Witness())
    assert steps == list(range(0, STEPS + 1, tiny.ITERATION))
    assert agent.summary["placement"] == taken


def test_a_run_with_nothing_to_do_elsewhere_is_not_measured(
    flatout: Callable[..., Any], answers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.run.planner.WORTH", 1e9)
    asked = answers(planned(TWO_GROUPS))
    assert flatout(*RUN, "--run-dir", tmp_path / "a").code == 0
    assert asked == []


@pytest.mark.parametrize("worth", [0.0, 1e9])
def test_a_named_cluster_is_measured_or_the_run_says_that_it_is_not_used(
    worth: float, answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.run.planner.WORTH", worth)
    notes, asked = list[str](), answers(planned("cpu"))
    config = resolve("ppo", SETTINGS | {"steps": 10**9, "ray_address": "desk:1"})
    planner = Planner(config, Placement(), inventory(), NAMED, notes.append, Spans())
    planner.look(100)
    assert "machines of --ray-address desk:1 are compared" in notes[0]
    planner.look(200)
    assert bool(asked) is (worth == 0.0)
    assert any("--ray-address desk:1 is not used" in note for note in notes) is not bool(asked)
    for other, address in ((HERE, None), (THERE, "desk:1")):
        assert auto.with_placement(config, parse(other)).run.ray_address == address


def test_what_differs_from_its_prediction_is_said_once() -> None:
    notes: list[str] = []
    config = resolve("ppo", SETTINGS | {"steps": 10**9})
    planner = Planner(
        config, Placement(), inventory(), NAMED, notes.append, Spans(),
        planned("cpu", 1e12, 0.9e12, 1.1e12).predictions[0],
    )  # fmt: skip
    for steps in (100, 200, 300, 400):
        assert planner.check(steps) is None
    assert len(notes) == 1
    assert "--replan" in notes[0]


def test_evaluations_and_checkpoints_do_not_count_as_slowness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes, spans, clock = list[str](), Spans(), iter((1.0, 11.0, 21.0))
    monkeypatch.setattr(
        "flatout.run.planner.time", SimpleNamespace(perf_counter=lambda: next(clock))
    )
    planner = Planner(
        resolve("ppo", SETTINGS | {"steps": 10**9}), Placement(), inventory(), NAMED,
        notes.append, spans, planned("cpu", 100.0, 90.0, 110.0).predictions[0],
    )  # fmt: skip
    planner.check(100)
    spans.add("eval", 6 * 10**9)
    spans.add("checkpoint", 3 * 10**9)
    planner.check(200)
    assert notes == []
    planner.check(300)
    assert notes[0].startswith("10 steps/s")


def test_a_run_that_is_faster_than_predicted_is_no_news(answers: Any) -> None:
    """It said that something was not as measured, and measured again with --replan."""
    asked, notes = answers(planned(TWO_GROUPS)), list[str]()
    config = resolve("ppo", SETTINGS | {"steps": 10**9, "replan": True})
    planner = Planner(
        config, Placement(), inventory(), NAMED, notes.append, Spans(),
        planned("cpu", 1e-9, 0.9e-9, 1.1e-9).predictions[0],
    )  # fmt: skip
    assert [planner.check(steps) for steps in (100, 200, 300)] == [None] * 3
    assert (asked, notes) == ([], [])


def test_replanning_keeps_what_was_learned(answers: Any) -> None:
    config = resolve("ppo", SETTINGS | {"steps": 10**9})
    config = replace(config, run=replace(config.run, replan=True))
    for placement, goes_on in ((ONE_GROUP, True), (TWO_GROUPS, False)):
        answers(planned(placement))
        planner = Planner(
            config, Placement(), inventory(), NAMED, lambda note: None, Spans(),
            planned("cpu", 1e12, 0.9e12, 1.1e12).predictions[0],
        )  # fmt: skip
        planner.check(100)
        change = planner.check(200)
        assert (change is not None) is goes_on


def test_a_run_that_has_much_to_lose_does_not_begin_again(
    flatout: Callable[..., Any], answers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.run.planner.SHARE", 1e-9)
    monkeypatch.setattr("flatout.run.planner.STARTING_S", -1.0)
    answers(planned(TWO_GROUPS))
    assert flatout(*UNSAVED, "--run-dir", tmp_path / "a").code == 0
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["placement"] == "cpu"


def test_a_resumed_run_never_begins_again(
    flatout: Callable[..., Any], answers: Any, tmp_path: Path
) -> None:
    answers(planned("cpu"))
    assert flatout(*RUN, "--run-dir", tmp_path / "a").code == 0
    answers(planned(TWO_GROUPS))
    words = ("--resume", tmp_path / "a", "--placement", "auto", "--remeasure", "--steps", 768)
    assert flatout("train", *words, "--quiet").code == 0
    rows = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == list(range(64, 769, 64))
