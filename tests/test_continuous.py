"""TD3 and DDPG against their papers in NumPy, and what they share with SAC: bounded actions."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout import DDPG, PPO, SAC, TD3, CheckpointError, UsageError
from flatout.algorithms.base import Algorithm, raw_key, wrap_key
from flatout.algorithms.continuous import Bounds
from flatout.algorithms.sac import sac
from flatout.algorithms.td3 import td3
from flatout.config import NetworkConfig
from flatout.envs.host import to_environment
from flatout.hyper import HYPER
from flatout.networks import NatureCNN
from flatout.types import Batch, ContinuousSpec, DiscreteSpec, ObservationSpec
from tests.test_optimiser import ByHand, assert_close, slopes
from tests.tiny_envs import BOX, CONTEXTS, GOALS, Bandit

OBS = ObservationSpec((3,), "float32")
PIXELS = ObservationSpec((84, 84, 4), "uint8", 255)
ACTIONS = ContinuousSpec((2,), tuple(BOX.low.tolist()), tuple(BOX.high.tolist()), "float64")
MIDDLE, HALF = (BOX.low + BOX.high) / 2, (BOX.high - BOX.low) / 2
A, B, KEY = 2, 12, raw_key(0, 1)
NAMES = ("ddpg", "td3", "sac")
Nets = dict[str, list[Any]]


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    """These tolerances are those of float32 on a CPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@functools.cache
def agent(
    name: str, obs: ObservationSpec = OBS, hidden: tuple[int, ...] = (5, 4), custom: Any = None,
    **hyper: Any,
) -> Algorithm:  # fmt: skip
    config = HYPER[name](**{"learning_rate": "lin_0.02", "learning_starts": 0} | hyper)
    return (sac if name == "sac" else td3)(
        config, NetworkConfig(hidden=hidden), obs, ACTIONS,
        num_envs=2, total_steps=1000, network=custom,
    )  # fmt: skip


@functools.cache
def compiled(algorithm: Algorithm) -> Any:
    return jax.jit(lambda state, batch: algorithm.update(state, batch, wrap_key(KEY)))


@functools.cache
def acting(name: str) -> Any:
    """Acting with noise, and without."""
    act = agent(name).act
    return jax.jit(act), jax.jit(lambda params, obs: act(params, obs, (), None)[0])


def sample(seed: int, rows: int = B) -> Batch:
    """Transitions of 0 to 3 steps before their bootstrap, of unequal importance."""
    rng = np.random.default_rng(seed)
    return Batch(
        obs=rng.normal(size=(rows, 3)).astype(np.float32),
        actions=(MIDDLE + HALF * rng.uniform(-1, 1, (rows, A))).astype(np.float32),
        rewards=rng.normal(size=rows).astype(np.float32),
        next_obs=rng.normal(size=(rows, 3)).astype(np.float32),
        discounts=rng.choice(np.float32([0, 0.9, 0.9**2, 0.9**3]), rows),
        weights=rng.uniform(0.1, 1, rows).astype(np.float32),
    )


def start(algorithm: Algorithm) -> Any:
    """Half-way, with outputs that differ between inputs and other networks as targets."""
    state, other = algorithm.init(raw_key(0, 0)), algorithm.init(raw_key(5, 0))
    networks = {n: getattr(state, n) for n in ("actor", "critics")}
    networks |= {
        f"target_{n}": getattr(other, n) for n in networks if hasattr(state, f"target_{n}")
    }
    networks = jax.tree.map(lambda x: 3 * x if x.ndim == 2 else x, networks)
    return state._replace(**networks, step=np.int32(500))


def plain(state: Any) -> Nets:
    """All networks as float64 arrays of their own: what the references compute with."""

    def layers(trunk: Any) -> list[Any]:
        each = (*trunk.dense.layers, trunk.head)
        return [[np.array(x, np.float64) for x in (one.weight, one.bias)] for one in each]

    names = [n for n in ("actor", "target_actor") if hasattr(state, n)]
    nets = {name: [layers(getattr(state, name))] for name in names}
    return nets | {n: [*map(layers, getattr(state, n))] for n in ("critics", "target_critics")}


