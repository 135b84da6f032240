"""A placement's speed from measured stages, by simulation. Pure.

Collecting is a set of threads and processes that wait for one another as the samplers do; learning
is another. `flatout.planning.simulate` lets them share the cores. Serial schedules alternate them,
overlapped ones run them at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from flatout.config.placement import Placement
from flatout.config.workers import assign_groups
from flatout.planning import workers
from flatout.planning.resets import Resets, ResetWait, reset_wait
from flatout.planning.simulate import (
    CPU,
    Counter,
    Request,
    Sleep,
    Spent,
    Thread,
    Wait,
    Work,
    shared,
    simulate,
)
from flatout.planning.stages import Stages, at, learning, learning_of


def collecting(
    stages: Stages, placement: Placement, iterations: int, threads: dict[str, Thread],
    resets: ResetWait,
) -> Callable[[int], Iterator[Request]]:  # fmt: skip
    """The main thread's part of collecting; adds the other processes to `threads`."""
    if not placement.in_processes:
        return lambda k: _inline(stages, placement, resets)
    if placement.acts_in_workers:
        return workers.collecting(stages, placement, iterations, threads, resets)
    return _central(stages, placement, iterations, threads, resets)


def resets_in(stages: Stages, placement: Placement) -> ResetWait:
    """The part of resets in each turn of a process that steps environments."""
    if placement.steps_on_device:
        return ResetWait()
    count, each = 1, stages.envs
    if placement.in_processes:
        count, each = placement.workers or (1, stages.envs)
    turns = stages.horizon if placement.acts_in_workers else 1
    step_s = stages.call + env_turn(replace(stages, envs=each))
    return reset_wait(stages.resets, each, turns, count, step_s)


