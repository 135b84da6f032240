#!/usr/bin/env python
"""Goal-conditioned Q-learning with hindsight, for a puck on ice. NumPy only."""

import random
from collections import deque

import numpy as np
from pace import Pace

PUSHES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float64)
LENGTH = 50
BATCH = 256
GAMMA = 0.95


class Network:
    def __init__(self, inputs, hidden, outputs, rng):
        self.w1 = rng.normal(size=(inputs, hidden)) / np.sqrt(inputs)
        self.b1 = np.zeros(hidden)
        self.w2 = rng.normal(size=(hidden, outputs)) / np.sqrt(hidden)
        self.b2 = np.zeros(outputs)

    def __call__(self, x):
        return np.maximum(x @ self.w1 + self.b1, 0) @ self.w2 + self.b2

    def fit(self, x, action, goal, lr):
        hidden = np.maximum(x @ self.w1 + self.b1, 0)
        q = hidden @ self.w2 + self.b2
        rows = np.arange(len(x))
        error = np.zeros_like(q)
        error[rows, action] = np.clip(q[rows, action] - goal, -1, 1) / len(x)
        back = (error @ self.w2.T) * (hidden > 0)
        self.w2 -= lr * hidden.T @ error
        self.b2 -= lr * error.sum(axis=0)
        self.w1 -= lr * x.T @ back
        self.b1 -= lr * back.sum(axis=0)


class HindsightBuffer:
    """Whole episodes; goals are replaced by places that the puck reached later."""

    def __init__(self, episodes):
        self.episodes = deque(maxlen=episodes)

    def add(self, episode):
        self.episodes.append(episode)

    def sample(self, n, relabel=0.8):
        xs, actions, rewards, nexts = [], [], [], []
        for _ in range(n):
            episode = random.choice(self.episodes)
            t = random.randrange(len(episode))
            step = episode[t]
            goal = step["goal"]
            if random.random() < relabel:
                goal = episode[random.randrange(t, len(episode))]["next"][:2]
            reached = np.linalg.norm(step["next"][:2] - goal) < 0.1
            xs.append(np.concatenate([step["state"], goal]))
            nexts.append(np.concatenate([step["next"], goal]))
            actions.append(step["action"])
            rewards.append(1.0 if reached else 0.0)
        return np.array(xs), np.array(actions), np.array(rewards), np.array(nexts)


def slide(state, action):
    velocity = 0.95 * state[2:] + 0.05 * PUSHES[action]
    return np.concatenate([np.clip(state[:2] + 0.2 * velocity, -1, 1), velocity])


def main():
    pace = Pace.from_args()
    random.seed(2)
    rng = np.random.default_rng(2)
    q, target = Network(6, 64, len(PUSHES), rng), Network(6, 64, len(PUSHES), rng)
    buffer = HindsightBuffer(episodes=2000)
    episodes = 0
    while pace.on():
        state, goal = np.zeros(4), rng.uniform(-1, 1, 2)
        episode = []
        for _ in range(LENGTH):
            if rng.random() < 0.2:
                action = int(rng.integers(len(PUSHES)))
            else:
                action = int(np.argmax(q(np.concatenate([state, goal]))))
            after = slide(state, action)
            episode.append({"state": state, "goal": goal, "action": action, "next": after})
            state = after
        buffer.add(episode)
        for _ in range(LENGTH // 2):
            x, actions, rewards, x_next = buffer.sample(BATCH)
            best = target(x_next).max(axis=1)
            q.fit(x, actions, rewards + GAMMA * (1 - rewards) * best, lr=0.05)
        episodes += 1
        if episodes % 4 == 0:
            for name in ("w1", "b1", "w2", "b2"):
                setattr(target, name, getattr(q, name).copy())
        pace.add(LENGTH)
    pace.report()


if __name__ == "__main__":
    main()