def forward(layers: list[Any], *x: np.ndarray) -> np.ndarray:
    out = np.concatenate(x, -1)
    for weight, bias in layers[:-1]:
        out = np.tanh(out @ weight + bias)
    return out @ layers[-1][0] + layers[-1][1]


def q_values(critics: list[Any], obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """``[critics, B]``."""
    return np.stack([forward(critic, obs, action)[:, 0] for critic in critics])


def mixed(old: list[Any], new: list[Any], tau: float) -> list[Any]:
    return jax.tree.map(lambda t, p: (1 - tau) * t + tau * p, old, new)


def reference_update(
    nets: Nets, x: Batch, t: int, hyper: Any, optimisers: tuple[ByHand, ByHand]
) -> tuple[Nets, dict[str, float], np.ndarray]:
    """Fujimoto et al. (2018), algorithm 1; without its three additions Lillicrap et al. (2016)."""
    twin, delay = hasattr(hyper, "policy_delay"), getattr(hyper, "policy_delay", 1)
    action = (x.actions - MIDDLE) / HALF
    next_action = np.tanh(forward(nets["target_actor"][0], x.next_obs))
    if twin:
        noise = jax.random.normal(jax.random.fold_in(wrap_key(KEY), t - 1), (B, A))
        reach = hyper.target_noise_clip
        smooth = np.clip(hyper.target_policy_noise * np.asarray(noise), -reach, reach)
        assert 0 < (np.abs(smooth) == reach).sum() < smooth.size  # some are clipped
        next_action = np.clip(next_action + smooth, -1, 1)
    y = x.rewards + x.discounts * q_values(nets["target_critics"], x.next_obs, next_action).min(0)

    def critic_loss() -> float:
        found = q_values(nets["critics"], x.obs, action)
        return float((x.weights * (found - y) ** 2).mean(-1).sum())

    def actor_loss() -> float:
        chosen = np.tanh(forward(nets["actor"][0], x.obs))
        return -float(q_values(nets["critics"], x.obs, chosen)[0].mean())

    found = q_values(nets["critics"], x.obs, action)
    errors = np.abs(found - y).mean(0)
    said = {"critic_loss": critic_loss(), "td_error": errors.mean(), "q_mean": found[0].mean()}
    critic, actor = optimisers
    rate = hyper.critic_learning_rate or 0.02  # both fall to half of it by half-way
    grads = slopes(critic_loss, nets["critics"])
    nets = nets | {"critics": critic.step(nets["critics"], grads, 0.5 * rate)}
    if t % delay == 0:
        said["actor_loss"] = actor_loss()
        grads = slopes(actor_loss, nets["actor"])
        nets = nets | {"actor": actor.step(nets["actor"], grads, 0.01)}
        if t // delay % hyper.target_update_interval == 0:
            for name in ("actor", "critics"):
                moved = mixed(nets[f"target_{name}"], nets[name], hyper.tau)
                nets = nets | {f"target_{name}": moved}
    return nets, said | {"grad_norm": critic.norm, "learning_rate": 0.01}, errors


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("ddpg", {}),
        ("ddpg", {"tau": 1.0, "target_update_interval": 3, "max_grad_norm": 0.05}),
        ("td3", {}),
        ("td3", {"policy_delay": 3, "critic_learning_rate": 0.06, "tau": 0.3}),
        ("td3", {"policy_delay": 1, "target_policy_noise": 0.5, "target_noise_clip": 0.2}),
    ],
    ids=str,
)
def test_updates_are_those_of_the_papers(name: str, hyper: dict[str, Any]) -> None:
    algorithm = agent(name, **hyper)
    state, config = start(algorithm), HYPER[name](**hyper)
    nets, last = plain(state), 0.0
    optimisers = (
        ByHand(max_grad_norm=config.max_grad_norm),
        ByHand(max_grad_norm=config.max_grad_norm),
    )
    for t in range(1, 5):
        # Gaussian beyond two deviations and a half is rare: more rows would hide a wrong clip.
        batch = sample(t)
        nets, said, errors = reference_update(nets, batch, t, config, optimisers)
        state, metrics, found = compiled(algorithm)(state, batch)
        assert_close(plain(state), nets, atol=2e-5)
        np.testing.assert_allclose(found, errors, atol=1e-4)  # the new priorities
        last = said.setdefault("actor_loss", last)
        assert metrics.keys() == set(algorithm.metrics)
        assert jax.tree.map(float, metrics) == pytest.approx(said, rel=1e-3, abs=1e-5)
    assert (state.updates, state.step) == (4, 500)


