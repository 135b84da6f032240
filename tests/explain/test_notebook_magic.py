"""``%load_ext flatout``: %%explain and %explain in a shell of IPython."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("IPython", reason="IPython is in the group of packages for developers")

SCRIPT = '''
from IPython.core.interactiveshell import InteractiveShell

shown = []

class Shell(InteractiveShell):
    def init_display_pub(self):
        super().init_display_pub()
        self.display_pub.publish = lambda data, *args, **kwargs: shown.append(data)

shell = Shell.instance(colors="NoColor")
shell.run_line_magic("load_ext", "flatout")

def run(text):
    print("ran", shell.run_cell(text).success, flush=True)

run("""%%explain found
import time

class Simulation:
    def step(self, action):
        time.sleep(0.002)
        return 0, 0.0, False, False, {}

simulation, end = Simulation(), time.monotonic() + 1.2
while time.monotonic() < end:
    observation, reward, terminated, truncated, about = simulation.step(0)
last = 41 + 1
""")
print("last", shell.user_ns["last"], shell.user_ns["found"].verdict)
run("%explain last + 1")
run("%explain 1 / 0")
run("%explain")
run("%%explain 1x\\n2")
print("shown", len(shown))
print(shown[0]["text/plain"])
print(shown[0]["text/html"][:150])
'''


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text that the cells print and show."""
    folder = tmp_path_factory.mktemp("notebook")
    environment = {"IPYTHONDIR": str(folder), "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=folder, text=True, env=environment, timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_cell_is_explained_and_its_names_stay(out: str) -> None:
    assert "last 42 " in out
    shown = out[out.index("shown ") :]
    assert "VERDICT  " in shown
    assert "a cell of the notebook" in shown
    assert "simulation.step(0)" in shown or "time.sleep(0.002)" in shown
    assert '<iframe srcdoc="&lt;!doctype html&gt;' in shown.replace("DOCTYPE", "doctype")


def test_a_statement_is_explained_and_shows_its_value(out: str) -> None:
    assert "]: 43\n" in out
    assert "shown 3" in out, "the cell, the statement and the one that raises"


def test_an_error_is_the_programs_own(out: str) -> None:
    assert "ZeroDivisionError" in out
    assert "UsageError: a statement raised an exception." in out, "the cells below do not run"


def test_nothing_to_run_is_one_sentence(out: str) -> None:
    assert "UsageError: nothing follows: write %explain STATEMENT, or %%explain above" in out
    assert "UsageError: %%explain 1x: write %%explain alone, or with a variable's name." in out


def test_flatout_is_imported_without_ipython() -> None:
    code = "import flatout, sys; flatout.load_ipython_extension; print('IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
