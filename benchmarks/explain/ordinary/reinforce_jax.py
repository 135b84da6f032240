"""Policy gradient with a value baseline on CartPole in JAX."""

import argparse
import time

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

gamma, hidden, max_steps = 0.99, 512, 500
env = gym.make("CartPole-v1")


def init_params(key):
    sizes = [(4, hidden), (hidden, hidden), (hidden, 3)]
    keys = jax.random.split(key, 3)
    return [
        {"w": jax.random.normal(k, s) / jnp.sqrt(s[0]), "b": jnp.zeros(s[1])}
        for k, s in zip(keys, sizes)
    ]


def forward(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    out = x @ params[-1]["w"] + params[-1]["b"]
    return out[..., :2], out[..., 2]


@jax.jit
def act(params, key, obs):
    key, subkey = jax.random.split(key)
    logits, _ = forward(params, obs)
    return jax.random.categorical(subkey, logits), key


def loss_fn(params, obs, actions, returns, mask):
    logits, values = forward(params, obs)
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], axis=1)[:, 0]
    advantages = jax.lax.stop_gradient(returns - values)
    loss = -log_probs * advantages + 0.5 * (returns - values) ** 2
    return jnp.sum(loss * mask) / jnp.sum(mask)


optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4))


@jax.jit
def update(params, opt_state, obs, actions, returns, mask):
    loss, grads = jax.value_and_grad(loss_fn)(params, obs, actions, returns, mask)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


key, subkey = jax.random.split(jax.random.key(args.seed))
params = init_params(subkey)
opt_state = optimizer.init(params)
episode, average = 0, 0.0
start = time.time()
while time.time() - start < args.seconds:
    obs_buf = np.zeros((max_steps, 4), np.float32)  # of one size, so that update compiles once
    act_buf, ret_buf = np.zeros(max_steps, np.int32), np.zeros(max_steps, np.float32)
    mask, rewards, t, done = np.zeros(max_steps, np.float32), [], 0, False
    with phase("env"):
        obs, _ = env.reset(seed=args.seed if episode == 0 else None)
    while not done:
        with phase("acting"):
            action, key = act(params, key, obs)
            obs_buf[t], act_buf[t], mask[t] = obs, action, 1.0
        with phase("env"):
            obs, reward, terminated, truncated, _ = env.step(int(act_buf[t]))
        rewards.append(reward)
        t, done = t + 1, terminated or truncated
    with phase("learning") as p:
        g = 0.0
        for i in reversed(range(t)):
            g = rewards[i] + gamma * g
            ret_buf[i] = g / 100
        params, opt_state, loss = update(params, opt_state, obs_buf, act_buf, ret_buf, mask)
        p.block(params)
    episode, average = episode + 1, 0.95 * average + 0.05 * t
    if episode % 20 == 0:
        print(f"episode {episode}: length {t}, average {average:.1f}, loss {float(loss):.4f}")
