"""Workers on a Ray cluster: are they as fast as actor processes here, and what does a network cost?

All nodes run on this machine: a head node without CPUs, so that no worker is an actor process of
the run, and nodes that step. Each part (`--only`) has a section of its own: *sleep*, *atari* and
*params* (`CASES`) are compared with actor processes of this machine; *delay* is `DELAYED`, serial
and overlapped, and `tests/cluster_link.py` carries its packets; *kills* is `cluster_kills.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import cluster_kills
from harness import HERE, REPO, Command, Row, Store, main, named, parser, train_command
from report import RATIO_HEAD, per_round, provenance, ratio_row, spread, table, write_section
from window import rates, windowed

sys.path.insert(0, str(REPO))

from tests.cluster_link import linked_nodes
from tests.cluster_nodes import Nodes, new_token

THERE, HERE_LOCAL, RLLIB = "Ray cluster", "actor processes here", "RLlib"
RLLIB_FLAGS = (
    "--sleep", "0.02", "--runners", "16", "--envs", "1", "--n-steps", "50", "--batch-size", "200",
    "--n-epochs", "4", "--steps", "6400", "--window-from", "1600",
)  # fmt: skip
"""The case `sleep` in RLlib."""
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(HERE), str(REPO)])}
QUIET = ("--checkpoint-every", "0", "--no-tensorboard", "--quiet")


@dataclass(frozen=True)
class Case:
    """A comparison of workers on a cluster with actor processes.

    Attributes:
        title, words: of its section.
        workers: as placements name them.
        cpus: the CPUs of each node.
        per: environment steps of an iteration.
        flags: of `flatout train ppo`.
        iterations, warm: of a run, and how many of these are not counted.
    """

    title: str
    words: str
    workers: str
    cpus: tuple[int, ...]
    per: int
    flags: tuple[str, ...]
    iterations: int
    warm: int = 2

    @property
    def all_flags(self) -> tuple[str, ...]:
        """The flags with the number of steps and those of every run here."""
        steps = ("--steps", str(self.per * self.iterations), "--log-every", str(self.per))
        return (*self.flags, *steps, *QUIET)


CASES = {
    "sleep": Case(
        "Workers on a Ray cluster: slow environments",
        "PPO, 16 environments that sleep for 20 ms a step, each in a worker of its own; two nodes "
        "with 8 CPUs. 800 steps/s is the limit.",
        "16x1", (8, 8), 800,
        ("--env", "empty_env:make", "--env-kwargs", "sleep=0.02", "--env-kwargs", "length=200",
         "--envs", "16", "--n-steps", "50", "--batch-size", "200", "--n-epochs", "4"), 8,
    ),
    "atari": Case(
        "Workers on a Ray cluster: images",
        "PPO on ALE/Breakout-v5 with the Nature network, 8 games in two workers, one epoch; two "
        "nodes with 1 CPU.",
        "2x4", (1, 1), 1024,
        ("--env", "ALE/Breakout-v5", "--envs", "8", "--n-steps", "128", "--batch-size", "256",
         "--n-epochs", "1"), 7,
    ),
    "params": Case(
        "Workers on a Ray cluster: 7 MB of parameters",
        "PPO on CartPole-v1, networks of 930x930 (7.0 MB of parameters, which every iteration "
        "sends to each machine), 8 environments in two workers, one update an iteration; two nodes "
        "with 1 CPU.",
        "2x4", (1, 1), 256,
        ("--env", "CartPole-v1", "--envs", "8", "--n-steps", "32", "--hidden", "930,930",
         "--batch-size", "256", "--n-epochs", "1"), 42,
    ),
}  # fmt: skip

DELAYED = Case(
    "Workers on a Ray cluster: 5 ms of delay in each direction",
    "PPO, 4 environments that sleep for 5 ms a step in two workers on one node, iterations of 200 "
    "steps (500 ms of sleeping). The run and the node are in network namespaces of their own, and "
    "a program carries every packet between them, without delay or 5 ms later.",
    "2x2", (), 200,
    ("--env", "empty_env:make", "--env-kwargs", "sleep=0.005", "--env-kwargs", "length=200",
     "--envs", "4", "--n-steps", "50", "--batch-size", "50", "--n-epochs", "10"), 12,
)  # fmt: skip


def compare(args: argparse.Namespace, name: str) -> None:
    """Run both sides of a case in turn, write its section."""
    case = CASES[name]
    store = Store(f"cluster-{name}", {"flags": [*case.all_flags, case.workers]}, args)
    with Nodes(case.cpus) as nodes:
        os.environ |= nodes.variables
        places = {
            THERE: (f"sampler=cluster workers={case.workers}", nodes.address),
            HERE_LOCAL: (f"sampler=processes inference=local workers={case.workers}", None),
        }
        sides: dict[str, Callable[[int], Command]] = {
            side: partial(train, args, name, case, side, *place) for side, place in places.items()
        }
        if args.rllib and name == "sleep":
            program = [args.rllib, str(HERE / "peers" / "run_rllib.py"), *RLLIB_FLAGS]
            sides[RLLIB] = lambda seed: Command([*program, "--seed", str(seed)])
        rows = store.alternate(sides, range(args.seeds))
    ratios = [
        ratio_row(f"steps/s of {THERE} / {side}", per_round(rates(rows[THERE]), rates(runs)))
        for side, runs in rows.items()
        if side != THERE
    ]
    words = """ Bytes are those of the arrays of
  trajectories; the round trip is the time of a request, its parameters and its trajectory in
  addition to the machine's own work. The other work above includes nodes and their workers, which
  are no children of the run."""
    write_section(args, f"cluster-{name}", section(args, case, rows, words, ratios))


def train(
    args: argparse.Namespace, name: str, case: Case, side: str, placement: str,
    address: str | None, seed: int, prefix: Sequence[str] = (),
) -> Command:  # fmt: skip
    """Return a run, which `prefix` brings into other namespaces."""
    more = () if address is None else ("--ray-address", address)
    return train_command(
        args, f"cluster-{name}", side.replace(" ", "-"), seed, *case.all_flags, *more,
        env=ENVIRONMENT, finish=windowed(case.warm * case.per), placement=placement, prefix=prefix,
    )  # fmt: skip


def row_of(side: str, rows: Sequence[Row], per: int) -> list[str]:
    """Return a side's row for `HEAD`."""
    figures = [row["result"]["flow"] for row in rows]

    def flow(key: str, scale: float, digits: int) -> str:
        values = [found[key] * scale for found in figures if key in found]
        return spread(values, digits) if values else "-"

    windows = [row["result"]["window"] for row in rows]
    whole = [1e3 * window["s"] * per / window["steps"] for window in windows]
    waits = [
        ms * window["phases"].get("wait", 0.0) for ms, window in zip(whole, windows, strict=True)
    ]
    return [
        side, spread(rates(rows), 0), spread(whole, 0), spread(waits, 0) if any(waits) else "-",
        flow("network_bytes_per_step", 1, 0), flow("network_round_trip_s", 1e3, 1),
        spread([row["result"]["startup_s"] for row in rows], 0),
    ]  # fmt: skip


