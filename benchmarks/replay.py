"""A long replay of Breakout's frames: its memory, and what checkpoints cost while it is large.

    python benchmarks/replay.py                      # both, 15 min
    python benchmarks/replay.py --only memory        # the peak of a run that stores 500,000 frames

The preset ``breakout-dqn-w1`` stores steps at random and then learns. *Memory* is the peak of the
whole process, taken from outside: one number, one run. *Checkpoints*: once with a checkpoint every
1,000 updates (4,000 steps, from the first step on) and once with none before the end, in turns.
Bytes written are the system's own count for the whole process; the difference of the two sides over
the number of further checkpoints is what one costs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import BenchmarkError, Command, Row, Store, main, parser, train_command
from processes import MIB
from report import provenance, spread, table, write_section
from window import rates, windowed

PRESET = "breakout-dqn-w1"
FRAME, STACK = 88 * 80, 3
LEARNED = 400
"""Steps that are learned in after the memory is full, one update per `INTERVAL`."""
INTERVAL, LOG_EVERY = 4, 400
EVERY = 1000 * INTERVAL
"""Steps between checkpoints: 1,000 updates."""
SAVING, PLAIN = "every 1,000 updates", "at the end only"


def memory(args: argparse.Namespace) -> None:
    """Fill the memory, learn a little, and write the section."""
    name, filled = "replay_memory", args.filled or 500_000
    steps = filled + LEARNED
    flags = (
        "--preset", PRESET, "--buffer-size", str(filled), "--learning-starts", str(filled),
        "--steps", str(steps), "--checkpoint-every", "0",
    )  # fmt: skip
    store = Store(name, {"flags": list(flags)}, args)
    command = train_command(args, name, "flatout", 0, *flags, algorithm="dqn", finish=with_sizes)
    run = store.run("flatout", 0, command)
    found = run["result"]
    if found["steps"] < steps or found["updates"] < 1:
        raise BenchmarkError(f"{name}: the run did not learn from a full memory.")
    expected = found.get("memory_expected_mb") or {}
    words = ", ".join(f"{device} {size:,.0f}" for device, size in expected.items()) or "nothing"
    frames = filled * FRAME / MIB / 1024
    head = ["peak RSS from outside, MiB", "its own report, MiB", "run folder on disk, MiB",
            "steps/s", "whole process, s"]  # fmt: skip
    figures = (run["max_rss_mb"], found["peak_rss_mb"], found["disk_mb"], found["steps_per_s"],
               run["wall_s"])  # fmt: skip
    write_section(args, name, f"""## Memory of a long replay

{provenance(args, {"flatout": [run]})}
- {filled:,} steps of Breakout stored (`{PRESET}`: stacks of {STACK} frames of 88x80), then
  {LEARNED} more steps with their updates, and a checkpoint at the end.
- **Peak {run["max_rss_mb"] / 1024:.2f} GiB.** The frames alone, each stored once, are {frames:.2f}
  GiB; as stacks that two transitions share they would be {frames * STACK:.1f} GiB, in float64
  {frames * STACK * 8:.0f} GiB.
- The run expected to take, before it took it, in MiB: {words}.

