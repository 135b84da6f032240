"""The time of one update's matrix products alone: what the machine's arithmetic would allow.

`products` lists the matrix products of one SAC or TD3 update, forward and both backward ones, as
shapes. The program runs exactly these, one after another, in float32: in one compiled JAX program,
or with NumPy. Everything else that an update consists of (activations, optimisers, target
networks, random numbers, replay) is left out. The rate is that of the median call, so that a moment
in which the machine did something else does not lower it. Prints one JSON object on stdout.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

REPEATS = 20
"""Updates per timed call."""


@dataclass(frozen=True)
class Product:
    """``left @ right`` of ``[rows, inner]`` and ``[inner, columns]``.

    `kind` says how the operands lie in memory: ``forward`` (both as written), ``weights``
    (the left one is stored transposed: x.T @ g) or ``inputs`` (the right one is: g @ w.T).
    """

    rows: int
    inner: int
    columns: int
    kind: str = "forward"

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns


def forward(widths: Sequence[int], batch: int) -> list[Product]:
    """A network's layers from input to output: ``x[B, i] @ w[i, o]`` each."""
    return [Product(batch, i, o) for i, o in pairwise(widths)]


def weight_gradients(widths: Sequence[int], batch: int) -> list[Product]:
    """``x.T[i, B] @ g[B, o]`` for each layer."""
    return [Product(i, batch, o, "weights") for i, o in pairwise(widths)]


def input_gradients(widths: Sequence[int], batch: int, first: int = 0) -> list[Product]:
    """``g[B, o] @ w.T[o, i]`` for each layer but the first; of that one for `first` inputs only.

    Args:
        widths: of the network.
        batch: rows.
        first: how many of the network's own inputs need a gradient (a critic's actions).
    """
    needed = [first, *widths[1:-1]]
    pairs = zip(needed, widths[1:], strict=True)
    return [Product(batch, o, i, "inputs") for i, o in pairs if i]


def products(
    algorithm: str, obs: int, actions: int, hidden: Sequence[int], batch: int
) -> tuple[list[Product], int]:
    """The matrix products of a whole number of updates, and that number.

    SAC, one update:

    - the actor (whose last layer gives mean and deviation, 2 x `actions`) forward on the batch and
      on the next observations; on the batch also backward: the gradients of its weights, and those
      of its inner layers' inputs;
    - both target critics forward on the next observations;
    - both critics forward and backward for their own loss (as the actor), and forward again on
      the actor's actions, where only the gradients of inputs are needed, down to the actions.

    TD3, two updates, of which one moves the actor (its delay is 2):

    - in each update: the target actor and both target critics forward on the next observations;
      both critics forward and backward;
    - in one of the two: the actor forward and backward, the first critic forward on its actions,
      and gradients of inputs down to the actions.

    Args:
        algorithm: ``sac`` or ``td3``.
        obs: components of an observation.
        actions: components of an action.
        hidden: widths of the hidden layers of actor and critics.
        batch: transitions per update.
    """
    actor = [obs, *hidden, 2 * actions if algorithm == "sac" else actions]
    critic = [obs + actions, *hidden, 1]

    def learned(widths: Sequence[int]) -> list[Product]:
        return [
            *forward(widths, batch), *weight_gradients(widths, batch),
            *input_gradients(widths, batch),
        ]  # fmt: skip

    through = [*forward(critic, batch), *input_gradients(critic, batch, first=actions)]
    targets = forward(actor, batch) + 2 * forward(critic, batch)
    if algorithm == "sac":
        return targets + 2 * learned(critic) + learned(actor) + 2 * through, 1
    return 2 * (targets + 2 * learned(critic)) + learned(actor) + through, 2


def operand_shapes(product: Product) -> tuple[tuple[int, int], tuple[int, int]]:
    """The operands' shapes as they lie in memory."""
    left, right = (product.rows, product.inner), (product.inner, product.columns)
    if product.kind == "weights":
        left = left[::-1]
    if product.kind == "inputs":
        right = right[::-1]
    return left, right


