"""Timed probes of a run's parts. Each takes a part that was made for it, and a time limit.

Warm-up and compilation come before; what is returned are medians or means of what follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout import tree
from flatout.envs.host import HostEnvs
from flatout.envs.vector import RARELY
from flatout.frames import frame_spec
from flatout.planning.resets import NO_RESETS, Resets
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

ENOUGH = 16
"""Resets from which on no more are made for their own sake."""

EPISODES = 2
"""Ends of episodes that are waited for where one environment steps and its resets are slow."""

PATIENCE = 4
"""The most times the limit that such a look takes."""

SAME_LENGTH = 0.05
"""Relative difference of two mean lengths of episodes below which they are taken as equal."""

MOST_LOOPS = 1 << 16
"""Most iterations of a compiled loop that are made at once."""


@dataclass(frozen=True)
class EnvCost:
    """Seconds of a group's steps and resets: see `flatout.planning.stages.Stages`."""

    env: tuple[float, ...]
    computing: float
    lanes: int
    call: float
    resets: Resets


def env_cost(task: Task, envs: int, seed: int, limit_s: float, length: float = 0.0) -> EnvCost:
    """Measure the cost of environments: of one alone, for the distribution, and of all together.

    Args:
        length: mean steps of an episode where that is known, otherwise 0: random actions, with
            which they step here, may end episodes sooner or later.
    """
    alone, computing, look = _stepped(task, 1, seed, limit_s / 2)
    if envs == 1:
        return EnvCost(slices(alone), computing, 1, 0.0, resets_of([look], task.limit, length))
    together, _, of_all = _stepped(task, envs, seed, limit_s / 2)
    resets = resets_of([look, of_all], task.limit, length)
    one, all_ = float(alone.mean()), float(together.mean())
    if task.source.atari:  # they step at the same time, in threads of their own
        lanes = max(round(envs * one / all_), 1)
        return EnvCost(slices(alone), computing, lanes, 0.0, resets)
    each = min(max((all_ - one) / (envs - 1), 0.1 * one), one)
    call = one - each
    return EnvCost(slices(np.maximum(alone - call, 0.0) * each / max(one - call, 1e-12)),
                   computing, 1, call, resets)  # fmt: skip


@dataclass
class ResetLook:
    """The resets of a group that was stepped for a short time.

    Attributes:
        envs: environments of the group; steps: that each of them made.
        seconds: of each reset; computing: the share of it in which a core worked.
        counts: how many environments were reset in each step in which one was.
        lengths: of the episodes that ended; finished: the environments of these.
    """

    envs: int
    steps: int = 0
    seconds: list[float] = field(default_factory=list[float])
    computing: float = 1.0
    counts: list[int] = field(default_factory=list[int])
    lengths: list[int] = field(default_factory=list[int])
    finished: set[int] = field(default_factory=set[int])


def resets_of(looks: Sequence[ResetLook], limit: int | None, length: float) -> Resets:
    """Return the resets that follow from a look at one environment, and one at all together.

    Args:
        limit: the time limit of an episode; None without one.
        length: see `env_cost`.
    """
    seconds = [each for look in looks for each in look.seconds]
    if not seconds:
        return NO_RESETS
    last = looks[-1]
    together = last.envs > 1 and all(count == last.envs for count in last.counts)
    lengths = [each for look in looks for each in look.lengths]
    steps = sum(look.envs * look.steps for look in looks)
    if all(len(look.finished) == look.envs for look in looks):
        ends = len(lengths) / sum(lengths)
    elif _equally_long(looks, lengths):
        ends = 1.0 / lengths[0]
    elif lengths:
        ends = len(lengths) / steps
    else:
        ends = min(1.0 / limit, 1.0 / max(look.steps for look in looks)) if limit else 0.0
    if length:
        together = together and abs(length * ends - 1.0) < SAME_LENGTH
        ends = 1.0 / max(length, 1.0)
    computing = float(np.mean([look.computing for look in looks]))
    return Resets(slices(np.asarray(seconds)), ends, computing, together)


