"""A convolutional classifier that can go on after a crash: a CSV log and frequent checkpoints."""

import argparse
import csv
import os
import tempfile
import time

import torch
import torch.nn as nn
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--save-every", type=int, default=5)
args = parser.parse_args()

torch.manual_seed(args.seed)
templates = torch.randn(10, 1, 28, 28)
train_y = torch.randint(0, 10, (20000,))
train_x = templates[train_y] + 2.0 * torch.randn(20000, 1, 28, 28)

model = nn.Sequential(
    nn.Conv2d(1, 16, 5, stride=2, padding=2),
    nn.ReLU(),
    nn.Conv2d(16, 32, 5, stride=2, padding=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 7 * 7, 1024),
    nn.ReLU(),
    nn.Dropout(0.4),
    nn.Linear(1024, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
criterion = nn.CrossEntropyLoss()


def save_checkpoint(folder, step, loss):
    state = {
        "step": step,
        "loss": loss,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    path = os.path.join(folder, f"step_{step:06d}.pt")
    with open(path + ".tmp", "wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".tmp", path)
    for old in sorted(n for n in os.listdir(folder) if n.endswith(".pt"))[:-3]:
        os.remove(os.path.join(folder, old))


with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "log.csv"), "w") as log:
    writer = csv.writer(log)
    writer.writerow(["step", "time", "loss", "accuracy"])
    step = 0
    start = time.time()
    while time.time() - start < args.seconds:
        with phase("input"):
            index = torch.randint(0, len(train_x), (32,))
            x, y = train_x[index], train_y[index]
        with phase("learning"):
            output = model(x)
            loss = criterion(output, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            accuracy = (output.argmax(1) == y).float().mean().item()
        step += 1
        with phase("saving"):
            writer.writerow([step, time.time() - start, loss.item(), accuracy])
            log.flush()
            if step % args.save_every == 0:
                save_checkpoint(folder, step, loss.item())
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}, accuracy {accuracy:.2f}")
