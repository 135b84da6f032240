"""PPO: its update against a direct implementation of the paper, and what must not change it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.algorithms.base import Algorithm, BuildSpec, State
from flatout.algorithms.common.returns import RunningMoments
from flatout.algorithms.ppo import ppo
from flatout.config.hyper import PPOConfig
from flatout.config.schema import NetworkConfig
from flatout.randomness import raw_key, wrap_key
from flatout.types import (
    ActionSpec,
    ContinuousSpec,
    DiscreteSpec,
    Finals,
    ObservationSpec,
    Trajectory,
)

OBS = ObservationSpec((3,), "float32")
MOVES = DiscreteSpec(3)
BOX = ContinuousSpec((2,), (-1.0, -1.0), (1.0, 1.0))
T, N, KEY = 8, 2, raw_key(0, 1)
Params = dict[str, Any]
Lengths = tuple[int, int]


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    """Run on a CPU: the tolerances are those of its float32 arithmetic."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@functools.cache
def agent(action: ActionSpec = MOVES, total_steps: int = 10_000, **hyper: Any) -> Algorithm:
    """Build PPO, by default with one minibatch and one epoch."""
    config = PPOConfig(**{"batch_size": T * N, "n_epochs": 1, "learning_rate": 0.01} | hyper)
    sizes = {"num_envs": N, "horizon": T, "total_steps": total_steps}
    return ppo(config, BuildSpec(NetworkConfig(hidden=(8,)), OBS, action, **sizes))


def start(algorithm: Algorithm) -> State:
    """Return a fresh state, whose policy is far from uniform, so that updates differ."""
    state = algorithm.init(raw_key(0, 0), algorithm.hp)
    return jax.tree.map(lambda x: x * 30 if x.shape in ((3, 8), (2, 8)) else x, state)


@functools.cache
def compiled(algorithm: Algorithm) -> Any:
    update = jax.jit(algorithm.update)
    return lambda state, x, key: update(state, x, wrap_key(key), algorithm.hp)


def learn(algorithm: Algorithm, state: State, x: Trajectory, key: Any = KEY) -> tuple[State, Any]:
    """Return the state (NumPy) and the metrics after an update."""
    state, metrics, _ = jax.device_get(compiled(algorithm)(state, x, key))
    assert set(metrics) == set(algorithm.metrics)
    return state, {name: float(value) for name, value in metrics.items()}


@functools.cache
def acted(algorithm: Algorithm) -> Any:
    """Return a compiled ``state, obs [T * N, D] -> actions, extras``; noise differs by row."""

    def act(state: State, obs: jax.Array) -> Any:
        draw = jax.vmap(algorithm.noise, (None, None, 0))(wrap_key(KEY), 0, jnp.arange(T * N))
        action, _, extras = algorithm.act(algorithm.actor(state, algorithm.hp), obs, (), draw)
        return action, extras

    return jax.jit(act)


