"""PPO on slow environments in W processes, against W processes that only step them.

Two kinds of environment: one computes for 1 ms a step (W up to the number of cores), one sleeps for
5 ms (W beyond the cores). Flatout acts for all of them, learns meanwhile (`schedule=overlapped`),
and is timed over its whole iterations; the other side is `bare_envs.py`, W processes that step one
environment each with nothing between the steps: what W processes can give at most.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import (
    HERE,
    OUR_ENVS,
    BenchmarkError,
    Command,
    Row,
    Store,
    main,
    parser,
    train_command,
)
from report import provenance, spread, table, write_section
from window import rates, windowed

NAME = "actors"
OURS, BARE = "flatout", "processes alone"
ITERATIONS, WARM = 8, 2


@dataclass(frozen=True)
class Case:
    """One kind of environment, number of workers, and how many environments each has."""

    kind: str
    seconds: float
    workers: int
    each: int

    @property
    def label(self) -> str:
        """As tables show it."""
        verb = "computes" if self.kind == "burn" else "sleeps"
        return f"{verb} {1000 * self.seconds:g} ms"

    @property
    def rows(self) -> int:
        """Steps of each environment in an iteration: one of about two seconds."""
        return max(round(2.0 / (self.seconds * self.each) / 64) * 64, 32)


KINDS = (("burn", 0.001, (1, 2)), ("sleep", 0.005, (2, 8, 32)))
CASES = tuple(
    Case(kind, seconds, workers, each)
    for each in (16, 4)
    for kind, seconds, numbers in KINDS
    for workers in numbers
)


def benchmark(args: argparse.Namespace) -> None:
    """Run both sides of each case in turn, write the section and the plot."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    cores = len(os.sched_getaffinity(0))
    results: dict[Case, dict[str, list[Row]]] = {}
    for case in CASES:
        if case.kind == "burn" and case.workers > cores:
            continue
        results[case] = run_case(args, case)
    write_section(args, NAME, section(args, results))
    if not args.no_write:
        plot(results, Path(args.output).with_name("actors.svg"))


def run_case(args: argparse.Namespace, case: Case) -> dict[str, list[Row]]:
    """Both sides, in turn."""
    envs = case.workers * case.each
    per = case.rows * envs
    flags = (
        "--env", "empty_env:make", "--env-kwargs", f"{case.kind}={case.seconds}", "length=200",
        "--envs", str(envs), "--n-steps", str(case.rows), "--batch-size", "256", "--n-epochs",
        "4", "--steps", str(per * ITERATIONS), "--log-every", str(per), "--checkpoint-every", "0",
        "--no-tensorboard", "--quiet",
    )  # fmt: skip
    placement = f"sampler=processes workers={case.workers}x{case.each} schedule=overlapped"
    settings: Row = {"flags": [*flags, "--placement", placement], "extra": args.flatout_args}
    store = Store(NAME, settings, args)

    def ours(seed: int) -> Command:
        return train_command(
            args, NAME, f"{case.kind}{case.workers}x{case.each}", seed, *flags, env=OUR_ENVS,
            finish=learning(WARM * per), placement=placement,
        )  # fmt: skip

    def bare(seed: int) -> Command:
        return Command([
            sys.executable, str(HERE / "bare_envs.py"), "--workers", str(case.workers),
            f"--{case.kind}", str(case.seconds), "--seed", str(seed),
        ])  # fmt: skip

    return store.alternate({OURS: ours, BARE: bare}, range(args.seeds))


def learning(start: int) -> Callable[[Command, Row], Row]:
    """Adds Flatout's window, and the share of it in which the learner's thread learned."""

    def finish(train: Command, result: Row) -> Row:
        found = windowed(start)(train, result)
        assert train.run_dir is not None
        text = (train.run_dir / "metrics.jsonl").read_text()
        rows = [row for row in map(json.loads, text.splitlines()) if row["step"] > start]
        learned = sum(row["time/learn_s"] for row in rows)  # a row for each iteration
        return found | {"learning": learned / found["window"]["s"]}

    return finish


def bare_rates(rows: Sequence[Row]) -> list[float]:
    """What the processes gave."""
    return [row["result"]["steps_per_s"] for row in rows]


def section(args: argparse.Namespace, results: dict[Case, dict[str, list[Row]]]) -> str:
    """The Markdown of this benchmark."""
    body = []
    for case, rows in results.items():
        ours, bare = rates(rows[OURS]), bare_rates(rows[BARE])
        parts = [a / b for a, b in zip(ours, bare, strict=True)]
        learn = statistics.median(row["result"]["learning"] for row in rows[OURS])
        body.append(
            [
                case.label, f"{case.workers} x {case.each}", spread(ours, 0), spread(bare, 0),
                f"**{statistics.median(parts):.1%}** ({min(parts):.1%}-{max(parts):.1%})",
                f"{learn:.1%}",
            ]
        )  # fmt: skip
    head = [
        "environment", "processes x environments", "flatout, steps/s",
        "W processes alone, steps/s", "share of it",
        "learning meanwhile, share of the time",
    ]  # fmt: skip
    everything = {
        side: [row for rows in results.values() for row in rows[side]] for side in (OURS, BARE)
    }
    return f"""## Slow environments in W processes, learning included

{provenance(args, everything)}
- PPO, minibatches of 256, 4 epochs, learning while the next trajectory is collected; iterations of
  about 2 s, the first {WARM} not counted. What is lost is the time in which a process waits for its
  next actions, once for all of its environments: the more it has, the less.

{table(head, body)}

![steps per second by number of processes](actors.svg)
"""


def plot(results: dict[Case, dict[str, list[Row]]], path: Path) -> None:
    """Steps per second over W, both sides, one panel for each kind of environment."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{path.name} not drawn: matplotlib is not installed", file=sys.stderr)
        return
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    kinds = list(dict.fromkeys(case.label for case in results))
    for axes, label in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        for each in sorted({case.each for case in results}, reverse=True):
            cases = [case for case in results if (case.label, case.each) == (label, each)]
            number = [case.workers for case in cases]
            for side, measured, style in ((BARE, bare_rates, "o--"), (OURS, rates, "s-")):
                if side == BARE and each != CASES[0].each:
                    continue
                middle = [statistics.median(measured(results[case][side])) for case in cases]
                words = side if side == BARE else f"{side}, {each} environments each"
                axes.plot(number, middle, style, label=words)
        axes.set(title=f"an environment that {label}", xlabel="processes W", ylabel="steps/s")
        axes.set_ylim(bottom=0)
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path)


if __name__ == "__main__":
    main(benchmark, parser(__doc__, seeds=3).parse_args())
