"""The machines of a Ray cluster that can step environments, and the network to them, measured."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from flatout.engine.workers.cluster import SENT_BYTES
from flatout.engine.workers.link import LinkEnd, bytes_per_s
from flatout.errors import FlatoutError, one_line
from flatout.hardware.ray_cluster import connect
from flatout.planning.hosts import Host, Hosts, Network
from flatout.planning.limits import host_counts
from flatout.planning.stages import Stages

MOST_LINKS = 3
"""Machines to which the network is measured; the slowest one counts."""

TRIES = 5
"""Requests to each, of which the fastest counts."""

ANSWER_S = 60.0
"""Seconds within which a machine has to answer."""


def cluster_hosts(address: str, stages: Stages) -> tuple[Hosts | None, list[str]]:
    """Return the machines of a cluster with the network to them, and sentences for the user. It is
    None if no machine has a CPU for workers.

    Args:
        address: ``HOST:PORT`` or ``auto``.
        stages: of the run, with the sizes of its trajectories and parameters.

    Raises:
        UsageError, FlatoutError: Ray is not installed, or no Ray answers there.
    """
    ray = connect(address, None, "--ray-address")
    try:
        own = ray.get_runtime_context().get_node_id()
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0)]
        if not nodes:
            return None, [f"--ray-address {address}: no machine there has a CPU for workers"]
        hosts = tuple(
            Host(int(node["Resources"]["CPU"]) or 1, node["NodeID"] == own,
                 str(node["NodeManagerHostname"]))
            for node in nodes
        )  # fmt: skip
        total, free = (
            int(found.get("CPU", 0))
            for found in (ray.cluster_resources(), ray.available_resources())
        )
        notes = [f"{total - free} of the cluster's {total} CPUs are in use"] * (free < total)
        others = [node["NodeID"] for node in nodes if node["NodeID"] != own][:MOST_LINKS]
        if not others:  # workers share memory with the run
            return Hosts(hosts, Network(0.0, 1e12, "all workers are on this machine")), notes
        sized = Hosts(hosts, Network(0.0, 1e12))
        workers = host_counts(replace(stages, hosts=sized))[-1]
        answer = int(stages.step_bytes * stages.horizon * stages.envs / workers)
        links = [_link(ray, node, int(stages.params_bytes), answer) for node in others]
        way_s, rate = max(way for way, _ in links), min(rate for _, rate in links)
        network = Network(way_s, rate, f"requests to {len(links)} of the machines")
        return Hosts(hosts, network), notes
    except ray.exceptions.RayError as error:
        raise FlatoutError(
            f"--ray-address {address}: a machine of the cluster did not answer "
            f"({one_line(error)[:200]})."
        ) from None
    finally:
        ray.shutdown()


def _link(ray: Any, node: str, params_bytes: int, answer_bytes: int) -> tuple[float, float]:
    """Return the seconds of a request to a machine, as far as they do not depend on the size of the
    answer, and the bytes per second of the network."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    actor = ray.remote(LinkEnd).options(num_cpus=0, scheduling_strategy=there).remote()
    try:
        ray.get(actor.ping.remote(), timeout=ANSWER_S)
        rate = bytes_per_s(lambda size: ray.get(actor.payload.remote(size), timeout=ANSWER_S))
        trips: list[float] = []
        params: Any = np.zeros(params_bytes, np.uint8)
        for _ in range(TRIES):  # as in an iteration
            began = time.monotonic()
            sent = ray.put(params) if params_bytes > SENT_BYTES else params
            ray.get(actor.exchange.remote(sent, answer_bytes), timeout=ANSWER_S)
            trips.append(time.monotonic() - began)
        return max(min(trips) - (params_bytes + answer_bytes) / rate, 0.0), rate
    finally:
        ray.kill(actor)
