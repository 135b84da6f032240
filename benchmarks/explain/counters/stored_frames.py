"""Replay of 400 MB in a file that is mapped: random rows, in a group with less memory than that."""

import argparse

import numpy as np
from truth import Counts, mapped

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
args = parser.parse_args()

rng = np.random.default_rng(0)
with mapped(rng) as frames:
    weights, counts = np.zeros(4096, "f"), Counts("memory", args.seconds)
    while counts.on():
        rows = rng.integers(len(frames), size=32)
        batch = frames[rows].astype("f")
        weights += 1e-9 * batch.mean(0)
        for _ in range(4):
            weights -= 1e-9 * (batch @ weights) @ batch
