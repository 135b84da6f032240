"""A run that planning moves to a placement of equal bits is the run that stayed where it was."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout import DQN, PPO, Callback, FlatoutError, Run
from flatout.config.placement import parse
from flatout.errors import Interrupt
from flatout.planning.predict import Prediction
from flatout.run import trainer
from flatout.run.planner import Planner, Replanned
from tests import tiny

pytestmark = pytest.mark.usefixtures("shared_programs")

STEPS = {"ppo": 512, "dqn": 256}
KINDS: dict[str, Any] = {"ppo": PPO, "dqn": DQN}
NEVER = ()
LOOKS = {"ppo": (1, 2, 5), "dqn": (1, 8, 9)}
"""Iterations after which a run moves: the first one, and one after which it is to be evaluated."""


class Witness(Callback):
    """Notes every event with the step at which it came, and the objects that it was given."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.given: set[tuple[int, int]] = set()
        self.evaluations: list[float] = []
        self.restored = 0

    def note(self, event: str, run: Run) -> None:
        self.events.append((event, run.progress.steps))
        self.given.add((id(run), id(run.progress)))
        assert run.agent._acting.training, "it acts with what the run learns"

    def on_start(self, run: Run) -> None:
        self.note("start", run)

    def on_iteration(self, run: Run) -> None:
        self.note("iteration", run)

    def on_evaluation(self, run: Run) -> None:
        self.note("evaluation", run)
        self.evaluations.append(run.metrics["eval/return_mean"])

    def on_end(self, run: Run) -> None:
        self.note("end", run)

    def restore(self, values: dict[str, Any]) -> None:
        self.restored += 1


def settings(kind: str, **more: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"eval_every": 128, "eval_episodes": 1, "log_every": 64}
    return tiny.python(kind, seed=1, tensorboard=False, checkpoint_every=192) | asked | more


def moving(monkeypatch: pytest.MonkeyPatch, looks: Any, checks: Any) -> None:
    """Let planning move each run to its own placement: after these iterations, at these
    checkpoints."""

    def decide(method: str, numbers: Any) -> None:
        asked: list[int] = []

        def answer(planner: Planner, steps: int, lengths: Any) -> Replanned | None:
            asked.append(steps)
            if len(asked) in numbers:
                return Replanned(Prediction(parse("cpu"), 1.0, 1.0, 1.0), same=True)
            return None

        monkeypatch.setattr(Planner, method, answer)

    decide("look", looks)
    decide("check", checks)


@pytest.mark.bits
@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("ppo", False),
        *(pytest.param(*one, marks=pytest.mark.slow)
          for one in (("ppo", True), ("dqn", False), ("dqn", True))),
    ],
)  # fmt: skip
def test_nobody_can_tell_a_run_that_was_moved(
    kind: str, kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found: list[Any] = []
    for number, (looks, checks) in enumerate([(NEVER, NEVER), (LOOKS[kind], (1,))]):
        moving(monkeypatch, looks, checks)
        run, witness = tmp_path / str(number), Witness()
        agent = KINDS[kind]("CartPole-v1", **settings(kind, trace=kept))
        agent.learn(STEPS[kind], callback=witness, run_dir=run if kept else None)
        assert (len(witness.given), witness.restored) == (1, 0)
        assert [event for event, _ in witness.events].count("start") == 1
        seen = [step for event, step in witness.events if event == "iteration"]
        assert seen == sorted(set(seen))
        names = ("steps", "updates", "iterations", "episodes", "return_mean_last", "best_return")
        rows = [
            {name: value for name, value in row.items() if not name.startswith(("time", "phase"))}
            for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        ] if kept else []  # fmt: skip
        if kept:
            trace = json.loads((run / "trace.json").read_text())["traceEvents"]
            rows.append(Counter(one["name"] for one in trace if one["name"] in ("learn", "eval")))
        points = [] if agent._history.points is None else agent._history.points
        found.append((
            witness.events, witness.evaluations, [agent.summary.get(name) for name in names],
            rows, [points[0].tolist(), points[2].tolist()], agent._acting.arrays,
        ))  # fmt: skip
    stayed, moved = found
    assert moved[:-1] == stayed[:-1]
    assert all(np.array_equal(moved[-1][name], array) for name, array in stayed[-1].items())


@pytest.mark.parametrize("kept", [False, True])
def test_what_was_learned_survives_a_move_that_fails(
    kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other placement cannot be built, or a signal comes while it is."""
    whole = PPO("CartPole-v1", **settings("ppo")).learn(640)
    moving(monkeypatch, (4,), NEVER)
    made, assemble = [], trainer.assemble

    def fails(*args: Any, **named: Any) -> Any:
        made.append(args)
        if len(made) == 2:
            raise FlatoutError("no worker process could be started")
        return assemble(*args, **named)

    monkeypatch.setattr(trainer, "assemble", fails)
    run = tmp_path / "run" if kept else None
    witness = Witness()
    agent = PPO("CartPole-v1", **settings("ppo")).learn(640, callback=witness, run_dir=run)
    assert len(made) == 3
    assert [event for event, _ in witness.events].count("start") == 1
    ours, theirs = agent._acting.arrays, whole._acting.arrays
    assert ours is not None
    assert theirs is not None
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("kept", [False, True])
def test_a_signal_while_a_run_moves_ends_it_at_the_last_boundary(
    kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    moving(monkeypatch, (4,), NEVER)
    made, assemble = [], trainer.assemble

    def stopped(*args: Any, **named: Any) -> Any:
        made.append(args)
        if len(made) == 2:
            agent._run[0].interrupts._handle(Interrupt.signals[0], None)  # as the system would
        return assemble(*args, **named)

    monkeypatch.setattr(trainer, "assemble", stopped)
    witness: Any = Witness()
    agent: Any = PPO("CartPole-v1", **settings("ppo"))
    with pytest.raises(KeyboardInterrupt):
        agent.learn(640, callback=witness, run_dir=tmp_path / "run" if kept else None)
    assert witness.events[-1] == ("end", 256)
    assert (agent.summary["steps"], agent.summary["ended"]) == (256, "signal")
    assert agent.learn(384).summary["steps"] == 640
