"""The cost of slow resets, without and with spare environments.

Sixteen environments of 1 ms a step, with episodes of 100 steps that all end at the same time, in
two actor processes. Their resets take no time, 300 ms without spares, and 300 ms with spares, in
turns. Resets that sleep stand for those that wait for another process; others compute in Python.

After that, ``flatout plan --what-if spare-envs=all`` measures the same environments and predicts
runs without and with spares, in its own placements; these runs are then made.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from contextlib import ExitStack
from typing import Any

from costly_env import make
from harness import (
    HERE,
    OUR_ENVS,
    BenchmarkError,
    Command,
    Row,
    Store,
    flatout,
    main,
    parser,
)
from machine import isa_and_commit, machine
from report import (
    RATIO_HEAD,
    command_line,
    per_round,
    provenance,
    ratio_row,
    spread,
    table,
    write_section,
)

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
EPISODES = {"0": 3, "all": 6}
"""Trajectories of a training run without and with spares."""


def flags(costs: dict[str, Any]) -> list[str]:
    """Return the flags of a PPO run on 16 environments with trajectories of one episode."""
    kwargs = costs | {"sleep_ms": STEP_MS, "length": LENGTH}
    return [
        "ppo", "--env", "costly_env:make",
        *(f"--env-kwargs={name}={value}" for name, value in kwargs.items()),
        "--envs", str(WORKERS * EACH), "--n-steps", str(LENGTH), "--batch-size", "400",
    ]  # fmt: skip


def predicted(args: argparse.Namespace, everything: dict[str, list[Row]]) -> list[list[str]]:
    """Return the rows of the table of predictions: for each kind of resets a run without and one
    with spares, whose results are added to `everything`."""
    store, rows = Store(NAME, {"plan_s": PLAN_S}, args), list[list[str]]()
    path = {"PYTHONPATH": OUR_ENVS["PYTHONPATH"]}
    for kind, costs in KINDS.items():
        argv = [
            flatout(args), "plan", *flags(costs), "--json", "--remeasure", "--seconds", str(PLAN_S),
            "--what-if", "spare-envs=all",
        ]  # fmt: skip
        plan = store.run(f"plan, {kind}", 0, Command(argv, path))["result"]
        (gain,) = plan["what_if"]
        now = next(row for row in plan["predictions"] if row["placement"] == plan["chosen"])
        expected = {
            "0": (now["placement"], [now[name] for name in ("rate", "low", "high")]),
            "all": (gain["then"], [now["rate"] * gain[name] for name in ("gain", "low", "high")]),
        }

        def train(seed: int, spares: str, placement: str, costs: dict[str, Any]) -> Command:
            steps = EPISODES[spares] * WORKERS * EACH * LENGTH
            run_dir = HERE / "runs" / NAME / f"{spares}-{seed}"
            return Command([
                flatout(args), "train", *flags(costs), "--seed", str(seed), "--steps", str(steps),
                "--run-dir", str(run_dir), "--json", "--placement", placement, "--no-tensorboard",
                "--checkpoint-every", "0", "--log-every", "1000000", "--spare-envs", spares,
            ], path, run_dir)  # fmt: skip

        sides = {
            f"{kind}, spares {spares}": functools.partial(
                train, spares=spares, placement=placement, costs=costs
            )
            for spares, (placement, _) in expected.items()
        }
        runs = store.alternate(sides, range(args.seeds))
        everything.update(runs)
        for (spares, (placement, rates)), found in zip(
            expected.items(), runs.values(), strict=True
        ):
            real = [row["result"]["steps_per_s"] for row in found]
            rate, low, high = rates
            rows.append([
                kind, spares, f"`{placement}`", f"{rate:,.0f} ({low:,.0f}-{high:,.0f})",
                spread(real, 0), f"{rate / statistics.median(real):.2f}",
            ])  # fmt: skip
    return rows


def opened(stack: ExitStack, spares: bool, costs: dict[str, Any]) -> Any:
    """Return a started sampler, whose trajectories are one episode long."""
    from flatout.algorithms.base import RolloutSpec
    from flatout.algorithms.registry import build_algorithm
    from flatout.config.placement import CPU, parse
    from flatout.config.settings import resolve
    from flatout.config.workers import assign_groups
    from flatout.engine.buffer import OnPolicyBuffer
    from flatout.engine.learn import Learner
    from flatout.engine.make_sampler import ActingPolicies, make_sampler, start_workers
    from flatout.engine.mesh import Mesh
    from flatout.envs.task import open_task
    from flatout.hardware import backend
    from flatout.randomness import ACT, INIT, LEARN, raw_key
    from flatout.spans import Spans
    from flatout.types import UserCode

    count = WORKERS * EACH
    source = functools.partial(make, sleep_ms=STEP_MS, length=LENGTH, **costs)
    settings = {"env": "costly", "envs": count, "n_steps": LENGTH, "batch_size": LENGTH}
    config = resolve("ppo", settings | {"spare_envs": "all" if spares else "0"})
    task = open_task(config.env, source)
    stack.callback(task.close)
    placement = parse(f"sampler=processes workers={WORKERS}x{EACH}")
    backend.start(placement)
    algorithm = build_algorithm(config, *task.spaces)
    groups = assign_groups(placement, count)
    acting = ActingPolicies(groups, algorithm, task, raw_key(0, ACT), backend.device)
    rollout = RolloutSpec(algorithm.horizon, None, count, False)
    spans = Spans()
    for policy in acting.policies:
        policy.compile()
    pool = start_workers(config, task, acting, rollout, print, code=UserCode(env=source))
    sampler = make_sampler(config, task, acting, rollout, spans, pool)
    stack.callback(sampler.close)
    learner = Learner(
        algorithm, OnPolicyBuffer(algorithm), Mesh([backend.device(CPU)], 1), raw_key(0, INIT),
        raw_key(0, LEARN), spans,
    )  # fmt: skip
    params = learner.publish(learner.start().learned)
    for publisher in acting.policies:
        publisher.publish(params, 0, spans)
    sampler.start()
    sampler.collect()  # not timed: the first resets of the spares
    sampler.commit()
    return sampler


def rate(sampler: Any, trajectories: int) -> float:
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
            FREE: opened(stack, False, {}),
            WAITED: opened(stack, False, costs),
            SPARED: opened(stack, True, costs),
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
    write_section(
        args,
        NAME,
        f"""## Slow resets, with and without spare environments

