"""PPO and A2C with a memory: learning sees the carries with which a trajectory was played."""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.maze_env import t_maze

from flatout import DQN, PPO, Agent, UsageError
from flatout.algorithms.base import BuildSpec, State
from flatout.algorithms.common.actor_critic import evaluate
from flatout.algorithms.common.on_policy import OnPolicy
from flatout.algorithms.common.returns import generalised_advantages
from flatout.config.hyper import PPOConfig
from flatout.config.schema import NetworkConfig
from flatout.networks.memory import CELLS, Cell, forgotten, remember, step
from flatout.types import DiscreteSpec, Finals, ObservationSpec, Trajectory
from tests.recurrent import Signs

OBS, MOVES = ObservationSpec((2,), "float32"), DiscreteSpec(3)
T, N = 8, 3


def sequence(
    name: str, features: int, size: int, rng: np.random.Generator
) -> tuple[Cell, np.ndarray, Any, np.ndarray]:
    """Draw a cell, T steps of features, the carry before them, and the steps that begin an
    episode."""
    cell = CELLS[name](rng, features, size)
    x = rng.normal(size=(T, N, features)).astype(np.float32)
    begins = rng.random((T, N)) < 0.3
    carry = tuple(rng.normal(size=(N, size)).astype(np.float32) for _ in cell.initial(N))
    return cell, x, carry, begins


@pytest.mark.parametrize("name", CELLS)
def test_a_scan_with_resets_equals_steps_one_by_one(name: str) -> None:
    """Within rounding: some CPUs compute the steps of a scan in another order than a single one."""
    cell, x, carry, begins = sequence(name, 5, 16, np.random.default_rng(0))
    one_step = jax.jit(lambda x, carry, begins: step(cell, x, forgotten(carry, begins)))
    together = jax.jit(functools.partial(remember, cell))(x, carry, begins)
    for t in range(T):
        carry = one_step(x[t], carry, begins[t])
        for one, all_steps in zip(carry, together, strict=True):
            np.testing.assert_allclose(one, all_steps[t], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CELLS)
def test_gradients_are_those_of_steps_one_by_one(name: str) -> None:
    rng = np.random.default_rng(0)
    cell, x, carry, begins = sequence(name, 3, 4, rng)
    weights = rng.normal(size=(T, N, 4)).astype(np.float32)

    def plain(cell: Any, x: Any, carry: Any, begins: Any) -> Any:
        after = []
        for t in range(T):
            carry = step(cell, x[t], forgotten(carry, begins[t]))
            after.append(carry)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *after)

    def gradient(run: Any) -> Any:
        def total(cell: Any, x: Any, carry: Any) -> Any:
            return sum((leaf * weights).sum() for leaf in run(cell, x, carry, begins))

        return jax.jit(jax.grad(total, (0, 1, 2)))(cell, x, carry)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradient(remember),
        gradient(plain),
    )  # fmt: skip


def played(base: OnPolicy, state: State, carry: Any) -> tuple[Trajectory, Any, Any, Any]:
    """Play T steps of N environments with random observations and ends. Return the trajectory, the
    values before and after each step, computed one step at a time, and the critic's last carry."""
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(T + 1, N, 2)).astype(np.float32)
    terminated, truncated = rng.random((T, N)) < 0.2, rng.random((T, N)) < 0.3
    truncated &= ~terminated
    terminated[3, 0], truncated[-1, 1], truncated[2, 2] = True, True, True
    terminated[-1, 1] = terminated[2, 2] = False
    index = np.flatnonzero(truncated)
    index = np.append(index, [T * N] * 2).astype(np.int32)  # two places are unused
    finals = rng.normal(size=(len(index), 2)).astype(np.float32)
    act, forget = jax.jit(base.act), jax.jit(forgotten)

    @jax.jit
    def value(obs: Any, carry: Any, own: Any) -> Any:
        """Return the value of one observation of each environment, and the critic's carry."""
        actor, critic = eqx.combine(state.params.networks, base.static)
        features = base.encoder.features(critic.torso or actor.torso, obs)
        if critic.cell is None:
            own = carry
        cell = critic.cell or actor.cell
        own = step(cell, features, own)
        return critic.head(own[0])[:, 0], own

    params, own = base.actor(state, None), state.counters.critic_carry
    actions, log_probs = np.zeros((T, N), np.int32), np.zeros((T, N), np.float32)
    v_t, v_tp1 = np.zeros((T, N), np.float32), np.zeros((T, N), np.float32)
    first = carry
    for t in range(T):
        v_t[t], after = value(obs[t], carry, own)
        actions[t], carry, extras = act(params, obs[t], carry, None)
        own = after
        log_probs[t] = extras["log_prob"]
        done = terminated[t] | truncated[t]
        next_carry, next_own = forget(carry, done), forget(own, done)
        v_tp1[t], _ = value(obs[t + 1], next_carry, next_own)
        for env in np.flatnonzero(truncated[t]):
            seen = obs[t + 1].copy()
            seen[env] = finals[list(index).index(t * N + env)]
            v_tp1[t, env] = value(seen, carry, own)[0][env]
        carry, own = next_carry, next_own
    rewards = rng.normal(size=(T, N)).astype(np.float32)
    trajectory = Trajectory(
        obs[:-1], actions, rewards, terminated, truncated, obs[-1], Finals(finals, index),
        {"log_prob": log_probs}, carry=first,
    )  # fmt: skip
    return trajectory, v_t, v_tp1, own