def rollout(algorithm: Algorithm, seed: int = 0, off_policy: float = 0.0) -> Trajectory:
    """Return a trajectory by `start`: env 0 terminates at t = 2, env 1 is truncated at t = 4.

    `off_policy` is the deviation of noise on its log probabilities.
    """
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(T + 1, N, 3)).astype(np.float32)
    action, extras = acted(algorithm)(start(algorithm), obs[:-1].reshape(-1, 3))
    extras = {name: np.array(x).reshape(T, N, *x.shape[1:]) for name, x in extras.items()}
    extras["log_prob"] += (off_policy * rng.normal(size=(T, N))).astype(np.float32)
    terminated, truncated = np.zeros((2, T, N), np.bool_)
    terminated[2, 0] = truncated[4, 1] = True
    return Trajectory(
        obs=obs[:-1],
        actions=np.asarray(action).reshape(T, N, *action.shape[1:]),
        rewards=rng.normal(size=(T, N)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        last_obs=obs[-1],
        finals=Finals(
            rng.normal(size=(N, 3)).astype(np.float32),
            np.asarray([4 * N + 1, T * N], np.int32),  # the second is unused
        ),
        extras=extras,
    )


def plain(state: State) -> Params:
    """Return the networks as plain nested arrays, with which the reference below computes."""
    actor, critic = state.params.networks.actor, state.params.networks.critic
    layers = ((*one.torso.layers, one.head) for one in (actor, critic))
    acting, judging = ([(layer.weight.T, layer.bias) for layer in each] for each in layers)
    return {"actor": acting, "log_std": actor.extra, "critic": judging}


def forward(layers: list[Any], x: Any) -> Any:
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def critic_values(params: Params, obs: np.ndarray) -> np.ndarray:
    for weight, bias in params["critic"][:-1]:
        obs = np.tanh(obs @ weight + bias)
    weight, bias = params["critic"][-1]
    return np.asarray((obs @ weight + bias)[..., 0], np.float64)


def reference_update(params: Params, x: Trajectory, action: ActionSpec, hyper: PPOConfig) -> Params:
    """Make the update of Schulman et al. (2016, 2017) with Stable-Baselines3's losses."""
    v = critic_values(params, x.obs)
    advantage = np.zeros((T, N))
    for env in range(N):
        later = 0.0  # the advantage of the following step
        for t in reversed(range(T)):
            after = x.last_obs[env] if t == T - 1 else x.obs[t + 1, env]
            if x.truncated[t, env]:
                after = x.final_obs[list(x.final_index).index(t * N + env)]
            after = 0.0 if x.terminated[t, env] else critic_values(params, after)
            delta = x.rewards[t, env] + hyper.gamma * after - v[t, env]
            ended = x.terminated[t, env] or x.truncated[t, env]
            later = delta + (0.0 if ended else hyper.gamma * hyper.gae_lambda * later)
            advantage[t, env] = later
    target = advantage + v
    if hyper.normalize_advantage:
        advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)

    def loss(params: Params) -> jax.Array:
        out = forward(params["actor"], x.obs)
        if isinstance(action, DiscreteSpec):
            p = jnp.exp(out) / jnp.exp(out).sum(-1, keepdims=True)
            log_prob = jnp.log(jnp.take_along_axis(p, x.actions[..., None], -1))[..., 0]
            entropy = -(p * jnp.log(p)).sum(-1).mean()
        else:
            std = jnp.exp(params["log_std"])
            log_prob = jax.scipy.stats.norm.logpdf(x.extras["sample"], out, std).sum(-1)
            entropy = (0.5 * jnp.log(2 * jnp.pi * jnp.e * std**2)).sum()
        ratio = jnp.exp(log_prob - x.extras["log_prob"])
        clipped = jnp.clip(ratio, 1 - hyper.clip_range, 1 + hyper.clip_range)
        surrogate = jnp.minimum(ratio * advantage, clipped * advantage)
        value = forward(params["critic"], x.obs)[..., 0]
        error = (target - value) ** 2
        if hyper.clip_range_vf is not None:
            value = v + jnp.clip(value - v, -hyper.clip_range_vf, hyper.clip_range_vf)
            error = jnp.maximum(error, (target - value) ** 2)
        error = error.mean()
        return -surrogate.mean() - hyper.ent_coef * entropy + hyper.vf_coef * error

    clip = optax.clip_by_global_norm(hyper.max_grad_norm or np.inf)
    optimiser = optax.chain(clip, optax.adam(hyper.learning_rate, eps=1e-5))

    @jax.jit
    def steps(params: Any) -> Any:
        def step(_: Any, now: Any) -> Any:
            params, moments = now
            change, moments = optimiser.update(jax.grad(loss)(params), moments)
            return optax.apply_updates(params, change), moments

        return jax.lax.fori_loop(0, hyper.n_epochs, step, (params, optimiser.init(params)))[0]

    return jax.device_get(steps(params))


