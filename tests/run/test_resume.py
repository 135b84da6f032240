"""Nothing is lost on a kill: resumed runs end exactly as uninterrupted ones do."""

from __future__ import annotations

import ast
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from flatout.envs.make import factory  # noqa: F401 - imported early: its time is not a test's
from flatout.errors import Interrupt
from flatout.run.interrupts import Interrupts
from flatout.storage import checkpoint
from tests import fault_envs, tiny
from tests.conftest import TINY, Result
from tests.kills import (
    assert_same,
    final_state,
    finish,
    kill_at_random_times,
    of_all_cpus,
    spawn,
    wait_for,
)

# Runs in this process share their programs; the killed ones compile their own.
pytestmark = pytest.mark.usefixtures("shared_programs")

ROOT = Path(__file__).parents[2]
COMMON = (
    "train", "ppo", *tiny.flags("ppo"), "--checkpoint-every", "64", "--log-every", "64",
    "--no-tensorboard", "--quiet",
)  # fmt: skip
VARIANTS = {
    "plain": ("--steps", "12000"),
    "normalised": ("--steps", "12000", "--normalize-observation", "--normalize-reward",
                   "--log-every", "448"),
    "evaluated": ("--steps", "9600", "--eval-every", "640", "--eval-episodes", "3"),
    "episodes": ("--steps", "12000", "--rollout-episodes", "1", "--env-kwargs",
                 "max_episode_steps=50", "--batch-size", "50"),
}  # fmt: skip
VARIANTS["memory"] = (
    "--steps", "9600", "--recurrent", "lstm", "--critic-memory", "own", "--recurrent-size", "8",
    "--sequence-length", "16", "--normalize-observation", "--normalize-reward",
)  # fmt: skip
VARIANTS["memory, fused"] = (*VARIANTS["memory"][:4], "--env-backend", "device")
VARIANTS["memory, masks"] = (*VARIANTS["memory"], "--env", "tests.masked_envs:Picky")
WORKERS = ("--placement", "sampler=processes workers=2x1")
VARIANTS["memory, workers"] = (*VARIANTS["memory"], *WORKERS)
VARIANTS["memory, masks, acting workers"] = (
    *VARIANTS["memory, masks"], *WORKERS[:1], f"{WORKERS[1]} inference=local",
)  # fmt: skip
VARIANTS["spares"] = (*VARIANTS["plain"], "--spare-envs", "all")
KILLS = {"spares": 1, "plain": 2, "normalised": 2, "evaluated": 2, "episodes": 1,
         "memory": 2, "memory, fused": 1, "memory, masks": 1, "memory, workers": 1,
         "memory, masks, acting workers": 1}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("variant", of_all_cpus(VARIANTS, "plain"))
def test_killed_at_random_times_and_resumed_is_bit_equal(variant: str, tmp_path: Path) -> None:
    flags = (*COMMON, *VARIANTS[variant], "--seed", "3")
    kill_at_random_times(flags, KILLS[variant], random.Random(variant), tmp_path)


@pytest.mark.slow
@pytest.mark.bits
@pytest.mark.parametrize(
    "placement", ["cpu", "sampler=processes workers=2x1 schedule=overlapped"]
)  # fmt: skip
def test_a_run_with_spares_ends_as_one_without(
    placement: str, flatout: Callable[..., Result], tmp_path: Path
) -> None:
    flags = ("train", "ppo", *TINY, "--seed", 5, "--steps", 640, "--placement", placement)
    for spares in ("all", "0"):
        ended = flatout(*flags, "--spare-envs", spares, "--run-dir", tmp_path / spares)
        assert ended.code == 0
    one, other = final_state(tmp_path / "all"), final_state(tmp_path / "0")
    for part in ("step", "arrays", "params.safetensors"):
        assert_same(one[part], other[part], part)
    flow = json.loads((tmp_path / "all" / "summary.json").read_text())["flow"]
    assert flow["spare_envs"] > 0
    assert flow["reset_s"] > 0.0


