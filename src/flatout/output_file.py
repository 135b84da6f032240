"""Files that the user asked for: written whole, or left as they were."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from flatout.errors import writing


def write(path: Path, content: str | bytes) -> None:
    """Write a file, in place of an earlier one only once all is written.

    A link's target is replaced, not the link. What is no ordinary file (a terminal, a pipe), and a
    file in a folder that takes no others, is written in place.

    Raises:
        FlatoutError: it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    with writing(path):
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        part = target.with_name(f".{target.name[:200]}.{os.getpid()}.part")
        try:
            try:
                part.write_bytes(data)
            except PermissionError:
                target.write_bytes(data)
                return
            if target.exists():
                shutil.copymode(target, part)
            os.replace(part, target)
        finally:
            with suppress(OSError):
                part.unlink()
