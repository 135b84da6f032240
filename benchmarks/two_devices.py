"""Why two devices can be slower than one: each known cause by itself, on the same small network.

A convolutional network of some 62,000 parameters on images of 28x28 (random: only time counts),
batches of 1,024 and of 64 over all devices, Adam. `as it should be` is one program for five steps,
gradients averaged inside of it; each other side differs from it in one thing:

- ``a step at a time``: a dispatch for every step, and waiting for it;
- ``fed through the host``: as that, each step's images moved from host memory first;
- ``averaged on the host``: as that, each device's gradients fetched, averaged in NumPy, sent back;
- ``parameters on one device``: they live on the first device, are sent to all for each step, and
  the gradients come back there.

All sides run in turns in one process. On a CPU the devices are virtual and share its cores: then
only what each side costs more than the first one says something, not one device against two.
`plain` is the same program without any device axis, for what that axis costs on one device.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from datetime import date
from typing import Any

from harness import main, parser
from machine import machine
from report import spread, table, write_section

NAME = "two_devices"
BATCHES, STEPS = (1024, 64), 5
PLAIN, RIGHT = "plain", "as it should be"


def network(params: Any, x: Any) -> Any:
    """Logits ``[B, 10]`` of images ``[B, 28, 28, 1]``."""
    import jax

    from flatout.networks.convolution import convolve
    from flatout.supervised.networks import pool

    for kernel, bias in params[:2]:
        x = pool(jax.nn.relu(convolve(x, kernel, 1, "SAME") + bias))
    (dense, dense_bias), (head, head_bias) = params[2:]
    x = jax.nn.relu(x.reshape(len(x), -1) @ dense + dense_bias)
    return x @ head + head_bias


def initial() -> Any:
    """The network's parameters (NumPy)."""
    import numpy as np

    rng = np.random.default_rng(0)
    shapes = [(5, 5, 1, 6), (5, 5, 6, 12), (588, 100), (100, 10)]
    return [
        (
            rng.normal(0, 0.05, shape).astype(np.float32),
            np.zeros(shape[-1], np.float32),
        )
        for shape in shapes
    ]


