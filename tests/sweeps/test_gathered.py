"""Run folders that travel as bytes: nothing leads out of them; only what was asked is signed."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.config.settings import resolve
from flatout.errors import FlatoutError
from flatout.storage import signing, trees
from flatout.storage.checkpoint import FORMAT
from flatout.sweeps import place
from flatout.sweeps.gathered import ARRIVING, Leaving, newest, pieces, put, recover, settle
from flatout.sweeps.plan import Group, Job, trials
from flatout.version import __version__
from tests.kill_within import fatal

BASE = resolve("ppo", {"env": "CartPole-v1", "steps": 320})
(TRIAL,) = trials(BASE, Group("", {}), [3])
OLD, NEW = (f"checkpoints/step_{step:012}/arrays" for step in (64, 128))


def files(folder: Path, **more: str) -> Path:
    """A run's folder, with two checkpoints and what a run that is killed leaves half written."""
    texts = {
        "metrics.jsonl": "{}\n", OLD: "old", "empty": "",
        NEW: "new", "checkpoints/.step_000000000192.tmp/arrays": "",
        ".lock": "", ".running": "",
    } | more  # fmt: skip
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "link").symlink_to("/etc/passwd")
    return folder


def config(**more: Any) -> str:
    values = {"format": FORMAT, "algorithm": "ppo", "placement": "cpu", "parent": None,
              "settings": dict(TRIAL.settings) | {"run_dir": "/there"} | more}  # fmt: skip
    return json.dumps(values)


def arrive(folder: Path, made: Leaving) -> bool:
    while True:
        some, last, whole = made.take()
        for piece in some:
            put(folder, piece)
        if last:
            return whole


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*")
            if path.is_file()}  # fmt: skip


def test_a_folder_arrives_as_it_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.sweeps.gathered.PIECE", 2)
    folder = files(tmp_path / "there")
    assert arrive(tmp_path / "done", Leaving(folder, True))
    whole = {"metrics.jsonl": "{}\n", OLD: "old", "empty": "",
             NEW: "new"}  # fmt: skip
    assert content(tmp_path / "done") == whole
    del whole[OLD]
    running = Leaving(folder, False)
    assert arrive(tmp_path / "running", running)
    assert content(tmp_path / "running") == whole
    assert running.metrics == {"metrics.jsonl": 3}


def test_a_checkpoint_that_is_removed_while_it_leaves_counts_not(tmp_path: Path) -> None:
    folder = files(tmp_path / "there")
    made = Leaving(folder, False)
    (path,) = newest(folder)
    (path / "arrays").unlink()
    path.rmdir()
    assert not arrive(tmp_path / "here", made)


def rotate(folder: Path, monkeypatch: pytest.MonkeyPatch, when: int = 1) -> None:
    """Remove the oldest checkpoint after the checkpoints' folder was listed so many times."""
    listed, times = os.scandir, itertools.count(1)

    @contextmanager
    def scandir(place: Any) -> Iterator[Iterator[os.DirEntry[str]]]:
        with listed(place) as opened:
            entries = list(opened)
        if any(entry.name.startswith("step_") for entry in entries) and next(times) == when:
            shutil.rmtree((folder / OLD).parent, ignore_errors=True)
        yield iter(entries)

    monkeypatch.setattr(os, "scandir", scandir)