def numpy_runner(wanted: Sequence[Product]) -> Callable[[], None]:
    """Runs all products REPEATS times with NumPy, into arrays that are there already."""
    import numpy as np

    random = np.random.default_rng(0)
    ready = []
    for product in wanted:
        left, right = (
            random.standard_normal(shape, np.float32) for shape in operand_shapes(product)
        )
        if product.kind == "weights":
            left = left.T
        if product.kind == "inputs":
            right = right.T
        ready.append((left, right, np.empty((product.rows, product.columns), np.float32)))

    def run() -> None:
        for _ in range(REPEATS):
            for left, right, out in ready:
                np.matmul(left, right, out=out)

    return run


def jax_runner(wanted: Sequence[Product]) -> Callable[[], None]:
    """Runs all products REPEATS times in one compiled program.

    One element of each left operand is taken from the product before it, and all results are the
    loop's state: so none can be moved out of the loop, left out or run beside another.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    jax.config.update("jax_platforms", "cpu")
    random = np.random.default_rng(0)
    pairs = [
        tuple(jnp.asarray(random.standard_normal(s, np.float32)) for s in operand_shapes(product))
        for product in wanted
    ]
    lefts, rights = [left for left, _ in pairs], [right for _, right in pairs]
    contracted = {"forward": ((1,), (0,)), "weights": ((0,), (0,)), "inputs": ((1,), (1,))}
    State = tuple[list[jax.Array], list[jax.Array]]

    def once(state: State, rights: list[jax.Array]) -> State:
        lefts, outs = state
        before, changed, made = outs[-1], list[jax.Array](), list[jax.Array]()
        for product, left, right in zip(wanted, lefts, rights, strict=True):
            element = jnp.clip(before[:1, :1], -1.0, 1.0)
            changed.append(lax.dynamic_update_slice(left, element, (0, 0)))
            dimensions = (contracted[product.kind], ((), ()))
            before = lax.dot_general(changed[-1], right, dimensions)
            made.append(before)
        return changed, made

    @jax.jit
    def program(lefts: list[jax.Array], rights: list[jax.Array]) -> State:
        start = [jnp.zeros((p.rows, p.columns), jnp.float32) for p in wanted]
        return lax.fori_loop(0, REPEATS, lambda _, state: once(state, rights), (lefts, start))

    def run() -> None:
        jax.block_until_ready(program(lefts, rights))

    return run


def layer_widths(text: str) -> list[int]:
    """Return the widths of layers, which are written as in Flatout: 64,64."""
    return [int(word) for word in text.split(",")]


def main() -> None:
    """Time the products for a while and print the rate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--algo", choices=("sac", "td3"), default="sac")
    add("--engine", choices=("jax", "numpy"), default="jax")
    add("--obs", type=int, default=3, help="components of an observation (Pendulum-v1 has 3)")
    add("--actions", type=int, default=1)
    add("--hidden", type=layer_widths, default=[256, 256])
    add("--batch-size", type=int, default=256)
    add("--seconds", type=float, default=5.0, help="of measuring")
    add("--seed", type=int, default=0, help="only names the run: products have no randomness")
    args = parser.parse_args()

    from importlib.metadata import version

    wanted, per_run = products(args.algo, args.obs, args.actions, args.hidden, args.batch_size)
    run = (jax_runner if args.engine == "jax" else numpy_runner)(wanted)
    run()  # compiles, and wakes the threads
    calls: list[float] = []
    while sum(calls) < args.seconds or len(calls) < 3:
        begin = time.perf_counter()
        run()
        calls.append(time.perf_counter() - begin)
    updates = per_run * REPEATS
    flop = sum(product.flop for product in wanted) / per_run
    rate = updates / statistics.median(calls)
    names = ("jax", "numpy") if args.engine == "jax" else ("numpy",)
    result = {
        "algo": args.algo, "engine": args.engine, "seed": args.seed,
        "products_per_update": len(wanted) / per_run, "flop_per_update": flop,
        "updates_per_s": rate, "best_updates_per_s": updates / min(calls),
        "gflop_per_s": rate * flop / 1e9, "calls": len(calls), "measured_s": math.fsum(calls),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in names},
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
