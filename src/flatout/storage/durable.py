"""Atomic, synced file writes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from flatout.storage.nofollow import NEW, folder, open_below


def write_file(name: str, content: bytes, parent: int) -> None:
    """Write and sync a file in an open folder; replace an old one, and follow no link."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
    with os.fdopen(open_below(name, NEW, parent), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes, depth: int = 1) -> None:
    """Replace a file atomically; after an `OSError` the old content is intact.

    Its folder exists; `nofollow` says what `depth` is.
    """
    temporary = temporary_name(path.name)
    with folder(path.parent, depth - 1) as parent:
        try:
            write_file(temporary, content, parent)
            os.replace(temporary, path.name, src_dir_fd=parent, dst_dir_fd=parent)
            os.fsync(parent)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise


def temporary_name(name: str) -> str:
    """A file's name until it is complete."""
    return f".{name}.tmp"