@pytest.mark.parametrize("when", [1, 2])
@pytest.mark.parametrize("found", [newest, lambda folder: list(pieces(folder))])
def test_a_checkpoint_may_be_rotated_away_during_a_walk(
    found: Callable[[Path], Any], when: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(tmp_path / "there")
    before = found(folder)
    with monkeypatch.context() as patch:
        rotate(folder, patch, when)
        during = found(folder)
    assert during in (before, found(folder))


def test_metrics_are_read_while_checkpoints_are_rotated_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    local = SimpleNamespace(warm=lambda count: None, close=lambda: None)
    monkeypatch.setattr(place, "Local", lambda *_: local)
    made = place.Place(json.dumps([[], 0, __version__]))
    made._forget("job")
    files(made._folder)
    with monkeypatch.context() as patch:
        rotate(made._folder, patch)
        told, _ = made._tell([{"trial": "job"}], [])
    assert json.loads(told)[1] == {"metrics.jsonl": [0, "{}\n"]}
    made.close()
    assert not made._root.exists()


@pytest.mark.parametrize(
    "name", ["../up", "/etc/x", "a/../../up", "", ".", "a//../b", "x" * 300, "a\0b", "out/x"]
)
def test_no_piece_leads_out(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "out").symlink_to(tmp_path)
    with pytest.raises(FlatoutError):
        put(tmp_path / "run", (name, 0, b"evil"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_was_asked_is_signed_anew_with_its_own_path(tmp_path: Path) -> None:
    folder = tmp_path / "f" / TRIAL.name
    arrived = files(tmp_path / "arriving", **{"config.json": config()})
    (arrived / "link").unlink()
    files(folder)
    settle(arrived, Job(TRIAL.name, (TRIAL,), str(folder)))
    values = json.loads((folder / "config.json").read_text())
    assert signing.is_own(signing.RUN, values)
    assert values["settings"]["run_dir"] == str(folder)
    assert not (folder / "link").is_symlink()  # what was there is gone as a whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


def exchange(sweep: Path) -> Path:
    """Let a folder arrive in the place of an older one; return where it will be."""
    folder = sweep / TRIAL.name
    if sweep.exists():
        shutil.rmtree(sweep)
    for there, text in ((folder, "before"), (sweep / ARRIVING / TRIAL.name, "after")):
        files(there, **{"config.json": config(), "params": text, "empty": text})
        (there / "link").unlink()
    return folder


def assert_whole(folder: Path) -> str:
    """Check that a folder is of one time alone; return which."""
    when = (folder / "params").read_text()
    assert {(folder / name).read_text() for name in ("params", "empty")} == {when}
    assert (folder / OLD).exists()
    assert signing.is_own(signing.RUN, json.loads((folder / "config.json").read_text())) is (
        when == "after"
    )
    return when


def exchange_killed(sweep: Path) -> None:
    """Exchange a folder in processes that are killed before each call that changes a name."""
    found, at = list[str](), 0
    while not found or found[-1] != "not killed":
        at, folder = at + 1, exchange(sweep)
        child = os.fork()
        if child == 0:
            counted: list[int] = []
            for name in ("replace", "unlink", "rmdir", "mkdir"):
                setattr(os, name, fatal(counted, at, getattr(os, name)))
            settle(sweep / ARRIVING / TRIAL.name, Job(TRIAL.name, (TRIAL,), str(folder)))
            os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        recover(sweep)
        found.append(assert_whole(folder) if killed else "not killed")
        assert os.listdir(sweep) == [TRIAL.name]
    assert {*found} == {"before", "after", "not killed"}, found


def test_a_kill_within_an_exchange_leaves_the_old_folder_or_the_new(tmp_path: Path) -> None:
    code = (
        f"from tests.sweeps.test_gathered import *; exchange_killed(Path({str(tmp_path / 'f')!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rename_that_fails_within_an_exchange_leaves_the_old_folder(
    tmp_path: Path, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exchange(tmp_path / "f")
    calls, move = itertools.count(), trees.move

    def fails(source: Path, target: Path) -> None:
        if next(calls) == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        move(source, target)

    monkeypatch.setattr(trees, "move", fails)
    with pytest.raises(FlatoutError, match="Input/output error"):
        settle(tmp_path / "f" / ARRIVING / TRIAL.name, Job(TRIAL.name, (TRIAL,), str(folder)))
    assert assert_whole(folder) == "before"


@pytest.mark.parametrize(
    "more",
    [{"env": "os:system"}, {"env": "CartPole-v1", "env_kwargs": {"path": "/etc/passwd"}},
     {"wandb": "theirs"}],
)  # fmt: skip
def test_what_reaches_further_than_was_asked_is_not_signed(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    folder = tmp_path / "f" / TRIAL.name
    arrived = files(tmp_path / "arriving", **{"config.json": config(**more)})
    settle(arrived, Job(TRIAL.name, (TRIAL,), str(folder)))
    assert not signing.is_own(signing.RUN, json.loads((folder / "config.json").read_text()))


def test_nothing_is_read_through_a_link(tmp_path: Path) -> None:
    folder = files(tmp_path / "there")
    (folder / "away").symlink_to("/etc")
    assert {name for name, _, _ in pieces(folder)} == {
        "metrics.jsonl", OLD, NEW, "empty",
    }  # fmt: skip
