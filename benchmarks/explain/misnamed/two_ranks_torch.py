"""Two processes train one large embedding; their gradients are averaged by Gloo."""

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from phases import phase


def train(rank, port, seconds, seed):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(seed)
    table, head = nn.Embedding(100_000, 64), nn.Linear(64, 1)
    parameters = [*table.parameters(), *head.parameters()]
    generator = torch.Generator().manual_seed(seed + rank)
    step, start = 0, time.time()
    stop = torch.zeros(1)
    while not stop.item():
        with phase("learning"):
            words = torch.randint(100_000, (64, 8), generator=generator)
            loss = (head(table(words)).mean(dim=1) - 1).square().mean()
            loss.backward()
        with phase("communication"):
            for parameter in parameters:
                dist.all_reduce(parameter.grad)
            stop[0] = time.time() - start > seconds
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        with phase("learning"), torch.no_grad():
            for parameter in parameters:
                parameter.sub_(parameter.grad, alpha=0.05)
                parameter.grad = None
        step += 1
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    other = context.Process(target=train, args=(1, port, args.seconds, args.seed))
    other.start()
    train(0, port, args.seconds, args.seed)
    other.join()
