"""Rollouts in two processes, with a quota of less than one core for all of them."""

import argparse
import multiprocessing
import random

from truth import Counts

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
args = parser.parse_args()


def rollout(seed):
    draw, total = random.Random(seed), 0.0
    for _ in range(20_000):
        total += draw.random() - 0.5
    return total


if __name__ == "__main__":
    counts, best = Counts("quota", args.seconds), 0.0
    with multiprocessing.Pool(2) as pool:
        seed = 0
        while counts.on():
            best = max(best, *pool.map(rollout, range(seed, seed + 8)))
            seed += 8
