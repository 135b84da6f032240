"""Which other programs hold the cores: named, the busiest first."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout_explain.hardware import others

pytestmark = pytest.mark.skipif(not Path("/bin/sh").exists(), reason="it needs a shell")

SPINS = "echo $$; while :; do :; done"


@pytest.fixture
def spinning(tmp_path: Path) -> Iterator[None]:
    """Two programs that use a core: one that this process has started, and a stranger's."""
    for name in ("spins-here", "spins-there"):
        shutil.copy("/bin/sh", tmp_path / name)
    ours = subprocess.Popen([tmp_path / "spins-here", "-c", SPINS], stdout=subprocess.PIPE)
    between = f"{tmp_path / 'spins-there'} -c '{SPINS}' &"  # whose parent ends at once
    theirs = subprocess.Popen(["/bin/sh", "-c", between], stdout=subprocess.PIPE)
    assert ours.stdout is not None
    assert theirs.stdout is not None
    numbers = [int(pipe.readline()) for pipe in (ours.stdout, theirs.stdout)]  # they have begun
    theirs.wait()
    yield
    for number in numbers:
        os.kill(number, signal.SIGKILL)
    ours.wait()
    for pipe in (ours.stdout, theirs.stdout):
        pipe.close()


@pytest.mark.usefixtures("spinning")
def test_the_programs_of_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CROWDED", 0.0), ("NAMED", 1000), ("LEAST", 0.001)):
        monkeypatch.setattr(others, name, value)  # also where other tests use the cores
    looks = (others.busiest_others(0.2) for _ in range(50))
    text = next(text for text in looks if "spins-there (" in text)  # once it got a core
    assert " % of " in text
    assert "spins-here" not in text
    monkeypatch.setattr(others, "CROWDED", 2.0)
    assert others.busiest_others(0.01) == ""


def test_a_reading_from_before_a_calm_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monitor only asks while other programs use many cores."""
    now, used = iter([100.0, 104.0, 106.0, 400.0, 404.0]), iter([0.0, 32.0, 64.0, 72.0])
    monkeypatch.setattr(others.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(others, "_used", lambda: {(1, 1.0): ("gcc", next(used))})
    found = others.Others(os.getpid())
    seen = [found.read() for _ in range(5)]
    assert seen == [{}, {"gcc": 8.0}, {"gcc": 8.0}, {}, {"gcc": 2.0}]


def test_programs_of_one_name_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {(1, 1.0): ("gcc", 5.0), (2, 1.0): ("gcc", 0.0), (3, 1.0): ("make\x1b[2J", 0.0)}
    after = {key: (name, used + 1e6) for key, (name, used) in before.items()}
    after[4, 9.0] = "new", 5e6  # it began meanwhile
    looks = [before, after]
    monkeypatch.setattr(others, "_used", lambda: looks.pop(0))
    words = others.busiest_others(0.0).split("), ")
    assert [word.partition(" (")[0] for word in words] == ["new", "gcc", "make\ufffd[2J"]
    assert all("(100 %" in word for word in words)
