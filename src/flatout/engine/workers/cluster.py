"""The Ray cluster of a run: where its workers are placed, and what they share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from flatout.engine.workers.link import bytes_per_s
from flatout.engine.workers.pool import MachineLost
from flatout.engine.workers.protocol import PARAMS, Job
from flatout.engine.workers.remote_actor import RemoteActor
from flatout.engine.workers.shared_memory import SharedArrays
from flatout.engine.workers.traffic import Machine, Traffic
from flatout.errors import FlatoutError, UsageError
from flatout.hardware.facts import Facts, differences, facts_here
from flatout.hardware.ray_cluster import refuse_silent

ROOM_S, FULL_S, FULL_AGAIN_S = 30.0, 60.0, 2.0
"""Seconds within which a cluster has to find room for a worker. If it does not, it counts as full
for `FULL_S`, within which other workers wait for `FULL_AGAIN_S` only."""

SLOW_S, LOOK_S = 90.0, 1.0
"""Seconds within which a worker has to start on a machine with room, and seconds between two looks
whether there still is room."""

SENT_BYTES = 64_000
"""Bytes up to which parameters are sent in each request. Larger ones go to each machine once,
through Ray's object store, which takes about three more round trips."""

AVOIDED_S = 120.0
"""Seconds for which no worker is placed on a machine that was silent. Ray itself needs about a
minute to notice that a machine is gone, and waits for it until then."""

NODE_LABEL = "ray.io/node-id"
"""The label by which Ray knows a node when it chooses one."""


class PlacedWorker(Protocol):
    """A worker that looks for a machine: `flatout.engine.workers.remote.RemoteWorker`."""

    job: Job
    lost: MachineLost | None
    machine: Machine | None

    def place(self, deadline: float) -> tuple[str, str, Facts] | None: ...
    def step_here(self) -> None: ...
    def begin(self) -> None: ...
    def payload(self, size: int) -> None: ...


