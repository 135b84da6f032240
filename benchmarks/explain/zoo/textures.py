"""Texture classification (PyTorch) with a convolutional network; pictures are made in one go."""

import torch
from pace import Pace
from torch import nn

CLASSES = 6


def textures(n, generator):
    """Stripes of six directions with noise: pictures [n, 3, 32, 32] and classes [n]."""
    label = torch.randint(CLASSES, (n,), generator=generator)
    angle = (label * torch.pi / CLASSES)[:, None, None]
    y, x = torch.meshgrid(torch.linspace(-8, 8, 32), torch.linspace(-8, 8, 32), indexing="ij")
    phase = torch.rand(n, 1, 1, generator=generator) * 6
    waves = torch.sin(torch.cos(angle) * x + torch.sin(angle) * y + phase)
    noise = torch.randn(n, 3, 32, 32, generator=generator)
    return waves[:, None] + 0.5 * noise, label


def network():
    return nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(),
        nn.Conv2d(48, 96, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(96, 128, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES),
    )  # fmt: skip


def main():
    pace = Pace.from_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    pictures, labels = textures(4000, generator)
    net = network()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    while pace.on():
        rows = torch.randint(len(pictures), (256,), generator=generator)
        loss = nn.functional.cross_entropy(net(pictures[rows]), labels[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        pace.add(256)
    print(f"loss {loss.item():.3f}")
    pace.report()


if __name__ == "__main__":
    main()
