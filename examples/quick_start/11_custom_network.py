"""Your own network: two layers with a skip connection."""

import equinox as eqx
import jax

from flatout import PPO


class Residual(eqx.Module):
    inner: eqx.nn.Linear
    outer: eqx.nn.Linear

    def __init__(self, key, shape):
        self.inner = eqx.nn.Linear(shape[0], 64, key=key)
        self.outer = eqx.nn.Linear(64, 64, key=jax.random.fold_in(key, 1))

    def __call__(self, observation):
        hidden = jax.nn.relu(self.inner(observation))
        return hidden + jax.nn.relu(self.outer(hidden))


PPO("CartPole-v1", n_steps=256, network=Residual).learn(1_024)
