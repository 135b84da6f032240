"""PPO in JAX on a vectorised CartPole (gymnasium.make_vec), with the update in one jitted scan."""

import argparse
import time

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
from phases import phase

N_ENVS, N_STEPS, EPOCHS, MINIBATCHES = 8, 128, 4, 4
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2
optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4, eps=1e-5))


def mlp_init(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    init = jax.nn.initializers.orthogonal(np.sqrt(2))
    return [(init(k, (m, n)), jnp.zeros(n)) for k, m, n in zip(keys, sizes, sizes[1:])]


def mlp(layers, x):
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


@jax.jit
def act(params, key, obs):
    logits = mlp(params["actor"], obs)
    action = jax.random.categorical(key, logits)
    log_prob = jax.nn.log_softmax(logits)[jnp.arange(len(obs)), action]
    return action, log_prob, mlp(params["critic"], obs).squeeze(-1)


def loss_fn(params, batch):
    obs, action, old_log_prob, advantage, returns = batch
    log_probs = jax.nn.log_softmax(mlp(params["actor"], obs))
    log_prob = log_probs[jnp.arange(len(obs)), action]
    ratio = jnp.exp(log_prob - old_log_prob)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    value_loss = jnp.square(mlp(params["critic"], obs).squeeze(-1) - returns).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return policy_loss + 0.5 * value_loss - 0.01 * entropy


@jax.jit
def update(params, opt_state, key, obs, actions, log_probs, values, rewards, dones, last_value):
    def gae(carry, t):
        advantage, next_value = carry
        value, reward, done = t
        delta = reward + GAMMA * next_value * (1 - done) - value
        advantage = delta + GAMMA * LAMBDA * (1 - done) * advantage
        return (advantage, value), advantage

    first = (jnp.zeros(N_ENVS), last_value)
    _, advantages = jax.lax.scan(gae, first, (values, rewards, dones), reverse=True)
    data = (obs, actions, log_probs, advantages, advantages + values)
    data = jax.tree.map(lambda x: x.reshape(N_ENVS * N_STEPS, *x.shape[2:]), data)

    def minibatch(carry, index):
        params, opt_state = carry
        grads = jax.grad(loss_fn)(params, jax.tree.map(lambda x: x[index], data))
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), None

    keys = jax.random.split(key, EPOCHS)
    order = jax.vmap(lambda k: jax.random.permutation(k, N_ENVS * N_STEPS))(keys)
    order = order.reshape(EPOCHS * MINIBATCHES, -1)
    (params, opt_state), _ = jax.lax.scan(minibatch, (params, opt_state), order)
    return params, opt_state


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    envs = gym.make_vec("CartPole-v1", num_envs=N_ENVS)
    key, k1, k2 = jax.random.split(jax.random.key(args.seed), 3)
    params = {"actor": mlp_init(k1, [4, 64, 64, 2]), "critic": mlp_init(k2, [4, 64, 64, 1])}
    opt_state = optimizer.init(params)
    obs, _ = envs.reset(seed=args.seed)
    score, scores, iteration = np.zeros(N_ENVS), [0.0], 0
    start = time.time()
    while time.time() - start < args.seconds:
        rollout = []
        for _ in range(N_STEPS):
            with phase("acting"):
                key, subkey = jax.random.split(key)
                outputs = act(params, subkey, obs)
                actions, log_probs, values = (np.asarray(x) for x in outputs)
            with phase("env"):
                next_obs, reward, terminated, truncated, _ = envs.step(actions)
            done = terminated | truncated
            rollout.append((obs, actions, log_probs, values, reward, done.astype(np.float32)))
            score += reward
            scores.extend(score[done])
            score[done] = 0
            obs = next_obs
        with phase("learning") as timer:
            key, subkey = jax.random.split(key)
            _, _, last_value = act(params, subkey, obs)
            data = [np.array(x) for x in zip(*rollout)]
            params, opt_state = update(params, opt_state, subkey, *data, last_value)
            timer.block(params)
        iteration += 1
        if iteration % 20 == 0:
            print(f"iteration {iteration}: mean return {np.mean(scores[-50:]):.1f}")
