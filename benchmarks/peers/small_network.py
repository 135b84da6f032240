"""A small convolutional network on labelled images, by hand: prints one JSON object on stdout.

The two networks of `flatout train classify`, as somebody writes them in plain JAX or in PyTorch:

- small: convolutions of 6 and 12 channels (5x5), each with batch normalisation, ReLU and a 2x2
  maximum; 100 dense units; cross entropy and L2.
- large: convolutions of 12 (5x5) and 24 (3x3) channels with biases; dropout of a half.

Adam, images in the device's memory, every image once per epoch in a random order. In JAX a step is
one jitted function that also gathers its batch; in PyTorch it is written as usual. ``window``
counts from step ``--window-from`` to the end, the device's work included.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from clock import since_start

STARTED = time.perf_counter()

SIZES = {"small": ((6, 5), (12, 5)), "large": ((12, 5), (24, 3))}
DENSE, CLASSES, DROPOUT, L2, RATE, EPSILON = 100, 10, 0.5, 5e-4, 1e-3, 1e-5
HEADER = {"train-images-idx3-ubyte": 16, "train-labels-idx1-ubyte": 8}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--library", choices=("jax", "torch", "torch-compiled"), required=True)
    add("--data", required=True, help="folder with IDX files")
    add("--size", choices=tuple(SIZES), default="small")
    add("--batch-size", type=int, default=1024)
    add("--steps", type=int, default=200)
    add("--window-from", type=int, default=50)
    add("--threads", type=int, default=0, help="PyTorch's threads (0: leave its default)")
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


def in_jax(args: argparse.Namespace) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    """A step, and what waits for the last one."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    (first, size), (second, other) = SIZES[args.size]
    norm = args.size == "small"
    rng = np.random.default_rng(args.seed)

    def weight(*shape: int) -> Any:
        limit = np.sqrt(1 / np.prod(shape[:-1]))
        return jnp.asarray(rng.uniform(-limit, limit, shape), jnp.float32)

    convolutions = [
        {"kernel": weight(size, size, 1, first), "bias": jnp.zeros(first)},
        {"kernel": weight(other, other, first, second), "bias": jnp.zeros(second)},
    ]
    if norm:
        for layer in convolutions:
            layer["scale"] = jnp.ones_like(layer["bias"])
    params = {
        "convolutions": convolutions,
        "dense": {"kernel": weight(7 * 7 * second, DENSE), "bias": jnp.zeros(DENSE)},
        "head": {"kernel": weight(DENSE, CLASSES), "bias": jnp.zeros(CLASSES)},
    }
    moments = [(jnp.zeros(n), jnp.ones(n)) for n in (first, second)] if norm else []
    adam = optax.adam(RATE)

    def loss(params: Any, x: Any, labels: Any, key: Any) -> tuple[Any, Any]:
        seen = []
        for layer in params["convolutions"]:
            x = jax.lax.conv_general_dilated(
                x, layer["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            if norm:
                mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
                seen.append((mean, var))
                x = (x - mean) * jax.lax.rsqrt(var + EPSILON) * layer["scale"]
            x = jax.nn.relu(x + layer["bias"])
            window = (1, 2, 2, 1)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
        x = x.reshape(len(x), -1) @ params["dense"]["kernel"] + params["dense"]["bias"]
        x = jax.nn.relu(x)
        if not norm:
            x = jnp.where(jax.random.bernoulli(key, 1 - DROPOUT, x.shape), x / (1 - DROPOUT), 0)
        logits = x @ params["head"]["kernel"] + params["head"]["bias"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        kernels = [layer["kernel"] for layer in (*params["convolutions"], params["dense"])]
        kernels.append(params["head"]["kernel"])
        decay = 0.5 * L2 * sum(jnp.sum(kernel**2) for kernel in kernels)
        return error + decay, (error, (logits.argmax(-1) == labels).mean(), seen)

    images, labels = images_of(args.data)
    images, labels = jnp.asarray(images[..., None]), jnp.asarray(labels, jnp.int32)

    @jax.jit
    def step(state: Any, images: Any, labels: Any, rows: Any) -> tuple[Any, Any]:
        params, optimiser, moments, key = state
        key, drawn = jax.random.split(key)
        x = images[rows].astype(jnp.float32) / 255
        grads, (error, right, seen) = jax.grad(loss, has_aux=True)(params, x, labels[rows], drawn)
        updates, optimiser = adam.update(grads, optimiser)
        moments = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, moments, seen)
        return (optax.apply_updates(params, updates), optimiser, moments, key), (error, right)

    state = (params, adam.init(params), moments, jax.random.key(args.seed))
    last: Any = None

    def take(rows: Any) -> None:
        nonlocal state, last
        state, last = step(state, images, labels, rows)

    return take, lambda: jax.device_get(last)


def in_torch(args: argparse.Namespace) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    """A step, and what waits for the last one."""
    if args.threads:  # before PyTorch starts its pool
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    import torch
    from torch import nn

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    (first, size), (second, other) = SIZES[args.size]
    norm = args.size == "small"

    def block(before: int, after: int, kernel: int) -> list[nn.Module]:
        layers: list[nn.Module] = [nn.Conv2d(before, after, kernel, padding="same", bias=not norm)]
        if norm:
            layers.append(nn.BatchNorm2d(after))
        return [*layers, nn.ReLU(), nn.MaxPool2d(2)]

    network = nn.Sequential(
        *block(1, first, size), *block(first, second, other), nn.Flatten(),
        nn.Linear(7 * 7 * second, DENSE), nn.ReLU(),
        *([] if norm else [nn.Dropout(DROPOUT)]), nn.Linear(DENSE, CLASSES),
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
    library = args.library.partition("-")[0]
    step, wait = {"jax": in_jax, "torch": in_torch}[library](args)
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
            "python": sys.version.split()[0],
            library: sys.modules[library].__version__,
        },
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
