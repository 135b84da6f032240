"""flatout-explain by itself: in an environment without Flatout, JAX and NumPy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.explain.recorded import unpacked

ROOT = Path(__file__).parents[2]
NEEDED = (
    "psutil", "rich", "msgspec", "nvidia-ml-py",
    "markdown-it-py", "mdurl", "pygments",  # which rich needs
)  # fmt: skip
TESTING = (
    "numpy", "pytest", "pluggy", "iniconfig", "packaging", "pytest-timeout", "hypothesis",
    "sortedcontainers", "jsonschema", "jsonschema-specifications", "referencing", "rpds-py",
    "attrs", "typing_extensions",
)  # fmt: skip
"""Packages that the tool's own tests need."""
EVIL = 'import os\n\nos.close(os.open("{}", os.O_CREAT | os.O_WRONLY))\n'
BUSY = """
import time

end = time.monotonic() + 30
while time.monotonic() < end:
    sum(range(1000))
"""


class Alone:
    """An environment that has the tool and what it needs."""

    def __init__(self, folder: Path, *more: str) -> None:
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        paths = {"base": str(folder), "platbase": str(folder)}
        packages = Path(sysconfig.get_path("purelib", "venv", paths))
        for name in (*NEEDED, *more):
            found = distribution(name)
            for top in {file.parts[0] for file in found.files or () if ".." not in file.parts}:
                target = packages / top
                if not target.exists() and not top.startswith("__"):
                    target.symlink_to(found.locate_file(top))
        (packages / "tool.pth").write_text(f"{ROOT / 'explain' / 'src'}\n")

    def run(
        self, *words: object, cwd: Path, path: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Python in a folder."""
        given = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        given |= {} if path is None else {"PYTHONPATH": str(path)}
        return subprocess.run(
            [self.python, *map(str, words)], cwd=cwd, env=given, capture_output=True, text=True,
            timeout=500,
        )  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tmp_path_factory.mktemp("alone") / "venv")


def test_it_has_no_flatout_no_jax_and_no_numpy(alone: Alone, tmp_path: Path) -> None:
    code = (
        "import importlib.util as u, flatout_explain; "
        "print([n for n in ('flatout', 'jax', 'numpy', 'tyro') if u.find_spec(n)])"
    )
    assert alone.run("-c", code, cwd=tmp_path).stdout == "[]\n"


@pytest.mark.slow
def test_it_explains_a_program(alone: Alone, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(BUSY)
    words = ("-m", "flatout_explain", "--seconds", "1", "--stop", "--html", "r.html", "--json",
             "r.json", "--save", "e.json", "--", alone.python, "program.py")  # fmt: skip
    done = alone.run(*words, cwd=tmp_path)
    assert done.returncode == 143, done.stderr
    assert "VERDICT" in done.stderr
    assert "program.py:" in (tmp_path / "r.html").read_text()
    assert json.loads((tmp_path / "r.json").read_text())["verdict"]
    again = alone.run("-m", "flatout_explain", "e.json", cwd=tmp_path)
    assert (again.returncode, "VERDICT" in again.stderr) == (0, True), again.stderr
    changed = alone.run("-m", "flatout_explain", "--diff", "e.json", "r.json", cwd=tmp_path)
    assert changed.returncode == 0, changed.stderr


REFUSED = [
    ("trace.json", 2, "a profiler's trace needs NumPy|pip install"),
    ("--record 1 -- python x.py", 2, "--record needs NumPy|pip install"),
    ("run", 2, "run is a run of Flatout: explain it with Flatout installed."),
    ("--secnds 3 -- python x.py", 2, "flatout-explain does not know '--secnds'|'--seconds'"),
    ("--seconds x -- python x.py", 2, "--seconds: 'x' is not a number."),
    ("--seconds 3 --seconds 4 -- python x.py", 2, "--seconds is given more than once"),
    ("--stop=3 -- python x.py", 2, "--stop is a flag and takes no value such as '3'."),
    ("--json", 2, "--json needs a file: --json FILE."),
    ("--diff a.json", 2, "--diff needs two files: --diff"),
    ("--fail-if envv>5 -- python x.py", 2, "'envv' is no phase or cause. Did you mean 'env'"),
    ("--save no/p.speedscope.json -- python x.py", 2, "the folder|does not exist"),
    ("--record 1 e.json", 2, "--record is for programs|flatout-explain --record 2 -- python"),
    ("--", 2, "nothing follows --: flatout-explain -- python script.py"),
    ("e.json", 1, "is not evidence that flatout-explain --save wrote"),
    ("--diff run e.json", 2, "flatout-explain run --json FILE first"),
    ("", 2, ""),
]
"""Command lines, their exit codes and the parts of what they say."""
EACH = """
import contextlib, io, json, sys
from flatout_explain.__main__ import main

found = []
for line in sys.argv[1:]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(line.split())
    found.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(found))
