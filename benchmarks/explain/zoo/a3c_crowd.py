"""A3C-like training (PyTorch): eight processes share a model and update it as they please."""

import numpy as np
import torch
import torch.multiprocessing as mp
from pace import Pace, end_with_parent
from torch import nn

WORKERS, THREADS, BATCH = 8, 4, 256


def build():
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)
    )


def rollout(net, rng, drift):
    """256 steps of many small tasks at once."""
    x = torch.from_numpy(rng.standard_normal((BATCH, 64)).astype(np.float32))
    with torch.no_grad():
        action = net(x).argmax(1)
    return x, action, x[:, :8].gather(1, action[:, None])[:, 0] + drift


def work(number, shared, updates, going):
    end_with_parent()
    torch.set_num_threads(THREADS)
    torch.manual_seed(number)
    rng, net = np.random.default_rng(number), build()
    opt = torch.optim.SGD(shared.parameters(), lr=1e-3)
    while going.value:
        net.load_state_dict(shared.state_dict())
        x, a, r = rollout(net, rng, 0.0)
        logp = net(x).log_softmax(1).gather(1, a[:, None])[:, 0]
        loss = -(logp * (r - r.mean())).mean()
        net.zero_grad()
        loss.backward()
        for ours, theirs in zip(net.parameters(), shared.parameters(), strict=True):
            theirs.grad = ours.grad
        opt.step()
        with updates.get_lock():
            updates.value += 1


def main():
    pace = Pace.from_args()
    torch.manual_seed(0)
    context = mp.get_context("spawn")
    shared = build().share_memory()
    updates, going = context.Value("q", 0), context.Value("b", 1)
    crowd = [context.Process(target=work, args=(n, shared, updates, going)) for n in range(WORKERS)]
    for one in crowd:
        one.start()
    while updates.value < 4 * WORKERS:  # until everyone is there
        crowd[0].join(0.05)
    seen = updates.value
    while pace.on():
        crowd[0].join(0.2)
        now = updates.value
        pace.add(now - seen)
        seen = now
    going.value = 0
    for one in crowd:
        one.join()
    pace.report()


if __name__ == "__main__":
    main()
