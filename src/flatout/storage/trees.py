"""Files and folders of a run that are moved, removed and listed without following links.

`depth` is as in `flatout_explain.files.nofollow`.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePath

from flatout_explain.files.nofollow import Folder, NotOrdinaryError, enter, folder, is_link

DEEPEST = 32
"""Maximum number of names of a path that `walk` finds: each folder on the way is held open."""


def move(source: Path, target: Path) -> None:
    """Rename a file or folder; missing parents of `target` are made."""
    with folder(source.parent, 0) as before, folder(target.parent, 0, True) as after:
        held = {"src_dir_fd": before.descriptor, "dst_dir_fd": after.descriptor}
        os.replace(before.at(source.name), after.at(target.name), **held)


def remove_file(path: Path) -> None:
    """Remove a file, or a link in its place."""
    with suppress(FileNotFoundError), folder(path.parent, 0) as parent:
        parent.unlink(path.name)


def remove_tree(path: Path, depth: int = 1) -> None:
    """Remove a folder with all that is in it, or a link or file in its place; follow no link."""
    with suppress(FileNotFoundError), folder(path.parent, depth - 1) as parent:
        status = parent.stat(path.name)
        if is_link(status) or not stat.S_ISDIR(status.st_mode):
            parent.unlink(path.name)
        else:
            shutil.rmtree(parent.at(path.name), dir_fd=parent.descriptor)


def walk(path: Path) -> list[PurePath]:
    """The ordinary files below a folder, relative to it and sorted.

    Links and names that begin with a dot are left out, and so is what is removed meanwhile.
    """
    with suppress(FileNotFoundError), folder(path, 0) as opened:
        return list(_files_below(opened, PurePath()))
    return []


def _files_below(current: Folder, inside: PurePath) -> Iterator[PurePath]:
    with os.scandir(current.listed) as entries:
        kinds = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries
                 if not entry.name.startswith(".") and not entry.is_symlink()}  # fmt: skip
    for name in sorted(kinds):
        if not kinds[name]:
            with suppress(FileNotFoundError):
                if stat.S_ISREG(current.stat(name).st_mode):
                    yield inside / name
        elif len(inside.parts) < DEEPEST:
            with suppress(FileNotFoundError, NotOrdinaryError):
                below = enter(name, current)
                try:
                    yield from _files_below(below, inside / name)
                finally:
                    below.close()
