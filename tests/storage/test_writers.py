"""Files that several processes write at the same time, and processes that are killed in between."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from flatout.output_file import LEFT_S, temporary_name, write
from flatout.planning import kept
from flatout.storage import nofollow
from tests.file_faults import refusing

WRITES = 150

WRITER = """
import sys
from pathlib import Path
from flatout import output_file
from flatout.planning.kept import keep_number
from flatout.storage import nofollow

number, folder = sys.argv[1], Path(sys.argv[2])
sys.stdin.read(1)  # all are there
for write in range({writes}):
    content = (f"{{number}} {{write}}\\n" * 1000).encode()
    nofollow.replace(folder / "replaced", content)
    output_file.write(folder / "written", content)
    keep_number(f"{{number}} {{write % 100}}", float(write), folder)
"""

RENAMES = """
import errno, os, sys
from pathlib import Path
import numpy as np
from flatout import output_file
from flatout.errors import FlatoutError, writing
from flatout.storage import checkpoint, nofollow
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
