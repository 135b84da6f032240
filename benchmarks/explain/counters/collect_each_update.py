"""A linear model in NumPy that calls gc.collect() after each update, "to free memory"."""

import argparse
import gc

import numpy as np
from truth import Counts

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
args = parser.parse_args()

rng = np.random.default_rng(0)
weights, target = np.zeros(256), rng.normal(size=256)
counts = Counts("garbage", args.seconds)
while counts.on():
    for _ in range(20):
        inputs = rng.normal(size=(256, 256))
        weights -= 0.1 * inputs.T @ (inputs @ weights - inputs @ target) / len(inputs)
    gc.collect()
