"""The checker of device environments finds what is wrong, and reports nothing that is right."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flatout import DeviceEnv, UsageError, check_device_env
from flatout.envs.device.check import refuse
from flatout.envs.device.make import device_env
from flatout.envs.device.twins import TWINS
from flatout.types import ContinuousSpec, DiscreteSpec, ObservationSpec
from tests.device_envs import corridor, pushed

pytestmark = pytest.mark.usefixtures("small_heap")

good = corridor()
FEW = 300
"""Random steps, fewer than `check_device_env` makes by default."""


def after(change: Any) -> DeviceEnv:
    """Return the corridor with a change in the values that `step` returns."""

    def step(state: Any, action: Any, key: Any) -> Any:
        return change(*good.step(state, action, key))

    return replace(good, step=step)


def after_reset(change: Any) -> DeviceEnv:
    """Return the corridor with a change in the values that `reset` returns."""
    return replace(good, reset=lambda key: change(*good.reset(key)))


@pytest.mark.parametrize("env", [good, pushed()], ids=lambda env: env.name)
def test_a_correct_environment_has_no_problems(env: DeviceEnv) -> None:
    assert check_device_env(env, FEW) == []


QUICK = ("Pendulum-v1", "flatout/Snake-v0")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TWINS],
)
def test_twins_keep_the_contract(name: str) -> None:
    assert check_device_env(device_env(name), FEW) == []


SHAPES = {
    "obs_spec must be an ObservationSpec": replace(good, obs_spec=ObservationSpec((0,), "float32")),
    "obs_spec is an empty dict": replace(good, obs_spec={}),
    "obs_spec has the key 'a/b'": replace(good, obs_spec={"a/b": good.obs_spec}),
    "reset returns obs as float32[2]; obs_spec has a": replace(good, obs_spec={"a": good.obs_spec}),
    "action_spec must be": replace(good, action_spec=3),  # type: ignore[arg-type]
    "limit = 0 must be": replace(good, limit=0),
    "patience = 0 must be": replace(good, patience=0),
    "patience = 2.5 must be": replace(good, patience=2.5),  # type: ignore[arg-type]
    "reset cannot be compiled: TypeError": replace(good, reset=lambda: None),  # type: ignore[arg-type]
    "reset must return (state, obs)": replace(good, reset=lambda key: good.reset(key)[1]),
    "reset returns obs as int32[2]; obs_spec says float32[2]": after_reset(
        lambda s, obs: (s, obs.astype(jnp.int32))
    ),
    "reset returns obs as float32[3]": after_reset(lambda s, obs: (s, jnp.zeros(3))),
    "step must return (state, obs, reward, terminated, truncated)": after(lambda *all: all[:4]),
    "state of another structure than reset": after(lambda s, *rest: ({**s, "more": 1}, *rest)),
    "state['walked'] as float32[], and reset as int32[]": after(
        lambda s, *rest: ({**s, "walked": s["walked"] * 1.0}, *rest)
    ),
    "step returns obs as float32[1, 2]": after(lambda s, obs, *rest: (s, obs[None], *rest)),
    "step returns reward as float32[1]": after(lambda s, o, r, *flags: (s, o, r[None], *flags)),
    "step returns reward as int32[]": after(lambda s, o, r, *f: (s, o, r.astype(jnp.int32), *f)),
    "step returns terminated as float32[]": after(lambda s, o, r, d, t: (s, o, r, d * 1.0, t)),
    "info cannot be compiled: KeyError": replace(good, info=lambda s: {"cell": s["cells"]}),
    "info must return a dict of scalars by name": replace(good, info=lambda s: s["cell"]),
    "info returns cell as int32[1]; it must be a scalar": replace(
        good, info=lambda s: {"cell": s["cell"][None]}
    ),
    "step cannot be compiled: TracerBoolConversionError": after(
        lambda s, o, r, d, t: (s, o, r, d and t, t)
    ),
}


@pytest.mark.parametrize("words", SHAPES)
def test_wrong_shapes_are_reported_in_one_sentence(words: str) -> None:
    env = SHAPES[words]
    first = check_device_env(env)[0]
    assert words in first
    assert first.startswith("corridor: ")
    assert "\n" not in first
    with pytest.raises(UsageError) as refused:
        refuse(env)
    assert str(refused.value) == first


def test_randomness_that_is_not_from_the_key_is_found() -> None:
    rng, counter = np.random.default_rng(0), itertools.count()
    (said,) = check_device_env(after(lambda s, o, r, *f: (s, o, r + rng.random(), *f)))
    assert "step is not pure: traced twice, it gave two programs" in said
    (said,) = check_device_env(after_reset(lambda s, o: (s, o + next(counter))))
    assert "reset is not pure" in said


def test_a_value_that_is_kept_from_one_call_to_the_next_is_found() -> None:
    kept: list[Any] = []

    def keeps(s: Any, o: Any, r: Any, *flags: Any) -> Any:
        kept.append(r)
        return (s, o, r, *flags)

    (said,) = check_device_env(after(keeps))
    assert "step keeps what it is given beyond the call" in said


def test_a_value_that_is_kept_from_within_a_loop_is_found() -> None:
    kept: list[Any] = []

    def keeps(s: Any, o: Any, r: Any, *flags: Any) -> Any:
        def looped(carry: Any, _: Any) -> Any:
            kept.append(carry)
            return carry, None

        r, _ = jax.lax.scan(looped, r, None, length=2)
        return (s, o, r, *flags)

    (found,) = check_device_env(after(keeps))
    assert "step keeps what it is given beyond the call" in found


def test_functions_that_jax_caches_are_no_kept_values() -> None:
    def smooth(s: Any, o: Any, r: Any, *flags: Any) -> Any:
        return (s, o, jax.nn.relu(r), *flags)  # a function with a custom derivative

    assert check_device_env(after(smooth)) == []


def test_episodes_that_never_end_need_a_limit() -> None:
    endless = after(lambda s, o, r, d, t: (s, o, r, d & False, t))
    assert check_device_env(replace(endless, limit=7), FEW) == []
    (said,) = check_device_env(replace(endless, limit=None), FEW)
    assert "no episode of 16 ended within 300 random steps; set limit" in said


def test_a_truncation_before_the_patience_is_found() -> None:
    tired = replace(corridor(length=50, limit=None, patience=10), patience=11)
    (said,) = check_device_env(tired, FEW)
    assert "step truncated an episode after 10 steps, but DeviceEnv.patience is 11" in said
    assert check_device_env(replace(tired, patience=10), FEW) == []


def test_nan_and_observations_above_their_bound_are_found() -> None:
    def bad(s: Any, o: Any, r: Any, *flags: Any) -> Any:
        return (s, o, jnp.where(s["walked"] == 3, jnp.nan, r), *flags)

    (said,) = check_device_env(after(bad), FEW)
    assert "step 2 of random play gave NaN or infinity" in said
    board = replace(
        after(lambda s, o, *rest: (s, jnp.full(2, 4, jnp.uint8), *rest)),
        obs_spec=ObservationSpec((2,), "uint8", 3),
        reset=lambda key: (good.reset(key)[0], jnp.zeros(2, jnp.uint8)),
    )
    (said,) = check_device_env(board, FEW)
    assert "above obs_spec.high (3)" in said
    (said,) = check_device_env(replace(board, obs_spec=ObservationSpec((2,), "uint8", 0)), FEW)
    assert "obs_spec.high = 0 must be above 0" in said


def test_boxes_without_bounds_are_played() -> None:
    wide = ContinuousSpec((2,), (-np.inf, -1.0), (np.inf, 1.0))
    assert check_device_env(replace(pushed(), action_spec=wide), FEW) == []
    assert check_device_env(replace(corridor(), action_spec=DiscreteSpec(2, start=5)), FEW) == []
