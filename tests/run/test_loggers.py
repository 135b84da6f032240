"""TensorBoard events as its own readers see them."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[attr-defined]

from flatout import PPO, FlatoutError, UsageError
from flatout.config.settings import resolve
from flatout.installing import install
from flatout.run.loggers import RunLogs, TensorBoard
from flatout.run.progress import Progress
from flatout.types import Episodes
from tests import tiny
from tests.kills import run_script

pytestmark = pytest.mark.usefixtures("shared_programs")


def masked(data: bytes) -> int:
    """A record's checksum (TFRecord's format)."""
    word = crc32c(data)
    return ((word >> 15 | word << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(path: Path) -> list[Any]:
    """All events of a file, checksums checked."""
    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + size]
        assert struct.unpack("<I", data[8:12])[0] == masked(data[:8])
        assert struct.unpack("<I", data[12 + size : 16 + size])[0] == masked(body)
        found.append(Event.FromString(body))
        data = data[16 + size :]
    return found


def shown(folder: Path) -> list[int]:
    """The steps of metrics that TensorBoard shows of a folder: a session's start removes those from
    its step on."""
    steps: list[int] = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in events(path):
            if event.session_log.status == SessionLog.START:
                steps = [step for step in steps if step < event.step]
            if any(value.tag == "time/iterations" for value in event.summary.value):
                steps.append(event.step)
    return steps


class Online:
    """Weights & Biases, as far as runs log to it: the steps of each run, which may only grow."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str], list[int]] = {}

    def init(self, project: str, id: str, resume: str, **others: Any) -> SimpleNamespace:
        assert resume == "allow"
        steps = self.runs.setdefault((project, id), [])

        def log(row: dict[str, float], step: int) -> None:
            assert step >= run.step, "it would be dropped with a warning"
            run.step = step
            steps.append(step)

        run = SimpleNamespace(step=steps[-1] + 1 if steps else 0, log=log, finish=lambda: None)
        return run