def assert_close(own: Any, wanted: Any, atol: float = 1e-5) -> None:
    assert jax.tree.structure(own) == jax.tree.structure(wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=1e-5), own, wanted)


def largest_change(before: Any, after: Any) -> float:
    change = jax.tree.map(lambda a, b: np.abs(a - b).max(initial=0.0), after, before)
    return float(max(jax.tree.leaves(change)))


@pytest.mark.parametrize(
    ("action", "hyper"),
    [
        pytest.param(MOVES, {}, marks=pytest.mark.slow),  # the other cases cover it
        (MOVES, {"n_epochs": 3, "vf_coef": 1.0, "max_grad_norm": None, "ent_coef": 0.05}),
        (MOVES, {"normalize_advantage": False, "gamma": 0.9, "gae_lambda": 0.7}),
        (BOX, {"n_epochs": 3, "clip_range_vf": 0.001, "clip_range": 0.1, "ent_coef": 0.01}),
    ],
)
def test_updates_are_those_of_the_paper(action: ActionSpec, hyper: dict[str, Any]) -> None:
    hyper = {"learning_rate": 0.003, "n_epochs": 1} | hyper
    algorithm = agent(action, **hyper)
    state, trajectory = start(algorithm), rollout(algorithm, off_policy=0.3)
    after, metrics = learn(algorithm, state, trajectory)
    wanted = reference_update(plain(state), trajectory, action, PPOConfig(**hyper))
    assert largest_change(plain(state), wanted) > 0.001
    assert_close(plain(after), wanted)
    assert 0 < metrics["clip_fraction"] < 1  # so that clipping is tested
    assert (after.counters.step, after.counters.updates) == (T * N, 1)


def test_every_epoch_uses_every_transition_once_in_the_keys_order() -> None:
    still = 1e-12  # parameters stay, so that minibatches' losses average to the full batch's
    whole = agent(learning_rate=still)
    small = agent(learning_rate=still, batch_size=4, n_epochs=3)
    state, x = start(whole), rollout(whole)
    (first, metrics), (again, _), (other, _) = (
        learn(small, state, x, raw_key(seed, 1)) for seed in (0, 0, 1)
    )
    _, wanted = learn(whole, state, x)
    assert (metrics["updates"], wanted["updates"]) == (3 * T * N / 4, 1)
    losses = ("value_loss", "entropy")
    assert [metrics[x] for x in losses] == pytest.approx([wanted[x] for x in losses], rel=1e-5)
    assert_close(first, again, atol=0.0)
    assert largest_change(first.opt, other.opt) > 0


def test_truncation_bootstraps_from_the_final_observation_and_termination_does_not() -> None:
    algorithm = agent()
    state, x = start(algorithm), rollout(algorithm)
    never = np.zeros((T, N), np.bool_)
    after = {}
    for kind in ("terminated", "truncated"):
        ends = {"terminated": never, "truncated": never} | {kind: x.truncated}
        for shift in (0, 1):
            finals = x.finals._replace(obs=x.finals.obs + np.float32(shift))
            y = x._replace(finals=finals, **ends)
            after[kind, shift] = plain(learn(algorithm, state, y)[0])
    assert largest_change(after["terminated", 0], after["terminated", 1]) == 0.0
    assert largest_change(after["truncated", 0], after["truncated", 1]) > 1e-4
    assert largest_change(after["truncated", 0], after["terminated", 0]) > 1e-4


def test_linear_schedules_reach_their_ends_with_the_run() -> None:
    algorithm = agent(total_steps=2 * T * N, learning_rate="lin_0.01", clip_range="lin_0.3_0.1")
    state, trajectory = start(algorithm), rollout(algorithm)
    half, metrics = learn(algorithm, state, trajectory)
    assert (metrics["learning_rate"], metrics["clip_range"]) == pytest.approx((0.005, 0.2))
    end, metrics = learn(algorithm, half, trajectory)
    assert (metrics["learning_rate"], metrics["clip_range"]) == pytest.approx((0.0, 0.1))
    assert largest_change(plain(half), plain(end)) == 0.0


