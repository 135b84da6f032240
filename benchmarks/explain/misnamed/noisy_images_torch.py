"""A classifier of images whose training step disturbs its batch with NumPy first."""

import argparse
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
rng = np.random.default_rng(args.seed)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
        )

    def forward(self, images):
        return self.network(images)

    def training_step(self, images, labels):
        with phase("own"):
            changed = np.empty_like(images)
            for n, image in enumerate(images):
                image = np.roll(image, rng.integers(-3, 4, size=2), axis=(1, 2))
                if rng.random() < 0.5:
                    image = image[:, :, ::-1]
                image = image * rng.uniform(0.8, 1.2) + rng.normal(0, 0.1, size=image.shape)
                top, left = rng.integers(0, 24, size=2)
                image[:, top : top + 8, left : left + 8] = 0
                changed[n] = np.clip(image, -3, 3)
        with phase("learning"):
            return F.cross_entropy(self(torch.from_numpy(changed)), torch.from_numpy(labels))


torch.manual_seed(args.seed)
images = rng.normal(size=(4000, 1, 32, 32)).astype(np.float32)
labels = (images.mean(axis=(1, 2, 3)) > 0).astype(np.int64)
model = Classifier()
model(torch.zeros(1, 1, 32, 32))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
batch, start = 0, time.time()
while time.time() - start < args.seconds:
    rows = rng.integers(0, len(images), 64)
    loss = model.training_step(images[rows], labels[rows])
    with phase("learning"):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    batch += 1
    if batch % 50 == 0:
        print(f"batch {batch}: loss {loss.item():.4f}", flush=True)
