"""An autoencoder of spectra, trained by a trainer object."""

import argparse
import time

import torch
import torch.nn as nn
from phases import phase


class Trainer:
    def __init__(self, model, data):
        self.model, self.data = model, data
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.reset()

    def reset(self):
        self.order = torch.randperm(len(self.data))
        self.done, self.position, self.total = False, 0, 0.0
        return self.data[self.order[:32]]

    def step(self, batch):
        with phase("learning"):
            noisy = batch + 0.1 * torch.randn_like(batch)
            loss = (self.model(noisy) - batch).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.total += loss.item()
        self.position += 32
        self.done = self.position >= len(self.data)
        with phase("input"):
            return self.data[self.order[self.position : self.position + 32]], loss, self.done


parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)
grid = torch.linspace(0, 6.28, 64)
spectra = torch.sin(grid * torch.randint(1, 9, (3200, 1)) + torch.randn(3200, 1))
widths = [64, 48, 32, 16, 32, 48, 64]
layers = [part for m, n in zip(widths, widths[1:]) for part in (nn.Linear(m, n), nn.SiLU())]
trainer = Trainer(nn.Sequential(*layers[:-1]), spectra)
start = time.time()
while time.time() - start < args.seconds:
    batch, done = trainer.reset(), False
    while not done and time.time() - start < args.seconds:
        batch, loss, done = trainer.step(batch)
    print(f"loss {trainer.total / trainer.position * 32:.4f}", flush=True)
