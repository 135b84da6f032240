"""REINFORCE (JAX) in a cave: one episode, as long as it happened to be, for each jitted update."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pace import Pace


def init(key):
    a, b, c = jax.random.split(key, 3)
    return {
        "in": jax.random.normal(a, (5, 64)) * 0.4,
        "mid": jax.random.normal(b, (64, 64)) * 0.12,
        "out": jax.random.normal(c, (64, 3)) * 0.01,
    }


def logits(params, x):
    return jnp.tanh(jnp.tanh(x @ params["in"]) @ params["mid"]) @ params["out"]


optimizer = optax.adam(1e-3)


@jax.jit
def update(params, state, obs, actions, returns, mask):
    def loss(p):
        logp = jax.nn.log_softmax(logits(p, obs))
        chosen = jnp.take_along_axis(logp, actions[:, None], axis=1)[:, 0]
        return -(mask * chosen * returns).sum() / mask.sum()

    grads = jax.grad(loss)(params)
    steps, state = optimizer.update(grads, state)
    return optax.apply_updates(params, steps), state


def fly(params, rng):
    """One flight between floor and ceiling until it hits a wall or reaches the end."""
    w = {name: np.asarray(value) for name, value in params.items()}
    height, speed, t = 0.0, 0.0, 0
    phase, goal = rng.uniform(0, 6), int(rng.integers(200, 1200))
    obs, actions = [], []
    noise = rng.gumbel(size=(goal, 3))
    while t < goal and abs(height) < 3:
        x = np.array([height, speed, np.sin(phase + t / 20), np.cos(phase + t / 20), 1.0])
        scores = np.tanh(np.tanh(x @ w["in"]) @ w["mid"]) @ w["out"]
        action = int(np.argmax(scores + noise[t]))
        speed = 0.9 * speed + 0.02 * (action - 1) - 0.01 * height
        height += speed
        obs.append(x)
        actions.append(action)
        t += 1
    return np.array(obs, np.float32), np.array(actions)


def prepare(obs, actions):
    """An episode with the return of each of its steps, all as long as the episode."""
    returns = np.arange(len(obs), 0, -1, dtype=np.float32) / 100
    return obs, actions, returns - returns.mean(), np.ones(len(obs), np.float32)


def main():
    pace = Pace.from_args()
    rng, params = np.random.default_rng(0), init(jax.random.key(0))
    state = optimizer.init(params)
    while pace.on():
        episode = prepare(*fly(params, rng))
        params, state = update(params, state, *episode)
        jax.block_until_ready(params)
        pace.add()
    pace.report()


if __name__ == "__main__":
    main()