@pytest.mark.parametrize(
    ("cell", "critic", "length"), [("lstm", "own", 4), ("gru", "shared", 8)]
)  # fmt: skip
def test_learning_sees_the_carries_with_which_a_trajectory_was_played(
    cell: Any, critic: Any, length: int
) -> None:
    config = PPOConfig(recurrent=cell, recurrent_size=8, critic_memory=critic, gae_lambda=0.8)
    spec = BuildSpec(NetworkConfig(hidden=(8,)), OBS, MOVES, N, 10_000, T)
    base = OnPolicy(config, spec, length=length)
    networks = base._build(np.random.default_rng(3))
    scaled = eqx.tree_at(lambda n: n.actor.head.weight, networks, replace_fn=lambda w: 100 * w)
    algorithm = base.algorithm("ppo", _NoOptimiser(), None, (), T)
    state = algorithm.init(np.zeros(2, np.uint32), algorithm.hp)
    state = state._replace(
        params=state.params._replace(networks=eqx.filter(scaled, eqx.is_array)),
        counters=state.counters._replace(critic_carry=_random_carry(scaled.critic.cell)),
    )
    trajectory, v_t, v_tp1, own = played(base, state, _random_carry(scaled.actor.cell))
    after, batch = jax.device_get(jax.jit(base.prepare)(state, trajectory, algorithm.hp))

    assert batch.memory.begins.shape == (T * N // length, length)
    order = np.arange(T * N).reshape(T // length, length, N).swapaxes(1, 2).ravel()
    done = trajectory.terminated | trajectory.truncated
    expected = jax.jit(generalised_advantages)(
        trajectory.rewards, v_t, v_tp1, trajectory.terminated, done, algorithm.hp
    )
    np.testing.assert_allclose(batch.value, v_t.ravel()[order], atol=1e-5)
    np.testing.assert_allclose(batch.advantage, np.ravel(expected)[order], atol=1e-5)

    # Minibatches of sequences in another order, as `epochs` makes them.
    count = T * N // length
    some = np.random.default_rng(0).permutation(count)[: count - 1]
    part = jax.tree.map(lambda leaf: leaf[some], batch.sequences()).steps()

    @jax.jit
    def evaluated(networks: Any, part: Any) -> Any:
        outputs, values = evaluate(base.encoder, networks, part.obs, part.mask, part.memory)
        return base.dist.log_prob(outputs, networks.actor.extra, part.sample), values

    log_prob, values = evaluated(scaled, part)
    assert np.ptp(part.log_prob) > 0.1
    np.testing.assert_allclose(log_prob, part.log_prob, atol=1e-5)  # the ratio is 1
    np.testing.assert_allclose(values, part.value, atol=1e-5)
    if critic == "own":  # where the next trajectory begins
        np.testing.assert_allclose(after.counters.critic_carry, own, atol=1e-5)


class _NoOptimiser:
    def init(self) -> tuple[()]:
        return ()


def _random_carry(cell: Any) -> Any:
    if cell is None:
        return None
    rng = np.random.default_rng(7)
    return tuple(rng.normal(size=leaf.shape).astype(np.float32) for leaf in cell.initial(N))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 24}, "batch_size 24 must be a multiple or a divisor of n_steps 32"),
        ({"sequence_length": 12}, "sequence_length = 12 must divide .* 32 is the longest"),
        ({"shards": 2, "batch_size": 96}, r"of a shard \(48 steps\)"),
        ({"micro_batch": 16}, "micro_batch = 16 must be a multiple of 32, the steps of a sequence"),
        (
            {"rollout_episodes": 1, "batch_size": 3000},
            "cannot be .* rollout_episodes",
        ),
        ({"replay_trajectories": 2}, "recurrent = lstm cannot be .* replay_trajectories"),
        ({"critic_hidden": 32}, "critic_hidden = .32,. is impossible.*critic_memory = own"),
        ({"recurrent": None, "recurrent_size": 8}, "recurrent_size = 8 is impossible: without"),
        ({"recurrent": None, "sequence_length": 8}, "sequence_length = 8 is impossible: without"),
    ],
)
def test_impossible_settings_of_memory_are_refused(settings: dict[str, Any], words: str) -> None:
    given = {"recurrent": "lstm", "envs": 6, "n_steps": 32, "batch_size": 64} | settings
    with pytest.raises(UsageError, match=words):
        PPO("CartPole-v1", **given).learn(256)