"""
"""Runs several command lines in one process."""


@pytest.fixture(scope="module")
def refusals(
    alone: Alone, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, str, str]]:
    """The exit code, stdout and stderr of each command line of `REFUSED`."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "trace.json").write_text('{"traceEvents": []}')
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_text("{}")
    (folder / "e.json").write_text("{}")
    lines = [line for line, _, _ in REFUSED]
    done = alone.run("-c", EACH, *lines, cwd=folder)
    assert done.returncode == 0, done.stderr
    return dict(zip(lines, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("words", "code", "parts"), REFUSED)
def test_what_is_refused_is_one_sentence(
    refusals: dict[str, tuple[int, str, str]], words: str, code: int, parts: str
) -> None:
    found, out, err = refusals[words]
    assert found == code, err
    assert "Traceback" not in err
    assert err.count("\n") == bool(parts), err
    assert err.startswith("flatout-explain: " if parts else "")
    for part in parts.split("|"):
        assert part in err
    assert "flatout explain" not in err + out


def test_what_it_cannot_observe_is_named_with_its_own_command(alone: Alone, tmp_path: Path) -> None:
    words = ("-m", "flatout_explain", "--json", "r.json", "--html", "r.html", "--", "true")
    done = alone.run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "r.json").read_text()
    assert "No Python process of true could be observed" in report
    assert "Start Python directly: flatout-explain -- python script.py." in report
    assert "flatout explain" not in report + (tmp_path / "r.html").read_text() + done.stderr


def test_nothing_is_imported_from_the_working_folder(alone: Alone, tmp_path: Path) -> None:
    names = ("psutil", "rich", "msgspec", "pynvml", "numpy", "argparse", "json", "flatout")
    for name in names:
        (tmp_path / f"{name}.py").write_text(EVIL.format(tmp_path / "ran"))
    file = unpacked("line_server", tmp_path)
    done = alone.run("-m", "flatout_explain", file.name, "--html", "r.html", cwd=tmp_path)
    assert "VERDICT" in done.stderr, done.stderr
    assert not (tmp_path / "ran").exists()


def test_nothing_is_imported_from_the_folder_that_is_explained(
    alone: Alone, tmp_path: Path
) -> None:
    """Also where ``PYTHONPATH`` names it."""
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "msgspec.py").write_text(EVIL.format(tmp_path / "ran"))
    done = alone.run("-m", "flatout_explain", "traces", cwd=tmp_path, path=folder)
    assert done.returncode == 2, done.stderr
    assert not (tmp_path / "ran").exists()


def test_python_dash_m_of_flatout_keeps_the_working_folder_out_of_the_tool(tmp_path: Path) -> None:
    (tmp_path / "psutil.py").write_text(EVIL.format(tmp_path / "ran"))
    (tmp_path / "flatout_explain.py").write_text(EVIL.format(tmp_path / "ran"))
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "explain", "--seconds"], cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_its_tests_pass_without_flatout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this folder that need nothing of Flatout, nor JAX or `tests.kills`."""
    monkeypatch.delenv("CI", raising=False)  # some skip without Flatout, which CI would refuse
    alone = Alone(tmp_path / "venv", *TESTING)
    others = r"flatout|jax|tests\.kills|tests\.explain\.test_(program|verdicts)"
    with_flatout = re.compile(rf"^\s*(from|import) ({others})(\.| |$)", re.MULTILINE)
    files = [
        file.relative_to(ROOT) for file in sorted(Path(__file__).parent.glob("test_*.py"))
        if file != Path(__file__) and not with_flatout.search(file.read_text())
    ]  # fmt: skip
    assert len(files) > 15
    done = alone.run("-m", "pytest", "-p", "no:cacheprovider", *files, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
