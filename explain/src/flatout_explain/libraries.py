"""The libraries that are a training program's tools; other packages are libraries of algorithms.

The table is a file, because the probe reads it, too, in Pythons that cannot import Flatout.
"""

from __future__ import annotations

import json
from pathlib import Path

TABLE: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "program" / "inject" / "libraries.json").read_text()
)
"""Names of packages by what they are: frameworks that make arrays and learn, libraries on top of
these, arrays alone, environments, and other tools."""

LIBRARIES = frozenset(name for names in TABLE.values() for name in names)

ENVIRONMENTS = frozenset(TABLE["environments"])
