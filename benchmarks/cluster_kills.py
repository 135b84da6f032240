"""Kills on a Ray cluster: actor processes, Ray actors, nodes and the run itself, in each phase.

    python benchmarks/cluster_kills.py TARGET PHASE AT MARK train ...

runs the command, and kills the target with SIGKILL in the phase's occurrence number AT; the file
MARK then exists. `cluster.py --only kills` makes a series of such runs, and `section` says what
each has to do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import HERE, REPO, Lines, Row, refuse_late, source_id
from kills import difference_of, newest, whole_run
from report import provenance, table, write_section

sys.path.insert(0, str(REPO))

from tests import cluster_nodes
from tests.cluster_nodes import LEFT
from tests.kills import finish, spawn

NAME = "cluster-kills"
PROCESS, ACTOR, NODE, RUN = "actor process", "Ray actor", "node", "run"
PARTS = {PROCESS: cluster_nodes.ACTOR_PROCESS, ACTOR: cluster_nodes.RAY_ACTOR}
PHASES = {"start": (1, 2), "collecting": (3, 8), "learning": (2, 4), "checkpoint": (2, 18)}
"""Each phase, and the least and greatest occurrence in which a kill comes: of a worker's start, a
worker's trajectory, an iteration's learning, a call that saves."""

STEPS, ENVS = 640, 8
TRAIN = ("train", "ppo", "--env", "tests.fault_envs:sleepy", "--env-kwargs", "seconds=0.005",
         "--envs", str(ENVS), "--n-steps", "16", "--batch-size", "32", "--hidden", "8", "--steps",
         str(STEPS), "--checkpoint-every", "128", "--seed", "4", "--no-tensorboard", "--quiet",
         "--json")  # fmt: skip
THERE, LOCAL = "sampler=cluster workers=2x4", "sampler=processes inference=local workers=2x4"
COUNT = "left 60"
"""Asks the nodes what a run has left after at most 60 s."""

FINDS_S = 30.0
"""Seconds within which the target has to exist."""


# --- The run that kills -----------------------------------------------------------------------


def strike(target: str, mark: Path) -> None:
    """Kill the target as soon as it exists; make the file `mark`."""
    until = time.monotonic() + FINDS_S
    while True:
        found = (
            cluster_nodes.working_nodes()
            if target == NODE
            else cluster_nodes.processes(PARTS[target])
        )
        if found or time.monotonic() > until:
            break
        time.sleep(0.02)
    if found:
        random.choice(found).kill()
        mark.touch()


def killing(target: str, phase: str, at: int, mark: Path) -> None:
    """Arrange for the kill in this process."""
    from flatout.engine.learn import Learner
    from flatout.engine.workers.remote import RemoteWorker

    lock, counted = threading.Lock(), itertools.count(1)

    def within(function: Callable[..., Any], counts: Callable[..., bool]) -> Callable[..., Any]:
        """Return a function in whose call number `at` the kill comes."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with lock:
                now = counts(*args) and next(counted) == at
            if now and target == RUN:
                if phase == "collecting":  # some steps later
                    time.sleep(random.uniform(0.0, 0.2))
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            elif now:
                threading.Thread(target=strike, args=(target, mark), daemon=True).start()
            return function(*args, **kwargs)

        return call

    def always(*_: Any) -> bool:
        return True

    if phase == "start":
        RemoteWorker.begin = within(RemoteWorker.begin, always)
    elif phase == "collecting":
        RemoteWorker.tell = within(RemoteWorker.tell, lambda _, method, *__: method == "collect")
    elif phase == "learning":
        Learner.learn = within(Learner.learn, always)
    else:
        for name in ("fsync", "rename", "replace"):
            setattr(os, name, within(getattr(os, name), always))


def main() -> int:
    """Run the command."""
    from flatout.__main__ import main as flatout

    target, phase, at, mark, *argv = sys.argv[1:]
    killing(target, phase, int(at), Path(mark))
    return flatout(argv)


# --- The series -------------------------------------------------------------------------------


