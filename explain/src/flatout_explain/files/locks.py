"""Locks on files: one process at a time, on file systems without locks, too.

The system's lock (`flock`) ends with the process that holds it. Some mounts of Lustre, NFS and FUSE
refuse it. There a file next to the locked one stands in, which names its owner: the machine, the
process and the boot. Of an owner on this machine it is known whether it still runs; a file whose
owner does not is replaced. One from another machine is believed.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import random
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from flatout_explain.documents import parse_json
from flatout_explain.files import nofollow
from flatout_explain.files.kernel import boot_id, close_in_children, kernel_text
from flatout_explain.output import say

LOCK = ".lock"
"""A run folder's file that is locked while the run lives."""
OWNER = "{}.owner"
"""The name of the file that stands in for the lock on a file of this name."""
HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
"""Errors of a lock that another process holds; others say that the file system has no locks."""
MOST_OWNER = 4096
"""Maximum bytes of a file that stands in."""
BEGIN_S = 1.0
"""An owner writes its name within this time after it has made its file."""
PAUSE_S = 0.005
"""Average pause between two attempts to lock."""

_reported = set[int]()  # file systems without locks that the user knows of


class InUseError(OSError):
    """Another process holds a lock.

    Attributes:
        owner: it, and how to remove its lock, for the middle of a sentence that has just said "by
            another process"; empty if the system holds the lock.
    """

    def __init__(self, owner: str = "") -> None:
        super().__init__(errno.EWOULDBLOCK, f"it is in use by another process{owner}")
        self.owner = owner


class Lock:
    """The lock on a file, held until it is closed or the process ends.

    A child that user code forks does not hold it. One that is passed its descriptor does, but only
    where the file system has locks.

    Args:
        path: the file, which is made if there is none.
        depth: as in `flatout_explain.files.nofollow`.

    Attributes:
        file: the open file.

    Raises:
        InUseError: another process holds it.
        OSError: the file cannot be opened, or its folder cannot be written.
    """

    def __init__(self, path: Path, depth: int = 1) -> None:
        path = self._path = path.absolute()  # the process may change its working folder
        self._depth = depth
        self._owner: bytes | None = None  # the content of the file that stands in
        self._process = os.getpid()
        self.file = nofollow.open_stream(path, nofollow.CHANGE, depth)
        try:
            refused = _system_lock(self.file)
            if refused is None:
                # A machine whose mount has no locks may hold it.
                _refuse_living(_stand_in(path), depth)
            else:
                self._owner = _take(_stand_in(path), depth)
                _report(os.fstat(self.file.fileno()).st_dev, _stand_in(path), refused)
        except BaseException:
            self.file.close()
            raise

    def fileno(self) -> int:
        """The file's descriptor, which a child process may hold too."""
        return self.file.fileno()

    def remove(self) -> None:
        """Remove the lock's files; other processes may lock again."""
        self._remove_stand_in()
        with suppress(FileNotFoundError), nofollow.folder(self._path.parent, self._depth - 1) as at:
            at.unlink(self._path.name)

    def close(self) -> None:
        """Let another process take it."""
        self._remove_stand_in()
        self.file.close()

    def _remove_stand_in(self) -> None:
        owner, self._owner = self._owner, None
        if owner is None or os.getpid() != self._process:
            return
        path = _stand_in(self._path)
        with suppress(OSError):  # the folder may be gone, or moved
            if nofollow.read(path, self._depth, MOST_OWNER) == owner:
                with nofollow.folder(path.parent, self._depth - 1) as parent:
                    parent.unlink(path.name)


@contextmanager
def held(path: Path, wait_s: float, depth: int = 1) -> Iterator[Lock]:
    """Hold the lock on a file during the block.

    Args:
        wait_s: how long to wait for another process.

    Raises:
        OSError: as `Lock`.
    """
    until = time.monotonic() + wait_s
    while True:
        try:
            lock = Lock(path, depth)
            break
        except InUseError:
            if time.monotonic() > until:
                raise
            time.sleep(2 * PAUSE_S * random.random())
    try:
        yield lock
    finally:
        lock.close()


def in_use(path: Path, depth: int = 1) -> bool:
    """Return whether a process holds the lock on a file. Nothing is written.

    Raises:
        OSError: the file cannot be opened.
    """
    path = path.absolute()
    try:
        with nofollow.open_stream(path, nofollow.READ, depth) as file:
            _system_lock(file, shared=True)
            _refuse_living(_stand_in(path), depth)
    except InUseError:
        return True
    return False