def _inline(stages: Stages, placement: Placement, resets: ResetWait) -> Iterator[Request]:
    """Acting and stepping in turns."""
    turns, n = stages.horizon, stages.envs
    groups = placement.groups or 1
    act = groups * at(stages.act[str(placement.act[0])], n // groups)
    if placement.act[0].is_gpu:
        yield Work(turns * act, 1.0, "gpu")
        act = 0.0
    env = env_turn(stages)
    work = stages.call + stages.turn + env * stages.computing + resets.work + resets.later
    yield Work(turns * (act + work))
    yield Sleep(turns * (env * (1.0 - stages.computing) + resets.sleep))


def env_turn(stages: Stages) -> float:
    """Seconds in which all environments make a step here."""
    return stages.env_s * stages.envs / min(stages.lanes, stages.envs, stages.at_once)


def _central(
    stages: Stages, placement: Placement, iterations: int, threads: dict[str, Thread],
    resets: ResetWait,
) -> Callable[[int], Iterator[Request]]:  # fmt: skip
    """One group's processes step while another's actions are chosen here."""
    rounds = assign_groups(placement, stages.envs)
    orders = [[Counter() for _ in groups] for groups in rounds]
    answers = [[Counter() for _ in groups] for groups in rounds]
    _, each = placement.workers or (1, stages.envs)
    turns = stages.horizon
    draws = workers.slow_steps(
        stages, sum(len(s.workers) for r in rounds for s in r), each, iterations * turns
    )

    def worker(order: Counter, answer: Counter, durations: np.ndarray) -> Thread:
        for turn, seconds in enumerate(durations.tolist()):
            yield Wait(order, turn + 1)
            yield Sleep(stages.trip)
            yield Work(stages.call + seconds * stages.computing + resets.work)
            yield Sleep(seconds * (1.0 - stages.computing) + resets.sleep)
            answer.value += 1
            yield Work(resets.later)

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


TURNS = 48
"""Turns of an iteration that are simulated one by one; longer iterations are scaled down to it."""

ITERATIONS = 4
"""Simulated iterations; the first is start-up and does not count."""

LONGEST_TURN_S = 5e-4
"""The most that a sampler's bookkeeping of one turn is believed to take."""

LONGEST_TRIP_S = 0.02
"""The longest way to an actor process and back that is believed."""

MESSAGE = 0.2
"""Share of it in which the main process is busy."""

EXTRAPOLATED = 0.25
"""Relative half-width of a prediction whose way to collect was not run itself."""

DERIVED = 0.18
"""The same where it was."""

GUESSED = 0.3
"""The half-width that an assumed network adds to it."""


TOLD_S, CHUNK_S = 5e-5, 0.5
"""Seconds of the host's work on one iteration of a chunk, and seconds of a chunk."""

CHUNK_HOST_S = 5e-3
"""Seconds of the host's other work on a chunk: starting it and reading its output."""


@dataclass(frozen=True)
class Prediction:
    """A placement's predicted speed.

    Attributes:
        placement: what it is of.
        rate: steps per second, with `low` and `high` around it.
        waits: share of the time in which each part waits: ``main``, ``learner``, ``workers``.
        measured: steps per second of real short runs, if there were any.
        memory: expected MiB by device.
    """

    placement: Placement
    rate: float
    low: float
    high: float
    waits: dict[str, float] = field(default_factory=dict[str, float])
    measured: float | None = None
    memory: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def best_known(self) -> float:
        """The measured rate where there is one, else the predicted one."""
        return self.rate if self.measured is None else self.measured


def predict(stages: Stages, placement: Placement, known: bool = False) -> Prediction:
    """The speed of a placement with its workers and groups resolved.

    Args:
        known: its way to collect was itself measured on this machine.

    Raises:
        KeyError: a stage that it needs was not measured.
    """
    seconds, waits = iteration_s(stages, placement)
    rate = stages.steps / max(seconds, 1e-12)
    wide = math.hypot(stages.spread, DERIVED if known else EXTRAPOLATED)
    if placement.on_cluster and stages.hosts is not None and not stages.hosts.network.measured:
        wide = math.hypot(wide, GUESSED)
    return Prediction(placement, rate, rate / (1.0 + wide), rate * (1.0 + wide), waits)


def iteration_s(
    stages: Stages, placement: Placement, turns: int = TURNS
) -> tuple[float, dict[str, float]]:
    """Seconds of an iteration in the steady state, and the share of it that each part waits."""
    if placement.steps_on_device:
        return sum(in_program(stages, placement).values()), {}
    (short, times), resets = _scaled(stages, turns), resets_in(stages, placement)
    spent = [_run(short, placement, count, resets) for count in (1, ITERATIONS)]
    total = [max(_end(s) for s in each.values()) for each in spent]
    steady = (total[1] - total[0]) / (ITERATIONS - 1)
    waits: dict[str, float] = {}
    for name in spent[1]:
        waited = (spent[1][name].waiting - spent[0][name].waiting) / (ITERATIONS - 1)
        if name.startswith(workers.LINK):
            continue
        part = "workers" if name.startswith("worker") else name
        waits.setdefault(part, 0.0)
        count = sum(other.startswith("worker") for other in spent[1]) if part == "workers" else 1
        waits[part] += min(max(waited / max(steady, 1e-12), 0.0), 1.0) / count
    return steady * times, waits


def in_program(stages: Stages, placement: Placement) -> dict[str, float]:
    """Seconds of an iteration whose environments step in a program, by what they are.

    Raises:
        KeyError: a stage was not measured.
    """
    place = ",".join(map(str, placement.act))
    rollout = stages.rollout[place]
    env = min(stages.stepping.get(place, 0.0), rollout)
    if placement.fused:
        learn = stages.inside[place]
        rest = TOLD_S + CHUNK_HOST_S * (rollout + learn) / CHUNK_S
    else:
        learn = stages.learn[learning_of(placement)]
        rest = stages.apart[place] + stages.iteration
    return {ENV: env, ACT: rollout - env, LEARN: learn, "the host's part": rest}


ENV, RESETS, ACT, LEARN = (
    "stepping the environments", "resetting the environments", "choosing actions", "learning"
)  # fmt: skip
"""The parts of an iteration in words."""


def fitted(
    stages: Stages, placement: Placement, step_s: float, horizon: int, seen: Resets | None = None
) -> Stages:
    """Stages with which collecting takes as long as was measured.

    What the parts do not explain goes into the stage that only this way to collect has: the main
    process's bookkeeping (inline), the way to processes (central), a trajectory's own cost (local).

    Args:
        step_s: measured seconds of a collected step, summed over environments.
        horizon: T of the trajectories that were measured.
        seen: the resets that happened meanwhile; by default as many as are expected.
    """
    if seen is not None:  # a short look sees more or fewer
        found = fitted(replace(stages, resets=seen), placement, step_s, horizon)
        return replace(found, resets=stages.resets)
    key = next(iter(stages.learn))
    where = replace(placement, learn=placement.act[:1], replay="cpu")
    bare = replace(
        stages, horizon=horizon, iteration=0.0,
        learn={learning(str(where.learn[0]), "cpu"): 0.0, key: 0.0},
    )  # fmt: skip
    measured = step_s * bare.steps
    if not placement.in_processes:
        turn = stages.turn + (measured - iteration_s(bare, where)[0]) / horizon
        kept = min(max(turn, 0.0), LONGEST_TURN_S)
        # More than that is chance: rare slow steps were more often seen there, or here.
        scale = max(1.0 + (turn - kept) / max(env_turn(stages), 1e-12), 0.1)
        return replace(stages, turn=kept, env=tuple(seconds * scale for seconds in stages.env))
    if placement.acts_in_workers:
        none = iteration_s(replace(bare, trajectory=0.0), where)[0]
        return replace(stages, trajectory=max(measured - none, 0.0))
    low, high = 0.0, LONGEST_TRIP_S
    for _ in range(12):
        trip = (low + high) / 2.0
        tried = replace(bare, trip=trip, message=trip * MESSAGE)
        low, high = (
            (low, trip) if iteration_s(tried, where, TURNS // 2)[0] > measured else (trip, high)
        )
    return replace(stages, trip=low, message=low * MESSAGE)


def loaded(stages: Stages, count: int, env_s: float, act_s: float, batch: int) -> Stages:
    """Stages with what `count` processes that acted by themselves at the same time have told.

    Args:
        env_s: seconds of one environment's step in them.
        act_s: seconds of a call that chose `batch` environments' actions.
    """
    speed = min(max(stages.env_s / max(env_s, 1e-12), 1.0 / count), 1.0)
    if stages.computing < 0.5 or stages.cores < 2:
        return replace(stages, local=((batch, act_s),))
    busy = min(float(count), stages.at_once)
    each = speed * count / busy  # without the turns that they take on these cores
    return replace(crowded(stages, busy, each), local=((batch, act_s * speed),))


def crowded(stages: Stages, busy: float, each: float) -> Stages:
    """Stages with the measured speed of each of `busy` cores, in that of one that works alone."""
    if busy <= 1.0:
        return stages
    slower = (1.0 / min(max(each, 1.0 / busy), 1.0) - 1.0) / (busy - 1.0)
    return replace(stages, full=1.0 / (1.0 + slower * (stages.at_once - 1.0)))


def _end(spent: Spent) -> float:
    return spent.working + spent.sleeping + spent.waiting


def _scaled(stages: Stages, most: int) -> tuple[Stages, float]:
    """A shorter iteration with the same proportions, and how many times longer the real one is."""
    turns = min(stages.horizon, most)
    times = stages.horizon / turns
    learn = {name: seconds / times for name, seconds in stages.learn.items()}
    hosts = stages.hosts
    if hosts is not None:
        network = replace(hosts.network, way_s=hosts.network.way_s / times)
        hosts = replace(hosts, network=network, request_s=hosts.request_s / times)
    short = replace(
        stages, horizon=turns, learn=learn, iteration=stages.iteration / times,
        trajectory=stages.trajectory / times, hosts=hosts,
        params_bytes=stages.params_bytes / times,
    )  # fmt: skip
    return short, times


def _run(
    stages: Stages, placement: Placement, iterations: int, resets: ResetWait
) -> dict[str, Spent]:
    """Return the work of every thread in `iterations` iterations."""
    collected, learned = Counter(), Counter()
    learn = stages.learn[learning_of(placement)]
    resource = "gpu" if placement.learn[0].is_gpu else CPU
    width = stages.width if resource == CPU else 1.0
    threads: dict[str, Thread] = {}
    collect = collecting(stages, placement, iterations, threads, resets)

    def learns() -> Iterator[Request]:
        if learn > 0.0:
            yield Work(learn, width, resource)

    def main() -> Thread:
        for k in range(iterations):
            if placement.overlapped:
                yield Wait(learned, k - placement.lag)
            yield from collect(k)
            collected.value += 1
            if not placement.overlapped:
                yield from learns()
            yield Work(stages.iteration)
        if placement.overlapped:
            yield Wait(learned, iterations)

    def learner() -> Thread:
        for k in range(iterations):
            yield Wait(collected, k + 1)
            yield from learns()
            learned.value += 1

    threads["main"] = main()
    if placement.overlapped:
        threads["learner"] = learner()
    speeds = {CPU: shared(stages.at_once, stages.full), "gpu": shared(1, 1.0)}
    if placement.on_cluster and stages.hosts is not None:
        speeds |= dict.fromkeys((workers.TO_HOSTS, workers.FROM_HOSTS), shared(1, 1.0))
        for number, host in enumerate(stages.hosts.machines):
            speeds[workers.host_cores(number)] = shared(host.cores, stages.full)
    return simulate(threads, speeds)
