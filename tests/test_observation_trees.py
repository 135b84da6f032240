"""Observations of several arrays: every sampler, schedule and buffer learns the same from them."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import flatout
from flatout import PPO, UsageError, tree
from flatout.casts import word_counts
from flatout.config.schema import NetworkConfig
from flatout.engine.replay.ring import RingLayout
from flatout.envs.host import HostEnvs
from flatout.envs.make import specs
from flatout.envs.notes import recognised_images
from flatout.envs.spaces import observation_spec
from flatout.errors import EnvironmentFailure, InvalidReturn
from flatout.networks.encoder import Encoder
from flatout.types import ObservationSpec
from tests import tiny
from tests.conftest import Result
from tests.dict_envs import Halves, Nested, OneEntry, Walk, corner, vector

STEPS = {"ppo": 128, "a2c": 64, "dqn": 96, "sac": 48, "td3": 48, "genetic": 96}
MORE: dict[str, dict[str, Any]] = {
    "ppo": {"normalize_observation": True}, "dqn": {"n_step": 3, "prioritized": True},
}  # fmt: skip


def learned(algorithm: str, env: Any, steps: int = 0, **more: Any) -> list[np.ndarray]:
    """Train briefly; return the arrays of the parameters in order."""
    own = tiny.python(algorithm, seed=1, **MORE.get(algorithm, {})) | {"env_kwargs": {}}
    kind = getattr(flatout, algorithm.capitalize() if algorithm == "genetic" else algorithm.upper())
    agent = kind(env, **own | more).learn(steps or STEPS[algorithm])
    arrays = agent._acting.arrays
    assert arrays is not None
    return [array for name, array in arrays.items() if ".params" in name]


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


class Continuous(Walk):
    """`Walk` with a box of actions."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.action_space = spaces.Box(-1.0, 3.0, (1,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(int(action[0] > 1))


class ContinuousEntry(Continuous, OneEntry):
    """`Continuous` with the vector as the only entry of a Dict."""


@pytest.mark.bits
@pytest.mark.parametrize(
    "algorithm",
    ["ppo", "dqn", *(pytest.param(n, marks=pytest.mark.slow) for n in ("sac", "genetic"))],
)
def test_a_dict_with_one_entry_learns_the_bits_of_that_entry(algorithm: str) -> None:
    alone, entry = (Continuous, ContinuousEntry) if algorithm == "sac" else (Walk, OneEntry)
    wrapped = functools.partial(gym.wrappers.TimeLimit, max_episode_steps=12)
    assert_same(
        learned(algorithm, lambda: wrapped(alone())), learned(algorithm, lambda: wrapped(entry()))
    )


@pytest.mark.bits
@pytest.mark.slow
def test_a_device_environment_with_one_entry_learns_the_bits_of_it() -> None:
    one, other = (learned("a2c", vector(entry), env_backend="device") for entry in (False, True))
    assert_same(one, other)


WORKERS = "sampler=processes workers=2x2"
STEPPED = "sampler=device schedule=serial"


