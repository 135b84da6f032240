"""EnvPool's environments: no step is spent on a reset, and what is impossible is one sentence. A
library of two functions stands for EnvPool, which few install; its own test needs the extra."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from flatout import PPO
from flatout.config.schema import EnvConfig
from flatout.envs import envpool
from flatout.envs.task import Task, open_task
from flatout.envs.vector import RARELY
from flatout.errors import NotInstalledError, UsageError
from tests import tiny
from tests.conftest import Result
from tests.vector_envs import Countdowns

NAME = "envpool:Countdown-v0"


class CountdownPool(Countdowns):
    """A pool as EnvPool's: environments are reset alone by their numbers, and seeded when made."""

    def __init__(self, num_envs: int, seed: int, batch_size: int = 0) -> None:
        super().__init__(num_envs, "NextStep", masked=True)
        super().reset(seed=seed)
        self.config = {"num_envs": num_envs, "batch_size": batch_size or num_envs}
        self.spec: Any = SimpleNamespace(
            gymnasium_observation_space=self.single_observation_space,
            gymnasium_action_space=self.single_action_space,
            config=SimpleNamespace(max_episode_steps=7),
        )

    def reset(self, which: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        chosen = np.arange(self.num_envs) if which is None else which
        for env in chosen:
            self.begin(int(env))
        return self.obs[chosen].copy(), {"env_id": chosen}


CountdownPool.__module__ = "envpool.python.gymnasium_envpool"


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_spec(name: str, num_envs: int, **kwargs: Any) -> Any:
        if kwargs:
            raise TypeError(f"Config.__new__() got an unexpected keyword argument {min(kwargs)!r}")
        return CountdownPool(num_envs, 0).spec

    library: Any = ModuleType("envpool")
    library.list_all_envs = lambda: ["Countdown-v0", "Pong-v5"]
    library.make_spec = make_spec
    library.make_gymnasium = lambda name, num_envs, seed: CountdownPool(num_envs, seed)
    monkeypatch.setitem(sys.modules, "envpool", library)


def task_of(name: str = NAME, source: Any = None, **settings: Any) -> Task:
    return open_task(EnvConfig(env=name, envs=3, **settings), source)


def played(task: Task, seed: int = 0) -> list[Any]:
    envs, log = task.open(3, seed, reseeding=RARELY), list[Any]()
    out, rewards = np.zeros((3, 2), np.float32), np.zeros(3)

    def ended(env: int, terminated: bool, truncated: bool, final: Any) -> None:
        log.append((*envs.finished(env)[:3], final.tolist()))

    envs.reset_all(out)
    for _ in range(40):
        before = out[:, 0].copy()
        envs.step(np.zeros(3, np.int32), out, rewards, ended)
        assert ((out[:, 0] == before - 1) | (before == 1)).all(), "a step that only resets"
        log.append(out.tolist())
    envs.close()
    return log


def test_no_step_is_spent_on_resets_and_a_seed_decides_all(pools: None) -> None:
    task = task_of()
    assert (task.limit, task.fixed_size) == (7, None)
    log = played(task)
    assert sum(isinstance(entry, tuple) for entry in log) > 20
    assert log == played(task) != played(task, seed=1)


def test_a_pool_that_a_program_made_is_used_and_left_open(pools: None) -> None:
    pool = CountdownPool(3, 0)
    assert size(PPO(pool, n_steps=32, batch_size=32)) == 3
    played(task_of("pool", pool))
    assert not pool.closed


def size(agent: Any) -> int:
    return agent.config.env.envs


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("envpool:Countdown-v1", {}, r"EnvPool has no environment 'Countdown-v1'.*Countdown-v0"),
        (NAME, {"batch_size": 2}, "--env-kwargs batch_size is not for"),
        (NAME, {"stack": 2}, "EnvPool cannot make Countdown-v0: .* unexpected keyword"),
    ],
)
def test_what_it_cannot_make_is_one_sentence(
    pools: None, name: str, kwargs: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        task_of(name, env_kwargs=kwargs)


def test_a_pool_that_steps_in_parts_is_refused(pools: None) -> None:
    with pytest.raises(UsageError, match="num_envs = 3 and batch_size = 2: all environments step"):
        task_of("pool", CountdownPool(3, 0, batch_size=2))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(NotInstalledError, match=r"envpool:Pong-v5 needs EnvPool: .*pip install"):
        task_of("envpool:Pong-v5")


@pytest.mark.slow
def test_the_library_itself_trains_resumes_and_evaluates(
    tmp_path: Path, flatout: Callable[..., Result]
) -> None:
    pytest.importorskip("envpool")
    run, name = tmp_path / "run", ("--env", "envpool:CartPole-v1")
    flags = (*tiny.flags("ppo"), *name, "--run-dir", run, "--steps", 128)
    trained = flatout("train", "ppo", *flags)
    assert trained.code == 0, trained.err
    assert "a resumed run begins new episodes" in trained.out + trained.err
    resumed = flatout("train", "--resume", run, "--steps", 256, "--quiet", "--json")
    assert json.loads(resumed.out)["steps"] == 256
    agent = PPO.load(run)
    assert agent.evaluate(4) == agent.evaluate(4)
    made: Any = envpool.make("envpool:CartPole-v1", "CartPole-v1", {}, 2)
    assert isinstance(made.single_action_space, gym.spaces.Discrete)
