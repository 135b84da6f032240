"""The loop on the device against what one would do without: Snake, genetic, many seeds.

``snake`` steps boards with random actions, in one program. ``ppo-snake`` trains PPO with a small
network, its environments on the device against the inline sampler. ``genetic`` is compared with a
plain loop over members (``peers/plain_genetic.py``), by environment steps per second at equal
members. ``seeds`` is one population of 16 CartPole seeds against two lone runs side by side, which
is what two cores can give.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import HERE, NO_CACHE, Command, Row, Store, main, parser, train_command
from report import RATIO_HEAD, per_round, provenance, ratio_row, spread, table, write_section

NAME = "device_loop"
BOARDS, BOARD_STEPS = 256, 20_000
DEVICE, HOST = ("--env-backend", "device"), ("--env-backend", "host")
FUSED = "sampler=device schedule=fused"
SNAKE = (
    "--env", "flatout/Snake-v0", "--batch-size", "1024", "--n-epochs", "1", "--network", "onehot",
    "--hidden", "16",
)  # fmt: skip
GENETIC = ("--env", "CartPole-v1", "--hidden", "32", "--n-steps", "500")
NUMBERS, POPULATIONS = (8, 32, 256), (64, 1024)
"""Environments of PPO; members of the genetic algorithm."""
CARTPOLE = ("--env", "CartPole-v1", "--envs", "8", "--n-steps", "128", "--batch-size", "256")
MEMBERS = 16


def benchmark(args: argparse.Namespace) -> None:
    """Run the sides in turn, pair by pair, and write the section."""
    steps = {"ppo-snake": 2_097_152, "genetic": 10_000_000, "seeds": 524_288}
    store = Store(NAME, {"steps": steps, "boards": BOARDS}, args)

    def child(*words: object) -> Command:
        return Command([sys.executable, __file__, *map(str, words)], NO_CACHE)

    def train(
        side: str, seed: int, *flags: str, placement: str = FUSED, algorithm: str = "ppo"
    ) -> Command:
        return train_command(
            args, NAME, side, seed, *flags, algorithm=algorithm, placement=placement
        )

    def ppo(envs: int, where: str, seed: int) -> Command:
        device = where == "device"
        count = steps["ppo-snake"] // (1 if device else 8)
        return train(
            f"ppo-{where}-{envs}", seed, *SNAKE, "--envs", str(envs), "--n-steps",
            str(16_384 // envs), *(DEVICE if device else HOST), "--steps", str(count),
            placement=FUSED if device else "cpu",
        )  # fmt: skip

    def genetic(members: int, seed: int) -> Command:
        return train(
            f"genetic-{members}", seed, *GENETIC, *DEVICE, "--envs", str(members),
            "--steps", str(steps["genetic"]), algorithm="genetic",
        )  # fmt: skip

    def several(kind: str, seed: int, count: int) -> Command:
        command = ("--flatout", args.flatout) if args.flatout else ()
        return child("--child", kind, "--seed", seed, "--steps", count, *command)

    sides: dict[str, Callable[[int], Command]] = {
        "snake": lambda seed: child("--child", "snake", "--seed", seed)
    }
    for envs in NUMBERS:
        for where in ("device", "inline"):
            sides[f"PPO Snake, {envs} boards, {where}"] = partial(ppo, envs, where)
    for members in POPULATIONS:
        sides[f"genetic, {members} members, device"] = partial(genetic, members)
    plain = [sys.executable, str(HERE / "peers" / "plain_genetic.py"), "--hidden", "32"]
    sides |= {
        "genetic, plain loop": lambda seed: Command([*plain, "--seed", str(seed)], NO_CACHE),
        "16 seeds, population": lambda seed: several("population", seed, steps["seeds"]),
        "two lone runs": lambda seed: several("two", seed, 4 * steps["seeds"]),
    }
    rows = store.alternate(sides, range(args.seeds))
    write_section(args, NAME, section(args, rows))


def section(args: argparse.Namespace, rows: dict[str, list[Row]]) -> str:
    """The Markdown of this benchmark."""

    def rates(side: str) -> list[float]:
        return [float(row["result"]["steps_per_s"]) for row in rows[side]]

    body = [[side, spread(rates(side), 0)] for side in rows]
    pairs = {
        f"PPO Snake, {envs} boards: device / inline sampler": (
            f"PPO Snake, {envs} boards, device", f"PPO Snake, {envs} boards, inline")
        for envs in NUMBERS
    }  # fmt: skip
    pairs |= {
        f"genetic, {members} members: device / plain loop": (
            f"genetic, {members} members, device", "genetic, plain loop")
        for members in POPULATIONS
    }  # fmt: skip
    pairs["16 seeds / two lone runs"] = ("16 seeds, population", "two lone runs")
    ratios = [ratio_row(name, per_round(rates(a), rates(b))) for name, (a, b) in pairs.items()]
    return f"""## The loop on the device

