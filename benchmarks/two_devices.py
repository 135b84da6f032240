"""Why two devices can be slower than one: each known cause by itself, on the same small network.

A convolutional network of some 62,000 parameters on images of 28x28 (random: only time counts),
batches of 1,024 and of 64 over all devices, Adam. `as it should be` is one program for five steps,
gradients averaged inside of it; each other side differs from it in one thing (docs/two-devices.md).

All sides run in turns in one process. On a CPU the devices are virtual and share its cores: then
only what each side costs more than the first one says something, not one device against two.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from flatout.networks.convolution import convolve
from flatout.supervised.networks import pool
from harness import main, parser
from report import measured_here, spread, table, write_section

NAME = "two_devices"
BATCHES, STEPS = (1024, 64), 5
RIGHT = "as it should be"
ADAM = optax.adam(1e-3)


def network(params: Any, x: Any) -> Any:
    """Return logits ``[B, 10]`` of images ``[B, 28, 28, 1]``."""
    for kernel, bias in params[:2]:
        x = pool(jax.nn.relu(convolve(x, kernel, 1, "SAME") + bias))
    (dense, dense_bias), (head, head_bias) = params[2:]
    x = jax.nn.relu(x.reshape(len(x), -1) @ dense + dense_bias)
    return x @ head + head_bias


def gradient(params: Any, x: Any, y: Any) -> Any:
    """Return the gradient of the mean loss of a batch."""

    def loss(params: Any) -> Any:
        found = network(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(found, y).mean()

    return jax.grad(loss)(params)


def step(state: Any, grads: Any) -> Any:
    """Return parameters and optimiser after one step."""
    params, moments = state
    updates, moments = ADAM.update(grads, moments)
    return optax.apply_updates(params, updates), moments


def averaged_step(state: Any, batch: Any) -> Any:
    """Return the state after one step, gradients averaged over all devices within the program."""
    return step(state, jax.lax.pmean(gradient(state[0], *batch), "devices"))


def averaged_steps(state: Any, images: Any, labels: Any) -> Any:
    """Return the state after several steps."""
    return jax.lax.scan(lambda *one: (averaged_step(*one), None), state, (images, labels))[0]


class Sides:
    """The ways to take steps on `count` devices, with `batch` images on all of them together. Each
    method returns a function without arguments that takes `STEPS` of them and waits."""

    def __init__(self, count: int, batch: int) -> None:
        self.devices, self.batch = jax.devices()[:count], batch
        self.mesh = Mesh(np.array(self.devices), ("devices",))
        rng = np.random.default_rng(1)
        self.images = rng.random((STEPS, batch, 28, 28, 1)).astype(np.float32)
        self.labels = rng.integers(0, 10, (STEPS, batch)).astype(np.int32)
        rng = np.random.default_rng(0)
        shapes = [(5, 5, 1, 6), (5, 5, 6, 12), (588, 100), (100, 10)]
        params = [
            (rng.normal(0, 0.05, shape).astype(np.float32), np.zeros(shape[-1], np.float32))
            for shape in shapes
        ]
        self.start = params, ADAM.init(params)

    def on_all(self, value: Any, spec: Spec) -> Any:
        """Put arrays on the devices, divided as `spec` says."""
        return jax.device_put(value, NamedSharding(self.mesh, spec))

    def program(self, function: Callable[..., Any], split: Spec) -> Any:
        """Return a program of a state, the same everywhere, and of images and labels that `split`
        divides over the devices."""
        return jax.jit(
            jax.shard_map(
                function, mesh=self.mesh, in_specs=(Spec(), split, split), out_specs=Spec(),
                check_vma=False,
            )
        )  # fmt: skip

    def together(self) -> Callable[[], None]:
        """One program over all devices, gradients averaged inside."""
        split = Spec(None, "devices")
        program = self.program(averaged_steps, split)
        given = self.on_all((self.images, self.labels), split)
        state = self.on_all(self.start, Spec())
        return lambda: jax.block_until_ready(program(state, *given))

    def stepwise(self, feed: bool) -> Callable[[], None]:
        """A dispatch for each step; with `feed` its images come from the host."""
        split = Spec("devices")
        program = self.program(lambda state, *batch: averaged_step(state, batch), split)
        pieces = list(zip(self.images, self.labels, strict=True))
        there = [self.on_all(piece, split) for piece in pieces]
        start = self.on_all(self.start, Spec())

        def run() -> None:
            state = start
            for number in range(STEPS):
                batch = there[number]
                if feed:
                    batch = jax.block_until_ready(self.on_all(pieces[number], split))
                state = jax.block_until_ready(program(state, *batch))

        return run

    def by_hand(self, on_host: bool) -> Callable[[], None]:
        """A program for each device's gradients. They are averaged on the host, or on the first
        device, where the parameters live and from where they are sent."""
        devices = self.devices
        size = self.batch // len(devices)
        there = [
            [
                jax.device_put((x[i * size : (i + 1) * size], y[i * size : (i + 1) * size]), device)
                for i, device in enumerate(devices)
            ]
            for x, y in zip(self.images, self.labels, strict=True)
        ]
        grads_of, stepped = jax.jit(gradient), jax.jit(step)
        mean = lambda *grads: sum(grads[1:], grads[0]) / len(grads)  # noqa: E731
        combine = jax.jit(lambda grads: jax.tree.map(mean, *grads))
        start = jax.device_put(self.start, devices[0])

        def run() -> None:
            state = start
            for number in range(STEPS):
                sent = [jax.device_put(state[0], device) for device in devices]
                grads = [
                    grads_of(params, *batch)
                    for params, batch in zip(sent, there[number], strict=True)
                ]
                if on_host:
                    fetched = jax.device_get(grads)
                    combined = jax.tree.map(lambda *one: np.mean(one, 0), *fetched)
                else:
                    combined = combine(jax.device_put(grads, devices[0]))
                state = jax.block_until_ready(stepped(state, combined))

        return run

    def all(self) -> dict[str, Callable[[], None]]:
        """Return every side by its name."""
        return {
            RIGHT: self.together(),
            "a step at a time": self.stepwise(feed=False),
            "fed through the host": self.stepwise(feed=True),
            "parameters on one device": self.by_hand(on_host=False),
            "averaged on the host": self.by_hand(on_host=True),
        }


def milliseconds(
    sides: dict[str, Callable[[], None]], rounds: int, batch: int
) -> dict[str, list[float]]:
    """Return the milliseconds for 1,000 images by side, all sides in turns."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for run in sides.values():
        run()
    for _ in range(rounds):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            found[name].append((time.perf_counter() - start) * 1e6 / (STEPS * batch))
    return found


