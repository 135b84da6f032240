"""Regression with an MLP whose metrics and histograms are written by a background thread."""

import argparse
import json
import os
import queue
import tempfile
import threading
import time

import numpy as np
import torch
import torch.nn as nn
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
x_train = torch.randn(20000, 32)
y_train = torch.sin(x_train @ torch.randn(32, 1)) + 0.1 * torch.randn(20000, 1)

log_dir = tempfile.mkdtemp()
log_queue = queue.Queue(maxsize=20)


def writer():
    with open(os.path.join(log_dir, "metrics.jsonl"), "w") as file:
        while True:
            item = log_queue.get()
            if item is None:
                break
            with phase("writing"):
                step, scalars, tensors = item
                record = {"step": step, **scalars}
                for name, values in tensors.items():
                    counts, edges = np.histogram(values, bins=64)
                    record[name] = {
                        "counts": counts.tolist(),
                        "edges": edges.tolist(),
                        "mean": float(values.mean()),
                        "std": float(values.std()),
                        "percentiles": np.percentile(values, [5, 25, 50, 75, 95]).tolist(),
                    }
                file.write(json.dumps(record) + "\n")
                file.flush()


thread = threading.Thread(target=writer, daemon=True)
thread.start()

model = nn.Sequential(
    nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.MSELoss()

step = 0
start = time.time()
while time.time() - start < args.seconds:
    with phase("input"):
        idx = torch.randint(0, len(x_train), (128,))
        x, y = x_train[idx], y_train[idx]
    with phase("learning"):
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with phase("transfer"):
        tensors = {}
        for name, param in model.named_parameters():
            tensors[name] = param.detach().numpy().copy()
            tensors[name + ".grad"] = param.grad.numpy().copy()
    with phase("waiting"):
        log_queue.put((step, {"loss": loss.item(), "time": time.time() - start}, tensors))
    step += 1
    if step % 500 == 0:
        print(f"step {step}: loss {loss.item():.4f}")

log_queue.put(None)
thread.join()
print(f"{step} steps, log in {log_dir}")