class Series:
    """The kills made so far, and those to come."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._lines = Lines(NAME, args)
        self.rows = self._lines.rows
        self._folder = HERE / "runs" / NAME
        self._folder.mkdir(parents=True, exist_ok=True)

    def whole(self) -> Path:
        """Return the folder of the undisturbed run on actor processes of this machine."""
        return whole_run(self._folder / f"whole-{source_id()}", (*TRAIN, "--placement", LOCAL))

    def kill(self, nodes: cluster_nodes.Nodes) -> None:
        """Make the next kill on a cluster, and see how its run ends."""
        made = {row["kill"] for row in self.rows}
        number = next(number for number in itertools.count() if number not in made)
        dice = random.Random(number)
        phase = list(PHASES)[number // 4 % len(PHASES)]
        target = (PROCESS, ACTOR, NODE, RUN)[number % 4]
        at = dice.randint(*PHASES[phase])
        run = self._folder / f"{number}-{time.time_ns()}"
        mark = run.with_suffix(".mark")
        there = ("--ray-address", nodes.address)
        words = (*TRAIN, "--placement", THERE, *there, "--run-dir", str(run))
        done = finish(
            spawn(target, phase, str(at), str(mark), *words, module=str(HERE / "cluster_kills.py"))
        )
        row: Row = {
            "kill": number, "target": target, "phase": phase, "at": at, "hit": mark.exists(),
        }  # fmt: skip
        if target == RUN:
            row |= {"newest": newest(run), "first": nodes.ask(COUNT)}
            # A run that was killed before it saved anything begins again.
            again = ("train", "--resume", str(run), *there, "--quiet", "--json")
            if row["newest"] == "none":
                run = run.with_name(f"{run.name}-again")
                again = (*words[:-1], str(run))
            done = finish(spawn(*again))
        summary: dict[str, Any] = {} if done.code else json.loads(done.out)
        row |= {
            "error": done.err.strip()[-300:] if done.code else "", "steps": summary.get("steps", 0),
            "notes": summary.get("notes", []),
            "left": _join(row.pop("first", {}), nodes.ask(COUNT)),
        }  # fmt: skip
        if target == RUN and summary:
            difference = difference_of(run, self.whole())
            row |= {"equal": not difference, "difference": difference}
        nodes.ask("replace")
        versions = summary.get("versions", {})
        self._lines.add(row | {"other_load": None, "result": {"versions": versions}})
        print(json.dumps(row), file=sys.stderr, flush=True)


def _join(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {name: max(value, one.get(name, 0.0)) for name, value in other.items()}


def kills(args: argparse.Namespace) -> None:
    """Kill `--kills` times, write the section."""
    series = Series(args)
    if len(series.rows) < args.kills:
        series.whole()
        with cluster_nodes.Nodes((2, 2)) as nodes:
            os.environ |= nodes.variables
            while len(series.rows) < args.kills:
                refuse_late(args)
                series.kill(nodes)
    write_section(args, NAME, section(args, series.rows))


def section(args: argparse.Namespace, rows: list[Row]) -> str:
    """Return the Markdown of the series."""
    body: list[list[str]] = []
    failed = ""
    for target in (PROCESS, ACTOR, NODE, RUN, None):
        if not (mine := [row for row in rows if target in (row["target"], None)]):
            continue
        hit = [row for row in mine if row["hit"]]
        phases = Counter(row["phase"] for row in hit)
        whole = sum(row["steps"] == STEPS for row in hit)
        errors = sorted({row["error"] for row in hit if row["error"]})
        if target is None and errors:
            failed = "\n- **Failed:** " + "; ".join(errors)
        equal = [row["equal"] for row in hit if "equal" in row]
        waits = [row["left"]["s"] for row in mine if "s" in row["left"]]
        left = {name: max(row["left"][name] for row in mine) for name in LEFT}
        body.append([
            target or "**all**", str(len(hit)), *(str(phases[phase]) for phase in PHASES),
            f"{whole} of {len(hit)}", f"{sum(equal)} of {len(equal)}" if equal else "-",
            ", ".join(f"{count} {name}" for name, count in left.items()),
            f"{statistics.median(waits):.1f} (at most {max(waits):.1f})" if waits else "-",
        ])  # fmt: skip
    head = ["killed", "kills", *PHASES, "all steps done", "bit-equal after the resume",
            "left at most", "until then, s"]  # fmt: skip
    return f"""## Workers on a Ray cluster: kills

{provenance(args, {"Flatout": rows})}
- SIGKILL within a chosen occurrence of a phase; PPO with 8 environments in two workers, two nodes
  with 2 CPUs. A killed run is resumed from its newest checkpoint (without one it begins again) and
  compared to the last bit with an undisturbed run on actor processes of this machine. What is left
  after each run is counted until nothing is left, for at most 60 s: processes, Ray actors that are
  not dead, bytes of objects. Where a node is killed and its machine lives on, the processes of its
  workers end when Ray next looks for the node, about a minute later.{failed}

{table(head, body)}
"""


if __name__ == "__main__":
    sys.exit(main())
