"""Spare environments are reset in the background, and change nothing else."""

from __future__ import annotations

import functools
import itertools
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from flatout import EnvironmentFailure, UsageError, tree
from flatout.config.schema import EnvConfig
from flatout.config.settings import resolve
from flatout.envs import spares
from flatout.envs.base import EVALUATION, TRAINING, Envs, episode_seed
from flatout.envs.spares import Spares
from flatout.envs.task import Task, open_task
from flatout.envs.vector import RARELY
from tests.dict_envs import Walk
from tests.fault_envs import Sleepy, SlowReset, slow_reset
from tests.masked_envs import Picky

COUNT, STEPS = 3, 70


class Recorded:
    """Environments, and what their steps returned."""

    def __init__(
        self, source: Any, spare: Any = "all", count: int = COUNT, stream: int = TRAINING
    ) -> None:
        config = EnvConfig(env="test", envs=count, spare_envs=spare)
        self.said: list[str] = []
        self.task: Task = open_task(config, source, in_info=None)
        self.task.report = self.said.append
        self.envs: Envs = self.task.open(count, 5, stream, spares=stream == TRAINING)
        self.out = tree.map(lambda leaf: np.zeros((count, *leaf.shape), leaf.dtype),
                            self.task.obs_spec)  # fmt: skip
        self.rewards = np.zeros(count)
        self.rows: list[Any] = []
        self.ends: list[Any] = []
        self.taken: list[np.ndarray] = []
        self.random = np.random.default_rng(0)

    def play(self, steps: int = STEPS) -> Recorded:
        """Reset all, and step with random actions that are allowed."""
        if not self.rows:
            self.envs.reset_all(self.out)
            self.rows.append(tree.map(np.copy, self.out))
        spec = self.task.action_spec
        for _ in range(steps):
            actions = spec.random(self.random, self.envs.num_envs)
            actions = self.task.first_allowed(actions, self.out)
            self.taken.append(actions)
            self.envs.step(actions, self.out, self.rewards, self._end)
            self.rows.append((tree.map(np.copy, self.out), self.rewards.copy()))
        return self

    def _end(self, env: int, terminated: bool, truncated: bool, final: Any) -> None:
        self.ends.append((self.envs.finished(env), terminated, truncated, tree.map(np.copy, final)))

    def close(self) -> None:
        self.envs.close()
        self.task.close()


def assert_same(one: Recorded, other: Recorded) -> None:
    for left, right in ((one.rows, other.rows), (one.ends, other.ends)):
        np.testing.assert_equal(left, right)


def played(source: Any, spare: str | None = "all", **more: Any) -> Recorded:
    found = Recorded(source, spare, **more)
    try:
        return found.play()
    finally:
        found.close()


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(slow_reset, id="array"),
        pytest.param(Walk, id="tree"),
        *(pytest.param(functools.partial(Picky, kind), id=kind) for kind in ("info", "method")),
        pytest.param(lambda: gym.wrappers.RecordEpisodeStatistics(SlowReset()), id="statistics"),
    ],
)
def test_the_same_is_played_with_and_without_spares(source: Any) -> None:
    with_spares, without = played(source), played(source, "0")
    assert with_spares.said == []
    assert with_spares.envs.reset_times.number == without.envs.reset_times.number > COUNT
    for found in (with_spares, without):  # the time of an episode is in its statistics
        found.ends = [(e._replace(info=None), *more) for e, *more in found.ends]
    assert_same(with_spares, without)


def test_steps_do_not_wait_for_resets_that_happened_in_the_background() -> None:
    """An environment plays as soon as another thread has reset its spare."""
    found = Recorded(slow_reset, count=1)
    one: Any = found.envs
    for _ in range(100):
        found.play(1)
        while one._spares._spares[0].state != "ready":
            time.sleep(0.0001)
    found.close()
    resets = found.envs.reset_times
    assert resets.waited < resets.seconds
    assert (found.envs.spares, found.envs.episode[0]) == (1, resets.number)


def test_an_episode_is_replayed_with_spares() -> None:
    whole, other = Recorded(slow_reset).play(), Recorded(slow_reset)
    other.envs.reset_all(other.out)
    taken = np.stack(whole.taken)
    actions = [taken[len(taken) - length :, env] for env, length in enumerate(whole.envs.lengths)]
    now = whole.envs.episode
    assert other.envs.replay_all(now, now, actions, other.out) == [True] * COUNT
    np.testing.assert_array_equal(other.out, whole.out)
    other.random.bit_generator.state = whole.random.bit_generator.state
    other.rows = whole.rows.copy()
    for found in (whole, other):
        found.play()
        found.close()
    np.testing.assert_equal(other.rows, whole.rows)


