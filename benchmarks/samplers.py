"""A run's sampler without learning, for benchmarks of stepping alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from flatout.config.settings import resolve
from flatout.engine.sampler import Sampler
from flatout.run.factory import Factory
from flatout.run.job import Job
from flatout.run.resolve import resolve_run
from flatout.spans import Spans


@contextmanager
def started_sampler(settings: dict[str, Any]) -> Iterator[tuple[Sampler, float]]:
    """Yield PPO's sampler with initial parameters, and the seconds until its processes were ready,
    for a run's settings by name."""
    with closing(resolve_run(resolve("ppo", settings), checks=False)) as run, ExitStack() as undo:
        factory = Factory(Job(run))
        for compile_policy in factory.policies():
            compile_policy()
        begin = time.perf_counter()
        if (pool := factory.pool()) is not None:
            undo.callback(pool.close)
        sampler = factory.sampler(pool)  # waits for all processes
        ready_s = time.perf_counter() - begin
        undo.callback(sampler.close)
        learner = factory.learner()
        params = learner.publish(learner.start().learned)
        for publisher in factory.publishers(pool):
            publisher.publish(params, 0, Spans())
        sampler.start()
        yield sampler, ready_s
