"""Files that the user asked for are written completely, or the old file stays."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from flatout.errors import FlatoutError
from flatout_explain.output_file import write


def test_an_earlier_file_stays_if_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    path.write_text("earlier")

    def half(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    for name in ("report.json", "new.json"):
        with pytest.raises(FlatoutError, match="No space left on device"):
            write(tmp_path / name, "later")
    assert path.read_text() == "earlier"
    assert os.listdir(tmp_path) == ["report.json"]


def test_links_and_modes_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("earlier")
    target.chmod(0o640)
    link.symlink_to(target)
    write(link, b"later")
    assert (link.is_symlink(), target.read_bytes()) == (True, b"later")
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link", "target"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write(pipe, "é")
    reader.join(120)
    assert read == ["é".encode()]


def test_the_error_for_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FlatoutError, match=r"cannot write .*/none/a\.json: No such file"):
        write(tmp_path / "none" / "a.json", "")


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user may write a report into a stranger's folder, which may hold such a link."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * size)
    (tmp_path / ".report.json.00000000.part").symlink_to(victim)
    with pytest.raises(FlatoutError, match=r"report\.json"):
        write(tmp_path / "report.json", "later")
    assert victim.read_text() == "precious"
