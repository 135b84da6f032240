"""How well `flatout plan --ray-address` predicts runs with workers on a Ray cluster.

The nodes are linked as in `cluster.py --only delay`, without delay and with 20 ms. `flatout plan`
measures this run's parts and the network once for each delay; then PPO trains with 1, 2 and 4
workers, and its steps per second are compared with those that the same measurements predict.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence

from cluster import ENVIRONMENT, QUIET, linked_nodes, new_token
from flatout.config.placement import parse
from flatout.config.workers import with_workers
from flatout.planning.answer import Answer
from flatout.planning.predict import predict
from harness import Command, Row, Store, flatout, main, parser, refuse_late, train_command
from report import provenance, spread, table, write_section
from window import rates, windowed

NAME, ENVS, HORIZON = "cluster-plan", 4, 16
DELAYS_MS = (0.0, 20.0)
WORKERS = (1, 2, 4)
FLAGS = ("ppo", "--env", "empty_env:make", "--env-kwargs", "sleep=0.02", "--env-kwargs",
         "length=200", "--envs", str(ENVS), "--n-steps", str(HORIZON), "--batch-size", "64",
         "--n-epochs", "4")  # fmt: skip
WARM, ITERATIONS = 2, 12


def placement(workers: int, schedule: str = "serial") -> str:
    """Return the text of a placement."""
    return f"sampler=cluster workers={workers}x{ENVS // workers} schedule={schedule}"


def benchmark(args: argparse.Namespace) -> None:
    """Plan, run, compare, write the section."""
    os.environ |= new_token()
    store = Store(NAME, {"flags": [*FLAGS], "iterations": ITERATIONS}, args)
    rows: dict[str, list[Row]] = {}
    for delay_ms, port in zip(DELAYS_MS, (6399, 6400), strict=True):
        sides = [f"plan, {delay_ms:g} ms", *(side(delay_ms, count) for count in WORKERS)]
        if missing := [one for one in sides if store.get(one, 0) is None]:
            refuse_late(args)
            nodes = linked_nodes(os.environ | ENVIRONMENT, delay_ms, port, cpus=ENVS)
            with nodes as (address, prefix, _):
                for one in missing:
                    store.run(one, 0, command(args, one, address, prefix))
        rows |= {one: [row] for one in sides if (row := store.get(one, 0)) is not None}
    write_section(args, NAME, section(args, rows))


def side(delay_ms: float, workers: int) -> str:
    """Return the name of a run."""
    return f"{workers} workers, {delay_ms:g} ms"


def command(args: argparse.Namespace, one: str, address: str, prefix: Sequence[str]) -> Command:
    """Return planning, or a run with some workers, in the namespaces of the link."""
    if one.startswith("plan"):
        argv = [flatout(args), "plan", *FLAGS, "--ray-address", address, "--json", "--remeasure",
                "--seconds", "6"]  # fmt: skip
        return Command([*prefix, *argv], ENVIRONMENT)
    per, count = ENVS * HORIZON, int(one.split()[0])
    return train_command(
        args, NAME, one.replace(" ", "-"), 0, *FLAGS[1:], "--ray-address", address,
        "--steps", str(per * ITERATIONS), "--log-every", str(per), *QUIET,
        env=ENVIRONMENT, finish=windowed(WARM * per), placement=placement(count), prefix=prefix,
    )  # fmt: skip


def predicted(row: Row, workers: int) -> float:
    """Return the steps per second that planning's measurements predict."""
    answer = Answer.from_json({name: row["result"][name] for name in KEYS})
    place = with_workers(parse(placement(workers)), ENVS, answer.stages.cores)
    return predict(answer.stages, place).rate


KEYS = ("stages", "known", "predictions", "lagged", "spent_s", "notes", "larger", "base")


def section(args: argparse.Namespace, rows: dict[str, list[Row]]) -> str:
    """Return the Markdown of the comparison."""
    body: list[list[str]] = []
    errors: list[float] = []
    for delay_ms in DELAYS_MS:
        (planned,) = rows[f"plan, {delay_ms:g} ms"]
        network = planned["result"]["stages"]["hosts"]["network"]
        for count in WORKERS:
            runs = rows[side(delay_ms, count)]
            rate, real = predicted(planned, count), statistics.median(rates(runs))
            errors.append(rate / real - 1.0)
            trips = [1e3 * row["result"]["flow"]["network_round_trip_s"] for row in runs]
            body.append([
                f"{delay_ms:g}", str(count), f"{1e3 * network['way_s']:.1f}", spread(trips, 1),
                f"{network['bytes_per_s'] / 1e6:,.0f}", f"{rate:,.1f}", f"{real:,.1f}",
                f"{100 * errors[-1]:+.0f} %",
            ])  # fmt: skip
    head = ["delay in each direction, ms", "workers", "request and answer as planned, ms",
            "shortest of the run, ms", "network, MB/s", "predicted steps/s", "measured steps/s",
            "error"]  # fmt: skip
    return f"""## Workers on a Ray cluster: predicted and measured

{provenance(args, rows)}
- PPO, {ENVS} environments that sleep for 20 ms a step, iterations of {HORIZON} steps of each; the
  first {WARM} of {ITERATIONS} iterations are not counted. One run of each kind. The largest error
  is {100 * max(map(abs, errors)):.0f} %.

{table(head, body)}
"""


if __name__ == "__main__":
    main(benchmark, parser(__doc__, minutes=30.0).parse_args())
