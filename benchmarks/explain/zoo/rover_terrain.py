"""REINFORCE for a rover that climbs on a height map; rollouts run in a process pool."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from pace import Pace, end_with_parent
from torch import nn

WORKERS = 3
HORIZON = 40
SIZE = 700
VIEW = 2
MOVES = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])


def make_terrain(seed):
    rng = np.random.default_rng(seed)
    terrain = np.zeros((SIZE, SIZE))
    x = np.linspace(0, 2 * np.pi, SIZE)
    for k in range(1, 9):
        px, py = rng.uniform(0, 2 * np.pi, 2)
        terrain += np.sin(k * x + px)[:, None] * np.cos(k * x + py)[None, :] / k
    return terrain


def rollout(job):
    terrain, weights, seed = job
    rng = np.random.default_rng(seed)
    pos = rng.integers(VIEW + HORIZON, SIZE - VIEW - HORIZON, 2)
    w1, b1, w2, b2 = weights
    patches, actions, rewards = [], [], []
    for _ in range(HORIZON):
        r, c = pos
        here = terrain[r, c]
        patch = (terrain[r - VIEW : r + VIEW + 1, c - VIEW : c + VIEW + 1] - here).ravel() * 50
        logits = w2 @ np.tanh(w1 @ patch + b1) + b2
        action = int(np.argmax(logits + rng.gumbel(size=4)))
        pos = pos + MOVES[action]
        patches.append(patch)
        actions.append(action)
        rewards.append(terrain[pos[0], pos[1]] - here)
    return np.array(patches, np.float32), np.array(actions), np.array(rewards, np.float32)


def main():
    pace = Pace.from_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    terrain = make_terrain(3)
    policy = nn.Sequential(nn.Linear((2 * VIEW + 1) ** 2, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    context = multiprocessing.get_context("spawn")
    seed = 0
    with ProcessPoolExecutor(WORKERS, mp_context=context, initializer=end_with_parent) as pool:
        list(pool.map(abs, range(WORKERS)))  # the workers are up before the clock starts
        while pace.on():
            weights = [p.detach().numpy().astype(np.float64) for p in policy.parameters()]
            jobs = [(terrain, weights, seed + i) for i in range(2 * WORKERS)]
            seed += len(jobs)
            patches, actions, rewards = zip(*pool.map(rollout, jobs), strict=True)

            returns = np.stack(rewards)[:, ::-1].cumsum(axis=1)[:, ::-1]
            advantage = torch.from_numpy((returns - returns.mean(axis=0)).copy()).flatten()
            advantage = advantage / (advantage.std() + 1e-6)
            logits = policy(torch.from_numpy(np.concatenate(patches)))
            chosen = torch.from_numpy(np.concatenate(actions))
            log_prob = torch.distributions.Categorical(logits=logits).log_prob(chosen)
            loss = -(log_prob * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pace.add(len(chosen))
    pace.report()


if __name__ == "__main__":
    main()
