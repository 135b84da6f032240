"""Make a virtual environment with the frameworks that tests of `flatout explain` observe, once.

It goes to `.cache/frameworks`. The variable FLATOUT_FRAMEWORKS names a Python to use in its place.
Without a network, or where a wheel does not exist, a sentence says so and those tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "frameworks"
REQUIREMENTS = ["torch==2.13.0+cpu", "stable-baselines3==2.9.2", "numpy==2.4.6"]
"""PyTorch's wheel for CPUs: the one of PyPI for Linux has gigabytes of CUDA."""

WHEELS = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]


def python() -> Path | None:
    """The Python that has the frameworks, or None where there is none."""
    if named := os.environ.get("FLATOUT_FRAMEWORKS"):
        return Path(named)
    return FOLDER / "bin" / "python" if (FOLDER / ".complete").exists() else None


def make() -> str:
    """Make the environment; return an empty text, or why it could not be made."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    venv.create(FOLDER, with_pip=True)
    pip = [
        FOLDER / "bin" / "python",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--quiet",
        "--retries",
        "1",
    ]
    for options in ([], WHEELS):  # the first where pip is configured with a place for wheels
        done = subprocess.run(
            [*pip, "install", *options, *REQUIREMENTS], capture_output=True, text=True, check=False
        )
        if not done.returncode:
            (FOLDER / ".complete").touch()
            return ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (errors or ["pip failed"])[-1]


if __name__ == "__main__":
    if python() is None:
        print("setting up .cache/frameworks for tests with PyTorch (1 to 3 minutes, once)")
        if error := make():
            print(f"no frameworks ({error}): the tests with real frameworks will be skipped")
            sys.exit(0)
    print(f"frameworks: {python()}")
