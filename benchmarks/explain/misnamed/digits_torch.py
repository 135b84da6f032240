"""A classifier whose accuracy on all test images is printed after every batch."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
prototypes = torch.randn(10, 784)


def make_images(count):
    labels = torch.randint(10, (count,))
    return prototypes[labels] + 4 * torch.randn(count, 784), labels


images, labels = make_images(6000)
held_images, held_labels = make_images(4000)
net = nn.Sequential(
    nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 128), nn.ReLU(),
    nn.Linear(128, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def accuracy():
    net.eval()
    right = 0
    with torch.no_grad():
        for x, y in zip(held_images.split(200), held_labels.split(200)):
            right += (net(x).argmax(dim=1) == y).sum().item()
    net.train()
    return right / len(held_labels)


step, start = 0, time.time()
while time.time() - start < args.seconds:
    order = torch.randperm(len(images))
    for rows in order.split(64):
        with phase("learning"):
            loss = F.cross_entropy(net(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with phase("evaluation"):
            result = accuracy()
        step += 1
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}, accuracy {result:.3f}", flush=True)
        if time.time() - start > args.seconds:
            break
