"""A random walk in Python with a quota of a part of a core."""

import argparse
import random

from truth import Counts

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
args = parser.parse_args()

place, values, counts = 0, [0.0] * 100, Counts("quota", args.seconds)
while counts.on():
    for _ in range(200):
        following = max(0, min(99, place + random.choice((-1, 1))))
        values[place] += 0.1 * ((following == 99) + 0.9 * values[following] - values[place])
        place = following if following < 99 else 0
