"""Population-based training: members learn by policy gradient through a swimmer written in JAX."""

import dataclasses
import functools
import random

import jax
import jax.numpy as jnp
from pace import Pace

LINKS = 5
POPULATION = 4
STEPS_PER_ROUND = 8


@dataclasses.dataclass(frozen=True)
class Hyper:
    lr: float
    momentum: float
    effort: float
    noise: float

    def perturbed(self):
        values = dataclasses.asdict(self)
        return Hyper(**{k: v * random.uniform(0.8, 1.25) for k, v in values.items()})


def init(key):
    k1, k2 = jax.random.split(key)
    params = {
        "w1": 0.3 * jax.random.normal(k1, (2 * LINKS + 2, 32)),
        "b1": jnp.zeros(32),
        "w2": 0.1 * jax.random.normal(k2, (32, LINKS)),
        "b2": jnp.zeros(LINKS),
    }
    return params, jax.tree.map(jnp.zeros_like, params)


def policy(params, obs):
    return jnp.tanh(jnp.tanh(obs @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"])


def swim(params, hyper, key):
    """Distance swum in 60 steps by links that push against viscous water."""

    def step(carry, key):
        angle, rate, speed = carry
        torque = policy(params, jnp.concatenate([angle, rate, speed]))
        torque = torque + hyper.noise * jax.random.normal(key, torque.shape)
        rate = 0.9 * rate + 0.1 * (torque - 0.5 * angle)
        angle = angle + 0.1 * rate
        thrust = jnp.stack([jnp.sum(rate * jnp.sin(angle)), jnp.sum(rate * jnp.cos(angle))])
        speed = 0.95 * speed + 0.05 * thrust
        return (angle, rate, speed), speed[0] - hyper.effort * jnp.mean(torque**2)

    start = (0.1 * jax.random.normal(key, (LINKS,)), jnp.zeros(LINKS), jnp.zeros(2))
    _, rewards = jax.lax.scan(step, start, jax.random.split(key, 60))
    return rewards.sum()


@functools.partial(jax.jit, static_argnames="hyper")
def train_step(params, velocity, key, hyper):
    def loss(params):
        keys = jax.random.split(key, 16)
        return -jax.vmap(lambda k: swim(params, hyper, k))(keys).mean()

    value, grads = jax.value_and_grad(loss)(params)
    velocity = jax.tree.map(lambda v, g: hyper.momentum * v + g, velocity, grads)
    params = jax.tree.map(lambda p, v: p - hyper.lr * v, params, velocity)
    return params, velocity, -value


def main():
    pace = Pace.from_args()
    random.seed(0)
    key = jax.random.key(0)
    members = []
    for i in range(POPULATION):
        hyper = Hyper(lr=1e-3, momentum=0.7, effort=0.01, noise=0.05).perturbed()
        members.append((*init(jax.random.fold_in(key, i)), hyper))
    while pace.on():
        scored = []
        for params, velocity, hyper in members:
            for _ in range(STEPS_PER_ROUND):
                key, sub = jax.random.split(key)
                params, velocity, score = train_step(params, velocity, sub, hyper)
                pace.add()
            scored.append((float(score), params, velocity, hyper))
        scored.sort(key=lambda m: m[0], reverse=True)
        best = scored[0]
        # Everyone explores around their own settings, except the worst, who copies the best.
        scored[-1] = best
        members = [(p, v, h.perturbed()) for _, p, v, h in scored]
    pace.report()


if __name__ == "__main__":
    main()
