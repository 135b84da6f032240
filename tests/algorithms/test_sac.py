"""SAC against its paper in NumPy; SAC, TQC, DDPG and TD3 solve a bandit through their Python
classes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout import DDPG, SAC, TD3, TQC, CheckpointError
from flatout.algorithms.sac import LOG_STD, squashed
from flatout.config.hyper import SACConfig
from flatout.networks.torsos import NatureCNN
from flatout.randomness import raw_key, wrap_key
from flatout.types import Batch, ObservationSpec
from tests.algorithms.test_continuous import (
    HALF,
    KEY,
    MIDDLE,
    A,
    B,
    Nets,
    acting,
    agent,
    chain,
    compiled,
    follow,
    forward,
    learned,
    noise,
    normal_numbers,
    plain,
    q_values,
    sample,
    start,
)
from tests.algorithms.test_optimiser import ByHand, assert_close, slopes
from tests.tiny_envs import BOX, CONTEXTS, GOALS, Bandit

PIXELS = ObservationSpec((84, 84, 4), "uint8", 255)


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    """Run on a CPU: the tolerances are those of its float32 arithmetic."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


# The policy


def by_hand(out: np.ndarray, normal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return actions and their log densities (Haarnoja et al., 2018b, appendix C, equation 26)."""
    mean, log_std = np.split(out, 2, -1)
    std = np.exp(np.clip(log_std, -20, 2))
    raw = mean + std * normal
    log_cosh = np.logaddexp(raw, -raw) - np.log(2)  # 1 - tanh^2 = 1 / cosh^2
    return np.tanh(raw), (scipy.stats.norm.logpdf(raw, mean, std) + 2 * log_cosh).sum(-1)


sampled = jax.jit(squashed)


@settings(deadline=None, max_examples=60)
@given(st.floats(-2, 2), st.floats(-2, 0.5), st.floats(-2, 2))
def test_densities_are_those_of_the_actions(mean: float, log_std: float, normal: float) -> None:
    """A density is the probability of a small interval around an action, divided by its length."""
    action = math.tanh(mean + math.exp(log_std) * normal)
    near = 1e-5 * (1 - abs(action))
    raw = np.arctanh([action - near, action + near])
    low, high = scipy.stats.norm.cdf(raw, mean, math.exp(log_std))
    out, log_prob = jax.device_get(sampled(np.float32([[mean, log_std]]), np.float32([[normal]])))
    assert float(out[0, 0]) == pytest.approx(action, abs=1e-6)
    assert float(log_prob[0]) == pytest.approx(math.log((high - low) / (2 * near)), abs=2e-3)


def test_components_are_independent_and_deviations_are_clipped() -> None:
    rng = np.random.default_rng(0)
    out, normal = rng.normal(size=(6, 2 * A)), rng.normal(size=(6, A))
    out[:4, A:] = np.array([[-30, 2.5], [5, -21], [2.1, 0.1], [-20.5, 30]])
    assert LOG_STD == (-20, 2)
    action, log_prob = jax.device_get(sampled(np.float32(out), np.float32(normal)))
    wanted = by_hand(out, normal)
    np.testing.assert_allclose(action, wanted[0], atol=1e-5)
    np.testing.assert_allclose(log_prob[2:3], wanted[1][2:3], rtol=1e-3)
    np.testing.assert_allclose(log_prob[4:], wanted[1][4:], rtol=1e-4, atol=1e-4)


@jax.jit
@jax.value_and_grad
def density_and_slopes(x: jax.Array) -> jax.Array:
    return squashed(x, np.zeros((1, 1), np.float32))[1][0]


@pytest.mark.parametrize("raw", [-1000.0, -30.0, 30.0, 1000.0])
def test_densities_and_their_slopes_survive_saturation(raw: float) -> None:
    x = np.float32([[raw, 0.0]])
    # Far out 1 - tanh(raw)^2 is 4 exp(-2 |raw|).
    wanted = -0.5 * math.log(2 * math.pi) + 2 * abs(raw) - math.log(4)
    density, slopes = density_and_slopes(x)
    assert float(density) == pytest.approx(wanted, rel=1e-5)
    np.testing.assert_allclose(slopes, [[2 * np.sign(raw), -1.0]], atol=1e-5)


def test_acting_samples_and_without_noise_takes_the_mean() -> None:
    state, obs, draw = start(agent("sac")), sample(0, 500).obs, noise("sac", 500)
    params = agent("sac").actor(state, agent("sac").hp)._replace(epsilon=np.float32(0))
    out = forward(plain(state)["actor"][0], obs)
    explore, greedy = acting("sac")
    own, _, extras = explore(params, obs, (), draw)
    wanted, _ = by_hand(out, np.asarray(draw.normal))
    np.testing.assert_allclose(own, MIDDLE + HALF * wanted, atol=1e-5)
    assert extras == {}
    wanted = MIDDLE + HALF * np.tanh(out[:, :A])
    np.testing.assert_allclose(greedy(params, obs), wanted, atol=1e-5)


# The update


def reference_update(
    nets: Nets, log_ent: Any, x: Batch, t: int, hyper: SACConfig, optimisers: list[ByHand]
) -> tuple[Nets, Any, dict[str, float], np.ndarray]:
    """Make the update of Haarnoja et al. (2018b, algorithm 1), in Stable-Baselines3's order."""
    drawn = normal_numbers(t - 1, 2 * B * A).reshape(2, B, A)
    critic, actor, temperature = optimisers
    ent_coef = float(np.exp(log_ent))
    action = (x.actions - MIDDLE) / HALF
    next_action, next_log_prob = by_hand(forward(nets["actor"][0], x.next_obs), drawn[0])
    after = q_values(nets["target_critics"], x.next_obs, next_action).min(0)
    y = x.rewards + x.discounts * (after - ent_coef * next_log_prob)  # equation 3

    def critic_loss() -> float:  # equation 5
        found = q_values(nets["critics"], x.obs, action)
        return float((0.5 * x.weights * (found - y) ** 2).mean(-1).sum())

    def actor_loss() -> float:  # equation 9
        chosen, log_prob = by_hand(forward(nets["actor"][0], x.obs), drawn[1])
        lower = q_values(nets["critics"], x.obs, chosen)
        assert 0 < lower.argmin(0).sum() < B  # each is the smaller one somewhere
        return float((ent_coef * log_prob - lower.min(0)).mean())

    found = q_values(nets["critics"], x.obs, action)
    errors = np.abs(found - y).mean(0)
    log_prob = by_hand(forward(nets["actor"][0], x.obs), drawn[1])[1]
    said = {
        "critic_loss": critic_loss(), "td_error": errors.mean(), "q_mean": found[0].mean(),
        "ent_coef": ent_coef, "entropy": -log_prob.mean(), "learning_rate": 0.01,
    }  # fmt: skip
    rate = hyper.critic_learning_rate or 0.02  # both rates have fallen to half by now
    grads = slopes(critic_loss, nets["critics"])
    nets = nets | {"critics": critic.step(nets["critics"], grads, 0.5 * rate)}
    said |= {"grad_norm": critic.norm, "actor_loss": actor_loss()}
    grads = slopes(actor_loss, nets["actor"])
    nets = nets | {"actor": actor.step(nets["actor"], grads, 0.01)}
    if str(hyper.ent_coef).startswith("auto"):  # equation 18, of the logarithm
        target = -A if hyper.target_entropy is None else hyper.target_entropy
        grads = slopes(lambda: float(-(log_ent * (log_prob + target)).mean()), log_ent)
        log_ent = temperature.step(log_ent, grads, 0.01)
    if t % hyper.target_update_interval == 0:
        nets = follow(nets, "critics", hyper.tau)
    return nets, log_ent, said, errors


FIXED: dict[str, Any] = {
    "ent_coef": 0.01, "max_grad_norm": 0.05, "target_update_interval": 3, "tau": 0.5,
}  # fmt: skip
AUTO: dict[str, Any] = {
    "ent_coef": "auto_0.1",
    "target_entropy": -0.7,
    "critic_learning_rate": 0.06,
}


@pytest.mark.parametrize("hyper", [pytest.param(FIXED, marks=pytest.mark.slow), AUTO], ids=str)
def test_updates_are_those_of_the_paper(hyper: dict[str, Any]) -> None:
    algorithm, config = agent("sac", **hyper), SACConfig(**hyper)
    state = start(algorithm)
    given = state.params.log_ent is None
    weight = np.log(algorithm.hp.ent_coef) if given else state.params.log_ent
    nets, log_ent = plain(state), np.asarray(weight, np.float64)
    first = 0.01 if hyper == FIXED else 0.1
    assert float(np.exp(log_ent)) == pytest.approx(first)
    usual = agent("sac")
    assert float(np.exp(usual.init(raw_key(0, 0), usual.hp).params.log_ent)) == 1.0
    optimisers = [ByHand(max_grad_norm=config.max_grad_norm) for _ in range(2)] + [ByHand()]
    for t in range(1, 5):
        batch = sample(t)
        nets, log_ent, said, errors = reference_update(nets, log_ent, batch, t, config, optimisers)
        state, metrics, found = jax.device_get(compiled(algorithm)(state, batch))
        assert_close(plain(state), nets, atol=3e-5)
        if not given:
            assert float(state.params.log_ent) == pytest.approx(float(log_ent), abs=1e-5)
        np.testing.assert_allclose(found, errors, atol=2e-4)  # the new priorities
        assert metrics.keys() == set(algorithm.metrics)
        assert jax.tree.map(float, metrics) == pytest.approx(said, rel=2e-3, abs=1e-5)
    assert (state.counters.updates, state.counters.step) == (4, 500)
    assert (state.opt.ent is None) == (hyper == FIXED)


def test_a_learned_weight_brings_the_entropy_to_its_target() -> None:
    """Actions near the middle pay; the weight decides how close to it the policy stays."""
    batch = sample(0)
    away = np.square((batch.actions - MIDDLE) / HALF).sum(-1)
    batch = batch._replace(
        obs=np.zeros_like(batch.obs), rewards=np.float32(-2 * away), discounts=np.zeros_like(away)
    )
    entropy = learned(agent("sac", **AUTO), batch, 800)["entropy"]
    assert entropy[0] > 0
    assert entropy[-100:].mean() == pytest.approx(-0.7, abs=0.1)


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_values_of_a_chain_depend_on_how_it_ends(ends: str) -> None:
    chain(agent("sac", **FIXED), ends)


def test_images_are_seen_through_convolutions_and_scaled() -> None:
    images = agent("sac", PIXELS)
    assert isinstance(images.shapes.params.actor.torso, NatureCNN)
    assert isinstance(images.shapes.params.critics[0].torso, NatureCNN)
    assert images.shapes.params.critics[0].dense.layers[0].weight.shape == (5, 512 + A)
    frames = jax.ShapeDtypeStruct((B, *PIXELS.shape), np.uint8)
    batch = sample(0)._replace(obs=frames, next_obs=frames)
    jax.eval_shape(images.update, images.shapes, batch, wrap_key(KEY), images.hp)
    state = images.init(raw_key(0, 0), images.hp)
    pixels = np.random.default_rng(0).integers(0, 256, (1, *PIXELS.shape), np.uint8)
    own = jax.jit(lambda s: images.act(images.actor(s, images.hp), pixels, (), None)[0])(state)

    def seen(state: Any) -> jax.Array:
        actor = state.params.actor
        return actor(actor.torso(np.float32(pixels / 255)))[:, :A]

    mean = jax.jit(seen)(state)
    np.testing.assert_allclose(own, MIDDLE + HALF * np.tanh(mean), rtol=1e-4)


# Learning


@pytest.mark.parametrize(
    "kind", [SAC, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (DDPG, TD3, TQC))]
)
def test_a_bandit_is_learned_saved_and_learned_further(kind: Any, tmp_path: Path) -> None:
    hyper: dict[str, Any] = {} if kind in (SAC, TQC) else {"action_noise": 0.2}
    trained = kind(
        lambda: Bandit(BOX), learning_rate=0.005, learning_starts=128, hidden=(32,), batch_size=64,
        tau=0.05, train_freq=16, gradient_steps=16, envs=4, seed=1, buffer_size=2000, steps=768,
        **hyper,
    ).learn()  # fmt: skip
    before = trained.evaluate(8)
    assert before.return_mean > -0.05  # chance is at -0.8
    actions = trained.predict(CONTEXTS, deterministic=True)[0]
    np.testing.assert_allclose((actions - GOALS) / HALF, 0, atol=0.3)
    assert all(one in BOX for one in actions)
    again = kind.load(trained.save(tmp_path / "agent"), lambda: Bandit(BOX))
    assert again.evaluate(8) == before
    np.testing.assert_array_equal(again.predict(CONTEXTS, deterministic=True)[0], actions)
    explored = again.predict(CONTEXTS, deterministic=False)[0]
    assert all(one in BOX for one in explored)
    assert 0 < np.abs(explored - actions).max() < 2
    with pytest.raises(CheckpointError, match=f"holds an agent of {kind.algorithm}") as refused:
        (TD3 if kind is DDPG else DDPG).load(tmp_path / "agent")
    assert "\n" not in str(refused.value)
    again.learn(callback=lambda *_: False)  # stops before the first update
    assert again.summary["updates"] == 0
    np.testing.assert_array_equal(again.predict(CONTEXTS, deterministic=True)[0], actions)
