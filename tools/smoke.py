"""Does what is built install and work in a fresh environment, away from this checkout?

    python tools/smoke.py                       # with this Python
    python tools/smoke.py --python python3.13   # with another one (make smoke PYTHON=python3.13)

Builds the source archives of Flatout and of flatout-explain, and the wheels from them. Installs the
wheel of flatout-explain alone into a new virtual environment in a temporary folder, and explains a
program. Installs both wheels, in one command; trains, predicts, explains and exports in an empty
folder with an empty home; installs what a message there says; and checks that the source archives
install the same files. Needs a package index. Everything is removed afterwards.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = {"flatout": ROOT, "flatout_explain": ROOT / "explain"}
"""The folder of each package."""
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "src")
"""What the archives need; a build must not find this checkout's other files, nor write into it."""

AGENT = """
import sys
import flatout
assert "PPO" in dir(flatout) and "jax" not in sys.modules
from flatout import PPO
import numpy as np
agent = PPO("CartPole-v1", seed=1, envs=4, n_steps=64, batch_size=64).learn(512)
action, _ = agent.predict(np.zeros(4, np.float32), deterministic=True)
agent.save("agent.safetensors")
agent = PPO.load("agent.safetensors")
assert agent.predict(np.zeros(4, np.float32), deterministic=True)[0] == action
print(flatout.__file__)
"""
EXPORTED = """
import sys, numpy as np, policy
assert not {"flatout", "jax"} & set(sys.modules)
print(policy.predict(np.zeros(4, np.float32), deterministic=True)[0])
"""
PROGRAM = """
import time
end, n = time.monotonic() + 60, 0
while time.monotonic() < end:
    n += sum(range(2000))
"""


class SmokeError(Exception):
    """A step failed."""


