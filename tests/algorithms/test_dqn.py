"""DQN: its update against the papers in NumPy, exploration, targets and learning."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from flatout import DQN, SAC, CheckpointError, UsageError
from flatout.algorithms.base import Algorithm, BuildSpec, State
from flatout.algorithms.dqn import DQNActorParams, DQNParams, Noise, dqn
from flatout.config.hyper import DQNConfig
from flatout.config.schema import NetworkConfig
from flatout.networks.torsos import NatureCNN
from flatout.randomness import raw_key, wrap_key
from flatout.types import Batch, ContinuousSpec, DiscreteSpec, ObservationSpec
from tests import tiny
from tests.algorithms.test_optimiser import ByHand, assert_close, slopes
from tests.tiny_envs import CONTEXTS, Bandit, Clock

OBS = ObservationSpec((3,), "float32")
PIXELS = ObservationSpec((84, 84, 4), "uint8", 255)
BOX = ContinuousSpec((2,), (-1.0, -1.0), (1.0, 1.0))
ACTIONS, B, KEY = 3, 12, raw_key(0, 1)
SIZES: dict[str, int] = {"num_envs": 2, "total_steps": 1000}


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    """Run on a CPU: the tolerances are those of its float32 arithmetic."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@functools.cache
def agent(
    obs: ObservationSpec = OBS, hidden: tuple[int, ...] = (5, 4), custom: Any = None, **hyper: Any
) -> Algorithm:
    config = DQNConfig(**{"learning_rate": "lin_0.02", "learning_starts": 0} | hyper)
    network = NetworkConfig(hidden=hidden)
    return dqn(config, BuildSpec(network, obs, DiscreteSpec(ACTIONS), network=custom, **SIZES))


def start(algorithm: Algorithm) -> State:
    """Return a state half-way through the run.

    Values differ between observations, and the target is another network.
    """
    state, other = (algorithm.init(raw_key(seed, 0), algorithm.hp) for seed in (0, 5))
    params = DQNParams(state.params.network, other.params.network)
    params = jax.tree.map(lambda x: 3 * x if x.ndim == 2 else x, params)
    return State(params, state.opt, state.counters._replace(step=np.int32(500)))


@functools.cache
def compiled(algorithm: Algorithm) -> Any:
    update = jax.jit(algorithm.update)
    return lambda state, batch: update(state, batch, wrap_key(KEY), algorithm.hp)


def sample(seed: int) -> Batch:
    """Return transitions of 0 to 3 steps before their bootstrap, with unequal weights."""
    rng = np.random.default_rng(seed)
    return Batch(
        obs=rng.normal(size=(B, 3)).astype(np.float32),
        actions=rng.integers(0, ACTIONS, B, np.int32),
        rewards=(2 * rng.normal(size=B)).astype(np.float32),
        next_obs=rng.normal(size=(B, 3)).astype(np.float32),
        discounts=rng.choice(np.float32([0, 0.9, 0.9**2, 0.9**3]), B),
        weights=rng.uniform(0.1, 1, B).astype(np.float32),
    )


def plain(network: Any) -> dict[str, Any]:
    """Return a Q-network as new float64 arrays, with which the reference below computes."""
    layers = {"body": [*network.torso.layers], "head": [network.head]}
    if network.baseline is not None:
        layers["value"] = [network.baseline]
    return {
        name: [[np.array(each, np.float64) for each in (one.weight.T, one.bias)] for one in some]
        for name, some in layers.items()
    }


def q_values(net: dict[str, Any], x: np.ndarray) -> np.ndarray:
    for weight, bias in net["body"]:
        x = np.tanh(x @ weight + bias)
    q = x @ net["head"][0][0] + net["head"][0][1]
    if "value" not in net:
        return q
    value = x @ net["value"][0][0] + net["value"][0][1]
    return value + q - q.mean(-1, keepdims=True)  # Wang et al. (2016), equation 9


