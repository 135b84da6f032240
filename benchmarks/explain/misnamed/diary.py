"""Q-learning on MountainCar with statistics of all rewards and states after every step."""

import argparse
import time

import gymnasium as gym
import numpy as np
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

rng = np.random.default_rng(args.seed)
env = gym.make("MountainCar-v0")
table = np.zeros((20, 20, 3))
low, high = env.observation_space.low, env.observation_space.high


def cell(observation):
    place = (observation - low) / (high - low) * 20
    return tuple(np.clip(place.astype(int), 0, 19))


class Diary:
    def __init__(self):
        self.rewards, self.positions = [], []

    def note(self, reward, observation):
        self.rewards.append(reward)
        self.positions.append(float(observation[0]))
        mean, deviation = np.mean(self.rewards), np.std(self.rewards)
        return mean, deviation, np.percentile(self.positions, 90), max(self.positions)


diary, steps, start = Diary(), 0, time.time()
observation, _ = env.reset(seed=args.seed)
while time.time() - start < args.seconds:
    here = cell(observation)
    with phase("acting"):
        action = rng.integers(3) if rng.random() < 0.1 else int(np.argmax(table[here]))
    with phase("env"):
        observation, reward, terminated, truncated, _ = env.step(action)
    with phase("learning"):
        target = reward + 0.99 * table[cell(observation)].max()
        table[here][action] += 0.1 * (target - table[here][action])
    with phase("own"):
        mean, deviation, ninth, best = diary.note(reward, observation)
    if terminated or truncated:
        observation, _ = env.reset()
    steps += 1
    if steps % 500 == 0:
        print(f"step {steps}: mean {mean:.3f}, 90 % below {ninth:.3f}, best {best:.3f}", flush=True)
