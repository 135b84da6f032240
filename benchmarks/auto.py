"""``--placement auto`` against placements written by hand, and against bare processes.

For each workload every placement that one would write by hand trains once; the fastest of them and
what `flatout plan` has kept for this machine then train in turns, for about as long. Beside them, a
slow Python environment: all that as many bare processes as there are cores step together.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from harness import HERE, OUR_ENVS, Command, Row, Store, flatout, main, parser
from report import RATIO_HEAD, per_round, provenance, ratio_row, table, write_section

NAME = "auto"
SCOUT_S, REAL_S = 6.0, 15.0
"""Seconds of training of a first look, and of each run that counts."""
BURN_S = 2e-3
PROCESSES = "sampler=processes"
LOCAL = "sampler=processes inference=local"


@dataclass(frozen=True)
class Workload:
    """A run, what its placement is without planning, and those that one would write.

    Attributes:
        iteration: steps of an iteration; the steps of a run are a multiple of it.
        first: steps of the first look.
    """

    name: str
    algorithm: str
    flags: tuple[str, ...]
    iteration: int
    first: int
    hand: tuple[str, ...]


W1_FLAGS = ("--preset", "breakout-dqn-w1", "--learning-starts", "512", "--buffer-size", "20000")
WORKLOADS = (
    Workload("W1, DQN Breakout", "dqn", W1_FLAGS, 4, 4000, ("cpu", "replay=device")),
    Workload("W2, PPO CartPole", "ppo", ("--preset", "cartpole-ppo-w2"), 200, 10_000, ("cpu",)),
    Workload("W2, DDPG Pendulum", "ddpg", ("--preset", "pendulum-ddpg-w2"), 1, 6000,
             ("cpu", "replay=device")),
    Workload("W3, PPO Snake", "ppo", ("--preset", "snake-ppo"), 4096, 81_920,
             ("cpu", PROCESSES, LOCAL)),
    Workload("W3, DQN Snake", "dqn", ("--preset", "snake-dqn"), 64, 25_600,
             ("cpu", "replay=device", PROCESSES, LOCAL)),
)  # fmt: skip
SLOW = Workload(
    f"PPO, {1e3 * BURN_S:g} ms of computing a step", "ppo",
    ("--env", "empty_env:make", "--env-kwargs", f"burn={BURN_S}", "--env-kwargs", "length=200",
     "--envs", "8",
     "--n-steps", "64", "--batch-size", "64"), 512, 4096, (PROCESSES,),
)  # fmt: skip
ENV = {"PYTHONPATH": OUR_ENVS["PYTHONPATH"]}  # the cache of programs helps every side alike


def benchmark(args: argparse.Namespace) -> None:
    """Scout, plan, compare, write the section."""
    lines: list[list[str]] = []
    every: list[Row] = []
    for workload in (*WORKLOADS, SLOW):
        store = Store(f"{NAME}-{workload.name.replace(' ', '-')}", {"real_s": REAL_S}, args)
        planned = store.run("plan", 0, _plan(args, workload))["result"]
        scouts = {
            hand: store.run(f"scout {hand}", 0, _train(args, workload, hand, 0, workload.first))
            for hand in workload.hand
        }
        best = max(scouts, key=lambda hand: _rate(scouts[hand]))
        steps = round(_rate(scouts[best]) * REAL_S / workload.iteration) * workload.iteration
        rows = store.alternate(
            {
                "auto": lambda seed, w=workload, n=steps: _train(args, w, "auto", seed, n),
                "best by hand": lambda seed, w=workload, n=steps, b=best: _train(
                    args, w, b, seed, n
                ),
            },
            range(args.seeds),
        )
        ratios = per_round(
            [_rate(row) for row in rows["auto"]], [_rate(row) for row in rows["best by hand"]]
        )
        lines.append([f"{workload.name}: {planned['chosen']} / {best}", *ratio_row("", ratios)[1:]])
        every += [*rows["auto"], *rows["best by hand"]]
        if workload is SLOW:
            lines.append(_against_bare(args, store, rows["auto"]))
    head = ["speed of auto / the best by hand", *RATIO_HEAD[1:]]
    write_section(
        args,
        NAME,
        f"""## `--placement auto` against placements by hand

{provenance(args, {"runs": every})}
- {args.seeds} pairs each, of about {REAL_S:g} s of training; the plan was kept by `flatout plan`.

{table(head, lines)}
""",
    )


def _against_bare(args: argparse.Namespace, store: Store, auto: Sequence[Row]) -> list[str]:
    cores = len(os.sched_getaffinity(0))
    bare = [store.run("bare processes", seed, Command(
        [sys.executable, str(HERE / "bare_envs.py"), "--workers", str(cores), "--burn",
         str(BURN_S)], ENV)) for seed in range(args.seeds)]  # fmt: skip
    ratios = per_round([_rate(row) for row in auto], [_rate(row) for row in bare])
    return [f"{SLOW.name}: auto / {cores} bare processes", *ratio_row("", ratios)[1:]]


def _rate(row: Row) -> float:
    return float(row["result"]["steps_per_s"])


def _plan(args: argparse.Namespace, workload: Workload) -> Command:
    argv = [flatout(args), "plan", workload.algorithm, *workload.flags, "--json",
            "--remeasure"]  # fmt: skip
    return Command(argv, ENV)


def _train(
    args: argparse.Namespace, workload: Workload, placement: str, seed: int, steps: int
) -> Command:
    run_dir = HERE / "runs" / NAME / f"{seed}"
    text = placement if placement in ("auto", "cpu") else f"act=cpu {placement}"
    argv = [
        flatout(args), "train", workload.algorithm, *workload.flags, "--seed", str(seed),
        "--steps", str(steps), "--run-dir", str(run_dir), "--json", "--placement", text,
        "--no-tensorboard", "--checkpoint-every", "0", "--log-every", "1000000",
    ]  # fmt: skip
    return Command(argv, ENV, run_dir)


if __name__ == "__main__":
    main(benchmark, parser(__doc__, seeds=3).parse_args())
