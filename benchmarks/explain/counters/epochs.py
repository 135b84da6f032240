"""Epochs over a mapped data set of 400 MB, in a group without room for it: each reads it all."""

import argparse

import numpy as np
from truth import Counts, mapped

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
args = parser.parse_args()

rng = np.random.default_rng(0)
with mapped(rng) as examples:
    weights, at, counts = np.zeros(4096, "f"), 0, Counts("memory", args.seconds)
    while counts.on():
        batch = examples[at : at + 64].astype("f") / 255
        weights -= 1e-6 * (batch @ weights - batch[:, 0]) @ batch
        at = (at + 64) % (len(examples) - 64)
