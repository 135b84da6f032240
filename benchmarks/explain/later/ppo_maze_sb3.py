"""Stable-Baselines3 PPO on a custom environment: collect the coins of a maze, avoid the ghosts."""

import argparse
import random
import time
from collections import deque

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from phases import phase
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1)]


class MazeEnv(gym.Env):
    def __init__(self, size=41, n_ghosts=4, view=5, max_steps=500):
        self.size, self.n_ghosts, self.view, self.max_steps = size, n_ghosts, view, max_steps
        self.action_space = spaces.Discrete(4)
        self.observation_space = spaces.Box(0, 3, (2 * view + 1, 2 * view + 1), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.random = random.Random(seed)
        self.free, stack = {(1, 1)}, [(1, 1)]
        while stack:  # depth-first search carves the corridors
            y, x = stack[-1]
            cells = [(y + 2 * a, x + 2 * b, y + a, x + b) for a, b in MOVES]
            cells = [c for c in cells if 0 < c[0] < self.size and 0 < c[1] < self.size]
            cells = [c for c in cells if c[:2] not in self.free]
            if not cells:
                stack.pop()
                continue
            a, b, wall_y, wall_x = self.random.choice(cells)
            self.free |= {(a, b), (wall_y, wall_x)}
            stack.append((a, b))
        cells = sorted(self.free)
        self.player, *self.ghosts = self.random.sample(cells, 1 + self.n_ghosts)
        self.coins = set(self.random.sample(cells, len(cells) // 4))
        self.steps = 0
        return self.observation(), {}

    def observation(self):
        obs = np.zeros(self.observation_space.shape, dtype=np.float32)
        for i in range(-self.view, self.view + 1):
            for j in range(-self.view, self.view + 1):
                cell = (self.player[0] + i, self.player[1] + j)
                if cell in self.ghosts:
                    obs[i + self.view, j + self.view] = 3
                elif cell in self.coins:
                    obs[i + self.view, j + self.view] = 2
                elif cell in self.free:
                    obs[i + self.view, j + self.view] = 1
        return obs

    def chase(self, ghost):
        """The first step of the shortest path from the ghost to the player."""
        parents, queue = {self.player: self.player}, deque([self.player])
        while queue and ghost not in parents:
            y, x = queue.popleft()
            for a, b in MOVES:
                cell = (y + a, x + b)
                if cell in self.free and cell not in parents:
                    parents[cell] = (y, x)
                    queue.append(cell)
        return parents[ghost]

    def step(self, action):
        self.steps += 1
        target = (self.player[0] + MOVES[action][0], self.player[1] + MOVES[action][1])
        reward = -0.01
        if target in self.free:
            self.player = target
        if self.player in self.coins:
            self.coins.remove(self.player)
            reward += 1.0
        self.ghosts = [self.chase(ghost) for ghost in self.ghosts]
        dead = self.player in self.ghosts
        done = dead or not self.coins
        return self.observation(), reward - 5.0 * dead, done, self.steps >= self.max_steps, {}


class TimedEnv(gym.Wrapper):
    def reset(self, **kwargs):
        with phase("env"):
            return self.env.reset(**kwargs)

    def step(self, action):
        with phase("env"):
            return self.env.step(action)


class TimedPPO(PPO):
    def collect_rollouts(self, *args, **kwargs):
        with phase("acting"):
            return super().collect_rollouts(*args, **kwargs)

    def train(self):
        with phase("learning"):
            super().train()


class TimeLimit(BaseCallback):
    def __init__(self, seconds):
        super().__init__()
        self.end = time.time() + seconds

    def _on_step(self):
        return time.time() < self.end


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    env = Monitor(TimedEnv(MazeEnv()))
    model = TimedPPO("MlpPolicy", env, n_steps=512, n_epochs=4, seed=args.seed, verbose=1)
    model.learn(total_timesteps=10_000_000, callback=TimeLimit(args.seconds), log_interval=5)
