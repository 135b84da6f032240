"""Several members in one program: each learns as it would alone, and ends independently."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from flatout.config.settings import resolve
from flatout.engine import fused
from flatout.engine import members as fused_population
from flatout.populations.members import FOLDER, Strategy, members
from flatout.populations.population import Population
from flatout.run.interrupts import Interrupts
from tests.conftest import last_saved
from tests.engine.test_fused import chunks_of, settings

UNEQUAL: dict[str, Any] = {"env": "CartPole-v1", "env_kwargs": {}}
"""For the genetic algorithm: episodes, and so members' iterations, end at different steps."""


def trained(
    path: Path,
    algorithm: str,
    words: list[str],
    seeds: int | None,
    strategy: str = "together",
    **more: Any,
) -> Population:
    keep = {"tensorboard": False, "checkpoint_every": 10**9, "log_every": 64}
    config = resolve(algorithm, settings(algorithm, **(keep | more)))
    found = members(config, seeds, words, path)
    made = Population(found, Strategy(strategy, len(found)), False, Interrupts())
    made.run()
    return made


def learned(folder: Path) -> dict[str, np.ndarray]:
    return {n: a for n, a in last_saved(folder).items() if n.startswith("learner.params")}


@pytest.mark.parametrize(
    "algorithm",
    ["a2c", *(pytest.param(n, marks=pytest.mark.slow) for n in ("ppo", "dqn", "genetic"))],
)
def test_a_member_learns_as_it_would_alone(algorithm: str, tmp_path: Path) -> None:
    key = "noise" if algorithm == "genetic" else "learning_rate"
    file = tmp_path / "members.toml"
    file.write_text(f"[one]\n{key} = 1e-3\nseed = 0\n[other]\n{key} = 1e-2\nseed = 1\n")
    more = UNEQUAL if algorithm == "genetic" else {}
    for strategy in ("together", "spread"):
        trained(tmp_path / strategy, algorithm, [str(file)], None, strategy, steps=128, **more)
    for name in ("one", "other"):
        mine, alone = (learned(tmp_path / way / FOLDER / name) for way in ("together", "spread"))
        assert mine.keys() == alone.keys()
        for parameter, array in mine.items():
            np.testing.assert_allclose(array, alone[parameter], atol=2e-4, err_msg=parameter)


@pytest.mark.slow
def test_members_end_independently_and_the_others_are_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    gather = fused_population.FusedPopulation._gather

    def noted(self: Any, asked: Any, axes: Any) -> None:
        sizes.append(len(asked))
        gather(self, asked, axes)

    monkeypatch.setattr(fused_population.FusedPopulation, "_gather", noted)
    rates = ["learning_rate=1e-3,2e-3,3e-3,1e30"]
    made = trained(tmp_path, "a2c", rates, 1, steps=64_000, stop_at_return=30.0,
                   max_grad_norm=1e30, log_every=640, checkpoint_every=640)  # fmt: skip
    ended = {state.member.name: state for state in made.states}
    assert ended.pop("learning_rate=1e30_seed=0").error.startswith("learning diverged")
    assert {state.ended for state in ended.values()} == {"return"}
    assert len({state.steps for state in ended.values()}) > 1, "not all at the same iteration"
    assert sizes[0] == 4
    assert sizes[-1] < 4


@pytest.mark.slow
def test_no_step_copies_the_replay_of_all_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    compiled = fused_population.FusedPopulation._compile

    def noted(self: Any, *given: Any) -> Any:
        program = compiled(self, *given)
        texts.append(program.as_text())
        return program

    monkeypatch.setattr(fused_population.FusedPopulation, "_compile", noted)
    trained(tmp_path, "dqn", [], 2, steps=64, buffer_size=4000)
    rings = re.findall(r"f32\[2,4\d\d\d[,\]]", texts[0])
    assert rings, "the members' replay is not in the program"
    chosen = re.findall(r"= (?:f32|s32|u8|pred)\[2,4\d\d\d[^ ]* select\(", texts[0])
    assert chosen == []


@pytest.mark.parametrize("strategy", ["spread", pytest.param("together", marks=pytest.mark.slow)])
def test_no_chunk_and_no_member_has_a_program_of_its_own(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, lengths = list[str](), set[int]()
    compile_, called = jax.stages.Lowered.compile, fused.FusedSchedule._dispatch

    def compiled(self: Any, *given: Any, **more: Any) -> Any:
        names.extend(re.findall(r"^module @(\w+)", self.as_text(), re.M))
        return compile_(self, *given, **more)

    def dispatched(self: Any, count: int) -> Any:
        chunk = called(self, count)
        lengths.add(chunk.count)
        return chunk

    monkeypatch.setattr(jax.stages.Lowered, "compile", compiled)
    monkeypatch.setattr(fused.FusedSchedule, "_dispatch", dispatched)
    made = trained(tmp_path, "a2c", [], 2, strategy, steps=320, log_every=80)
    assert {state.ended for state in made.states} == {"steps"}
    assert len(lengths) > 2
    assert names.count("jit_iterate") == 1


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 4])
def test_members_whose_iterations_differ_end_within_chunks(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks_of(monkeypatch, length)
    made = trained(tmp_path, "genetic", [], 2, steps=600, **UNEQUAL)
    assert [(state.ended, state.error) for state in made.states] == [("steps", "")] * 2


def test_the_state_of_a_member_can_be_read_within_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks_of(monkeypatch, 4)
    trained(tmp_path / "unread", "a2c", [], 2, steps=640)
    advance, rerun = fused.FusedSchedule.advance, fused_population.FusedPopulation.rerun
    counts = list[int]()

    def reading(self: Any, n: int, inspect_after: int = 0) -> Any:
        for metrics in advance(self, n, inspect_after):
            self.learned()
            yield metrics

    def counted(self: Any, loop: Any, before: Any, count: int) -> Any:
        counts.append(count)
        return rerun(self, loop, before, count)

    monkeypatch.setattr(fused.FusedSchedule, "advance", reading)
    monkeypatch.setattr(fused_population.FusedPopulation, "rerun", counted)
    made = trained(tmp_path / "read", "a2c", [], 2, steps=640)
    assert [(state.ended, state.error) for state in made.states] == [("steps", "")] * 2
    assert counts, "no state was read within a chunk"
    folders = sorted((tmp_path / "unread" / FOLDER).iterdir())
    assert len(folders) == 2
    for folder in folders:
        wanted, found = learned(folder), learned(tmp_path / "read" / FOLDER / folder.name)
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_part_returns_one_members_carry() -> None:
    whole = {"a": np.arange(6).reshape(3, 2), "b": np.float32(7)}
    part = fused_population.MemberSlice(whole, (), 1, {"a": 0, "b": None})
    taken = part.extract()
    np.testing.assert_array_equal(taken["a"], [2, 3])
    assert taken["b"] == 7
    assert jax.tree.leaves(taken)
