"""The commands in messages that install a missing package fit how this Flatout is installed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools.dev_requirements import requirements

import flatout
import flatout_explain
from flatout import installing
from flatout.installing import install
from flatout_explain import installing as tool

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OF_TOOL = tomllib.loads((ROOT / "explain" / "pyproject.toml").read_text())["project"]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make Flatout look as if it were installed from a wheel. Return its folder."""
    there = tmp_path / "lib" / "python3" / "site-packages" / "flatout"
    monkeypatch.setattr(installing, "__file__", str(there / "installing.py"))
    return there


def test_a_checkout_installs_its_own_extra() -> None:
    words = shlex.split(install("plot"))
    assert words[-5:] == ["install", "-e", f"{ROOT}/explain", "-e", f"{ROOT}[plot]"]


def test_the_tools_checkout_installs_its_own_extra() -> None:
    assert shlex.split(tool.install("traces"))[-2:] == ["-e", f"{ROOT}/explain[traces]"]


def test_flatout_needs_the_tool_of_the_same_version() -> None:
    assert flatout.__version__ == flatout_explain.__version__
    assert f"flatout-explain=={flatout_explain.__version__}" in PROJECT["dependencies"]


@pytest.mark.parametrize("text", ["", "[project]\nname = 'mine'", "no TOML", "project = 3"])
def test_a_project_that_holds_a_copy_is_no_checkout(elsewhere: Path, text: str) -> None:
    """`pip install --target` may install Flatout into a folder of another project."""
    folder = elsewhere.parents[1]
    folder.mkdir(parents=True)
    if text:
        (folder / "pyproject.toml").write_text(text)
    assert installing.checkout() is None


@pytest.mark.usefixtures("elsewhere")
def test_an_installed_flatout_installs_the_requirements_of_an_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [
        "jax>=0.10", 'matplotlib>=3.9; extra == "plot"', "pillow>=11; extra == 'video'",
        'pygame>=2.6; extra == "video"',
        'jax-envelope>=0.6; python_version >= "3.12" and extra == "envelope"',
    ]  # fmt: skip
    monkeypatch.setattr(tool, "requires", lambda name: lines)
    named = {extra: shlex.split(install(extra)) for extra in ("plot", "video", "envelope")}
    assert named["plot"][-2:] == ["install", "matplotlib>=3.9"]
    assert named["video"][-3:] == ["install", "pillow>=11", "pygame>=2.6"]
    assert named["envelope"][-1] == "jax-envelope>=0.6"

    def unknown(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(tool, "requires", unknown)
    assert "the extra 'plot' of Flatout's pyproject.toml" in install("plot")


@pytest.mark.parametrize(
    ("on_path", "has_pip", "begins"),
    [
        (str(Path(sys.executable).parent / "pip"), True, ["pip", "install"]),
        ("/usr/bin/pip", True, [sys.executable, "-m", "pip", "install"]),
        (None, True, [sys.executable, "-m", "pip", "install"]),
        (None, False, ["uv", "pip", "install", "--python", sys.executable]),
    ],
)
def test_packages_are_installed_into_the_running_python(
    on_path: str | None, has_pip: bool, begins: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool.shutil, "which", lambda name: on_path)
    monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: has_pip or None)
    assert shlex.split(install("plot"))[: len(begins)] == begins


def test_windows_quotes_with_double_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool.os, "name", "nt")
    assert tool._quoted(r"C:\my\flatout") == r"C:\my\flatout"
    assert tool._quoted("matplotlib>=3.9") == '"matplotlib>=3.9"'


def test_no_text_names_an_unknown_extra_or_installs_flatout_from_an_index() -> None:
    """Every extra that the code names exists, and no text says `pip install flatout`."""
    sources = list((ROOT / "src").rglob("*.py")), list((ROOT / "explain" / "src").rglob("*.py"))
    for files, extras in zip(sources, (EXTRAS, OF_TOOL["optional-dependencies"]), strict=True):
        code = "".join(path.read_text() for path in files)
        asked = set(re.findall(r"\binstall\(['\"](\w+)['\"]\)", code))
        assert asked
        assert asked <= set(extras)
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "explain" / "README.md"]
    texts = [*pages, *sources[0], *sources[1]]
    wrong = re.compile(r"pip install (-\S+ )*['\"]?flatout\b(?!/)")
    assert [path.name for path in texts if wrong.search(path.read_text())] == []


def test_ci_installs_versions_that_the_project_allows() -> None:
    lines = [
        line.partition(" ; ") for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]
    ]
    pins = dict(pin.split("==") for pin, _, _ in lines)
    assert {marker for _, _, marker in lines} == {'python_version == "3.11"'}
    groups = [requirements(group) for group in ("dev", "docs")]
    for line in (*PROJECT["dependencies"], *OF_TOOL["dependencies"], *groups[0], *groups[1]):
        required = Requirement(line)
        name = canonicalize_name(required.name)
        if name != "flatout-explain":
            assert name in pins, f"constraints.txt has no {name}: run make constraints"
            assert required.specifier.contains(pins[name]), f"{line}: run make constraints"


@pytest.mark.slow
def test_wheel_and_source_archive_work_in_a_fresh_environment() -> None:
    """This test uses the running Python; `make smoke PYTHON=...` tries others."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "smoke.py"], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["passed"] * 4
