"""A small language model on a file of bytes, with windows of text from random places."""

import argparse
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

block_size, batch_size, vocabulary = 128, 256, 64
torch.manual_seed(args.seed)
rng = np.random.default_rng(args.seed)
with tempfile.TemporaryFile() as file:
    rng.integers(0, vocabulary, 4_000_000).astype(np.uint16).tofile(file)
    data = np.memmap(file, dtype=np.uint16, mode="r")
model = nn.Sequential(nn.Embedding(vocabulary, 16), nn.Linear(16, vocabulary))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def get_batch():
    starts = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([
        torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in starts.tolist()
    ])  # fmt: skip
    y = torch.stack([
        torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in starts.tolist()
    ])  # fmt: skip
    return x, y


iteration, start = 0, time.time()
while time.time() - start < args.seconds:
    with phase("input"):
        x, y = get_batch()
    with phase("learning"):
        positions = torch.randint(block_size, (8,))  # the loss of eight positions is enough
        logits = model(x[:, positions])
        loss = F.cross_entropy(logits.flatten(0, 1), y[:, positions].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    iteration += 1
    if iteration % 100 == 0:
        print(f"iteration {iteration}: loss {loss.item():.4f}", flush=True)
