"""Tabular values of 300 MB in a mapped file that is read and written at random."""

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
    values = np.memmap(file.name, np.float32, "w+", shape=(75 << 20,))
    values[::512] = 0.5
    counts = Counts("memory", args.seconds)
    while counts.on():
        states = rng.integers(len(values), size=64)
        best = values[(states * 7 + 1) % len(values)]
        values[states] += 0.1 * (0.9 * best - values[states])
        rng.normal(size=20_000).sort()
