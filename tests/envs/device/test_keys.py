"""An environment with a random key in its state, like those of jax-envelope."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flatout.engine import members
from flatout.envs.device.base import DeviceEnv
from flatout.envs.device.check import check_device_env
from flatout.errors import CheckpointError
from flatout.populations.members import FOLDER
from flatout.storage.checkpoint import leaf_names, named_leaves, rebuild
from flatout.types import DiscreteSpec, ObservationSpec
from tests import tiny
from tests.conftest import Result, furthest, last_saved

pytestmark = pytest.mark.usefixtures("shared_programs")

Cli = Callable[..., Result]


def drunkard(impl: str = "threefry2x32") -> DeviceEnv:
    """Make a random walk: a step follows the action or, at random, does not move. The randomness
    comes from the key in the state."""

    def observe(place: jax.Array) -> jax.Array:
        return (place[None] / 4).astype(np.float32)

    def reset(key: Any) -> tuple[Any, jax.Array]:
        words = jax.random.key_data(key)
        width = 2 if impl == "threefry2x32" else 4
        own = jax.random.wrap_key_data(jnp.resize(words, width), impl=impl)
        place = jnp.zeros((), np.int32)
        return (place, own), observe(place)

    def step(state: Any, action: jax.Array, key: Any) -> tuple[Any, ...]:
        place, own = state
        own, now = jax.random.split(own)
        stays = jax.random.bernoulli(now, 0.3)
        place = place + jnp.where(stays, 0, 2 * action.astype(np.int32) - 1)
        reward = (place > 0).astype(np.float32)
        return (place, own), observe(place), reward, jnp.abs(place) >= 4, jnp.asarray(False)

    spec = ObservationSpec((1,), "float32")
    return DeviceEnv("drunkard", spec, DiscreteSpec(2), 30, reset, step)


WORDS = ("a2c", *tiny.flags("a2c", env=f"{__name__}:drunkard"), "--steps", 256,
         "--checkpoint-every", 64, "--no-tensorboard", "--quiet")  # fmt: skip


def test_it_is_a_device_environment() -> None:
    assert check_device_env(drunkard(), steps=50) == []


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--shards", 2, "--devices", 2)])
def test_its_run_resumes_to_the_same_bits(
    more: tuple[Any, ...], flatout: Cli, tmp_path: Path
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert flatout("train", *WORDS, *more, "--run-dir", whole).code == 0
    half = flatout("train", *WORDS, *more, "--steps", 128, "--run-dir", stopped)
    assert half.code == 0, half.err
    again = flatout("train", "--resume", stopped, "--trust", "--steps", 256, "--quiet")
    assert again.code == 0, again.err
    assert furthest(last_saved(whole), last_saved(stopped)) == 0.0
    assert flatout("eval", whole, "--trust", "--episodes", 3).code == 0


@pytest.mark.slow
def test_its_members_share_a_program_and_a_checkpoint(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, programs = members.FusedPopulation._compile, list[Any]()

    def once(*given: Any) -> Any:
        """Compile one program for all three populations, which have the same shapes."""
        if not programs:
            programs.append(compiled(*given))
        return programs[0]

    monkeypatch.setattr(members.FusedPopulation, "_compile", once)
    words = ("--seeds", 2, "--strategy", "together")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert flatout("train", *WORDS, *words, "--run-dir", whole).code == 0
    assert flatout("train", *WORDS, *words, "--steps", 128, "--run-dir", stopped).code == 0
    again = flatout("train", "--resume", stopped, "--steps", 256, "--quiet")
    assert again.code == 0, again.err
    assert programs
    for seed in range(2):
        one, other = (folder / FOLDER / f"seed={seed}" for folder in (whole, stopped))
        assert furthest(last_saved(one), last_saved(other)) == 0.0


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_of_every_kind_come_back_as_they_were(impl: str) -> None:
    width = 2 if impl == "threefry2x32" else 4
    words = np.random.default_rng(3).integers(0, 2**32, (5, width), np.uint32)
    tree = {
        "keys": jax.random.wrap_key_data(words, impl=impl),
        "place": np.arange(5, dtype=np.int32),
    }
    shapes = jax.eval_shape(lambda: tree)
    arrays = named_leaves(tree, "env")
    assert all(type(array) is np.ndarray for array in arrays.values())
    back = rebuild(leaf_names(shapes, "env"), shapes, arrays)
    assert back["keys"].dtype == tree["keys"].dtype
    assert np.array_equal(jax.random.key_data(back["keys"]), jax.random.key_data(tree["keys"]))
    assert np.array_equal(back["place"], tree["place"])
    arrays["env['keys']"] = arrays["env['keys']"][:, :1]
    with pytest.raises(CheckpointError, match=r"needs uint32\[5, "):
        rebuild(leaf_names(shapes, "env"), shapes, arrays)
