"""The overlapped schedule: the parameters that act depend on iteration numbers, never on timing."""

from __future__ import annotations

import copy
import functools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest

from flatout import FlatoutError
from flatout.config.settings import resolve
from flatout.engine.overlapped import OverlappedSchedule
from flatout.errors import EnvironmentFailure
from flatout.run.build import Components, assemble
from flatout.run.resolve import resolve_run
from flatout.spans import Spans
from flatout.types import UserCode
from tests import tiny
from tests.fault_envs import Faulty
from tests.kills import assert_same_with_lag, kill_at_random_times

QUICK = {(2, "ppo")}
"""The quick case."""


@contextmanager
def parts(
    algorithm: str, placement: str, source: Any = None, **settings: Any
) -> Iterator[Components]:
    found = tiny.settings(algorithm, steps=10_000, placement=placement, **settings)
    programs = tiny.programs(("overlapped", algorithm, sorted(settings.items())))
    run = resolve_run(resolve(algorithm, found), UserCode(env=source))
    made = assemble(run, Spans(), programs=programs)
    try:
        made.schedule.start()
        yield made
    finally:
        made.close()


def learned(made: Components) -> Any:
    schedule = made.schedule
    return jax.tree.map(np.array, schedule.learner.host_state(schedule.state.learned))


def by_hand(algorithm: str, lag: int, iterations: int) -> Any:
    """Compute in one thread what the schedule must: trajectory k has version max(0, k - lag)."""
    with parts(algorithm, "cpu") as made:
        flow: Any = made.schedule
        sampler, learner = flow._sampler, flow.learner
        state, bundles = flow.state, [jax.tree.map(np.array, flow.params)]
        waiting: list[Any] = []
        collected = 0
        for iteration in range(iterations):
            while collected <= iteration + lag:
                version = max(0, collected - lag)
                flow._publish(jax.device_put(bundles[version]), version)
                waiting.append(jax.tree.map(np.array, sampler.collect()[0]))
                sampler.commit()
                collected += 1
            state, packed, _ = learner.learn(state, waiting.pop(0))
            bundles.append(jax.tree.map(np.array, packed))
        return jax.tree.map(np.array, learner.host_state(state.learned))


