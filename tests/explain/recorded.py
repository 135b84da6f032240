"""Programs as they were once recorded, for tests of what is made of their evidence."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from flatout_explain.diagnosis import Diagnosis
from flatout_explain.program.diagnose import diagnose
from flatout_explain.program.evidence import Evidence, from_json

FOLDER = Path(__file__).parent / "evidence"


def values_of(name: str) -> dict[str, Any]:
    """The content of a file of evidence."""
    return json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))


@cache
def recorded(name: str) -> Evidence:
    """The evidence of a program; not to be changed."""
    return from_json(values_of(name), FOLDER / name)


@cache
def diagnosed(name: str) -> Diagnosis:
    """The diagnosis of a program."""
    return diagnose(recorded(name))


def unpacked(name: str, folder: Path) -> Path:
    """A file of evidence, as ``--save`` writes it."""
    file = folder / f"{name}.json"
    file.write_bytes(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    return file
