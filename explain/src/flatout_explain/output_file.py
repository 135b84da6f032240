"""Writing of files that the user asked for, as reports: completely, or the old file stays.

Temporary files and folders, too.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from flatout_explain.errors import FlatoutError, one_line, writing

LEFT_S = 3600.0
"""A temporary file that is older was left by a process that was killed."""


def write(path: Path, content: str | bytes) -> None:
    """Write a file. An earlier file is replaced only after the new one is complete.

    Raises:
        FlatoutError: the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    with writing(path), replacing(path) as part:
        part.write_bytes(data)


def check_writable(path: Path) -> None:
    """Check that `write` can write a file, before much time is spent on its content.

    Raises:
        FlatoutError: it cannot.
    """
    with writing(path), suppress(_Checked), replacing(path) as part:
        if not os.access(part, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        raise _Checked  # keeps the earlier file


class _Checked(Exception):  # noqa: N818 - no failure
    """Nothing is to be written."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` at the end of the block.

    For a link its target is replaced, not the link. Two kinds of files are written in place: those
    that are not ordinary (a terminal, a pipe), and those in a folder in which no file can be made.
    After an exception the earlier file is unchanged, unless it was written in place.

    Raises:
        OSError: the temporary file cannot be made.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        yield target
        return
    _remove_left(target)
    part = target.with_name(temporary_name(target.name))
    try:
        # O_EXCL: a link that somebody has put there is not followed. The name cannot be guessed.
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except PermissionError:
        yield target
        return
    try:
        os.close(descriptor)
        yield part
        if target.exists() and target.stat().st_mode != part.stat().st_mode:
            shutil.copymode(target, part)  # which some file systems cannot do
        os.replace(part, target)
    finally:
        with suppress(OSError):
            part.unlink()


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a folder of the system's for temporary files, which is removed after the block.

    Raises:
        FlatoutError: it cannot be made.
    """
    with _making_temporary():
        # A process that lives on may write there as it is removed.
        made = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    with made as name:
        yield Path(name)


def temporary_file() -> IO[bytes]:
    """Return an open file without a name.

    Raises:
        FlatoutError: it cannot be made.
    """
    with _making_temporary():
        return tempfile.TemporaryFile()


@contextmanager
def _making_temporary() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = "" if error.filename is None else f" in {Path(error.filename).parent}"
        raise FlatoutError(
            f"cannot write temporary files{where} ({error.strerror or one_line(error)}): make room "
            "there, or set TMPDIR to another folder."
        ) from error


def temporary_name(name: str) -> str:
    """Return a name for a file until it is complete, which no other process uses."""
    return f"{_prefix(name)}{secrets.token_hex(8)}.part"


def left_over(names: Iterable[str] | None, entries: Iterable[str]) -> list[str]:
    """Return those entries of a folder that are temporary names of files with these names, or of
    any file."""
    prefixes = "." if names is None else tuple({_prefix(name) for name in names})
    return [
        entry for entry in entries
        if entry.startswith(prefixes) and re.search(r"\.[0-9a-f]{16}\.part\Z", entry)
    ]  # fmt: skip


def _prefix(name: str) -> str:
    return f".{os.fsdecode(os.fsencode(name)[:200])}."  # a name has at most 255 bytes


def _remove_left(target: Path) -> None:
    """Remove what processes that were killed while they wrote a file have left next to it."""
    with suppress(OSError):
        for entry in left_over([target.name], os.listdir(target.parent)):
            with suppress(OSError):
                part = target.with_name(entry)
                if time.time() - part.lstat().st_mtime > LEFT_S:
                    part.unlink()
