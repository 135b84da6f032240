"""Speed of DQN on CartPole-v1 at equal work: Flatout, Stable-Baselines3 and SBX in turn.

8 environments, minibatches of 32, one update per 4 environment steps, networks of 64x64: 8 updates
after every 4 vector steps on every side, or 2 after each vector step with `--updates 2`. Flatout
runs once more with longer turns of the same ratio, 1,024 steps and then their 256 updates, which
changes what is learned from, and once with its twin of the environment in one program. Rates are
taken after exploration has fallen to its final 5 %, so that all sides act mostly with their
networks. Training writes what each program writes by default: Flatout metrics, TensorBoard events
and checkpoints with the replay memory in them; the peers nothing.
"""

from __future__ import annotations

import argparse

from harness import BenchmarkError, Command, Row, Store, main, parser, peer_command, train_command
from report import RATIO_HEAD, per_round, provenance, ratio_row, table, write_section
from window import SPEED_HEAD, Work, phase_table, rates, speed_row, windowed

NAME = "dqn_cartpole"
OURS, FIRST, FUSED = "flatout", "flatout, sample first", "flatout, one program"
ENVS, BATCH = 8, 32
LOG_EVERY = 2048
EXPLORATION = 0.1
UPDATES = 8
"""Gradient updates at a time, one for every 4 environment steps before them."""


def benchmark(args: argparse.Namespace) -> None:
    """Run the sides in turn, check their work, write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    name = NAME if args.updates == UPDATES else f"{NAME}_{args.updates}"
    explored = -(-int(EXPLORATION * args.steps) // LOG_EVERY) * LOG_EVERY
    work, first = (
        Work(
            args.steps, learning_starts=1024, window_from=explored, train_freq=updates * 4,
            gradient_steps=updates, log_every=LOG_EVERY,
        )
        for updates in (args.updates, 256)
    )  # fmt: skip
    flags = (
        "--env", "CartPole-v1", "--envs", str(ENVS), "--batch-size", str(BATCH),
        "--buffer-size", "50000", "--learning-rate", "1e-4",
        "--target-update-interval", "10000", "--exploration-fraction", str(EXPLORATION),
        "--exploration-final-eps", "0.05", "--hidden", "64,64",
    )  # fmt: skip
    settings: Row = {
        "flags": [*flags, *work.flags(), *first.flags()], "window_from": work.window_from,
        "extra": args.flatout_args, "threads": args.peer_threads,
    }  # fmt: skip
    store = Store(name, settings, args)
    peer = (
        "--algo", "dqn", *flags, *work.flags(), "--window-from", str(work.window_from),
        "--threads", str(args.peer_threads),
    )  # fmt: skip

    def ours(side: str, seed: int, work: Work, *more: str) -> Command:
        return train_command(
            args, name, side, seed, *flags, *work.flags(), "--log-every", str(LOG_EVERY), *more,
            algorithm="dqn", finish=windowed(work.window_from),
        )  # fmt: skip

    rows = store.alternate(
        {
            OURS: lambda seed: ours("flatout", seed, work),
            FIRST: lambda seed: ours("first", seed, first),
            FUSED: lambda seed: ours("fused", seed, work, "--env-backend", "device"),
            "sb3": lambda seed: peer_command(
                args, "sb3_offpolicy.py", seed, "--library", "sb3", *peer
            ),
            "sbx": lambda seed: peer_command(
                args, "sb3_offpolicy.py", seed, "--library", "sbx", *peer
            ),
        },
        range(args.seeds),
        check=lambda row: (first if row["side"] == FIRST else work).check(row),
    )  # fmt: skip
    write_section(args, name, section(args, rows, work, first))


def section(args: argparse.Namespace, rows: dict[str, list[Row]], work: Work, first: Work) -> str:
    """The Markdown of this benchmark."""
    rate = {side: rates(runs) for side, runs in rows.items()}
    whole = {side: [row["wall_s"] for row in runs] for side, runs in rows.items()}
    ratios = [
        ("flatout / sb3, while learning", per_round(rate[OURS], rate["sb3"])),
        ("flatout / sbx, while learning", per_round(rate[OURS], rate["sbx"])),
        ("flatout sample first / sb3, while learning", per_round(rate[FIRST], rate["sb3"])),
        ("flatout sample first / sbx, while learning", per_round(rate[FIRST], rate["sbx"])),
        ("flatout one program / sb3, while learning", per_round(rate[FUSED], rate["sb3"])),
        ("sb3 / flatout, whole process time", per_round(whole["sb3"], whole[OURS])),
        ("sbx / flatout, whole process time", per_round(whole["sbx"], whole[OURS])),
    ]
    often = "" if args.updates == UPDATES else f", {work.gradient_steps} updates at a time"
    return f"""## DQN on CartPole-v1: speed at equal work{often}

{provenance(args, rows)}
- {work.steps:,} steps and {work.updates:,} gradient updates of {BATCH} transitions on every side,
  checked; {ENVS} environments, {work.gradient_steps} updates per {work.train_freq} steps
  ({first.gradient_steps} per {first.train_freq:,} where sampling is first), networks of
  64x64, Stable-Baselines3's other defaults; on the CPU, no compilation cache. PyTorch has
  {args.peer_threads or "its default number of"} thread(s).
- "While learning" is from step {work.window_from:,} to the end, after exploration and, with SBX,
  compilation. SBX clips no gradients; the others clip them to a norm of 10.

{table(SPEED_HEAD, [speed_row(side, runs) for side, runs in rows.items()])}

{table(RATIO_HEAD, [ratio_row(label, values) for label, values in ratios])}

{phase_table({side: rows[side] for side in (OURS, FIRST, FUSED)})}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    options.add_argument("--steps", type=int, default=81_920, help="steps of every side")
    options.add_argument(
        "--updates",
        type=int,
        default=UPDATES,
        help="gradient updates after four times as many steps",
    )
    options.add_argument(
        "--peer-threads", type=int, default=1, help="PyTorch's threads (0: its default)"
    )
    main(benchmark, options.parse_args())
