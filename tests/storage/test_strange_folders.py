"""Files that Flatout would write and did not write before are never touched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flatout import UsageError
from flatout.populations.members import refuse_strange
from flatout.storage.run_folder import FILES, FOLDERS, RunFolder
from flatout.sweeps.folder import Folder
from tests import runs_made, tiny
from tests.conftest import Result

Cli = Callable[..., Result]
MINE = sorted({*FILES, *FOLDERS} - {"config.json", "README.md", ".lock.owner"})

KILLED = """
import os, signal, sys
from pathlib import Path
from flatout.storage.run_folder import RunFolder

folder = RunFolder(Path(sys.argv[1]))
(folder.path / "metrics.jsonl").write_text("{}")
os.kill(os.getpid(), signal.SIGKILL)
"""


def contents(folder: Path) -> dict[str, str]:
    """The files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip


def put(path: Path) -> None:
    """Make a file or folder of somebody else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix or path.name.startswith("."):
        path.write_text("mine")
    else:
        path.mkdir()
        (path / "notes").write_text("mine")


@pytest.mark.parametrize("name", MINE)
def test_a_new_run_refuses_a_folder_with_a_strange_file_of_a_runs_name(
    tmp_path: Path, name: str
) -> None:
    put(tmp_path / name)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=f"{name} does not belong to a run of Flatout"):
        RunFolder(tmp_path)
    assert contents(tmp_path) == before


def test_a_command_refuses_it_in_one_sentence(flatout: Cli, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1}\n')
    result = flatout("train", "ppo", *tiny.flags("ppo"), "--run-dir", tmp_path, "--steps", 64)
    assert result.code == 2
    said = f"{tmp_path / 'metrics.jsonl'} does not belong to a run of Flatout"
    assert result.message.startswith(said)
    assert contents(tmp_path) == {"metrics.jsonl": '{"loss": 1}\n'}


@pytest.mark.parametrize("name", ["members", "groups", "curves.svg", "curves.png"])
def test_a_population_refuses_what_is_not_of_one(flatout: Cli, tmp_path: Path, name: str) -> None:
    put(tmp_path / name)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=f"{name} does not belong to a population of Flatout"):
        refuse_strange(tmp_path)
    result = flatout(
        "train", "ppo", *tiny.flags("ppo"), "--seeds", 2, "--run-dir", tmp_path, "--steps", 64
    )
    assert (result.code, name in result.message) == (2, True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", [".sweep", ".arriving/x", "population-1"])
def test_a_sweep_refuses_what_is_not_of_one(tmp_path: Path, name: str) -> None:
    put(tmp_path / name)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="does not belong to a sweep of Flatout"):
        Folder(tmp_path, resume=False)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["config.json", "population.json", "sweep.json"])
def test_nothing_new_is_written_among_other_runs(tmp_path: Path, name: str) -> None:
    runs = tmp_path / "runs"
    config = runs_made.folder(runs / "first", [1.0]) / "config.json"
    (runs / "first" / "metrics.jsonl").unlink()
    config.rename(config.with_name(name))
    before = contents(runs)
    for start in (RunFolder, refuse_strange, lambda path: Folder(path, resume=False)):
        with pytest.raises(UsageError, match=r"runs holds other runs, such as first.*--run-dir"):
            start(runs)
    assert contents(runs) == before
    RunFolder(runs / "second").close()
    put(tmp_path / "site" / "app" / "config.json")  # of another program
    RunFolder(tmp_path / "site").close()


def test_a_folder_of_other_files_takes_a_run_and_keeps_them(tmp_path: Path) -> None:
    for name in ("README.md", "notes", "data.csv"):
        (tmp_path / name).write_text("mine")
    before = contents(tmp_path)
    RunFolder(tmp_path).close()
    assert contents(tmp_path) == before, "a run that did not begin leaves nothing"


def test_what_a_run_left_that_did_not_begin_is_of_flatout(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "killed"])
    assert killed.returncode < 0
    folder = RunFolder(tmp_path / "killed")
    (folder.path / "error.log").write_text("a traceback")  # and this one fails
    folder.close()
    RunFolder(tmp_path / "killed").close()
