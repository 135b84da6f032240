"""Files that are on disk, whole, once a function returns."""

from __future__ import annotations

import os
from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    """Write and sync one file."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, content: bytes) -> None:
    """Write a file so that it is the old one or the new one, never a part.

    Raises:
        OSError: it cannot be written; the old one is intact, and nothing takes up room.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write_file(temporary, content)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
