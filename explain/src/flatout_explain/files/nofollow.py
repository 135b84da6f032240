"""Files of a run folder, opened without following links and written whole.

A run folder may be untrusted: any name in it may be a symbolic link, a pipe or a device. Each
folder is opened relative to its parent and never through a link, so swapping names has no effect;
an opened file must be an ordinary one. Where a system opens no folders (Windows), paths are looked
at before they are opened, and a link that is put there in between is not noticed.

`depth` is the number of a path's last names that lie within the run folder. The names before them
are the user's, and may be links. Within the folders that are `confined`, `depth` counts all names
below the confined folder.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from flatout_explain.documents import MOST_BYTES, parse_json
from flatout_explain.output_file import left_over, temporary_name

MOST = 1 << 40
"""Maximum bytes of a file that is read."""

READ, CHANGE = os.O_RDONLY, os.O_RDWR | os.O_CREAT
APPEND, NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_EXCL
"""Modes of opening a file; with `NEW` it must not exist."""

NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EACCES, errno.EPERM)
"""Errors of `os.fsync` for what a file system cannot sync, as opposed to a write that failed."""

_PLAIN_NAME = re.compile(r"[\w=+,@-][\w.=+,@-]*")
_CONFINED: list[tuple[str, ...]] = []

HELD = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Whether this system opens folders, and files relative to them."""


def _flags(*names: str) -> int:
    """Those of these flags that the system has."""
    return sum(getattr(os, name, 0) for name in names)


_SAFELY = _flags("O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
"""Added to every mode: a pipe must not block."""
_NOT_THROUGH = _flags("O_NOFOLLOW")
_FOLDER = os.O_RDONLY | _flags("O_DIRECTORY")
_JUNCTION = 0xA0000003
"""Windows' mark of a folder that leads elsewhere."""
_NO_LINK = "it is a symbolic link, which is not followed in a run folder"
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
          stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}  # fmt: skip


def is_plain_name(name: str) -> bool:
    """Whether a name from a file or another machine is a file's or folder's name.

    It consists of letters, digits and ``_ . = + , @ -``, does not begin with a dot, and has at most
    255 bytes, so that a path which ends with it is below the folder before it.
    """
    return _PLAIN_NAME.fullmatch(name) is not None and len(os.fsencode(name)) <= 255


@contextmanager
def confined(root: Path) -> Iterator[None]:
    """Follow no link below this folder, in the whole process, for as long as the block runs.

    For the folder of a population or a sweep, which holds run folders. `root` may be a link.
    """
    parts = root.absolute().parts
    _CONFINED.append(parts)
    try:
        yield
    finally:
        _CONFINED.remove(parts)


def _confined_depth(path: Path, depth: int) -> int:
    """`depth`, or the number of names below a confined folder if that is larger."""
    for root in tuple(_CONFINED):  # other threads may change it
        parts = path.absolute().parts
        if parts[: len(root)] == root:
            depth = max(depth, len(parts) - len(root))
    return depth


class NotOrdinaryError(OSError):
    """A path of a run is not an ordinary file or folder."""