def test_evaluation_opens_no_spares() -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(Sleepy(0.0))
        return made[-1]

    found = Recorded(make, stream=EVALUATION)
    opened = len(made)
    found.close()
    other = Recorded(make)
    assert (opened - 1, len(made) - opened - 1) == (COUNT, 2 * COUNT)
    other.close()


class FailingReset(SlowReset):
    """A CartPole whose reset raises for one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(0.0)
        self.bad = seed

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed == self.bad:
            raise RuntimeError("the level is broken")
        return super().reset(seed=seed, options=options)


def test_a_reset_that_raises_in_the_background_is_named_as_before() -> None:
    source = functools.partial(FailingReset, episode_seed(5, TRAINING, 1, 2))
    said = list[str]()
    for spare in ("all", "0"):
        with pytest.raises(EnvironmentFailure) as raised:
            played(source, spare)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert "environment 1 (test) raised RuntimeError in reset" in said[0]
    assert "episode 2" in said[0]


class Database(Sleepy):
    """An environment whose connection belongs to a thread, as an OpenGL context does.

    Args:
        when: "made" opens the connection in the constructor, "reset" in each reset.
    """

    def __init__(self, when: str) -> None:
        super().__init__(0.0)
        self.when, self.connection = when, sqlite3.connect(":memory:")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.when == "reset":
            self.connection = sqlite3.connect(":memory:")
        else:
            self.connection.execute("select 1")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.connection.execute("select 1")
        return super().step(action)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # connections of another thread stay open
@pytest.mark.parametrize("when", ["made", "reset"])
def test_an_environment_that_is_bound_to_a_thread_has_no_spares(when: str) -> None:
    found, without = (played(functools.partial(Database, when), spare) for spare in ("all", "0"))
    (line,) = found.said
    assert "test has no spare environments" in line
    assert "if another thread than the stepping one resets it (ProgrammingError" in line
    assert found.envs.spares == 0
    assert_same(found, without)


class OnePort(Sleepy):
    """An environment that needs a port for itself."""

    def __init__(self, port: int) -> None:
        super().__init__(0.0)
        self.listens = socket.socket()
        try:
            self.listens.bind(("127.0.0.1", port))
        except OSError:
            self.listens.close()
            raise

    def close(self) -> None:
        self.listens.close()


class TwoShapes(Sleepy):
    """An environment whose copies have other spaces, after one to look at and one to play."""

    made = itertools.count()

    def __init__(self) -> None:
        super().__init__(0.0)
        if next(self.made) > 1:
            self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _same() -> Callable[[], Any]:
    one = Sleepy(0.0)
    return lambda: one


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (lambda: functools.partial(OnePort, _free_port()), "Address already in use"),
        (_same, "a second copy is the same object as the first"),
        (lambda: TwoShapes, "different observation spaces"),
        (lambda: lambda: gym.wrappers.NormalizeObservation(Sleepy(0.0)), "NormalizeObservation"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*statistics")
def test_an_environment_that_cannot_exist_twice_runs_without_spares(source: Any, why: str) -> None:
    found = played(source(), count=1)
    (line,) = found.said
    assert line.startswith("test has no spare environments, so steps wait for resets: ")
    assert why in line
    assert len(found.rows) == STEPS + 1


class Large(Sleepy):
    """An environment of 64 MiB."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.world = np.ones(64 << 17)


def test_spares_that_memory_does_not_suffice_for_are_not_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spares, "memory", lambda: (1 << 30, 100 << 20))
    found = played(Large, count=4)
    (line,) = found.said
    assert "and 100 MiB are available" in line
    assert found.envs.spare_mb == 0
    monkeypatch.undo()
    found = Recorded(Large, count=2)
    assert 100 < found.envs.spare_mb < 200
    found.close()


