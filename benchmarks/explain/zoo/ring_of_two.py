"""Data-parallel training by hand (PyTorch, gloo): two ranks average their gradients."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pace import Pace
from torch import nn

RANKS, DEPTH = 2, 60


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.layer(self.norm(x)))


def average(model):
    """Each parameter's gradient becomes the mean of all ranks'."""
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad /= RANKS


def train(rank, rendezvous, seconds):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), *[Block(128) for _ in range(DEPTH)],
                          nn.Linear(128, 10))  # fmt: skip
    opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    truth = torch.randn(32, 10)
    torch.manual_seed(1 + rank)
    pace, going = Pace(seconds), torch.ones(1)
    while True:
        if rank == 0:
            going[0] = float(pace.on())
        dist.broadcast(going, 0)
        if not going[0]:
            break
        x = torch.randn(16, 32)
        loss = nn.functional.cross_entropy(model(x), (x @ truth).argmax(1))
        opt.zero_grad()
        loss.backward()
        average(model)
        opt.step()
        pace.add(16 * RANKS)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        pace.report()


def main():
    seconds = Pace.from_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        where = os.path.join(folder, "ranks")
        mp.spawn(train, args=(where, seconds), nprocs=RANKS)


if __name__ == "__main__":
    main()
