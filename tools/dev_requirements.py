"""Print what a dependency group of pyproject.toml, by default dev, needs (older pips know none).

The folder explain/ comes with it, so that pip asks no package index for flatout-explain.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
project = tomllib.loads((ROOT / "pyproject.toml").read_text())
extras = project["project"]["optional-dependencies"]
print("-e", ROOT / "explain")
for requirement in project["dependency-groups"][(sys.argv[1:] or ["dev"])[0]]:
    if requirement.startswith("flatout["):
        names = requirement.partition("[")[2].rstrip("]").split(",")
        print(*(line for name in names for line in extras[name]))
    else:
        print(requirement)
