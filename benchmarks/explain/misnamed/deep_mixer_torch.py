"""A deep mixer of tokens that saves memory: activations are computed again in the backward pass."""

import argparse
import time

import torch
import torch.nn as nn
from phases import phase
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(width), nn.Linear(64, 64)
        self.log = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        x = x + self.attend(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.log(x)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(256) for _ in range(8))
        self.out = nn.Linear(256, 256)

    def save(self, block, x):
        return checkpoint(block, x, use_reentrant=False)

    def forward(self, x):
        for block in self.blocks:
            x = self.save(block, x)
        return self.out(x)


torch.manual_seed(args.seed)
data = torch.randn(200, 64, 256).cumsum(dim=1) / 8
model = Mixer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step, start = 0, time.time()
while time.time() - start < args.seconds:
    with phase("input"):
        batch = data[torch.randint(len(data), (16,))]
    with phase("learning"):
        loss = (model(batch) - batch.roll(-1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    step += 1
    if step % 5 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
