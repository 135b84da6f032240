"""Saved evidence with impossible numbers, and what a killed `flatout explain` leaves."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout_explain.errors import FlatoutError
from flatout_explain.program.attach import working_folder
from flatout_explain.program.evidence import VERSION, from_json
from tests.conftest import Result

RECORDED = Path(__file__).parent / "evidence" / "mlp_metrics_jax.json.gz"


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 1e9), (0, -1e9), (0, "soon"), (1, -5.0), (1, 1e6), (1, True), (5, -1.0), (5, 900.0),
     (6, -1.0), (6, 1e300)],
)  # fmt: skip
def test_evidence_with_impossible_times_is_refused_in_a_sentence(
    flatout: Callable[..., Result], tmp_path: Path, place: int, value: object
) -> None:
    values = json.loads(gzip.decompress(RECORDED.read_bytes()))
    rows = (row for row in values["processes"][0] if row["k"] == "samples")
    sample = next(one for row in rows for one in row["d"] if len(one) > 6)
    sample[place] = value
    file = tmp_path / "evidence.json"
    file.write_text(json.dumps(values))
    result = flatout("explain", file)
    assert result.code == 1
    assert f"{file} is damaged evidence" in result.message


@pytest.mark.parametrize(
    "change",
    [{"others": {"x": 1e12}}, {"stolen": 1e12}, {"cpu": 1e13}, {"cpu_all": -1.0}, {"seconds": -1.0},
     {"delayed": -1.0}],
)  # fmt: skip
def test_evidence_with_an_impossible_use_of_the_machine_is_refused(change: dict[str, Any]) -> None:
    values = json.loads(gzip.decompress(RECORDED.read_bytes()))
    values["monitor"][0] |= change
    with pytest.raises(ValueError, match=r"a use of|s with"):
        from_json(values, RECORDED)


def test_uses_of_cores_that_the_program_may_not_use_are_read() -> None:
    """Other programs are counted on all CPUs of the machine, of which this one has a few."""
    values = json.loads(gzip.decompress(RECORDED.read_bytes()))
    use = {"others": {"make": 500.0}, "processes": {"7": 500.0}, "stolen": 500.0}
    values["monitor"][0] |= use
    assert from_json(values, RECORDED).monitor[0].others == {"make": 500.0}


# --- What a killed explain leaves -------------------------------------------------------------


HOLDS = """
import time
from flatout_explain.program.attach import working_folder

with working_folder() as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1, "x"])
def test_evidence_of_another_form_is_refused_in_one_sentence(version: object) -> None:
    with pytest.raises(FlatoutError) as refused:
        from_json({"flatout_evidence": version}, Path("old.json"))
    assert str(refused.value) == (
        f"old.json was recorded by another version of this tool, in format {version} instead of "
        f"{VERSION}: record the program again, or explain the file with that version."
    )


def test_what_killed_processes_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    begun = [
        subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = [Path(process.stdout.readline().strip()) for process in begun if process.stdout]
    killed, alive = folders
    elsewhere, link = tmp_path / "elsewhere", tmp_path / f"{killed.name}-link"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    link.symlink_to(elsewhere)
    begun[0].kill()
    begun[0].wait()
    try:
        with working_folder() as young:
            assert killed.is_dir(), "it might be one that is not locked yet"
        for folder in (killed, alive, elsewhere):
            os.utime(folder, (1.0, 1.0))
        with working_folder() as mine:
            assert young != mine
            assert sorted(tmp_path.iterdir()) == sorted([alive, mine, elsewhere, link])
            assert (elsewhere / "lock").exists()
    finally:
        begun[1].kill()
        for process in begun:
            process.communicate()
