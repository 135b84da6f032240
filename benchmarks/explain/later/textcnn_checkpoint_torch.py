"""A text CNN over fixed word vectors that can go on after a crash: a CSV log and checkpoints."""

import argparse
import csv
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from phases import phase

VOCAB, DIM, LENGTH, CLASSES = 50000, 100, 32, 4

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--save-every", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(args.seed)
train_y = torch.randint(0, CLASSES, (20000,))
train_x = torch.randint(0, VOCAB, (20000, LENGTH))
topic = torch.randint(0, 200, train_x.shape) + 200 * train_y[:, None]
train_x = torch.where(torch.rand(train_x.shape) < 0.2, topic, train_x)


class TextCNN(nn.Module):
    def __init__(self, vectors):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(vectors, freeze=True)
        self.convs = nn.ModuleList([nn.Conv1d(DIM, 32, size) for size in (3, 4, 5)])
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(3 * 32, CLASSES)

    def forward(self, tokens):
        x = self.embedding(tokens).transpose(1, 2)
        x = torch.cat([F.relu(conv(x)).max(dim=2).values for conv in self.convs], dim=1)
        return self.fc(self.dropout(x))


model = TextCNN(torch.randn(VOCAB, DIM))
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)


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
            loss = F.cross_entropy(output, y)
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
