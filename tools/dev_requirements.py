"""Print what a dependency group of pyproject.toml, by default dev, needs (older pips know none).

The folder explain/ comes with it, so that pip asks no package index for flatout-explain.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def requirements(group: str) -> list[str]:
    """Return a group's requirements; those of Flatout's extras in place of their names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    lines = []
    for requirement in project["dependency-groups"][group]:
        if requirement.startswith("flatout["):
            names = requirement.partition("[")[2].rstrip("]").split(",")
            lines += [line for name in names for line in extras[name]]
        else:
            lines.append(requirement)
    return lines


if __name__ == "__main__":
    print("-e", ROOT / "explain")
    print(*requirements((sys.argv[1:] or ["dev"])[0]), sep="\n")
