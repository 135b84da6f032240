"""An actor process and a learner (PyTorch) that look into their mailboxes now and then."""

import multiprocessing as mp
import queue
import time

import gymnasium as gym
import numpy as np
import torch
from pace import Pace, end_with_parent
from torch import nn

NAP = 0.05
STEPS = 200


def look(box):
    """The next letter; has a nap while there is none."""
    while True:
        try:
            return box.get_nowait()
        except queue.Empty:
            time.sleep(NAP)


def make_policy():
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))


def actor(orders, results):
    """Plays 200 steps with each set of weights that it is sent."""
    end_with_parent()
    torch.set_num_threads(1)
    env, policy = gym.make("CartPole-v1"), make_policy()
    obs, _ = env.reset(seed=0)
    while (weights := look(orders)) is not None:
        policy.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
        rows = []
        for _ in range(STEPS):
            with torch.no_grad():
                scores = policy(torch.from_numpy(obs))
            action = int(scores.softmax(0)[1] > np.random.rand())
            after, _, terminated, truncated, _ = env.step(action)
            rows.append((obs, action, terminated or truncated))
            obs = env.reset()[0] if terminated or truncated else after
        results.put(rows)


def main():
    pace = Pace.from_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    context = mp.get_context("spawn")
    orders, results = context.Queue(), context.Queue()
    process = context.Process(target=actor, args=(orders, results))
    process.start()
    policy = make_policy()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
    started = False
    while pace.on() or not started:
        orders.put({k: v.numpy().copy() for k, v in policy.state_dict().items()})
        rows = look(results)
        obs, actions, ends = zip(*rows, strict=True)
        left, togo = 0, []
        for end in reversed(ends):
            left = 1 if end else left + 1
            togo.append(left)
        x, a = torch.tensor(np.array(obs)), torch.tensor(actions)
        g = torch.tensor(togo[::-1], dtype=torch.float32)
        for _ in range(4):
            logp = policy(x).log_softmax(1)[torch.arange(STEPS), a]
            loss = -(logp * (g - g.mean()) / (g.std() + 1e-6)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if started:
            pace.add(STEPS)
        started = True
    orders.put(None)
    process.join()
    pace.report()


if __name__ == "__main__":
    main()