class Dawdling(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose steps take random times."""

    def __init__(self, env: gym.Env[Any, Any], seed: int) -> None:
        super().__init__(env)
        self._random = random.Random(seed)

    def step(self, action: Any) -> Any:
        time.sleep(self._random.choice((0.0, 0.0, 0.0, 0.003)))
        return super().step(action)


@pytest.mark.bits
@pytest.mark.parametrize(
    ("lag", "algorithm"),
    [
        pytest.param(lag, name, marks=() if (lag, name) in QUICK else pytest.mark.slow)
        for lag in (1, 2, 3)
        for name in ("ppo", "dqn", "sac")
    ],
)
def test_timing_changes_nothing(algorithm: str, lag: int) -> None:
    iterations = 12
    expected = by_hand(algorithm, lag, iterations)
    env = tiny.SETTINGS[algorithm]["env"]
    for slow_env, slow_learner in ((False, False), (True, False), (False, True), (True, True)):
        source = (lambda **k: Dawdling(gym.make(env, **k), lag)) if slow_env else None
        with parts(algorithm, f"schedule=overlapped lag={lag}", source) as made:
            flow: Any = made.schedule
            learn, delays = flow.learner.learn, random.Random(lag)

            def dawdle(state: Any, trajectory: Any) -> Any:
                time.sleep(delays.choice((0.0, 0.02)))  # noqa: B023
                return learn(state, trajectory)  # noqa: B023

            if slow_learner:
                flow.learner.learn = dawdle
            history = list(flow.advance(iterations))
            jax.tree.map(np.testing.assert_array_equal, expected, learned(made))
        lags = [metrics.values["policy_lag"] for metrics in history if metrics.updates]
        assert all(0 <= one <= lag for one in lags)
        assert lags[-1] == lag


@pytest.mark.bits
def test_a_lag_of_zero_is_serial_and_overlap_needs_one(flatout: Any) -> None:
    with parts("ppo", "cpu") as made:
        list(made.schedule.advance(4))
        serial = learned(made)
    jax.tree.map(np.testing.assert_array_equal, serial, by_hand("ppo", 0, 4))
    result = flatout(
        "train", "ppo", "--env", "CartPole-v1", "--placement", "schedule=overlapped lag=0"
    )
    assert result.code == 2
    assert "lag" in result.message


def test_collecting_and_learning_happen_at_the_same_time() -> None:
    """Each update waits for a step of the next trajectory, and that step waits for the update: one
    after the other, the barrier would time out."""
    meeting = threading.Barrier(2, timeout=300)
    steps, meets = [0], [False]

    class Barrier(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            if meets[0] and steps[0] % 16 == 0:
                meeting.wait()
            steps[0] += 1
            return super().step(action)

    with parts("ppo", "schedule=overlapped", lambda **k: Barrier(gym.make("CartPole-v1", **k)),
               envs=1, n_steps=16, batch_size=16) as made:  # fmt: skip
        flow: Any = made.schedule
        learn = flow.learner.learn
        steps[0] = 0  # environments are checked before the run begins
        list(flow.advance(1))
        meets[0] = True

        def meet(state: Any, trajectory: Any) -> Any:
            meeting.wait()
            return learn(state, trajectory)

        flow.learner.learn = meet
        list(flow.advance(3))
        meets[0] = False
    assert steps[0] == 5 * 16


def test_statistics_report_waiting_times() -> None:
    with parts("ppo", "schedule=overlapped") as made:
        flow: Any = made.schedule
        learn = flow.learner.learn

        def slowly(state: Any, trajectory: Any) -> Any:
            time.sleep(0.5)
            return learn(state, trajectory)

        flow.learner.learn = slowly
        list(flow.advance(4))
        facts = flow.stats()
    assert facts["policy_lag"] == 3 / 4  # the first trajectory has lag 0
    assert facts["sampler_wait_s"] > 0.6 > facts["learner_wait_s"]
    assert facts["environments_lost"] == 0


@pytest.mark.bits
@pytest.mark.parametrize("lag", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_restored_snapshot_continues_with_the_same_bits(lag: int) -> None:
    placement = f"schedule=overlapped lag={lag}"
    with parts("ppo", placement) as made:
        list(made.schedule.advance(5))
        saved = copy.deepcopy(made.schedule.snapshot())
        list(made.schedule.advance(6))
        expected = learned(made)
    with parts("ppo", placement) as made:
        made.schedule.restore(saved)
        list(made.schedule.advance(6))
        jax.tree.map(np.testing.assert_array_equal, expected, learned(made))
    with parts("ppo", "cpu") as made:  # pending trajectories are learned from first
        made.schedule.restore(saved)
        first = list(made.schedule.advance(3))
        assert sum(metrics.steps for metrics in first) == 3 * 64


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ("ppo", *tiny.flags("ppo"), "--steps", "16000"),
        ("dqn", *tiny.flags("dqn"), "--steps", "6000", "--learning-starts", "200"),
    ],
    ids=["ppo", "dqn"],
)
def test_killed_at_random_times_and_resumed_is_bit_equal(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    common = (
        "--checkpoint-every", "256", "--no-tensorboard", "--quiet",
        "--placement", "schedule=overlapped lag=2",
    )  # fmt: skip
    words, dice = ("train", *flags, *common), random.Random(flags[0])
    kill_at_random_times(words, 2, dice, tmp_path, same=assert_same_with_lag)


@pytest.mark.fault
def test_a_learner_that_raises_ends_the_run() -> None:
    with parts("ppo", "schedule=overlapped") as made:
        flow: Any = made.schedule
        list(flow.advance(1))

        def fail(state: Any, trajectory: Any) -> Any:
            raise FlatoutError("learning diverged")

        flow.learner.learn = fail
        with pytest.raises(FlatoutError, match="diverged"):
            list(flow.advance(2))


@pytest.mark.bits
@pytest.mark.fault
def test_an_environment_that_fails_leaves_a_whole_boundary(tmp_path: Path) -> None:
    """The update in progress is finished first: the state is at an iteration's boundary."""
    source = functools.partial(Faulty, "raise", 70, str(tmp_path), 50)
    own: dict[str, Any] = {"env": "faulty", "envs": 1, "n_steps": 16, "batch_size": 16}
    with parts("ppo", "schedule=overlapped", source, **own) as made:
        steps = 0
        with pytest.raises(EnvironmentFailure, match="exploded"):  # noqa: PT012 - one of the iterations raises
            while True:
                steps += sum(metrics.steps for metrics in list(made.schedule.advance(1)))
        failed = made.schedule.snapshot()
    assert steps == 4 * 16 == 16 * failed.data["version"]  # the fifth trajectory failed
    with parts("ppo", "schedule=overlapped", source, **own) as made:  # it fails only once
        made.schedule.restore(failed)
        list(made.schedule.advance(2))
        resumed = learned(made)
    with parts("ppo", "schedule=overlapped", source, **own) as made:
        list(made.schedule.advance(6))
        jax.tree.map(np.testing.assert_array_equal, learned(made), resumed)


def test_a_resumed_run_does_not_count_the_time_between() -> None:
    with parts("ppo", "schedule=overlapped") as made:
        list(made.schedule.advance(2))
        saved = made.schedule.snapshot()
    with parts("ppo", "schedule=overlapped") as made:
        made.schedule.restore(saved)
        list(made.schedule.advance(1))
        assert made.schedule.stats()["queue_s"] < 60  # not the machine's uptime


def test_the_schedule_is_what_the_placement_says() -> None:
    with parts("ppo", "schedule=overlapped lag=2") as made:
        assert isinstance(made.schedule, OverlappedSchedule)
        assert str(made.placement) == "act=cpu schedule=overlapped lag=2"
