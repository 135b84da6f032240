"""Anonymous shared memory and channels; both vanish with their last descriptor."""

from __future__ import annotations

import math
import mmap
import os
import socket
import struct
import tempfile
from typing import Any

import numpy as np

from flatout.errors import FlatoutError, one_line

Fields = dict[str, tuple[tuple[int, ...], str]]
"""An arena's arrays: shape and dtype by name."""

ALIGNMENT = 64
"""Alignment of arrays in bytes: a cache line; XLA uses such arrays without a copy."""

LENGTH = struct.Struct("<Q")


def aligned(size: int) -> int:
    """`size` rounded up to `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Arena:
    """Zeroed arrays in shared memory.

    Args:
        fields: its arrays, the same in all processes.
        descriptor: of another process's arena; None makes a new one.
    """

    def __init__(self, fields: Fields, descriptor: int | None = None) -> None:
        offsets: dict[str, int] = {}
        size = 0
        for name, (shape, dtype) in fields.items():
            offsets[name] = size
            size += aligned(math.prod(shape) * np.dtype(dtype).itemsize)
        self.size = max(size, ALIGNMENT)
        self.descriptor = _memory(self.size) if descriptor is None else descriptor
        memory = mmap.mmap(self.descriptor, self.size)
        self.arrays = {
            name: np.ndarray(shape, dtype, memory, offsets[name])
            for name, (shape, dtype) in fields.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def close(self) -> None:
        """Close the descriptor; the memory is freed with its last array."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self.arrays = {}


def _memory(size: int) -> int:
    """A descriptor of `size` bytes of anonymous memory."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("flatout", os.MFD_CLOEXEC)
    else:
        descriptor, name = tempfile.mkstemp()
        os.unlink(name)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)  # fails here, not with a bus error later
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        os.close(descriptor)
        raise FlatoutError(
            f"there is no room for {size / 2**20:,.0f} MiB of memory shared with the actor "
            f"processes ({one_line(error)}); lower --envs or --n-steps."
        ) from error
    return descriptor


class Closed(Exception):  # noqa: N818 - an event, not a defect
    """The other side is gone."""


class Late(Exception):  # noqa: N818 - an event, not a defect
    """Nothing was received in time."""


class Channel:
    """A two-way byte channel over one end of a socket pair; it notices the other side's death."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """A channel, and the other end for another process."""
        local, remote = socket.socketpair()
        return Channel(local), remote

    def patience(self, seconds: float | None) -> None:
        """Limit the time that `receive` waits; None waits without a limit."""
        whole = 0 if seconds is None else int(seconds)
        micros = 0 if seconds is None else max(int((seconds - whole) * 1e6), int(not whole))
        wait = struct.pack("ll", whole, micros)  # the kernel's timeout saves a call of poll
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)

    def send(self, data: bytes) -> None:
        """Send all data, or raise `Closed`."""
        try:
            self._end.sendall(data)
        except OSError as error:
            raise Closed from error

    def receive(self, size: int) -> bytes:
        """Receive exactly `size` bytes, or raise `Closed` or `Late`."""
        try:
            data = self._end.recv(size)
            while data and len(data) < size:
                more = self._end.recv(size - len(data))
                data = data + more if more else b""
        except BlockingIOError as error:
            raise Late from error
        except OSError as error:
            raise Closed from error
        if not data:
            raise Closed
        return data

    def send_long(self, data: bytes) -> None:
        """Send length-prefixed bytes."""
        self.send(long(data))

    def receive_long(self) -> bytes:
        """Receive length-prefixed bytes."""
        (size,) = LENGTH.unpack(self.receive(LENGTH.size))
        return self.receive(size) if size else b""

    def close(self) -> None:
        self._end.close()


def long(data: bytes) -> bytes:
    """Length-prefixed bytes for `Channel.receive_long`."""
    return LENGTH.pack(len(data)) + data


def fields_of(**fields: tuple[tuple[int, ...], Any]) -> Fields:
    """Fields with their dtypes as text, for pickling."""
    return {name: (tuple(shape), np.dtype(dtype).str) for name, (shape, dtype) in fields.items()}