{provenance(args, rows)}
- Steps per second after start-up and compiling. Snake: {BOARDS} boards of 10x10, random actions.
  PPO Snake: 16,384 steps an iteration, `onehot`, one hidden layer of 16, one epoch of minibatches
  of 1,024. Genetic: CartPole, one hidden layer of 32; its rate depends on how long members live.
  Seeds: PPO CartPole, {MEMBERS} members of one population from its first member's end of start-up
  to the end of all, and the sum of two runs at the same time.

{table(["side", "steps/s"], body)}

{table(RATIO_HEAD, ratios)}
"""


# --- Children -----------------------------------------------------------------------------------


def snake(seed: int) -> Row:
    """Boards that step with random actions."""
    import jax
    import jax.numpy as jnp

    from flatout.envs.device.snake import snake as make

    env = make()
    starts = jax.vmap(env.reset)(jax.random.split(jax.random.key(seed), 16 * BOARDS))[0]

    def step(carry: Any, given: Any) -> Any:
        states, eaten = carry
        bits, number = given
        keys = jax.random.wrap_key_data(bits)
        actions = (bits[:, 0] >> 30).astype(jnp.int32)
        states, _, rewards, terminated, truncated = jax.vmap(env.step)(states, actions, keys)
        over: Any = terminated | truncated
        begin = number % 16 * BOARDS
        fresh = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, begin, BOARDS), starts)

        def chosen(new: Any, old: Any) -> Any:
            return jnp.where(jnp.expand_dims(over, range(1, old.ndim)), new, old)

        return (jax.tree.map(chosen, fresh, states), eaten + rewards.sum()), None

    @jax.jit
    def run(key: Any) -> Any:
        bits = jax.random.bits(key, (BOARD_STEPS, BOARDS, 2))
        first = jax.tree.map(lambda leaf: leaf[:BOARDS], starts)
        (_, eaten), _ = jax.lax.scan(step, (first, 0.0), (bits, jnp.arange(BOARD_STEPS)))
        return eaten

    run(jax.random.key(seed)).block_until_ready()
    begin = time.perf_counter()
    eaten = float(run(jax.random.key(seed + 1)))
    seconds = time.perf_counter() - begin
    steps = BOARDS * BOARD_STEPS
    return {"steps": steps, "eaten": eaten, "wall_s": seconds, "steps_per_s": steps / seconds}


def started(args: argparse.Namespace, seed: int, steps: int, *flags: str) -> subprocess.Popen[str]:
    """A run of CartPole that prints its summary."""
    side = "population" if flags else f"lone-{seed}"
    made = train_command(
        args, NAME, side, seed, *CARTPOLE, *DEVICE, "--steps", str(steps), *flags, placement=FUSED
    )
    assert made.run_dir is not None
    subprocess.run(["rm", "-rf", str(made.run_dir)], check=True)
    return subprocess.Popen(made.argv, stdout=subprocess.PIPE, text=True)


def population(args: argparse.Namespace) -> Row:
    """All members of one population."""
    begin = time.perf_counter()
    with started(args, args.seed, args.steps, "--seeds", str(MEMBERS)) as run:
        members = json.loads(run.communicate()[0])
    end, wall = time.time(), time.perf_counter() - begin
    # What is compiled before the first member begins is start-up, too.
    folder = HERE / "runs" / NAME / f"population-{args.seed}" / "members"
    begun = {name: (folder / name / "config.json").stat().st_mtime for name in members}
    first = min(begun, key=lambda name: begun[name])
    seconds = end - begun[first] - members[first]["startup_s"]
    steps = sum(member["steps"] for member in members.values())
    return {"steps": steps, "wall_s": wall, "steps_per_s": steps / seconds}


def two(args: argparse.Namespace) -> Row:
    """Two lone runs at the same time: the sum of their speeds."""
    runs = [started(args, seed, args.steps) for seed in (args.seed, args.seed + 1)]
    found = [json.loads(run.communicate()[0]) for run in runs]
    return {
        "steps": sum(one["steps"] for one in found),
        "wall_s": max(one["wall_s"] for one in found),
        "steps_per_s": sum(one["steps_per_s"] for one in found),
    }


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    options.add_argument("--child", choices=("snake", "population", "two"), help=argparse.SUPPRESS)
    options.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child is None:
        main(benchmark, given)
    elif given.child == "snake":
        print(json.dumps(snake(given.seed)))
    else:
        print(json.dumps((population if given.child == "population" else two)(given)))
