"""A training loop of your own: PPO as pure functions, compiled for eight seeds at a time.

It prints, on a CPU:

    mean return of each seed's last 20 iterations: [500, 500, 500, 500, 500, 500, 500, 500]
"""

import jax
import jax.numpy as jnp

import flatout

SEEDS, ITERATIONS = 8, 200

init, collect, learn, loop = flatout.engine.make(
    "ppo", env="CartPole-v1", envs=4, n_steps=128, batch_size=128, n_epochs=4, gamma=0.99,
    learning_rate=1e-3, ent_coef=0.01, steps=ITERATIONS * 4 * 128,
)  # fmt: skip


def shaped(trajectory):
    """Subtract up to 0.1 from a step's reward for standing far from the middle."""
    distance = jnp.abs(trajectory.obs[..., 0]) / 2.4
    return trajectory._replace(rewards=trajectory.rewards - 0.1 * distance)


def train(key):
    def iteration(state, _):
        trajectory, state = collect(state)
        return learn(state, shaped(trajectory))

    return jax.lax.scan(iteration, init(key), length=ITERATIONS)


if __name__ == "__main__":
    keys = jax.random.split(jax.random.key(0), SEEDS)
    states, metrics = jax.jit(jax.vmap(train))(keys)
    last = jnp.nanmean(metrics["return_mean"][:, -20:], axis=1)
    print("mean return of each seed's last 20 iterations:", last.round().astype(int).tolist())
