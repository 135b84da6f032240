"""A recurrent forecast of rainfall with early stopping that is checked every ten batches."""

import argparse
import copy
import time

import torch
import torch.nn as nn
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 48, batch_first=True)
        self.out = nn.Linear(48, 1)

    def forward(self, weeks):
        hidden, _ = self.rnn(weeks)
        return self.out(hidden[:, -1]).squeeze(1)


torch.manual_seed(args.seed)
weeks = torch.randn(9600, 20, 3)
rain = weeks.mean(dim=1).prod(dim=1) + weeks[:, -1, 0]
known, later = slice(0, 4800), slice(4800, 9600)
model = Forecast()
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
best, best_weights, batch, start = float("inf"), None, 0, time.time()
while time.time() - start < args.seconds:
    with phase("input"):
        rows = torch.randint(4800, (32,))
        x, y = weeks[known][rows], rain[known][rows]
    with phase("learning"):
        optimizer.zero_grad()
        error = criterion(model(x), y)
        error.backward()
        optimizer.step()
    batch += 1
    if batch % 10 == 0:
        with phase("evaluation"), torch.no_grad():
            parts = zip(weeks[later].split(32), rain[later].split(32))
            score = sum(criterion(model(x), y).item() for x, y in parts) / 150
        if score < best:
            best, best_weights = score, copy.deepcopy(model.state_dict())
        print(f"batch {batch}: error {error.item():.4f}, later {score:.4f}", flush=True)
