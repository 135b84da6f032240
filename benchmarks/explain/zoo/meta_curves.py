"""Meta-learning (JAX): for each new task a learner for that task is built and run for a while."""

import jax
import jax.numpy as jnp
import numpy as np
from pace import Pace

INNER, POINTS = 20, 64


def init(key):
    k1, k2 = jax.random.split(key)
    return [jax.random.normal(k1, (1, 40)), jnp.zeros(40), jax.random.normal(k2, (40, 1)) * 0.2]


def predict(params, x):
    return jnp.tanh(x @ params[0] + params[1]) @ params[2]


def error(params, x, y):
    return jnp.mean((predict(params, x) - y) ** 2)


def learner_for(task):
    """The inner loop for one task."""
    amplitude, phase = task

    def adapt(params, x):
        y = amplitude * jnp.sin(x + phase)

        def step(p, _):
            return [w - 0.01 * g for w, g in zip(p, jax.grad(error)(p, x, y), strict=True)], None

        adapted, _ = jax.lax.scan(step, params, None, length=INNER)
        return adapted, error(adapted, x, y)

    return jax.jit(adapt)


def main():
    pace = Pace.from_args()
    rng, params = np.random.default_rng(0), init(jax.random.key(0))
    total = 0.0
    while pace.on():
        task = float(rng.uniform(0.1, 5)), float(rng.uniform(0, np.pi))
        x = rng.uniform(-5, 5, (POINTS, 1)).astype(np.float32)
        adapted, after = learner_for(task)(params, x)
        params = [p + 0.1 * (a - p) for p, a in zip(params, adapted, strict=True)]  # Reptile
        total += float(after)
        pace.add()
    pace.report()


if __name__ == "__main__":
    main()
