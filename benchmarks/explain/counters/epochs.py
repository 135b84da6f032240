"""Epochs over a mapped data set of 400 MB, in a group without room for it: each reads it all."""

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
    examples = np.memmap(file.name, np.uint8, "r", shape=(100 << 10, 4096))
    weights, at, counts = np.zeros(4096, "f"), 0, Counts("memory", args.seconds)
    while counts.on():
        batch = examples[at : at + 64].astype("f") / 255
        weights -= 1e-6 * (batch @ weights - batch[:, 0]) @ batch
        at = (at + 64) % (len(examples) - 64)