def reference_update(
    net: dict[str, Any], target: dict[str, Any], x: Batch, hyper: dict[str, Any], optimiser: ByHand
) -> tuple[dict[str, Any], np.ndarray, float]:
    """Make the update of Mnih et al. (2015), algorithm 1, with the options of the other papers.

    Returns:
        The network, the errors ``[B]``, and the loss.
    """
    after = q_values(target, x.next_obs)
    if hyper.get("double"):  # van Hasselt et al. (2016), equation 4
        best = q_values(net, x.next_obs).argmax(-1)
        assert (best != after.argmax(-1)).any()
        bootstrap = after[range(B), best]
    else:
        bootstrap = after.max(-1)
    y = x.rewards + x.discounts * bootstrap

    def errors() -> np.ndarray:
        return q_values(net, x.obs)[range(B), x.actions] - y

    def loss() -> float:
        size = np.abs(errors())
        each = np.where(size < 1, 0.5 * size**2, size - 0.5)
        each = size**2 if hyper.get("loss") == "mse" else each
        return float((x.weights * each).mean())

    found, total = errors(), loss()
    assert 0 < (np.abs(found) < 1).sum() < B  # errors in both pieces of the Huber loss
    return optimiser.step(net, slopes(loss, net), 0.01), found, total


@pytest.mark.parametrize(
    "hyper",
    [
        {},
        {"loss": "mse", "max_grad_norm": None},
        {"double": True, "max_grad_norm": 0.1},
        {"dueling": True},
        {"double": True, "dueling": True, "loss": "mse", "optimizer": "rmsprop"},
        {"optimizer": "nesterov", "max_grad_norm": 0.5},
    ],
    ids=str,
)
def test_updates_are_those_of_the_papers(hyper: dict[str, Any]) -> None:
    algorithm = agent(**hyper)
    state = start(algorithm)
    net, target = plain(state.params.network), plain(state.params.target)
    optimiser = ByHand(hyper.get("optimizer", "adam"), hyper.get("max_grad_norm", 10.0))
    for seed in range(3):
        batch = sample(seed)
        highest = q_values(net, batch.obs).max(-1).mean()
        net, errors, loss = reference_update(net, target, batch, hyper, optimiser)
        state, metrics, found = jax.device_get(compiled(algorithm)(state, batch))
        assert metrics.keys() == set(algorithm.metrics)
        assert_close(plain(state.params.network), net, atol=2e-5)
        np.testing.assert_allclose(found, np.abs(errors), atol=1e-4)  # the new priorities
        wanted = {
            "loss": loss, "td_error": np.abs(errors).mean(), "q_max": highest,
            "grad_norm": optimiser.norm, "learning_rate": 0.01,  # half-way through the run
        }  # fmt: skip
        assert jax.tree.map(float, metrics) == pytest.approx(wanted, rel=1e-3, abs=1e-5)
    assert_close(plain(state.params.target), target, atol=0.0)  # no update moves it
    assert (state.counters.updates, state.counters.step) == (3, 500)


def test_states_keep_their_shapes() -> None:
    for algorithm in (agent(), agent(double=True, dueling=True, optimizer="rmsprop", tau=0.5)):
        hp = algorithm.hp
        state = algorithm.init(raw_key(0, 0), hp)
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(state))
        assert eqx.tree_equal(state.params.target, state.params.network)
        after, _, _ = jax.eval_shape(algorithm.update, state, sample(0), wrap_key(KEY), hp)
        later, _ = jax.eval_shape(algorithm.advance, state, jnp.int32(4), hp)
        wanted = jax.tree.map(lambda x: (x.shape, x.dtype), algorithm.shapes)
        for tree in (state, after, later):
            assert jax.tree.map(lambda x: (x.shape, x.dtype), tree) == wanted
        chosen = algorithm.actor(state, hp)
        own = state.params.network, state.counters.epsilon  # and no target
        assert {id(x) for x in jax.tree.leaves(chosen)} == {id(x) for x in jax.tree.leaves(own)}


