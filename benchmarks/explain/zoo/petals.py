"""Image classification (PyTorch): a small CNN; pictures are augmented one by one while training."""

import random

import numpy as np
import torch
from pace import Pace
from torch import nn

CLASSES, SIDE, BATCH = 5, 32, 64


def make_pictures(n=2000):
    """Synthetic flowers: the class is the number of petals."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, n)
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, SIDE)] * 2))
    radius, angle = np.hypot(*grid), np.arctan2(*grid)
    shapes = radius < 0.5 + 0.3 * np.cos((labels[:, None, None] + 3) * angle)
    colours = rng.integers(60, 255, (n, 1, 1, 3))
    return (shapes[..., None] * colours).astype(np.uint8), labels


class Pictures(torch.utils.data.Dataset):
    def __init__(self, pictures, labels):
        self.pictures, self.labels = pictures, labels

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, i):
        picture = self.pictures[i].astype(np.float32) / 255.0
        if random.random() < 0.5:
            picture = picture[:, ::-1]
        padded = np.pad(picture, ((4, 4), (4, 4), (0, 0)), mode="reflect")
        top, left = random.randint(0, 8), random.randint(0, 8)
        picture = padded[top : top + SIDE, left : left + SIDE].copy()
        for row in range(SIDE):  # uneven light
            shade = 0.8 + 0.4 * random.random()
            for channel in range(3):
                picture[row, :, channel] = np.clip(picture[row, :, channel] * shade, 0, 1)
        picture -= picture.mean(axis=(0, 1))
        return torch.from_numpy(picture.transpose(2, 0, 1).copy()), int(self.labels[i])


def loader(data):
    return torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True)


def forever(batches):
    while True:
        yield from batches


def main():
    pace = Pace.from_args()
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip
    criterion, right, seen = nn.CrossEntropyLoss(), 0, 0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    stream = forever(loader(Pictures(*make_pictures())))
    next(stream)  # loaders and their workers are there
    while pace.on():
        x, y = next(stream)
        out = net(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right, seen = right + (out.argmax(1) == y).sum().item(), seen + len(y)
        pace.add(BATCH)
    print(f"accuracy {right / seen:.2f}")
    del stream
    pace.report()


if __name__ == "__main__":
    main()
