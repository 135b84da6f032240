"""Messages between actor processes and their parent."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.errors import Interrupt, InvalidReturn, UsageError
from flatout.samplers.processes.shared_memory import Fields
from flatout.types import UserCode

if TYPE_CHECKING:
    from flatout.config.schema import EnvConfig, TrainConfig

COMMAND = struct.Struct("<QBiq")
"""The size of a pickled call ``(method, arguments)`` that follows. Without one it is a step:
whether only some are active, the slot, and the step."""

DONE, RESULT, FAILED, REFUSED = b"d", b"p", b"f", b"r"
"""Replies. A pickled result follows RESULT; a pickled sentence, traceback and kind of `LASTING`
follow FAILED and REFUSED, and the process ends."""

LASTING = (UsageError, InvalidReturn)
"""Errors that another process would meet again: they are REFUSED, and end the run at once."""

LENGTH = struct.Struct("<Q")

SHARED = ("obs", "rewards", "terminated", "truncated", "valid", "ended")
"""Arrays of a trajectory that may be in the arena."""

PARAMS = "params/"
"""Prefix of the actor's parameters in the arena."""

BEAT_S = 0.1
"""Seconds between a worker's progress reports in long commands."""

CLOSING = -1
"""A worker's progress counter while it closes its environments."""

SINCE, EPISODE, ORIGIN = range(3)
"""Columns of an environment's counters."""

SPENT = "spent"
"""The arena's array of each worker's times, by its first environment."""

ENV_S, ACT_S, TURNS, SQUARE = range(4)
"""Its columns: seconds of stepping and of acting, answers, sum of their squared seconds."""

TERMINATED, TRUNCATED, LIFE_LOST, ENDED = 1, 2, 4, 8
"""Bits of an environment's flags after a step."""

INFO_BYTES = 1024
"""Room for the scalars of a final `info`, as JSON after its length (two bytes)."""


@dataclass(frozen=True)
class Job:
    """A worker's environments, as sent to it.

    Attributes:
        registered: a Gymnasium spec that the parent's program registered, or None.
        config: the environment and its preparation.
        code: what the user passes as it is.
        first: the number of its first environment.
        count: E, its number of environments.
        seed: the run's seed.
        reseed_after: see `AtariEnvs`.
        arena: the shared memory's descriptor and fields.
        local: the settings, `RolloutSpec` and acting group's size of a worker that acts by itself;
            None if the parent sends actions.
    """

    registered: Any
    config: EnvConfig
    code: UserCode
    first: int
    count: int
    seed: int
    reseed_after: int
    arena: tuple[int, Fields]
    local: tuple[TrainConfig, Any, int] | None = None

    @property
    def columns(self) -> slice:
        """Its environments in the run's arrays."""
        return slice(self.first, self.first + self.count)


def write_info(row: np.ndarray, info: dict[str, float] | None) -> None:
    """Write an episode's final scalars to a row of bytes: the first ones, where all do not fit."""
    text = json.dumps(info).encode() if info else b""
    while info and len(text) > INFO_BYTES - 2:
        info = dict(list(info.items())[:-1])
        text = json.dumps(info).encode()
    row[: 2 + len(text)] = np.frombuffer(len(text).to_bytes(2, "little") + text, np.uint8)


def read_info(row: np.ndarray) -> dict[str, float] | None:
    """What `write_info` wrote."""
    size = int.from_bytes(row[:2].tobytes(), "little")
    return json.loads(row[2 : 2 + size].tobytes()) if size else None


def follow_parent() -> None:
    """Live as long as the process that started this one, whose end of standard input tells of it,
    and leave signals to it."""
    for number in Interrupt.signals:  # the parent handles them
        signal.signal(number, signal.SIG_IGN)
    lifeline = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def watch() -> None:
        os.read(lifeline, 1)  # returns when the parent is gone, even if a step hangs
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def long(data: bytes) -> bytes:
    """Length-prefixed bytes for `receive_long`."""
    return LENGTH.pack(len(data)) + data


def receive(end: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes.

    Raises:
        EOFError, OSError: the other side is gone.
        BlockingIOError: nothing was received in time.
    """
    data = end.recv(size)
    while data and len(data) < size:
        more = end.recv(size - len(data))
        data = data + more if more else b""
    if not data:
        raise EOFError
    return data


def receive_object(end: socket.socket) -> Any:
    """Receive a pickled object. Safe: only a parent and its own child hold the ends.

    Raises:
        EOFError, OSError: the other side is gone.
    """
    return pickle.loads(receive_long(end))


def receive_long(end: socket.socket) -> bytes:
    """Receive length-prefixed bytes."""
    (size,) = LENGTH.unpack(receive(end, LENGTH.size))
    return receive(end, size)
