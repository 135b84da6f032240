"""Puts what explain recorded of ordinary programs into the tests, without this machine's paths.

    python benchmarks/explain/run_ordinary.py ...  # records, in benchmarks/results/explain_ordinary
    python tools/record_evidence.py                # writes tests/explain/evidence

`make test` judges these files (`tests/explain/test_ordinary.py`).
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
RECORDED = REPO / "benchmarks" / "results" / "explain_ordinary"
EVIDENCE = REPO / "tests" / "explain" / "evidence"

WINDOWS = 12  # windows of counted calls that are kept of each process

PATHS = (
    (r'(?<=")[^"]*/torchinductor_[^/"]*', "/home/me/torchinductor_me"),
    (re.escape(str(REPO)), "/home/me/flatout"),
    (r'(?<=")/[^"]*?(?=/lib/python3\.\d+/site-packages/)', "/home/me/venv"),
    (r'(?<=")/[^"]*?(?=/lib/python3\.\d+(/|"))', "/usr"),
    (r'(?<=")/[^"]*/bin/python[\d.]*(?=")', "/home/me/venv/bin/python"),
)
"""Patterns of paths, and what replaces them."""


def portable(text: str) -> str:
    """Recorded evidence without this machine's paths, and with few windows."""
    for pattern, replacement in PATHS:
        text = re.sub(pattern, replacement, text)
    values = json.loads(text)
    for rows in values["processes"]:
        windows = [row for row in rows if row["k"] == "window"]
        step = max(len(windows) // WINDOWS, 1)
        kept = {id(row) for row in windows[::step][:WINDOWS]}
        rows[:] = [row for row in rows if row["k"] != "window" or id(row) in kept]
    return json.dumps(values, separators=(",", ":"))


def main() -> None:
    """Write one compressed file for each recording."""
    EVIDENCE.mkdir(exist_ok=True)
    found = sorted(RECORDED.glob("*.saved.json"))
    if not found:
        sys.exit(f"nothing is recorded in {RECORDED}: run benchmarks/explain/run_ordinary.py")
    for path in found:
        target = EVIDENCE / path.name.replace(".saved.json", ".json.gz")
        data = gzip.compress(portable(path.read_text()).encode(), mtime=0)
        target.write_bytes(data)
        print(f"{target.relative_to(REPO)}: {len(data) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
