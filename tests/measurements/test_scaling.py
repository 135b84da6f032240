"""Comparing numbers of devices: equal work, honest speed-ups, and what ate the rest."""

from __future__ import annotations

import json
import math
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.algorithms.base import Counters, State
from flatout.cli import compare_devices
from flatout.config.placement import DeviceName
from flatout.config.settings import with_run
from flatout.errors import UsageError
from flatout.hardware.inventory import resolve_placement
from flatout.measurements.measure import averaged
from flatout.measurements.scaling import PARTS, Row, Scaling, refuse_unequal, split
from flatout.storage.checkpoint import PREFIX, named_leaves
from flatout_explain.phases import PHASES
from tests.conftest import Result
from tests.hardware.test_inventory import machine
from tests.runs_made import folder

Cli = Callable[..., Result]
seconds = st.floats(0.0, 100.0)


def row(devices: int, virtual: float = 0.0, **parts: float) -> Row:
    spent = {name: parts.get(name, 0.0) for name in PARTS}
    total = sum(spent.values())
    return Row(devices, total, 1 / total, 1 / total, spent)


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"averaging": 9.0}, "communication-bound"),
        ({"dispatch": 9.0}, "launch-bound"),
        ({"input": 9.0}, "input-bound"),
        ({"waiting": 9.0}, "waiting"),
    ],
)
def test_what_makes_several_slower_is_named(more: dict[str, float], cause: str) -> None:
    scaling = Scaling([row(1, compute=8.0), row(2, compute=4.0, **more)], 2, False)
    found, words = scaling.verdict()
    assert found == cause
    assert "1.62 times slower" in words


def test_a_share_that_is_too_small_and_shared_cores_are_told_apart() -> None:
    for seconds, cause in ((8.5, "launch-bound"), (7.0, "compute-bound")):
        rows = [row(1, compute=8.0), row(4, compute=seconds)]
        assert Scaling(rows, 2, False).verdict()[0] == cause
        found, words = Scaling(rows, 2, True).verdict()
        assert found == "oversubscribed"
        assert "same 2 cores" in words


@given(st.floats(0.1, 100.0), st.integers(2, 8))
def test_in_proportion_is_healthy(compute: float, devices: int) -> None:
    scaling = Scaling([row(1, compute=compute), row(devices, compute=compute / devices)], 8, False)
    assert scaling.verdict()[0] == "healthy"
    assert scaling.efficiency(scaling.rows[1]) == pytest.approx(1.0)


@given(st.lists(seconds, min_size=4, max_size=4), seconds, seconds)
def test_the_parts_are_all_of_the_time(spent: list[float], average: float, dispatch: float) -> None:
    learn, env, wait, _ = spent
    wall = sum(spent) + 10.0
    phases = dict.fromkeys(("act", "input", "replay", "transfer", "publish"), 0.0)
    phases |= {"learn": learn / wall, "env": env / wall, "wait": wait / wall}
    summary = {"wall_s": wall, "phases": phases, "steps": 100,
               "steps_per_s": 100 / max(sum(spent), 1e-6)}  # fmt: skip
    costs = {"average_s": average, "averages": 2, "dispatch_s": dispatch, "dispatches": 1}
    parts = split(summary, costs)
    assert set(parts) == set(PARTS)
    assert min(parts.values()) >= -1e-9
    assert sum(parts.values()) == pytest.approx(max(sum(spent), 1e-6), abs=1e-6)


def test_gradients_are_of_what_learns() -> None:
    """Averaging them is timed: the optimiser's moments and target networks are not averaged."""
    Params = namedtuple("Params", ("critics", "target_critics"))
    four, counted = np.zeros(4, np.float32), np.zeros((), np.int32)
    state = State(Params(four, four), {"mu": four, "nu": four}, Counters(counted, counted))
    assert averaged(named_leaves(state, PREFIX)) == 4


def test_unequal_work_is_refused_with_what_differs() -> None:
    one, two = {"examples": 204_800, "size": "small"}, {"examples": 2_000_000, "size": "small"}
    with pytest.raises(UsageError, match="examples is one 204,800, two 2,000,000"):
        refuse_unequal({"one": one, "two": two})
    refuse_unequal({"one": one, "three": dict(one)})


# --- The command --------------------------------------------------------------------------------

TINY = ("--steps", 20, "--batch-size", 64)


