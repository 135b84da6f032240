"""The expected memory of a run by device and purpose; a run that does not fit is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from flatout.config.placement import DeviceName, parse
from flatout.config.schema import TrainConfig
from flatout.config.settings import resolve
from flatout.engine.memory import Expectation
from flatout.engine.mesh import Mesh
from flatout.errors import NoRoomError
from flatout.hardware import backend
from flatout.hardware.inventory import Hardware
from flatout.run.build import expected_memory
from tests import tiny

FOUR = "act=cpu learn=cpu,cpu:1,cpu:2,cpu:3"
HERE = Hardware("a CPU", 4, 16_384, 16_384, 8, ())


def config(algorithm: str = "ppo", **settings: Any) -> TrainConfig:
    return resolve(algorithm, tiny.settings(algorithm, steps=64) | settings)


def found(**settings: Any) -> tuple[dict[DeviceName, dict[str, float]], Expectation]:
    placement, expectation, _ = expected_memory(config(**settings), lambda _: None)
    return expectation.by_purpose(placement), expectation


@pytest.mark.parametrize("params", ["replicated", "sharded"])
def test_parameters_and_optimiser_take_the_memory_of_their_shardings(params: str) -> None:
    """The expected memory of a learning device is that of the parts of arrays that it will hold."""
    from flatout.algorithms.registry import build_algorithm
    from flatout.run.opening import open_environment

    placement = parse(f"{FOUR} params={params}")
    wanted = config(envs=4, shards=4, hidden=[128, 128], placement=str(placement))
    task = open_environment(wanted)
    task.close()
    shapes = build_algorithm(wanted, *task.spaces, placement=placement).shapes
    mesh = Mesh([backend.device(name) for name in placement.learn], 4, params == "sharded")
    leaves = jax.tree.leaves(shapes)
    shardings = mesh.state(leaves)
    each = shardings if isinstance(shardings, list) else [shardings] * len(leaves)
    held = sum(
        math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, sharding in zip(leaves, each, strict=True)
    )
    taken, expectation = found(
        envs=4, shards=4, hidden=[128, 128], placement=str(placement)
    )  # fmt: skip
    for device in placement.learn:
        assert taken[device]["model"] + taken[device]["optimiser"] == pytest.approx(
            2 * held / 2**20
        )
    (model, optimiser), whole = (
        expectation.learned(placement),
        expectation.model + expectation.optimiser,
    )
    assert (model + optimiser < 0.5 * whole) == (params == "sharded")
    gradients = expectation.before_compiling(placement).by_purpose(placement)[placement.learn[0]]
    assert gradients["workspace"] == pytest.approx(taken[placement.learn[0]]["model"] / 2)


def test_devices_of_a_cpu_share_its_memory() -> None:
    expected = Expectation(model=1_000.0, optimiser=2_000.0, trajectory=100.0)
    assert "about 6,200 of 16,384 MiB on cpu" in expected.check(parse("cpu"), HERE)
    with pytest.raises(NoRoomError) as refused:  # each device's share alone would fit
        expected.check(parse(FOUR), HERE)
    message = str(refused.value)
    for part in ("24,200 MiB on cpu to cpu:3 together", "only 16,384 MiB", "learning state 24,000"):
        assert part in message


def test_a_model_that_fits_only_with_sharded_parameters_is_refused_without() -> None:
    expected = Expectation(model=1_000.0, optimiser=2_000.0, trajectory=0.0, divided=(990, 1_980))
    with pytest.raises(NoRoomError, match="params=sharded"):
        expected.check(parse(FOUR), HERE)
    said = expected.check(parse(f"{FOUR} params=sharded"), HERE)
    assert "about 6,180 of 16,384 MiB on cpu to cpu:3 together" in said


@pytest.mark.parametrize(("inference", "each"), [("central", 21), ("local", 89)])
def test_actor_processes_count_in_the_host_memory(inference: str, each: int) -> None:
    placement = f"sampler=processes workers=4x2 inference={inference}"
    taken, _ = found(envs=8, placement=placement)
    assert taken[DeviceName("cpu")]["actor processes"] == 4 * each
    many = replace(parse(placement), workers=(50_000, 2))
    with pytest.raises(NoRoomError, match=r"actor processes .*start fewer of them \(workers="):
        Expectation(model=1.0, optimiser=2.0, trajectory=0.0).check(many, HERE)


def test_workers_of_a_cluster_take_the_memory_of_their_machines() -> None:
    many = replace(parse("sampler=cluster workers=4x2"), workers=(50_000, 2))
    said = Expectation(model=1.0, optimiser=2.0, trajectory=0.0).check(many, HERE)
    assert "about 6 of " in said


def test_a_compiled_loop_holds_replay_twice() -> None:
    def replay(placement: str) -> float:
        (sizes,) = found(algorithm="dqn", placement=placement, buffer_size=100_000)[0].values()
        return sizes["replay"]

    once = replay("act=cpu replay=device")
    assert replay("sampler=device schedule=fused") == pytest.approx(2 * once)


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_a_dry_run_prints_the_memory_of_replay_and_trains_nothing(
    flatout: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a dry run compiles no update")

    monkeypatch.setattr("flatout.engine.learn.Learner.compile_update", fail)
    command = ("train", *("dqn", *tiny.flags("dqn", buffer_size=size)), "--dry-run")
    run = ("--run-dir", tmp_path / "r", "--steps", 64)
    shown = flatout(*command, *run)
    assert shown.code == 0
    for part in (f"replay of {size:,} transitions", "optimiser state", "are available"):
        assert part in shown.out
    result = flatout(*command, *run, "--json")
    values = json.loads(result.out)
    row = values["expected_mb"]["cpu"]["replay"] * 2**20 / size
    assert 16 < row < 80  # an observation is four float32
    assert values["replay_transitions"] == size
    assert values["fits"] is True
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_dry_run_of_a_run_that_does_not_fit_prints_the_numbers_and_fails(
    flatout: Callable[..., Any], tmp_path: Path, more: tuple[str, ...]
) -> None:
    flags = tiny.flags("dqn", buffer_size=2**31 - 1)
    result = flatout("train", "dqn", *flags, "--dry-run", "--run-dir", tmp_path / "r", *more)
    assert result.code == 1
    assert "MiB are available" in result.err
    assert ('"fits": false' if more else "2,147,483,647 transitions") in result.out


def test_a_dry_run_of_a_population_counts_its_members(
    flatout: Callable[..., Any], tmp_path: Path
) -> None:
    command = ("train", "ppo", *tiny.flags("ppo"), "--seeds", 3, "--run-dir", tmp_path / "p")
    assert "if all 3 members train at once" in flatout(*command, "--dry-run").out
    assert json.loads(flatout(*command, "--dry-run", "--json").out)["members"] == 3
    assert not (tmp_path / "p").exists()
