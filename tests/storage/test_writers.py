"""Files that several processes write at the same time, and processes that are killed in between."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.envs.checking.process import inspect_in_child
from flatout.errors import CheckpointError, DamagedError, FlatoutError, damage
from flatout.run.recording import RunRecording
from flatout.spans import ResetTimes, Spans, Work
from flatout.storage import checkpoint
from flatout.storage.run_folder import RunFolder
from flatout.storage.span_records import MAIN, Begin, read_lines, steady
from flatout.types import Snapshot
from flatout_explain.files import kept_numbers as kept
from flatout_explain.files import nofollow
from flatout_explain.output_file import LEFT_S, temporary_name, write
from flatout_explain.program.attach import working_folder
from tests.file_faults import largest_file, refusing

WRITES = 150

WRITER = """
import sys
from pathlib import Path
from flatout_explain import output_file
from flatout_explain.files import kept_numbers
from flatout_explain.files import nofollow

number, folder = sys.argv[1], Path(sys.argv[2])
kept_numbers.WAIT_S = 120.0  # a slow disk may hold all of them
sys.stdin.read(1)  # all are there
for write in range({writes}):
    content = (f"{{number}} {{write}}\\n" * 1000).encode()
    nofollow.replace(folder / "replaced", content)
    output_file.write(folder / "written", content)
    kept_numbers.keep_number(f"{{number}} {{write % 100}}", float(write), folder)
"""

RENAMES = """
import errno, os, sys
from pathlib import Path
import numpy as np
from flatout_explain import output_file
from flatout.errors import FlatoutError, writing
from flatout.storage import checkpoint
from flatout_explain.files import nofollow
from flatout.types import Snapshot

folder = Path(sys.argv[1])
folder.mkdir()

def save(number):
    arrays = {"learner.x": np.full(3, number, np.float32)}
    checkpoint.save(folder / "checkpoints", 7, Snapshot(arrays, {}), 3)

def agent(number):
    values = {"format": checkpoint.FORMAT, "config": {}, "n": number}
    checkpoint.save_agent(folder / "agent", {"x": np.zeros(3, np.float32)}, values)

def replaced(number):
    with writing(folder / "replaced"):
        nofollow.replace(folder / "replaced", str(number).encode())

def saved():
    step, snapshot = checkpoint.load(checkpoint.latest(folder))
    return int(snapshot.arrays["learner.x"][0])

CASES = {
    save: saved,
    agent: lambda: checkpoint.load_agent(folder / "agent")[1]["n"],
    replaced: lambda: int((folder / "replaced").read_text()),
    lambda number: output_file.write(folder / "written", str(number)):
        lambda: int((folder / "written").read_text()),
}
for write, read in CASES.items():
    write(1)
    for number in (errno.EXDEV, errno.EIO, errno.ENOSPC):
        for at in range(1, 4):
            os.environ["FILE_FAULTS"] = f"rename={number}@{at}"
            try:
                write(2)
            except FlatoutError as error:
                assert os.strerror(number) in str(error), error
                assert read() == 1, "the old file is lost"
            else:
                assert read() == 2
            del os.environ["FILE_FAULTS"]
            write(1)
