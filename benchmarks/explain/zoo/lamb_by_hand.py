"""Fits a deep, narrow value network (PyTorch) with a LAMB optimiser written from its paper."""

import torch
from pace import Pace
from torch import nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.a, self.b = (
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.Linear(width, 8),
        )

    def forward(self, x):
        return x + torch.relu(self.a(self.norm(x))) + self.b(x).mean(1, keepdim=True)


class Lamb:
    """Layer-wise adaptive moments, one parameter at a time."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, decay=0.01):
        self.params, self.lr, self.betas = list(params), lr, betas
        self.eps, self.decay, self.t = eps, decay, 0
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        for i, p in enumerate(self.params):
            g = p.grad
            self.m[i] = b1 * self.m[i] + (1 - b1) * g
            self.v[i] = b2 * self.v[i] + (1 - b2) * g * g
            m = self.m[i] / (1 - b1**self.t)
            v = self.v[i] / (1 - b2**self.t)
            move = m / (v.sqrt() + self.eps) + self.decay * p
            size, length = p.norm(), move.norm()
            trust = torch.where((size > 0) & (length > 0), size / (length + 1e-9), 1.0)
            p -= self.lr * torch.clamp(trust, 0, 10) * move
            p.grad = None


def targets(x):
    return torch.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]


def main():
    pace = Pace.from_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(
        nn.Linear(8, 32), *[Residual(32) for _ in range(16)], nn.LayerNorm(32), nn.Linear(32, 1)
    )
    lamb, mean = Lamb(net.parameters()), 0.0
    while pace.on():
        x = torch.randn(32, 8)
        loss = (net(x) - targets(x)).pow(2).mean()
        loss.backward()
        lamb.step()
        mean = 0.99 * mean + 0.01 * loss.detach()
        pace.add()
    print(f"loss {float(mean):.4f}")
    pace.report()


if __name__ == "__main__":
    main()