{table(head, [[f"{figure:,.0f}" for figure in figures]])}
""")  # fmt: skip


def checkpoints(args: argparse.Namespace) -> None:
    """Run both ways in turn, check their work, write the section."""
    name = "replay_checkpoints"
    filled = (args.filled or 200_000) // EVERY * EVERY
    steps = filled + args.updates * INTERVAL // EVERY * EVERY + LOG_EVERY  # with every save
    updates = (steps - filled) // INTERVAL
    flags = (
        "--preset", PRESET, "--steps", str(steps), "--learning-starts", str(filled),
        "--train-freq", str(INTERVAL), "--gradient-steps", "1", "--log-every", str(LOG_EVERY),
    )  # fmt: skip
    store = Store(name, {"flags": list(flags)}, args)

    def finish(train: Command, result: Row) -> Row:
        result = windowed(filled + LOG_EVERY)(train, result)
        return with_sizes(train, result)

    def side(label: str, every: int) -> Callable[[int], Command]:
        return lambda seed: train_command(
            args, name, label, seed, *flags, "--checkpoint-every", str(every), algorithm="dqn",
            finish=finish,
        )  # fmt: skip

    def check(run: Row) -> None:
        done = run["result"]["steps"], run["result"]["updates"]
        if done[0] != steps or abs(done[1] - updates) > 1:
            raise BenchmarkError(
                f"unequal work: {run['side']} did {done[0]:,} steps and {done[1]:,} updates; "
                f"{steps:,} and {updates:,} were asked for."
            )

    sides = {SAVING: side("saving", EVERY), PLAIN: side("plain", 0)}
    rows = store.alternate(sides, range(args.seeds), check)
    write_section(args, name, checkpoint_section(args, rows, filled, updates))


def checkpoint_section(
    args: argparse.Namespace, rows: dict[str, list[Row]], filled: int, updates: int
) -> str:
    """Return the Markdown of checkpoints."""
    saving, plain = rows[SAVING], rows[PLAIN]
    each = [
        (a["written_mb"] - b["written_mb"]) / (a["result"]["saves"] - b["result"]["saves"])
        for a, b in zip(saving, plain, strict=True)
    ]
    slower = [a / b for a, b in zip(rates(plain), rates(saving), strict=True)]

    def sizes(runs: Sequence[Row], key: str, digits: int = 0) -> str:
        return spread([run["result"].get(key, run.get(key)) for run in runs], digits)

    share = {
        side: [run["result"]["window"]["phases"]["checkpoint"] for run in runs]
        for side, runs in rows.items()
    }
    body = [
        [
            side, sizes(runs, "saves"), spread([100 * one for one in share[side]], 2),
            spread(rates(runs), 1), sizes(runs, "written_mb"), sizes(runs, "replay_mb"),
            sizes(runs, "checkpoints_mb", 1), sizes(runs, "wall_s"),
        ]
        for side, runs in rows.items()
    ]  # fmt: skip
    head = [
        "checkpoints", "made", "time while learning, %", "steps/s while learning",
        "written in all, MiB", "replay/ on disk, MiB", "checkpoints/ on disk, MiB",
        "whole process, s",
    ]  # fmt: skip
    return f"""## Checkpoints with a long replay

{provenance(args, rows)}
- {filled:,} steps stored (`{PRESET}`), then {updates:,} updates, checked; the last three
  checkpoints are kept.
- **One further checkpoint writes {spread(each, 1)} MiB** and saving takes
  {statistics.median(share[SAVING]):.2%} of the time while learning (median); without
  it the same work runs {spread(slower, 3)} times as fast.

{table(head, body)}
"""


def with_sizes(train: Command, result: Row) -> Row:
    """Add how many checkpoints a run made and what it holds on disk, in MiB; remove its replay."""
    folder = train.run_dir
    assert folder is not None
    saves = 1  # one for each multiple of `EVERY` steps passed, and the last
    if "plain" not in folder.name:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        saves += len({json.loads(line)["step"] // EVERY for line in lines} - {0})
    sizes = {
        "replay_mb": folder_mb(folder / "replay"),
        "checkpoints_mb": folder_mb(folder / "checkpoints"), "disk_mb": folder_mb(folder),
    }  # fmt: skip
    shutil.rmtree(folder / "replay", ignore_errors=True)
    return result | sizes | {"saves": saves}


def folder_mb(folder: Path) -> float:
    """MiB of a folder's files, as the disk holds them; 0 where there is no folder.

    A file with several names counts once.
    """
    if not folder.is_dir():
        return 0.0
    blocks = {
        (stat.st_dev, stat.st_ino): stat.st_blocks
        for stat in (path.lstat() for path in folder.rglob("*") if not path.is_dir())
    }
    return sum(blocks.values()) * 512 / MIB


PARTS = {"memory": memory, "checkpoints": checkpoints}


def benchmark(args: argparse.Namespace) -> None:
    """Measure the parts that the command line names."""
    for part in args.only:
        PARTS[part](args)


if __name__ == "__main__":
    options = parser(__doc__, seeds=1)
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--filled", type=int, help="steps stored (500,000; checkpoints: 200,000)")
    options.add_argument("--updates", type=int, default=3000, help="updates after that")
    main(benchmark, options.parse_args())
