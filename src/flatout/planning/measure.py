"""Timed probes of a run's parts. Each takes a part that was made for it, and a time limit.

Warm-up and compilation come before; what is returned are medians or means of what follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout import tree
from flatout.planning.stages import SLICES
from flatout.types import Obs

if TYPE_CHECKING:
    from flatout.engine.act import Policy
    from flatout.engine.learn import Learner
    from flatout.engine.sampler import Sampler
    from flatout.envs.base import Envs
    from flatout.envs.task import Task
    from flatout.types import Trajectory

LEAST = 3
"""Repetitions of everything, whatever the limit."""

MOST_LOOPS = 1 << 16
"""Most iterations of a compiled loop that are made at once."""


@dataclass(frozen=True)
class EnvCost:
    """Seconds of a group's steps: see `flatout.planning.stages.Stages`."""

    env: tuple[float, ...]
    computing: float
    lanes: int
    call: float


def env_cost(task: Task, envs: int, seed: int, limit_s: float) -> EnvCost:
    """Measure the cost of environments: of one alone, for the distribution, and of all together."""
    alone, computing = _stepped(task, 1, seed, limit_s / 2)
    if envs == 1:
        return EnvCost(slices(alone), computing, 1, 0.0)
    together, _ = _stepped(task, envs, seed, limit_s / 2)
    one, all_ = float(alone.mean()), float(together.mean())
    if task.source.atari:  # they step at the same time, in threads of their own
        return EnvCost(slices(alone), computing, max(round(envs * one / all_), 1), 0.0)
    each = min(max((all_ - one) / (envs - 1), 0.1 * one), one)
    call = one - each
    return EnvCost(slices(np.maximum(alone - call, 0.0) * each / max(one - call, 1e-12)),
                   computing, 1, call)  # fmt: skip


def _stepped(task: Task, count: int, seed: int, limit_s: float) -> tuple[np.ndarray, float]:
    """Seconds of each step of a group with random actions, and the share in which it computes."""
    envs = task.open(count, seed)
    try:
        return _random_steps(task, envs, np.random.default_rng(seed), limit_s)
    finally:
        envs.close()


def _random_steps(
    task: Task, envs: Envs, rng: np.random.Generator, limit_s: float
) -> tuple[np.ndarray, float]:
    obs = tree.zeros(task.obs_spec, envs.num_envs)
    rewards = np.zeros(envs.num_envs, np.float32)
    spec = task.action_spec

    def step() -> float:
        chosen = task.first_allowed(spec.random(rng, envs.num_envs), obs)
        begin = time.perf_counter()
        envs.step(chosen, obs, rewards, lambda *end: None)
        return time.perf_counter() - begin

    envs.reset_all(obs)
    step()  # the first is slower
    durations: list[float] = []
    shares: list[float] = []
    until = time.perf_counter() + limit_s
    while len(durations) < LEAST or time.perf_counter() < until:
        wall, cpu = time.perf_counter(), time.process_time()
        durations += [step() for _ in range(LEAST)]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        shares.append(min(max(cpu / max(wall, 1e-9), 0.0), 1.0))
    # Other programs take cores away: what is seen of computing now and then is possible always.
    return np.asarray(durations), float(np.quantile(shares, 0.75))


def slices(durations: np.ndarray) -> tuple[float, ...]:
    """Means of equal slices of the sorted durations: a distribution with the same mean."""
    parts = np.array_split(np.sort(durations), min(SLICES, len(durations)))
    return tuple(float(part.mean()) for part in parts)


def act_s(policy: Policy, obs: Obs, limit_s: float) -> float:
    """Seconds to choose the actions of one batch."""
    steps = iter(range(1 << 30))
    return repeated(lambda: policy.act(obs, next(steps)), limit_s)


def repeated(call: Callable[[], Any], limit_s: float) -> float:
    """The median of a call's seconds, after one that does not count."""
    call()
    durations: list[float] = []
    until = time.perf_counter() + limit_s
    while len(durations) < LEAST or (time.perf_counter() < until and len(durations) < 2000):
        begin = time.perf_counter()
        call()
        durations.append(time.perf_counter() - begin)
    return float(np.median(durations))


def looped_s(run: Callable[[int], Any], limit_s: float, first: int = 1) -> float:
    """The median seconds of one of a compiled loop's iterations.

    Args:
        run: makes a given number of iterations and waits. Numbers are chosen so large that the
            start of the loop does not count.
        first: iterations that come before.
    """
    run(first)
    until, count, each = time.perf_counter() + limit_s, 1, list[float]()
    while len(each) < LEAST or time.perf_counter() < until:
        begin = time.perf_counter()
        run(count)
        took = time.perf_counter() - begin
        if took < limit_s / 12 and count < MOST_LOOPS:
            count *= 4
        else:
            each.append(took / count)
    return float(np.median(each))


def learn_s(learner: Learner, trajectory: Trajectory, limit_s: float) -> float:
    """Mean seconds of an iteration's learning, from the first one that makes updates on."""
    until = time.perf_counter() + 10 * limit_s
    state, updates = learner.start(), 0.0
    while not updates and time.perf_counter() < until:
        state, _, metrics = learner.learn(state, trajectory)
        updates = metrics["updates"]
    durations: list[float] = []
    until = time.perf_counter() + limit_s
    while len(durations) < LEAST or time.perf_counter() < until:
        begin = time.perf_counter()
        state, _, _ = learner.learn(state, trajectory)
        durations.append(time.perf_counter() - begin)
    return float(np.mean(durations))


def collect_s(
    sampler: Sampler, limit_s: float, warm: Callable[[], None], environments: Any = None,
    params: Any = (),
) -> float:  # fmt: skip
    """Seconds of a collected step, summed over environments, in a sampler that has started.

    Args:
        warm: called after the first trajectory, which does not count.
        environments, params: see `Sampler.collect`.
    """
    _, environments = sampler.collect(environments, params)
    sampler.commit()
    warm()
    steps, begin, rounds = 0, time.perf_counter(), 0
    while rounds < 2 or time.perf_counter() - begin < limit_s:
        _, environments = sampler.collect(environments, params)
        sampler.commit()
        steps += sampler.steps_collected
        rounds += 1
    return (time.perf_counter() - begin) / max(steps, 1)


@dataclass
class Rate:
    """Iterations of a whole schedule, timed in rounds.

    Attributes:
        seconds: of each iteration; steps: that each made.
    """

    seconds: list[float] = field(default_factory=list[float])
    steps: list[int] = field(default_factory=list[int])

    def time(self, iterations: Iterator[int], limit_s: float) -> None:
        """One more round of iterations, each of which tells its steps."""
        until, rounds = time.perf_counter() + limit_s, 0
        while not rounds or time.perf_counter() < until:
            begin = time.perf_counter()
            steps = next(iterations)
            self.seconds.append(time.perf_counter() - begin)
            self.steps.append(steps)
            rounds += 1

    @property
    def rate(self) -> float:
        """Steps per second."""
        return sum(self.steps) / max(sum(self.seconds), 1e-12)

    @property
    def spread(self) -> float:
        """Relative half-width of the mean's 95 % interval, from parts of the timed rounds."""
        parts = np.array_split(np.asarray(self.seconds), min(8, len(self.seconds)))
        means = np.array([part.mean() for part in parts])
        if len(means) < 2:
            return 0.25
        return float(2.0 * means.std(ddof=1) / np.sqrt(len(means)) / max(means.mean(), 1e-12))
