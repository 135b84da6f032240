"""Steps per second through other processes, of environments that do nothing.

What is left is the way of actions there and of observations back: W actor processes (as many as
cores) with their environments each, against Gymnasium's `AsyncVectorEnv` with shared memory, which
has a process for each environment. Both step all environments again and again with constant
actions, and each side reports the median of ten slices of its time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Mapping

from harness import HERE, BenchmarkError, Command, Row, Store, main, parser
from report import RATIO_HEAD, per_round, provenance, ratio_row, spread, table, write_section

NAME = "transport"
OURS, THEIRS = "flatout", "gymnasium"
KINDS = {"vector": "4 floats", "image": "84x84x4 bytes"}


def benchmark(args: argparse.Namespace) -> None:
    """Run the sides in turn for each number and kind, write the section."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    workers = args.workers or len(os.sched_getaffinity(0))
    rows: dict[str, list[Row]] = {}
    for envs in args.envs:
        for kind in KINDS:
            flags = (
                "--envs", str(envs), "--obs", kind, "--seconds", str(args.seconds),
                "--workers", str(workers),
            )  # fmt: skip
            store = Store(NAME, {"flags": list(flags)}, args)

            def command(side: str, seed: int, flags: tuple[str, ...] = flags) -> Command:
                program = str(HERE / "transport_side.py")
                return Command(
                    [sys.executable, program, "--side", side, *flags, "--seed", str(seed)]
                )

            found = store.alternate(
                {
                    OURS: lambda seed, command=command: command(OURS, seed),
                    THEIRS: lambda seed, command=command: command(THEIRS, seed),
                },
                range(args.seeds),
            )
            rows |= {f"{side}, {envs}, {kind}": found[side] for side in found}
    write_section(args, NAME, section(args, rows, workers))


def rates(rows: list[Row]) -> list[float]:
    """Each run's steps per second."""
    return [row["result"]["steps_per_s"] for row in rows]


def section(args: argparse.Namespace, rows: Mapping[str, list[Row]], workers: int) -> str:
    """The Markdown of this benchmark."""
    body, ratios = [], []
    for envs in args.envs:
        for kind, words in KINDS.items():
            ours, theirs = rows[f"{OURS}, {envs}, {kind}"], rows[f"{THEIRS}, {envs}, {kind}"]
            what = f"{envs} environments, {words}"
            cpu = [
                statistics.median(row["cpu_s"] / row["wall_s"] for row in runs)
                for runs in (ours, theirs)
            ]
            body.append(
                [
                    what, spread(rates(ours), 0), spread(rates(theirs), 0), f"{cpu[0]:.2f}",
                    f"{cpu[1]:.2f}",
                ]
            )  # fmt: skip
            ratios.append(ratio_row(what, per_round(rates(ours), rates(theirs))))
    head = [
        "", "flatout, steps/s", "AsyncVectorEnv, steps/s", "flatout, cores busy",
        "AsyncVectorEnv, cores busy",
    ]  # fmt: skip
    ratio_head = ["flatout / AsyncVectorEnv", *RATIO_HEAD[1:]]
    return f"""## Transport: environments that do nothing, in other processes

{provenance(args, rows)}
- Flatout with {workers} actor processes that share the environments; `AsyncVectorEnv` with
  `shared_memory=True` and its one process for each environment. {args.seconds:g} s each, the median
  of ten slices; start-up is not counted.

{table(head, body)}

{table(ratio_head, ratios)}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    add = options.add_argument
    add("--envs", type=int, nargs="+", default=[8, 32], help="numbers of environments")
    add("--workers", type=int, default=0, help="actor processes (0: one per core)")
    add("--seconds", type=float, default=4.0, help="per run")
    main(benchmark, options.parse_args())
