"""`ferry`, whose optimiser has all parameters in one vector."""

import ferry
import torch


class FlatAdam:
    def __init__(self, params, lr=3e-4, clip=1.0, decay=1e-4):
        self.lr, self.clip, self.decay, self.t = lr, clip, decay, 0
        params = list(params)
        self.flat = torch.cat([p.data.reshape(-1) for p in params])
        self.grad = torch.zeros_like(self.flat)
        self.m, self.v = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        sizes = [p.numel() for p in params]
        self.owner = torch.repeat_interleave(torch.arange(len(params)), torch.tensor(sizes))
        self.count = torch.tensor(sizes, dtype=torch.float32)
        parts = zip(params, self.flat.split(sizes), self.grad.split(sizes), strict=True)
        for p, value, grad in parts:
            p.data = value.view_as(p)
            p.grad = grad.view_as(p)

    def zero_grad(self):
        self.grad.zero_()

    def sums(self, x):
        return torch.zeros_like(self.count).index_add_(0, self.owner, x)

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = 0.9, 0.999
        norm = self.sums(self.grad * self.grad).sqrt()
        g = self.grad * (self.clip / norm.clamp(min=self.clip))[self.owner]
        self.m.lerp_(g, 1 - b1)
        self.v.lerp_(g * g, 1 - b2)
        delta = (self.v / (1 - b2**self.t)).sqrt_().add_(1e-8)
        delta = (self.lr / (1 - b1**self.t)) * self.m / delta
        self.flat -= delta + self.lr * self.decay * self.flat
        size = self.sums(self.flat * self.flat).sqrt()
        moved = self.sums(delta.abs()) / (self.sums(self.flat.abs()) + 1e-8)
        dead = self.sums((g.abs() < 1e-8).float()) / self.count
        self.stats = torch.stack([norm, size, moved, dead])


ferry.REGISTRY["ClippedAdam"] = FlatAdam

if __name__ == "__main__":
    ferry.main()