def _system_lock(file: IO[bytes], shared: bool = False) -> OSError | None:
    """Lock an open file; return the error of a file system that has no locks.

    Raises:
        InUseError: another process holds it (with `shared`: for itself alone).
    """
    try:
        try:
            fcntl: Any = importlib.import_module("fcntl")
        except ImportError:  # Windows: a byte of it, and never shared
            msvcrt: Any = importlib.import_module("msvcrt")
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            return None
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD:
            raise InUseError from None
        return error
    close_in_children(file)
    return None


def _report(device: int, owner: Path, refused: OSError) -> None:
    """Say once for each file system that it has no locks."""
    if device in _reported:
        return
    _reported.add(device)
    say(
        f"the file system of {owner.parent} has no locks ({refused.strerror}): {owner.name} there, "
        "which names this process, stands in until it ends."
    )


def _stand_in(path: Path) -> Path:
    return path.with_name(OWNER.format(path.name))


def _take(path: Path, depth: int) -> bytes:
    """Make the file that stands in; return its content.

    A file whose owner has ended is replaced by the one process that makes the file of its
    successor. That name has the ended owner's random token, so that it is used for no other.

    Raises:
        InUseError: another process holds it.
        OSError: it cannot be made.
    """
    own = json.dumps(_myself() | {"token": secrets.token_hex(8)}).encode()
    while True:
        with suppress(FileExistsError):
            _write(path, own, depth)
            return own
        before = _refuse_living(path, depth)
        if before is None:
            continue  # it was removed in between
        successor = path.with_name(f"{path.name}.{_token(before)}")
        made = _take(successor, depth)
        with nofollow.folder(path.parent, depth - 1) as parent:
            try:
                if nofollow.read(path, depth, MOST_OWNER) == before:
                    parent.rename(successor.name, path.name)
                    return made
            except FileNotFoundError:
                pass
            except OSError:
                with suppress(OSError):
                    parent.unlink(successor.name)
                raise
            with suppress(OSError):  # another process was first
                parent.unlink(successor.name)


def _write(path: Path, content: bytes, depth: int) -> None:
    file = nofollow.open_stream(path, nofollow.NEW, depth)
    try:
        with file:
            file.write(content)
    except OSError:
        with suppress(OSError), nofollow.folder(path.parent, depth - 1) as parent:
            parent.unlink(path.name)
        raise


def _refuse_living(path: Path, depth: int) -> bytes | None:
    """Return what stands in for a process that has ended, or None if there is no such file.

    Raises:
        InUseError: its owner may still run.
    """
    until = time.monotonic() + BEGIN_S
    while True:
        try:
            content = nofollow.read(path, depth, MOST_OWNER)
        except FileNotFoundError:
            return None
        try:
            owner = parse_json(content)
            number, host = int(owner["pid"]), str(owner["host"])[:100]
            if owner["machine"] == _machine() and _has_ended(owner, number) and _token(content):
                return content
            what = f"process {number} on {host}; if that has ended, remove {path}"
            break
        except (ValueError, LookupError, TypeError, OverflowError):
            what = f"an unknown one; if none is, remove {path}"
        if time.monotonic() > until:  # it is not just being written
            break
        time.sleep(PAUSE_S)
    raise InUseError(f" ({what})")


def _token(content: bytes) -> str:
    token = str(parse_json(content)["token"])
    return token if re.fullmatch(r"[0-9a-f]{16}", token) else ""


def _myself() -> dict[str, Any]:
    """Describe this process, so that another one can find out later whether it has ended."""
    number = os.getpid()
    return {"host": socket.gethostname(), "machine": _machine(), "pid": number, "boot": boot_id(),
            "began": _state(number)[1], "numbers": _namespace()}  # fmt: skip


def _machine() -> str:
    """This machine, also after it was started again: a hash, since its number is private."""
    text = f"{socket.gethostname()}\n{kernel_text('/etc/machine-id')}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _namespace() -> str:
    """Where process numbers mean the same: a container has its own."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _has_ended(owner: dict[str, Any], number: int) -> bool:
    """Whether a process of this machine has ended."""
    if owner["boot"] != boot_id():
        return True
    if owner["numbers"] != _namespace():
        return False  # nobody knows
    import psutil

    if not psutil.pid_exists(number):
        return True
    letter, began = _state(number)
    return letter in ("Z", "X") or (began != owner["began"] and began is not None)


def _state(number: int) -> tuple[str, int | None]:
    """A process's state, as a letter, and when it began; as far as the system says."""
    values = kernel_text(f"/proc/{number}/stat").rpartition(")")[2].split()
    return (values[0], int(values[19])) if len(values) > 19 else ("", None)