def benchmark(args: argparse.Namespace) -> None:
    """Measure for each number of devices and write the section."""
    body: list[list[str]] = []
    virtual = jax.devices()[0].platform == "cpu"
    for batch in BATCHES:
        for count in args.devices:
            found = milliseconds(Sides(count, batch).all(), args.seeds, batch)
            for name, took in found.items():
                ratios = [a / b for a, b in zip(took, found[RIGHT], strict=True)]
                body.append([f"{batch:,}", str(count), name, spread(took, 1), spread(ratios)])
    head = ["batch", "devices", "side", "ms per 1,000 images", "times `as it should be`"]
    kind = "virtual devices that share the CPU's cores" if virtual else jax.devices()[0].device_kind
    write_section(args, NAME, f"""## Why two devices can be slower than one

{measured_here(args)}
- {kind}; jax {jax.__version__}. {args.seeds} rounds of all sides in turns, {STEPS} steps each;
  median (least-greatest).

{table(head, body)}
""")  # fmt: skip


if __name__ == "__main__":
    options = parser(__doc__, seeds=5)
    options.add_argument("--devices", nargs="+", type=int, default=[1, 2, 4])
    arguments = options.parse_args()
    os.environ.setdefault(
        "XLA_FLAGS", f"--xla_force_host_platform_device_count={max(arguments.devices)}"
    )
    main(benchmark, arguments)
