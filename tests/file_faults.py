"""Environment variables for a process whose file system refuses calls; see `file_faults.c`."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("file_faults.c")

BEFORE, AFTER = -3, -4
"""In the place of an error: the process is killed before, or after, the call."""

NO_LOCKS = f"flock={errno.ENOLCK} fsync_folder={errno.EINVAL}"
"""The faults of a mount without locks, which syncs no folders."""


@cache
def _library(folder: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("there is no compiler for a library to preload")
    library = folder / "file_faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def refusing(below: Path, faults: str, library: Path) -> dict[str, str]:
    """The environment of a process to which these calls fail.

    Args:
        below: the folder in which they do.
        faults: as in `file_faults.c`: names of calls and numbers of errors.
        library: a folder for the compiled library.
    """
    return os.environ | {
        "LD_PRELOAD": str(_library(library)), "FILE_FAULTS": faults,
        "FILE_FAULTS_BELOW": str(below),
    }  # fmt: skip


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process write no file beyond this number of bytes: a write that does is a short one,
    the next one fails."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
