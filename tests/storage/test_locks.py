"""One process at a time holds a folder, also where the file system has no locks."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout import FlatoutError
from flatout.reports import runs
from flatout.storage import signing
from flatout.storage.run_folder import RunFolder
from flatout_explain.files import locks
from flatout_explain.files.locks import LOCK
from tests import tiny
from tests.file_faults import NO_LOCKS, largest_file, refusing

fcntl = pytest.importorskip("fcntl")

OWNER = locks.OWNER.format(LOCK)

FOUR = """
import os, sys
from pathlib import Path
from flatout_explain.files import locks
from flatout.storage import signing

inside = Path(sys.argv[1]).with_name("inside")
for _ in range(10):
    with locks.held(Path(sys.argv[1]), 60.0):
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
        os.unlink(inside)
"""

DIES = """
import os, sys
from pathlib import Path
from flatout_explain.files import locks
from flatout.storage import signing

locks.Lock(Path(sys.argv[1]))
os._exit(9)
"""


def refuse(patch: pytest.MonkeyPatch, number: int) -> None:
    """Let locks of the system fail with an error of this number."""

    def flock(file: Any, how: int) -> None:
        raise OSError(number, os.strerror(number))

    patch.setattr(fcntl, "flock", flock)


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has no locks."""
    refuse(monkeypatch, errno.ENOLCK)


@pytest.mark.parametrize("number", [errno.EWOULDBLOCK, errno.EACCES])
def test_only_errors_that_say_so_mean_that_another_process_holds_a_folder(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, number)
    with pytest.raises(FlatoutError, match=r"is in use by another process\.$"):
        RunFolder(tmp_path / "run")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_stands_in_for_a_lock_that_the_file_system_refuses(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    refuse(monkeypatch, number)
    monkeypatch.setattr(locks, "_reported", set())
    folder, other = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "other")
    said = capsys.readouterr().err
    assert said.count(f"has no locks ({os.strerror(number)})") == 1, "it is said once"
    with pytest.raises(FlatoutError, match=f"in use by another process .process {os.getpid()} on "):
        RunFolder(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    folder.close()
    other.close()
    assert not (tmp_path / "run" / OWNER).exists()
    assert not (tmp_path / "other").exists()
    (tmp_path / "run" / "config.json").write_text("{}")
    RunFolder(tmp_path / "run", resume=True).close()


@pytest.mark.usefixtures("without_locks")
@pytest.mark.parametrize(
    ("changed", "ended"),
    [
        ({}, False),
        ({"began": 1}, True),  # another process has its number now
        ({"boot": "another"}, True),
        ({"pid": 4_000_000}, True),
        ({"pid": 4_000_000, "machine": "another", "host": "node7"}, False),
        ({"pid": 4_000_000, "numbers": "of another container"}, False),
    ],
)
def test_the_file_of_an_owner_that_has_ended_is_replaced_and_no_other(
    tmp_path: Path, changed: dict[str, Any], ended: bool
) -> None:
    path, owner = tmp_path / LOCK, tmp_path / OWNER
    held = locks.Lock(path)
    values = json.loads(owner.read_text()) | changed
    text = json.dumps(values)
    owner.write_text(text)
    assert locks.in_use(path) is not ended
    if ended:
        locks.Lock(path).close()
        assert not owner.exists()
    else:
        with pytest.raises(locks.InUseError) as raised:
            locks.Lock(path)
        assert f"process {values['pid']} on {values['host']}" in str(raised.value)
        assert str(owner) in str(raised.value), "which file to remove"
        assert owner.read_text() == text
    held.close()
    assert owner.exists() is ("pid" in changed and not ended), "another owner's file is left"
    assert [entry for entry in os.listdir(tmp_path) if entry not in (LOCK, OWNER)] == []


@pytest.mark.usefixtures("without_locks")
def test_an_owner_whose_name_fits_only_in_part_leaves_no_file(tmp_path: Path) -> None:
    with largest_file(50), pytest.raises(OSError, match="File too large"):
        locks.Lock(tmp_path / LOCK)
    assert os.listdir(tmp_path) == [LOCK]
    locks.Lock(tmp_path / LOCK).close()


@pytest.mark.usefixtures("without_locks")
def test_a_file_that_names_no_owner_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "BEGIN_S", 0.0)
    (tmp_path / OWNER).write_text("")  # its process was killed as it began
    with pytest.raises(locks.InUseError, match="if none is, remove "):
        locks.Lock(tmp_path / LOCK)


def test_where_there_are_locks_the_file_of_a_machine_without_counts_too(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch, errno.ENOLCK)
        held = locks.Lock(tmp_path / LOCK)
    with pytest.raises(locks.InUseError):
        locks.Lock(tmp_path / LOCK)
    held.close()
    locks.Lock(tmp_path / LOCK).close()


def test_a_key_is_made_where_the_file_system_has_neither_locks_nor_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*names: Any, **folders: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    refuse(monkeypatch, errno.ENOSYS)
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert signing.is_own(signing.RUN, signing.signed(signing.RUN, {"a": 1}))
    assert os.listdir(tmp_path / "flatout") == ["key"]


def test_processes_without_locks_hold_a_folder_in_turn(tmp_path: Path) -> None:
    environment = refusing(tmp_path, NO_LOCKS, tmp_path)
    path = tmp_path / LOCK
    killed = subprocess.run([sys.executable, "-c", DIES, path], env=environment)
    assert killed.returncode == 9
    assert (tmp_path / OWNER).exists()
    begun = [subprocess.Popen([sys.executable, "-c", FOUR, path], env=environment, stderr=-1)
             for _ in range(4)]  # fmt: skip
    for process in begun:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    assert not (tmp_path / OWNER).exists()


@pytest.mark.slow
def test_a_run_trains_and_resumes_on_a_mount_without_locks_that_syncs_no_folders(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    environment = refusing(tmp_path, NO_LOCKS, tmp_path)

    def train(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "flatout", "train", *words, "--quiet"], env=environment,
            capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    new = ("ppo", *tiny.flags("ppo"), "--run-dir", str(run))
    for words, steps in ((new, 64), (("--resume", str(run)), 128)):
        said = train(*words, "--steps", str(steps))
        assert said.count("has no locks (No locks available)") == 1
        assert json.loads((run / "summary.json").read_text())["steps"] == steps
        assert not (run / OWNER).exists()
        assert runs.read(tmp_path, "run", os.listdir(run)).state == "done"