@pytest.mark.parametrize("name", NAMES)
def test_states_keep_their_shapes_and_start_the_same_on_every_device(name: str) -> None:
    algorithm = agent(name)
    state = algorithm.init(raw_key(0, 0))
    with jax.default_device(jax.devices("cpu")[1]):
        assert eqx.tree_equal(agent(name).init(raw_key(0, 0)), state)
    assert not eqx.tree_equal(algorithm.init(raw_key(1, 0)).actor, state.actor)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(state))
    assert eqx.tree_equal(state.target_critics, state.critics)
    after, _, _ = jax.eval_shape(algorithm.update, state, sample(0), wrap_key(KEY))
    later, said = jax.eval_shape(algorithm.advance, state, jnp.int32(4))
    wanted = jax.tree.map(lambda x: (x.shape, x.dtype), algorithm.shapes)
    for tree in (state, after, later):
        assert jax.tree.map(lambda x: (x.shape, x.dtype), tree) == wanted
    assert said == {}


@pytest.mark.parametrize("name", NAMES)
def test_acting_takes_only_the_actor(name: str) -> None:
    state = agent(name).init(raw_key(0, 0))
    chosen = jax.tree.leaves(agent(name).actor(state))
    assert {id(x) for x in chosen} == {id(x) for x in jax.tree.leaves((state.actor, state.epsilon))}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("learning_starts", [0, 100])
def test_actions_are_random_until_learning_starts(name: str, learning_starts: int) -> None:
    algorithm = agent(name, learning_starts=learning_starts)
    state, seen = algorithm.init(raw_key(0, 0)), list[float]()
    for _ in range(4):
        seen.append(float(state.epsilon))
        state, _ = algorithm.advance(state, jnp.int32(50))
    assert seen == ([1, 1, 0, 0] if learning_starts else [0] * 4)


def noise(name: str, rows: int) -> Any:
    """One step's draws in so many environments, ``[rows, A]`` each."""
    over = jax.vmap(agent(name).noise, (None, 0, None))
    return jax.jit(over)(wrap_key(raw_key(3, 2)), np.arange(rows), 7)


@pytest.mark.parametrize("name", NAMES)
def test_the_warm_up_is_uniform_and_runs_no_network(name: str) -> None:
    params = agent(name).actor(agent(name).init(raw_key(0, 0)))
    broken = jax.tree.map(lambda x: np.full_like(x, np.nan), params)._replace(epsilon=np.float32(1))
    draw = noise(name, 2000)
    action, _, extras = acting(name)[0](broken, np.zeros((2000, 3), np.float32), (), draw)
    assert extras == {}
    for own, low, high in zip(np.asarray(action).T, BOX.low, BOX.high, strict=True):
        assert scipy.stats.kstest((own - low) / (high - low), "uniform").pvalue > 1e-3
        assert ((own >= low) & (own <= high)).all()
    assert abs(np.corrcoef(np.asarray(action).T)[0, 1]) < 0.1
    one = agent(name).noise(wrap_key(raw_key(3, 2)), 1234, 7)  # a function of these three alone
    np.testing.assert_allclose(one.uniform, draw.uniform[1234], rtol=1e-6)
    np.testing.assert_allclose(one.normal, draw.normal[1234], rtol=1e-5)
    other = agent(name).noise(wrap_key(raw_key(3, 2)), 1234, 8)
    assert not np.isin(np.concatenate(other), np.concatenate(draw)).any()