def epsilons(algorithm: Algorithm, steps: int, count: int) -> list[float]:
    """Return epsilon at the start and after each of `count` advances by `steps`."""

    @jax.jit
    def advances(state: State, hp: Any) -> Any:
        def advance(state: State, _: Any) -> Any:
            state, said = algorithm.advance(state, jnp.int32(steps), hp)
            return state, (said, algorithm.actor(state, hp).epsilon)

        first = algorithm.actor(state, hp).epsilon
        return first, jax.lax.scan(advance, state, length=count)[1]

    state = algorithm.init(raw_key(0, 0), algorithm.hp)
    first, (said, own) = jax.device_get(advances(state, algorithm.hp))
    assert list(said) == ["epsilon"]
    np.testing.assert_array_equal(said["epsilon"], own)
    return [float(first), *said["epsilon"].tolist()]


@pytest.mark.parametrize(
    ("hyper", "fall"),
    [
        ({"exploration_fraction": 0.5}, 500),
        ({"exploration_fraction": 0.0}, 0),
        ({"exploration_steps": 200, "exploration_fraction": 0.9}, 200),
        ({"exploration_steps": 5000}, 5000),
        ({"exploration_initial_eps": 0.3, "exploration_final_eps": 0.7}, 100),
    ],
)
def test_epsilon_falls_linearly_after_the_warm_up(hyper: dict[str, Any], fall: int) -> None:
    first, last = hyper.get("exploration_initial_eps", 1), hyper.get("exploration_final_eps", 0.05)
    steps = np.arange(0, 1001, 20)
    wanted = np.interp(steps, [0, max(fall, 1e-9)], [first, last])
    np.testing.assert_allclose(epsilons(agent(**hyper), 20, 50), wanted, atol=1e-6)
    wanted[steps < 100] = 1.0
    late = agent(learning_starts=100, **hyper)
    np.testing.assert_allclose(epsilons(late, 20, 50), wanted, atol=1e-6)


@functools.cache
def noise(envs: int, steps: int) -> Noise:
    """Return the noise of all steps and environments, ``[steps, envs]``."""
    over = jax.vmap(jax.vmap(agent().noise, (None, 0, None)), (None, None, 0))
    key = wrap_key(raw_key(3, 2))
    return jax.device_get(jax.jit(over)(key, np.arange(envs), np.arange(steps)))


acting = jax.jit(lambda *given: agent().act(*given))


