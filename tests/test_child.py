"""Child processes find the same modules as their parent, and start without a stranger's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import flatout as package
import flatout_explain
from flatout import FlatoutError, child
from flatout.storage.trust import import_here
from tests.cli.test_bad_input import Cli
from tests.conftest import TINY
from tests.runs_made import sweep_file

MARK = "import os; open({!r}, 'w').close()\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with files that Python would import at its start.

    Each of them makes the file `ran` when it is imported.
    """
    for name in ("sitecustomize", "usercustomize", "numpy"):
        (tmp_path / f"{name}.py").write_text(MARK.format(str(tmp_path / "ran")))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_child_has_this_process_path_and_runs_nothing_from_it_at_its_start(here: Path) -> None:
    os.unlink(here / "numpy.py")  # the parent would import it, too
    root = str(Path(__file__).parent.parent)
    sys.path[:0] = ["", "/somewhere", root]
    path, arguments = json.loads(child.run("a child", "tests.child_functions:show", "a b", "c"))
    assert path == [entry or str(here) for entry in sys.path]
    assert arguments == ["a b", "c"]
    assert not (here / "ran").exists()


def test_the_error_of_a_child_that_fails_is_one_sentence() -> None:
    with pytest.raises(FlatoutError, match=r"^the child failed: the reason$"):
        child.run("the child", "tests.child_functions:fail")


def test_no_other_module_starts_a_python_that_imports_flatout() -> None:
    starts = {
        path.relative_to(sources.parent).as_posix()
        for sources in (Path(one.__file__).parent for one in (package, flatout_explain))
        for path in sources.rglob("*.py")
        if "sys.executable, " in path.read_text()
    }
    # The others start pip, and a loop without any import: `-I -S`.
    others = {"flatout_explain/installing.py", "flatout_explain/hardware/running_cores.py"}
    assert starts == {"flatout/child.py"} | others


def test_the_working_folder_is_importable_for_modules_that_are_named(here: Path) -> None:
    before = list(sys.path)
    import_here("CartPole-v1", "ppo", "flatout.envs.atari:cropped")
    assert sys.path == before
    import_here("mine:make", folder=here)  # the working folder may be a stranger's run folder
    import_here("mine:make", folder=here.parent)
    assert sys.path == before
    import_here("CartPole-v1", "mine:Algorithm", folder=here / "run")
    assert sys.path == [*before, str(here)], "last: no file there replaces a library's module"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["sweep", "workers"])
def test_a_plain_id_runs_no_file_of_the_working_folder(here: Path, command: str) -> None:
    words = {
        "sweep": ["sweep", str(sweep_file(here, "seeds = 2", steps=64)), "--run-dir", "sweep"],
        "workers": ["train", "ppo", *TINY, "--placement", "sampler=processes workers=1x2"],
    }[command]
    flatout = [str(Path(sys.executable).with_name("flatout"))]
    done = subprocess.run([*flatout, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    if command == "sweep":
        done = subprocess.run(
            [*flatout, "sweep", "--resume", "sweep"], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
    assert not (here / "ran").exists()


def test_workers_find_a_named_module_but_run_no_file_next_to_it(here: Path, flatout: Cli) -> None:
    (here / "my_pole.py").write_text(
        "import gymnasium\n\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
    )
    words = ("--env", "my_pole:make", "--placement", "sampler=processes workers=1x2")
    result = flatout("train", "ppo", *TINY, *words, "--run-dir", "run")
    assert result.code == 0, result.err
    assert not (here / "ran").exists()
