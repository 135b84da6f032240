"""TD3 and DDPG against their papers in NumPy, and the bounded actions that they share with SAC."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from math import inf, nan
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

from flatout import UsageError
from flatout.algorithms.base import Algorithm, BuildSpec, State
from flatout.algorithms.common.continuous import Bounds, ContinuousActorParams
from flatout.algorithms.sac import sac
from flatout.algorithms.td3 import td3
from flatout.config.hyper import HYPER
from flatout.config.schema import NetworkConfig
from flatout.randomness import normals, raw_key, wrap_key
from flatout.types import Batch, ContinuousSpec, DiscreteSpec, ObservationSpec
from tests.algorithms.test_optimiser import ByHand, assert_close, slopes
from tests.tiny_envs import BOX

OBS = ObservationSpec((3,), "float32")
ACTIONS = ContinuousSpec((2,), tuple(BOX.low.tolist()), tuple(BOX.high.tolist()), "float64")
MIDDLE, HALF = (BOX.low + BOX.high) / 2, (BOX.high - BOX.low) / 2
A, B, KEY = 2, 12, raw_key(0, 1)
NAMES = ("ddpg", "td3", "sac")
Nets = dict[str, list[Any]]


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    """Run on a CPU: the tolerances are those of its float32 arithmetic."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@functools.cache
def agent(name: str, obs: ObservationSpec = OBS, custom: Any = None, **hyper: Any) -> Algorithm:
    config = HYPER[name](**{"learning_rate": "lin_0.02", "learning_starts": 0} | hyper)
    sizes: dict[str, int] = {"num_envs": 2, "total_steps": 1000}
    build, hidden = sac if name == "sac" else td3, NetworkConfig(hidden=(5, 4))
    return build(config, BuildSpec(hidden, obs, ACTIONS, network=custom, **sizes))


@functools.cache
def compiled(algorithm: Algorithm) -> Any:
    update = jax.jit(algorithm.update)
    return lambda state, batch: update(state, batch, wrap_key(KEY), algorithm.hp)


@functools.partial(jax.jit, static_argnums=1)
def drawn(update: jax.Array, count: int) -> jax.Array:
    return normals(wrap_key(KEY), jnp.int32(0), update, count)


def normal_numbers(update: int, count: int) -> np.ndarray:
    """Return the noise of an update, float64."""
    return np.asarray(drawn(np.int32(update), count), np.float64)


@functools.cache
def acting(name: str) -> Any:
    """Return `act` with noise and without, both compiled."""
    act = agent(name).act
    return jax.jit(act), jax.jit(lambda params, obs: act(params, obs, (), None)[0])