def test_other_algorithms_have_no_memory() -> None:
    with pytest.raises(UsageError, match="recurrent"):
        DQN("CartPole-v1", recurrent="lstm")
    with pytest.raises(UsageError, match="recurrent = gru or lstm"):
        PPO("CartPole-v1", network="lstm")


WORKERS = "sampler=processes workers=2x2"
RUN: dict[str, Any] = {
    "envs": 4, "n_steps": 16, "batch_size": 32, "n_epochs": 2, "hidden": [8], "recurrent_size": 8,
    "recurrent": "lstm", "critic_memory": "own", "normalize_observation": True,
    "normalize_reward": True, "seed": 1,
}  # fmt: skip


def trained(steps: int = 192, algorithm: Any = PPO, env: Any = Signs, **settings: Any) -> Agent:
    return algorithm(env, **RUN | settings).learn(steps)


def arrays_of(agent: Agent) -> dict[str, Any]:
    found = agent._acting.arrays
    assert found is not None
    return found


def assert_same(one: Agent, other: Agent) -> None:
    mine, theirs = arrays_of(one), arrays_of(other)
    assert mine.keys() == theirs.keys()
    assert any("cell" in name for name in mine)
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


@functools.cache
def inline() -> Agent:
    return trained(placement="sampler=inline")


@pytest.mark.slow
@pytest.mark.bits
@pytest.mark.usefixtures("shared_programs")
@pytest.mark.parametrize("placement", [WORKERS, f"{WORKERS} inference=local"])
def test_no_placement_changes_a_bit(placement: str) -> None:
    """Of equal groups: other numbers of rows in a product may change its last bit."""
    assert_same(trained(placement=placement), trained(placement="sampler=inline groups=2"))


@pytest.mark.usefixtures("shared_programs")
def test_a_run_that_continues_has_both_memories() -> None:
    half = trained(64, placement="sampler=inline")
    carry = next(a for name, a in arrays_of(half).items() if "critic_carry" in name)
    assert carry.shape == (4, 8)
    assert carry.any()
    assert_same(half.learn(128), inline())


def test_a_cut_episode_is_forgotten() -> None:
    algorithm = inline()._acting._algorithm
    state = algorithm.init(np.zeros(2, np.uint32), algorithm.hp)
    ones = jax.tree.map(np.ones_like, state)
    assert algorithm.forget is not None
    counters = algorithm.forget(ones, 2).counters
    for leaf in (counters.returns, *counters.critic_carry):
        assert leaf[2].sum() == 0
        assert leaf.sum() == leaf.size * 3 / 4


MAZE: dict[str, Any] = {
    "env_backend": "device", "envs": 16, "n_steps": 32, "batch_size": 128, "n_epochs": 4,
    "learning_rate": 3e-3, "ent_coef": 0.01, "hidden": [16], "recurrent_size": 16, "seed": 0,
}  # fmt: skip


@pytest.mark.slow
def test_a_memory_solves_a_maze_that_needs_one() -> None:
    for recurrent in ("gru", "lstm"):
        agent = PPO(functools.partial(t_maze, 4), recurrent=recurrent, **MAZE).learn(65_536)
        assert agent.evaluate(50).return_mean > 3.9
    without = {name: value for name, value in MAZE.items() if name != "recurrent_size"}
    agent = PPO(functools.partial(t_maze, 4), **without).learn(65_536)
    assert agent.evaluate(200).return_mean < 2.6
