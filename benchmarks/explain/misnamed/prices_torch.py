"""A deep and narrow network that predicts prices from twelve features."""

import argparse
import time

import torch
import torch.nn as nn
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
features = torch.randn(20000, 12)
prices = (features.sin() @ torch.randn(12, 1)).squeeze(1) + 0.1 * torch.randn(20000)
layers = [nn.Linear(12, 32), nn.ReLU()]
for _ in range(6):
    layers += [nn.Linear(32, 32), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def step(x, y):
    with phase("learning"):
        optimizer.zero_grad()
        loss = (model(x).squeeze(1) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()


epoch, start = 0, time.time()
while time.time() - start < args.seconds:
    order = torch.randperm(len(features))
    losses = []
    for rows in order.split(32):
        with phase("input"):
            x, y = features[rows], prices[rows]
        losses.append(step(x, y))
        if len(losses) % 50 == 0:
            print(
                f"epoch {epoch}, batch {len(losses)}: {sum(losses) / len(losses):.4f}", flush=True
            )
        if time.time() - start > args.seconds:
            break
    epoch += 1
