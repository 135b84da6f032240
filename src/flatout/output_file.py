"""Writing of files that the user asked for, as reports: completely, or the old file stays."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flatout.errors import writing


def write(path: Path, content: str | bytes) -> None:
    """Write a file. An earlier file is replaced only after the new one is complete.

    Raises:
        FlatoutError: the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    with writing(path), replacing(path) as part:
        part.write_bytes(data)


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
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}.part")
    try:
        # O_EXCL: a link that somebody has put there is not followed. The name cannot be guessed.
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except PermissionError:
        yield target
        return
    try:
        yield part
        if target.exists():
            shutil.copymode(target, part)
        os.replace(part, target)
    finally:
        with suppress(OSError):
            part.unlink()
