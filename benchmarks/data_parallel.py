"""What a learner that is ready for several devices costs on one.

- ``by hand``: `flatout train classify` against the same networks written in plain JAX and in
  PyTorch (``peers/small_network.py``), images per second; 28x28 images of random pixels, as only
  time counts.
- ``parts``: PPO, DQN, SAC and the classifiers with each update split into 2 and into 4 parts, all
  on one device, against one part. One part is the plain program, without any axis of devices;
  several are what the same run computes on as many devices.

The ratios of parts are of `learn` spans (the compiled updates) and of whole steps.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np

from harness import HERE, BenchmarkError, Command, Row, Store, main, parser, peer_command
from harness import train_command as train
from report import RATIO_HEAD, per_round, provenance, ratio_row, spread, table, write_section
from window import rates, shares, windowed

NAME = "data_parallel"
IMAGES, TESTED = 20_000, 1000
SHARDS = (1, 2, 4)
NETWORKS = ("small", "large")
LIBRARIES = {"plain JAX": "jax", "PyTorch": "torch"}

Sides = dict[str, Callable[[int], Command]]


def write_images(folder: Path, images: int = IMAGES, tested: int = TESTED) -> None:
    """IDX files of random images and labels, those of a test set too."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", images), ("t10k", tested)):
        for what, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            high = 256 if len(shape) > 1 else 10
            numbers = np.array(shape, ">u4").tobytes()
            values = rng.integers(0, high, shape, np.uint8).tobytes()
            head = bytes([0, 0, 8, len(shape)])
            (folder / f"{name}-{what}-ubyte").write_bytes(head + numbers + values)


def classify_flags(args: argparse.Namespace, data: Path, size: str) -> tuple[str, ...]:
    """What all sides with images share."""
    return (
        "--data", str(data), "--size", size, "--steps", str(args.steps), "--batch-size",
        str(args.batch_size),
    )  # fmt: skip


def by_hand(args: argparse.Namespace, data: Path, size: str) -> Sides:
    """One network three times."""
    flags = classify_flags(args, data, size)

    def peer(library: str) -> Callable[[int], Command]:
        return lambda seed: peer_command(
            args, "small_network.py", seed, "--library", library, *flags,
            "--window-from", str(args.window_from), "--threads", str(args.peer_threads),
        )  # fmt: skip

    ours = f"{size}, flatout"
    sides: Sides = {
        ours: lambda seed: train(
            args, NAME, ours, seed, *flags, algorithm="classify", placement=args.placement,
            finish=windowed(args.window_from),
        )
    }  # fmt: skip
    return sides | {f"{size}, {name}": peer(library) for name, library in LIBRARIES.items()}


def tasks(args: argparse.Namespace, data: Path) -> dict[str, tuple[str, tuple[str, ...], int]]:
    """Algorithm, flags and the step from which the time counts, by what is said of it."""
    found = {
        "PPO, CartPole, 8 environments": (
            "ppo", ("--env", "CartPole-v1", "--envs", "8", "--steps", "102400"), 20_480,
        ),
        "DQN, CartPole, 4 environments, an update for 4 steps": (
            "dqn", (
                "--env", "CartPole-v1", "--envs", "4", "--steps", "20000", "--train-freq", "4",
                "--batch-size", "64", "--learning-starts", "1000", "--log-every", "1000",
            ), 4000,
        ),
        "SAC, Pendulum, 4 environments, 4 updates for 4 steps": (
            "sac", (
                "--env", "Pendulum-v1", "--envs", "4", "--steps", "2400", "--train-freq", "4",
                "--gradient-steps", "4", "--batch-size", "256", "--learning-starts", "200",
                "--log-every", "200",
            ), 600,
        ),
    }  # fmt: skip
    for size in NETWORKS:
        found[f"classify, {size}, batch {args.batch_size:,}"] = (
            "classify", classify_flags(args, data, size), args.window_from,
        )  # fmt: skip
    return found


