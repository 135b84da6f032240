"""Files of a run folder, opened so that nothing in the folder leads out of it.

A run folder may come from a stranger: any name in it may be a symbolic link, a pipe or a device.
Every folder below it is opened relative to the one above and never through a link, so that it
makes no difference when a name is swapped; what is opened is then checked to be an ordinary file.

`depth` says how many of a path's last names lie within the run folder. The names before are the
user's own, and may be links.
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
"""Bytes beyond which no file is read, whatever the memory."""

READ, CHANGE = os.O_RDONLY, os.O_RDWR | os.O_CREAT
APPEND, NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_EXCL
"""How a file is opened; `NEW` must not exist."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_LINK = "it is a symbolic link, which is not followed in a run folder"
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
          stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}  # fmt: skip


class NotOrdinaryError(OSError):
    """Something else lies where a file or a folder of a run should be."""


@contextmanager
def folder(path: Path, depth: int = 1, make: bool = False) -> Iterator[int]:
    """A descriptor of a folder.

    Args:
        path: the folder.
        depth: see the module.
        make: make it, and what is missing above it.

    Raises:
        OSError: it is missing, or no folder; `NotOrdinaryError` where a link leads to it.
    """
    names = path.parts[len(path.parts) - depth :] if depth else ()
    root = Path(*path.parts[: len(path.parts) - len(names)])
    if make:
        root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root, _FOLDER)
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
        path: the file.
        how: `READ`, `APPEND`, `CHANGE` (in place) or `NEW`.
        depth: see the module; 0 follows the file itself, too.

    Raises:
        OSError: it cannot be opened; `NotOrdinaryError`: it is a link, a pipe, a device or a
            folder, or a file to be written in place that has another name elsewhere.
    """
    if not depth:
        return _checked(os.open(path, how | os.O_NONBLOCK | os.O_CLOEXEC), how)
    with folder(path.parent, depth - 1) as parent:
        return open_below(path.name, how, parent)


def open_stream(path: Path, how: int = READ, depth: int = 1) -> IO[bytes]:
    """`open_file` as a binary file object."""
    mode = {READ: "rb", CHANGE: "rb+"}.get(how, "ab" if how == APPEND else "wb")
    return os.fdopen(open_file(path, how, depth), mode)


def open_below(name: str, how: int, parent: int) -> int:
    """`open_file` of a name in an open folder."""
    flags = how | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not keep us waiting
    return _checked(_open_below(name, flags, parent), how)


def read(path: Path, depth: int = 1, limit: int | None = None) -> bytes:
    """An ordinary file's content.

    Args:
        path: the file.
        depth: see the module.
        limit: the most bytes that it may have; by default what half of the free memory holds.

    Raises:
        OSError: see `open_file`; also where it is larger.
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
        return file.read(size + 1)  # one that grows meanwhile is not read for ever


def names(path: Path, depth: int = 1) -> list[str]:
    """The names in a folder; none where there is no such folder.

    Raises:
        OSError: it is no folder, or a link.
    """
    try:
        with folder(path, depth) as descriptor:
            return os.listdir(descriptor)
    except FileNotFoundError:
        return []


def remove_folder(name: str, files: Iterable[str], parent: int) -> None:
    """Remove such files from a folder and the folder, unless something else lies in it.

    Args:
        name: the folder.
        files: the files that may be removed.
        parent: descriptor of the folder above.
    """
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
        return os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=parent)
    except OSError as error:
        # What a link is refused with differs between systems and flags.
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK, errno.ENXIO):
            raise
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            raise NotOrdinaryError(error.errno, _NO_LINK, name) from error
        kind = _KINDS.get(stat.S_IFMT(mode), "a file")
        raise NotOrdinaryError(error.errno, f"it is {kind}", name) from error


def _checked(descriptor: int, how: int) -> int:
    try:
        said = os.fstat(descriptor)
        if not stat.S_ISREG(said.st_mode):
            kind = _KINDS.get(stat.S_IFMT(said.st_mode), "no ordinary file")
            raise NotOrdinaryError(errno.EINVAL, f"it is {kind}, not an ordinary file")
        if how & os.O_ACCMODE != os.O_RDONLY and said.st_nlink > 1:
            raise NotOrdinaryError(
                errno.EMLINK, "it is the same file as another one (a hard link): copy it first"
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
