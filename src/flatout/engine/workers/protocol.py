"""The messages between the worker pool and its actor processes, and the layout of shared arrays."""

from __future__ import annotations

import json
import pickle
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout import tree
from flatout.engine.workers.shared_memory import Fields, SharedArrays
from flatout.errors import InvalidReturn, UsageError
from flatout.spans import ResetTimes
from flatout.types import Obs, UserCode

if TYPE_CHECKING:
    from flatout.config.schema import EnvConfig, TrainConfig
    from flatout.envs.base import Envs
    from flatout.envs.vector import Reseeding

COMMAND = struct.Struct("<QBiq")
"""A command: the size of the pickled call ``(method, arguments)`` that follows, whether only some
environments are active, the slot, and the step. Size 0 commands a step."""

DONE, RESULT, FAILED, REFUSED, NOTE = b"d", b"p", b"f", b"r", b"n"
"""Replies. RESULT is followed by a pickled result. NOTE is followed by a pickled sentence for the
user, and another reply comes after it. FAILED and REFUSED are followed by a pickled
sentence, traceback and type out of `LASTING` (None for FAILED); the process then ends."""

LASTING = (UsageError, InvalidReturn)
"""Errors that would occur again after a restart: they are REFUSED, and end the run at once."""

LENGTH = struct.Struct("<Q")

PARAMS = "params/"
"""Prefix of the names of the actor's parameters in the shared memory."""

OUTPUTS = "outputs/"
"""Prefix of the names of the policy calls' packed outputs, before a call's first environment."""

BEAT_S = 0.1
"""Seconds between a worker's progress reports in long commands."""

CLOSING = -1
"""The value of a worker's progress counters while it closes its environments."""

SINCE, EPISODE, ORIGIN = range(3)
"""Columns of the shared array ``counters``."""

SPENT = "spent"
"""Name of the shared array of times; a worker's row is that of its first environment."""

ENV_S, ACT_S, TURNS, SQUARE, RESETS = range(5)
"""Columns of `SPENT`: seconds of stepping and of acting; the number of steps (of trajectories, if
workers act), and the sum of their squared seconds; the first of the columns of `ResetTimes`."""

SPARES = RESETS + len(ResetTimes._fields)
"""Columns of `SPENT` from which on stand the number of spare environments and their MiB."""

SPENT_COLUMNS = SPARES + 2

TERMINATED, TRUNCATED, LIFE_LOST, ENDED = 1, 2, 4, 8
"""Bits of the shared array ``flags`` after a step."""

INFO_BYTES = 1024
"""Bytes for the scalars of a final `info`: the length (two bytes), then JSON."""


@dataclass(frozen=True)
class Job:
    """A worker's environments and settings, as the parent sends them.

    Attributes:
        registered: the environment's Gymnasium spec in the parent's registry, or None.
        config: the environment and its preparation.
        info_masks: see `Task`.
        code: the user's objects, for example an environment factory.
        first: the number of the worker's first environment.
        count: E, the number of its environments.
        seed: the run's seed.
        reseeding: see `VectorEnvs`.
        shared_arrays: the shared memory's descriptor and fields.
        local: for a worker that acts itself, the settings, `RolloutSpec` and acting group's size;
            None if the parent sends actions.
        column: the first of its columns in the shared arrays; None if that is `first`.
    """

    registered: Any
    config: EnvConfig
    info_masks: bool
    code: UserCode
    first: int
    count: int
    seed: int
    reseeding: Reseeding
    shared_arrays: tuple[int, Fields]
    local: tuple[TrainConfig, Any, int] | None = None
    column: int | None = None

    @property
    def columns(self) -> slice:
        """The columns of its environments in the shared arrays."""
        start = self.first if self.column is None else self.column
        return slice(start, start + self.count)


def read_resets(row: Sequence[float]) -> ResetTimes:
    """Return the resets of a worker's environments from its row of `SPENT`."""
    count, *times = row[RESETS:SPARES]
    return ResetTimes(int(count), *times)


def write_resets(worker_times: memoryview[float], before: ResetTimes, envs: Envs) -> None:
    """Write the resets and spares of a worker's environments to its row of `SPENT`; those of a lost
    predecessor, `before`, are added."""
    values = *before.plus(envs.reset_times), envs.spares, envs.spare_mb
    for column, value in enumerate(values, RESETS):
        worker_times[column] = value


def observations(shared_arrays: SharedArrays, columns: slice) -> Obs:
    """Return views of observations, ``[slots, T + 1, E, ...]``: of stacks single frames, without
    the older frames of a trajectory's first observation."""
    rows = shared_arrays["rewards"].shape[1] + 1
    arrays = tree.found("obs", shared_arrays.arrays)
    return tree.map(lambda leaf: leaf[:, leaf.shape[1] - rows :, columns], arrays)


def write_info(row: np.ndarray, info: dict[str, float] | None) -> list[str]:
    """Write an episode's final scalars to a row of bytes. If they do not fit, the last ones are
    left out, `is_success` after all others. Return the names of those."""
    info = info or {}
    kept, left_out = sorted(info, key="is_success".__ne__), list[str]()
    text = json.dumps(info).encode() if info else b""
    while kept and len(text) > INFO_BYTES - 2:
        left_out.append(kept.pop())
        text = json.dumps({name: info[name] for name in kept}).encode()
    row[: 2 + len(text)] = np.frombuffer(len(text).to_bytes(2, "little") + text, np.uint8)
    return left_out[::-1]


def read_info(row: np.ndarray) -> dict[str, float] | None:
    """Return the scalars that `write_info` wrote; None if there are none."""
    size = int.from_bytes(row[:2].tobytes(), "little")
    return json.loads(row[2 : 2 + size].tobytes()) if size else None


def long(data: bytes) -> bytes:
    """Return bytes with their length in front, for `receive_long`."""
    return LENGTH.pack(len(data)) + data


def receive(end: socket.socket, size: int) -> bytearray:
    """Receive exactly `size` bytes.

    Raises:
        EOFError, OSError: the other process is gone.
        BlockingIOError: nothing was received within the socket's time limit.
    """
    data, received = bytearray(size), 0
    while received < size:
        count = end.recv_into(memoryview(data)[received:])
        if not count:
            raise EOFError
        received += count
    return data


def receive_object(end: socket.socket) -> Any:
    """Receive a pickled object. This is safe: only a parent and its own child hold the sockets.

    Raises:
        EOFError, OSError, BlockingIOError: see `receive`.
    """
    return pickle.loads(receive_long(end))


def receive_long(end: socket.socket) -> bytearray:
    """Receive bytes with their length in front."""
    (size,) = LENGTH.unpack(receive(end, LENGTH.size))
    return receive(end, size)