left = [path.name for path in folder.rglob("*") if path.name.startswith(".")]
assert left == [], left
print("all")
"""


def test_four_processes_write_the_same_files_and_nothing_fails_or_is_lost(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER.format(writes=WRITES)]
    processes = [
        subprocess.Popen([*command, str(number), tmp_path], stdin=-1, stderr=-1)
        for number in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    for name in ("replaced", "written"):
        lines = (tmp_path / name).read_text().splitlines()
        assert len(lines) == 1000
        assert len({*lines}) == 1, "a file of several processes"
    assert kept.numbers(tmp_path) == {
        f"{number} {key}": float(key + 100 if key + 100 < WRITES else key)
        for number in range(4) for key in range(100)
    }  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == [".lock", kept.NUMBERS, "replaced", "written"]


def test_what_a_killed_process_left_of_a_file_is_removed_by_a_later_one(tmp_path: Path) -> None:
    names = [temporary_name(name) for name in ("report.json", "report.json", "notes")]
    for name in names:
        (tmp_path / name).write_text("half")
    for name in names[1:]:
        os.utime(tmp_path / name, (0, 0))
    write(tmp_path / "report.json", "whole")
    assert sorted(os.listdir(tmp_path)) == sorted([names[0], names[2], "report.json"]), (
        "another process may be writing the first, and the last is of another file"
    )
    with nofollow.folder(tmp_path, 0) as opened:
        nofollow.remove_left(None, opened, LEFT_S)
    assert sorted(os.listdir(tmp_path)) == sorted([names[0], "report.json"])


def test_a_rename_that_fails_is_a_sentence_and_leaves_the_old_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RENAMES, tmp_path / "files"], capture_output=True, text=True,
        env=refusing(tmp_path / "files", "", tmp_path), timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr


def fails(number: int) -> Any:
    """A function of `os` on a file system that refuses it with an error of this number."""

    def function(*names: Any, **more: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return function


def test_a_file_is_written_again_where_permissions_cannot_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    write(path, "old")
    monkeypatch.setattr(os, "chmod", fails(errno.EPERM))
    write(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize(
    "begin", [working_folder().__enter__, lambda: inspect_in_child(b"", "an environment", 9.0)]
)
def test_a_full_folder_for_temporary_files_is_a_sentence(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(FlatoutError, match=f"temporary files in {tmp_path}/absent .* set TMPDIR"):
        begin()


def test_an_error_as_a_temporary_file_is_closed_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", fails(errno.EDQUOT))
        with pytest.raises(FlatoutError, match=r"report\.html: Disk quota exceeded"):
            write(tmp_path / "report.html", "new")
    assert os.listdir(tmp_path) == []


def test_a_run_whose_first_save_failed_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run")
    saved = Snapshot({"x": np.zeros(3, np.float32)}, {})
    with monkeypatch.context() as patch:
        patch.setattr(nofollow, "write_file", fails(errno.ENOSPC))
        with pytest.raises(FlatoutError, match="No space left on device; none is saved"):
            checkpoint.save(folder.checkpoints, 7, saved, 3)
        assert not folder.has_saved
        folder.checkpoints.mkdir()  # somebody removed the checkpoints from it
        with pytest.raises(FlatoutError):
            checkpoint.save(folder.checkpoints, 7, saved, 3)
    assert folder.has_saved
    folder.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOENT])
def test_a_checkpoint_is_to_be_removed_only_if_it_is_lost(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (7, 8):
        checkpoint.save(tmp_path, step, Snapshot({"x": np.zeros(3, np.float32)}, {}), 3)
    path = checkpoint.checkpoints(tmp_path)[-1]
    monkeypatch.setattr(nofollow, "read", fails(number))
    segment = OSError(number, "")  # the class of an `OSError` follows from its number
    for read in (lambda: checkpoint.load(path), lambda: _replay(path, segment)):
        with pytest.raises(CheckpointError, match=r"cannot be read|is damaged") as raised:
            read()
        assert ("Remove that folder" in str(raised.value)) is (number == errno.ENOENT)


def test_a_reader_waits_while_the_only_checkpoint_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints"
    saved = checkpoint.save(folder, 7, Snapshot({}, {}), 3)
    old = saved.rename(folder / f".{saved.name}.old")
    monkeypatch.setattr(checkpoint.time, "sleep", lambda seconds: old.rename(saved))
    assert checkpoint.load_latest(tmp_path)[:2] == (saved, 7)
    monkeypatch.setattr(checkpoint.time, "sleep", lambda seconds: None)
    with pytest.raises(CheckpointError, match="holds no checkpoint to resume from"):
        checkpoint.load_latest(tmp_path / "none")


def _replay(path: Path, error: OSError) -> None:
    with checkpoint.reading(path):
        raise DamagedError("a segment cannot be read.") from error


def test_an_error_of_a_file_is_named_without_its_number() -> None:
    assert damage(OSError(errno.EIO, "Input/output error", "path")) == "Input/output error"


def test_records_hold_the_resets_of_the_main_process_and_of_workers() -> None:
    works = {MAIN: Work(resets=ResetTimes(2, 0.5, 0.25, 0.5))}
    recording = RunRecording(
        Spans(), lanes=lambda: works, waited=lambda: 0.0, wall=lambda: 1.0, folder=None,
        kept_s=0.0, cores=1, devices=False,
    )  # fmt: skip
    recording.begin(Begin(0.0), (0, 0, 0))
    works[MAIN] = Work(resets=ResetTimes(5, 1.5, 0.75, 0.625))
    works["worker 0"] = Work({"env": 1.0}, 3, resets=ResetTimes(1, 0.25, 0.0625, 0.25))
    recording.end((8, 1, 1))
    _, (main, worker) = read_lines(recording.lines())
    totals, _ = steady([main, worker])
    assert totals is not None
    assert totals.resets == ResetTimes(3, 1.0, 0.5, 0.125)
    assert totals.workers[0].resets == ResetTimes(1, 0.25, 0.0625, 0.25)
    assert main.lane == MAIN


@pytest.mark.parametrize("at", ["begin", "later"])
def test_a_run_that_cannot_record_where_its_time_goes_says_so(
    at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if at == "begin":
        (tmp_path / "spans.jsonl").mkdir()
    recording = RunRecording(
        Spans(), lanes=dict, waited=lambda: 0.0, wall=lambda: 1.0, folder=tmp_path, kept_s=0.0,
        cores=1, devices=False,
    )  # fmt: skip
    with largest_file(0):
        recording.tick((1, 1, 1))
        recording.end((2, 2, 2))
    recording.close()
    assert capsys.readouterr().err.count(f"cannot write {tmp_path / 'spans.jsonl'}") == 1
