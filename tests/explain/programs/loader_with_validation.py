"""A convolutional network on generated pictures: a DataLoader, and validation after each epoch."""

import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from phases import phase
from torch.utils.data import DataLoader, Dataset

SECONDS = float(sys.argv[1])


class Pictures(Dataset):
    def __init__(self, count, seed, train):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 4, count)
        self.pictures = rng.normal(size=(count, 48, 48)).astype(np.float32)
        self.pictures += self.labels[:, None, None] / 2
        self.train, self.rng = train, rng

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        with phase("input"):
            picture = self.pictures[index]
            if self.train:
                picture = np.roll(picture, self.rng.integers(-4, 5, 2), axis=(0, 1))
                picture = picture + self.rng.normal(0, 0.2, picture.shape)
            picture = (picture - picture.mean()) / picture.std()
            return torch.from_numpy(picture[None].astype(np.float32)), int(self.labels[index])


torch.set_num_threads(1)
torch.manual_seed(0)
train = DataLoader(Pictures(2048, 0, True), batch_size=64, shuffle=True)
val = DataLoader(Pictures(256, 1, False), batch_size=64)
model = nn.Sequential(
    nn.Conv2d(1, 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 11 * 11, 4)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start = time.time()
while time.time() - start < SECONDS:
    model.train()
    for pictures, labels in train:
        with phase("learning"):
            loss = F.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if time.time() - start > SECONDS:
            break
    model.eval()
    with phase("evaluation"), torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in val)
    print(f"loss {loss.item():.3f}, {right} of 256 right", flush=True)