def test_exploration_is_gaussian_around_the_actor_and_cut_at_the_bounds() -> None:
    algorithm = agent("td3", action_noise=0.8)
    state, draw, obs = start(algorithm), noise("td3", 500), sample(0, 500).obs
    params = algorithm.actor(state)._replace(epsilon=np.float32(0))
    action, _, _ = jax.jit(algorithm.act)(params, obs, (), draw)
    mean = np.tanh(forward(plain(state)["actor"][0], obs))
    wanted = np.clip(mean + 0.8 * np.asarray(draw.normal), -1, 1)
    np.testing.assert_allclose(action, MIDDLE + HALF * wanted, atol=1e-5)
    assert 0 < (np.abs(wanted) == 1).mean() < 0.9
    assert scipy.stats.kstest(np.ravel(draw.normal), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(np.ravel(draw.normal), np.ravel(draw.uniform))[0, 1]) < 0.1
    np.testing.assert_allclose(acting("td3")[1](params, obs), MIDDLE + HALF * mean, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 99), st.floats(0, 1e6), st.sampled_from([0, 1, None]))
@pytest.mark.parametrize("name", NAMES)
def test_no_action_leaves_the_space(name: str, seed: int, scale: float, epsilon: Any) -> None:
    explore, greedy = acting(name)
    params = agent(name).actor(agent(name).init(raw_key(seed, 0)))
    params = jax.tree.map(lambda x: np.float32(scale) * x, params)
    params, obs = params._replace(epsilon=np.float32(epsilon or 0)), sample(seed).obs
    draw = noise(name, B)
    action = greedy(params, obs) if epsilon is None else explore(params, obs, (), draw)[0]
    for one in to_environment(ACTIONS, np.asarray(action)):
        assert one in BOX


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.01, 1e6)), min_size=1, max_size=3),
    st.sampled_from(["float32", "float64", "int32"]),
    st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3),
)
def test_boxes_are_reached_and_left_again(box: Any, dtype: str, where: list[float]) -> None:
    low, width = np.array(box).T
    with warnings.catch_warnings(action="ignore"):  # Gymnasium's, on losing digits
        space = spaces.Box(low.astype(dtype), (low + width).astype(dtype) + np.dtype(dtype).type(1))
    spec = ContinuousSpec(space.shape, *(tuple(map(float, x)) for x in (space.low, space.high)),
                          dtype)  # fmt: skip
    bounds, action = Bounds(spec, "sac"), np.float32(where[: len(low)])
    for own in (action, np.ones_like(action), -np.ones_like(action)):
        given = np.asarray(bounds.to_environment(own))[None]
        assert to_environment(spec, given)[0] in space
        rounding = 4 * np.spacing(np.float32(np.abs([spec.low, spec.high]).max(0))) / bounds.half
        back = np.asarray(bounds.from_environment(given[0]))
        assert (np.abs(back - own) <= rounding + 1e-6).all()


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("low", "high"),
    [(-INF, INF), (0.0, INF), (-INF, 0.0), (NAN, 1.0), (-1e39, 1.0), (1.0, 1.0), (1.0, -1.0)],
)
@pytest.mark.parametrize("name", NAMES)
def test_actions_without_usable_bounds_are_refused(name: str, low: float, high: float) -> None:
    spec = ContinuousSpec((2,), (-1.0, low), (1.0, high), "float64")
    said = rf"^{name} needs actions with finite bounds, low below high, .*TransformAction\.$"
    build, config = (sac if name == "sac" else td3), HYPER[name]()
    with pytest.raises(UsageError, match=said):
        build(config, NetworkConfig(), OBS, spec, num_envs=1, total_steps=9)
    with pytest.raises(UsageError, match=rf"^{name} needs Box actions; use dqn or ppo .*\.$"):
        build(config, NetworkConfig(), OBS, DiscreteSpec(2), num_envs=1, total_steps=9)


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
@pytest.mark.parametrize("name", NAMES)
def test_a_chain_is_worth_what_its_end_says(name: str, ends: str) -> None:
    """1 for the step to the second state, 2 for the one that ends it; discount 1/2."""
    hyper = {"ent_coef": 1e-6} if name == "sac" else {}
    algorithm = agent(name, hidden=(), learning_rate="lin_0.2_0.01", tau=0.2, **hyper)
    states = np.tile(np.eye(3, dtype=np.float32)[:2], (B // 2, 1))
    batch = sample(0)._replace(
        obs=states,
        rewards=np.float32([1, 2] * (B // 2)),
        next_obs=states[::-1],
        discounts=np.float32([0.5, 0.5 * (ends == "truncated")] * (B // 2)),
    )
    state = algorithm.init(raw_key(0, 0))
    for _ in range(600):
        state, metrics, _ = compiled(algorithm)(state._replace(step=state.updates), batch)
    # Where only time ends it, v0 = 1 + v1 / 2 and v1 = 2 + v0 / 2.
    wanted = (8 / 3 + 10 / 3) / 2 if ends == "truncated" else 2.0
    assert float(metrics["q_mean"]) == pytest.approx(wanted, abs=0.02)
    assert float(metrics["td_error"]) < 0.02


@pytest.mark.parametrize("name", NAMES)
def test_custom_networks_learn_before_the_hidden_layers(name: str) -> None:
    hyper = {"policy_delay": 1} if name == "td3" else {}
    custom = agent(name, custom=lambda k, s: eqx.nn.MLP(s[0], 7, 16, 1, jnp.tanh, key=k), **hyper)
    state = custom.init(raw_key(0, 0))
    assert state.actor.dense.layers[0].weight.shape == (7, 5)
    assert state.critics[0].dense.layers[0].weight.shape == (7 + A, 5)
    first = [net.torso.layers[0].weight for net in (state.actor, *state.critics)]
    assert not np.array_equal(first[0], first[1])  # each draws its own
    after, _, _ = compiled(custom)(state, sample(0))
    for net in ("actor", "critics"):
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), *(getattr(s, net)
                             for s in (state, after)))  # fmt: skip
        assert min(jax.tree.leaves(moved)) > 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_images_are_seen_through_convolutions_and_scaled(name: str) -> None:
    images = agent(name, PIXELS)
    assert isinstance(images.shapes.actor.torso, NatureCNN)
    assert isinstance(images.shapes.critics[0].torso, NatureCNN)
    assert images.shapes.critics[0].dense.layers[0].weight.shape == (512 + A, 5)
    frames = jax.ShapeDtypeStruct((B, *PIXELS.shape), np.uint8)
    batch = sample(0)._replace(obs=frames, next_obs=frames)
    jax.eval_shape(images.update, images.shapes, batch, wrap_key(KEY))
    if name == "sac":
        state = images.init(raw_key(0, 0))
        pixels = np.random.default_rng(0).integers(0, 256, (1, *PIXELS.shape), np.uint8)
        own = jax.jit(lambda s: images.act(images.actor(s), pixels, (), None)[0])(state)
        mean = jax.jit(lambda s: s.actor(np.float32(pixels / 255)))(state)[:, :A]
        np.testing.assert_allclose(own, MIDDLE + HALF * np.tanh(mean), rtol=1e-4)


@pytest.mark.parametrize("kind", [DDPG, TD3, SAC])
def test_a_bandit_is_learned_kept_and_learned_further(kind: Any, tmp_path: Path) -> None:
    hyper: dict[str, Any] = {} if kind is SAC else {"action_noise": 0.2}
    trained = kind(
        lambda: Bandit(BOX), learning_rate=0.005, learning_starts=128, hidden=(32,), batch_size=64,
        tau=0.05, train_freq=16, gradient_steps=16, envs=4, seed=1, buffer_size=2000, **hyper,
    ).learn(1024)  # fmt: skip
    before = trained.evaluate(8)
    assert before.return_mean > -0.05  # chance is at -0.8
    actions = trained.predict(CONTEXTS)
    np.testing.assert_allclose((actions - GOALS) / HALF, 0, atol=0.3)
    assert all(one in BOX for one in actions)
    again = kind.load(trained.save(tmp_path / "agent"), lambda: Bandit(BOX))
    assert again.evaluate(8) == before
    np.testing.assert_array_equal(again.predict(CONTEXTS), actions)
    with pytest.raises(CheckpointError, match=f"holds an agent of {kind.algorithm}") as refused:
        (TD3 if kind is DDPG else DDPG).load(tmp_path / "agent")
    assert "\n" not in str(refused.value)
    with pytest.raises(CheckpointError, match=f"holds an agent of {kind.algorithm}"):
        PPO.load(tmp_path / "agent")
    again.learn(16)  # before the first update: only what was loaded can know the goals
    assert again.summary["updates"] == 0
    np.testing.assert_array_equal(again.predict(CONTEXTS), actions)
