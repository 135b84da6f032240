"""All code casts observations in the same way, and refuses values that the type cannot hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from flatout import EnvironmentFailure, UsageError
from flatout.casts import stored, word_counts
from flatout.config.schema import EnvConfig
from flatout.envs.host import HostEnvs
from flatout.envs.make import factory, specs
from tests.bad_envs import Good
from tests.test_export import CHOICE, PIXELS, initial, loaded

PAIR = gym.spaces.Box(0, 255, (2,), np.uint8)
WHOLE = gym.spaces.Box(-1000, 1000, (2,), np.int64)  # stored as int32
REAL = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)  # stored as float32
UNFIT = [
    (PAIR, [300, -1], "300, which uint8 (0 to 255)"),
    (PAIR, [0, -1], "-1, which uint8"),
    (PAIR, [0.0, np.nan], "nan, which uint8"),
    (PAIR, np.array([-1, 0], np.int8), "-1, which uint8"),
    (WHOLE, [2**40, 0], "1099511627776, which int32"),
    (WHOLE, np.array([0, 2**64 - 1], np.uint64), "18446744073709551615, which int32"),
    (WHOLE, np.array([0, 2**31], np.float32), "2147483648.0, which int32"),
    (REAL, [0.0, -1e300], "-1e+300, which float32"),
]
FIT = [
    (PAIR, [255, 0], [255, 0]),
    (PAIR, [3.7, 255.4], [3, 255]),
    (PAIR, [True, False], [1, 0]),
    (WHOLE, np.array([-(2**31), 2**31 - 1], np.float64), [-(2**31), 2**31 - 1]),
    (REAL, [0.1, 1e38], np.array([0.1, 1e38], np.float32)),
]


class Shows(Good):
    """An environment that observes `values` from step `at` of its second episode on, and zeros
    before."""

    def __init__(
        self, space: gym.Space[Any], values: Any, at: int, ends: str = "truncated"
    ) -> None:
        super().__init__(length=3, ends=ends)
        self.observation_space = space
        self.values, self.at, self.episodes = values, at, 0

    def reset(self, **kwargs: Any) -> Any:
        self.episodes += 1
        return super().reset(**kwargs)

    def observe(self, action: float) -> Any:
        return self.values if self.episodes == 2 and self.t >= self.at else [0, 0]


def hosted(env: gym.Env[Any, Any]) -> HostEnvs:
    return HostEnvs([env], "Shows", *specs(env, "Shows"), seed=0)


def played(envs: HostEnvs, steps: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the observation after some steps, and the final observations of all episodes."""
    finals = list[np.ndarray]()
    out = np.zeros((1, 2), envs._dtype)
    envs.reset_all(out)
    for _ in range(steps):
        envs.step(
            np.zeros(1, np.int32), out, np.zeros(1), lambda *end: finals.append(np.array(end[3]))
        )
    return out, finals


@pytest.mark.parametrize(("space", "values", "words"), UNFIT)
@pytest.mark.parametrize("at", [0, 1, 3], ids=["reset", "step", "final"])
def test_values_that_do_not_fit_are_refused(space: Any, values: Any, words: str, at: int) -> None:
    with pytest.raises(EnvironmentFailure) as refused:
        played(hosted(Shows(space, values, at)), 6)
    when = f"step {at}" if at else "reset"
    text = f"environment 0 (Shows) returned an observation from {when} of episode 1 with {words}"
    assert str(refused.value).startswith(text)


@pytest.mark.parametrize(("space", "values", "expected"), FIT)
def test_values_that_fit_are_cast(space: Any, values: Any, expected: Any) -> None:
    newest, _ = played(hosted(Shows(space, values, 1)), 4)
    _, finals = played(hosted(Shows(space, values, 3)), 6)
    assert newest[0].tolist() == np.asarray(expected).tolist()
    assert finals[1].dtype == newest.dtype
    assert finals[1].tolist() == np.asarray(expected).tolist()


