"""Evolution: candidates are copies of parameters of 40 MB, above what glibc ever keeps."""

import argparse

import numpy as np
from truth import Counts

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
args = parser.parse_args()

rng = np.random.default_rng(0)
noise = rng.normal(size=11_000_000).astype("f")
best = np.zeros(10_000_000, "f")


def generation(best):
    places = rng.integers(1_000_000, size=4)
    candidates = [best + noise[at : at + best.size] for at in places]
    scores = [-float(np.square(one[:200_000] - 1).sum()) for one in candidates]
    return candidates[int(np.argmax(scores))] * np.float32(0.5)


counts = Counts("faults", args.seconds)
while counts.on():
    best[:] = generation(best)
