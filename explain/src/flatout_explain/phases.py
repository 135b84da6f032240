"""Phases: kinds of work in which reports divide a program's time."""

from __future__ import annotations

PHASES: dict[str, str] = {
    "env": "environment steps, resets and observations",
    "act": "choosing actions",
    "replay": "choosing and gathering batches from stored experience",
    "input": "loading and augmenting a data set",
    "learn": "learning",
    "launch": "launching a device's operations",
    "fused": "acting, stepping and learning in one program",
    "transfer": "copies and syncs between host and device",
    "communicate": "averaging across devices",
    "publish": "publishing parameters",
    "ipc": "moving data between processes",
    "io": "checkpoints, logs, rendering",
    "eval": "evaluation episodes",
    "compile": "tracing and compiling again",
    "wait": "waiting, nothing to do",
    "other": "everything else",
}
"""Phases and their descriptions, in the order of reports."""

MARKABLE = tuple(each for each in PHASES if each not in ("launch", "fused", "publish"))
"""Phases that a program can give to its own code. The others are parts of Flatout's own runs."""


def no_phase(name: object) -> str:
    """The sentence for a name that is no phase which a program can mark."""
    return f"{name!r} is no phase: a phase is one of {', '.join(MARKABLE)}."
