"""Print what development needs, from pyproject.toml (older pips know no dependency groups)."""

import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
extras = project["project"]["optional-dependencies"]
for requirement in project["dependency-groups"]["dev"]:
    if requirement.startswith("flatout["):
        names = requirement.partition("[")[2].rstrip("]").split(",")
        print(*(line for name in names for line in extras[name]))
    else:
        print(requirement)
