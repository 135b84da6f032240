"""Small PyTorch training programs, each slow for one planted reason; they run until they are ended.

python planted.py CAUSE [--device cuda]
"""

from __future__ import annotations

import argparse
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


CAUSES = {
    "gpu-unused": unused, "devices-reserved": reserved, "memory-contended": resident,
    "transfer-bound": transfers, "acting-bound": acting,
}  # fmt: skip


def main() -> None:
    """Train for ever."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cause", choices=tuple(CAUSES))
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    step = CAUSES[args.cause](args.device)
    number = 0
    while True:
        step()
        number += 1
        if args.device == "cuda" and number % 100 == 0:
            torch.cuda.synchronize()


if __name__ == "__main__":
    main()
