"""Files that are on disk, whole, once a function returns."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from flatout.storage.nofollow import NEW, folder, open_below


def write_file(name: str, content: bytes, parent: int) -> None:
    """Write and sync one file.

    Args:
        name: the file; one that is there is replaced, and a link not followed.
        content: its bytes.
        parent: descriptor of the folder that it is in.
    """
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
    with os.fdopen(open_below(name, NEW, parent), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes, depth: int = 1) -> None:
    """Write a file so that it is the old one or the new one, never a part.

    Args:
        path: the file; its folder exists.
        content: its bytes.
        depth: how many of the path's last names lie within a run folder (`nofollow`).

    Raises:
        OSError: it cannot be written; the old one is intact, and nothing takes up room.
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
    """What a file is called until it is whole."""
    return f".{name}.tmp"
