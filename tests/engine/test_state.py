"""A run's state has one owner, and an evaluation moves no more of it than what acts."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from flatout.config.settings import resolve
from flatout.engine.device import DeviceSampler
from flatout.engine.learn import Learner
from flatout.engine.schedule import Schedule
from flatout.run.trainer import Trainer
from flatout.storage.checkpoint import load_agent
from flatout.storage.run_folder import RunFolder
from tests import tiny
from tests.engine import test_overlapped
from tests.engine.test_fused import parts, settings


def arrays_of(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield all arrays that a value of Flatout's refers to, also through containers, closures and
    bound methods. Schedules are left out."""
    if id(value) in seen or isinstance(value, Schedule | type | types.ModuleType):
        return
    seen.add(id(value))
    inner: list[Any] = []
    if isinstance(value, np.ndarray | jax.Array):
        yield value
    elif isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, types.FunctionType):
        inner = [cell.cell_contents for cell in value.__closure__ or ()]
    elif isinstance(value, types.MethodType):
        inner = [value.__self__, value.__func__]
    elif type(value).__module__.startswith("flatout.") and hasattr(value, "__dict__"):
        inner = list(vars(value).values())
    elif hasattr(value, "__iter__") and type(value).__module__ in ("builtins", "collections"):
        inner = [] if isinstance(value, str | bytes | types.GeneratorType) else list(value)
    if isinstance(value, tuple):
        inner = list(value)
    for one in inner:
        yield from arrays_of(one, seen)


def shared(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.may_share_memory(one, other)
    return one is other


CASES = {
    "inline": lambda: test_overlapped.parts("ppo", "cpu"),
    "host replay": lambda: test_overlapped.parts("dqn", "cpu"),
    "overlapped": lambda: test_overlapped.parts("dqn", "schedule=overlapped"),
    "device": lambda: parts("ppo", placement="act=cpu sampler=device"),
    "fused": lambda: parts("dqn"),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_but_the_schedule_refers_to_the_state(case: str) -> None:
    with CASES[case]() as made:
        flow: Any = made.schedule
        while not next(iter(flow.advance(1))).updates:
            pass
        state = flow.state
        owned = [
            leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, np.ndarray | jax.Array)
        ]
        assert len(owned) >= len(jax.tree.leaves(flow.learner.shapes))
        others = (flow.learner, flow.learner.buffer, flow._sampler, flow._policies)
        found = list(arrays_of(others, set()))
        assert found, "keys and hyper-parameters"
        assert not [leaf.shape for leaf in owned if any(shared(leaf, one) for one in found)]


def test_a_runs_first_parameters_are_packed_without_a_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(learner: Learner, learned: Any) -> Any:
        raise AssertionError("the program would be compiled for this call alone")

    monkeypatch.setattr(Learner, "publish", forbidden)
    with CASES["inline"]() as made:
        assert made.schedule.params


def test_an_evaluation_of_a_fused_run_moves_what_acts_and_keeps_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolve(
        "ppo", settings("ppo", steps=640, eval_every=320, eval_episodes=2, checkpoint_every=0,
                        tensorboard=False)
    )  # fmt: skip
    evaluating, moved, acting = [False], list[int](), list[int]()
    evaluate, get, put, read = (
        Trainer._evaluate, jax.device_get, jax.device_put, DeviceSampler.state
    )  # fmt: skip

    def count(tree: Any) -> Any:
        if evaluating[0]:
            moved.append(sum(leaf.nbytes for leaf in jax.tree.leaves(tree)))
        return tree

    def watched(trainer: Any, components: Any) -> None:
        acting.append(sum(array.nbytes for array in components.schedule.params))
        evaluating[0] = True
        evaluate(trainer, components)
        evaluating[0] = False

    def forbidden(sampler: Any, environments: Any = None) -> Any:
        assert not evaluating[0], "an evaluation reads no environments"
        return read(sampler, environments)

    monkeypatch.setattr(Trainer, "_evaluate", watched)
    monkeypatch.setattr(jax, "device_get", lambda tree: get(count(tree)))
    monkeypatch.setattr(jax, "device_put", lambda tree, *where: put(count(tree), *where))
    monkeypatch.setattr(DeviceSampler, "state", forbidden)
    programs = tiny.programs(tiny.shape(config))
    Trainer(config, programs=programs).run()
    assert acting
    assert sum(moved) <= sum(acting)

    moved.clear()
    folder = RunFolder(tmp_path / "run", False)
    try:
        Trainer(config, folder=folder, programs=programs).run()
    finally:
        folder.close()
    best, _ = load_agent(tmp_path / "run" / "best.safetensors")
    kept = sum(array.nbytes for array in best.values())
    assert best
    assert not any(".opt" in name for name in best)
    assert kept <= sum(moved) <= len(acting) * kept + sum(acting)