@pytest.mark.slow
def test_the_same_work_on_one_and_two_devices(flatout: Cli, tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    counts = ("--compare-devices", "1,2")
    asked = flatout("plan", "classify", *TINY, *counts)
    assert "2 devices: 32 rows of each batch on each" in asked.out
    result = flatout("plan", "classify", *TINY, *counts, "--run", "--json", "--out", plot)
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    assert [one["devices"] for one in found["rows"]] == [1, 2]
    assert found["virtual"]
    assert found["rows"][0]["speed_up"] == 1.0
    assert all(set(one["parts"]) == set(PARTS) for one in found["rows"])
    assert found["rows"][1]["parts"]["averaging"] > 0
    assert "share the same" in result.err
    assert plot.read_text().startswith("<?xml")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings of the runs that a command compares; none is made."""
    asked = list[dict[str, Any]]()

    def measured(config: Any, count: int, settings: dict[str, Any]) -> dict[str, Any]:
        asked.append(with_run(config, **settings).flat())
        phases = dict.fromkeys(PHASES, 0.1)
        summary = {"steps": 64, "updates": 1, "wall_s": 2.0, "steps_per_s": 32.0, "phases": phases}
        costs = {"average_s": 0.0, "dispatch_s": 0.0, "averages": 0.0, "dispatches": 0.0}
        return {"summary": summary, "costs": costs, "examples": 64}

    monkeypatch.setattr(compare_devices, "measured", measured)
    return asked


CARTPOLE = ("plan", "ppo", "--env", "CartPole-v1", "--envs", 8, "--n-steps", 8, "--steps", 64,
            "--compare-devices", "1,2", "--run")  # fmt: skip


@pytest.mark.parametrize("placement", [None, "cpu", "sampler=processes workers=4x2"])
def test_the_placement_is_that_which_is_given(
    placement: str | None, flatout: Cli, ran: list[dict[str, Any]]
) -> None:
    result = flatout(*CARTPOLE, *(() if placement is None else ("--placement", placement)))
    assert result.code == 0, result.err
    assert [one["devices"] for one in ran] == [1, 2]
    assert {one["placement"] for one in ran} == {placement or "cpu"}


@pytest.mark.parametrize(
    ("words", "act"),
    [
        ((), "cpu"),
        (("--placement", "cpu"), "cpu"),
        (("--placement", "sampler=processes workers=4x2"), "cpu"),
        (("--env-backend", "device", "--placement", "sampler=device schedule=fused"), None),
    ],
)
def test_one_gpu_is_no_place_for_two_virtual_devices(
    words: tuple[str, ...], act: str | None, flatout: Cli, ran: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    here = machine(1)
    monkeypatch.setattr("flatout.hardware.inventory.inventory", lambda: here)
    result = flatout(*CARTPOLE, *words)
    assert result.code == 0, result.err
    there = replace(here, cpu_devices=2)
    for count, asked in zip((1, 2), ran, strict=True):
        placed, _ = resolve_placement(asked["placement"], there, devices=asked["devices"])
        cpus = tuple(DeviceName("cpu", number) for number in range(count))
        assert placed.learn == cpus
        assert placed.act == (cpus if act is None else cpus[:1])
        assert asked["virtual_devices"] == 2


@pytest.mark.slow
def test_finished_runs_compare_only_where_they_did_the_same(flatout: Cli, tmp_path: Path) -> None:
    for name, steps in (("a", 20), ("b", 20), ("c", 40)):
        flags = ("--steps", steps, "--batch-size", 64, "--shards", 2, "--quiet")
        devices = ("--devices", 1 if name == "a" else 2)
        made = flatout("train", "classify", *flags, *devices, "--run-dir", tmp_path / name)
        assert made.code == 0, made.err
    same = flatout("runs", "--compare", tmp_path / "a", tmp_path / "b", "--json")
    assert same.code == 0, same.err
    assert [one["devices"] for one in json.loads(same.out)["scaling"]["rows"]] == [1, 2]
    words = ("--out", tmp_path / "speed.svg")
    refused = flatout("runs", "--compare", tmp_path / "a", tmp_path / "c", *words)
    assert refused.code == 2
    assert "unequal work" in refused.message
    assert "1,280" in refused.message
    assert "2,560" in refused.message


def finished(path: Path, devices: int, **more: Any) -> Path:
    """A run's folder, as far as `runs --compare` reads it."""
    settings = {"env": "CartPole-v1", "batch_size": 64}
    folder(path, [1.0], **settings)
    phases = dict.fromkeys(PHASES, 0.1)
    summary = {"steps": 1000, "updates": 10, "wall_s": 2.0, "steps_per_s": 500.0, "phases": phases}
    learn = ",".join(f"cpu:{number}" for number in range(devices))
    summary |= {"placement": f"learn={learn}" if devices > 1 else "cpu", **more}
    (path / "summary.json").write_text(json.dumps(summary))
    return path


def test_runs_on_one_number_of_devices_are_not_compared(flatout: Cli, tmp_path: Path) -> None:
    one, other = finished(tmp_path / "one", 1), finished(tmp_path / "other", 1, steps_per_s=9.0)
    two = finished(tmp_path / "two", 2)
    assert "speed-up" not in flatout("runs", "--compare", one, other).out
    assert "speed-up" in flatout("runs", "--compare", one, two).out
    for folders in ((one, other, two), (one, two, one)):
        result = flatout("runs", "--compare", *folders, "--json")
        assert (result.code, result.out) == (2, "")
        assert "both ran on 1 device, so that there is nothing to compare" in result.message


@pytest.mark.parametrize(
    "damage",
    [
        {"steps_per_s": math.inf}, {"steps_per_s": 1e-300}, {"steps_per_s": 1e300}, {"steps": 0},
        {"wall_s": math.nan}, {"wall_s": -5.0}, {"phases": {**dict.fromkeys(PHASES, 0.1),
                                                           "learn": -math.inf}}, {"phases": "x"},
    ],
)  # fmt: skip
def test_a_damaged_summary_is_refused(flatout: Cli, tmp_path: Path, damage: dict[str, Any]) -> None:
    others = [finished(tmp_path / name, count) for name, count in (("two", 2), ("four", 4))]
    damaged = finished(tmp_path / "run", 1, **damage)
    result = flatout("runs", "--compare", damaged, *others, "--json")
    assert (result.code, result.out) == (2, ""), result.out
    assert "summary.json is damaged (" in result.message
    whole = finished(tmp_path / "whole", 1)
    assert flatout("runs", "--compare", whole, *others, "--json").code == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("classify", "--compare-devices", "1,x"), "--compare-devices: 'x' is not a whole number"),
        (("classify", "--compare-devices", "1,2", "--run", "--out", "x.txt"), ".svg"),
        (("classify", "--compare-devices", "1,2", "--shards", "1"), "--shards 2"),
        (("classify", "--compare-devices", "1,2", "--placement", "gpu"), "usable GPUs"),
        (("nothing", "--compare-devices", "1,2"), "unknown algorithm"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    argv: tuple[str, ...], words: str, flatout: Cli
) -> None:
    result = flatout("plan", *argv)
    assert result.code in (1, 2)
    assert words in result.message
