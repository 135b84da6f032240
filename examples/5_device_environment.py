"""Your own environment in JAX: two pure functions of one environment, which Flatout compiles.

`python 5_device_environment.py`, or with every setting of the command:
`flatout train ppo --env 5_device_environment:hover --env-kwargs wind=0.5 --envs 16`

It prints its progress, and at last:

    95.5 of at most 100
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flatout import PPO, DeviceEnv, check_device_env
from flatout.types import DiscreteSpec, ObservationSpec


class Balloon(NamedTuple):
    """Height in metres from where it should stay, and speed in metres per second."""

    height: jax.Array
    speed: jax.Array


def observe(balloon):
    return jnp.stack([balloon.height / 10, balloon.speed])


def hover(wind: float = 0.2) -> DeviceEnv:
    """Burn (action 1) or not (0), once a second, to keep a balloon at its height for 100 s."""

    def reset(key):
        height, speed = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        balloon = Balloon(5 * height, speed)
        return balloon, observe(balloon)

    def step(balloon, action, key):
        gust = wind * jax.random.normal(key)
        speed = 0.9 * balloon.speed + jnp.where(action == 1, 0.5, -0.5) + gust
        balloon = Balloon(balloon.height + speed, speed)
        lost = jnp.abs(balloon.height) > 10
        reward = jnp.where(lost, -10.0, 1.0 - jnp.abs(balloon.height) / 10)
        return balloon, observe(balloon), reward, lost, jnp.asarray(False)

    def render(balloon):
        place = min(max(round(float(balloon.height)) + 10, 0), 20)
        return "".join("o" if at == place else "|" if at == 10 else "." for at in range(21))

    spec = ObservationSpec((2,), "float32")
    return DeviceEnv("hover", spec, DiscreteSpec(2), 100, reset, step, render)


if __name__ == "__main__":
    assert check_device_env(hover()) == []  # as a test of yours would say
    agent = PPO(hover, envs=16, n_steps=100, batch_size=400, learning_rate=1e-3, seed=1)
    agent.learn(160_000, progress_bar=True)
    print(f"{agent.evaluate(10).return_mean:.1f} of at most 100")
