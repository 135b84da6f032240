"""Anonymous shared memory of the worker pool; it is freed with its last descriptor and mapping."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from typing import Any

import numpy as np

from flatout.errors import FlatoutError, one_line

Fields = dict[str, tuple[tuple[int, ...], Any]]
"""The shape and dtype of each shared array, by name."""

ALIGNMENT = 64
"""Alignment of arrays in bytes: a cache line. XLA uses arrays with this alignment without a
copy."""


class SharedArrays:
    """Arrays in shared memory, zero at first.

    Args:
        fields: the arrays, the same in all processes.
        descriptor: the descriptor of memory that another process has made; None makes new memory.

    Raises:
        FlatoutError: there is not enough memory.
    """

    def __init__(self, fields: Fields, descriptor: int | None = None) -> None:
        offsets: dict[str, int] = {}
        size = 0
        for name, (shape, dtype) in fields.items():
            offsets[name] = size
            size += math.prod(shape) * np.dtype(dtype).itemsize
            size += -size % ALIGNMENT
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
        """Close the descriptor; the memory is freed when no array uses it any more."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self.arrays = {}


def _memory(size: int) -> int:
    """Return a descriptor of `size` bytes of anonymous memory."""
    descriptor = None
    try:
        descriptor = _anonymous_file()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)  # fails here, not with a bus error later
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        if descriptor is not None:
            os.close(descriptor)
        raise FlatoutError(
            f"there is no room for {size / 2**20:,.0f} MiB of memory shared with the actor "
            f"processes ({one_line(error)}); lower --envs or --n-steps."
        ) from error
    return descriptor


def _anonymous_file() -> int:
    """Return a descriptor of an empty file without a name."""
    try:
        return os.memfd_create("flatout", os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # another system, or a container that refuses it
        descriptor, name = tempfile.mkstemp()
        os.unlink(name)
        return descriptor
