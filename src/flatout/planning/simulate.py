"""A discrete-event simulation of threads and processes that share cores and devices. Pure.

A thread is a generator of requests: `Work`, `Sleep`, `Signal.wait`. Threads that work at the same
time on the same resource share it: with n of them each advances at the resource's measured speed.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

CPU = "cpu"

LONGEST_S = 1e9
"""Seconds that stand for longer times and for values that are no time, as in a damaged record."""


class Work(NamedTuple):
    """Occupy a resource: `seconds` if alone, `width` of its places (threads, of cores)."""

    seconds: float
    width: float = 1.0
    resource: str = CPU


class Sleep(NamedTuple):
    """Pass time without occupying anything."""

    seconds: float


class Wait(NamedTuple):
    """Wait until a counter reaches a number."""

    counter: Counter
    number: int


@dataclass
class Counter:
    """A counter for which threads wait; it only rises."""

    value: int = 0


Request = Work | Sleep | Wait

Thread = Generator[Request, None, None]

Speed = Callable[[float], float]
"""The relative speed of each thread by the number of places of a resource in use; 1 for one."""


@dataclass
class Spent:
    """A thread's seconds, by what it did."""

    working: float = 0.0
    sleeping: float = 0.0
    waiting: float = 0.0


@dataclass
class _Task:
    name: str
    thread: Thread
    left: float = 0.0  # seconds of work, if alone
    width: float = 1.0
    resource: str = CPU
    spent: Spent = field(default_factory=Spent)
    since: float = 0.0


def shared(places: float, full: float) -> Speed:
    """The speed on `places` cores, each of which runs at the speed `full` (of 0 to 1) while all
    are busy: caches and memory are shared. More threads than cores take turns. `places` need not be
    a whole number."""
    # Two cores do no less than one. Between one and all, work per second rises like n / (1 + b n).
    slower = 0.0 if places <= 1 else (1.0 / max(full, 1.0 / places) - 1.0) / (places - 1)

    def speed(asked: float) -> float:
        busy = min(max(asked, 1.0), places)
        return min(places / max(asked, 1e-9), 1.0) / (1.0 + slower * (busy - 1.0))

    return speed


def simulate(threads: Mapping[str, Thread], speeds: Mapping[str, Speed]) -> dict[str, Spent]:
    """Run all threads to their ends; what each spent its time on.

    Raises:
        RuntimeError: threads wait for one another for ever.
    """
    now, order = 0.0, itertools.count()
    working: list[_Task] = []
    sleeping: list[tuple[float, int, _Task]] = []
    waiting: list[tuple[_Task, Wait]] = []
    tasks = [_Task(name, thread) for name, thread in threads.items()]

    def resume(task: _Task) -> None:
        while True:
            request = next(task.thread, None)
            task.since = now
            if request is None:
                return
            if isinstance(request, Work):
                seconds, task.width, task.resource = request
                task.left = seconds if seconds < LONGEST_S else LONGEST_S
                if task.left > 0.0:
                    working.append(task)
                    return
            elif isinstance(request, Sleep):
                seconds = request.seconds if request.seconds < LONGEST_S else LONGEST_S
                if seconds > 0.0:
                    heapq.heappush(sleeping, (now + seconds, next(order), task))
                    return
            elif request.counter.value < request.number:
                waiting.append((task, request))
                return

    def wake() -> None:
        ready = [item for item in waiting if item[1].counter.value >= item[1].number]
        while ready:
            for item in ready:
                waiting.remove(item)
                item[0].spent.waiting += now - item[0].since
                resume(item[0])
            ready = [item for item in waiting if item[1].counter.value >= item[1].number]

    for task in tasks:
        resume(task)
    wake()
    while working or sleeping:
        asked: dict[str, float] = {}
        for task in working:
            asked[task.resource] = asked.get(task.resource, 0.0) + task.width
        rates = {name: max(1e-9, speeds[name](number)) for name, number in asked.items()}
        step = min((task.left / rates[task.resource] for task in working), default=float("inf"))
        if sleeping:
            step = min(step, sleeping[0][0] - now)
        step = max(step, 0.0)
        now += step
        done: list[_Task] = []
        for task in working:
            task.left -= step * rates[task.resource]
            if task.left <= 1e-12:
                done.append(task)
        for task in done:
            working.remove(task)
            task.spent.working += now - task.since
        while sleeping and sleeping[0][0] <= now + 1e-12:
            task = heapq.heappop(sleeping)[2]
            task.spent.sleeping += now - task.since
            done.append(task)
        for task in done:
            resume(task)
        wake()
    if waiting:
        names = ", ".join(task.name for task, _ in waiting)
        raise RuntimeError(f"{names} wait for one another")
    return {task.name: task.spent for task in tasks}
