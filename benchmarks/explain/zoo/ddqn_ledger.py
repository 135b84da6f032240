"""Double DQN (PyTorch) that writes each sample's TD error back into its replay's ledger."""

import numpy as np
import torch
from pace import Pace
from torch import nn

BATCH, STORED = 512, 50_000


class RingCounters:
    """Errors by stored step, and how often each was seen."""

    def __init__(self):
        self.error, self.visits = np.ones(STORED), np.zeros(STORED, np.int64)
        self.best = 0.0

    def note(self, rows, td, q, target):
        for i in range(len(rows)):
            row, error = rows[i].item(), abs(td[i].item())
            self.error[row] = 0.9 * self.error[row] + 0.1 * error
            self.visits[row] += 1
            if q[i].item() > self.best:
                self.best = max(self.best, target[i].item())


def main():
    pace = Pace.from_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    online, target = [
        nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 6)) for _ in range(2)
    ]
    opt = torch.optim.Adam(online.parameters(), lr=1e-3)
    states = torch.randn(STORED + 1, 16).cumsum(0) * 0.01
    actions = torch.randint(6, (STORED,))
    rewards = states[1:, :6].gather(1, actions[:, None])[:, 0]
    ledger, updates = RingCounters(), 0
    while pace.on():
        rows = torch.randint(STORED, (BATCH,))
        s, a, r, s2 = states[rows], actions[rows], rewards[rows], states[rows + 1]
        with torch.no_grad():
            best = online(s2).argmax(1, keepdim=True)
            y = r + 0.95 * target(s2).gather(1, best)[:, 0]
        q = online(s).gather(1, a[:, None])[:, 0]
        td = y - q
        loss = td.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        ledger.note(rows, td, q, y)
        updates += 1
        if updates % 200 == 0:
            target.load_state_dict(online.state_dict())
        pace.add()
    pace.report()


if __name__ == "__main__":
    main()
