"""Killing runs, resuming them, and comparing all that they leave."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.storage import checkpoint
from tests import tiny
from tests.conftest import Result
from tests.forked import Child

ROOT = Path(__file__).parent.parent
TIMES = ("time/", "phase/")


def of_all_cpus(variants: Iterable[str], one: str) -> list[Any]:
    """The variants as parameters, of which one is tried under every instruction set.

    Both lives of a killed run execute the same programs, whatever these compute; what a resumed
    run restores is compared to the bit under every instruction set by tests in one process.
    """
    return [pytest.param(name, marks=pytest.mark.bits if name == one else ()) for name in variants]


def spawn(*argv: str, cwd: Path = ROOT, module: str = "flatout") -> Child:
    """Start the command, without its imports; a test about starting takes the real one."""
    return Child(module, tuple(tiny.latest(argv)), cwd)


def run_script(path: Path, cwd: Path) -> Result:
    """Run a script as a user does, without its imports; warnings are errors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONWARNINGS", "error")
        return finish(Child(str(path.absolute()), (), cwd), 300)


def stamp(run: Path) -> int:
    """Changes when a process has started up and begins to train in a folder."""
    begun = (run / "metrics.jsonl").exists()
    return (run / "config.json").stat().st_mtime_ns if begun else 0


def finish(process: Child | subprocess.Popen[str], seconds: float = 300) -> Result:
    out, err = process.communicate(timeout=seconds)
    return Result(process.returncode, out, err)


def final_state(run: Path) -> dict[str, Any]:
    """Everything that a run left behind, less what clocks say."""
    step, snapshot = checkpoint.load(checkpoint.latest(run))
    data = json.loads(json.dumps(snapshot.data))
    progress = data["progress"]
    for name in (
        "wall_s",
        "metrics_bytes",
        "episodes_bytes",
    ):  # bytes differ with the digits of times
        del progress[name]
    for name in ("pending", "since_episode"):
        progress[name] = {k: v for k, v in progress[name].items() if not k.startswith(TIMES)}
    progress["reached"] = {goal: at[0] for goal, at in progress["reached"].items()}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in row.items() if not k.startswith(TIMES)} for row in rows]
    episodes = run / "episodes.jsonl"
    if episodes.exists():
        kept += [json.loads(line) for line in episodes.read_text().splitlines()]
    replayed = {} if snapshot.rows is None else snapshot.rows.read(*snapshot.rows.stored)
    agents = {
        name: checkpoint.load_agent(run / name)[0]
        for name in ("params.safetensors", "best.safetensors")
        if (run / name).exists()
    }
    return {"step": step, "arrays": snapshot.arrays, "data": data, "rows": kept,
            "replayed": replayed} | agents  # fmt: skip


def assert_same(one: Any, other: Any, path: str = "") -> None:
    """Equal to the last bit, whatever the structure."""
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{path}[{i}]")
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, path
        assert one.tobytes() == other.tobytes(), path
    else:
        assert one == other, path


def assert_same_with_lag(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal to the last bit, but for how many trajectories were collected ahead.

    With `lag=2` that is one or two, as many as fit into the last update. Where the numbers differ,
    the second trajectory is left out, and what collecting it has changed.
    """
    if len(one["data"]["pending"]) != len(other["data"]["pending"]):
        one, other = _without_second(one), _without_second(other)
    assert_same(one, other)


def _without_second(state: dict[str, Any]) -> dict[str, Any]:
    later = ("pending/1/", "published/", "sampler/")
    arrays = {k: v for k, v in state["arrays"].items() if not k.startswith(later)}
    data = {k: v for k, v in state["data"].items() if k not in ("published", "sampler")}
    return state | {"arrays": arrays, "data": data | {"pending": data["pending"][:1]}}


def wait_for(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def kill_at_random_times(
    flags: tuple[str, ...], wanted: int, dice: random.Random, folder: Path, seconds: float = 0.5,
    same: Callable[[dict[str, Any], dict[str, Any]], None] = assert_same,
) -> None:  # fmt: skip
    """Run, kill with SIGKILL and resume until so many kills hit; every end must be the same.

    Args:
        flags: of the command, without its run folder.
        wanted: kills.
        dice: when they come.
        folder: for runs.
        seconds: the longest that a process trains before it is killed; twice as long each time
            that nothing new was saved before (a busy machine compiles slowly).
        same: compares the final states of two runs.
    """
    from flatout.__main__ import main

    whole = folder / "whole"
    assert main(tiny.latest([*flags, "--run-dir", str(whole)])) == 0
    run, kills, rounds, reached = folder / "run-0", 0, 0, set[tuple[int, str]]()
    longest = seconds
    # Most kills must hit a run that had moved on.
    while kills < wanted or len(reached) < (wanted + 1) // 2:
        assert kills + rounds < 10 * wanted + 10, "no run gets anywhere before it is killed"
        resumable = bool(checkpoint.checkpoints(run / "checkpoints"))
        if not resumable and run.exists():  # killed before anything was saved: begin again
            rounds += 1
            run = folder / f"run-{rounds}"
        again = ("train", "--resume", str(run), "--quiet")
        before = stamp(run)
        process = spawn(*(again if resumable else (*flags, "--run-dir", str(run))))
        if dice.random() < 0.8:  # while it trains, at a random time; else while it starts
            wait_for(lambda: stamp(run) != before or process.poll() is not None)  # noqa: B023
        time.sleep(dice.uniform(0.0, longest))
        killed = process.poll() is None
        if killed:
            process.kill()
            kills += 1
        finish(process)
        saved = checkpoint.checkpoints(run / "checkpoints")
        further = {(rounds, saved[-1].name)} - reached if saved and killed else set()
        reached |= further
        longest = seconds if further or not killed else 2 * longest
        if (run / "summary.json").exists():  # it got to its end: compare it, and begin another
            same(final_state(run), final_state(whole))
            rounds += 1
            run = folder / f"run-{rounds}"
    if checkpoint.checkpoints(run / "checkpoints"):
        done = finish(spawn("train", "--resume", str(run), "--quiet"))
        assert done.code == 0, done.err
        same(final_state(run), final_state(whole))