def test_rows_are_events_and_a_resumed_run_says_from_where_it_goes_on(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.log({"rollout/return": 1.5, "train/loss": 0.25}.items(), 10, 1.0)
    board.log({"rollout/return": 2.5}.items(), 20, 3.5)
    board.close()
    (file,) = tmp_path.iterdir()
    begin, *rows = events(file)
    assert begin.file_version == "brain.Event:2"
    found = [(row.step, {v.tag: v.simple_value for v in row.summary.value}) for row in rows]
    assert found == [
        (10, {"rollout/return": 1.5, "train/loss": 0.25}), (20, {"rollout/return": 2.5}),
    ]  # fmt: skip
    assert [row.wall_time for row in rows] == [1.0, 3.5]

    later = tmp_path / "resumed"
    later.mkdir()
    board = TensorBoard(later, purge_step=11)
    board.log({"rollout/return": 3.5}.items(), 20, 4.0)
    board.close()
    (file,) = later.iterdir()
    _, version, start, row = events(file)
    assert (version.step, version.file_version) == (11, "brain.Event:2")
    assert (start.step, start.session_log.status) == (11, SessionLog.START)
    assert (row.step, row.summary.value[0].simple_value) == (20, 3.5)


def test_an_episode_has_no_action_value_where_the_algorithm_has_none(tmp_path: Path) -> None:
    logs = RunLogs(resolve("sac", {"env": "Pendulum-v1"}), tmp_path)
    one, length = np.zeros(1, np.int32), np.full(1, 7, np.int32)
    with ExitStack() as stack:
        logs.open(Progress(), False, True, stack)
        for number, q_max in enumerate((math.nan, 2.5), 1):
            episodes = Episodes(one, np.ones(1), length, np.array([q_max]))
            logs.log_episodes(episodes, Progress(steps=7 * number, episodes=number))
    rows = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert [row.get("q_max", "none") for row in rows] == ["none", 2.5]
    (board,) = tmp_path.glob("events.*")
    found = [{value.tag for value in event.summary.value} for event in events(board)[1:]]
    assert found == [{"episode/return", "episode/length"},
                     {"episode/return", "episode/length", "episode/q_max"}]  # fmt: skip


AT_ONCE = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from flatout.run.loggers import TensorBoard

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorboardX.proto.summary_pb2":
            importing.set()
            time.sleep(0.5)

def first():
    TensorBoard(Path("first")).close()

def second():
    importing.wait()
    TensorBoard(Path("second")).close()

importing = threading.Event()
sys.meta_path.insert(0, Slow())
with ThreadPoolExecutor() as threads:
    for started in [threads.submit(second), threads.submit(first)]:
        started.result()
assert importing.is_set()
"""


def test_two_threads_that_begin_at_once_both_import_the_writer(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "script.py").write_text(AT_ONCE)
    done = run_script(tmp_path / "script.py", tmp_path)
    assert done.code == 0, done.err


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_only_a_file_system_that_cannot_sync_is_no_error(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    board = TensorBoard(tmp_path)
    board.log({"rollout/return": 1.5}.items(), 10, 1.0)
    monkeypatch.setattr(os, "fsync", fsync)
    with nullcontext() if number == errno.EINVAL else pytest.raises(FlatoutError, match="Input/ou"):
        board.close()
    (file,) = tmp_path.iterdir()
    assert [event.step for event in events(file)] == [0, 10]


def test_what_keeps_weights_and_biases_from_starting_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init(**settings: Any) -> None:
        raise RuntimeError("No API key configured.\nUse `wandb login` to log in.")

    for module, words in (
        (SimpleNamespace(init=init), r"--wandb mine: No API key.*WANDB_MODE=offline"),
        (None, re.escape(install("wandb"))),
    ):
        monkeypatch.setitem(sys.modules, "wandb", module)
        with pytest.raises(UsageError, match=words) as raised:
            PPO("CartPole-v1", **tiny.python("ppo", wandb="mine")).learn(64)
        assert "\n" not in str(raised.value)


def test_a_run_that_goes_on_is_one_run_everywhere(
    flatout: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Learned again, resumed, and resumed after it was killed before it had saved anything."""
    online, run = Online(), tmp_path / "run"
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=online.init))
    settings = tiny.python("ppo", wandb="mine", log_every=64)
    agent = PPO("CartPole-v1", **settings).learn(128)
    agent.learn(128)
    assert list(online.runs.values()) == [[64, 128, 192, 256]]
    agent.learn(64, reset=True)
    assert len(online.runs) == 2, "a new run is another one"

    online.runs.clear()
    PPO("CartPole-v1", **settings).learn(128, run_dir=run)
    PPO.load(run).learn(128, run_dir=run)
    assert [*online.runs.values(), shown(run)] == [[64, 128, 192, 256]] * 2
    shutil.rmtree(run / "checkpoints")
    for name in ("summary.json", "params.safetensors"):
        (run / name).unlink()
    assert flatout("train", "--resume", run, "--steps", 320, "--quiet").code == 0
    assert list(online.runs.values()) == [[64, 128, 192, 256, 320]]
    assert shown(run) == [64, 128, 192, 256, 320]
    more = ("--steps", 384, "--quiet", "--wandb", "other")
    assert flatout("train", "--resume", run, *more).code == 0
    assert [name for name, _ in online.runs] == ["mine", "other"], "ids are a project's own"


@pytest.mark.slow
def test_weights_and_biases_itself_logs_offline(tmp_path: Path) -> None:
    """In a process of its own: it starts another one, and emits warnings that concern nobody."""
    pytest.importorskip("wandb")
    settings = tiny.python("ppo", wandb="mine", log_every=64)
    script = f"from flatout import PPO; PPO('CartPole-v1', **{settings}).learn(128)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=os.environ | {"WANDB_MODE": "offline"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (logged,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    for name in (b"learning_rate", b"rollout/return_mean_100", b"time/steps_per_s"):
        assert name in logged.read_bytes(), name
