"""Which code of the user's a named module runs, and where its modules and others' are found."""

from __future__ import annotations

import importlib
import site
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from flatout.config.modules import import_function
from flatout.config.own_code import own_code

SOURCES = {
    "env.py": "import numpy, wrappers.frames\nfrom shared import *\n",
    "shared.py": "import env  # in a circle\n\n\ndef f():\n    from wrappers import colours\n",
    "wrappers/__init__.py": "",
    "wrappers/frames.py": "from . import stacks\nfrom ..wrappers.sizes import SIZE, missing\n",
    "wrappers/stacks.py": "try:\n    pass\nexcept OSError:\n    import caught\n",
    "wrappers/sizes.py": "match 1:\n    case 1:\n        import plain.inner.leaf\n",
    "wrappers/colours.py": "import broken, gone\n",
    "wrappers/unused.py": "",
    "caught.py": "",
    "plain/inner/leaf.py": "import unsaid as said",  # in folders that are no packages
    "unsaid.py": "import os.path, sys, time",
    "broken.py": "import other; def",
    "other.py": "",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder `here`, next to one of installed modules that is in `sys.path`."""
    for name in ("here", "installed"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "installed")])
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path / "installed")])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_threads_may_search_at_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members of a population failed with a KeyError: two threads removed one entry of a cache."""
    both = threading.Barrier(2)

    class Slow:
        """Python's cache of a folder. Two threads meet in it, if they come at once."""

        def invalidate_caches(self) -> None:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.1)

    cache = {str(here): Slow(), str(here / "missing.zip"): None}
    monkeypatch.setattr(sys, "path_importer_cache", cache)
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(lambda: dict(own_code((), [str(here)]))) for _ in range(2)]
        assert [one.result() for one in found] == [{}, {}]


def test_own_code_is_all_that_its_source_imports(here: Path) -> None:
    for name, source in SOURCES.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(source)
    found = dict(own_code(["env"], [str(here), *sys.path]))
    assert set(found.values()) == {
        str(here / name) for name in SOURCES if name not in ("wrappers/unused.py", "other.py")
    }
    assert found["plain.inner.leaf"] == str(here / "plain/inner/leaf.py")
    assert not {"env", "shared", "wrappers", "plain"} & set(sys.modules)
    assert dict(own_code((), [str(here)], ["wrappers.unused"])) == {
        "wrappers": str(here / "wrappers/__init__.py"),
        "wrappers.unused": str(here / "wrappers/unused.py"),
    }


def test_code_that_was_not_asked_for_is_not_read(here: Path) -> None:
    """The caller has not compared the first file yet: it may be a stranger's, and huge."""
    (here / "env.py").write_text("import second")
    (here / "second.py").write_text("")
    names = own_code(["env"], [str(here)])
    assert next(names)[0] == "env"
    (here / "env.py").write_text("")
    assert list(names) == []


def test_a_library_finds_its_own_modules_and_the_user_the_users(here: Path) -> None:
    """Both the user's code and a library import, later, what the other has a file for too."""
    installed = here.parent / "installed"
    (here / "my_env.py").write_text(
        "import a_library\n\n\ndef make():\n    import my_tools\n    return my_tools.__file__\n"
    )
    (installed / "a_library.py").write_text(
        "import a_part\n\n\ndef part():\n    return a_part\n\n\n"
        "def later():\n    import another_part\n    return another_part.__file__\n"
    )
    for folder in (here, installed):
        for name in ("a_part", "another_part", "my_tools"):
            (folder / f"{name}.py").write_text("")
    assert import_function("my_env:make", "--env my_env:make")() == str(here / "my_tools.py")
    library = importlib.import_module("a_library")
    assert library.part().__file__ == str(installed / "a_part.py"), "imported with the user's"
    assert library.later() == str(installed / "another_part.py")


def test_the_module_that_is_named_is_the_users(here: Path) -> None:
    for folder in (here, here.parent / "installed"):
        (folder / "my_env.py").write_text("def make():\n    return __file__\n")
    assert import_function("my_env:make", "--env my_env:make")() == str(here / "my_env.py")