def parted(args: argparse.Namespace, task: tuple[str, tuple[str, ...], int], label: str) -> Sides:
    """One algorithm with 1, 2 and 4 parts on one device."""
    algorithm, flags, start = task

    def side(parts: int) -> Callable[[int], Command]:
        return lambda seed: train(
            args, NAME, f"{algorithm}-{parts}", seed, *flags, "--shards", str(parts),
            algorithm=algorithm, placement=args.placement, finish=windowed(start),
        )  # fmt: skip

    return {f"{label}: {parts}": side(parts) for parts in SHARDS}


def learning(rows: list[Row]) -> list[float]:
    """Updates per second of the `learn` spans alone."""
    pairs = zip(rates(rows, "updates"), shares(rows, "learn"), strict=True)
    return [rate / share for rate, share in pairs]


def same_work(rows: dict[str, list[Row]]) -> None:
    """Refuse to compare runs that did not do the same.

    Raises:
        BenchmarkError: steps or updates differ.
    """
    done = {
        (row["result"]["steps"], row["result"]["updates"]) for runs in rows.values() for row in runs
    }
    if len(done) > 1:
        raise BenchmarkError(f"unequal work, no comparison: {sorted(done)} in {', '.join(rows)}.")


def benchmark(args: argparse.Namespace) -> None:
    """Run all sides in turn and write the section."""
    data = HERE / "runs" / NAME / "images"
    write_images(data)
    wanted = tasks(args, data)
    everything: dict[str, list[Row]] = {}

    def run(sides: Sides, settings: Row) -> dict[str, list[Row]]:
        settings |= {"placement": args.placement, "extra": args.flatout_args}
        rows = Store(NAME, settings, args).alternate(sides, range(args.seeds))
        args.fresh = False  # they share one file, which the first has put aside
        same_work(rows)
        everything.update(rows)
        return rows

    hand, hand_ratios = [], []
    for size in NETWORKS:
        flags = [args.steps, args.batch_size, args.window_from, args.peer_threads]
        rows = run(by_hand(args, data, size), {"size": size, "flags": flags})
        speed = {
            side: [rate * args.batch_size for rate in rates(runs)] for side, runs in rows.items()
        }
        for side, runs in rows.items():
            seconds = spread([row["wall_s"] for row in runs], 1)
            hand.append([side, spread(speed[side], 0), seconds])
        ours, *others = rows
        hand_ratios += [
            ratio_row(f"{ours} / {name}", per_round(speed[ours], speed[name])) for name in others
        ]
    parts = []
    for label, task in wanted.items():
        rows = run(parted(args, task, label), {"task": list(task)})
        plain, *split = rows.values()
        for count, runs in zip(SHARDS[1:], split, strict=True):
            parts.append([
                label, str(count), spread(learning(plain), 0),
                spread(per_round(learning(runs), learning(plain)), 3),
                f"{statistics.median(shares(runs, 'learn')):.0%}",
                spread(per_round(rates(runs), rates(plain)), 3),
            ])  # fmt: skip
    part_head = [
        "run", "parts", "updates/s in `learn`, one part", "`learn`, times one part's speed",
        "share of `learn`", "steps/s, times one part's",
    ]  # fmt: skip
    speed_head = ["side", "images/s", "whole process, s"]
    write_section(args, NAME, f"""## A learner for several devices, on one

{provenance(args, everything)}
- Placement of Flatout's sides: `{args.placement}`. Steps and updates are the same on all sides of a
  comparison, checked. Images: {args.steps:,} steps of {args.batch_size:,}; rates from step
  {args.window_from:,} on; all images are in memory.

The same networks by hand:

{table(speed_head, hand)}

{table(RATIO_HEAD, hand_ratios)}

Several parts on one device against one part (the plain program):

{table(part_head, parts)}
""")  # fmt: skip


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    add = options.add_argument
    add("--steps", type=int, default=100, help="gradient steps of a classifier")
    add("--batch-size", type=int, default=512, help="images in each of them")
    add("--window-from", type=int, default=40, help="the step from which their time counts")
    add("--placement", default="cpu", help="of Flatout's sides; PyTorch and JAX take a GPU if any")
    add("--peer-threads", type=int, default=0, help="PyTorch's threads (0: its default)")
    main(benchmark, options.parse_args())
