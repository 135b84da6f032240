"""Whole runs with actor processes: from the command line, over devices, killed, and from Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest

from flatout import PPO
from flatout.config.placement import parse
from flatout.config.workers import assign_groups, with_workers
from flatout.errors import UsageError
from flatout.storage import checkpoint
from tests import tiny
from tests.conftest import Result, last_saved
from tests.forked import Child
from tests.kills import finish, spawn, wait_for

Cli = Callable[..., Result]
SMALL = (*tiny.flags("ppo"), "--steps", "256", "--quiet")


def differences(one: Path, other: Path) -> list[str]:
    left, right = last_saved(one), last_saved(other)
    assert left.keys() == right.keys()
    return [name for name in left if not np.array_equal(left[name], right[name])]


@pytest.mark.slow
@pytest.mark.bits
def test_one_group_is_bit_equal_to_the_inline_sampler(flatout: Cli, tmp_path: Path) -> None:
    """One worker has one group: the same batches, and so the same bits, as without processes."""
    placements = ("cpu", "sampler=processes workers=1x2")
    for number, placement in enumerate(placements):
        flags = ("--placement", placement, "--run-dir", tmp_path / str(number))
        assert flatout("train", "ppo", *SMALL, *flags).code == 0
    assert differences(tmp_path / "0", tmp_path / "1") == []


@pytest.mark.bits
@pytest.mark.slow
def test_several_acting_devices_are_bit_equal_to_one(flatout: Cli, tmp_path: Path) -> None:
    """Which device acts changes nothing, as long as the groups are the same."""
    for number, act in enumerate(("cpu,cpu:1", "cpu:2,cpu:3")):
        placement = f"act={act} learn=cpu sampler=processes workers=4x1"
        where = ("--placement", placement, "--run-dir", tmp_path / str(number))
        flags = ("--envs", 4, *where, "--json")
        result = flatout("train", "ppo", *SMALL, *flags)
        assert result.code == 0, result.err
        assert json.loads(result.out)["envs"] == 4
    assert differences(tmp_path / "0", tmp_path / "1") == []


@pytest.mark.slow
@pytest.mark.bits
def test_equal_groups_learn_the_same_under_every_sampler(flatout: Cli, tmp_path: Path) -> None:
    """However many environments a worker steps; a group is a part of a worker, or several."""
    ways = ("1x4", "4x1", "2x2 inference=local")
    placements = ["groups=2", *(f"groups=2 sampler=processes workers={way}" for way in ways)]
    sizes = ("--envs", 4, "--n-steps", 16, "--batch-size", 32, "--n-epochs", 2, "--steps", 128)
    for number, placement in enumerate(placements):
        run = tmp_path / str(number)
        where = ("--placement", placement, "--run-dir", run, "--json")
        result = flatout("train", "ppo", "--env", "Pendulum-v1", *sizes, *where)
        assert result.code == 0, result.err
        assert "groups=2" in json.loads(result.out)["placement"].split()
        assert differences(tmp_path / "0", run) == []


@pytest.mark.parametrize(
    ("text", "envs", "sizes", "batch"),
    [
        ("groups=4", 8, [8], 2),
        ("sampler=processes workers=3x2", 6, [2, 2, 2], 2),
        ("sampler=processes workers=1x6", 6, [6], 6),
        ("sampler=processes workers=4x2 groups=2", 8, [4, 4], 4),
        ("sampler=processes workers=2x4 groups=8", 8, [4, 4], 1),
        ("sampler=processes workers=2x4 inference=local", 8, [4, 4], 4),
        ("sampler=processes workers=2x4 inference=local groups=4", 8, [4, 4], 2),
    ],
)
def test_who_steps_together_and_who_acts_in_one_call(
    text: str, envs: int, sizes: list[int], batch: int
) -> None:
    place = with_workers(parse(text), envs, 4)
    made = [share for groups in assign_groups(place, envs) for share in groups]
    assert [share.count for share in made] == sizes
    assert {share.batch for share in made} == {batch}
    assert with_workers(parse(str(place)), envs, 4) == place


@pytest.mark.parametrize(
    ("text", "envs", "words"),
    [
        ("groups=3", 8, "groups=3 does not divide --envs 8"),
        ("groups=0", 8, "groups=0 is not a whole number of 1 or more"),
        ("sampler=processes workers=2x6 groups=3", 12, "groups=2, for example"),
        ("sampler=processes workers=4x2 inference=local groups=2", 8, "groups=4, for example"),
    ],
)
def test_groups_that_do_not_fit_are_refused(text: str, envs: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        with_workers(parse(text), envs, 4)


def test_groups_are_halves_for_each_device() -> None:
    place = with_workers(parse("act=gpu:0,gpu:1 sampler=processes workers=8x2"), 16, 4)
    rounds = [
        [(str(s.device), s.first, s.count) for s in groups] for groups in assign_groups(place, 16)
    ]
    assert rounds == [
        [("gpu:0", 0, 4), ("gpu:1", 4, 4)],
        [("gpu:0", 8, 4), ("gpu:1", 12, 4)],
    ]
    place = with_workers(parse("sampler=processes"), 12, 5)
    assert place.workers == (4, 3), "as many as there are cores and divide the environments"
    assert [[s.count for s in groups] for groups in assign_groups(place, 12)] == [[6], [6]]
    (one,) = assign_groups(parse("cpu"), 7)
    assert [s.count for s in one] == [7]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--placement", "sampler=processes workers=2x4", "--envs", "6"), "--envs is 6"),
        (("--placement", "inference=local"), "inference=local needs sampler=processes"),
        (("--env-backend", "host", "--placement", "sampler=device"), "--env-backend host"),
        (("--placement", "schedule=fused"), "needs sampler=device"),
        (("--placement", "act=cpu,cpu:1"), "in this version one process acts on one"),
        (("--worker-timeout", "0"), "worker_timeout"),
    ],
)
def test_what_cannot_be_is_refused(flatout: Cli, flags: tuple[str, ...], words: str) -> None:
    result = flatout("train", "ppo", "--env", "CartPole-v1", *flags)
    assert result.code == 2
    assert words in result.message


def sleepy(run: Path, *more: str) -> Child:
    return spawn(
        "train", "ppo", "--env", "tests.fault_envs:sleepy", "--env-kwargs", "seconds=0.01",
        "--placement", "sampler=processes workers=2x1", "--envs", "2", "--n-steps", "16",
        "--batch-size", "32", "--n-epochs", "2",
        "--steps", "100000", "--checkpoint-every", "64", "--run-dir", str(run), "--quiet", *more,
    )  # fmt: skip


def workers_of(process: Child) -> list[psutil.Process]:
    every = psutil.Process(process.pid).children(recursive=True)
    return [child for child in every if child.name() != "tee"]  # that one keeps last words


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_its_parent(how: signal.Signals, flatout: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = sleepy(run)
    wait_for(lambda: saved(run) or process.poll() is not None)
    workers = workers_of(process)
    assert len(workers) == 2
    os.kill(process.pid, how)
    result = finish(process)
    assert result.code == (-9 if how == signal.SIGKILL else 128 + how)
    wait_for(lambda: not any(worker.is_running() for worker in workers))
    resumed = resume(flatout, run)
    assert resumed.code == 0, resumed.err


@pytest.mark.fault
@pytest.mark.slow
def test_a_signal_to_the_whole_group_loses_nothing_that_workers_know(
    flatout: Cli, tmp_path: Path
) -> None:
    """As `timeout` and job schedulers send it; with local inference they hold the state."""
    run = tmp_path / "run"
    process = sleepy(run, "--placement", "sampler=processes workers=2x1 inference=local")
    wait_for(lambda: saved(run) or process.poll() is not None)
    for worker in workers_of(process):
        os.kill(worker.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGTERM)
    result = finish(process)
    assert result.code == 143, result.err
    resumed = resume(flatout, run)
    assert resumed.code == 0, resumed.err
    summary = json.loads((run / "summary.json").read_text())
    assert [note for note in summary["notes"] if "restarted" in note or "new episode" in note] == []
    assert summary["flow"]["environments_lost"] == 0


@pytest.mark.fault
@pytest.mark.slow
def test_a_worker_that_acts_by_itself_and_always_fails_ends_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = finish(spawn(
        "train", "ppo", "--env", "tests.fault_envs:failing", "--placement",
        "sampler=processes workers=1x1 inference=local", "--n-steps", "16", "--batch-size", "16",
        "--steps", "1000", "--run-dir", str(run), "--quiet",
    ))  # fmt: skip
    assert result.code == 1
    assert "the physics exploded" in result.err
    assert "AssertionError" not in result.err
    step, _ = checkpoint.load(checkpoint.latest(run))  # the last boundary was saved
    assert step == 6 * 16  # each of six processes got so far


def saved(run: Path) -> bool:
    return bool(checkpoint.checkpoints(run / "checkpoints"))


def resume(flatout: Cli, run: Path) -> Result:
    steps = json.loads((checkpoint.latest(run) / "state.json").read_text())["step"]
    return flatout("train", "--resume", run, "--steps", steps + 64, "--quiet")


@pytest.mark.fault
@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_the_run_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = sleepy(run, "--steps", "512", "--json")
    wait_for(lambda: saved(run) or process.poll() is not None)
    os.kill(workers_of(process)[0].pid, signal.SIGKILL)
    result = finish(process)
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    notes = summary["notes"]
    assert summary["flow"]["environments_lost"] == 1
    assert any("SIGKILL" in note and "begins a new episode" in note for note in notes), notes


@pytest.mark.slow
def test_a_function_of_a_script_reaches_the_workers(tmp_path: Path) -> None:
    """Classes and ids of `__main__`, which workers cannot import, go there as they are."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import gymnasium as gym
from flatout import PPO

class Mine(gym.wrappers.TimeLimit):
    pass

gym.register("Mine-v0", entry_point=lambda **k: Mine(gym.make("CartPole-v1", **k), 20))
where = "sampler=processes workers=1x2"
for env in (lambda **k: Mine(gym.make("CartPole-v1", **k), 20), "Mine-v0"):
    PPO(env, n_steps=8, batch_size=16, n_epochs=1, placement=where).learn(16)
print("done")
"""
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=120,
        env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


def test_what_workers_print_does_not_reach_the_output(capfd: pytest.CaptureFixture[str]) -> None:
    class Chatty(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            print("step", flush=True)
            return super().step(action)

    code = PPO(
        lambda **k: Chatty(gym.make("CartPole-v1", **k)), n_steps=4, batch_size=8,
        placement="sampler=processes workers=1x2",
    )  # fmt: skip
    capfd.readouterr()  # the check has made a step in this process
    code.learn(16)
    printed = capfd.readouterr()
    assert "step" not in printed.out
    assert "step\n" in printed.err