@given(arrays.arrays(st.sampled_from([np.int64, np.uint64, np.int8, np.float64, np.float32]), 3),
       st.sampled_from(["uint8", "int32", "float32"]))  # fmt: skip
def test_the_cast_keeps_values_or_refuses(array: np.ndarray, dtype: str) -> None:
    with np.errstate(all="ignore"):
        plain = array.astype(dtype)
        if dtype == "float32":
            keeps = bool((np.isfinite(plain) | ~np.isfinite(array)).all())
        else:
            keeps = all(
                np.isfinite(x) and int(x) == int(y) for x, y in zip(array, plain, strict=True)
            )
    if not keeps:
        with pytest.raises(ValueError, match="cannot hold"):
            stored(array, dtype)
        return
    assert stored(array, dtype).dtype == dtype
    assert np.array_equal(stored(array, dtype), plain, equal_nan=True)


def test_a_word_that_is_repeated_is_never_counted_as_absent() -> None:
    counts = [word_counts("over " * times, 8).max() for times in (1, 255, 256, 700)]
    assert counts == [1, 255, 255, 255]
    assert word_counts("\ud800 a", 8).sum() == 2


def test_the_exported_agent_casts_as_the_agent_does(tmp_path: Path) -> None:
    agent = initial("dqn", PIXELS, CHOICE, network="nature_same")
    policy = loaded(agent.export(tmp_path / "policy.py"))
    obs = np.random.default_rng(0).uniform(0, 255, (3, *PIXELS.shape))
    assert np.array_equal(policy.outputs(obs), policy.outputs(obs.astype(np.uint8)))
    assert np.array_equal(agent._acting.observed(obs)[0], obs.astype(np.uint8))
    obs[1, 2, 3, 0] = 300
    with pytest.raises(ValueError, match=r"300\.0, which uint8"):
        policy.predict(obs, deterministic=True)
    with pytest.raises(UsageError, match=r"300\.0, which uint8"):
        agent.predict(obs, deterministic=True)


class Reuses(Good):
    """An environment that observes its step's number, always in the same array."""

    def __init__(self, shape: tuple[int, ...], dtype: type) -> None:
        super().__init__(length=9)
        self.observation_space = gym.spaces.Box(0, 255, shape, dtype)
        self.array = np.zeros(shape, dtype)

    def observe(self, action: float) -> Any:
        self.array[...] = self.t
        return self.array


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float16])
@pytest.mark.parametrize("shape", [(2,), (20, 20, 3)])
@pytest.mark.parametrize("prepared", [{}, {"resize": 10}, {"grayscale": True}])
def test_a_frame_stack_holds_copies_of_what_the_environment_may_reuse(
    shape: tuple[int, ...], dtype: type, prepared: dict[str, Any]
) -> None:
    if prepared and (len(shape) == 1 or dtype is not np.uint8):
        return  # only images of bytes can be resized or made gray
    config = EnvConfig(env="Reuses", frame_stack=3, **prepared)
    env = factory(config, lambda: Reuses(shape, dtype))()
    stacks = [env.reset()[0], *(env.step(0)[0] for _ in range(4))]
    channels = 1 if prepared.get("grayscale") else shape[-1]
    for step, stack in enumerate(stacks):
        newest = [max(step - age, 0) for age in (2, 1, 0)]
        assert stack.reshape(-1, 3 * channels)[0].tolist() == np.repeat(newest, channels).tolist()


@pytest.mark.parametrize("prepared", [{"frame_stack": 2}, {"grayscale": True}])
def test_prepared_observations_do_not_overflow(prepared: dict[str, Any]) -> None:
    space = gym.spaces.Box(0, 255, (20, 20, 3), np.uint8)
    env = factory(EnvConfig(env="Shows", **prepared), lambda: Shows(space, None, 0))()
    bad = env.unwrapped
    assert isinstance(bad, Shows)
    bad.episodes, bad.values = 1, np.full((20, 20, 3), 300)
    with pytest.raises(EnvironmentFailure, match="300, which uint8"):
        env.reset()
