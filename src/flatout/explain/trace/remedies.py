"""Remedies for what a trace shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flatout.explain.program.remedies import (
    AVERAGE_ONCE,
    COARSER,
    COMPILING,
    EVALUATION,
    IO,
    MOVE_ONCE,
    WHILE_BUSY,
)

if TYPE_CHECKING:
    from flatout.explain.trace.facts import Found


def remedy(part: str, found: Found) -> str:
    """The remedy for a part of the time."""
    words = REMEDIES[part]
    return words if isinstance(words, str) else words(found)


def _launch(found: Found) -> str:
    profilers = " ".join(trace.profiler for trace in found.traces).lower()
    hows = [COARSER[name] for name in COARSER if name in profilers.replace("pytorch", "torch")]
    return f"Do more in each operation: {'; '.join(hows)}."


def _input(found: Found) -> str:
    names = [name for name, _ in found.lines("input")]
    if any("MultiProcessing" in name for name in names):
        return (
            "Load batches in more background processes (num_workers=), or make loading cheaper: "
            "the present ones do not keep up."
        )
    return (
        "Load batches in background processes: DataLoader(num_workers=4, persistent_workers=True, "
        "pin_memory=True), or tf.data's .map(..., num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE)."
    )


REMEDIES: dict[str, str | Callable[[Found], str]] = {
    "launch": _launch,
    "input": _input,
    "env": "Step many environments in one call, or in other processes while the device learns.",
    "io": IO.words,
    "compile": COMPILING.words,
    "transfer": MOVE_ONCE,
    "communicate": AVERAGE_ONCE,
    "host": WHILE_BUSY.format("this code"),
    "act": "Choose actions for many environments in one call, without gradients.",
    "replay": "Store steps in preallocated arrays, and gather each batch with one index operation.",
    "eval": EVALUATION.words,
    "ipc": "Pass arrays through shared memory, and several steps in each message.",
    "wait": "Do not wait for the slowest worker each time: take results as they arrive.",
}
"""By part of the time: what to change."""
