"""gymnax and jax-envelope: tests with stand-ins, and with the real libraries if installed."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flatout import UsageError, check_device_env
from flatout.config.schema import EnvConfig
from flatout.envs.device.make import device_env
from flatout.envs.device.on_host import DeviceEnvs
from flatout.envs.task import open_task
from flatout.types import ContinuousSpec, DiscreteSpec, ObservationSpec


@dataclass(frozen=True)
class Params:
    """The parameters of a gymnax environment."""

    goal: int = 6
    max_steps_in_episode: int = 4

    def replace(self, **changes: Any) -> Params:
        return replace(self, **changes)


class OldBase:
    """The base class of gymnax 0.0.x, without `is_truncated`."""


class NewBase(OldBase):
    """The base class of gymnax 1.x."""

    def is_truncated(self, state: Any, params: Params) -> Any:
        return state.time >= params.max_steps_in_episode


def stand_in(base: type) -> ModuleType:
    """Make a module like gymnax with one environment: action 1 counts towards a goal."""
    State = jax.tree_util.register_dataclass(
        dataclass(type("State", (), {"__annotations__": {"time": Any, "count": Any}})),
        ["time", "count"], [],
    )  # fmt: skip
    old = base is OldBase

    class Counting(base):  # type: ignore[misc, valid-type]
        def __init__(self, by: int = 1) -> None:
            self.by = by

        def reset_env(self, key: Any, params: Params) -> Any:
            return jnp.zeros((2, 3), bool), State(0, 0)

        def is_terminal(self, state: Any, params: Params) -> Any:
            there = state.count >= params.goal
            return there | (state.time >= params.max_steps_in_episode) if old else there

        def step_env(self, key: Any, state: Any, action: Any, params: Params) -> Any:
            state = State(state.time + 1, state.count + self.by * action)
            done = self.is_terminal(state, params)
            obs = jnp.full((2, 3), state.count > 0)
            return obs, state, jnp.asarray(state.count), done, {}

        def action_space(self, params: Params) -> Any:
            return type("Discrete", (), {"n": 2})()

        def observation_space(self, params: Params) -> Any:
            return SimpleNamespace(high=1)

    def make(name: str, **kwargs: Any) -> Any:
        return Counting(**kwargs), Params()

    module = ModuleType("gymnax")
    module.registered_envs = ["Counting-v0"]  # type: ignore[attr-defined]
    module.make = make  # type: ignore[attr-defined]
    return module


@pytest.fixture(params=[OldBase, NewBase], ids=["0.0", "1.0"])
def gymnax(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = stand_in(request.param)
    monkeypatch.setitem(sys.modules, "gymnax", module)
    monkeypatch.setitem(sys.modules, "gymnax.environments", ModuleType("gymnax.environments"))
    base = ModuleType("gymnax.environments.environment")
    base.Environment = request.param  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gymnax.environments.environment", base)
    return module


def ends(kwargs: dict[str, Any], action: int) -> tuple[int, bool, bool]:
    """Repeat one action until the first episode ends; return its length, terminated, truncated."""
    env = device_env("gymnax:Counting-v0", kwargs)
    envs, found = DeviceEnvs(env, 1, 0), list[tuple[int, bool, bool]]()
    obs, rewards = np.zeros((1, 6), np.uint8), np.zeros(1)
    envs.reset_all(obs)
    while not found:
        envs.step(
            np.full(1, action), obs, rewards,
            lambda env, *flags: found.append((envs.lengths[0], *flags[:2])),
        )  # fmt: skip
    return found[0]


@pytest.mark.usefixtures("gymnax")
def test_gymnaxs_time_limit_truncates_and_its_goal_terminates() -> None:
    env = device_env("gymnax:Counting-v0")
    assert check_device_env(env) == []
    assert env.obs_spec == ObservationSpec((6,), "uint8", 1), "flags in a row"
    assert (env.action_spec, env.limit) == (DiscreteSpec(2), 4)
    assert ends({}, 1) == (4, False, True), "the limit, not the goal"
    assert ends({"max_steps_in_episode": 9}, 1) == (6, True, False)
    assert ends({"max_steps_in_episode": 9}, 0) == (9, False, True)
    assert ends({"by": 3}, 1) == (2, True, False), "an argument of the environment itself"
    assert ends({"goal": 4}, 1) == (4, True, True), "both"


@pytest.mark.usefixtures("gymnax")
def test_an_unknown_name_or_argument_of_gymnax_is_refused() -> None:
    with pytest.raises(UsageError, match=r"gymnax has no 'Counting-v1'. Did you mean 'Counting-v0"):
        device_env("gymnax:Counting-v1")
    with pytest.raises(UsageError, match=r"takes by, goal, max_steps_in_episode, not 'speed'."):
        device_env("gymnax:Counting-v0", {"speed": 2})


def test_an_unsupported_version_is_refused(gymnax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env, params = gymnax.make("Counting-v0")
    monkeypatch.delattr(type(env), "step_env")
    monkeypatch.setattr(gymnax, "make", lambda name: (env, params))
    with pytest.raises(UsageError, match=r"this version of gymnax is not supported \(no step_env"):
        device_env("gymnax:Counting-v0")


ZERO = np.zeros(2, np.float32)


class Info(NamedTuple):
    """The info that `init` and `step` of an environment of jax-envelope return."""

    obs: Any
    reward: Any = np.float32(0)
    terminated: Any = np.bool_(False)
    truncated: Any = np.bool_(False)


def test_an_envelope_gets_the_nearest_whole_action(monkeypatch: pytest.MonkeyPatch) -> None:
    box = {"shape": (1,), "dtype": np.int32, "low": -2, "high": 2}
    env = SimpleNamespace(
        observation_space=None, default_max_steps=9, init=lambda key: (jnp.int32(0), Info(ZERO)),
        action_space=type("Continuous", (), box)(),
        step=lambda state, action: (action[0], Info(ZERO)),
    )  # fmt: skip
    module = ModuleType("envelope")
    module.registered_suites = lambda: ["fake"]  # type: ignore[attr-defined]
    module.registered_environments = lambda suite: ["fake::One"]  # type: ignore[attr-defined]
    module.create = lambda name, **_: env  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "envelope", module)
    made = device_env("envelope:fake::One")
    for given, wanted in ((1.7, 2), (-1.7, -2), (0.4, 0), (-0.4, 0), (2.0, 2)):
        state, *_ = made.step(jnp.int32(0), jnp.asarray([given], jnp.float32), jax.random.key(0))
        assert state == wanted


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnax", None)
    monkeypatch.setitem(sys.modules, "envelope", None)
    with pytest.raises(UsageError, match=r"needs gymnax: .*pip install .*\[gymnax\]'\."):
        open_task(EnvConfig(env="gymnax:CartPole-v1"))
    with pytest.raises(UsageError, match=r"pip install .*\[envelope\]' \(Python 3.12"):
        open_task(EnvConfig(env="envelope:navix::Navix-Empty-5x5-v0"))


# --- The real libraries -----------------------------------------------------------------------


# The libraries emit warnings that do not concern Flatout. Importing one of them takes seconds.
ignored = pytest.mark.filterwarnings("ignore")


@ignored
@pytest.mark.slow
def test_gymnaxs_cartpole_agrees_with_ours() -> None:
    pytest.importorskip("gymnax", exc_type=ImportError)
    theirs, ours = device_env("gymnax:CartPole-v1"), device_env("CartPole-v1")
    assert (theirs.obs_spec, theirs.action_spec) == (ours.obs_spec, ours.action_spec)
    assert theirs.limit == ours.limit
    state, _ = theirs.reset(jax.random.key(0))
    own = np.array([state.x, state.x_dot, state.theta, state.theta_dot], np.float32)
    step, own_step = jax.jit(theirs.step), jax.jit(ours.step)
    for t in range(200):
        action, key = np.int32(t % 3 == 0), jax.random.key(t)
        state, obs, reward, terminated, truncated = step(state, action, key)
        own, own_obs, _, own_terminated, _ = own_step(own, action, key)
        assert np.allclose(obs, own_obs, rtol=1e-4, atol=1e-4)
        assert bool(terminated) == bool(own_terminated)
        assert not bool(truncated)
        if terminated:
            return
        assert float(reward) == 1.0
    raise AssertionError("the pole never fell")


@ignored
@pytest.mark.slow
def test_every_environment_of_gymnax_that_opens_keeps_the_contract() -> None:
    gymnax = pytest.importorskip("gymnax", exc_type=ImportError)
    opened = 0
    for name in gymnax.registered_envs:
        try:
            env = device_env(f"gymnax:{name}")
        except UsageError:
            continue
        opened += 1
        if not name.startswith(("Pong", "MNIST")):  # slow, and large
            assert check_device_env(env, steps=50) == [], name
    assert opened >= 15


@ignored
@pytest.mark.slow
def test_minatars_boards_hold_flags() -> None:
    gymnax = pytest.importorskip("gymnax", exc_type=ImportError)
    for name in ("Breakout", "Freeway"):
        env, (raw, params) = device_env(f"gymnax:{name}-MinAtar"), gymnax.make(f"{name}-MinAtar")
        assert (env.obs_spec.dtype, env.obs_spec.high) == ("uint8", 1)
        state, step = env.reset(jax.random.key(0))[0], jax.jit(env.step)
        raw_step = jax.jit(
            lambda key, s, a, raw=raw, params=params: raw.step_env(key, s, a, params)
        )
        for t in range(100):
            key = jax.random.key(t)
            theirs = raw_step(key, state, np.int32(t % env.action_spec.n))[0]
            state, obs, *_ = step(state, np.int32(t % env.action_spec.n), key)
            assert np.array_equal(obs, np.asarray(theirs, np.float32))


@ignored
@pytest.mark.slow
def test_gymnaxs_pendulum_takes_a_box() -> None:
    pytest.importorskip("gymnax", exc_type=ImportError)
    env = device_env("gymnax:Pendulum-v1", {"max_steps_in_episode": 30})
    assert env.action_spec == ContinuousSpec((1,), (-2.0,), (2.0,))
    assert env.limit == 30


@ignored
@pytest.mark.slow
def test_an_envelope_keeps_the_contract() -> None:
    pytest.importorskip("envelope", exc_type=ImportError)
    pytest.importorskip("navix", exc_type=ImportError)
    env = device_env("envelope:navix::Navix-Empty-5x5-v0")
    assert check_device_env(env, steps=200) == []
    assert env.limit == 100
    assert device_env(env.name, {"max_episode_steps": 7}).limit == 7
    for name, words in (
        ("navix", "is not envelope:SUITE::NAME"),
        ("navi::Navix-Empty-5x5-v0", "Did you mean 'navix'"),
        ("navix::Navix-Emty-5x5-v0", "navix has no such environment. Did you mean"),
        *([] if find_spec("brax") else [("brax::ant", "the suite brax is not installed")]),
    ):
        with pytest.raises(UsageError) as refused:
            device_env(f"envelope:{name}")
        assert words in str(refused.value)