def test_each_process_counts_what_all_processes_still_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of eight environments: when one spare is open here, four of all eight are."""
    monkeypatch.setattr(spares, "memory", lambda: (1 << 40, 400 << 20))
    task = open_task(EnvConfig(env="test", envs=8, spare_envs="all"), Large)
    said = list[str]()
    task.report = said.append
    envs = task.open(2, 5, spares=True)
    assert (envs.spares, said) == (2, [])
    envs.close()


class SlowStart(Sleepy):
    """An environment that takes a moment to open."""

    def __init__(self) -> None:
        super().__init__(0.0)
        time.sleep(0.02)


def test_spares_may_take_as_long_as_their_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = list[float]()
    monkeypatch.setattr("flatout.envs.task.STARTUP_S", 0.0)
    monkeypatch.setattr(
        "flatout.envs.host.HostEnvs.add_spares", lambda *given: limits.append(given[-1])
    )
    Recorded(SlowStart, count=3).close()
    assert limits[0] > 0.06


def test_the_switch_interval_is_restored_after_the_last_spares() -> None:
    before = sys.getswitchinterval()
    one, other = Spares(lambda *_: None), Spares(lambda *_: None)
    one.start()
    other.start()
    one.stop()
    assert sys.getswitchinterval() == pytest.approx(spares.SWITCH_S)
    other.stop()
    assert sys.getswitchinterval() == before


class FailsOnce(SlowReset):
    """A CartPole that raises once, in the first step of an episode after a few others."""

    begun = itertools.count()
    failed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.first = True
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self.first and next(self.begun) == 2 * COUNT and not self.failed:
            type(self).failed = True
            raise RuntimeError("the level is broken")
        self.first = False
        return super().step(action)


def test_an_exception_of_an_environment_that_has_stepped_in_both_threads_is_not_hidden() -> None:
    found = Recorded(functools.partial(FailsOnce, 0.0))
    with pytest.raises(EnvironmentFailure, match="the level is broken"):
        found.play()
    found.close()


HANGS = """
import time
from flatout.config.schema import EnvConfig
from flatout.envs import host
from flatout.envs.base import TRAINING, episode_seed
from flatout.envs.task import open_task
from tests.fault_envs import HangingReset
import numpy as np

host.CLOSE_S = 0.3
hangs = (episode_seed(5, TRAINING, 0, 2),)
task = open_task(EnvConfig(env="test", spare_envs="all"), lambda: HangingReset(hangs))
envs = task.open(1, 5, spares=True)
envs.reset(0, np.zeros((1, 3), np.float32), 1)
while envs._spares._spares[0].state != "running":
    time.sleep(0.01)
envs.close()
print("closed")
"""


def test_a_reset_that_hangs_in_the_background_does_not_keep_the_program_from_ending() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=120, cwd=root,
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "closed"
    assert "the reset in the background of environment 0 (test) did not end within" in done.stderr


def test_a_reset_that_has_not_begun_is_made_by_the_caller() -> None:
    """Computing resets take turns; an environment does not wait behind another's spare."""
    begin, began = threading.Event(), threading.Event()

    def reset(env: Any, seed: int) -> Any:
        began.set()
        begin.wait()
        return seed, {}

    found = Spares(reset, core=1.0)
    for _ in range(2):
        found.add(Sleepy(0.0))
    found.start()
    try:
        found.request(0, 1, 10)
        began.wait()
        found.request(1, 1, 11)
        assert found.take(1, 1) is None
        assert found.take(0, 2) is None  # of another episode
        begin.set()
        job = found.take(0, 1)
        assert job is not None
        assert job.result == (10, {})
    finally:
        begin.set()
        found.stop()


@pytest.mark.parametrize(
    ("alone", "shares", "most"),
    [
        (1.0, [0.5] * 40, 2),  # computed in Python: two threads get half a core each
        (1.0, [1.0] * 3, 4),  # native code on free cores
        (0.0, [], 8),  # sleeps
    ],
)
def test_as_many_resets_run_at_once_as_do_not_slow_each_other(
    alone: float, shares: list[float], most: int
) -> None:
    found = Spares(lambda env, seed: (seed, {}), core=alone)
    for _ in range(8):
        found.add(Sleepy(0.0))
    found.start()
    limits = [found._limit]
    for share in shares:
        found._adapt(alone if found._limit == 1 else share)
        limits.append(found._limit)
    found.stop()
    assert max(limits) == most
    if most == 2:  # tried ever more rarely
        assert limits.count(2) == 5


@pytest.mark.parametrize("value", ["0", 0, "all", None])
def test_the_setting_is_all_or_0(value: Any) -> None:
    config = resolve("ppo", {"env": "CartPole-v1", "spare_envs": value})
    assert config.env.spare_envs == (None if value is None else str(value))
    with pytest.raises(UsageError, match="spare_envs = 'some' is not one of all, 0"):
        resolve("ppo", {"env": "CartPole-v1", "spare_envs": "some"})


def test_spares_are_refused_where_there_can_be_none() -> None:
    config = EnvConfig(env="test", spare_envs="all")
    task = open_task(config, SlowReset())
    with pytest.raises(UsageError, match="one environment object has none: pass a function"):
        task.refuse_spares()
    task.close()


@pytest.mark.parametrize(
    ("spare", "wanted", "count"), [("all", True, 2), ("0", True, 0), ("all", False, 0)]
)
def test_atari_games_have_spares_if_asked_for(spare: Any, wanted: bool, count: int) -> None:
    config = EnvConfig(env="BreakoutNoFrameskip-v4", envs=2, spare_envs=spare)
    task = open_task(config)
    envs = task.open(2, 0, reseeding=RARELY, spares=wanted)
    assert envs.spares == count
    assert (envs.spare_mb > 0) is (count > 0)
    envs.close()
    task.close()