def _equally_long(looks: Sequence[ResetLook], lengths: list[int]) -> bool:
    """Return whether all episodes seem to have the same length: several ended with it, and all
    others were looked at for a shorter time."""
    if len(lengths) < 2 or len(set(lengths)) > 1:
        return False
    return all(len(look.finished) == look.envs for look in looks if look.steps >= lengths[0])


def _stepped(
    task: Task, count: int, seed: int, limit_s: float
) -> tuple[np.ndarray, float, ResetLook]:
    """Seconds of each step of a group with random actions, the share in which it computes, and its
    resets, which the steps do not include."""
    envs = task.open(count, seed, reseeding=RARELY)
    try:
        return _random_steps(task, envs, np.random.default_rng(seed), limit_s)
    finally:
        envs.close()


def _random_steps(
    task: Task, envs: Envs, rng: np.random.Generator, limit_s: float
) -> tuple[np.ndarray, float, ResetLook]:
    obs = tree.zeros(frame_spec(task.obs_spec), envs.num_envs)
    rewards = np.zeros(envs.num_envs, np.float32)
    spec, look = task.action_spec, ResetLook(envs.num_envs)

    def ended(env: int, *_: Any) -> None:
        look.lengths.append(envs.lengths[env])
        look.finished.add(env)

    def step() -> float:
        chosen = task.first_allowed(spec.random(rng, envs.num_envs), obs)
        before, begin = envs.reset_times, time.perf_counter()
        envs.step(chosen, obs, rewards, ended)
        took = time.perf_counter() - begin
        look.steps += 1
        resets = envs.reset_times.minus(before)
        if number := int(resets.number):
            look.counts.append(number)
            look.seconds += [resets.seconds / number] * number
        return max(took - resets.waited, 0.0)

    begin = time.perf_counter()
    envs.reset_all(obs)
    slow = envs.num_envs == 1 and 10 * (time.perf_counter() - begin) > limit_s
    step()  # the first is slower
    durations: list[float] = []
    shares: list[float] = []

    def goes_on() -> bool:
        took = time.perf_counter() - begin
        if len(durations) < LEAST or took < limit_s:
            return True
        return slow and len(look.lengths) < EPISODES and took < PATIENCE * limit_s

    begin = time.perf_counter()
    while goes_on():
        wall, cpu = time.perf_counter(), time.process_time()
        durations += [step() for _ in range(LEAST)]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        shares.append(min(max(cpu / max(wall, 1e-9), 0.0), 1.0))
    _reset(envs, obs, look, limit_s / 4)
    # Other programs take cores away: what is seen of computing now and then is possible always.
    return np.asarray(durations), float(np.quantile(shares, 0.75)), look


def _reset(envs: Envs, obs: Obs, look: ResetLook, limit_s: float) -> None:
    """Reset environments where few were reset within steps: how long it takes, and the share of it
    in which a core works. A vector environment resets otherwise than this within its steps."""
    if not isinstance(envs, HostEnvs):
        return
    wall, cpu, count = time.perf_counter(), time.process_time(), 0
    while not count or (len(look.seconds) < ENOUGH and time.perf_counter() - wall < limit_s):
        begin = time.perf_counter()
        envs.reset(count % envs.num_envs, obs)
        look.seconds.append(time.perf_counter() - begin)
        count += 1
    took = max(time.perf_counter() - wall, 1e-9)
    look.computing = min((time.process_time() - cpu) / took, 1.0)


def slices(durations: np.ndarray) -> tuple[float, ...]:
    """Means of equal slices of the sorted durations: a distribution with the same mean."""
    parts = np.array_split(np.sort(durations), min(SLICES, len(durations)))
    return tuple(float(part.mean()) for part in parts)


def act_s(policy: Policy, limit_s: float) -> float:
    """Seconds to choose the actions of one batch."""
    steps, example = iter(range(1 << 30)), policy.example()
    return repeated(lambda: policy.act(step=next(steps), **example), limit_s)


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
) -> tuple[float, int]:  # fmt: skip
    """Seconds of a collected step, summed over environments, in a sampler that has started; and the
    number of steps.

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
    return (time.perf_counter() - begin) / max(steps, 1), steps


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