def test_a_small_target_kl_stops_after_the_first_update() -> None:
    one = agent()
    state, trajectory = start(one), rollout(one)
    wanted, _ = learn(one, state, trajectory)
    stopped, metrics = learn(agent(n_epochs=4, target_kl=1e-5), state, trajectory)
    assert metrics["updates"] == 1
    assert_close(plain(stopped), plain(wanted), atol=1e-6)


def test_the_critics_learning_rate_changes_only_the_critic() -> None:
    state, trajectory = start(agent()), rollout(agent())
    slow = plain(learn(agent(), state, trajectory)[0])
    fast = plain(learn(agent(critic_learning_rate=0.05), state, trajectory)[0])
    assert_close(fast["actor"], slow["actor"], atol=1e-7)
    before = plain(state)["critic"]
    wanted = jax.tree.map(lambda old, new: old + 5 * (new - old), before, slow["critic"])
    assert_close(fast["critic"], wanted)


def masked(x: Trajectory, lengths: Lengths, horizon: int, seed: int, scale: float) -> Trajectory:
    """Return episodes of these lengths (env 0 terminated, env 1 truncated), padded by garbage."""
    rng = np.random.default_rng(seed)
    valid = np.arange(horizon)[:, None] < np.asarray(lengths)

    def pad(own: np.ndarray) -> np.ndarray:
        garbage = (scale * rng.normal(size=(horizon, *own.shape[1:]))).astype(own.dtype)
        garbage[:T][valid[:T]] = own[valid[:T]]
        return garbage

    last = np.arange(horizon)[:, None] == np.asarray(lengths) - 1
    return x._replace(
        **{name: pad(getattr(x, name)) for name in ("obs", "actions", "rewards")},
        terminated=last & [True, False],
        truncated=last & [False, True],
        finals=x.finals._replace(
            index=np.asarray([(lengths[1] - 1) * N + 1, horizon * N], np.int32)
        ),
        extras={name: pad(value) for name, value in x.extras.items()},
        valid=valid,
    )


