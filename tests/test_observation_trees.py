"""Observations of several arrays are learned from, saved and acted on as single arrays are."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from flatout import PPO, UsageError, check_device_env, tree
from flatout.api.load import AGENTS
from flatout.config.schema import EnvConfig
from flatout.envs.device.on_host import DeviceEnvs, OneDevice
from flatout.envs.task import open_task
from flatout.types import ObservationSpec
from tests import dict_envs, tiny
from tests.conftest import Result, furthest, last_saved

pytestmark = pytest.mark.usefixtures("shared_programs")

Cli = Callable[..., Result]
QUIET = ("--no-tensorboard", "--quiet")
VECTOR = ObservationSpec((2,), "float32")

# --- A Dict with one entry --------------------------------------------------------------------

ALONE: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {"normalize_observation": True, "normalize_reward": True}),
    "a2c": ("a2c", {}),
    "dqn": ("dqn", {"n_step": 3, "prioritized": True, "double": True, "dueling": True}),
    "sac": ("sac", {}),
    "td3": ("td3", {}),
    "genetic": ("genetic", {"env_kwargs": {}}),
}  # fmt: skip
"""Runs of each algorithm, with settings on which the treatment of observations depends."""


def learned(algorithm: str, env: Any, **more: Any) -> list[np.ndarray]:
    """Return all arrays that an agent has learned, in the order of their names."""
    settings = tiny.settings(algorithm, seed=3) | more | {"env": env}
    arrays = AGENTS[algorithm](**settings).learn(256)._acting.arrays
    assert arrays is not None
    return [arrays[name] for name in sorted(arrays)]


def assert_equal(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.bits
@pytest.mark.parametrize("name", [
    "ppo", *(pytest.param(name, marks=pytest.mark.slow) for name in ALONE if name != "ppo")
])  # fmt: skip
def test_a_dict_with_one_entry_learns_what_the_entry_alone_does(name: str) -> None:
    algorithm, more = ALONE[name]
    env = "Pendulum-v1" if name in ("sac", "td3") else "CartPole-v1"
    nested = functools.partial(dict_envs.one, env)
    assert_equal(learned(algorithm, nested, **more), learned(algorithm, env, **more))


@pytest.mark.bits
@pytest.mark.parametrize("name", [
    pytest.param("ppo"), pytest.param("dqn", marks=pytest.mark.slow),
    pytest.param("genetic", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_dict_with_one_entry_in_a_loop_learns_what_the_entry_alone_does(name: str) -> None:
    algorithm, more = ALONE[name]
    more = more | {"env_backend": "device"}
    one, alone = (dict_envs.corner_one(nested) for nested in (True, False))
    assert_equal(learned(algorithm, one, **more), learned(algorithm, alone, **more))


# --- Images in other forms --------------------------------------------------------------------


class Colours(gym.ObservationWrapper[Any, Any, Any]):
    """CartPole in a Dict whose picture has the four numbers as colours, and the vector."""

    def __init__(self, first: bool = False, dtype: Any = np.uint8) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self._first, self._dtype = first, dtype
        shape = (3, 16, 18) if first else (16, 18, 3)
        picture = spaces.Box(0, 255, shape, dtype)
        self.observation_space = spaces.Dict({"see": picture, "x": self.env.observation_space})

    def observation(self, observation: np.ndarray) -> Any:
        colours = (40 * observation[:3] + 128).astype(np.uint8)
        picture = np.arange(16 * 18 * 3).reshape(16, 18, 3).astype(np.uint8) // 2 + colours // 2
        picture = np.moveaxis(picture, -1, 0) if self._first else picture
        return {"see": picture.astype(self._dtype), "x": observation}


@pytest.mark.bits
@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("ppo", {"normalize_observation": True}),
        pytest.param("dqn", {"frame_stack": 2}, marks=pytest.mark.slow),
        pytest.param("ppo", {"frame_stack": 2}, marks=pytest.mark.slow),
    ],
)
def test_images_with_channels_first_and_of_floats_are_learned_from_alike(
    algorithm: str, more: dict[str, Any]
) -> None:
    usual = learned(algorithm, Colours, **more)
    for first, dtype in ((True, np.uint8), (False, np.float32), (True, np.float64)):
        other = learned(algorithm, functools.partial(Colours, first, dtype), **more)
        assert len(usual) == len(other)
        for a, b in zip(usual, other, strict=True):
            if a.shape != b.shape:  # the statistics of the picture
                b = np.moveaxis(b, 0, -1)
            np.testing.assert_array_equal(a, b)


# --- Placements -------------------------------------------------------------------------------

NESTED = {
    "ppo": ("ppo", *tiny.flags("ppo", env="tests.dict_envs:walk", envs=4), "--steps", 512,
            "--normalize-observation"),
    "dqn": ("dqn", *tiny.flags("dqn", env="tests.dict_envs:two", envs=4), "--steps", 256,
            "--n-step", 3, "--learning-starts", 64),
}  # fmt: skip
"""PPO reads a picture and nested arrays, DQN two vectors."""
PROCESSES = "sampler=processes workers=2x2"


def trained(flatout: Cli, run: Path, *flags: Any) -> dict[str, np.ndarray]:
    """Train by the command line and return the arrays of the last checkpoint."""
    result = flatout("train", *flags, *QUIET, "--seed", 4, "--run-dir", run)
    assert result.code == 0, result.err
    return last_saved(run)


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], name)


@pytest.mark.bits
@pytest.mark.parametrize("name", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_processes_change_no_bit(name: str, flatout: Cli, tmp_path: Path) -> None:
    placements = (
        "groups=2", PROCESSES, f"{PROCESSES} inference=local", "act=cpu:1 learn=cpu replay=device",
    )  # fmt: skip
    placements = [p for p in placements if name == "dqn" or "replay" not in p]
    inline, *others = [
        trained(flatout, tmp_path / str(number), *NESTED[name], "--placement", placement)
        for number, placement in enumerate(placements)
    ]
    for other in others:
        assert_same(inline, other)


@pytest.mark.slow
@pytest.mark.bits
@pytest.mark.parametrize("name", NESTED)
def test_overlapped_processes_change_no_bit(name: str, flatout: Cli, tmp_path: Path) -> None:
    placements = ("groups=2", PROCESSES, f"{PROCESSES} inference=local")
    inline, *others = [
        trained(
            flatout, tmp_path / str(number), *NESTED[name], "--placement",
            f"{placement} schedule=overlapped",
        )
        for number, placement in enumerate(placements)
    ]  # fmt: skip
    for other in others:
        assert_same(inline, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", NESTED)
def test_shards_learn_the_same_on_one_and_two_devices(
    name: str, flatout: Cli, tmp_path: Path
) -> None:
    flags = (*NESTED[name], "--shards", 2, "--reduce", "ordered")
    one, two = [
        trained(flatout, tmp_path / str(count), *flags, "--devices", count) for count in (1, 2)
    ]
    assert_same(one, two)


# --- Device environments ----------------------------------------------------------------------


@pytest.mark.bits
def test_a_device_environment_observes_the_same_on_the_host() -> None:
    env = dict_envs.corner()
    many = DeviceEnvs(env, 3, seed=5)
    alone = open_task(EnvConfig(env="corner"), lambda: OneDevice(env)).open(3, 5)
    assert list(env.obs_spec) == ["camera", "where"]
    seen = [tree.zeros(env.obs_spec, 3) for _ in range(2)]
    finals: list[list[Any]] = [[], []]
    rng = np.random.default_rng(0)
    for envs, obs in zip((many, alone), seen, strict=True):
        envs.reset_all(obs)
    for _ in range(30):
        actions = rng.integers(0, 4, 3).astype(np.int32)
        for envs, obs, ends in zip((many, alone), seen, finals, strict=True):
            envs.step(actions, obs, np.zeros(3), lambda *end, ends=ends: ends.append(end))
        for path in env.obs_spec:
            np.testing.assert_array_equal(seen[0][path], seen[1][path])
    assert len(finals[0]) == len(finals[1]) > 6
    for one, other in zip(*finals, strict=True):
        assert one[:3] == other[:3]
        for path in env.obs_spec:
            np.testing.assert_array_equal(one[3][path], other[3][path])


CORNER = ("--env", "tests.dict_envs:corner")


@pytest.mark.bits
@pytest.mark.parametrize("name", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_the_loop_resumes_and_equals_the_device_sampler(
    name: str, flatout: Cli, tmp_path: Path
) -> None:
    flags = (*NESTED[name], *CORNER, "--checkpoint-every", 128)
    fused = trained(flatout, tmp_path / "a", *flags, "--env-backend", "device")
    where = ("--placement", "sampler=device act=cpu learn=cpu")
    assert furthest(fused, trained(flatout, tmp_path / "b", *flags, *where)) < 1e-4
    trained(flatout, tmp_path / "c", *flags, "--env-backend", "device", "--steps", 128)
    steps = flags[flags.index("--steps") + 1]
    assert flatout("train", "--resume", tmp_path / "c", "--steps", steps, "--quiet").code == 0
    assert_same(fused, last_saved(tmp_path / "c"))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["spread", "together"])
def test_members_of_a_population_are_runs(strategy: str, flatout: Cli, tmp_path: Path) -> None:
    for name in NESTED:
        flags = (*NESTED[name], *CORNER, "--env-backend", "device")
        run = tmp_path / name
        words = ("--seeds", 2, "--strategy", strategy)
        result = flatout("train", *flags, *QUIET, *words, "--run-dir", run)
        assert result.code == 0, result.err
        member = next(run.rglob("seed=1"))
        alone = tmp_path / f"{name}-alone"
        assert flatout("train", *flags, *QUIET, "--seed", 1, "--run-dir", alone).code == 0
        one, other = last_saved(member), last_saved(alone)
        assert one.keys() == other.keys()
        assert furthest(one, other) <= (1e-3 if strategy == "together" else 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NESTED)
def test_members_in_one_program_resume(name: str, flatout: Cli, tmp_path: Path) -> None:
    """Their checkpoint is one; each member's observations are among its arrays."""
    flags = (*NESTED[name], *CORNER, "--env-backend", "device", *QUIET, "--checkpoint-every", 128)
    words = ("--seeds", 2, "--strategy", "together")
    found: list[dict[str, np.ndarray]] = []
    for steps in (256, 128):
        run = tmp_path / str(steps)
        result = flatout("train", *flags, *words, "--steps", steps, "--run-dir", run)
        assert result.code == 0, result.err
        if steps == 128:
            result = flatout("train", "--resume", run, "--steps", 256, "--quiet")
            assert result.code == 0, result.err
        found.append(last_saved(next(run.rglob("seed=1"))))
    assert_same(*found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"obs_spec": {}}, "corner: obs_spec is an empty dict"),
        ({"obs_spec": {"a/b": VECTOR}}, "the key 'a/b'; keys are texts without slashes"),
        ({"obs_spec": {1: VECTOR, "b": VECTOR}}, "the key 1"),
        ({"obs_spec": {"where": 3}}, r"obs_spec\['where'\] must be an ObservationSpec"),
        ({"obs_spec": {"where": VECTOR}}, "obs with camera, where; obs_spec has where"),
        (
            {"obs_spec": {"where": VECTOR, "camera": VECTOR}},
            r"reset returns obs\['camera'\] as uint8\[6, 6, 1\]; obs_spec says float32\[2\]",
        ),
        ({"obs_spec": VECTOR}, "reset returns obs as dict"),
    ],
)  # fmt: skip
def test_device_environments_that_break_their_spec_are_refused(
    change: dict[str, Any], words: str
) -> None:
    env = replace(dict_envs.corner(), **change)
    (problem, *_) = check_device_env(env)
    assert re.search(words, problem), problem
    with pytest.raises(UsageError, match=words):
        PPO(env, **tiny.python("ppo"))


def test_good_device_environments_have_no_problems() -> None:
    assert check_device_env(dict_envs.corner(), steps=50) == []
