"""What timing costs: the span bookkeeping of one vector step against the step itself.

The bookkeeping of `InlineSampler.collect` (three readings of the clock, two sums, the question
whether a trace is kept) is run alone, many times, and divided by the time that a vector step takes
in a real run, for one environment and for eight.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from datetime import date

from flatout.spans import Spans
from harness import flatout, json_of, main, parser, run_child
from machine import machine
from report import table, write_section

NAME = "span_overhead"
LOOPS = 200_000


def bookkeeping_ns() -> float:
    """Nanoseconds of one vector step's bookkeeping, the loop itself taken off."""
    clock, spans = time.perf_counter_ns, Spans()
    acting = stepping = 0
    began = clock()
    for _ in range(LOOPS):
        begin = clock()
        middle = clock()
        end = clock()
        acting += middle - begin
        stepping += end - middle
        if spans.trace:
            spans.event("act", begin, middle)
    full = clock() - began
    began = clock()
    for _ in range(LOOPS):
        pass
    return (full - (clock() - began)) / LOOPS


def benchmark(args: argparse.Namespace) -> None:
    """Measure and write the section."""
    rows: list[list[str]] = []
    cost = statistics.median(bookkeeping_ns() for _ in range(9))
    for envs in (1, 8):
        shares: list[float] = []
        step = 0.0
        for seed in range(args.seeds):
            with tempfile.TemporaryDirectory() as folder:
                command = [
                    flatout(args), "train", "ppo", "--env", "CartPole-v1", "--envs", str(envs),
                    "--n-steps", str(2048 // envs), "--steps", "40960", "--seed", str(seed),
                    "--run-dir", f"{folder}/run", "--json", "--quiet",
                ]  # fmt: skip
                result = json_of(run_child(command), "flatout")
            seconds = result["phases"]["act"] + result["phases"]["env"]
            step = seconds * result["wall_s"] / (result["steps"] / envs) * 1e9
            shares.append(cost / step)
        share = statistics.median(shares)
        rows.append([str(envs), f"{step / 1000:.1f}", f"{cost:.0f}", f"{share:.2%}"])
    head = ["environments", "acting and stepping, µs", "bookkeeping, ns", "share (median)"]
    write_section(
        args,
        NAME,
        f"""## What timing costs

- Machine: {machine()}.
- Date: {date.today()}.
- Command: `python benchmarks/span_overhead.py`
- Per vector step of CartPole-v1, {args.seeds} runs each; learning is timed once per iteration.

{table(head, rows)}
""",
    )


if __name__ == "__main__":
    main(benchmark, parser(__doc__, seeds=3).parse_args())
