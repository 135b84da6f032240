"""Comparing numbers of devices: equal work, honest speed-ups, and what ate the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import UsageError
from flatout.fleet.scaling import PARTS, Row, Scaling, refuse_unequal, split
from tests.conftest import Result

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
    result = flatout("scale", "classify", *TINY, "--devices", "1,2", "--json", "--plot", plot)
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    assert [one["devices"] for one in found["rows"]] == [1, 2]
    assert found["virtual"]
    assert found["rows"][0]["speed_up"] == 1.0
    assert all(set(one["parts"]) == set(PARTS) for one in found["rows"])
    assert found["rows"][1]["parts"]["averaging"] > 0
    assert "share the same" in result.err
    assert plot.read_text().startswith("<?xml")


@pytest.mark.slow
def test_finished_runs_compare_only_where_they_did_the_same(flatout: Cli, tmp_path: Path) -> None:
    for name, steps in (("a", 20), ("b", 20), ("c", 40)):
        flags = ("--steps", steps, "--batch-size", 64, "--shards", 2, "--quiet")
        devices = ("--devices", 1 if name == "a" else 2)
        made = flatout("train", "classify", *flags, *devices, "--run-dir", tmp_path / name)
        assert made.code == 0, made.err
    same = flatout("scale", tmp_path / "a", tmp_path / "b", "--json")
    assert same.code == 0, same.err
    assert [one["devices"] for one in json.loads(same.out)["rows"]] == [1, 2]
    refused = flatout("scale", tmp_path / "a", tmp_path / "c")
    assert refused.code == 2
    assert "unequal work" in refused.message
    assert "1,280" in refused.message
    assert "2,560" in refused.message


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("classify",), "name the numbers of devices"),
        (("classify", "--devices", "1,x"), "name the numbers of devices"),
        (("classify", "--devices", "1,2", "--plot", "x.txt"), ".svg"),
        (("classify", "--devices", "1,2", "--shards", "1"), "--shards 2"),
        (("classify", "--devices", "1,2", "--placement", "gpu"), "usable GPUs"),
        (("nothing", "--devices", "1,2"), "unknown algorithm"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    argv: tuple[str, ...], words: str, flatout: Cli
) -> None:
    result = flatout("scale", *argv)
    assert result.code in (1, 2)
    assert words in result.message
