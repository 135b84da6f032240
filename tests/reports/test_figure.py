"""Pictures of matplotlib: no file of the working folder decides on them, and none ends a run."""

from __future__ import annotations

import io
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import flatout
from flatout.cli import population
from flatout.errors import FlatoutError
from flatout.reports.curves import Picture
from flatout.reports.figure import figure
from flatout.run.curve import Curve
from tests.runs_made import folder

FORMULA = r"$\frac{$"
"""A name that is no formula."""
IMPORTED = r"(import|from) matplotlib|import_module\(.matplotlib"

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'flatout[plot]'")


def drawing(name: str = "mean") -> Picture:
    x = np.arange(3.0)
    return Picture([Curve(name, x, x, x, x, 3)], name, "steps", "return")


def pixels(png: bytes) -> tuple[int, int]:
    return struct.unpack(">II", png[16:24])


def test_the_settings_of_a_users_program_change_no_picture() -> None:
    import matplotlib

    usual = pixels(drawing().content(".png"))
    with matplotlib.rc_context({"savefig.dpi": 10_000_000, "text.usetex": True}):
        assert pixels(drawing().content(".png")) == usual
        assert matplotlib.rcParams["text.usetex"], "a program's settings are its own again"


def test_names_with_dollar_signs_are_shown_as_they_are() -> None:
    assert drawing(FORMULA).content(".png").startswith(b"\x89PNG")


def test_names_that_the_font_lacks_are_no_warning() -> None:
    assert drawing("日本").content(".png").startswith(b"\x89PNG")


def test_what_matplotlib_raises_is_one_sentence() -> None:
    words = r"matplotlib cannot draw this \(ValueError: .*\)\.$"
    with pytest.raises(FlatoutError, match=words), figure(1.0, 1.0) as drawn:
        drawn.savefig(io.BytesIO(), format="none")


def test_one_module_imports_matplotlib() -> None:
    root = Path(flatout.__file__).parent
    files = [path for path in root.rglob("*.py") if re.search(IMPORTED, path.read_text())]
    assert [path.relative_to(root).as_posix() for path in files] == ["reports/figure.py"]


@pytest.mark.slow
def test_a_command_reads_no_settings_of_the_working_folder(tmp_path: Path) -> None:
    """A stranger's file, on which matplotlib's own import fails."""
    (tmp_path / "matplotlibrc").write_bytes(b"\xff\xfe\n")
    folder(tmp_path / "runs" / "one", [1.0, 2.0, 3.0])
    command = [sys.executable, "-P", "-m", "flatout", "report", "runs", "--out", "r.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_drawn_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The members are trained and saved; what remains of their run must not fail it."""
    folder(tmp_path / "one", [1.0, 2.0, 3.0])
    whole = Picture.content

    def content(self: Any, suffix: str) -> bytes:
        if suffix == ".png":
            raise FlatoutError("matplotlib cannot draw this (ValueError: too large).")
        return whole(self, suffix)

    monkeypatch.setattr(Picture, "content", content)
    population._draw(tmp_path / "one", Console(file=io.StringIO()))
    assert "curves.png is left out: matplotlib cannot draw" in capsys.readouterr().err
    assert (tmp_path / "one" / "curves.svg").exists()
