"""Print what the tests cost: the dearest files and tests, and the totals.

    python -m pytest --costs costs.jsonl     # record
    python tools/suite_costs.py costs.jsonl

CPU seconds are those of the test's process and of the children it waited for; collecting the tests
and daemons are not among them. Programs are those that the tests' own processes compiled, not those
of their children, and none that a warm compile cache had.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any


def line(name: str, rows: list[dict[str, Any]]) -> str:
    """Return the CPU seconds, programs and number of some tests."""
    cpu, programs = (sum(row[each] for row in rows) for each in ("cpu", "programs"))
    return f"{cpu:7.1f} CPU s {programs:5,} programs {len(rows):5,} tests  {name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("costs", type=Path, help="what `pytest --costs` wrote")
    parser.add_argument("--files", type=int, default=25, help="files to list")
    parser.add_argument("--tests", type=int, default=50, help="tests to list")
    args = parser.parse_args()
    rows = [json.loads(text) for text in args.costs.read_text().splitlines()]
    files: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        files[row["test"].partition("::")[0]].append(row)
    dearest = sorted(files, key=lambda name: -sum(row["cpu"] for row in files[name]))
    for name in dearest[: args.files]:
        print(line(name, files[name]))
    for row in sorted(rows, key=lambda row: -row["cpu"])[: args.tests]:
        print(line(row["test"], [row]))
    print(line("all", rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