@pytest.mark.bits
def test_resume_in_the_same_process_is_bit_equal(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    """Stopping half way and going on to the same total equals one go (without schedules)."""
    flags = ("train", "ppo", *TINY, "--seed", 5, "--steps", 1280)
    assert flatout(*flags, "--run-dir", tmp_path / "a").code == 0
    assert flatout(*flags, "--run-dir", tmp_path / "b", "--steps", 640).code == 0
    assert flatout("train", "--resume", tmp_path / "b", "--steps", 1280, "--quiet").code == 0
    one, other = final_state(tmp_path / "a"), final_state(tmp_path / "b")
    # The first half's own end was a logged row and a checkpoint of its own; the state is one.
    for part in ("step", "arrays", "params.safetensors"):
        assert_same(one[part], other[part], part)


def test_a_run_killed_after_its_last_row_ends_the_same(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    """It evaluates once more, for its summary, and nothing else of it changes."""
    run = tmp_path / "run"
    flags = (*TINY, "--eval-every", 64, "--eval-episodes", 1, "--checkpoint-every", 128)
    assert flatout("train", "ppo", *flags, "--run-dir", run).code == 0
    ended = final_state(run)
    (run / "summary.json").unlink()
    assert flatout("train", "--resume", run, "--quiet").code == 0
    assert_same(final_state(run), ended)


def test_rows_after_the_checkpoint_are_cut_off(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    flags = ("train", "ppo", *TINY, "--log-every", 64, "--checkpoint-every", 128)
    assert flatout(*flags, "--run-dir", run).code == 0
    newest = checkpoint.checkpoints(run / "checkpoints")[-1]
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 999999, "half a li')
    assert flatout("train", "--resume", run, "--quiet").code == 0
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [64, 128, 192, 256]


SLOW = (
    "train", "ppo", *tiny.flags("ppo", env="tests.fault_envs:sleepy"), "--env-kwargs",
    "seconds=0.008", "--no-tensorboard", "--quiet", "--checkpoint-every", "0", "--log-every", "1",
)  # fmt: skip


@pytest.fixture
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sleepy environment does not sleep in this process."""
    monkeypatch.setattr(fault_envs, "time", SimpleNamespace(sleep=lambda seconds: None))


@pytest.mark.bits
@pytest.mark.usefixtures("no_sleep")
@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_saves_the_last_boundary_and_ends(
    signum: int, flatout: Callable[..., Result], tmp_path: Path
) -> None:
    """Within a slow trajectory: it is discarded, the boundary before it is saved, at once."""
    run = tmp_path / "run"
    process = spawn(*SLOW, "--steps", "640", "--run-dir", str(run))
    rows = run / "metrics.jsonl"
    wait_for(lambda: rows.exists() and rows.read_text().count("\n") > 1)
    time.sleep(0.2)  # 32 steps of 2 environments take 0.5 s: inside a trajectory
    process.send_signal(signum)
    result = finish(process)
    assert result.code == 128 + signum  # all 640 steps would end with 0
    assert "--resume" in result.message
    step, _ = checkpoint.load(checkpoint.latest(run))
    assert 0 < step < 640
    assert step % tiny.ITERATION == 0
    steps = step + 2 * tiny.ITERATION
    resumed = flatout("train", "--resume", run, "--steps", steps, "--quiet")
    assert resumed.code == 0, resumed.err
    whole = flatout(*SLOW, "--steps", steps, "--run-dir", tmp_path / "whole")
    assert whole.code == 0, whole.err
    assert_same(final_state(run)["arrays"], final_state(tmp_path / "whole")["arrays"])


@pytest.mark.parametrize(
    "delay", [0.6, *(pytest.param(delay, marks=pytest.mark.slow) for delay in (0.05, 0.3, 0.9))]
)
def test_a_signal_while_starting_ends_cleanly(delay: float, tmp_path: Path) -> None:
    words = (*SLOW, "--steps", "100000", "--run-dir", str(tmp_path / "run"))
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout", *words], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: (tmp_path / "run" / ".lock").exists())
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert result.code == 130
    assert "Traceback" not in result.err


def test_a_signal_while_garbage_is_collected_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    """What is raised in a callback of the collector goes nowhere: the signal comes again."""

    def callback(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and not sent:
            sent.append(1)
            signal.raise_signal(signal.SIGTERM)

    sent: list[int] = []
    with Interrupts() as interrupts, pytest.raises(Interrupt), interrupts.discardable():  # noqa: PT012
        gc.callbacks.append(callback)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(callback)
        assert sent
        time.sleep(10)
    assert interrupts.signum == signal.SIGTERM
    assert "Traceback" not in capfd.readouterr().err


def test_a_second_signal_ends_an_environment_that_hangs(tmp_path: Path) -> None:
    process = spawn(
        *COMMON, "--env", "tests.fault_envs:faulty", "--env-kwargs", "fault=swallow",
        "--env-kwargs", "at=2", "--env-kwargs", f"folder={tmp_path}",
        "--run-dir", str(tmp_path / "run"),
    )  # fmt: skip
    wait_for(lambda: (tmp_path / "done").exists() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)  # sooner it would count as the same Ctrl-C
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    """On a real file system of 400 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(mounted)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this container may not mount a small file system")
    try:
        run = mounted / "run"
        flags = (*COMMON, "--steps", "20000", "--keep-checkpoints", "100")
        result = flatout(*flags, "--run-dir", run)
        assert result.code == 1
        assert "No space left on device" in result.message
        saved = checkpoint.checkpoints(run / "checkpoints")
        assert saved
        for path in saved:
            checkpoint.load(path)  # every one is whole
        for path in saved[: len(saved) // 2]:  # make room, as a user would
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        step = int(saved[-1].name.removeprefix("step_"))
        more = ("--steps", step + tiny.ITERATION, "--keep-checkpoints", 1, "--quiet")
        resumed = flatout("train", "--resume", run, *more)
        assert resumed.code == 0, resumed.err
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=False)


UNPICKLERS = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
BETWEEN = {
    "engine/workers/pool.py", "engine/workers/protocol.py", "engine/workers/worker.py",
    "engine/workers/remote_actor.py", "envs/checking/process.py", "child.py",
}  # fmt: skip
"""Files that pickle what a parent says to its own child processes, over a pipe or socket pair that
nobody else holds."""


def test_state_is_never_unpickled() -> None:
    """No module of ours imports pickle, or a loader that would. NumPy's loader is only called where
    it refuses objects."""
    roots = [ROOT / "src" / "flatout", ROOT / "explain" / "src" / "flatout_explain"]
    files = {path: path.relative_to(root) for root in roots for path in root.rglob("*.py")}
    for path, name in files.items():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            loaders = UNPICKLERS & {name.partition(".")[0] for name in names}
            assert not loaders or name.as_posix() in BETWEEN, path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("torch.load", "pd.read_pickle", "pandas.read_pickle"), path
                safe = {one.arg: ast.unparse(one.value) for one in node.keywords}
                if called in ("np.load", "numpy.load"):
                    assert safe.get("allow_pickle") == "False", path


@pytest.mark.bits
@pytest.mark.usefixtures("no_sleep")
def test_a_run_killed_before_its_first_checkpoint_begins_again(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    slower = (word.replace("0.008", "0.1") for word in SLOW)  # it is killed in its first iteration
    process = spawn(*slower, "--steps", "128", "--run-dir", str(run))
    wait_for(lambda: (run / "metrics.jsonl").exists())
    process.kill()
    finish(process)
    assert not (run / "checkpoints").exists()
    assert flatout("train", "--resume", run, "--quiet").code == 0
    assert flatout(*SLOW, "--steps", 128, "--run-dir", tmp_path / "whole").code == 0
    assert_same(final_state(run), final_state(tmp_path / "whole"))


@pytest.mark.bits
def test_a_kill_while_a_checkpoint_is_replaced_loses_nothing(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    """Between the two renames the old one lies under another name: it is taken back."""
    run = tmp_path / "run"
    assert flatout("train", "ppo", *TINY, "--run-dir", run, "--keep-checkpoints", 1).code == 0
    before = final_state(run)
    newest = checkpoint.latest(run)
    newest.rename(newest.with_name(f".{newest.name}.old"))
    newest.with_name(f".{newest.name}.tmp").mkdir()
    assert flatout("train", "--resume", run, "--quiet").code == 0
    assert_same(final_state(run), before)
    assert [path.name for path in (run / "checkpoints").iterdir()] == [newest.name]


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_devices(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    flags = ("--shards", 2, "--devices", 2, "--run-dir", run)
    assert flatout("train", "ppo", *TINY, *flags).code == 0
    done = flatout("train", "--resume", run, "--devices", 1, "--steps", 320, "--quiet", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["placement"] == "cpu"
    both = ("--devices", 2, "--placement", "act=cpu learn=cpu", "--steps", 640)
    assert "both say" in flatout("train", "--resume", run, *both).message


@pytest.mark.usefixtures("no_sleep")
def test_a_run_killed_before_its_first_step_is_known_and_can_be_resumed(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    run, file = runs / "killed", tmp_path / "file"
    slow = ("--env", "tests.fault_envs:slow_reset", "--env-kwargs", "seconds=60")  # where it starts
    process = spawn(*COMMON, *slow, "--steps", "64", "--run-dir", str(run))
    wait_for(lambda: (run / "config.json").exists())
    process.kill()
    finish(process)
    assert not (run / "metrics.jsonl").exists(), "it was still starting up"
    (row,) = json.loads(flatout("runs", runs, "--json").out)
    assert (row["run"], row["algorithm"], row["state"]) == ("killed", "ppo", "killed")
    for words in (
        ("eval", run), ("report", run), ("report", "--curves", run), ("explain", run),
        ("export", run, "--out", f"{file}.py"), ("train", "ppo", "--run-dir", run, *TINY),
    ):  # fmt: skip
        result = flatout(*words)
        assert result.code in (1, 2)
        assert str(run) in result.message
        assert "No such file" not in result.message
    assert f"flatout train --resume {run}" in flatout("eval", run).message
    assert flatout("train", "--resume", run, "--quiet").code == 0
    assert json.loads((run / "summary.json").read_text())["steps"] == 64


def test_a_run_that_was_to_start_from_another_does_not_begin_from_nothing(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert flatout(*COMMON, "--steps", 64, "--run-dir", first).code == 0
    config = json.loads((first / "config.json").read_text())
    shutil.copytree(first, second, ignore=lambda _, names: {*names} - {"config.json", ".lock"})
    (second / "config.json").write_text(json.dumps(config | {"parent": str(first)}))
    result = flatout("train", "--resume", second, "--quiet", "--steps", 128)
    assert result.code == 0, result.err
    assert json.loads((second / "summary.json").read_text())["parent"] == str(first)
    assert checkpoint.checkpoints(second / "checkpoints")[0].name.endswith("_000000000000")