class Place:
    """An empty folder, an empty home, and a Python of its own there."""

    def __init__(self, folder: Path, python: str) -> None:
        self.work = folder / "empty"
        (folder / "home").mkdir()
        gone = ("PYTHON", "XDG_", "JAX_", "XLA_", "VIRTUAL_ENV")
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith(gone)}
        self.variables |= {"HOME": str(folder / "home"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        self.variables["PIP_NO_COMPILE"] = "1"  # most modules of the packages are never imported
        if cache := _pip_cache(python):
            self.variables["PIP_CACHE_DIR"] = cache  # the packages are downloaded once
        run([python, "-m", "venv", str(folder / "venv")], self.variables, folder)
        self.python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"

    def fresh(self) -> None:
        """Empty the folder."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()

    def run(self, *words: str | Path, code: int = 0) -> str:
        """What a command of the environment prints on both streams."""
        command = [str(self.python.parent / words[0]), *map(str, words[1:])]
        return run(command, self.variables, self.work, code)


def run(command: list[str], variables: dict[str, str], folder: Path, code: int = 0) -> str:
    """What a command prints; `SmokeError` if it exits with another code."""
    done = subprocess.run(
        command, cwd=folder, env=variables, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
    )  # fmt: skip
    if done.returncode != code:
        raise SmokeError(f"{' '.join(command)}\nexited with {done.returncode}:\n{done.stdout}")
    return done.stdout


def expect(text: str, part: str) -> None:
    """`SmokeError` unless a text has this part."""
    if part not in text:
        raise SmokeError(f"{part!r} is not in: {text[:2000]}")


def _pip_cache(python: str) -> str:
    done = subprocess.run([python, "-m", "pip", "cache", "dir"], capture_output=True, text=True)
    return done.stdout.strip()


def build(
    place: Place, folder: Path, projects: Mapping[str, Path] = PROJECTS
) -> tuple[list[Path], list[Path]]:
    """The source archives, and the wheels that are made from them; flatout-explain comes last."""
    place.run("python", "-m", "pip", "install", "--quiet", "build")
    built = [
        build_one(place, package, root, folder / package) for package, root in projects.items()
    ]
    place.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", "build", "pyproject_hooks")
    archives, wheels = zip(*built, strict=True)
    return list(archives), list(wheels)


def build_one(place: Place, package: str, root: Path, folder: Path) -> tuple[Path, Path]:
    """A package's source archive, and the wheel that is made from it."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in BUILT_FROM:
        if (root / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(root / name, source / name, ignore=ignored)
        else:
            shutil.copy(root / name, source)
    place.run("python", "-m", "build", "--outdir", folder / "dist", source)
    (archive,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    there = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(f"{package}/")}
    ours = {path.relative_to(source / "src").as_posix() for path in (source / "src").rglob("*.*")
            if path.is_file() and "egg-info" not in str(path)}  # fmt: skip
    if ours != there:
        raise SmokeError(f"the wheel lacks {sorted(ours - there)}, has {sorted(there - ours)}")
    return archive, wheel


def check_tool(place: Place) -> None:
    """Use flatout-explain, without Flatout, NumPy and JAX."""
    place.fresh()
    (place.work / "program.py").write_text(PROGRAM)
    there = place.run("python", "-m", "pip", "list", "--format", "freeze").lower()
    if found := {"flatout==", "jax==", "numpy=="} & {f"{line.partition('==')[0]}==" for line in
                                                    there.split()}:  # fmt: skip
        raise SmokeError(f"flatout-explain installs {sorted(found)}")
    words = ("--seconds", "2", "--stop", "--html", "program.html", "--", place.python, "program.py")
    expect(place.run("flatout-explain", *words, code=143), "VERDICT")
    expect((place.work / "program.html").read_text(), "program.py:")  # the probe was there
    (place.work / "trace.json").write_text('{"traceEvents": []}')
    expect(place.run("flatout-explain", "trace.json", code=2), "needs NumPy")


def check(place: Place) -> None:
    """Use what is installed as a new user does."""
    place.fresh()
    for name, text in (("agent", AGENT), ("exported", EXPORTED), ("program", PROGRAM)):
        (place.work / f"{name}.py").write_text(text)
    expect(place.run("flatout", "--help"), "usage: flatout")
    found = place.run("python", "-W", "error::DeprecationWarning:flatout", "agent.py")
    expect(found, str(place.python.parent.parent))  # and not this checkout
    place.run("flatout", "train", "ppo", "--preset", "cartpole-ppo", "--steps", "1024",
              "--run-dir", "run", "--quiet")  # fmt: skip
    place.run("flatout", "train", "ppo", "--env", "CartPole-v1", "--envs", "4", "--steps", "512",
              "--n-steps", "64", "--placement", "sampler=processes workers=2x2",
              "--run-dir", "processes", "--quiet")  # fmt: skip
    place.run("flatout", "train", "classify", "--steps", "20", "--run-dir", "digits", "--quiet")
    expect(place.run("flatout", "eval", "run", "--episodes", "2"), "return")
    expect(place.run("flatout", "runs", "."), "CartPole-v1")
    expect(place.run("flatout", "explain", "run", "--html", "run.html"), "VERDICT")
    words = ("--seconds", "2", "--stop", "--html", "program.html", "--", place.python, "program.py")
    expect(place.run("flatout", "explain", *words, code=143), "VERDICT")
    expect((place.work / "program.html").read_text(), "program.py:")  # the probe was there
    place.run("flatout", "export", "run", "--out", "policy.py")
    place.run("python", "exported.py")


def installed(place: Place) -> dict[str, str]:
    """The packages' files and their SHA-256."""
    found = dict[str, str]()
    for package in PROJECTS:
        said = place.run("python", "-c", f"import {package}; print({package}.__file__)")
        root = Path(said.strip()).parent
        found |= {
            f"{package}/{path.relative_to(root).as_posix()}":
            hashlib.sha256(path.read_bytes()).hexdigest()
            for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts
        }  # fmt: skip
    return found


def obey(place: Place) -> None:
    """A message says what to install; a user who does that gets on."""
    plot = ("flatout", "report", "--curves", "run", "--out", "curve.png")
    said = place.run(*plot, code=2)
    hint = re.search(r"needs a package: (.+?); or ", said)
    if hint is None or "flatout" in hint[1].rpartition(" install ")[2]:
        raise SmokeError(f"no hint that works here: {said}")
    subprocess.run(hint[1] + " -q", shell=True, env=place.variables, cwd=place.work, check=True)
    place.run(*plot)


def try_out(
    python: str, projects: Mapping[str, Path] = PROJECTS,
    built: tuple[Sequence[Path], Sequence[Path]] | None = None,
) -> None:  # fmt: skip
    """Install and use the distributions with a Python, and print what passed.

    Args:
        projects: what they are built from.
        built: source archives and wheels, as `build` returns them; None builds them.

    Raises:
        SmokeError, SubprocessError: a step failed.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flatout-smoke-") as name:
        folder = Path(name).resolve()
        place = Place(folder, shutil.which(python) or python)
        place.fresh()
        archives, wheels = built or build(place, folder, projects)
        place.run("python", "-m", "pip", "install", "--quiet", wheels[-1])
        check_tool(place)
        print(f"passed: {wheels[-1].name}, after {time.monotonic() - began:.0f} s", flush=True)
        place.run("python", "-m", "pip", "install", "--quiet", *wheels)
        check(place)
        place.run("python", "-m", "pip", "check")
        print(f"passed: {wheels[0].name}, after {time.monotonic() - began:.0f} s", flush=True)
        of_wheel = installed(place)
        flags = ("--no-deps", "--force-reinstall")
        place.run("python", "-m", "pip", "install", "--quiet", *flags, *archives)
        if installed(place) != of_wheel:
            raise SmokeError("the source archives install other files than the wheels")
        place.run("flatout", "--help")
        place.run("python", "-m", "pip", "check")
        print(f"passed: {archives[0].name}, after {time.monotonic() - began:.0f} s", flush=True)
        obey(place)
        versions = place.run("python", "-c", "import sys, jax, numpy, gymnasium as g; print(\
            'Python', sys.version.split()[0], 'jax', jax.__version__, 'numpy',\
            numpy.__version__, 'gymnasium', g.__version__)")  # fmt: skip
        print("passed:", " ".join(versions.split()), flush=True)


def main() -> None:
    """Build, install, use."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="the Python to try it with")
    try:
        try_out(parser.parse_args().python)
    except (SmokeError, subprocess.SubprocessError) as error:
        sys.exit(f"smoke: {error}")


if __name__ == "__main__":
    main()