- Machine: {machine()}. {isa_and_commit()}
- Date: {time.strftime("%Y-%m-%d")}.
- Command: `{command_line(args)}`
- {WORKERS * EACH} environments in {WORKERS} actor processes, {STEP_MS:g} ms of sleep a step,
  {RESET_MS:g} ms a reset, episodes of {LENGTH} steps that end at the same time; PPO acts and does
  not learn. {args.seeds} rounds of two episodes, in turns.

{table(["a reset", *(f"{side}, steps/s" for side in (FREE, WAITED, SPARED))], body)}

{table(RATIO_HEAD, ratios)}
""",
    )


def compare_predictions(args: argparse.Namespace) -> None:
    """Plan, run both sides of each kind of resets, and write the section."""
    everything: dict[str, list[Row]] = {}
    rows = predicted(args, everything)
    write_section(
        args,
        f"{NAME}_plan",
        f"""## Spare environments: predicted and run

{provenance(args, everything)}
- {isa_and_commit()}
- The same environments, PPO with {WORKERS * EACH} of them, learning included. `flatout plan
  --what-if spare-envs=all --seconds {PLAN_S}` predicts runs without and with spares in the
  placements that it would choose; these are run with `--spare-envs` 0 and all, {args.seeds} times
  in turns.

{table(PREDICTED_HEAD, rows)}
""",
    )


SECTIONS = {"sides": compare_sides, "predictions": compare_predictions}


def benchmark(args: argparse.Namespace) -> None:
    """Write the sections that are asked for."""
    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")
    for name in args.only or SECTIONS:
        SECTIONS[name](args)


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    options.add_argument("--only", nargs="*", choices=list(SECTIONS), help="write these sections")
    main(benchmark, options.parse_args())
