"""Files of a run folder, opened without following links and written whole.

A run folder may be untrusted: any name in it may be a symbolic link, a pipe or a device. Each
folder is opened relative to its parent and never through a link, so swapping names has no effect;
an opened file must be an ordinary one.

`depth` is the number of a path's last names that lie within the run folder. The names before them
are the user's, and may be links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

MOST = 1 << 40
"""Maximum bytes of a file that is read."""

READ, CHANGE = os.O_RDONLY, os.O_RDWR | os.O_CREAT
APPEND, NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_EXCL
"""Modes of opening a file; with `NEW` it must not exist."""

TEMPORARY = ".{}.tmp"
"""A file's name until it is complete."""

_SAFELY = os.O_NONBLOCK | os.O_CLOEXEC
"""Added to every mode: a pipe must not block."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_NO_LINK = "it is a symbolic link, which is not followed in a run folder"
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
          stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}  # fmt: skip


class NotOrdinaryError(OSError):
    """A path of a run is not an ordinary file or folder."""


@contextmanager
def folder(path: Path, depth: int = 1, make: bool = False) -> Iterator[int]:
    """A descriptor of a folder; `NotOrdinaryError` if a link leads to it.

    The module says what `depth` is; `make` makes the folder and its missing parents.
    """
    within = max(len(path.parts) - depth, 0)
    root, names = Path(*path.parts[:within]), path.parts[within:]
    if make:
        root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root, _FOLDER | _SAFELY)
    try:
        for name in names:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
            below = _open_below(name, _FOLDER, descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: Path, how: int = READ, depth: int = 1) -> int:
    """A descriptor of an ordinary file.

    Args:
        how: `READ`, `APPEND`, `CHANGE` (in place) or `NEW`.
        depth: see the module; 0 follows links of the file itself, too.

    Raises:
        OSError: it cannot be opened; `NotOrdinaryError` if it is no ordinary file, or has a second
            hard link and is to be written.
    """
    if not depth:
        return _checked(os.open(path, how | _SAFELY), how)
    with folder(path.parent, depth - 1) as parent:
        return _checked(_open_below(path.name, how, parent), how)


def open_stream(path: Path, how: int = READ, depth: int = 1) -> IO[bytes]:
    """`open_file` as a binary file object."""
    mode = {READ: "rb", CHANGE: "rb+"}.get(how, "ab" if how == APPEND else "wb")
    return os.fdopen(open_file(path, how, depth), mode)


def read(path: Path, depth: int = 1, limit: int | None = None) -> bytes:
    """An ordinary file's content; raises as `open_file` does, and if it is too large.

    By default `limit` is half of the free memory.
    """
    with open_stream(path, READ, depth) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is None:
            import psutil

            limit = min(psutil.virtual_memory().available // 2, MOST)
        if size > limit:
            raise NotOrdinaryError(
                errno.EFBIG, f"it has {size:,} bytes, more than the {limit:,} that may be read"
            )
        return file.read(size + 1)  # the file may grow while it is read


def write_file(name: str, content: bytes, parent: int) -> None:
    """Write and sync a file in an open folder; replace an old one, and follow no link."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
    with os.fdopen(_checked(_open_below(name, NEW, parent), NEW), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes, depth: int = 1) -> None:
    """Replace a file atomically; after an `OSError` the old content is intact.

    Its folder exists; the module says what `depth` is.
    """
    temporary = TEMPORARY.format(path.name)
    with folder(path.parent, depth - 1) as parent:
        try:
            write_file(temporary, content, parent)
            os.replace(temporary, path.name, src_dir_fd=parent, dst_dir_fd=parent)
            os.fsync(parent)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise


def remove_folder(name: str, files: Iterable[str], parent: int) -> None:
    """Remove these files from a folder, then the folder if it is empty."""
    with suppress(OSError):
        descriptor = _open_below(name, _FOLDER, parent)
        try:
            for file in files:
                with suppress(OSError):
                    os.unlink(file, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        os.rmdir(name, dir_fd=parent)


def _open_below(name: str, flags: int, parent: int) -> int:
    try:
        return os.open(name, flags | _SAFELY | os.O_NOFOLLOW, 0o666, dir_fd=parent)
    except OSError as error:
        # The error for a link depends on the system and the flags.
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK, errno.ENXIO):
            raise
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            raise NotOrdinaryError(error.errno, _NO_LINK, name) from error
        kind = _KINDS.get(stat.S_IFMT(mode), "a file")
        raise NotOrdinaryError(error.errno, f"it is {kind}", name) from error


def _checked(descriptor: int, how: int) -> int:
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no ordinary file")
            raise NotOrdinaryError(errno.EINVAL, f"it is {kind}, not an ordinary file")
        if how & os.O_ACCMODE != os.O_RDONLY and status.st_nlink > 1:
            raise NotOrdinaryError(
                errno.EMLINK, "it is the same file as another one (a hard link): copy it first"
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
