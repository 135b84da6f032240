"""The causes by their ids, which stay the same between versions, and what each one means.

A cause with a share of the time is what takes it: "choosing actions takes 41 % of the time".
"""

from __future__ import annotations

HEALTHY = "healthy"
UNKNOWN = "unknown"  # the verdict if too little was seen

CAUSES: dict[str, str] = {
    "contended": "other programs used cores that this one wanted",
    "throttled": "waiting for the next period of a CPU quota",
    "env-bound": "stepping and resetting environments and preparing observations",
    "acting-bound": "choosing actions",
    "replay-bound": "choosing and gathering batches from stored experience",
    "input-bound": "loading and augmenting the data set",
    "ipc-bound": "moving data between processes",
    "eval-bound": "evaluation between updates",
    "io-bound": "writing checkpoints, logs or pictures",
    "compile-bound": "tracing and compiling again and again",
    "waiting": "waiting while cores are idle",
    "oversubscribed": "waiting for a core while more threads want to run than there are cores",
    "garbage-bound": "Python's garbage collector",
    "allocation-bound": "giving memory back to the system and fetching it again",
    "swapping": "reading back memory that was swapped out",
    "launch-bound": "starting the many small operations of learning",
    "host-bound": "the program's own code outside of environments and learning",
    "transfer-bound": "copying between host and device and waiting for single results",
    "communication-bound": "averaging gradients across devices",
    "compute-bound": "the arithmetic of learning",
    "gpu-unused": "a GPU is available, but the program never computes on it",
    "devices-reserved": "the program holds memory on GPUs that do not compute",
    "memory-contended": "a GPU's memory is full, or almost full and shared with other programs",
    "memory-full": "the host's memory is full, or will be at this rate",
}
"""First the machine, then phases, then the mechanisms of learning, then devices."""

DEVICES = ("gpu-unused", "devices-reserved", "memory-contended", "memory-full")
"""Findings about devices and full memory, whose shares of the time cannot be compared."""

OVERLAPPING = ("oversubscribed", "throttled", "garbage-bound", "allocation-bound", "swapping")
"""Causes whose time is also counted in the phases that they lengthen."""

CAUSE_OF = {
    "env": "env-bound", "act": "acting-bound", "replay": "replay-bound", "input": "input-bound",
    "ipc": "ipc-bound", "eval": "eval-bound", "io": "io-bound", "compile": "compile-bound",
    "wait": "waiting",
}  # fmt: skip
"""The cause by phase. Learning has none: its mechanisms have."""

CAUSE_OF_LOSS = CAUSE_OF | {
    "transfer": "transfer-bound", "communicate": "communication-bound", "learn": "launch-bound",
    "launch": "launch-bound", "compute": "compute-bound", "other": "host-bound",
}  # fmt: skip
"""The cause by phase, by mechanism of learning, and by part of a device's idle time."""
