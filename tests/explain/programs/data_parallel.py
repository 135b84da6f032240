"""Two processes train a wide embedding with DistributedDataParallel over Gloo."""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from phases import phase
from torch.nn.parallel import DistributedDataParallel

SECONDS = float(sys.argv[1])


def main(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = nn.Sequential(nn.EmbeddingBag(120_000, 64), nn.ReLU(), nn.Linear(64, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    start, stop = time.time(), torch.zeros(1)
    while not stop.item():
        with phase("learning"):
            words = torch.randint(120_000, (64, 8))
            loss = (model(words) - 1).square().mean()
            optimizer.zero_grad()
        with phase("communication"):  # without an exchange (no_sync) it takes a seventh of the time
            loss.backward()
        with phase("learning"):
            optimizer.step()
        with phase("communication"):
            stop[0] = time.time() - start > SECONDS
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    other = torch.multiprocessing.get_context("spawn").Process(target=main, args=(1, port))
    other.start()
    main(0, port)
    other.join()
