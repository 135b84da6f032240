"""Masked actions are never taken and never bootstrapped from, wherever a run's parts are.

The environments of `tests.masked_envs` fail when they get a forbidden action.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from flatout import A2C, DQN, PPO, Population, UsageError
from flatout.algorithms.common.distributions import distribution, drawn, masked, parameter_mask
from flatout.algorithms.dqn import DQNParams, targets
from flatout.envs.spaces import action_spec
from flatout.errors import EnvironmentFailure
from tests import tiny
from tests.conftest import Result
from tests.kills import kill_at_random_times
from tests.masked_envs import ACTIONS, Mixed, Picky, picky_device
from tests.test_nested_runs import loaded
from tests.test_observation_trees import STEPPED, WORKERS, assert_same, learned

MULTI = {"kind": "method", "counts": (3, 2)}
MASKS = np.array([[1, 0, 0, 1, 0], [0, 1, 1, 1, 1], [0, 0, 1, 0, 0]], bool)


def picky(**settings: Any) -> Any:
    return functools.partial(Picky, **settings)


# --- The arithmetic ---------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(5,), (3, 2)])
def test_forbidden_values_have_no_probability_and_no_gradient(counts: tuple[int, ...]) -> None:
    space = spaces.Discrete(5) if len(counts) == 1 else spaces.MultiDiscrete(counts)
    spec = action_spec(space, "")
    dist = distribution(spec)
    mask = jnp.asarray([[1, 0, 1, 0, 1], [0, 1, 0, 1, 1]], bool)
    extra = jnp.zeros(0)

    def entropy(x: jax.Array) -> jax.Array:
        return dist.entropy(masked(x, parameter_mask(spec, mask)), extra).sum()

    # The allowed values alone have all of the probability.
    every = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), -1)
    every = every.reshape(-1, len(counts)).astype(np.int32)
    taken = np.stack([every] * 2, 1)  # [V, 2 rows, components]
    taken = taken[..., 0] if len(counts) == 1 else taken

    @jax.jit
    def computed(logits: jax.Array) -> Any:
        x = masked(logits, mask)
        noise = jax.vmap(dist.noise, (None, 0, None))(jax.random.key(1), jnp.arange(400), 0)
        samples = jnp.stack([dist.sample(x[row], extra, noise).reshape(400, -1) for row in (0, 1)])
        chances = jax.vmap(lambda values: dist.log_prob(x, extra, values))(taken)
        return jax.grad(entropy)(logits), samples, jnp.exp(chances).sum(0)

    logits = np.random.default_rng(0).normal(0, 1, (2, 5)).astype(np.float32)
    gradient, samples, total = map(np.asarray, computed(logits))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[~np.asarray(mask)], 0.0)
    assert np.abs(gradient[0][np.asarray(mask[0])]).max() > 0
    for row in range(2):
        picks = np.cumsum([0, *counts[:-1]]) + samples[row]
        assert np.asarray(mask[row])[picks].all()
        assert set(picks.ravel()) == set(np.flatnonzero(mask[row]))
    np.testing.assert_allclose(total, 1.0, rtol=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_targets_never_bootstrap_from_a_forbidden_action(double: bool) -> None:
    """The forbidden actions have the highest values; an observation that allows nothing has 0."""
    q = jnp.asarray([[1.0, 9.0, 8.0], [1.0, 2.0, 9.0], [5.0, 6.0, 7.0]])
    mask = jnp.asarray([[1, 0, 0], [1, 1, 0], [0, 0, 0]], bool)
    params: Any = DQNParams(2.0 * q, q)
    batch: Any = SimpleNamespace(
        next_obs=mask, rewards=jnp.asarray([0.0, 0.5, 0.25]), discounts=jnp.full(3, 0.5)
    )
    found = targets(masked, double, True, params, batch)
    np.testing.assert_allclose(found, [0.5, 1.5, 0.25])


def test_random_actions_are_uniform_among_the_allowed() -> None:
    uniform = jnp.linspace(0.0, 1.0, 601)
    for mask in MASKS:
        found = np.asarray(drawn(uniform, jnp.broadcast_to(jnp.asarray(mask), (601, 5))))
        counts = np.bincount(found, minlength=5)
        np.testing.assert_array_equal(counts > 0, mask)
        assert np.ptp(counts[mask]) <= 2


# --- Runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_runs_learn_the_same_wherever_the_masks_are(algorithm: str) -> None:
    one, other = (learned(algorithm, picky(kind=kind)) for kind in ("info", "entry"))
    assert_same(one, other)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("genetic", {"n_steps": 24}), ("dqn", {"double": True, "dueling": True})],
)
@pytest.mark.slow
def test_other_algorithms_take_allowed_actions_alone(
    algorithm: str, settings: dict[str, Any]
) -> None:
    learned(algorithm, picky(), 512, **settings)


@pytest.mark.slow
def test_choices_next_to_boxes_are_masked() -> None:
    agent = PPO(Mixed, **tiny.python("ppo")).learn(512)
    action = agent.predict(
        np.zeros(4, np.float32), action_mask=[0, 0, 0, 1, 0], deterministic=True
    )[0]
    assert action["gears"][0] == 3


@pytest.mark.bits
@pytest.mark.parametrize(
    ("algorithm", "env", "placements"),
    [
        pytest.param("ppo", {}, ["sampler=inline groups=2", f"{WORKERS} groups=2"]),
        pytest.param("dqn", {}, ["sampler=inline", "act=cpu replay=device"],
                     marks=pytest.mark.slow),
        pytest.param("ppo", MULTI, ["sampler=inline groups=2", f"{WORKERS} inference=local"],
                     marks=pytest.mark.slow),
        pytest.param(
            "ppo", {}, [f"{place} schedule=overlapped groups=2"
                        for place in ("sampler=inline", WORKERS)],
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_every_placement_learns_the_same_bits(
    algorithm: str, env: dict[str, Any], placements: list[str]
) -> None:
    settings = {"envs": 4} | ({"prioritized": False} if algorithm == "dqn" else {})
    one, other = (
        learned(algorithm, picky(**env), placement=place, **settings) for place in placements
    )
    assert_same(one, other)


@pytest.mark.bits
@pytest.mark.slow
def test_a_device_environment_learns_the_same_however_it_is_stepped() -> None:
    more = {"env_backend": "device", "prioritized": False}
    fused = learned("dqn", picky_device(), **more)
    assert_same(fused, learned("dqn", picky_device(), placement=STEPPED, **more))


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{}, {"shards": 2, "envs": 4}, {"placement": "sampler=device schedule=serial"}]
)
def test_a_device_environment_without_an_allowed_action_is_named(more: dict[str, Any]) -> None:
    with pytest.raises(
        EnvironmentFailure, match=r"environment 0 \(picky\) gave a mask that allows"
    ):
        learned("ppo", picky_device(stuck=7), env_backend="device", **more)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["together", "spread"])
def test_a_population_takes_allowed_actions_alone(strategy: str, tmp_path: Path) -> None:
    settings = tiny.python("ppo", env_backend="device", tensorboard=False)
    env = "tests.masked_envs:picky_device"
    members = Population("ppo", env, seeds=2, strategy=strategy, run_dir=tmp_path / "p", **settings)
    found = members.learn(512).summaries
    assert [one["steps"] for one in found.values()] == [512, 512]


LITTLE = {"n_epochs": 1, "batch_size": 512}
"""Settings of PPO with few updates, for tests of many steps."""


@pytest.mark.slow
def test_no_masked_action_in_a_million_steps() -> None:
    """Most of them in compiled programs, where a forbidden action gives a reward of NaN."""
    steps = 0
    for kind, env, count, more in (
        (PPO, picky_device(), 900_000, {"env_backend": "device", "envs": 64, **LITTLE}),
        (DQN, picky_device(), 40_000, {"env_backend": "device", "envs": 16, "train_freq": 64}),
        (PPO, Picky, 20_000, {"envs": 8, "normalize_observation": True, **LITTLE}),
        (A2C, picky(**MULTI), 20_000, {"envs": 8}),
        (DQN, picky(kind="entry"), 20_000, {"n_step": 3, "train_freq": 32}),
        (PPO, Picky, 10_000, {"envs": 4, "placement": f"{WORKERS} inference=local", **LITTLE}),
    ):
        steps += kind(env, seed=5, **more).learn(count).summary["steps"]
    assert steps >= 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PPO, DQN])
def test_a_masked_policy_learns(kind: Any) -> None:
    """The best allowed action is 3.1 on average; random ones give 2."""
    agent = kind(Picky, seed=1, envs=4, learning_rate=1e-3).learn(30_000)
    assert agent.evaluate(20).return_mean > 2.9 * 12


@pytest.mark.slow
def test_replay_killed_at_random_times_and_resumed_is_bit_equal(tmp_path: Path) -> None:
    """Those of policies with masks are in tests/run/test_resume.py."""
    flags = (
        "train", "dqn", *tiny.flags("dqn", env="tests.masked_envs:Picky"), "--steps", "4800",
        "--n-step", "3", "--eval-every", "1500", "--eval-episodes", "2",
        "--no-tensorboard", "--quiet", "--checkpoint-every", "64", "--seed", "3",
    )  # fmt: skip
    kill_at_random_times(flags, 1, random.Random("dqn"), tmp_path, 1.5)


# --- Using an agent ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agent() -> PPO:
    return PPO(Picky, **tiny.python("ppo", seed=1)).learn(128)


def test_predict_obeys_the_mask(agent: PPO) -> None:
    obs = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for deterministic in (True, False):
        for _ in range(10):
            found = agent.predict(obs, deterministic=deterministic, action_mask=MASKS)[0]
            assert MASKS[np.arange(3), found].all()
        entry = {"observation": obs, "action_mask": MASKS}
        assert MASKS[np.arange(3), agent.predict(entry, deterministic=deterministic)[0]].all()
    assert agent.predict(obs[0], action_mask=MASKS[2], deterministic=True)[0] == 2
    assert len(agent.evaluate(2).returns) == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "predict needs action_mask=, because .*Picky masks its actions"),
        (np.ones(4), r"of shape \[4\], but the Discrete actions need 5 entries"),
        (np.full(5, 0.5), "its entries have to be 0 or 1"),
        (np.zeros(5), "a mask that allows no action"),
        (MASKS, "sizes of these entries differ"),
    ],
)
def test_predict_refuses_masks_that_do_not_fit(agent: PPO, given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        agent.predict(np.zeros(4, np.float32), action_mask=given, deterministic=True)


def test_an_agent_without_masks_takes_none() -> None:
    agent = PPO("CartPole-v1", **tiny.python("ppo")).learn(64)
    with pytest.raises(UsageError, match="without masks"):
        agent.predict(np.zeros(4, np.float32), action_mask=[1, 0], deterministic=True)


def test_an_exported_agent_obeys_the_mask(agent: PPO, tmp_path: Path) -> None:
    policy = loaded(agent.export(tmp_path / "policy.py"))
    rng = np.random.default_rng(1)
    obs, masks = rng.normal(size=(40, 4)).astype(np.float32), rng.random((40, ACTIONS)) < 0.4
    masks[:, 0] |= ~masks.any(1)
    np.testing.assert_array_equal(
        policy.predict(obs, deterministic=True, action_mask=masks)[0],
        agent.predict(obs, action_mask=masks, deterministic=True)[0],
    )
    entry = {"observation": obs[0], "action_mask": masks[0]}
    assert (
        policy.predict(entry, deterministic=True)[0] == agent.predict(entry, deterministic=True)[0]
    )
    assert policy.outputs(obs).shape == (40, ACTIONS)
    with pytest.raises(ValueError, match="pass action_mask"):
        policy.predict(obs, deterministic=True)
    for given, words in (
        (masks[:, 1:], "5 entries"), (masks.T, "5 entries"), (0 * masks, "allows no action"),
        (np.where(masks, np.nan, 0), "0 or 1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            policy.predict(obs, deterministic=True, action_mask=given)
    policy.SPEC["action"] = {"kind": "parts", "parts": [{"kind": "choices", "counts": [3, 2]}]}
    with pytest.raises(ValueError, match=r"parts of a mask have \[3, 2\] entries"):
        policy.allowed(np.zeros((1, 5)), ([1, 0], [1, 0, 1]))


@pytest.mark.slow
def test_a_masked_run_is_evaluated_watched_and_resumed(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    flags = tiny.flags("ppo", env="tests.masked_envs:Picky")
    run = tmp_path / "run"
    assert flatout("train", "ppo", *flags, "--steps", 128, "--quiet", "--run-dir", run).code == 0
    assert flatout("train", "--resume", run, "--steps", 192, "--quiet").code == 0
    assert flatout("eval", run, "--episodes", 2).code == 0
    assert flatout("export", run, "--out", tmp_path / "policy.py").code == 0
    assert flatout("plan", "ppo", *flags, "--steps", 2000, "--seconds", 2).code == 0
