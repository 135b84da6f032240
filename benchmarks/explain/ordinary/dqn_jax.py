"""DQN on CartPole in JAX with a NumPy replay buffer."""

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

buffer_size, batch_size, learning_starts = 10000, 128, 1000
gamma, target_period = 0.99, 200
rng = np.random.default_rng(args.seed)
env = gym.make("CartPole-v1")

buffer = {name: np.zeros((buffer_size, 4), np.float32) for name in ("obs", "next_obs")}
buffer.update({name: np.zeros(buffer_size, np.float32) for name in ("reward", "done")})
buffer["action"] = np.zeros(buffer_size, np.int32)


def init_params(key, sizes=(4, 128, 128, 2)):
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(sizes[:-1], sizes[1:])
    return [
        (jax.random.normal(k, s) * (2 / s[0]) ** 0.5, jnp.zeros(s[1])) for k, s in zip(keys, shapes)
    ]


@jax.jit
def q_values(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


optimizer = optax.adam(5e-4)


@jax.jit
def update(params, target_params, opt_state, batch):
    def loss_fn(params):
        q = jnp.take_along_axis(q_values(params, batch["obs"]), batch["action"][:, None], 1)[:, 0]
        next_q = q_values(target_params, batch["next_obs"]).max(axis=1)
        target = batch["reward"] + gamma * next_q * (1 - batch["done"])
        return optax.huber_loss(q, target).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


params = target_params = init_params(jax.random.key(args.seed))
opt_state = optimizer.init(params)
step, episode_return, returns = 0, 0.0, []
obs, _ = env.reset(seed=args.seed)
start = time.time()
while time.time() - start < args.seconds:
    epsilon = max(0.05, 1 - step / 5000)
    action = int(rng.integers(2))
    if rng.random() > epsilon:
        with phase("acting"):
            action = int(jnp.argmax(q_values(params, obs)))
    with phase("env"):
        next_obs, reward, terminated, truncated, _ = env.step(action)
    with phase("replay"):
        i = step % buffer_size
        buffer["obs"][i], buffer["action"][i], buffer["reward"][i] = obs, action, reward
        buffer["next_obs"][i], buffer["done"][i] = next_obs, terminated
    obs, step, episode_return = next_obs, step + 1, episode_return + reward
    if step > learning_starts:
        with phase("replay"):
            idx = rng.integers(0, min(step, buffer_size), size=batch_size)
            batch = {name: array[idx] for name, array in buffer.items()}
        with phase("learning") as p:
            params, opt_state, loss = update(params, target_params, opt_state, batch)
            p.block(params)
        if step % target_period == 0:
            target_params = params
    if terminated or truncated:
        returns.append(episode_return)
        if len(returns) % 20 == 0:
            print(f"step {step}: mean return {np.mean(returns[-20:]):.1f}")
        episode_return = 0.0
        with phase("env"):
            obs, _ = env.reset()
