"""How well `flatout plan` predicts and chooses: every candidate placement run for real.

For each workload the machine is measured and a placement chosen, as `flatout plan` does; then each
candidate trains with ``--placement`` in turns, round by round, and its speed is compared with its
prediction. *Regret* is by how much the chosen placement is slower than the best one.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from flatout.reports.statistics import interval, mean
from harness import CACHED, Command, Row, Store, flatout, main, parser, train_command
from report import provenance, table, write_section

NAME = "plan"
MOST = 6
"""Candidates that are run for real: the best predicted, the worst, and what lies between."""
REAL_S = 3.0
"""Seconds of training of each real run, by its prediction."""


@dataclass(frozen=True)
class Workload:
    """A run to place."""

    name: str
    algorithm: str
    flags: tuple[str, ...]
    iteration: int
    """Steps of an iteration: the unit of ``--steps``."""


def _ppo(name: str, env: Sequence[str], envs: int, steps: int, *more: str) -> Workload:
    flags = (*env, "--envs", str(envs), "--n-steps", str(steps), "--batch-size", "64", *more)
    return Workload(name, "ppo", flags, envs * steps)


def _replay(name: str, algorithm: str, env: Sequence[str], envs: int, *more: str) -> Workload:
    flags = (*env, "--envs", str(envs), "--learning-starts", "256", "--buffer-size", "20000",
             "--train-freq", str(4 * envs), "--gradient-steps", str(envs), *more)  # fmt: skip
    return Workload(name, algorithm, flags, 4 * envs)


def costly(**settings: float) -> tuple[str, ...]:
    """The flags of an environment of `costly_env`."""
    pairs = [f"--env-kwargs={name}={value}" for name, value in settings.items()]
    return ("--env", "costly_env:make", *pairs)


CARTPOLE, PENDULUM = ("--env", "CartPole-v1"), ("--env", "Pendulum-v1")
WIDE = ("--hidden", "256,256")
QUICK = (
    _ppo("PPO, CartPole", CARTPOLE, 8, 128),
    _ppo("PPO, 1 ms of computing", costly(work_ms=1.0), 8, 32),
    _ppo("PPO, 1 ms of computing, heavy tail", costly(work_ms=1.0, tail=20.0), 8, 32),
    _ppo("PPO, 2 ms of sleep, heavy tail", costly(sleep_ms=2.0, tail=10.0), 8, 32),
    _replay("DQN, CartPole", "dqn", CARTPOLE, 8),
    _replay("SAC, Pendulum, 256x256", "sac", PENDULUM, 4, *WIDE),
)
LONG = (
    *QUICK,
    *(
        _ppo(f"PPO, {label}, {envs} environments, {size}", costly(**cost), envs, 256 // envs * 2,
             *more)
        for (label, cost), (envs, size, more) in itertools.product(
            {"0.2 ms of computing": {"work_ms": 0.2},
             "3 ms of computing, heavy tail": {"work_ms": 3.0, "tail": 10.0},
             "1 ms of sleep": {"sleep_ms": 1.0}}.items(),
            ((4, "64x64", ()), (16, "256x256", WIDE)),
        )
    ),
    *(
        _replay(f"{algorithm.upper()}, Pendulum, {size}", algorithm, PENDULUM, envs, *more)
        for algorithm, (envs, size, more) in itertools.product(
            ("td3", "ddpg"), ((4, "64x64", ()), (8, "256x256", WIDE))
        )
    ),
    *(
        _replay(f"DQN, {label}, {size}", "dqn", costly(**cost), 8, *more)
        for (label, cost), (size, more) in itertools.product(
            {"0.2 ms of computing": {"work_ms": 0.2},
             "1 ms of computing, heavy tail": {"work_ms": 1.0, "tail": 20.0},
             "2 ms of sleep": {"sleep_ms": 2.0}}.items(),
            (("64x64", ()), ("256x256", WIDE)),
        )
    ),
    _ppo("PPO, CartPole, 256x256", CARTPOLE, 16, 128, *WIDE),
    _ppo("PPO, Pendulum", PENDULUM, 4, 256),
)  # fmt: skip


def benchmark(args: argparse.Namespace) -> None:
    """Plan, run the candidates, write the section."""
    workloads = QUICK if args.tier == "quick" else LONG
    found: list[tuple[Workload, Row, dict[str, list[Row]]]] = []
    for number, workload in enumerate(workloads):
        store = Store(f"{NAME}-{number}", {"workload": workload.name, "s": args.seconds}, args)
        command = plan_command(args, workload.algorithm, workload.flags, args.seconds)
        planned = store.run("plan", 0, command)["result"]
        rows = store.alternate(
            {row["placement"]: partial(train, args, workload, row) for row in candidates(planned)},
            range(args.seeds),
        )
        found.append((workload, planned, rows))
    write_section(args, f"{NAME}_{args.tier}", section(args, found))


def plan_command(
    args: argparse.Namespace, algorithm: str, flags: Sequence[str], seconds: float
) -> Command:
    """Return `flatout plan` with new measurements."""
    words = ["--json", "--remeasure", "--seconds", str(seconds)]
    return Command([flatout(args), "plan", algorithm, *flags, *words], CACHED)


def candidates(planned: Row) -> list[Row]:
    """Return the predictions that are run: `MOST` of them, spread over their order, with the
    choice."""
    rows = planned["predictions"]
    if len(rows) > MOST:
        kept = {round(i * (len(rows) - 1) / (MOST - 1)) for i in range(MOST)} | {1, 2}
        rows = [row for i, row in enumerate(rows) if i in sorted(kept)[:MOST]]
    chosen = [row for row in planned["predictions"] if row["placement"] == planned["chosen"]]
    return rows if chosen[0] in rows else [*rows[:-1], *chosen]


def train(args: argparse.Namespace, workload: Workload, row: Row, seed: int) -> Command:
    """Return a real run of about `REAL_S` seconds."""
    iterations = max(round(row["rate"] * REAL_S / workload.iteration), 4)
    return train_command(
        args, NAME, "real", seed, *workload.flags, "--steps", str(iterations * workload.iteration),
        "--no-tensorboard", "--checkpoint-every", "0", "--log-every", "1000000",
        algorithm=workload.algorithm, env=CACHED, placement=row["placement"],
    )  # fmt: skip


@dataclass(frozen=True)
class Score:
    """How well one workload was planned.

    `truth` has the median steps per second of each placement's real runs. `upper` is the end of the
    regret's 95 % interval, a bootstrap over the pairs. The lists are of the predictions: errors
    relative to the truth, whether intervals cover it, and their high / low.
    """

    truth: dict[str, float]
    regret: float
    upper: float
    errors: list[float]
    covered: list[bool]
    widths: list[float]


def score(planned: Row, rows: Mapping[str, Sequence[Row]]) -> Score:
    """Return how well a workload was planned, from its real runs by placement."""
    rates = {p: [run["result"]["steps_per_s"] for run in runs] for p, runs in rows.items()}
    truth = {p: statistics.median(values) for p, values in rates.items()}
    best = max(truth, key=lambda p: truth[p])
    pairs = [a / b for a, b in zip(rates[planned["chosen"]], rates[best], strict=True)]
    _, low, _ = interval([np.array(pairs)], mean)
    predicted = {row["placement"]: row for row in planned["predictions"]}
    return Score(
        truth, max(1.0 - statistics.median(pairs), 0.0), max(1.0 - float(low), 0.0),
        errors=[abs(predicted[p]["rate"] / truth[p] - 1.0) for p in truth],
        covered=[predicted[p]["low"] <= truth[p] <= predicted[p]["high"] for p in truth],
        widths=[predicted[p]["high"] / predicted[p]["low"] for p in truth],
    )  # fmt: skip


def section(
    args: argparse.Namespace, found: Sequence[tuple[Workload, Row, dict[str, list[Row]]]]
) -> str:
    """Return the Markdown of this benchmark."""
    scores = [score(planned, rows) for _, planned, rows in found]
    lines, details = [], []
    for (workload, planned, rows), one in zip(found, scores, strict=True):
        lines.append([
            workload.name, str(len(rows)), planned["chosen"],
            max(one.truth, key=lambda placement: one.truth[placement]),
            f"{100 * one.regret:.1f} % ({100 * one.upper:.1f} %)",
            f"{100 * statistics.median(one.errors):.0f} %",
            f"{sum(one.covered)} of {len(one.covered)}", f"{planned['spent_s']:.0f}",
        ])  # fmt: skip
        details += [
            [workload.name, row["placement"], f"{row['rate']:,.0f}",
             f"{row['low']:,.0f}-{row['high']:,.0f}",
             "-" if row["measured"] is None else f"{row['measured']:,.0f}",
             f"{one.truth[row['placement']]:,.0f}"]
            for row in planned["predictions"] if row["placement"] in one.truth
        ]  # fmt: skip
    errors, covered, widths = (
        [value for one in scores for value in getattr(one, name)]
        for name in ("errors", "covered", "widths")
    )
    good = sum(one.upper < 0.10 and one.regret < 0.05 for one in scores)
    head = ["workload", "run", "chosen", "best", "regret (upper end)", "median error", "covered",
            "planning, s"]  # fmt: skip
    every = {"runs": [row for _, _, rows in found for runs in rows.values() for row in runs]}
    return f"""## Planning: predictions and choices against real runs ({args.tier} tier)

{provenance(args, every)}
- {len(found)} workloads, each candidate run {args.seeds} times in turns for about {REAL_S:g} s.
- Regret: how much slower the chosen placement is than the best, median of the pairs, with the
  upper end of its 95 % interval (bootstrap over the pairs).

{table(head, lines)}

Regret below 5 % with an upper end below 10 %: {good} of {len(scores)} workloads.
Predictions: median error {100 * statistics.median(errors):.0f} %; intervals cover {sum(covered)}
of {len(covered)} truths, high / low {statistics.median(widths):.2f} in the median.

{table(["workload", "placement", "predicted", "interval", "short run", "real"], details)}
"""


if __name__ == "__main__":
    options = parser(__doc__, seeds=3)
    options.add_argument("--tier", choices=("quick", "long"), default="quick")
    options.add_argument("--seconds", type=float, default=15.0, help="of planning each workload")
    main(benchmark, options.parse_args())