def acted(
    epsilon: float, q: Any = (0.5, 2.0, -1.0), valued: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Act for 3000 steps in which all action values are `q`; return action counts and q_max."""
    network = jax.tree.map(np.zeros_like, agent().init(raw_key(0, 0), agent().hp).params.network)
    network = eqx.tree_at(lambda n: n.head.bias, network, np.float32(q))
    draw = jax.tree.map(np.ravel, noise(30, 100))
    draw = draw._replace(valued=np.full(3000, valued))
    obs = np.zeros((3000, *OBS.shape), np.float32)
    action, _, extras = acting(DQNActorParams(network, np.float32(epsilon)), obs, (), draw)
    return np.bincount(action, minlength=ACTIONS), np.asarray(extras["q_max"])


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.6])
def test_actions_are_random_with_probability_epsilon(epsilon: float) -> None:
    counts, q_max = acted(epsilon)
    share = np.full(ACTIONS, epsilon / ACTIONS) + (1 - epsilon) * np.eye(ACTIONS)[1]
    deviation = np.sqrt(share * (1 - share) * 3000)
    assert (np.abs(counts - share * 3000) <= 4 * deviation).all()
    np.testing.assert_allclose(q_max, 2.0)


def test_the_network_does_not_run_where_every_action_is_random() -> None:
    for q in ((0.5, 2.0, -1.0), (np.nan,) * ACTIONS):
        counts, q_max = acted(1.0, q)
        assert len(counts) == ACTIONS
        assert scipy.stats.chisquare(counts).pvalue > 1e-3
        assert np.isnan(q_max).all()


def test_every_eighth_step_has_values_and_the_same_actions() -> None:
    assert noise(30, 100).valued.all(1).tolist() == [step % 8 == 0 for step in range(100)]
    for epsilon in (1.0, 0.6):
        counts, q_max = acted(epsilon, valued=True)
        assert counts.tolist() == acted(epsilon)[0].tolist()
        np.testing.assert_allclose(q_max, 2.0)


def test_episodes_of_random_actions_have_values_too(tmp_path: Path) -> None:
    settings = tiny.python("dqn", steps=256, run_dir=str(tmp_path / "run"), quiet=True)
    DQN("CartPole-v1", exploration_final_eps=1.0, **settings).learn()
    lines = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    values = [json.loads(line)["q_max"] for line in lines]
    assert len(values) >= 4
    assert None not in values


def test_without_noise_actions_are_greedy_whatever_epsilon() -> None:
    algorithm = agent()
    params = algorithm.actor(start(algorithm), algorithm.hp)._replace(epsilon=np.float32(1.0))
    obs = sample(0).obs
    action, _, extras = acting(params, obs, (), None)
    q = q_values(plain(params.network), obs)
    assert action.tolist() == q.argmax(-1).tolist()
    assert len(set(action.tolist())) > 1
    np.testing.assert_allclose(extras["q_max"], q.max(-1), rtol=1e-5)


def test_noise_is_a_function_of_key_environment_and_step() -> None:
    draw, key, block = jax.jit(agent().noise), wrap_key(raw_key(3, 2)), noise(30, 100)
    for env, step in ((0, 0), (29, 0), (0, 99), (17, 31)):
        one = jax.device_get(draw(key, env, step))
        assert (one.explore, one.action) == (block.explore[step, env], block.action[step, env])
    assert len(np.unique(block.explore)) == 3000
    assert scipy.stats.kstest(np.ravel(block.explore), "uniform").pvalue > 1e-3
    assert scipy.stats.chisquare(np.bincount(np.ravel(block.action))).pvalue > 1e-3
    other = jax.device_get(draw(wrap_key(raw_key(4, 2)), 0, 0))
    assert other.explore != block.explore[0, 0]


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_the_target_moves_where_an_interval_of_environment_steps_is_crossed(tau: float) -> None:
    algorithm = agent(tau=tau, target_update_interval=10)
    state, moved, advance = start(algorithm), list[int](), jax.jit(algorithm.advance)
    gap = jax.tree.map(np.subtract, state.params.target, state.params.network)
    crossed = {55: 3}  # three intervals crossed at once are three moves
    for steps in (4, 4, 4, 7, 1, 35, 5, 1):  # to 4, 8, 12, 19, 20, 55, 60, 61
        before, state = state, jax.device_get(advance(state, np.int32(steps), algorithm.hp)[0])
        if not eqx.tree_equal(before.params.target, state.params.target):
            moved.append(int(state.counters.step) - 500)
            left = (1 - tau) ** crossed.get(moved[-1], 1)
            gap = jax.tree.map(lambda x: left * x, gap)  # noqa: B023
        now = jax.tree.map(np.subtract, state.params.target, state.params.network)
        assert_close(now, gap, atol=1e-6)
    assert moved == (
        [12] if tau == 1.0 else [12, 20, 55, 60]
    )  # after one copy, copying again changes nothing


@pytest.mark.parametrize(("ends", "v0", "v1"), [("terminated", 2, 2), ("truncated", 8 / 3, 10 / 3)])
def test_values_of_a_chain_depend_on_how_it_ends(ends: str, v0: float, v1: float) -> None:
    """The rewards of the two steps are 1 and 2; the discount is 1/2."""
    algorithm = agent(hidden=(), learning_rate="lin_0.3_0.01", target_update_interval=20)
    states = np.eye(3, dtype=np.float32)[:2]
    batch = Batch(
        obs=states[[0, 1, 0, 1]],
        actions=np.int32([0, 0, 1, 1]),
        rewards=np.float32([1, 2, 0, 1]),  # action 1 pays 1 less
        next_obs=states[[1, 0, 1, 0]],
        discounts=np.float32([0.5, 0.5 * (ends == "truncated")] * 2),
        weights=np.ones(4, np.float32),
    )

    @jax.jit
    def learned(state: State, batch: Batch) -> State:
        def once(_: Any, state: State) -> State:
            state, _, _ = algorithm.update(state, batch, wrap_key(KEY), algorithm.hp)
            return algorithm.advance(state, jnp.int32(2), algorithm.hp)[0]

        return jax.lax.fori_loop(0, 500, once, state)

    state = jax.device_get(learned(algorithm.init(raw_key(0, 0), algorithm.hp), batch))
    q = q_values(plain(state.params.network), states)
    np.testing.assert_allclose(q[:, :2], [[v0, v0 - 1], [v1, v1 - 1]], atol=0.02)


def test_box_actions_are_refused_with_a_list_of_suitable_algorithms() -> None:
    with pytest.raises(UsageError, match=r"dqn needs Discrete.*sac, td3, ddpg or ppo") as refused:
        dqn(DQNConfig(), BuildSpec(NetworkConfig(), OBS, BOX, **SIZES))
    assert "\n" not in str(refused.value)


def test_images_and_custom_networks_learn() -> None:
    images = agent(PIXELS)
    assert isinstance(images.shapes.params.network.torso, NatureCNN)
    assert images.shapes.params.network.head.weight.shape == (ACTIONS, 512)
    pixels = np.random.default_rng(0).integers(0, 256, (1, 84, 84, 4), np.uint8)
    state = images.init(raw_key(0, 0), images.hp)
    acting = jax.jit(
        lambda state: images.act(images.actor(state, images.hp), pixels, (), None)[2]["q_max"]
    )

    def seen(state: Any) -> jax.Array:
        network = state.params.network
        return network(network.torso(np.float32(pixels / 255))).max()

    wanted = jax.jit(seen)(state)
    assert float(np.asarray(acting(state))[0]) == pytest.approx(float(wanted), rel=1e-4)
    batch = sample(0)._replace(obs=np.repeat(pixels, B, 0), next_obs=np.repeat(pixels, B, 0))
    jax.eval_shape(images.update, state, batch, wrap_key(KEY), images.hp)
    custom = agent(custom=lambda key, shape: eqx.nn.MLP(shape[0], 7, 16, 1, key=key))
    assert custom.shapes.params.network.head.weight.shape == (ACTIONS, 7)
    state = custom.init(raw_key(0, 0), custom.hp)
    after, _, _ = jax.device_get(compiled(custom)(state, sample(0)))
    nets = state.params.network, after.params.network
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), *nets)
    assert min(jax.tree.leaves(moved)) > 1e-3


HYPER: dict[str, Any] = {
    "learning_rate": 0.01, "learning_starts": 32, "hidden": (16,), "buffer_size": 512, "envs": 4,
    "train_freq": 16, "gradient_steps": 16, "target_update_interval": 32, "seed": 1,
    "exploration_fraction": 0.5,
}  # fmt: skip


def test_a_bandit_is_learned_saved_and_learned_further(tmp_path: Path) -> None:
    trained = DQN(Bandit, **HYPER).learn(256)
    assert trained.evaluate(8).returns == (1.0,) * 8
    assert trained.predict(CONTEXTS, deterministic=True)[0].tolist() == [6, 7]
    assert trained.predict(CONTEXTS[1], deterministic=True)[0] == 7
    again = DQN.load(trained.save(tmp_path / "agent"), Bandit)
    assert again.predict(CONTEXTS, deterministic=True)[0].tolist() == [6, 7]
    assert again.evaluate(8) == trained.evaluate(8)
    explored = again.predict(np.tile(CONTEXTS, (200, 1)), deterministic=False)[0]
    assert 0 < np.mean(explored.reshape(-1, 2) != [6, 7]) < 0.2  # epsilon is 0.05 by now
    with pytest.raises(CheckpointError, match="holds an agent of dqn") as refused:
        SAC.load(tmp_path / "agent")
    assert "\n" not in str(refused.value)
    again.learn(
        16
    )  # ends before the first update, so that only the loaded network knows the contexts
    assert again.summary["updates"] == 0
    assert again.predict(CONTEXTS, deterministic=True)[0].tolist() == [6, 7]


@pytest.mark.parametrize(("ends", "worth"), [("terminated", 1.0), ("truncated", 2.0)])
def test_truncation_bootstraps_and_termination_does_not(ends: str, worth: float) -> None:
    seen = list[float]()
    DQN(lambda: Clock(ends), **HYPER, gamma=0.5, tau=0.5).learn(
        512, callback=lambda progress, metrics: seen.append(metrics.get("train/q_max", 0.0))
    )
    assert seen[-1] == pytest.approx(worth, abs=0.05)
