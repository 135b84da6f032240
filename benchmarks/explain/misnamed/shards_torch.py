"""Regression on embeddings that are stored in compressed shards on the disk."""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
rng = np.random.default_rng(args.seed)
with tempfile.TemporaryDirectory() as folder:
    files = [Path(folder) / f"shard_{n}.npz" for n in range(12)]
    for file in files:
        vectors = rng.normal(size=(4000, 256)).round(1).astype(np.float32)
        np.savez_compressed(file, vectors=vectors, targets=vectors[:, :8].sum(axis=1))
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    epoch, start = 0, time.time()
    while time.time() - start < args.seconds:
        for number in rng.permutation(len(files)):
            with phase("input"):
                shard = np.load(files[number])
                order = rng.permutation(len(shard["targets"]))
                vectors = torch.from_numpy(shard["vectors"][order])
                targets = torch.from_numpy(shard["targets"][order])
            for x, y in zip(vectors.split(500), targets.split(500)):
                with phase("learning"):
                    loss = (model(x).squeeze(1) - y).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            print(f"epoch {epoch}, shard {number}: loss {loss.item():.4f}", flush=True)
        epoch += 1
