"""DDPG on Pendulum-v1 at equal work: Flatout against a teaching program.

The program (``peers/w2_ddpg.py``) acts one state at a time, samples a deque and updates after every
step in plain PyTorch; the preset ``pendulum-ddpg-w2`` has its rates, networks, memory and noise.
Both take the same number of steps (200 each episode) and updates, which is checked. Flatout runs
once more the other way round: a whole episode of steps first, then their 200 updates ("sample
first, then update"), which changes what is learned from and hence has its returns beside it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from harness import (
    BenchmarkError,
    Row,
    Store,
    main,
    parser,
    peer_command,
    require_work,
    train_command,
)
from report import (
    RATIO_HEAD,
    mean_std,
    per_round,
    provenance,
    ratio_row,
    spread,
    table,
    write_section,
)
from window import figures

NAME = "w2_ddpg"
PRESET = "pendulum-ddpg-w2"
EPISODE, MINIMUM = 200, 1000
OURS, FIRST, THEIRS = "flatout", "flatout, sample first", "pytorch"


def benchmark(args: argparse.Namespace) -> None:
    """Run the sides in turn, check their work, write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    steps = args.episodes * EPISODE
    if steps <= MINIMUM:
        raise BenchmarkError(f"nothing is learned within {MINIMUM} steps: more --episodes.")
    updates = steps - MINIMUM
    flags = (
        "--preset", PRESET, "--steps", str(steps), "--learning-starts", str(MINIMUM),
    )  # fmt: skip
    every = ("--train-freq", "1", "--gradient-steps", "1")
    first = ("--train-freq", str(EPISODE), "--gradient-steps", str(EPISODE))
    peer = ("--episodes", str(args.episodes), "--threads", str(args.peer_threads))
    settings: Row = {
        "flags": list(flags), "extra": args.flatout_args, "threads": args.peer_threads,
    }  # fmt: skip
    store = Store(NAME, settings, args)

    def check(row: Row) -> None:
        require_work(row, steps, updates, slack=EPISODE if row["side"] == FIRST else 1)

    rows = store.alternate(
        {
            OURS: lambda seed: train_command(
                args, NAME, "flatout", seed, *flags, *every, algorithm="ddpg"
            ),
            THEIRS: lambda seed: peer_command(args, "w2_ddpg.py", seed, *peer),
            FIRST: lambda seed: train_command(
                args, NAME, "first", seed, *flags, *first, algorithm="ddpg"
            ),
        },
        range(args.seeds),
        check=check,
    )
    write_section(args, NAME, section(args, rows, steps, updates))


def seconds(rows: Sequence[Row]) -> list[float]:
    """Seconds of training: after start-up (Flatout), after imports (PyTorch).

    Raises:
        BenchmarkError: a run lacks what tells.
    """
    return [
        steps / rate
        for steps, rate in zip(figures(rows, "steps"), figures(rows, "steps_per_s"), strict=True)
    ]


def section(args: argparse.Namespace, rows: dict[str, list[Row]], steps: int, updates: int) -> str:
    """The Markdown of this benchmark."""
    time = {side: seconds(runs) for side, runs in rows.items()}
    whole = {side: [row["wall_s"] for row in runs] for side, runs in rows.items()}
    body = [
        [
            side, spread(time[side], 1), spread(figures(runs, "steps_per_s"), 0),
            spread(whole[side], 1), f"{statistics.median(row['cpu_s'] for row in runs):.1f}",
            f"{statistics.median(row['max_rss_mb'] for row in runs):.0f}",
            mean_std(figures(runs, "return_mean_100")), spread(figures(runs, "updates"), 0),
        ]
        for side, runs in rows.items()
    ]  # fmt: skip
    head = [
        "side", "s of training", "steps/s", "whole process, s", "CPU s", "peak RSS, MiB",
        "last 100 returns", "updates",
    ]  # fmt: skip
    ratios = [
        ("pytorch / flatout, s of training", per_round(time[THEIRS], time[OURS])),
        ("pytorch / flatout sample first, s of training", per_round(time[THEIRS], time[FIRST])),
        ("flatout / flatout sample first, s of training", per_round(time[OURS], time[FIRST])),
        ("pytorch / flatout, whole process", per_round(whole[THEIRS], whole[OURS])),
    ]
    shares = [
        [
            side,
            *(
                f"{statistics.median(row['result']['phases'][span] for row in rows[side]):.1%}"
                for span in ("act", "env", "replay", "learn", "compile", "other")
            ),
        ]
        for side in (OURS, FIRST)
    ]
    share_head = ["whole process", "act", "env", "replay", "learn", "compile", "other"]
    return f"""## DDPG on Pendulum-v1: against a teaching program

{provenance(args, rows)}
- {steps:,} steps ({args.episodes} episodes) and {updates:,} updates of 64 on every side, checked
  (sampling first may make {EPISODE} more or fewer: its first block is at step {MINIMUM:,} or after
  it); networks of 64x64, no compilation cache. Training is timed after start-up (Flatout) and
  after imports (PyTorch, which has {args.peer_threads or "its default number of"} thread(s)).
- Until step {MINIMUM:,} Flatout's actions are random and the program's are its untrained actor's;
  neither learns there.

{table(head, body)}

{table(RATIO_HEAD, [ratio_row(label, values) for label, values in ratios])}

{table(share_head, shares)}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    options.add_argument("--episodes", type=int, default=200, help="of 200 steps")
    options.add_argument(
        "--peer-threads", type=int, default=1, help="PyTorch's threads (0: its default)"
    )
    main(benchmark, options.parse_args())
