"""What is said of compiling: what is compiled, and how long that took last time here."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flatout.config.settings import with_run
from flatout.hardware.inventory import inventory
from flatout.run import job
from flatout.run.build import foreseen
from flatout.run.job import compiling, shape_key
from flatout_explain.files import kept_numbers as kept
from tests import tiny
from tests.conftest import Result
from tests.populations.test_population import SMALL
from tests.tiny import train_config

Cli = Callable[..., Result]


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(job, "compile_cache", lambda: tmp_path / "programs")


@pytest.mark.slow
def test_the_time_of_last_time_is_said(flatout: Cli, tmp_path: Path) -> None:
    shown = [str(word) for word in (*SMALL[:-1], "--steps", 128)]
    words = ("compiling the program of the whole loop (for the first time", "s here last time)")
    for number, word in enumerate(words):
        rate = ("--learning-rate", f"{number + 1}e-4")  # which changes no program
        result = flatout("train", *shown, *rate, "--run-dir", tmp_path / f"{number}")
        assert result.code == 0
        assert word in result.out
        assert result.out.count("compiling the") == 1
    result = flatout("train", *shown, "--seeds", 2, "--run-dir", tmp_path / "p")
    assert result.out.count("compiling the") == 1, "once for all members"
    assert "s here last time)" in result.out


def test_a_file_that_is_lost_damaged_or_full_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()

    def told() -> str:
        with compiling("it", "key", said.append):
            pass
        return said[-1]

    assert "first time" in told()
    assert "last time" in told()
    file = tmp_path / "programs" / kept.NUMBERS
    for damage in ("{", "[1]", '{"key it": "x"}', '{"key it": null}', '{"key it": -1}'):
        file.write_text(damage)
        assert "first time" in told()
    monkeypatch.setattr(kept, "MOST_NUMBERS", 3)
    for number in range(5):
        kept.keep_number(f"{number}", float(number))
    assert kept.numbers() == {"2": 2.0, "3": 3.0, "4": 4.0}
    monkeypatch.setattr(job, "compile_cache", lambda: Path("/proc/nowhere"))
    assert "first time" in told()


def test_another_folder_of_programs_has_times_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    for name, expected in (("a", "first"), ("a", "last"), ("b", "first"), ("a", "last")):
        monkeypatch.setattr(job, "compile_cache", lambda name=name: tmp_path / name)
        with compiling("it", "key", said.append):
            pass
        assert f"{expected} time" in said[-1]
    shutil.rmtree(tmp_path / "a")  # and so its programs
    with compiling("it", "key", said.append):
        pass
    assert "first time" in said[-1]


def test_only_what_changes_the_program_has_another_time() -> None:
    def key(*more: str) -> str:
        config, _ = train_config(tiny.latest([*map(str, SMALL), *more]))
        config = with_run(config, run_dir=None)
        return shape_key(config, inventory(), foreseen(config)[0][0])

    assert key() == key("--gamma", "0.9", "--seed", "4", "--steps", "99")
    assert (
        len({key(), key("--hidden", "8"), key("--envs", "4"), key("--clip-range-vf", "0.2")}) == 4
    )