class Cluster:
    """The state that the remote workers of a run share.

    Args:
        ray: the connected module (`flatout.hardware.ray_cluster.connect`).
        shared_arrays: the arrays of the run in this process.
        patience: the time limit of a step, in seconds.
        packages: the distributions that must be equal on all machines.
        same_bits: whether machines that differ are refused.
        report: receives a sentence about each machine that differs, and each worker without room.

    Attributes:
        packages: the distributions that must be equal on all machines.
        traffic: what the trajectories so far took on their way.
        params_bytes: bytes of the parameters that act.
    """

    def __init__(
        self, ray: Any, shared_arrays: SharedArrays, patience: float, packages: Sequence[str],
        same_bits: bool, report: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.ray, self.shared_arrays, self.patience = ray, shared_arrays, patience
        self.report, self.traffic = report, Traffic()
        self.packages, self._same_bits = list(packages), same_bits
        self._facts = facts_here(packages)
        self._compared: set[str] = set()  # nodes
        self._measured: set[str] = set()  # machines to which the network was measured
        self._params: tuple[int, Any] = (-1, None)
        self._names = [name for name in shared_arrays.arrays if name.startswith(PARAMS)]
        self.params_bytes = sum(shared_arrays[name].nbytes for name in self._names)
        self._full_until = 0.0
        self._avoided: dict[str, float] = {}  # nodes that were silent, and until when
        self._placing: list[PlacedWorker] = []
        ping = ray.method(concurrency_group="ping")(RemoteActor.ping)
        actor: Any = type("RemoteActor", (RemoteActor,), {"ping": ping})
        self._actor = ray.remote(concurrency_groups={"ping": 1})(actor)
        context = ray.get_runtime_context()
        self.node, self._address = context.get_node_id(), context.gcs_address  # of this machine

    def actor(self, job: bytes, times: np.ndarray) -> Any:
        """Make the Ray actor of a worker; Ray looks for a machine with a free CPU."""
        where: Any = "SPREAD"
        if avoided := [node for node in self._avoided if self.avoids(node)]:
            from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

            where = NodeLabelSchedulingStrategy(hard={NODE_LABEL: NotIn(*avoided)})
        made = self._actor.options(
            num_cpus=1, num_gpus=0, max_restarts=0, max_task_retries=0, scheduling_strategy=where
        )
        return made.remote(job, self.patience, times)

    def avoid(self, node: str) -> None:
        """Place no worker on a node for a while."""
        self._avoided[node] = time.monotonic() + AVOIDED_S

    def avoids(self, node: str) -> bool:
        """Return whether a node was silent not long ago."""
        return time.monotonic() < self._avoided.get(node, 0.0)

    def params(self, version: int) -> Any:
        """Return the newest parameters, or if they are large their reference in the object
        store."""
        if self._params[0] != version:
            arrays = [self.shared_arrays[name].copy() for name in self._names]
            large = sum(array.nbytes for array in arrays) > SENT_BYTES
            self._params = version, self.ray.put(arrays) if large else arrays
        return self._params[1]

    def placing(self, worker: PlacedWorker) -> None:
        """Note that a worker looks for a machine."""
        self._placing.append(worker)

    def place(self) -> None:
        """Wait until the workers that look for a machine have one, or the time is over; begin them.

        Raises:
            UsageError: a machine differs, and the run asked for the same bits.
        """
        placing, self._placing = self._placing, []
        begin = time.monotonic()
        patience = FULL_AGAIN_S if begin < self._full_until else ROOM_S
        for worker in placing:
            place, full = worker.place(begin + patience), False
            while place is None and worker.lost is None and not full:
                if full := self._full():
                    self._full_until = time.monotonic() + FULL_S
                elif time.monotonic() > begin + SLOW_S:
                    break
                else:
                    place = worker.place(time.monotonic() + LOOK_S)
            self._measure(worker)
            if worker.lost is not None:
                continue
            if place is None:
                worker.step_here()
                first, last = worker.job.first, worker.job.first + worker.job.count - 1
                why = f"found no free CPU for environments {first} to {last} within {patience:g} s"
                if not full:
                    why = (
                        f"did not start a worker for environments {first} to {last} within "
                        f"{SLOW_S:g} s, although it has a free CPU"
                    )
                self.report(f"the Ray cluster {why}: they step in an actor process of this machine")
            else:
                self._compare(*place)
        for worker in placing:
            if worker.lost is None:
                worker.begin()

    def _full(self) -> bool:
        """Return whether a request for a CPU waits for one; otherwise workers only start slowly."""
        from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]
        from ray.autoscaler.v2.sdk import get_cluster_resource_state

        try:
            waiting = get_cluster_resource_state(GcsClient(self._address)).pending_resource_requests
        except Exception:  # of another version of Ray, or it does not answer
            return True
        return any("CPU" in one.request.resources_bundle for one in waiting)

    def _measure(self, worker: PlacedWorker) -> None:
        """Measure the network to a worker's machine, once."""
        machine = worker.machine
        if machine is None or machine.here or machine.name in self._measured:
            return
        self._measured.add(machine.name)
        with suppress(self.ray.exceptions.RayError):  # the worker's own call reports a loss
            machine.bytes_per_s = bytes_per_s(worker.payload)

    def _compare(self, node: str, machine: str, facts: Facts) -> None:
        if node in self._compared:
            return
        self._compared.add(node)
        found = differences(self._facts, facts)
        if found and self._same_bits:
            raise UsageError(
                f"--same-bits: {machine} of the Ray cluster differs from this machine "
                f"({'; '.join(found)}); use machines that are alike, or leave out --same-bits."
            )
        if found:
            self.report(
                f"{machine} of the Ray cluster differs from this machine ({'; '.join(found)}): "
                "results may differ in their last bits"
            )

    def refuse_lost(self) -> None:
        """Raise a `FlatoutError` if the whole cluster is gone; Ray would end this process."""
        try:
            refuse_silent(self._address)
        except FlatoutError:
            raise FlatoutError(
                f"the Ray cluster at {self._address} was lost; continue from the last checkpoint "
                "with --resume."
            ) from None

    def close(self) -> None:
        """Disconnect; a Ray that was started for this run ends."""
        self._params = (-1, None)
        self.ray.shutdown()