@settings(deadline=None, max_examples=10)
@given(st.tuples(*[st.integers(1, T)] * 2), st.integers(0, 99), st.sampled_from([1.0, 1e6]))
@pytest.mark.parametrize("batch", [2 * T * N, pytest.param(4, marks=pytest.mark.slow)])
def test_padding_changes_nothing(batch: int, lengths: Lengths, seed: int, scale: float) -> None:
    hyper = {"rollout_episodes": 1, "n_epochs": 2}
    hyper |= {"normalize_observation": True, "normalize_reward": True}
    padded = agent(batch_size=batch, **hyper)
    state, x = start(padded), rollout(agent(), off_policy=0.3)
    clean, metrics = learn(padded, state, masked(x, lengths, 2 * T, 0, 0.0))
    dirty, same = learn(padded, state, masked(x, lengths, 2 * T, seed, scale))
    assert metrics["updates"] == 2 * -(-sum(lengths) // batch)  # no update of padding alone
    assert clean.counters.step == sum(lengths)
    assert_close(dirty, clean)
    assert same == pytest.approx(metrics, rel=1e-4, abs=1e-4)
    if batch > T * N:  # without minibatches, less padding changes nothing either
        short = agent(batch_size=T * N, **hyper)
        assert_close(learn(short, state, masked(x, lengths, T, seed, scale))[0], clean)


def standardised(x: Trajectory, mean: Any, deviation: Any) -> Trajectory:
    """Return a trajectory with normalised observations."""
    finals = x.finals._replace(obs=(x.finals.obs - mean) / deviation)
    names = ("obs", "last_obs")
    parts = {name: (getattr(x, name) - mean) / deviation for name in names}
    return x._replace(finals=finals, **parts)


def test_observations_are_normalised_by_earlier_statistics() -> None:
    state, x = start(agent()), rollout(agent())
    mean, deviation = np.float32([1, -1, 0]), np.float32([2, 0.5, 1])
    wanted, _ = learn(agent(), state, standardised(x, mean, deviation))
    old = RunningMoments(mean, deviation**2, np.float32(T * N))
    seen = state._replace(params=state.params._replace(obs_moments=old))
    after, _ = learn(agent(normalize_observation=True), seen, x)
    assert_close(plain(after), plain(wanted))
    moments, centre = after.params.obs_moments, x.obs.mean((0, 1))
    np.testing.assert_allclose(moments.mean, (mean + centre) / 2, atol=1e-4)
    squares = (deviation**2 + mean**2 + np.square(x.obs).mean((0, 1))) / 2
    np.testing.assert_allclose(moments.var, squares - np.square((mean + centre) / 2), atol=1e-3)


def test_the_first_trajectory_is_normalised_by_its_own_statistics() -> None:
    """It is collected before there are any. Values and log probabilities are then those of its
    normalised observations: the ratios of the first update are 1."""
    algorithm = agent(normalize_observation=True)
    state, x = start(algorithm), rollout(agent())
    signs = np.random.default_rng(0).permuted(np.tile([[1.0], [-1.0]], (T * N // 2, 3)), axis=0)
    mean = np.float32([1000, -20, 0])
    x = standardised(x, -mean, np.float32(1))  # far from 0
    x = x._replace(obs=mean + signs.reshape(T, N, 3).astype(np.float32))  # the deviation is 1
    actions, extras = acted(algorithm)(state, x.obs.reshape(-1, 3))
    actions, extras = jax.device_get((actions, extras))
    x = x._replace(
        actions=actions.reshape(T, N), extras={"log_prob": extras["log_prob"].reshape(T, N)}
    )
    after, metrics = learn(algorithm, state, x)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    without = state._replace(params=state.params._replace(obs_moments=None))
    x = standardised(x, mean, np.float32(1))
    log_prob = jax.nn.log_softmax(forward(plain(state)["actor"], x.obs))
    known = np.take_along_axis(np.asarray(log_prob), x.actions[..., None], -1)[..., 0]
    wanted, _ = learn(agent(), without, x._replace(extras={"log_prob": known}))
    assert_close(plain(after), plain(wanted))
    _, extras = acted(algorithm)(after, x.obs.reshape(-1, 3))
    assert (np.asarray(extras["log_prob"]) < 0).all()  # known, once there are statistics


def test_constant_inputs_and_actions_and_clipped_inputs_are_measured() -> None:
    algorithm = agent(normalize_observation=True)
    state, x = start(algorithm), rollout(agent())
    names = ("constant/", "constant_actions", "clipped_inputs")

    def measured(x: Trajectory, old: RunningMoments) -> tuple[float, ...]:
        seen = state._replace(params=state.params._replace(obs_moments=old))
        _, metrics = learn(algorithm, seen, x)
        return tuple(metrics[name] for name in names)

    near = RunningMoments(np.zeros(3, np.float32), np.ones(3, np.float32), np.float32(T * N))
    far = near._replace(mean=np.float32([0, 0, 100]))
    assert measured(x, near) == (0.0, 0.0, 0.0)
    assert measured(x, far) == pytest.approx((0.0, 0.0, 1 / 3))
    still = x._replace(actions=np.ones_like(x.actions), obs=np.full_like(x.obs, 2.0))
    assert measured(still, near) == (0.0, 1.0, 0.0)  # the observation after the last step differs
    still = still._replace(last_obs=np.full_like(x.last_obs, 2.0))
    assert measured(still, near) == (1.0, 1.0, 0.0)
