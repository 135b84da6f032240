"""A Ray cluster of several nodes on this machine, and what runs have left on it.

    python tests/cluster_nodes.py CPUS ...

runs a head node without CPUs and a node for each number, and prints Ray's address. Then it answers
each line on stdin with a line of JSON, and ends with the last one: ``remove`` kills the newest
node, ``add`` starts one, ``replace`` starts one for each that was killed, ``left SECONDS`` counts
what runs have left. `Nodes` is such a program as a context, for benchmarks and tests.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import psutil

STORE = 80_000_000
"""Bytes of each node's object store."""

RAY_ACTOR, ACTOR_PROCESS, NODE = "ray::RemoteActor", "engine.workers.worker", "raylet/raylet"
"""Parts of the command lines of a worker's Ray actor, its actor process, and a node."""


LEFT = ("processes", "Ray actors", "bytes of objects")
"""Kinds of things that runs may leave: processes of Ray actors and actor processes, Ray actors that
are not dead, and objects in the nodes' stores."""


def new_token() -> dict[str, str]:
    """Return the environment variables by which a new cluster's processes and runs are known."""
    return {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }  # fmt: skip


def processes(part: str) -> list[psutil.Process]:
    """Return the processes of this cluster whose command line has a part.

    They are known by the cluster's token, an environment variable that they inherit.
    """
    token = os.environ.get("RAY_AUTH_TOKEN")
    found: list[psutil.Process] = []
    for one in psutil.process_iter():
        try:
            if part in " ".join(one.cmdline()) and one.environ().get("RAY_AUTH_TOKEN") == token:
                found.append(one)
        except psutil.Error:  # it has ended, or is another user's
            continue
    return found


def working_nodes() -> list[psutil.Process]:
    """Return the processes of the nodes that have CPUs, which the head has not."""
    return [one for one in processes(NODE) if "--head" not in one.cmdline()]


class Nodes:
    """A head node without CPUs, and nodes with some, in a process of their own; a context.

    Args:
        cpus: the CPUs of each node.

    Attributes:
        variables: environment variables of runs that use the cluster.
        address: of the cluster, for `--ray-address`.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self._cpus, self.variables = list(cpus), new_token()

    def __enter__(self) -> Nodes:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *map(str, self._cpus)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
            env=os.environ | self.variables,
        )  # fmt: skip
        self.address = str(self._answer())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def ask(self, line: str) -> Any:
        """Return the program's answer to a line."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


# --- The program ------------------------------------------------------------------------------


class Program:
    """The nodes, in the process that starts and kills them.

    Args:
        cpus: the CPUs of each node.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        from ray.cluster_utils import Cluster

        self._cpus = cpus
        self._small: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE}
        self._cluster: Any = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, **self._small}
        )
        self._nodes = [self._node(count) for count in cpus]
        self.address: str = self._cluster.address

    def answer(self, line: str) -> Any:
        """Obey a line of stdin."""
        word, *more = line.split()
        if word == "remove":
            return self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)
        if word == "add":
            return self._nodes.append(self._node(self._cpus[0]))
        return self._replace_lost() if word == "replace" else self._left(float(more[0]))

    def close(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()

    def _node(self, cpus: int) -> Any:
        return self._cluster.add_node(num_cpus=cpus, **self._small)

    def _replace_lost(self) -> None:
        for node in list(self._nodes):
            raylets = node.all_processes.get("raylet", [])
            if not any(one.process.poll() is None for one in raylets):
                self._nodes.remove(node)
                self._cluster.remove_node(node, allow_graceful=False)
                self._nodes.append(self._node(self._cpus[0]))

    def _left(self, seconds: float) -> dict[str, float]:
        """Return what runs have left, after waiting until nothing is left or the time is over:
        the counts of `LEFT`, and the seconds (`s`) for which this waited."""
        began = time.monotonic()
        while True:
            actors = self._cluster.global_state.actor_table(None).values()
            counts = (
                len(processes(RAY_ACTOR)) + len(processes(ACTOR_PROCESS)),
                sum(actor["State"] != "DEAD" for actor in actors),
                self._object_bytes(),
            )
            waited = time.monotonic() - began
            if not any(counts) or waited > seconds:
                return {**dict(zip(LEFT, counts, strict=True)), "s": round(waited, 1)}
            time.sleep(0.5)

    def _object_bytes(self) -> int:
        """Return the bytes of objects in the stores of the nodes that are alive."""
        state, name = self._cluster.global_state, "object_store_memory"
        free = state.available_resources_per_node()
        total = state.total_resources_per_node()
        return round(sum(total[node][name] - free[node][name] for node in free if node in total))


def main(cpus: Sequence[int]) -> None:
    """Run the nodes until stdin ends."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints to stdout
    program = Program(cpus)
    try:
        print(json.dumps(program.address), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(program.answer(line)), file=answers, flush=True)
    finally:
        program.close()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