def learned(algorithm: Algorithm, batch: Batch, times: int) -> dict[str, np.ndarray]:
    """Return the metrics ``[times]`` of `times` updates, spread over the run of 1000 steps."""
    state = algorithm.init(raw_key(0, 0), algorithm.hp)
    steps = (1000 * np.arange(times) // times).astype(np.int32)
    return jax.device_get(updates(algorithm)(state, batch, steps, algorithm.hp))


@functools.cache
def updates(algorithm: Algorithm) -> Any:
    """Return a compiled ``state, batch, steps, hp -> metrics`` of one update at each step."""

    @jax.jit
    def learn(state: State, batch: Batch, steps: jax.Array, hp: Any) -> Any:
        def update(state: State, step: jax.Array) -> Any:
            state, metrics, _ = algorithm.update(at(state, step), batch, wrap_key(KEY), hp)
            return state, metrics

        return jax.lax.scan(update, state, steps)[1]

    return learn


def sample(seed: int, rows: int = B) -> Batch:
    """Return transitions of 0 to 3 steps before their bootstrap, with unequal weights."""
    rng = np.random.default_rng(seed)
    return Batch(
        obs=rng.normal(size=(rows, 3)).astype(np.float32),
        actions=(MIDDLE + HALF * rng.uniform(-1, 1, (rows, A))).astype(np.float32),
        rewards=rng.normal(size=rows).astype(np.float32),
        next_obs=rng.normal(size=(rows, 3)).astype(np.float32),
        discounts=rng.choice(np.float32([0, 0.9, 0.9**2, 0.9**3]), rows),
        weights=rng.uniform(0.1, 1, rows).astype(np.float32),
    )


def start(algorithm: Algorithm) -> State:
    """Return a state half-way through the run.

    Outputs differ between inputs, and the targets are other networks.
    """
    state, other = (algorithm.init(raw_key(seed, 0), algorithm.hp) for seed in (0, 5))
    params, names = state.params, ("target_actor", "target_critics")
    networks: dict[str, Any] = {n: getattr(other.params, n) for n in names if hasattr(params, n)}
    networks |= {"actor": params.actor, "critics": params.critics}
    networks = jax.tree.map(lambda x: 3 * x if x.ndim == 2 else x, networks)
    return at(state._replace(params=params._replace(**networks)), np.int32(500))


def at(state: State, step: Any) -> State:
    """Return the state at an environment step."""
    return state._replace(counters=state.counters._replace(step=step))


def plain(state: State) -> Nets:
    """Return all networks as new float64 arrays, with which the references compute."""
    params = state.params

    def layers(trunk: Any) -> list[Any]:
        each = (*trunk.dense.layers, trunk.head)
        return [[np.array(x, np.float64) for x in (one.weight.T, one.bias)] for one in each]

    names = [n for n in ("actor", "target_actor") if hasattr(params, n)]
    nets = {name: [layers(getattr(params, name))] for name in names}
    return nets | {n: [*map(layers, getattr(params, n))] for n in ("critics", "target_critics")}


def forward(layers: list[Any], *x: np.ndarray) -> np.ndarray:
    out = np.concatenate(x, -1)
    for weight, bias in layers[:-1]:
        out = np.tanh(out @ weight + bias)
    return out @ layers[-1][0] + layers[-1][1]


def q_values(critics: list[Any], obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Return action values ``[critics, B]``."""
    return np.stack([forward(critic, obs, action)[:, 0] for critic in critics])


def follow(nets: Nets, name: str, tau: float) -> Nets:
    """Return the networks with one target moved."""
    pair = nets[f"target_{name}"], nets[name]
    return nets | {f"target_{name}": jax.tree.map(lambda t, p: (1 - tau) * t + tau * p, *pair)}


def reference_update(
    nets: Nets, x: Batch, t: int, hyper: Any, optimisers: tuple[ByHand, ByHand]
) -> tuple[Nets, dict[str, float], np.ndarray]:
    """Make the update of Fujimoto et al. (2018), algorithm 1, or of Lillicrap et al. (2016)."""
    twin, delay = hasattr(hyper, "policy_delay"), getattr(hyper, "policy_delay", 1)
    action = (x.actions - MIDDLE) / HALF
    next_action = np.tanh(forward(nets["target_actor"][0], x.next_obs))
    if twin:
        noise = normal_numbers(t - 1, B * A).reshape(B, A)
        reach = hyper.target_noise_clip
        smooth = np.clip(hyper.target_policy_noise * noise, -reach, reach)
        assert 0 < (np.abs(smooth) == reach).sum() < smooth.size  # some noise is clipped
        next_action = np.clip(next_action + smooth, -1, 1)
        assert reach < 0.9 or (np.abs(next_action) == 1).any()  # and some actions are at the bounds
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
    rate = hyper.critic_learning_rate or 0.02  # both rates have fallen to half by now
    grads = slopes(critic_loss, nets["critics"])
    nets = nets | {"critics": critic.step(nets["critics"], grads, 0.5 * rate)}
    if t % delay == 0:
        said["actor_loss"] = actor_loss()
        grads = slopes(actor_loss, nets["actor"])
        nets = nets | {"actor": actor.step(nets["actor"], grads, 0.01)}
        if t // delay % hyper.target_update_interval == 0:
            nets = follow(follow(nets, "actor", hyper.tau), "critics", hyper.tau)
    return nets, said | {"grad_norm": critic.norm, "learning_rate": 0.01}, errors


COPIES: dict[str, Any] = {"tau": 1.0, "target_update_interval": 3, "max_grad_norm": 0.05}
DELAYS: dict[str, Any] = {"target_noise_clip": 0.2, "critic_learning_rate": 0.06, "tau": 0.3}


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        pytest.param("ddpg", {}, marks=pytest.mark.slow),
        ("ddpg", COPIES),
        ("td3", DELAYS),
        ("td3", {"target_noise_clip": 0.9, "target_policy_noise": 0.9, "policy_delay": 3}),
    ],
    ids=str,
)
def test_updates_are_those_of_the_papers(name: str, hyper: dict[str, Any]) -> None:
    algorithm = agent(name, **hyper)
    state, config = start(algorithm), HYPER[name](**hyper)
    nets, last, most = plain(state), 0.0, config.max_grad_norm
    optimisers = ByHand(max_grad_norm=most), ByHand(max_grad_norm=most)
    for t in range(1, 5):
        batch = sample(t)
        nets, said, errors = reference_update(nets, batch, t, config, optimisers)
        state, metrics, found = jax.device_get(compiled(algorithm)(state, batch))
        assert_close(plain(state), nets, atol=2e-5)
        np.testing.assert_allclose(found, errors, atol=1e-4)  # the new priorities
        last = said.setdefault("actor_loss", last)
        assert metrics.keys() == set(algorithm.metrics)
        assert jax.tree.map(float, metrics) == pytest.approx(said, rel=1e-3, abs=1e-5)
    assert (state.counters.updates, state.counters.step) == (4, 500)


@pytest.mark.parametrize("name", NAMES)
def test_states_keep_their_shapes_and_start_the_same_on_every_device(name: str) -> None:
    algorithm = agent(name)
    state = algorithm.init(raw_key(0, 0), algorithm.hp)
    with jax.default_device(jax.devices("cpu")[1]):
        assert eqx.tree_equal(agent(name).init(raw_key(0, 0), agent(name).hp), state)
    other = algorithm.init(raw_key(1, 0), algorithm.hp)
    assert not eqx.tree_equal(other.params.actor, state.params.actor)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(state))
    assert eqx.tree_equal(state.params.target_critics, state.params.critics)
    hp = algorithm.hp
    after, _, _ = jax.eval_shape(algorithm.update, state, sample(0), wrap_key(KEY), hp)
    later, _ = jax.eval_shape(algorithm.advance, state, jnp.int32(4), hp)
    wanted = jax.tree.map(lambda x: (x.shape, x.dtype), algorithm.shapes)
    for tree in (state, after, later):
        assert jax.tree.map(lambda x: (x.shape, x.dtype), tree) == wanted
    chosen = algorithm.actor(state, hp)  # acting takes no critic
    assert eqx.tree_equal(chosen.actor, state.params.actor)
    assert {id(x) for x in jax.tree.leaves(chosen)} == {
        id(x) for x in jax.tree.leaves((state.params.actor, chosen.epsilon, chosen.noise))
    }
    assert (chosen.noise is None) == (name == "sac")
    if name != "sac":
        assert chosen.noise == hp.action_noise


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("learning_starts", [0, 100])
def test_actions_are_random_until_learning_starts(name: str, learning_starts: int) -> None:
    algorithm = agent(name, learning_starts=learning_starts)
    state, seen = algorithm.init(raw_key(0, 0), algorithm.hp), list[float]()
    advance = jax.jit(lambda state: algorithm.advance(state, np.int32(50), algorithm.hp)[0])
    for _ in range(4):
        seen.append(float(algorithm.actor(state, algorithm.hp).epsilon))
        state = jax.device_get(advance(state))
    assert seen == ([1, 1, 0, 0] if learning_starts else [0] * 4)


def untrained(name: str, seed: int) -> ContinuousActorParams:
    """Return the acting parameters of a fresh state."""
    algorithm = agent(name)
    return algorithm.actor(algorithm.init(raw_key(seed, 0), algorithm.hp), algorithm.hp)


@functools.cache
def noise(name: str, rows: int) -> Any:
    """Return the noise of one step in `rows` environments, ``[rows, A]`` each."""
    over = jax.vmap(agent(name).noise, (None, 0, None))
    return jax.device_get(jax.jit(over)(wrap_key(raw_key(3, 2)), np.arange(rows), np.int32(7)))


@pytest.mark.parametrize("name", NAMES)
def test_the_warm_up_is_uniform_and_runs_no_network(name: str) -> None:
    params = untrained(name, 0)
    broken = jax.tree.map(lambda x: np.full_like(x, np.nan), params)._replace(epsilon=np.float32(1))
    draw = noise(name, 2000)
    action, _, extras = acting(name)[0](broken, np.zeros((2000, 3), np.float32), (), draw)
    assert extras == {}
    for own in ((np.asarray(action) - BOX.low) / (BOX.high - BOX.low)).T:
        assert scipy.stats.kstest(own, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(np.asarray(action).T)[0, 1]) < 0.1
    draw_one, key = jax.jit(agent(name).noise), wrap_key(raw_key(3, 2))
    one = draw_one(key, 1234, 7)  # a function of these three alone
    np.testing.assert_allclose(one.uniform, draw.uniform[1234], rtol=1e-6)
    np.testing.assert_allclose(one.normal, draw.normal[1234], rtol=1e-5)
    other = jax.device_get(draw_one(key, 1234, 8))
    assert not np.isin(np.concatenate(other), np.concatenate(draw)).any()


def test_exploration_is_gaussian_around_the_actor_and_cut_at_the_bounds() -> None:
    algorithm = agent("td3", action_noise=0.8)
    state, draw, obs = start(algorithm), noise("td3", 500), sample(0, 500).obs
    params = algorithm.actor(state, algorithm.hp)._replace(epsilon=np.float32(0))
    action, _, _ = jax.jit(algorithm.act)(params, obs, (), draw)
    mean = np.tanh(forward(plain(state)["actor"][0], obs))
    wanted = np.clip(mean + 0.8 * np.asarray(draw.normal), -1, 1)
    np.testing.assert_allclose(action, MIDDLE + HALF * wanted, atol=1e-5)
    assert 0 < (np.abs(wanted) == 1).mean() < 0.9
    assert scipy.stats.kstest(np.ravel(draw.normal), "norm").pvalue > 1e-3
    np.testing.assert_allclose(acting("td3")[1](params, obs), MIDDLE + HALF * mean, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 99), st.floats(0, 1e6), st.sampled_from([0, 1, None]))
@pytest.mark.parametrize("name", NAMES)
def test_no_action_leaves_the_space(name: str, seed: int, scale: float, epsilon: Any) -> None:
    explore, greedy = acting(name)
    params = untrained(name, seed)
    params = jax.tree.map(lambda x: np.float32(scale) * x, params)
    params, obs = params._replace(epsilon=np.float32(epsilon or 0)), sample(seed).obs
    draw = noise(name, B)
    action = greedy(params, obs) if epsilon is None else explore(params, obs, (), draw)[0]
    for one in ACTIONS.separate(np.asarray(action)):
        assert one in BOX


@settings(deadline=None, max_examples=100)
@given(
    st.integers(-(10**7), 10**7),
    st.integers(1, 10**7),
    st.sampled_from(["float32", "float64", "int32"]),
    st.floats(-1, 1, width=32),
)
def test_actions_are_scaled_to_their_box_and_back(
    low: int, wide: int, dtype: str, where: float
) -> None:
    ends = np.array([[low], [low + wide + 10]]) / 10  # tenths, which float32 cannot represent
    with warnings.catch_warnings(action="ignore"):  # Gymnasium warns of lost digits
        space = spaces.Box(*ends.astype(dtype), dtype=dtype)
    spec = ContinuousSpec((1,), tuple(space.low.tolist()), tuple(space.high.tolist()), dtype)
    bounds = Bounds(spec, "sac")
    for own in np.float32([[where], [1], [-1]]):
        given = np.asarray(bounds.to_environment(own))[None]
        assert spec.separate(given)[0] in space
        rounding = 4 * np.spacing(np.float32(np.abs([spec.low, spec.high]).max(0))) / bounds.half
        back = np.asarray(bounds.from_environment(given[0]))
        assert (np.abs(back - own) <= rounding + 1e-6).all()


@pytest.mark.parametrize(
    ("low", "high"),
    [(-inf, inf), (0.0, inf), (-inf, 0.0), (nan, 1.0), (-1e39, 1.0), (1.0, 1.0), (1.0, -1.0)],
)
@pytest.mark.parametrize("name", NAMES)
def test_actions_without_usable_bounds_are_refused(name: str, low: float, high: float) -> None:
    spec = ContinuousSpec((2,), (-1.0, low), (1.0, high), "float64")
    said = rf"^{name} needs actions with finite bounds, low below high, .*TransformAction\.$"
    build, config = (sac if name == "sac" else td3), HYPER[name]()
    with pytest.raises(UsageError, match=said):
        build(config, BuildSpec(NetworkConfig(), OBS, spec, 1, 9))
    with pytest.raises(UsageError, match=rf"^{name} needs Box actions; use dqn or ppo .*\.$"):
        build(config, BuildSpec(NetworkConfig(), OBS, DiscreteSpec(2), 1, 9))


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0 + 1e-9), (1e8, 1e8 + 10.0)])
@pytest.mark.parametrize("name", NAMES)
def test_bounds_too_close_for_single_precision_are_refused(
    name: str, low: float, high: float
) -> None:
    spec = ContinuousSpec((2,), (-1.0, low), (1.0, high), "float64")
    said = rf"^{name} .* fewer than 16 numbers between {low!r} and {high!r}, the bounds of action 1"
    build, config = (sac if name == "sac" else td3), HYPER[name]()
    with pytest.raises(UsageError, match=said.replace("+", r"\+")):
        build(config, BuildSpec(NetworkConfig(), OBS, spec, 1, 9))


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
@pytest.mark.parametrize(("name", "hyper"), [("ddpg", COPIES), ("td3", DELAYS)], ids=str)
def test_values_of_a_chain_depend_on_how_it_ends(name: str, hyper: Any, ends: str) -> None:
    chain(agent(name, **hyper), ends)


def chain(algorithm: Algorithm, ends: str) -> None:
    """Learn the values of a chain of two steps with rewards 1 and 2 and discount 1/2."""
    states = np.tile(np.eye(3, dtype=np.float32)[:2], (B // 2, 1))
    batch = sample(0)._replace(
        obs=states,
        rewards=np.float32([1, 2] * (B // 2)),
        next_obs=states[::-1],
        discounts=np.float32([0.5, 0.5 * (ends == "truncated")] * (B // 2)),
    )
    metrics = learned(algorithm, batch, 600)
    # If it is truncated, v0 = 1 + v1 / 2 and v1 = 2 + v0 / 2.
    wanted = (8 / 3 + 10 / 3) / 2 if ends == "truncated" else 2.0
    assert metrics["q_mean"][-1] == pytest.approx(wanted, abs=0.05)
    assert metrics["td_error"][-1] < 0.05


@pytest.mark.parametrize("name", NAMES)
def test_custom_networks_come_before_the_hidden_layers(name: str) -> None:
    custom = agent(name, custom=lambda key, shape: eqx.nn.MLP(shape[0], 7, 16, 1, key=key))
    state = custom.init(raw_key(0, 0), custom.hp)
    params = state.params
    assert params.actor.dense.layers[0].weight.shape == (5, 7)
    assert params.critics[0].dense.layers[0].weight.shape == (5, 7 + A)
    first = [net.torso.layers[0].weight for net in (params.actor, *params.critics)]
    assert not np.array_equal(first[0], first[1])  # each network is drawn separately
    jax.eval_shape(custom.update, state, sample(0), wrap_key(KEY), custom.hp)
