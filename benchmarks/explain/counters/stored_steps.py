"""Rollouts of small objects next to a store of 300,000, which each full collection visits."""

import argparse
import random

from truth import Counts

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
args = parser.parse_args()


class Step:
    def __init__(self, state, action, reward):
        self.state, self.action, self.reward = [state, state + 1], action, {"reward": reward}


def rollout(length, state=0):
    steps = []
    for _ in range(length):
        steps.append(Step(state, random.randrange(4), random.random()))
        state = (state * 31 + steps[-1].action) % 1000
    return steps


memory = rollout(300_000)
values, counts = [0.0] * 1000, Counts("garbage", args.seconds)
while counts.on():
    for step in (*rollout(3000), *random.sample(memory, 64)):
        at = step.state[0] % 1000
        values[at] += 0.1 * (step.reward["reward"] - values[at])
