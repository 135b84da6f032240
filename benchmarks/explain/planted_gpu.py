"""Small PyTorch training programs, each slow for one planted reason; they run until they are ended.

python planted_gpu.py PROGRAM [--device cuda]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

Step = Callable[[], None]


def learner(inputs: int, width: int, device: str) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """A network of three wide layers, and one update of it."""
    network = nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8)
    ).to(device)
    adam = torch.optim.Adam(network.parameters(), lr=1e-4)

    def update(x: torch.Tensor, y: torch.Tensor) -> None:
        loss = nn.functional.mse_loss(network(x), y)
        adam.zero_grad()
        loss.backward()
        adam.step()

    return update


def resident(device: str) -> Step:
    """Updates from data that lie on the device."""
    update = learner(256, 2048, device)
    x, y = torch.randn(2048, 256, device=device), torch.randn(2048, 8, device=device)
    return lambda: update(x, y)


def unused(device: str) -> Step:
    """A card is there, its context open at most; all learning is on the CPU."""
    return resident("cpu")


def reserved(device: str) -> Step:
    """Memory on every card, work on the first."""
    count = torch.cuda.device_count() if device == "cuda" else 0
    held = [torch.zeros(1 << 28, device=f"cuda:{index}") for index in range(1, count)]
    step = resident(device)

    def run() -> None:
        step()
        assert len(held) == max(count - 1, 0)

    return run


def transfers(device: str) -> Step:
    """A small network, fed for each update with a large batch from pageable host memory."""
    update = learner(4096, 64, device)
    x = np.random.default_rng(0).standard_normal((16_384, 4096), np.float32)
    y = torch.randn(16_384, 8, device=device)
    return lambda: update(torch.from_numpy(x).to(device), y)


def acting(device: str) -> Step:
    """One observation at a time through a network on the device; an update now and then."""
    network = nn.Sequential(
        nn.Linear(8, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 4)
    )
    network = network.to(device)
    adam = torch.optim.Adam(network.parameters(), lr=1e-4)
    state = np.zeros(8, np.float32)
    seen: list[np.ndarray] = []

    def act(obs: np.ndarray) -> int:
        logits = network(torch.as_tensor(obs, device=device)[None])
        return int(torch.distributions.Categorical(logits=logits).sample().item())

    def run() -> None:
        nonlocal state
        action = act(state)
        state = (0.9 * state + 0.1 * action).astype(np.float32)
        seen.append(state)
        if len(seen) == 512:
            batch = torch.as_tensor(np.stack(seen), device=device)
            loss = network(batch).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            seen.clear()

    return run


def saturated(device: str) -> Step:
    """Large updates, launched ahead of the card; nothing is fetched."""
    size = 8192 if device == "cuda" else 256
    update = learner(256, size // 2, device)
    x, y = torch.randn(size, 256, device=device), torch.randn(size, 8, device=device)
    return lambda: update(x, y)


def items(device: str) -> Step:
    """The same, and a number fetched after each update."""
    step = saturated(device)
    total = torch.zeros((), device=device)

    def run() -> None:
        step()
        total.add_(1.0).item()

    return run


def tiny(device: str) -> Step:
    """A small network and batch: many kernels of some microseconds."""
    update = learner(8, 64, device)
    x, y = torch.randn(32, 8, device=device), torch.randn(32, 8, device=device)
    return lambda: update(x, y)


class SlowEnv:
    """An environment whose step takes 2 ms of Python."""

    def reset(self) -> np.ndarray:
        """The first observation."""
        return np.zeros(8, np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, float]]:
        """Compute for a while."""
        end, total = time.perf_counter() + 2e-3, 0
        while time.perf_counter() < end:
            total += sum(range(100))
        return np.full(8, action, np.float32), float(total % 2), False, False, {}


def environments(device: str) -> Step:
    """Steps of a slow environment between updates."""
    update, env = learner(8, 256, device), SlowEnv()
    env.reset()

    def run() -> None:
        seen = [env.step(number % 4)[0] for number in range(32)]
        x = torch.as_tensor(np.stack(seen), device=device)
        update(x, x)

    return run


class ListReplay:
    """Stored steps, each a tuple of lists."""

    def __init__(self) -> None:
        self.rows = [([float(i)] * 64, [0.0] * 8) for i in range(10_000)]

    def add(self, x: list[float], y: list[float]) -> None:
        """Store a step."""
        self.rows.append((x, y))

    def sample(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Choose and gather a batch."""
        chosen = random.sample(self.rows, size)
        x, y = zip(*chosen, strict=True)
        return np.array(x, np.float32), np.array(y, np.float32)


def replay(device: str) -> Step:
    """Large batches from lists of tuples, for a small network."""
    update, store = learner(64, 256, device), ListReplay()

    def run() -> None:
        x, y = store.sample(2048)
        update(torch.as_tensor(x, device=device), torch.as_tensor(y, device=device))

    return run


PROGRAMS = {
    "gpu-unused": unused, "devices-reserved": reserved, "memory-contended": resident,
    "transfer-bound": transfers, "acting-bound": acting, "saturated": saturated, "items": items,
    "launch-bound": tiny, "env-bound": environments, "replay-bound": replay,
}  # fmt: skip


def main() -> None:
    """Train for ever."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("program", choices=tuple(PROGRAMS))
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    step = PROGRAMS[args.program](args.device)
    number = 0
    while True:
        step()
        number += 1
        if args.device == "cuda" and number % 100 == 0:
            torch.cuda.synchronize()


if __name__ == "__main__":
    main()
