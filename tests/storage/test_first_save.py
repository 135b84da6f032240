"""A kill within the first save of a run, or while it begins again: no checkpoint is missed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.storage.checkpoint import checkpoints, load, recover, save
from flatout.storage.run_folder import RunFolder
from flatout.types import Snapshot

CALLS = ("mkdir", "replace", "rename", "rmdir", "unlink", "open", "fsync")


class Killed(BaseException):
    """In the place of SIGKILL: nothing that handles exceptions sees it."""


def killed_at(call: int, monkeypatch: pytest.MonkeyPatch, work: Any) -> bool:
    """Do some work, which a kill interrupts before a call to the system; return whether it did."""
    made = 0

    def counted(name: str) -> Any:
        real = getattr(os, name)

        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal made
            made += 1
            if made > call:
                raise Killed
            return real(*args, **kwargs)

        return called

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counted(name))
        try:
            work()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("linked", [False, True], ids=["folder", "link"])
def test_a_kill_at_any_call_of_the_first_save_leaves_all_or_nothing(
    linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each call of the save, and then at each call of the recovery."""
    snapshot = Snapshot({"a": np.arange(3)}, {"iteration": 1}, None)
    number, interrupted, folders = 0, True, set[bool]()
    while interrupted:
        folder = tmp_path / str(number) / "checkpoints"
        if linked:  # the user's own way to another disk
            (tmp_path / f"{number} there").mkdir()
            folder.parent.symlink_to(tmp_path / f"{number} there")
        else:
            folder.parent.mkdir()
        interrupted = killed_at(number, monkeypatch, lambda at=folder: save(at, 5, snapshot, 1))
        again = 0
        while killed_at(again, monkeypatch, lambda at=folder: recover(at)):
            again += 1
        assert folder.exists() == bool(checkpoints(folder)), number
        folders.add(folder.exists())
        saved = save(folder, 5, snapshot, 1)
        assert load(saved)[0] == 5
        assert os.listdir(folder.parent) == ["checkpoints"]
        number += 1
    assert folders == {True, False}


def test_a_kill_while_a_run_is_emptied_leaves_all_checkpoints_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins again with another placement removes what it has saved."""
    number, interrupted, left = 0, True, set[int]()
    while interrupted:
        run = RunFolder(tmp_path / str(number))
        for step in (5, 6):
            save(run.checkpoints, step, Snapshot({"a": np.arange(3)}, {}, None), 2)
        interrupted = killed_at(number, monkeypatch, run.empty)
        recover(run.checkpoints)
        found = checkpoints(run.checkpoints)
        assert run.checkpoints.exists() == bool(found), number
        assert [load(path)[0] for path in found] in ([], [5, 6]), number
        left.add(len(found))
        run.close()
        number += 1
    assert left == {0, 2}
