"""The threads and processes that collect a trajectory, as simulation sees them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from flatout.config.placement import Placement
from flatout.config.workers import assign_groups
from flatout.planning.simulate import CPU, Counter, Request, Sleep, Thread, Wait, Work
from flatout.planning.stages import Stages, at


def collecting(
    stages: Stages, placement: Placement, iterations: int, threads: dict[str, Thread]
) -> Callable[[int], Iterator[Request]]:
    """The main thread's part of collecting; adds the other processes to `threads`."""
    if not placement.in_processes:
        return lambda k: _inline(stages, placement)
    if placement.acts_in_workers:
        return _local(stages, placement, iterations, threads)
    return _central(stages, placement, iterations, threads)


def _inline(stages: Stages, placement: Placement) -> Iterator[Request]:
    """Acting and stepping in turns."""
    turns, n = stages.horizon, stages.envs
    groups = placement.groups or 1
    act = groups * at(stages.act[str(placement.act[0])], n // groups)
    if placement.act[0].is_gpu:
        yield Work(turns * act, 1.0, "gpu")
        act = 0.0
    env = env_turn(stages)
    yield Work(turns * (act + stages.call + stages.turn + env * stages.computing))
    yield Sleep(turns * env * (1.0 - stages.computing))


def env_turn(stages: Stages) -> float:
    """Seconds in which all environments make a step here."""
    return stages.env_s * stages.envs / min(stages.lanes, stages.envs, stages.cores)


def _central(
    stages: Stages, placement: Placement, iterations: int, threads: dict[str, Thread]
) -> Callable[[int], Iterator[Request]]:
    """One group's processes step while another's actions are chosen here."""
    rounds = assign_groups(placement, stages.envs)
    orders = [[Counter() for _ in groups] for groups in rounds]
    answers = [[Counter() for _ in groups] for groups in rounds]
    _, each = placement.workers or (1, stages.envs)
    turns = stages.horizon
    draws = _draws(stages, sum(len(s.workers) for r in rounds for s in r), each, iterations * turns)

    def worker(order: Counter, answer: Counter, durations: np.ndarray) -> Thread:
        for turn, seconds in enumerate(durations.tolist()):
            yield Wait(order, turn + 1)
            yield Sleep(stages.trip)
            yield Work(stages.call + seconds * stages.computing)
            yield Sleep(seconds * (1.0 - stages.computing))
            answer.value += 1

    number = 0
    for r, groups in enumerate(rounds):
        for g, share in enumerate(groups):
            for _ in share.workers:
                name = f"worker {number}"
                threads[name] = worker(orders[r][g], answers[r][g], draws[number])
                number += 1

    def collect(k: int) -> Iterator[Request]:
        for t in range(k * turns, (k + 1) * turns):
            for r, groups in enumerate(rounds):
                for g, share in enumerate(groups):
                    count = len(share.workers)
                    if t > k * turns:
                        yield Wait(answers[r][g], t * count)
                    calls = share.count // share.batch
                    act = calls * at(stages.act[str(share.device)], share.batch)
                    on = "gpu" if share.device.is_gpu else CPU
                    yield Work(act, 1.0, on)
                    yield Work(count * stages.message + stages.turn)
                    orders[r][g].value += 1
        for r, groups in enumerate(rounds):
            for g, share in enumerate(groups):
                yield Wait(answers[r][g], (k + 1) * turns * len(share.workers))

    return collect


def _local(
    stages: Stages, placement: Placement, iterations: int, threads: dict[str, Thread]
) -> Callable[[int], Iterator[Request]]:
    """Processes that act by themselves; all of them together make a trajectory."""
    count, each = placement.workers or (1, stages.envs)
    order, answer = Counter(), Counter()
    turns = stages.horizon
    draws = _draws(stages, count, each, iterations * turns).reshape(count, iterations, turns)
    batch = stages.envs // (placement.groups or count)
    beside = stages.call + stages.turn
    acting = turns * max(each // batch, 1) * at(stages.local, batch)

    def worker(durations: np.ndarray) -> Thread:
        for k, seconds in enumerate(durations.sum(1).tolist()):
            yield Wait(order, k + 1)
            yield Work(acting + turns * beside + seconds * stages.computing)
            yield Sleep(seconds * (1.0 - stages.computing))
            answer.value += 1

    for number in range(count):
        threads[f"worker {number}"] = worker(draws[number])

    def collect(k: int) -> Iterator[Request]:
        order.value += 1
        yield Wait(answer, (k + 1) * count)
        yield Work(stages.trajectory)

    return collect


def _draws(stages: Stages, workers: int, each: int, turns: int) -> np.ndarray:
    """Seconds that each worker's environments take in each turn, ``[workers, turns]``, drawn from
    the measured slices; their mean is the measured one."""
    slices = np.asarray(stages.env)
    chosen = np.random.default_rng(0).integers(len(slices), size=(workers, turns, each))
    drawn = slices[chosen]
    drawn *= stages.env_s / max(float(drawn.mean()), 1e-12)
    return drawn.sum(2) / min(stages.lanes, each)
