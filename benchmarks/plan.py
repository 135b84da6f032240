"""How well `flatout plan` predicts and chooses: every candidate placement run for real.

For each workload the machine is measured and a placement chosen, as `flatout plan` does; then each
candidate trains with ``--placement`` in turns, round by round, and what it did is held against what
was predicted. *Regret* is by how much the chosen placement is slower than the best one.

``--tier quick`` has 6 workloads and ends within 15 minutes; ``--tier long`` has 24. Both resume.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from harness import HERE, OUR_ENVS, Command, Row, Store, flatout, main, parser
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
        _replay(f"{algorithm.upper()}, {label}, {size}", algorithm, env, envs, *more)
        for algorithm, (label, env), (envs, size, more) in itertools.product(
            ("td3", "ddpg"),
            {"Pendulum": PENDULUM}.items(),
            ((4, "64x64", ()), (8, "256x256", WIDE)),
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
        planned = store.run("plan", 0, plan_command(args, workload))["result"]
        rows = store.alternate(
            {
                row["placement"]: partial(train_command, args, workload, row)
                for row in candidates(planned)
            },
            range(args.seeds),
        )
        found.append((workload, planned, rows))
    write_section(args, f"{NAME}_{args.tier}", section(args, found))


def plan_command(args: argparse.Namespace, workload: Workload) -> Command:
    """`flatout plan`, measuring anew."""
    argv = [
        flatout(args), "plan", workload.algorithm, *workload.flags, "--json", "--remeasure",
        "--seconds", str(args.seconds),
    ]  # fmt: skip
    env = {"PYTHONPATH": OUR_ENVS["PYTHONPATH"]}  # the cache of programs helps every side alike
    return Command(argv, env)


def candidates(planned: Row) -> list[Row]:
    """The predictions that are run: `MOST` of them, spread over their order, the choice
    among them."""
    rows = planned["predictions"]
    if len(rows) > MOST:
        kept = {round(i * (len(rows) - 1) / (MOST - 1)) for i in range(MOST)} | {1, 2}
        rows = [row for i, row in enumerate(rows) if i in sorted(kept)[:MOST]]
    chosen = [row for row in planned["predictions"] if row["placement"] == planned["chosen"]]
    return rows if chosen[0] in rows else [*rows[:-1], *chosen]


def train_command(args: argparse.Namespace, workload: Workload, row: Row, seed: int) -> Command:
    """A real run of about `REAL_S` seconds."""
    iterations = max(round(row["rate"] * REAL_S / workload.iteration), 4)
    run_dir = HERE / "runs" / NAME / f"{seed}"
    argv = [
        flatout(args), "train", workload.algorithm, *workload.flags, "--seed", str(seed),
        "--steps", str(iterations * workload.iteration), "--run-dir", str(run_dir), "--json",
        "--placement", row["placement"], "--no-tensorboard", "--checkpoint-every", "0",
        "--log-every", "1000000",
    ]  # fmt: skip
    return Command(argv, {"PYTHONPATH": OUR_ENVS["PYTHONPATH"]}, run_dir)


@dataclass(frozen=True)
class Score:
    """How well one workload was planned."""

    regret: float
    upper: float
    errors: list[float]
    covered: list[bool]
    widths: list[float]


def score(planned: Row, rows: Mapping[str, Sequence[Row]]) -> Score:
    """Regret with the upper end of its interval, and each prediction's error."""
    rates = {p: [run["result"]["steps_per_s"] for run in runs] for p, runs in rows.items()}
    truth = {p: statistics.median(values) for p, values in rates.items()}
    chosen, best = planned["chosen"], max(truth, key=lambda p: truth[p])
    pairs = [a / b for a, b in zip(rates[chosen], rates[best], strict=True)]
    generator = random.Random(0)
    means = sorted(statistics.fmean(generator.choices(pairs, k=len(pairs))) for _ in range(2000))
    predicted = {row["placement"]: row for row in planned["predictions"]}
    errors = [abs(predicted[p]["rate"] / truth[p] - 1.0) for p in truth]
    covered = [predicted[p]["low"] <= truth[p] <= predicted[p]["high"] for p in truth]
    widths = [predicted[p]["high"] / predicted[p]["low"] for p in truth]
    regret = max(1.0 - statistics.median(pairs), 0.0)
    return Score(regret, max(1.0 - means[50], 0.0), errors, covered, widths)


def real(runs: Sequence[Row]) -> float:
    """Steps per second of real runs, their median."""
    return statistics.median(run["result"]["steps_per_s"] for run in runs)


def section(
    args: argparse.Namespace, found: Sequence[tuple[Workload, Row, dict[str, list[Row]]]]
) -> str:
    """The Markdown of this benchmark."""
    scores = [score(planned, rows) for _, planned, rows in found]
    lines = []
    for (workload, planned, rows), s in zip(found, scores, strict=True):
        truth = {p: real(runs) for p, runs in rows.items()}
        best = max(truth, key=lambda p: truth[p])
        lines.append(
            [
                workload.name, str(len(rows)), planned["chosen"], best,
                f"{100 * s.regret:.1f} % ({100 * s.upper:.1f} %)",
                f"{100 * statistics.median(s.errors):.0f} %",
                f"{sum(s.covered)} of {len(s.covered)}", f"{planned['spent_s']:.0f}",
            ]
        )  # fmt: skip
    errors = list(itertools.chain(*(s.errors for s in scores)))
    covered = list(itertools.chain(*(s.covered for s in scores)))
    widths = list(itertools.chain(*(s.widths for s in scores)))
    good = sum(s.upper < 0.10 and s.regret < 0.05 for s in scores)
    head = ["workload", "run", "chosen", "best", "regret (upper end)", "median error", "covered",
            "planning, s"]  # fmt: skip
    every = {"runs": [row for _, _, rows in found for runs in rows.values() for row in runs]}
    details = [
        [workload.name, row["placement"], f"{row['rate']:,.0f}",
         f"{row['low']:,.0f}-{row['high']:,.0f}",
         "-" if row["measured"] is None else f"{row['measured']:,.0f}",
         f"{real(rows[row['placement']]):,.0f}"]
        for workload, planned, rows in found
        for row in planned["predictions"] if row["placement"] in rows
    ]  # fmt: skip
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
