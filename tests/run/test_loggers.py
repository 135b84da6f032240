"""TensorBoard events as its own readers see them."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[attr-defined]

from flatout import PPO, UsageError
from flatout.installing import install
from flatout.run.loggers import TensorBoard
from tests import tiny

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


def test_rows_are_events_and_a_resumed_run_says_from_where_it_goes_on(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.log({"rollout/return": 1.5, "train/loss": 0.25}.items(), 10)
    board.log({"rollout/return": 2.5}.items(), 20)
    board.close()
    (file,) = tmp_path.iterdir()
    begin, *rows = events(file)
    assert begin.file_version == "brain.Event:2"
    found = [(row.step, {v.tag: v.simple_value for v in row.summary.value}) for row in rows]
    assert found == [
        (10, {"rollout/return": 1.5, "train/loss": 0.25}), (20, {"rollout/return": 2.5}),
    ]  # fmt: skip
    assert 0 <= rows[1].wall_time - rows[0].wall_time < 60

    later = tmp_path / "resumed"
    later.mkdir()
    board = TensorBoard(later, purge_step=11)
    board.log({"rollout/return": 3.5}.items(), 20)
    board.close()
    (file,) = later.iterdir()
    _, version, start, row = events(file)
    assert (version.step, version.file_version) == (11, "brain.Event:2")
    assert (start.step, start.session_log.status) == (11, SessionLog.START)
    assert (row.step, row.summary.value[0].simple_value) == (20, 3.5)


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
