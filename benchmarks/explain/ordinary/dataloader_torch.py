"""Image classification with a Dataset that augments each image with NumPy."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from phases import phase
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

np.random.seed(args.seed)
torch.manual_seed(args.seed)


class RandomImages(Dataset):
    def __init__(self, size=10000, num_classes=10):
        patterns = np.random.randint(96, 160, (num_classes, 4, 4, 3)).repeat(8, 1).repeat(8, 2)
        self.labels = np.random.randint(0, num_classes, size)
        noise = np.random.normal(0, 80, (size, 32, 32, 3))
        self.images = (patterns[self.labels] + noise).clip(0, 255).astype(np.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        with phase("input"):
            image = self.images[idx].astype(np.float32) / 255.0
            # random crop
            image = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
            y, x = np.random.randint(0, 9, 2)
            image = image[y : y + 32, x : x + 32]
            # random flip
            if np.random.rand() < 0.5:
                image = image[:, ::-1]
            # blur
            if np.random.rand() < 0.5:
                shifted = [np.roll(image, s, axis) for axis in (0, 1) for s in (-1, 1)]
                image = (image + sum(shifted)) / 5
            # color, contrast, brightness and noise
            image = image * np.random.uniform(0.9, 1.1, 3)
            image = (image - image.mean()) * np.random.uniform(0.8, 1.2) + image.mean()
            image = image + np.random.uniform(-0.1, 0.1)
            image = image + np.random.normal(0, 0.05, image.shape)
            image = (np.clip(image, 0, 1) - 0.5) / 0.25
            image = torch.from_numpy(image.transpose(2, 0, 1).astype(np.float32))
            return image, int(self.labels[idx])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(x)


loader = DataLoader(RandomImages(), batch_size=64, shuffle=True, num_workers=0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

epoch = 0
start = time.time()
while time.time() - start < args.seconds:
    for i, (images, labels) in enumerate(loader):
        with phase("learning"):
            optimizer.zero_grad()
            outputs = model(images)
            loss = F.cross_entropy(outputs, labels)
            loss.backward()
            optimizer.step()
        if i % 50 == 49:
            accuracy = (outputs.argmax(1) == labels).float().mean().item()
            print(f"epoch {epoch}, batch {i + 1}: loss {loss.item():.3f}, accuracy {accuracy:.2f}")
        if time.time() - start > args.seconds:
            break
    epoch += 1