HEAD = ["workers", "steps/s after start-up", "iteration, ms", "waiting for workers, ms of it",
        "bytes per step", "shortest round trip, ms", "start-up, s"]  # fmt: skip


def section(
    args: argparse.Namespace, case: Case, rows: dict[str, list[Row]], words: str,
    ratios: Sequence[Sequence[str]],
) -> str:  # fmt: skip
    """Return the Markdown of a comparison."""
    return f"""## {case.title}

{provenance(args, rows)}
- {case.words} The first {case.warm} iterations are not counted.{words}

{table(HEAD, [row_of(side, runs, case.per) for side, runs in rows.items()])}

{table(RATIO_HEAD, ratios)}
"""


# --- Delay ------------------------------------------------------------------------------------


def delay(args: argparse.Namespace) -> None:
    """Run both schedules without delay and with 5 ms, write the section."""
    case = DELAYED
    store = Store("cluster-delay", {"flags": [*case.all_flags, case.workers]}, args)
    schedules = ("serial", "overlapped")
    sides = {
        f"{schedule}, {delay_ms:g} ms": (delay_ms, schedule)
        for delay_ms in (0.0, 5.0) for schedule in schedules
    }  # fmt: skip
    os.environ |= new_token()
    with contextlib.ExitStack() as stack:
        links = {
            delay_ms: stack.enter_context(linked_nodes(os.environ | ENVIRONMENT, delay_ms, port))
            for delay_ms, port in ((0.0, 6399), (5.0, 6400))
        }

        def command(seed: int, side: str) -> Command:
            delay_ms, schedule = sides[side]
            address, prefix, carried = links[delay_ms]
            placement = f"sampler=cluster workers={case.workers} schedule={schedule}"
            return counting(
                train(args, "delay", case, side, placement, address, seed, prefix), carried
            )

        commands = {side: partial(command, side=side) for side in sides}
        rows = store.alternate(commands, range(args.seeds))
    times = {side: [row["result"]["window"]["s"] for row in runs] for side, runs in rows.items()}
    ratios = [
        ratio_row(f"{schedule}: time of an iteration with 5 ms / without",
                  per_round(times[f"{schedule}, 5 ms"], times[f"{schedule}, 0 ms"]))
        for schedule in schedules
    ]  # fmt: skip
    everything = [row["result"] for runs in rows.values() for row in runs]
    steps = case.per * case.iterations
    received, sent = (
        statistics.median(result[way] / steps for result in everything)
        for way in ("received", "sent")
    )
    words = f"""
- On the link, with everything that Ray says and a start: {received:,.0f} bytes per step towards the
  run, {sent:,.0f} bytes per step from it (medians). The other work above includes the nodes, their
  workers and the program that carries the packets."""
    write_section(args, "cluster-delay", section(args, case, rows, words, ratios))


def counting(command: Command, carried: Callable[[str], list[int]]) -> Command:
    """Add the link's bytes to a run's result."""
    before = carried("bytes")

    def finish(made: Command, result: Row) -> Row:
        assert command.finish is not None
        there, back = (after - first for after, first in zip(carried("bytes"), before, strict=True))
        return command.finish(made, result) | {"sent": there, "received": back}

    return Command(command.argv, command.env, command.run_dir, finish)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    **{name: lambda args, name=name: compare(args, name) for name in CASES},
    "delay": delay,
    "kills": cluster_kills.kills,
}


def benchmark(args: argparse.Namespace) -> None:
    """Run the parts."""
    for run in named(PARTS, args.only).values():
        run(args)


if __name__ == "__main__":
    options = parser(__doc__, seeds=3, fewest=3, minutes=60.0)
    options.add_argument("--only", nargs="+", metavar="PART", help=", ".join(PARTS))
    options.add_argument("--rllib", help="a Python that has ray[rllib], for another side of sleep")
    options.add_argument("--kills", type=int, default=30, help="how many")
    main(benchmark, options.parse_args())
