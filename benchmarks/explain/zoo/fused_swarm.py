"""PPO-like training (JAX) of a swarm of drones: everything happens in one jitted scan."""

import jax
import jax.numpy as jnp
import optax
from pace import Pace

DRONES, HORIZON, HIDDEN, EPOCHS = 256, 16, 256, 4
optimizer = optax.adam(3e-4)


def init(key):
    keys = jax.random.split(key, 4)
    sizes = [(9, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 7), (HIDDEN, 1)]
    return [
        {"w": jax.random.normal(k, s) / s[0] ** 0.5, "b": jnp.zeros(s[1])}
        for k, s in zip(keys, sizes, strict=True)
    ]


def network(params, x):
    for layer in params[:2]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    logits, value = (x @ layer["w"] + layer["b"] for layer in params[2:])
    return logits, value[..., 0]


def fly(state, action):
    """Three-dimensional point masses that shall reach their goals."""
    place, speed, goal = jnp.split(state, 3, axis=-1)
    thrust = jnp.concatenate([jnp.eye(3), -jnp.eye(3), jnp.zeros((1, 3))])[action]
    speed = 0.95 * speed + 0.1 * thrust
    place = place + 0.1 * speed
    reward = -jnp.linalg.norm(place - goal, axis=-1)
    return jnp.concatenate([place, speed, goal], -1), reward


def iteration(carry, key):
    params, opt, state = carry

    def act(state, key):
        logits, _ = network(params, state)
        action = jax.random.categorical(key, logits)
        logp = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        following, reward = fly(state, action)
        return following, (state, action, logp, reward)

    last, (obs, action, logp_old, reward) = jax.lax.scan(act, state, jax.random.split(key, HORIZON))
    bootstrap = network(params, last)[1]
    _, returns = jax.lax.scan(
        lambda g, r: (r + 0.95 * g, r + 0.95 * g), bootstrap, reward, reverse=True
    )
    advantage = returns - network(params, obs)[1]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    def loss(p):
        logits, value = network(p, obs)
        logp = jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]
        ratio = jnp.exp(logp - logp_old)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        return -gain.mean() + 0.5 * jnp.mean((value - returns) ** 2)

    def epoch(inner, _):
        p, o = inner
        steps, o = optimizer.update(jax.grad(loss)(p), o)
        return (optax.apply_updates(p, steps), o), None

    (params, opt), _ = jax.lax.scan(epoch, (params, opt), None, length=EPOCHS)
    return (params, opt, last), reward.mean()


@jax.jit
def train(carry, key):
    return jax.lax.scan(iteration, carry, jax.random.split(key, 4))


def main():
    pace = Pace.from_args()
    key = jax.random.key(0)
    params = init(key)
    carry = params, optimizer.init(params), jax.random.normal(key, (DRONES, 9))
    while pace.on():
        key, sub = jax.random.split(key)
        carry, rewards = train(carry, sub)
        print(f"reward {float(rewards.mean()):.3f}")
        pace.add(4 * DRONES * HORIZON)
    pace.report()


if __name__ == "__main__":
    main()
