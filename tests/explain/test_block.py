"""``with flatout.explaining():`` explains a part of the running program."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import flatout

SCRIPT = """
import os, signal, sys, time
import flatout

class Env:
    def reset(self, seed=None):
        return 0, {}

    def step(self, action):
        time.sleep(0.002)
        return 0, 0.0, False, False, {}

def before():
    handler, profile = signal.getsignal(signal.SIGCONT), sys.getprofile()
    return handler, profile, dict(os.environ), list(sys.path), "jax" in sys.modules

unchanged, env = before(), Env()
try:
    with flatout.explaining() as found:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            env.step(0)
        with flatout.explaining() as inner:
            pass
        raise KeyError("the program's own")
except KeyError as error:
    print("raised", error)
found.save("report.html")
found.save("report.json")
with flatout.explaining(show=False) as again:
    while sys.getprofile() is None and time.thread_time() < 20:  # until calls are counted
        sum(range(500))
print("afterwards", before() == unchanged, inner.verdict, again.diagnosis.subject)
"""


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The folder, the output and the errors of the script."""
    folder = tmp_path_factory.mktemp("block")
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=True
    )
    return folder, done.stdout, done.stderr


def test_a_block_is_explained_as_a_program_is(explained: tuple[Path, str, str]) -> None:
    folder, out, _ = explained
    report = json.loads((folder / "report.json").read_text())
    assert report["subject"] == "the block at script.py:19"
    assert max(report["phases"], key=report["phases"].get) in ("env", "wait")
    assert "VERDICT" in out
    assert "script.py:" in out
    assert "<html" in (folder / "report.html").read_text()


def test_the_program_is_afterwards_as_it_was(explained: tuple[Path, str, str]) -> None:
    _, out, err = explained
    assert 'raised "the program\'s own"' in out
    assert out.splitlines()[-1] == "afterwards True None the block at script.py:30"
    assert err == (
        "flatout: explaining() does nothing here, because this program is being explained "
        "already.\n"
    )


def test_another_thread_is_refused() -> None:
    raised: list[BaseException] = []

    def enter() -> None:
        try:
            with flatout.explaining():
                pass
        except flatout.UsageError as error:
            raised.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert str(raised[0]) == "explaining() observes the main thread: enter it there."


@pytest.mark.parametrize("name", ["report.pdf", "report"])
def test_a_report_of_another_kind_is_refused(name: str, tmp_path: Path) -> None:
    from flatout_explain.program.block import Explanation

    with pytest.raises(flatout.UsageError, match=r"a report is an \.html or a \.json file"):
        Explanation().save(tmp_path / name)
    with pytest.raises(flatout.UsageError, match="no block has been explained yet"):
        Explanation().save(tmp_path / "report.html")