@pytest.mark.bits
@pytest.mark.parametrize(
    ("algorithm", "env", "placements"),
    [
        ("ppo", Nested, ["sampler=inline groups=2", f"{WORKERS} groups=2"]),
        pytest.param("dqn", Halves, ["sampler=inline", "act=cpu replay=device"],
                     marks=pytest.mark.slow),
        pytest.param(
            "ppo", Nested, ["sampler=inline groups=2", f"{WORKERS} inference=local"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "dqn", Halves, ["sampler=inline groups=2", f"{WORKERS} groups=2"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "ppo", Nested,
            [f"{place} schedule=overlapped groups=2" for place in ("sampler=inline", WORKERS)],
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_every_placement_learns_the_same_bits(
    algorithm: str, env: Any, placements: list[str]
) -> None:
    # Prioritised replay differs on a device: it refreshes priorities after each update.
    settings = {"envs": 4, "network": "mlp"}
    settings |= {"prioritized": False} if algorithm == "dqn" else {}
    one, other = (learned(algorithm, env, placement=place, **settings) for place in placements)
    assert_same(one, other)


@pytest.mark.bits
@pytest.mark.slow
def test_a_device_environment_learns_the_same_however_it_is_stepped() -> None:
    """With replay: in the test of masks."""
    # How convolutions and normalisation round depends on the rest of a program.
    more = {"env_backend": "device", "network": "mlp", "normalize_observation": False}
    fused = learned("ppo", corner(), **more)
    assert_same(fused, learned("ppo", corner(), placement=STEPPED, **more))


@pytest.mark.slow
def test_the_host_steps_a_device_environment_with_several_arrays() -> None:
    assert learned("ppo", corner())


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_shards_learn_the_same_on_one_and_two_devices(algorithm: str) -> None:
    settings: dict[str, Any] = {"shards": 2, "reduce": "ordered"}
    one = learned(algorithm, Halves, **settings)
    assert_same(one, learned(algorithm, Halves, placement="learn=cpu:0,cpu:1", **settings))


Cli = Callable[..., Result]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "strategy"), [("ppo", "together"), ("dqn", "spread")])
def test_a_population_learns_from_dicts(
    flatout: Cli, tmp_path: Path, algorithm: str, strategy: str
) -> None:
    flags = tiny.flags(algorithm, env="tests.dict_envs:corner")
    result = flatout(
        "train", algorithm, *flags, "--steps", 128, "--env-backend", "device", "--seeds", 2,
        "--strategy", strategy, "--quiet", "--run-dir", tmp_path / "run",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert len(list((tmp_path / "run").rglob("params.safetensors"))) == 2


class Killed(Halves):
    """It kills its process at the 30th step, once: then a file says so."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.steps = Path(path), 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 30 and not self.path.exists():
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.slow
@pytest.mark.fault
def test_replay_goes_on_where_a_worker_was_lost(tmp_path: Path) -> None:
    """What its episodes and the next ones have is tested in `test_nested_runs`."""
    env = functools.partial(Killed, str(tmp_path / "once"))
    assert learned("dqn", env, steps=256, envs=4, placement=WORKERS)
    assert (tmp_path / "once").exists()


def test_an_exported_agent_acts_as_predict_does(tmp_path: Path) -> None:
    agent = PPO(Nested, **tiny.python("ppo", normalize_observation=True)).learn(64)
    path = agent.export(tmp_path / "policy.py")
    spec = importlib.util.spec_from_file_location("policy", path)
    assert spec is not None
    assert spec.loader is not None
    policy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(policy)
    env = Nested()
    seen = [env.reset(seed=3)[0], *(env.step(n % 4)[0] for n in range(7))]
    for obs in seen:
        assert (
            agent.predict(obs, deterministic=True)[0] == policy.predict(obs, deterministic=True)[0]
        )
    batch = {
        "board": np.stack([obs["board"] for obs in seen]),
        "state": {
            name: np.stack([obs["state"][name] for obs in seen]) for name in ("vector", "last")
        },
        "rest": tuple(
            [obs["rest"][n] for obs in seen] if n == 2 else np.stack([o["rest"][n] for o in seen])
            for n in range(4)
        ),
    }
    np.testing.assert_array_equal(
        agent.predict(batch, deterministic=True)[0],
        [agent.predict(obs, deterministic=True)[0] for obs in seen],
    )
    np.testing.assert_array_equal(
        policy.predict(batch, deterministic=True)[0], agent.predict(batch, deterministic=True)[0]
    )
    with pytest.raises(UsageError, match="no entry 'rest'; it takes board, rest/0"):
        agent.predict({"board": seen[0]["board"], "state": seen[0]["state"]}, deterministic=True)
    with pytest.raises(UsageError, match=r"shape \[4\] for 'state/vector'"):
        agent.predict(seen[0] | {"state": {"vector": np.zeros(3), "last": 1}}, deterministic=True)
    with pytest.raises(UsageError, match="sizes of these entries differ"):
        agent.predict(seen[0] | {"board": batch["board"]}, deterministic=True)


# Specs and encoders


def test_nested_spaces_are_flattened_to_paths() -> None:
    spec, _ = specs(Nested(), "nested")
    assert isinstance(spec, dict)
    assert list(spec) == [
        "board", "rest/0", "rest/1", "rest/2", "rest/3", "state/last", "state/vector",
    ]  # fmt: skip
    assert spec["state/last"].categories == (4,)
    assert spec["rest/3"].shape == ()
    assert spec["rest/2"].text


def test_categories_become_one_hot_vectors() -> None:
    spaced = spaces.Tuple((spaces.Discrete(3, start=5), spaces.MultiDiscrete([2, 2])))
    encoder = Encoder(observation_spec(spaced, "x"), NetworkConfig(), None)
    obs = {"0": jnp.int32([5, 7]), "1": jnp.int32([[1, 0], [0, 0]])}
    features = encoder.features(None, encoder.prepare(obs))
    assert features.tolist() == [[1, 0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 0, 1, 0]]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_channels_first_images_give_the_features_of_transposed_ones(dtype: Any) -> None:
    image = np.random.default_rng(0).integers(0, 256, (2, 36, 40, 3)).astype(dtype)
    found = []
    for shape, seen in (((36, 40, 3), image), ((3, 36, 40), np.moveaxis(image, -1, 1))):
        spec = observation_spec(spaces.Box(0, 255, shape, dtype), "x")
        encoder = Encoder(spec, NetworkConfig(), None)
        torso = encoder.build(np.random.default_rng(1))
        apply = jax.jit(lambda x, e=encoder, t=torso: e.features(t, e.prepare(x)))
        found.append(np.asarray(apply(seen)))
    assert found[0].shape == (2, 512)
    np.testing.assert_array_equal(*found)


def test_images_that_are_transposed_or_scaled_are_named() -> None:
    both = spaces.Dict({
        "camera": spaces.Box(0, 255, (3, 36, 40), np.float32),
        "map": spaces.Box(0, 255, (36, 40, 3), np.uint8),
    })  # fmt: skip
    transposed, scaled = recognised_images(Walk(), observation_spec(both, "x"), "pier")
    assert transposed == (
        "pier observes images with the channels first at 'camera' (3x36x40), which are transposed"
    )
    assert scaled.endswith("at 'camera' (3x36x40), which are divided by 255")


def test_words_are_counted_without_their_case() -> None:
    counts = word_counts("Go to the red Ball the", 128)
    assert counts.sum() == 6
    np.testing.assert_array_equal(counts, word_counts("the the ball RED to go", 128))
    with pytest.raises(ValueError, match="int in place of a text"):
        word_counts(3, 128)


class Doubled(eqx.Module):
    """A user's module for one array."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return 2 * x.reshape(-1)


class Whole(eqx.Module):
    """A user's module for a whole observation."""

    def __call__(self, x: dict[str, jax.Array]) -> jax.Array:
        return jnp.concatenate([x["place"], -x["speed"]])


def test_users_networks_replace_one_branch_or_all() -> None:
    spec, _ = specs(Halves(), "halves")
    obs = {"place": jnp.ones((1, 2)), "speed": jnp.ones((1, 2))}
    shapes = list[Any]()

    def doubled(key: Any, shape: Any) -> Doubled:
        shapes.append(shape)
        return Doubled()

    one = Encoder(spec, NetworkConfig(), {"speed": doubled})
    assert one.features(one.build(None, dense=False), obs).tolist() == [[1, 1, 2, 2]]
    every = Encoder(spec, NetworkConfig(), lambda key, shape: shapes.append(shape) or Whole())
    assert every.features(every.build(None), obs).tolist() == [[1, 1, -1, -1]]
    assert shapes == [(2,), {"place": (2,), "speed": (2,)}]
    with pytest.raises(UsageError, match="entry 'sped', but the observation has place, speed"):
        Encoder(spec, NetworkConfig(), {"sped": doubled})


def test_agents_take_networks_by_path(tmp_path: Path) -> None:
    network = {"speed": lambda key, shape: Doubled()}
    agent = PPO(Halves, network=network, **tiny.python("ppo")).learn(64)
    again = PPO.load(agent.save(tmp_path / "agent"), Halves, network=network)
    obs = {"place": np.ones(2, np.float32), "speed": np.ones(2, np.float32)}
    assert again.predict(obs, deterministic=True)[0] == agent.predict(obs, deterministic=True)[0]
    with pytest.raises(UsageError, match="entry 'sped'"):
        PPO(Halves, network={"sped": network["speed"]}, **tiny.python("ppo")).learn(64)


def test_replay_stores_each_frame_of_an_image_once() -> None:
    stacked = spaces.Dict({
        "camera": spaces.Box(0, 255, (36, 36, 4), np.uint8),
        "state": spaces.Box(-1.0, 1.0, (8,), np.float32),
    })  # fmt: skip
    layout = RingLayout(observation_spec(stacked, "x", stack=4), 2, 10, 1)
    assert layout.frames["camera"].shape == (36, 36, 1)
    assert layout.frames["state"].shape == (8,)
    assert layout.length == 14


def test_frame_stacks_of_dicts_learn() -> None:
    assert learned("dqn", Nested, frame_stack=2)


# Bad observations


def returning(change: Callable[[Any], Any], at: int) -> Any:
    """Make a `Nested` environment whose observation is changed at a step of the episode."""

    class Changed(Nested):
        def observe(self, vector: np.ndarray) -> Any:
            obs = super().observe(vector)
            return change(obs) if self.time == at else obs

    return Changed()


def without(obs: Any) -> Any:
    return {key: part for key, part in obs.items() if key != "state"}


def state(**parts: Any) -> Callable[[Any], Any]:
    return lambda obs: obs | {"state": obs["state"] | parts}


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without, "with no entry 'state' from"),
        (lambda obs: obs | {"more": 1}, "with an unexpected entry 'more' from"),
        (state(more=1), "with an unexpected entry 'state/more' from"),
        (lambda obs: obs | {"rest": obs["rest"][:3]}, "with no entry 'rest/3' from"),
        (lambda obs: obs["board"], "with type ndarray instead of a dict or tuple with board"),
        (state(vector=np.zeros(5)), "the observation 'state/vector' of shape (5,)"),
        (state(vector="north"), "the observation 'state/vector' of type str"),
        (state(last=0), "'state/last' from"),
        (lambda obs: obs | {"board": np.full((4, 4, 1), 300)}, "300, which uint8"),
        (lambda obs: obs | {"rest": (*obs["rest"][:2], 3, 0.0)}, "the observation 'rest/2' of"),
    ],
)  # fmt: skip
def test_bad_observations_are_named_by_their_paths(change: Any, words: str, at: int) -> None:
    env = returning(change, at)
    obs_spec, action_spec = specs(Nested(), "mine")
    envs = HostEnvs([Nested(), env], "mine", obs_spec, action_spec, seed=0)
    out = tree.zeros(obs_spec, 2)

    def play() -> None:
        envs.reset_all(out)
        envs.step(np.zeros(2, np.int32), out, np.zeros(2), lambda *end: None)

    with pytest.raises(InvalidReturn, match=r"environment 1 \(mine\)") as refused:
        play()
    assert words in str(refused.value)


@pytest.mark.parametrize("at", [0, 3])
def test_nan_in_one_array_is_named_by_its_path(at: int) -> None:
    bad = state(vector=np.float32([0, np.nan, 0, 0]))
    with pytest.raises(EnvironmentFailure, match="NaN or infinity in 'state/vector'"):
        PPO(lambda: returning(bad, at), **tiny.python("ppo")).learn(64)


def test_copies_with_other_spaces_are_refused() -> None:
    made = list[Any]()

    def make() -> Any:
        env = Halves()
        if len(made) % 2:
            assert isinstance(env.observation_space, spaces.Dict)
            env.observation_space["speed"] = spaces.Box(-1.0, 1.0, (3,), np.float32)
        made.append(env)
        return env

    with pytest.raises(UsageError, match=r"different observation spaces.*'speed'"):
        PPO(make, **tiny.python("ppo", placement="sampler=inline")).learn(64)


def test_the_spec_of_one_array_stays_one_array() -> None:
    assert isinstance(specs(Walk(), "walk")[0], ObservationSpec)
