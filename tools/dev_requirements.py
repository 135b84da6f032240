"""Print what a dependency group of pyproject.toml, by default dev, needs (older pips know none)."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
extras = project["project"]["optional-dependencies"]
for requirement in project["dependency-groups"][(sys.argv[1:] or ["dev"])[0]]:
    if requirement.startswith("flatout["):
        names = requirement.partition("[")[2].rstrip("]").split(",")
        print(*(line for name in names for line in extras[name]))
    else:
        print(requirement)
