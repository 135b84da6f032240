"""Replay of 400 MB in a file that is mapped: random rows, in a group with less memory than that."""

import argparse
import os
import tempfile

import numpy as np
from truth import Counts

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
args = parser.parse_args()

rng = np.random.default_rng(0)
with tempfile.NamedTemporaryFile(dir=os.environ.get("FILES")) as file:
    for _ in range(100):
        file.write(rng.integers(256, size=4 << 20, dtype=np.uint8).tobytes())
    file.flush()
    frames = np.memmap(file.name, np.uint8, "r", shape=(100 << 10, 4096))
    weights, counts = np.zeros(4096, "f"), Counts("memory", args.seconds)
    while counts.on():
        rows = rng.integers(len(frames), size=32)
        batch = frames[rows].astype("f")
        weights += 1e-9 * batch.mean(0)
        for _ in range(4):
            weights -= 1e-9 * (batch @ weights) @ batch
