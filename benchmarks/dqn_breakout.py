"""Speed of DQN on Breakout at equal work on the CPU: Flatout and Stable-Baselines3 in turn.

The Nature network, minibatches of 32, one update per 4 environment steps, 4 frames per step, no
sticky actions, a lost life as a terminal, rewards clipped; once with 8 environments and once, for
information, with 1. Frames and their preparation are ALE's own on Flatout's side and OpenCV's in
Stable-Baselines3's wrappers. Training writes what each program writes by default: Flatout metrics,
TensorBoard events and checkpoints with the replay memory in them; the peer nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from harness import BenchmarkError, Command, Row, Store, main, parser, peer_command, train_command
from report import RATIO_HEAD, per_round, provenance, ratio_row, table, write_section
from window import SPEED_HEAD, Work, phase_table, rates, speed_row, windowed

NAME = "dqn_breakout"
MANY = 8
BATCH = 32
LEARNING_STARTS, WINDOW_FROM, LOG_EVERY = 1024, 1152, 128
OURS = ("--env", "ALE/Breakout-v5", "--sticky-actions", "0", "--terminal-on-life-loss",
        "--clip-reward")  # fmt: skip
THEIRS = ("--env", "BreakoutNoFrameskip-v4", "--atari")
Pair = dict[str, Callable[[int], Command]]


def benchmark(args: argparse.Namespace) -> None:
    """Run both sides in turn, with many environments and with one, and write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    many = work_of(args.steps, MANY)
    rows = run(args, MANY, many)
    if args.steps_one:
        rows |= run(args, 1, work_of(args.steps_one, 1))
    write_section(args, NAME, section(args, rows, many))


def work_of(steps: int, envs: int) -> Work:
    """One update per 4 steps: after each 4 steps of every environment, as many as there are."""
    return Work(
        steps, LEARNING_STARTS, WINDOW_FROM, train_freq=4 * envs, gradient_steps=envs,
        log_every=LOG_EVERY,
    )  # fmt: skip


def run(args: argparse.Namespace, envs: int, work: Work) -> dict[str, list[Row]]:
    """Both sides with so many environments, checked; rows by side."""
    flags = (
        "--envs", str(envs), *work.flags(), "--batch-size", str(BATCH), "--buffer-size", "20000",
        "--learning-rate", "1e-4", "--target-update-interval", "1000",
        "--exploration-fraction", "0.1", "--exploration-final-eps", "0.05",
    )  # fmt: skip
    settings: Row = {
        "flags": list(flags), "ours": list(OURS), "theirs": list(THEIRS),
        "window_from": work.window_from, "extra": args.flatout_args,
        "threads": args.peer_threads,
    }  # fmt: skip
    store = Store(NAME, settings, args)
    args.fresh = False  # both parts share one file, which the first has put aside
    sides: Pair = {
        f"flatout, envs={envs}": lambda seed: train_command(
            args, NAME, f"flatout-{envs}", seed, *OURS, *flags, "--log-every", str(LOG_EVERY),
            algorithm="dqn", finish=windowed(work.window_from),
        ),
        f"sb3, envs={envs}": lambda seed: peer_command(
            args, "sb3_offpolicy.py", seed, "--algo", "dqn", *THEIRS, *flags,
            "--window-from", str(work.window_from), "--threads", str(args.peer_threads),
        ),
    }  # fmt: skip
    return store.alternate(sides, range(args.seeds), check=work.check)


def section(args: argparse.Namespace, rows: dict[str, list[Row]], many: Work) -> str:
    """The Markdown of this benchmark."""
    ratios = []
    for envs in (MANY, 1) if args.steps_one else (MANY,):
        ours, theirs = rows[f"flatout, envs={envs}"], rows[f"sb3, envs={envs}"]
        whole = per_round([row["wall_s"] for row in theirs], [row["wall_s"] for row in ours])
        ratios += [
            (f"flatout / sb3, envs={envs}, while learning", per_round(rates(ours), rates(theirs))),
            (f"sb3 / flatout, envs={envs}, whole process time", whole),
        ]
    flatouts = {side: runs for side, runs in rows.items() if side.startswith("flatout")}
    return f"""## DQN on Breakout: speed at equal work

{provenance(args, rows)}
- With {MANY} environments {many.steps:,} steps and {many.updates:,} updates on both sides, checked;
  with 1, {args.steps_one:,} steps. One update of {BATCH} stacks of 4 frames of 84x84 per 4 steps,
  Adam, the Nature network; on the CPU, no compilation cache. PyTorch has
  {args.peer_threads or "its default number of"} thread(s).
- "While learning" is from step {WINDOW_FROM:,} to the end; before step {LEARNING_STARTS:,} actions
  are random and nothing is learned.

{table(SPEED_HEAD, [speed_row(side, runs) for side, runs in rows.items()])}

{table(RATIO_HEAD, [ratio_row(label, values) for label, values in ratios])}

{phase_table(flatouts)}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    options.add_argument("--steps", type=int, default=6144, help="steps with 8 environments")
    options.add_argument("--steps-one", type=int, default=2560, help="steps with 1; 0: leave out")
    options.add_argument(
        "--peer-threads", type=int, default=0, help="PyTorch's threads (0: its default)"
    )
    main(benchmark, options.parse_args())
