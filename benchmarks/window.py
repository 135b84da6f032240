"""The part of a run in which it learns, counted the same way on every side.

Replay algorithms fill their memory with random actions before they learn, and compile (where they
compile) around their first updates. So rates are taken over a *window*: from a step at which
learning has begun to the end of training. Flatout's window is read from the rows of its
``metrics.jsonl``; the peers' programs note theirs themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from harness import BenchmarkError, Command, Row

PHASE = "phase/"


def windowed(start: int) -> Callable[[Command, Row], Row]:
    """Adds Flatout's `window` from its rows of metrics: the first at or after `start`, the last.

    Steps, updates and seconds are differences of the two rows; ``phases`` are shares of the
    window's own time by span.
    """

    def finish(train: Command, result: Row) -> Row:
        begin, end = rows_around(train, start)
        seconds = end["time/wall_s"] - begin["time/wall_s"]
        phases = {
            name.removeprefix(PHASE): (
                share * end["time/wall_s"] - begin[name] * begin["time/wall_s"]
            ) / max(seconds, 1e-9)
            for name, share in end.items() if name.startswith(PHASE)
        }  # fmt: skip
        window = {
            "steps": end["step"] - begin["step"],
            "updates": end["train/updates"] - begin["train/updates"],
            "s": seconds, "phases": phases,
        }  # fmt: skip
        return result | {"window": window}

    return finish


def rows_around(train: Command, start: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first row of a run's metrics at or after step `start`, and the last row.

    Raises:
        BenchmarkError: the run has no two such rows.
    """
    assert train.run_dir is not None
    text = (train.run_dir / "metrics.jsonl").read_text()
    rows = [row for row in map(json.loads, text.splitlines()) if row["step"] >= start]
    if len(rows) < 2:
        raise BenchmarkError(f"{train.run_dir.name}: no two rows of metrics from step {start} on.")
    return rows[0], rows[-1]


def rates(rows: Sequence[Row]) -> list[float]:
    """Steps per second of each run's window."""
    return [row["result"]["window"]["steps"] / row["result"]["window"]["s"] for row in rows]
