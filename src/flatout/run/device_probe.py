"""Times environments that step in compiled programs: parts of one, and whole ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from flatout.config.placement import Placement
from flatout.engine.fused import FusedSchedule
from flatout.errors import FlatoutError
from flatout.planning import measure, pieces
from flatout.planning.stages import Stages
from flatout.run.factory import Factory
from flatout.types import Trajectory
from flatout_explain.hardware.others import busiest_others

LEAST_COMPILING_S = 10.0
"""Seconds that a program may always take to compile."""


class DeviceProbe:
    """Makes the programs of a run whose environments step on a device.

    Args:
        make: makes the components of a placement.
        stack: closes what is opened.
        budget_s: for compiling what is timed.
        begins: called with the name of each stage before the stage begins.

    Attributes:
        late: a program that took too long is being compiled, and disturbs what is timed.
    """

    def __init__(
        self, make: Callable[[Placement], Factory], stack: ExitStack, budget_s: float,
        begins: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._make, self._stack, self._begins = make, stack, begins
        self._limit_s = max(budget_s, LEAST_COMPILING_S)
        self._schedules: dict[str, FusedSchedule] = {}
        self.late = False

    def measured(self, stages: Stages, fused: Placement, limit_s: float) -> Stages:
        """Return the seconds that the parts of an iteration take in a compiled loop, and a rollout
        by itself.

        Args:
            fused: where.
            limit_s: for one of them; compiling comes on top.

        Raises:
            FlatoutError: a program does not compile in time, or the environment fails.
        """
        place = ",".join(map(str, fused.act))
        schedule = self._schedule(fused)
        schedule.start()
        sampler, loop = schedule.loop.sampler, partial(pieces.loop, schedule)
        data = example(pieces.trajectory_shapes(schedule))
        plays, steps, learns, _ = self._compiled(
            partial(loop, pieces.rollout(schedule)),
            partial(loop, pieces.rollout(schedule, acts=False)),
            partial(loop, pieces.learning(schedule), data),
            sampler.compile,
        )
        replay = sampler.rollout.algorithm.replay
        first = 1 if replay is None else replay.learning_starts // stages.steps + 2
        self._begins(f"timing one program on {place}")
        rollout = measure.looped_s(plays, limit_s)
        stages = replace(
            stages,
            rollout={**stages.rollout, place: rollout},
            stepping={**stages.stepping, place: measure.looped_s(steps, limit_s / 2)},
            inside={**stages.inside, place: measure.looped_s(learns, limit_s, first)},
        )
        if len(fused.act) > 1:  # one device acts where nothing is fused
            return stages
        environments, params = sampler.start(), schedule.params
        step_s, _ = measure.collect_s(sampler, limit_s / 2, lambda: None, environments, params)
        alone = step_s * stages.steps
        return replace(stages, apart={**stages.apart, place: max(alone - rollout, 0.0)})

    def started(self, fused: Placement) -> tuple[FusedSchedule, Iterator[int]]:
        """Start the whole program; return it and an iterator over the steps of its chunks.

        Raises:
            FlatoutError: it does not compile in time.
        """
        schedule = self._schedule(fused)
        self._compiled(schedule.compile)
        schedule.start()
        chunks = schedule.chunks()
        next(chunks)  # the first one is the shortest
        return schedule, chunks

    def _schedule(self, fused: Placement) -> FusedSchedule:
        """Return a schedule that is not compiled, with a learner of its own."""
        text = str(fused)
        if text not in self._schedules:
            factory = self._make(fused)
            self._schedules[text] = factory.fused(factory.learner())
            self._stack.callback(self._schedules[text].close)
        return self._schedules[text]

    def _compiled(self, *jobs: Callable[[], Any]) -> list[Any]:
        try:
            return in_time(jobs, self._limit_s, lambda: self._begins("compiling one program"))
        except TimeoutError:
            self.late = True
            held = busiest_others()
            others = f" (other programs hold the cores: {held})" if held else ""
            limit = f"{self._limit_s:.0f} s"
            raise FlatoutError(f"its program had not compiled within {limit}{others}") from None


def in_time(
    jobs: Sequence[Callable[[], Any]], limit_s: float, begins: Callable[[], None] = lambda: None
) -> list[Any]:
    """Run jobs side by side in threads and return their results.

    Args:
        begins: is called before they begin, and when each of them ends.

    Raises:
        TimeoutError: one has not ended by then; it goes on, for compiling cannot be stopped.
    """
    threads = ThreadPoolExecutor(len(jobs))
    try:
        begins()
        futures = [threads.submit(job) for job in jobs]
        for _ in as_completed(futures, None if limit_s == math.inf else limit_s):
            begins()
        return [future.result() for future in futures]
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def example(shapes: Any) -> Trajectory:
    """Return a trajectory of these shapes in which no episode ends."""
    rng = np.random.default_rng(0)

    def fill(spec: Any) -> np.ndarray:
        if np.dtype(spec.dtype).kind == "f":
            return rng.normal(0.0, 0.1, spec.shape).astype(spec.dtype)
        return np.zeros(spec.shape, spec.dtype)

    filled = jax.tree.map(fill, shapes)
    unused = np.full_like(filled.finals.index, filled.rewards.size)
    valid = None if filled.valid is None else np.ones_like(filled.valid)
    return filled._replace(finals=filled.finals._replace(index=unused), valid=valid)