class Sides:
    """The ways to take steps on K devices; each returns a function of no arguments that takes
    `STEPS` of them and waits."""

    def __init__(self, count: int, batch: int) -> None:
        import jax
        import numpy as np
        import optax

        self.devices = jax.devices()[:count]
        self.mesh = jax.sharding.Mesh(np.array(self.devices), ("devices",))
        spec = jax.sharding.PartitionSpec
        self.everywhere = jax.sharding.NamedSharding(self.mesh, spec())
        self.split = jax.sharding.NamedSharding(self.mesh, spec("devices"))
        self.adam = optax.adam(1e-3)
        rng = np.random.default_rng(1)
        self.batch = batch
        self.images = rng.random((STEPS, batch, 28, 28, 1)).astype(np.float32)
        self.labels = rng.integers(0, 10, (STEPS, batch)).astype(np.int32)

    def gradient(self, params: Any, x: Any, y: Any) -> Any:
        """Of the mean loss of a batch."""
        import jax
        import optax

        def loss(params: Any) -> Any:
            found = network(params, x)
            return optax.softmax_cross_entropy_with_integer_labels(found, y).mean()

        return jax.grad(loss)(params)

    def step(self, state: Any, grads: Any) -> Any:
        """Parameters and optimiser after one step."""
        import optax

        params, moments = state
        updates, moments = self.adam.update(grads, moments)
        return optax.apply_updates(params, updates), moments

    def scanned(self, average: Callable[[Any], Any]) -> Callable[..., Any]:
        """Several steps in one program."""
        import jax

        def run(state: Any, images: Any, labels: Any) -> Any:
            def one(state: Any, batch: Any) -> Any:
                return self.step(state, average(self.gradient(state[0], *batch))), None

            return jax.lax.scan(one, state, (images, labels))[0]

        return run

    def together(self) -> Callable[[], None]:
        """One program over all devices, gradients averaged inside."""
        import jax

        spec = jax.sharding.PartitionSpec
        average = lambda grads: jax.lax.pmean(grads, "devices")  # noqa: E731
        program = jax.jit(
            jax.shard_map(
                self.scanned(average), mesh=self.mesh, check_vma=False,
                in_specs=(spec(), spec(None, "devices"), spec(None, "devices")), out_specs=spec(),
            )
        )  # fmt: skip
        where = jax.sharding.NamedSharding(self.mesh, spec(None, "devices"))
        given = jax.device_put((self.images, self.labels), where)
        state = jax.device_put(self.fresh(), self.everywhere)
        return lambda: jax.block_until_ready(program(state, *given))

    def fresh(self) -> Any:
        """Parameters and optimiser at the start."""
        params = initial()
        return params, self.adam.init(params)

    def plain(self) -> Callable[[], None]:
        """On the first device, without an axis of devices."""
        import jax

        program = jax.jit(self.scanned(lambda grads: grads))
        given = jax.device_put((self.fresh(), self.images, self.labels), self.devices[0])
        return lambda: jax.block_until_ready(program(*given))

    def stepwise(self, feed: bool) -> Callable[[], None]:
        """A dispatch for each step; with `feed` its images come from the host."""
        import jax

        spec = jax.sharding.PartitionSpec

        def one(state: Any, images: Any, labels: Any) -> Any:
            grads = jax.lax.pmean(self.gradient(state[0], images, labels), "devices")
            return self.step(state, grads)

        program = jax.jit(
            jax.shard_map(
                one, mesh=self.mesh, in_specs=(spec(), spec("devices"), spec("devices")),
                out_specs=spec(), check_vma=False,
            )
        )  # fmt: skip
        pieces = list(zip(self.images, self.labels, strict=True))
        there = [jax.device_put(piece, self.split) for piece in pieces]
        start = jax.device_put(self.fresh(), self.everywhere)

        def run() -> None:
            state = start
            for number in range(STEPS):
                batch = there[number]
                if feed:
                    batch = jax.block_until_ready(jax.device_put(pieces[number], self.split))
                state = jax.block_until_ready(program(state, *batch))

        return run

    def by_hand(self, on_host: bool) -> Callable[[], None]:
        """Each device's gradients by a program of its own; averaged on the host, or on the first
        device, where parameters live and from where they are sent."""
        import jax
        import numpy as np

        devices = self.devices
        size = self.batch // len(devices)
        there = [
            [
                jax.device_put((x[i * size : (i + 1) * size], y[i * size : (i + 1) * size]), device)
                for i, device in enumerate(devices)
            ]
            for x, y in zip(self.images, self.labels, strict=True)
        ]
        gradient, step = jax.jit(self.gradient), jax.jit(self.step)

        def averaged(*grads: Any) -> Any:
            return sum(grads[1:], grads[0]) / len(grads)

        combine = jax.jit(lambda grads: jax.tree.map(averaged, *grads))
        start = jax.device_put(self.fresh(), devices[0])

        def run() -> None:
            state = start
            for number in range(STEPS):
                sent = [jax.device_put(state[0], device) for device in devices]
                grads = [
                    gradient(params, *batch)
                    for params, batch in zip(sent, there[number], strict=True)
                ]
                if on_host:
                    fetched = jax.device_get(grads)
                    mean = jax.tree.map(lambda *one: np.mean(one, 0), *fetched)
                else:
                    mean = combine(jax.device_put(grads, devices[0]))
                state = jax.block_until_ready(step(state, mean))

        return run

    def all(self) -> dict[str, Callable[[], None]]:
        """Every side by its name."""
        return {
            PLAIN: self.plain(),
            RIGHT: self.together(),
            "a step at a time": self.stepwise(feed=False),
            "fed through the host": self.stepwise(feed=True),
            "parameters on one device": self.by_hand(on_host=False),
            "averaged on the host": self.by_hand(on_host=True),
        }


def milliseconds(
    sides: dict[str, Callable[[], None]], rounds: int, batch: int
) -> dict[str, list[float]]:
    """For 1,000 images, by side, all sides in turns."""
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
    import jax

    body: list[list[str]] = []
    costs: list[str] = []
    virtual = jax.devices()[0].platform == "cpu"
    for batch in BATCHES:
        for count in args.devices:
            found = milliseconds(Sides(count, batch).all(), args.seeds, batch)
            for name, took in found.items():
                ratios = [a / b for a, b in zip(took, found[RIGHT], strict=True)]
                body.append([f"{batch:,}", str(count), name, spread(took, 1), spread(ratios)])
            if count == 1:
                axis = [a / b for a, b in zip(found[RIGHT], found[PLAIN], strict=True)]
                costs.append(f"{spread(axis, 3)} with {batch:,} images")
    head = ["batch", "devices", "side", "ms per 1,000 images", "times `as it should be`"]
    kind = "virtual devices that share the CPU's cores" if virtual else jax.devices()[0].device_kind
    cost = f"- On one device the axis of devices costs, in times of `plain`: {', '.join(costs)}."
    text = f"""## Why two devices can be slower than one

- Machine: {machine()}; {kind}.
- Date: {date.today()}.
- Command: `python benchmarks/two_devices.py --devices {" ".join(map(str, args.devices))}`
- Versions: python {sys.version.split()[0]}, jax {jax.__version__}.
- {args.seeds} rounds of all sides in turns, {STEPS} steps each; median (least-greatest).
{cost if costs else ""}

{table(head, body)}
"""
    write_section(args, NAME, text)


if __name__ == "__main__":
    options = parser(__doc__, seeds=5)
    options.add_argument("--devices", nargs="+", type=int, default=[1, 2, 4])
    arguments = options.parse_args()
    os.environ.setdefault(
        "XLA_FLAGS", f"--xla_force_host_platform_device_count={max(arguments.devices)}"
    )
    main(benchmark, arguments)
