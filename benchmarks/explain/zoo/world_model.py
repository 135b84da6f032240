"""Fits a world model of a double pendulum (PyTorch) with the thread count of another machine."""

import numpy as np
import torch
from pace import Pace
from torch import nn

THREADS = 16


def pendulum(n, rng):
    """States, torques and what follows, for `n` random starts."""
    q, v = rng.uniform(-3, 3, (n, 2)), rng.uniform(-2, 2, (n, 2))
    u = rng.uniform(-1, 1, (n, 2))
    acc = u - np.sin(q) - 0.3 * np.sin(q[:, :1] - q[:, 1:]) * v[:, ::-1] ** 2
    v2 = v + 0.05 * acc
    after = np.concatenate([q + 0.05 * v2, v2], 1)
    return np.concatenate([q, v, u], 1).astype(np.float32), after.astype(np.float32)


class Model(nn.Module):
    def __init__(self, width=192, depth=6):
        super().__init__()
        self.first = nn.Linear(6, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        h = torch.relu(self.first(x))
        for block in self.blocks:
            h = h + torch.relu(block(h))
        return self.last(h)


def main():
    pace = Pace.from_args()
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    x, y = (torch.from_numpy(part) for part in pendulum(50_000, np.random.default_rng(0)))
    model = Model()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while pace.on():
        rows = torch.randint(len(x), (512,))
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        pace.add()
    print(f"loss {loss.item():.4f}")
    pace.report()


if __name__ == "__main__":
    main()
