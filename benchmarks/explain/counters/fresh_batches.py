"""A network in NumPy whose activations of 3 MB each are fresh memory in every update."""

import argparse

import numpy as np
from truth import Counts

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
args = parser.parse_args()

rng = np.random.default_rng(0)
scale, inputs = np.ones(64, "f"), rng.normal(size=(12_000, 64)).astype("f")


def update(scale):
    hidden = inputs * scale
    active = np.maximum(hidden, 0)
    error = active - inputs
    back = error * (hidden > 0)
    return scale - 1e-3 * (back * inputs).mean(0)


counts = Counts("faults", args.seconds)
while counts.on():
    scale = update(scale)