@dataclass(frozen=True)
class Folder:
    """An open folder.

    Attributes:
        path: its path.
        descriptor: its descriptor, or None if not `HELD`.
    """

    path: Path
    descriptor: int | None

    @property
    def listed(self) -> int | Path:
        """The argument of `os.listdir` and `os.scandir`."""
        return self.path if self.descriptor is None else self.descriptor

    def at(self, name: str) -> str:
        """A name in it, as functions with ``dir_fd=folder.descriptor`` take it."""
        return name if self.descriptor is not None else str(self.path / name)

    def mkdir(self, name: str) -> None:
        """Make a folder in it."""
        os.mkdir(self.at(name), dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        """Remove a file from it."""
        os.unlink(self.at(name), dir_fd=self.descriptor)

    def rename(self, name: str, other: str) -> None:
        """Rename a file or folder in it; a file replaces another."""
        held = self.descriptor
        os.replace(self.at(name), self.at(other), src_dir_fd=held, dst_dir_fd=held)

    def stat(self, name: str) -> os.stat_result:
        """The status of a name in it, links not followed."""
        return os.stat(self.at(name), dir_fd=self.descriptor, follow_symlinks=False)

    def sync(self) -> None:
        """Wait until its names are on disk."""
        if self.descriptor is not None:
            sync(self.descriptor)

    def close(self) -> None:
        """Let it go."""
        if self.descriptor is not None:
            os.close(self.descriptor)


@contextmanager
def folder(path: Path, depth: int = 1, make: bool = False) -> Iterator[Folder]:
    """A folder, opened; `NotOrdinaryError` if a link leads to it.

    The module says what `depth` is; `make` makes the folder and its missing parents.
    """
    within = max(len(path.parts) - _confined_depth(path, depth), 0)
    root, names = Path(*path.parts[:within]), path.parts[within:]
    if make:
        root.mkdir(parents=True, exist_ok=True)
    if not HELD and not root.is_dir():
        number = errno.ENOTDIR if root.exists() else errno.ENOENT
        raise OSError(number, os.strerror(number), str(root))
    current = Folder(root, os.open(root, _FOLDER | _SAFELY) if HELD else None)
    try:
        for name in names:
            if make:
                with suppress(FileExistsError):
                    current.mkdir(name)
            below = enter(name, current)
            current.close()
            current = below
        yield current
    finally:
        current.close()


def open_file(path: Path, how: int = READ, depth: int = 1) -> int:
    """A descriptor of an ordinary file.

    Args:
        how: `READ`, `APPEND`, `CHANGE` (in place) or `NEW`.
        depth: see the module; 0 follows links of the file itself, too.

    Raises:
        OSError: it cannot be opened; `NotOrdinaryError` if it is no ordinary file, or has a second
            hard link and is to be written.
    """
    if not _confined_depth(path, depth):
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


def read_json(path: Path, depth: int = 1, limit: int = MOST_BYTES) -> Any:
    """The value of a JSON file that Flatout wrote, or somebody in its place.

    Raises:
        OSError: as `read` does.
        ValueError: it is no JSON, or nested too deeply.
    """
    return parse_json(read(path, depth, limit), finite=False)


def sync(descriptor: int) -> None:
    """Wait until a file's content, or a folder's names, are on disk.

    Where the file system refuses to say (as some do for folders), nothing is waited for.
    """
    with may_not_sync():
        os.fsync(descriptor)


@contextmanager
def may_not_sync() -> Iterator[None]:
    """Ignore the error of a file system that cannot sync, which ends the block."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def write_file(
    name: str, content: bytes, parent: Folder, durable: bool = True, private: bool = False
) -> None:
    """Write a file in an open folder; replace an old one, and follow no link.

    Args:
        durable: wait until it is on disk.
        private: other users may not read it.
    """
    with suppress(FileNotFoundError):
        parent.unlink(name)
    mode = 0o600 if private else 0o666
    with os.fdopen(_checked(_open_below(name, NEW, parent, mode), NEW), "wb") as file:
        file.write(content)
        file.flush()
        if durable:
            sync(file.fileno())


def replace(
    path: Path, content: bytes, depth: int = 1, durable: bool = True, private: bool = False
) -> None:
    """Replace a file atomically; after an `OSError` the old content is intact.

    Its folder exists; the module says what `depth` is. Several processes may do so at the same
    time: the file is that of one of them.

    Args:
        durable: wait until it is on disk. Otherwise a machine that loses power may lose both.
        private: other users may not read it.
    """
    temporary = temporary_name(path.name)
    with folder(path.parent, depth - 1) as parent:
        try:
            write_file(temporary, content, parent, durable, private)
            parent.rename(temporary, path.name)
            if durable:
                parent.sync()
        except BaseException:
            with suppress(OSError):
                parent.unlink(temporary)
            raise


def remove_left(names: Iterable[str] | None, parent: Folder, older_s: float = 0.0) -> None:
    """Remove what `replace` has left in a process that was killed.

    Args:
        names: of the files that it was to replace; None: of any.
        older_s: leave those that are not older, because another process may be writing them.
    """
    for entry in left_over(names, os.listdir(parent.listed)):
        with suppress(OSError):
            if not older_s or time.time() - parent.stat(entry).st_mtime > older_s:
                parent.unlink(entry)


def remove_folder(name: str, files: Iterable[str], parent: Folder) -> None:
    """Remove these files from a folder, then the folder if it is empty."""
    with suppress(OSError):
        doomed = enter(name, parent)
        try:
            for file in files:
                with suppress(OSError):
                    doomed.unlink(file)
        finally:
            doomed.close()
        os.rmdir(parent.at(name), dir_fd=parent.descriptor)


def enter(name: str, parent: Folder) -> Folder:
    """A folder in an open one, opened; `NotOrdinaryError` if a link is in its place."""
    path = parent.path / name
    if parent.descriptor is not None:
        return Folder(path, _open_below(name, _FOLDER, parent))
    status = parent.stat(name)
    if is_link(status) or not stat.S_ISDIR(status.st_mode):
        raise _not_ordinary(errno.ENOTDIR, name, status)
    return Folder(path, None)


def _open_below(name: str, flags: int, parent: Folder, mode: int = 0o666) -> int:
    if parent.descriptor is None:
        with suppress(FileNotFoundError):
            status = parent.stat(name)
            if is_link(status) or not stat.S_ISREG(status.st_mode):
                raise _not_ordinary(errno.ELOOP, name, status)
    try:
        held = parent.descriptor
        return os.open(parent.at(name), flags | _SAFELY | _NOT_THROUGH, mode, dir_fd=held)
    except OSError as error:
        # The error for a link depends on the system and the flags.
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK, errno.ENXIO):
            raise
        raise _not_ordinary(error.errno, name, parent.stat(name)) from error


def is_link(status: os.stat_result) -> bool:
    """Whether a name leads elsewhere."""
    return stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _JUNCTION


def _not_ordinary(number: int, name: str, status: os.stat_result) -> NotOrdinaryError:
    if is_link(status):
        return NotOrdinaryError(number, _NO_LINK, name)
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a file")
    return NotOrdinaryError(number, f"it is {kind}", name)


def _checked(descriptor: int, how: int) -> int:
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no ordinary file")
            raise NotOrdinaryError(errno.EINVAL, f"it is {kind}, not an ordinary file")
        if how & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
            raise NotOrdinaryError(
                errno.EMLINK, "it is the same file as another one (a hard link): copy it first"
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
