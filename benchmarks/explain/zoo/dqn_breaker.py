"""Deep Q-learning (PyTorch), one file, script style: replay of 400,000 steps in a deque."""

import random
from collections import deque

import numpy as np
import torch
from pace import Pace
from torch import nn

MEMORY = 400_000
BATCH = 64


def new_episode():
    return np.array([random.random(), random.random(), 0.0, 0.0, 0.5, 0.0], np.float32)


def advance(s, a):
    """Push a puck towards the middle of a field with walls."""
    x, y, vx, vy, fuel, t = s
    vx += (0.02, -0.02, 0.0, 0.0)[a]
    vy += (0.0, 0.0, 0.02, -0.02)[a]
    x, y = x + vx, y + vy
    out = not (0 <= x <= 1 and 0 <= y <= 1)
    near = abs(x - 0.5) + abs(y - 0.5)
    after = np.array([x, y, 0.95 * vx, 0.95 * vy, fuel, t + 0.01], np.float32)
    return after, (-1.0 if out else 0.1 - near), out or t > 2


def minibatch(memory):
    """64 stored steps, no step twice."""
    picks = np.random.permutation(len(memory))[:BATCH]
    rows = [memory[i] for i in picks]
    s, a, r, s2, d = zip(*rows, strict=True)
    return (
        torch.from_numpy(np.stack(s)), torch.tensor(a), torch.tensor(r, dtype=torch.float32),
        torch.from_numpy(np.stack(s2)), torch.tensor(d, dtype=torch.float32),
    )  # fmt: skip


def main():
    pace = Pace.from_args()
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    online = nn.Sequential(
        nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
    )
    frozen = nn.Sequential(
        nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
    )
    frozen.load_state_dict(online.state_dict())
    adam = torch.optim.Adam(online.parameters(), 1e-3)

    replay = deque(maxlen=MEMORY)
    s = new_episode()
    while len(replay) < MEMORY:  # random play first
        a = random.randrange(4)
        s2, r, d = advance(s, a)
        replay.append((s, a, r, s2, d))
        s = new_episode() if d else s2

    updates = 0
    while pace.on():
        for _ in range(4):
            if random.random() < 0.1:
                a = random.randrange(4)
            else:
                with torch.no_grad():
                    a = int(online(torch.from_numpy(s)).argmax())
            s2, r, d = advance(s, a)
            replay.append((s, a, r, s2, d))
            s = new_episode() if d else s2
        bs, ba, br, bs2, bd = minibatch(replay)
        with torch.no_grad():
            y = br + 0.98 * (1 - bd) * frozen(bs2).max(1).values
        loss = ((online(bs)[torch.arange(BATCH), ba] - y) ** 2).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        updates += 1
        if updates % 500 == 0:
            frozen.load_state_dict(online.state_dict())
        pace.add()
    pace.report()


if __name__ == "__main__":
    main()
