"""Write constraints.txt: the versions of all packages with which the tests have passed, for CI.

    make constraints

They are those of the environment of the running Python: of what Flatout, its tests and its
documentation need, directly or not. Each line holds for this version of Python alone, so that pip
ignores the file elsewhere.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from dev_requirements import requirements
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
OTHERS = ("flatout", "flatout-explain", "setuptools")
"""This repository's own packages, and one that `python -m venv` brings and builds do not use."""


def versions(lines: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each required package, and of those that it requires."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(line, "") for line in lines]
    while waiting:
        line, asked = waiting.pop()
        required = Requirement(line)
        if required.marker is not None and not required.marker.evaluate({"extra": asked}):
            continue
        name = canonicalize_name(required.name)
        for extra in ("", *required.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            installed = distribution(name)
            if name not in OTHERS:
                found[name] = installed.version
            waiting += [(line, extra) for line in installed.requires or ()]
    return found


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = versions([*project["dependencies"], *requirements("dev"), *requirements("docs")])
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    lines = [
        f"# Written by `make constraints`. CI installs these versions with Python {python}.",
        *(f'{name}=={found[name]} ; python_version == "{python}"' for name in sorted(found)),
    ]
    (ROOT / "constraints.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
