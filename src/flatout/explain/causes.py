"""The causes by their ids, which stay the same between versions, with a sentence about each."""

from __future__ import annotations

HEALTHY = "healthy"
UNKNOWN = "unknown"  # the verdict if too little was seen

CAUSES: dict[str, str] = {
    "contended": "other programs had the cores that this one wanted",
    "env-bound": "stepping and resetting environments and preparing observations take the time",
    "acting-bound": "choosing actions takes the time, in many small calls of the network",
    "replay-bound": "choosing and gathering batches from stored experience takes the time",
    "input-bound": "loading and augmenting the data set takes the time",
    "ipc-bound": "moving data between processes takes the time",
    "eval-bound": "evaluation between updates takes the time",
    "io-bound": "writing checkpoints, logs or pictures takes the time",
    "compile-bound": "the program traces and compiles again and again",
    "waiting": "waiting takes the time, while cores are idle",
    "oversubscribed": "more threads want to run than there are cores",
    "launch-bound": "starting the many small operations of learning takes the time",
    "host-bound": "the program's own code, outside of environments and learning, takes the time",
    "transfer-bound": "copies between host and device and waits for single results take the time",
    "communication-bound": "averaging gradients across devices takes the time",
    "compute-bound": "the arithmetic of learning takes the time",
    "gpu-unused": "a GPU is available, and the program never computes on it",
    "devices-reserved": "the program holds memory on GPUs that do not compute",
    "memory-contended": "a GPU's memory is full, or almost full and shared with other programs",
}
"""First the machine, then phases, then the mechanisms of learning, then devices."""

DEVICES = ("gpu-unused", "devices-reserved", "memory-contended")

CAUSE_OF = {
    "env": "env-bound", "act": "acting-bound", "replay": "replay-bound", "input": "input-bound",
    "ipc": "ipc-bound", "eval": "eval-bound", "io": "io-bound", "compile": "compile-bound",
    "wait": "waiting",
}  # fmt: skip
"""The cause by phase. Learning has none: its mechanisms have."""

CAUSE_OF_LOSS = CAUSE_OF | {
    "transfer": "transfer-bound", "communicate": "communication-bound", "learn": "launch-bound",
    "launch": "launch-bound", "compute": "compute-bound", "other": "host-bound",
    "host": "host-bound",
}  # fmt: skip
"""The cause by phase, by mechanism of learning, and by part of a device's idle time."""
