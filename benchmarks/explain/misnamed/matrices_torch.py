"""A wide network on random features, compiled where a C++ compiler is installed."""

import argparse
import shutil
import time

import torch
import torch.nn as nn
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
model = nn.Sequential(
    nn.Linear(512, 1536), nn.GELU(), nn.Linear(1536, 1536), nn.GELU(), nn.Linear(1536, 512)
)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
mixing = torch.randn(512, 512) / 512**0.5


def loss_of(x):
    return (model(x) - torch.tanh(x @ mixing)).square().mean()


if shutil.which("g++"):
    loss_of = torch.compile(loss_of)
loss_of(torch.randn(512, 512)).backward()
step, start = 0, time.time()
while time.time() - start < args.seconds:
    with phase("learning"):
        optimizer.zero_grad()
        loss = loss_of(torch.randn(512, 512))
        loss.backward()
        optimizer.step()
    step += 1
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
