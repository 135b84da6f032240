"""Puts what explain recorded of ordinary programs into the tests, without this machine's paths.

    python benchmarks/explain/run_ordinary.py ...  # records, in benchmarks/results/explain_ordinary
    python tools/record_evidence.py                # writes tests/explain/evidence
    python tools/record_evidence.py FILE.json ...  # what `flatout explain --save` wrote of others

`make test` judges these files (`tests/explain/test_ordinary.py`); those of other programs are
smaller, and lie in a folder of their own (`tests/explain/test_kinds.py`).
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

WINDOWS, FEW = 12, 2  # windows of counted calls that are kept of each process

PATHS = (
    (r'(?<=")[^"]*/torchinductor_[^/"]*', "/home/me/torchinductor_me"),
    (r'(?<=")/[^"]*(?=/src/flatout_explain/program/inject/)', "/home/me/flatout"),
    (re.escape(str(REPO)), "/home/me/flatout"),
    (r'(?<=")/[^"]*?(?=/lib/python3\.\d+/site-packages/)', "/home/me/venv"),
    (r'(?<=")/[^"]*?(?=/lib/python3\.\d+(/|"))', "/usr"),
    (r'(?<=")/[^"]*/bin/python[\d.]*(?=")', "/home/me/venv/bin/python"),
)
"""Patterns of paths, and what replaces them."""


def portable(text: str, number: int = WINDOWS) -> str:
    """Recorded evidence without this machine's paths, and with few windows."""
    script = next(Path(word) for word in json.loads(text)["command"] if word.endswith(".py"))
    own = (re.escape(str(script.parent)), "/home/me/programs")
    for pattern, replacement in (*PATHS, own):
        text = re.sub(pattern, replacement, text)
    values = json.loads(text)
    for rows in values["processes"]:
        windows = [row for row in rows if row["k"] == "window"]
        step = max(len(windows) // number, 1)
        kept = {id(row) for row in windows[::step][:number]}
        rows[:] = [row for row in rows if row["k"] != "window" or id(row) in kept]
    return json.dumps(values, separators=(",", ":"))


def main() -> None:
    """Write one compressed file for each recording."""
    others = [Path(word) for word in sys.argv[1:]]
    found = others or sorted(RECORDED.glob("*.saved.json"))
    if not found:
        sys.exit(f"nothing is recorded in {RECORDED}: run benchmarks/explain/run_ordinary.py")
    folder = EVIDENCE / "kinds" if others else EVIDENCE
    folder.mkdir(parents=True, exist_ok=True)
    for path in found:
        target = folder / f"{path.name.split('.')[0]}.json.gz"
        text = portable(path.read_text(), FEW if others else WINDOWS)
        data = gzip.compress(text.encode(), mtime=0)
        target.write_bytes(data)
        print(f"{target.relative_to(REPO)}: {len(data) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
