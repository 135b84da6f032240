"""An algorithm of your own: V-trace actor-critic (Espeholt et al., 2018).

`python 7_own_algorithm.py`, or with every setting of the command:
`flatout train 7_own_algorithm:vtrace_actor_critic --env CartPole-v1 --envs 16 --hp gamma=0.98`.
Resuming, placements, shards, evaluation and `flatout explain` are as for built-in algorithms.

It prints its progress, and at last:

    return 177.3 ± 6.6 over 10 episodes
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flatout import Agent, Algorithm, BuildSpec, Counters, State
from flatout.algorithms.common.on_policy import values_around
from flatout.types import Trajectory

HORIZON, HIDDEN = 20, 64


class HyperParameters(NamedTuple):
    learning_rate: Any = np.float32(2e-3)
    gamma: Any = np.float32(0.99)
    value_weight: Any = np.float32(0.5)
    entropy_weight: Any = np.float32(0.01)


def forward(params, obs):
    """Logits ``[B, actions]`` and values ``[B]``."""
    x = obs.reshape(len(obs), -1).astype(jnp.float32)
    for layer in ("first", "second"):
        x = jnp.tanh(x @ params[layer]["w"] + params[layer]["b"])
    out = x @ params["heads"]["w"] + params["heads"]["b"]
    return out[:, :-1], out[:, -1]


def log_prob(logits, action):
    return (jax.nn.log_softmax(logits) * jax.nn.one_hot(action, logits.shape[-1])).sum(-1)


def vtrace(log_ratio, r, v, v_next, terminated, done, gamma):
    """Targets and advantages ``[T, N]`` (equation 1 and section 4.2, rho and c at most 1)."""
    rho = jnp.minimum(jnp.exp(log_ratio), 1.0)
    delta = rho * (r + gamma * jnp.where(terminated, 0.0, v_next) - v)

    def backward(later, at):
        delta, decay = at
        now = delta + decay * later
        return now, now

    decay = gamma * rho * (1.0 - done)
    _, correction = jax.lax.scan(backward, jnp.zeros_like(v[0]), (delta, decay), reverse=True)
    target = v + correction
    target_next = jnp.where(done, v_next, jnp.concatenate([target[1:], v_next[-1:]]))
    return target, rho * (r + gamma * jnp.where(terminated, 0.0, target_next) - v)


def loss(params, batch, hp):
    """Change this function: a mean over rows, and scalars to log."""
    obs, action, target, advantage = batch
    logits, v = forward(params, obs)
    policy_loss = -(advantage * log_prob(logits, action)).mean()
    value_loss = jnp.square(target - v).mean()
    entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
    total = policy_loss + hp.value_weight * value_loss - hp.entropy_weight * entropy
    return total, ({"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}, None)


def vtrace_actor_critic(spec: BuildSpec) -> Algorithm:
    """The pure functions, for the environment that the spec describes."""
    actions, rows = spec.action_spec.n, HORIZON * spec.num_envs
    gradient = spec.gradient(loss, rows)  # averaged over shards, in micro-batches if asked for
    adam = optax.chain(optax.clip_by_global_norm(0.5), optax.scale_by_adam())

    def init(key, hp):
        rng, sizes = np.random.default_rng(key), [int(np.prod(spec.obs_spec.shape)), HIDDEN, HIDDEN]
        shapes = {"first": sizes[:2], "second": sizes[1:], "heads": [HIDDEN, actions + 1]}
        params = {name: {"w": np.float32(rng.standard_normal(shape) / np.sqrt(shape[0])),
                         "b": np.zeros(shape[1], np.float32)}
                  for name, shape in shapes.items()}  # fmt: skip
        opt = jax.tree.map(np.asarray, adam.init(params))
        return State(params, opt, Counters(np.int32(0), np.int32(0)))

    def noise(key, env, step):
        return jax.random.gumbel(jax.random.fold_in(jax.random.fold_in(key, env), step), (actions,))

    def act(params, obs, carry, noise):
        logits, _ = forward(params, obs)
        action = (logits if noise is None else logits + noise).argmax(-1).astype(jnp.int32)
        return action, carry, {"log_prob": log_prob(logits, action)}

    def update(state, trajectory: Trajectory, key, hp):
        obs, shape = trajectory.obs, trajectory.rewards.shape
        flat = obs.reshape(-1, *obs.shape[2:])
        seen = jnp.concatenate([flat, trajectory.last_obs, trajectory.final_obs])
        logits, values = forward(state.params, seen)
        v, v_next = values_around(values, trajectory)
        now = log_prob(logits[: len(flat)], trajectory.actions.reshape(-1)).reshape(shape)
        done = trajectory.terminated | trajectory.truncated
        ratio, terminated = now - trajectory.extras["log_prob"], trajectory.terminated
        given = (ratio, trajectory.rewards, v, v_next, terminated, done)
        target, advantage = vtrace(*given, hp.gamma)
        rest = (x.reshape(-1) for x in (trajectory.actions, target, advantage))
        grads, metrics, _ = gradient(state.params, (flat, *rest), hp)
        moves, opt = adam.update(grads, state.opt)
        params = jax.tree.map(lambda p, m: p - hp.learning_rate * m, state.params, moves)
        counters = Counters(state.counters.step + rows, state.counters.updates + 1)
        return State(params, opt, counters), metrics | {"updates": jnp.ones(())}, None

    names = ("policy_loss", "value_loss", "entropy", "updates")
    rest = (names, HORIZON, noise)
    return Algorithm("vtrace", HyperParameters(), init, act, update, *rest, shards=spec.shards)


if __name__ == "__main__":
    agent = Agent("CartPole-v1", algorithm=vtrace_actor_critic, envs=16, seed=1)
    agent.learn(200_000, progress_bar=True)
    print(agent.evaluate(10).words())
