"""A character model that is rewarded for the vowels of the stories it writes."""

import argparse
import time

import torch
import torch.nn as nn
from phases import phase
from torch.distributions import Categorical

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

letters = "abcdefghijklmnopqrstuvwxyz .,"
vowels = torch.tensor([float(letter in "aeiou") for letter in letters])
torch.manual_seed(args.seed)
embedding, cell = nn.Embedding(len(letters), 32), nn.GRUCell(32, 64)
head = nn.Linear(64, len(letters))
model = nn.ModuleList([embedding, cell, head])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


@torch.no_grad()
def write(length, count=16):
    token = torch.zeros(count, dtype=torch.long)
    hidden = torch.zeros(count, 64)
    story = [token]
    for _ in range(length):
        hidden = cell(embedding(token), hidden)
        token = Categorical(logits=head(hidden)).sample()
        story.append(token)
    return torch.stack(story, dim=1)


def log_probs(stories):
    hidden, result = torch.zeros(len(stories), 64), []
    for t in range(stories.shape[1] - 1):
        hidden = cell(embedding(stories[:, t]), hidden)
        result.append(Categorical(logits=head(hidden)).log_prob(stories[:, t + 1]))
    return torch.stack(result, dim=1)


update, start = 0, time.time()
while time.time() - start < args.seconds:
    with phase("acting"):
        stories = torch.cat([write(60) for _ in range(8)])
    with phase("learning"):
        score = vowels[stories[:, 1:]].mean(dim=1)
        advantage = (score - score.mean()) / (score.std() + 1e-8)
        loss = -(log_probs(stories).sum(dim=1) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    update += 1
    if update % 5 == 0:
        print(f"update {update}: {score.mean():.3f} of the letters are vowels", flush=True)
