"""Workers that act themselves, on this machine or on those of a cluster, as simulated threads.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from flatout.config.placement import CPU as CPU_DEVICE
from flatout.config.placement import Placement
from flatout.planning.hosts import Hosts
from flatout.planning.resets import ResetWait
from flatout.planning.simulate import CPU, Counter, Request, Sleep, Thread, Wait, Work
from flatout.planning.stages import Stages, at

TO_HOSTS, FROM_HOSTS = "to machines", "from machines"
"""The two directions of the network of the run's machine, which all workers share."""

LINK = "link "
"""Prefix of the names of threads that carry parameters to a machine."""


def host_cores(number: int) -> str:
    """Return the name of the resource that is a machine's cores."""
    return f"host {number}"


def acting_s(stages: Stages, placement: Placement) -> float:
    """Return the seconds in which a worker chooses the actions of a trajectory.

    Raises:
        KeyError: choosing actions on a CPU was not measured.
    """
    count, each = placement.workers or (1, stages.envs)
    batch = stages.envs // (placement.groups or count)
    curve = stages.local or stages.act[str(CPU_DEVICE)]
    return stages.horizon * max(each // batch, 1) * at(curve, batch)


def collecting_s(stages: Stages, placement: Placement) -> float:
    """Return the mean seconds in which a worker with a core of its own collects a trajectory."""
    _, each = placement.workers or (1, stages.envs)
    turn = stages.call + stages.turn + stages.env_s * each / min(stages.lanes, each)
    return acting_s(stages, placement) + stages.horizon * turn


def answer_bytes(stages: Stages, placement: Placement) -> float:
    """Return the bytes of a worker's trajectory."""
    _, each = placement.workers or (1, stages.envs)
    return stages.step_bytes * each * stages.horizon


def collecting(
    stages: Stages, placement: Placement, iterations: int, threads: dict[str, Thread],
    resets: ResetWait,
) -> Callable[[int], Iterator[Request]]:  # fmt: skip
    """The main thread's part of collecting with workers that act; adds them to `threads`. All of
    them together make a trajectory.

    Raises:
        KeyError: a stage that it needs was not measured.
    """
    count, each = placement.workers or (1, stages.envs)
    order, answer = Counter(), Counter()
    turns = stages.horizon
    draws = slow_steps(stages, count, each, iterations * turns).reshape(count, iterations, turns)
    overhead = turns * (stages.call + stages.turn + resets.work) + acting_s(stages, placement)
    places, hosts = [-1] * count, stages.hosts
    if placement.on_cluster:
        if hosts is None:
            raise KeyError("the machines of the cluster")
        places = hosts.assigned(count)
        places = [-1 if at >= 0 and hosts.machines[at].here else at for at in places]
    params = {place: Counter() for place in places if place >= 0}
    remote = sum(place >= 0 for place in places)
    requests_s = 0.0 if hosts is None else remote * hosts.request_s
    for place in params:
        assert hosts is not None
        threads[f"{LINK}{place}"] = _carry(stages, hosts, iterations, order, params[place])

    def worker(place: int, durations: np.ndarray) -> Thread:
        on = host_cores(place) if place >= 0 else CPU
        for k, seconds in enumerate(durations.sum(1).tolist()):
            yield Wait(order, k + 1)
            if place >= 0:
                assert hosts is not None
                yield Wait(params[place], k + 1)
                yield Sleep(hosts.network.way_s)
            yield Work(overhead + seconds * stages.computing, 1.0, on)
            yield Sleep(seconds * (1.0 - stages.computing) + turns * resets.sleep)
            if place >= 0:
                assert hosts is not None
                size = answer_bytes(stages, placement)
                yield Work(size / hosts.network.bytes_per_s, 1.0, FROM_HOSTS)
            answer.value += 1
            yield Work(turns * resets.later, 1.0, on)

    for number, place in enumerate(places):
        threads[f"worker {number}"] = worker(place, draws[number])

    def collect(k: int) -> Iterator[Request]:
        order.value += 1
        yield Wait(answer, (k + 1) * count)
        yield Work(stages.trajectory + requests_s)

    return collect


def _carry(
    stages: Stages, hosts: Hosts, iterations: int, order: Counter, arrived: Counter
) -> Thread:
    """Carry each version of the parameters to one machine."""
    for k in range(iterations):
        yield Wait(order, k + 1)
        yield Work(stages.params_bytes / hosts.network.bytes_per_s, 1.0, TO_HOSTS)
        arrived.value += 1


def slow_steps(stages: Stages, workers: int, each: int, turns: int) -> np.ndarray:
    """Seconds that each worker's environments take in each turn, ``[workers, turns]``, drawn from
    the measured slices; their mean is the measured one."""
    slices = np.asarray(stages.env)
    chosen = np.random.default_rng(0).integers(len(slices), size=(workers, turns, each))
    drawn = slices[chosen]
    drawn *= stages.env_s / max(float(drawn.mean()), 1e-12)
    return drawn.sum(2) / min(stages.lanes, each)
