"""A small convolutional network on labelled images, by hand: prints one JSON object on stdout.

The small network of `flatout train classify`, as somebody writes it in PyTorch: convolutions of 6
and 12 channels (5x5), each with batch normalisation, ReLU and a 2x2 maximum; 100 dense units; cross
entropy and L2; Adam. Images are in the device's memory, and each comes once per epoch, in a random
order. ``window`` counts from step ``--window-from`` to the end, the device's work included.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from clock import since_start

STARTED = time.perf_counter()

CHANNELS, KERNEL, DENSE, CLASSES, L2, RATE = (6, 12), 5, 100, 10, 5e-4, 1e-3
HEADER = {"train-images-idx3-ubyte": 16, "train-labels-idx1-ubyte": 8}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--library", choices=("torch", "torch-compiled"), required=True)
    add("--data", required=True, help="folder with IDX files")
    add("--batch-size", type=int, default=1024)
    add("--steps", type=int, default=200)
    add("--window-from", type=int, default=50)
    add("--seed", type=int, default=0)
    return parser.parse_args()


def images_of(folder: str) -> tuple[Any, Any]:
    """Images ``[n, 28, 28]`` and labels ``[n]``, as bytes."""
    import numpy as np

    images, labels = (
        np.frombuffer((Path(folder) / name).read_bytes(), np.uint8, offset=start)
        for name, start in HEADER.items()
    )
    return images.reshape(len(labels), 28, 28), labels


def batches(images: int, size: int, seed: int) -> Iterator[Any]:
    """Indices of one batch after another, each image once per epoch."""
    import numpy as np

    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(images)
        yield from order[: images // size * size].reshape(-1, size)


def in_torch(args: argparse.Namespace) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    """A step, and what waits for the last one."""
    import torch
    from torch import nn

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def block(before: int, after: int) -> list[nn.Module]:
        convolution = nn.Conv2d(before, after, KERNEL, padding="same", bias=False)
        return [convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]

    first, second = CHANNELS
    network = nn.Sequential(
        *block(1, first), *block(first, second), nn.Flatten(),
        nn.Linear(7 * 7 * second, DENSE), nn.ReLU(), nn.Linear(DENSE, CLASSES),
    ).to(device)  # fmt: skip
    forward = torch.compile(network) if args.library == "torch-compiled" else network
    kernels = [one for name, one in network.named_parameters() if one.dim() > 1]
    adam = torch.optim.Adam(network.parameters(), lr=RATE)
    found, wanted = images_of(args.data)
    images = torch.as_tensor(found.copy()).unsqueeze(1).to(device)
    labels = torch.as_tensor(wanted.copy()).long().to(device)
    last: Any = None

    def take(rows: Any) -> None:
        nonlocal last
        chosen = torch.as_tensor(rows).to(device)
        logits = forward(images[chosen].float() / 255)
        error = nn.functional.cross_entropy(logits, labels[chosen])
        right = (logits.argmax(-1) == labels[chosen]).float().mean()
        decay = 0.5 * L2 * sum(one.square().sum() for one in kernels)
        adam.zero_grad()
        (error + decay).backward()
        adam.step()
        last = error.detach(), right

    return take, lambda: [float(one) for one in last]


def main() -> None:
    """Take the steps and print the figures."""
    args = arguments()
    step, wait = in_torch(args)
    rows = batches(len(images_of(args.data)[1]), args.batch_size, args.seed)
    begun = first_update_s = 0.0
    for number in range(args.steps):
        if number == args.window_from:
            wait()
            begun = time.perf_counter()
        step(next(rows))
        if number == 0:
            wait()
            first_update_s = since_start()
    error, right = wait()
    ended = time.perf_counter()
    result = {
        "steps": args.steps, "updates": args.steps, "wall_s": ended - STARTED,
        "samples": args.steps * args.batch_size, "first_update_s": first_update_s,
        "loss": float(error), "accuracy": float(right),
        "window": {
            "steps": args.steps - args.window_from, "updates": args.steps - args.window_from,
            "s": ended - begun,
        },
        "versions": {
            "python": sys.version.split()[0], "torch": sys.modules["torch"].__version__,
        },
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
