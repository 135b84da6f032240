"""Actor-critic with JAX on recorded episodes; advantages are computed step by step."""

import argparse
import time

import jax
import jax.numpy as jnp
import optax
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

gamma, lam, length = 0.99, 0.95, 128
keys = jax.random.split(jax.random.key(args.seed), 6)
states = jax.random.normal(keys[0], (20, length, 8))
actions = jax.random.randint(keys[1], (20, length), 0, 4)
rewards = jax.random.uniform(keys[2], (20, length))
params = {
    "hidden": 0.3 * jax.random.normal(keys[3], (8, 64)),
    "policy": 0.1 * jax.random.normal(keys[4], (64, 4)),
    "value": 0.1 * jax.random.normal(keys[5], (64,)),
}
optimizer = optax.adam(1e-3)
state = optimizer.init(params)


@jax.jit
def predict(params, states):
    return jnp.tanh(states @ params["hidden"]) @ params["value"]


@jax.jit
def improve(params, state, states, actions, advantages, targets):
    def loss_of(params):
        hidden = jnp.tanh(states @ params["hidden"])
        log_probs = jax.nn.log_softmax(hidden @ params["policy"])[jnp.arange(length), actions]
        return jnp.mean((hidden @ params["value"] - targets) ** 2 - log_probs * advantages)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, loss


update, start = 0, time.time()
while time.time() - start < args.seconds:
    episode = update % len(states)
    with phase("own") as timer:
        values = predict(params, states[episode])
        advantage, advantages = jnp.zeros(()), []
        for t in range(length - 1, -1, -1):
            following = values[t + 1] if t < length - 1 else jnp.zeros(())
            delta = rewards[episode, t] + gamma * following - values[t]
            advantage = delta + gamma * lam * advantage
            advantages.insert(0, advantage)
        advantages = jnp.stack(advantages)
        timer.block(advantages)
    with phase("learning") as timer:
        params, state, loss = improve(
            params, state, states[episode], actions[episode], advantages, advantages + values
        )
        timer.block(loss)
    update += 1
    if update % 20 == 0:
        print(f"update {update}: loss {loss:.4f}", flush=True)
