"""The causes, by stable id, and what each one means in a sentence."""

from __future__ import annotations

HEALTHY = "healthy"
UNKNOWN = "unknown"  # the verdict where too little was seen for one

CAUSES: dict[str, str] = {
    "contended": "other programs had the cores that this one wanted",
    "env-bound": "stepping and resetting environments, and preparing observations, takes the time",
    "acting-bound": "choosing actions takes the time, in many small network calls",
    "replay-bound": "choosing and gathering batches from stored experience takes the time",
    "input-bound": "loading and augmenting the data set takes the time",
    "ipc-bound": "moving data between processes takes the time",
    "eval-bound": "evaluation between updates takes the time",
    "io-bound": "writing checkpoints, logs or pictures takes the time",
    "compile-bound": "the program traces and compiles again and again",
    "waiting": "a lockstep is held up by its slowest part while cores are idle",
    "oversubscribed": "more threads are busy than there are cores",
    "launch-bound": "learning consists of many tiny operations, whose overhead takes the time",
    "host-bound": "the program's own code takes the time",
    "transfer-bound": "copies and syncs between host and device take the time",
    "communication-bound": "averaging across devices takes the time",
    "compute-bound": "the arithmetic of learning takes the time",
    "gpu-unused": "a GPU is available, and the program never computes on it",
    "devices-reserved": "memory is held on several GPUs, and one computes",
    "memory-contended": "the GPU's memory is almost full, and more is wanted",
}
"""Phases that hold the rest up first, then the mechanisms of learning, then devices."""

DEVICES = ("gpu-unused", "devices-reserved", "memory-contended")

CAUSE_OF = {
    "env": "env-bound", "act": "acting-bound", "replay": "replay-bound", "input": "input-bound",
    "ipc": "ipc-bound", "eval": "eval-bound", "io": "io-bound", "compile": "compile-bound",
    "wait": "waiting",
}  # fmt: skip
"""The cause of a phase that takes the time; within learning its mechanisms decide."""

CAUSE_OF_LOSS = CAUSE_OF | {
    "transfer": "transfer-bound", "communicate": "communication-bound", "learn": "launch-bound",
    "launch": "launch-bound", "compute": "compute-bound", "other": "host-bound",
    "host": "host-bound",
}  # fmt: skip
"""The same for the mechanisms of learning, and for the parts of a device's idle time."""
