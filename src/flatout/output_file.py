"""Files that the user asked for: written whole, or left as they were."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flatout.errors import writing


def write(path: Path, content: str | bytes) -> None:
    """Write a file, in place of an earlier one only once all is written.

    Raises:
        FlatoutError: it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    with writing(path), replacing(path) as part:
        part.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the file to write, which takes the place of `path` once the block has ended.

    A link's target is replaced, not the link. What is no ordinary file (a terminal, a pipe), and a
    file in a folder that takes no others, is written in place. After an exception the earlier file
    is as it was.

    Raises:
        OSError: no file can be made there.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        yield target
        return
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}.part")
    try:
        # A link that somebody has put there is not followed, and a name cannot be guessed.
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
