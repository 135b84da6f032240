"""The cost of slow resets, without and with spare environments.

Resets take no time, 300 ms without spares, and 300 ms with spares, in turns. Those that sleep stand
for resets that wait for another process; others compute in Python. After that, ``flatout plan
--what-if spare-envs=all`` predicts runs of the same environments without and with spares, in its
own placements; these runs are then made.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from contextlib import ExitStack
from typing import Any

from flatout.engine.sampler import Sampler
from harness import CACHED, Command, Row, Store, main, parser, train_command
from plan import costly, plan_command
from report import (
    RATIO_HEAD,
    measured_here,
    per_round,
    provenance,
    ratio_row,
    spread,
    table,
    write_section,
)
from samplers import started_sampler

NAME = "spare_envs"
WORKERS, EACH, LENGTH, STEP_MS, RESET_MS = 2, 8, 100, 1.0, 300.0
FREE, WAITED, SPARED = "free resets", "without spares", "with spares"
KINDS = {
    "sleeps": {"reset_sleep_ms": RESET_MS},
    "computes in Python": {"reset_work_ms": RESET_MS},
}

PREDICTED_HEAD = [
    "a reset", "spares", "placement", "predicted, steps/s", "run, steps/s", "predicted / run",
]  # fmt: skip
PLAN_S = 60
"""Seconds in which planning measures a run."""
TRAJECTORIES = {"0": 3, "all": 6}
"""Trajectories of a training run without and with spares."""


def opened(stack: ExitStack, spares: str, costs: dict[str, Any]) -> Sampler:
    """Return a started sampler, whose trajectories are one episode long."""
    settings = {
        "env": "costly_env:make", "envs": WORKERS * EACH, "n_steps": LENGTH, "batch_size": LENGTH,
        "env_kwargs": costs | {"sleep_ms": STEP_MS, "length": LENGTH}, "spare_envs": spares,
        "placement": f"sampler=processes workers={WORKERS}x{EACH}",
    }  # fmt: skip
    sampler, _ = stack.enter_context(started_sampler(settings))
    sampler.collect()  # not timed: the first resets of the spares
    sampler.commit()
    return sampler


def rate(sampler: Sampler, trajectories: int) -> float:
    """Return the steps per second of some trajectories."""
    begin = time.perf_counter()
    steps = 0
    for _ in range(trajectories):
        sampler.collect()
        sampler.commit()
        steps += sampler.steps_collected
    return steps / (time.perf_counter() - begin)


def measure(costs: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Return the rates of each side; the sides take turns."""
    with ExitStack() as stack:
        samplers = {
            FREE: opened(stack, "0", {}),
            WAITED: opened(stack, "0", costs),
            SPARED: opened(stack, "all", costs),
        }
        rates: dict[str, list[float]] = {side: [] for side in samplers}
        for _ in range(rounds):
            for side, sampler in samplers.items():
                rates[side].append(rate(sampler, 2))
    return rates


def compare_sides(args: argparse.Namespace) -> None:
    """Measure both kinds of resets and write the section."""
    body, ratios = [], []
    for kind, costs in KINDS.items():
        found = measure(costs, args.seeds)
        body.append([kind, *(spread(found[side], 0) for side in (FREE, WAITED, SPARED))])
        for side in (SPARED, WAITED):
            label = f"a reset that {kind}, {side} / {FREE}"
            ratios.append(ratio_row(label, per_round(found[side], found[FREE])))
    write_section(args, NAME, f"""## Slow resets, with and without spare environments

{measured_here(args)}
- {WORKERS * EACH} environments in {WORKERS} actor processes, {STEP_MS:g} ms of sleep a step,
  {RESET_MS:g} ms a reset, episodes of {LENGTH} steps that end at the same time; PPO acts and does
  not learn. {args.seeds} rounds of two episodes, in turns.

{table(["a reset", *(f"{side}, steps/s" for side in (FREE, WAITED, SPARED))], body)}

{table(RATIO_HEAD, ratios)}
""")  # fmt: skip


def flags(costs: dict[str, Any]) -> list[str]:
    """Return the flags of a PPO run on 16 environments with trajectories of one episode."""
    env = costly(**costs, sleep_ms=STEP_MS, length=LENGTH)
    return [*env, "--envs", str(WORKERS * EACH), "--n-steps", str(LENGTH), "--batch-size", "400"]


def train(
    args: argparse.Namespace, costs: dict[str, Any], spares: str, placement: str, seed: int
) -> Command:
    """Return a training run without (`"0"`) or with (`"all"`) spares."""
    steps = TRAJECTORIES[spares] * WORKERS * EACH * LENGTH
    return train_command(
        args, NAME, spares, seed, *flags(costs), "--steps", str(steps), "--no-tensorboard",
        "--checkpoint-every", "0", "--log-every", "1000000", "--spare-envs", spares,
        env=CACHED, placement=placement,
    )  # fmt: skip


def compare_predictions(args: argparse.Namespace) -> None:
    """Plan, run both sides of each kind of resets, and write the section."""
    store = Store(NAME, {"plan_s": PLAN_S}, args)
    rows, everything = list[list[str]](), dict[str, list[Row]]()
    for kind, costs in KINDS.items():
        words = [*flags(costs), "--what-if", "spare-envs=all"]
        plan = store.run(f"plan, {kind}", 0, plan_command(args, "ppo", words, PLAN_S))["result"]
        (gain,) = plan["what_if"]
        now = next(row for row in plan["predictions"] if row["placement"] == plan["chosen"])
        expected = {
            "0": (now["placement"], [now[name] for name in ("rate", "low", "high")]),
            "all": (gain["then"], [now["rate"] * gain[name] for name in ("gain", "low", "high")]),
        }
        runs = store.alternate(
            {
                f"{kind}, spares {spares}": functools.partial(train, args, costs, spares, placement)
                for spares, (placement, _) in expected.items()
            },
            range(args.seeds),
        )
        everything |= runs
        for (spares, (placement, (rate, low, high))), found in zip(
            expected.items(), runs.values(), strict=True
        ):
            real = [row["result"]["steps_per_s"] for row in found]
            rows.append([
                kind, spares, f"`{placement}`", f"{rate:,.0f} ({low:,.0f}-{high:,.0f})",
                spread(real, 0), f"{rate / statistics.median(real):.2f}",
            ])  # fmt: skip
    write_section(args, f"{NAME}_plan", f"""## Spare environments: predicted and run

{provenance(args, everything)}
- The same environments, PPO with {WORKERS * EACH} of them, learning included. `flatout plan
  --what-if spare-envs=all --seconds {PLAN_S}` predicts runs without and with spares in the
  placements that it would choose; these are run with `--spare-envs` 0 and all, {args.seeds} times
  in turns.

{table(PREDICTED_HEAD, rows)}
""")  # fmt: skip


SECTIONS = {"sides": compare_sides, "predictions": compare_predictions}


def benchmark(args: argparse.Namespace) -> None:
    """Write the sections that are asked for."""
    for name in args.only or SECTIONS:
        SECTIONS[name](args)


if __name__ == "__main__":
    options = parser(__doc__, seeds=3, fewest=3)
    options.add_argument("--only", nargs="*", choices=list(SECTIONS), help="write these sections")
    main(benchmark, options.parse_args())
