"""Q-learning from pixels (JAX): a paddle game whose frames are made grey and resized in NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from pace import Pace

SIDE = 80


class Paddle:
    """A ball, a paddle and a wall, drawn as a 210x160 picture in colours."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.serve()

    def serve(self):
        self.ball, self.speed, self.paddle = [60.0, 80.0], [2.0, self.rng.uniform(-2, 2)], 70
        return self.draw()

    def draw(self):
        frame = np.zeros((210, 160, 3), np.uint8)
        frame[34:40] = (200, 72, 72)
        frame[188:192, self.paddle : self.paddle + 20] = (92, 186, 92)
        r, c = int(self.ball[0]), int(self.ball[1])
        frame[r : r + 4, c : c + 4] = 236
        return frame

    def play(self, action):
        self.paddle = int(np.clip(self.paddle + 4 * (action - 1), 0, 140))
        self.ball = [p + v for p, v in zip(self.ball, self.speed, strict=True)]
        if not 0 <= self.ball[1] <= 156:
            self.speed[1] *= -1
            self.ball[1] = float(np.clip(self.ball[1], 0, 156))
        if self.ball[0] < 42:
            self.speed[0] = abs(self.speed[0])
        reward, over = 0.0, False
        if self.ball[0] > 184:
            over = not -4 < self.ball[1] - self.paddle < 20
            reward = -1.0 if over else 1.0
            self.speed[0] = -abs(self.speed[0])
        return self.draw(), reward, over


def shrink(frame):
    """The playing field in grey, linearly resized to 80x80, between 0 and 1."""
    grey = frame[34:194].astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    at = np.linspace(0, 159, SIDE)
    rows = np.stack([np.interp(at, np.arange(160), row) for row in grey])
    both = np.stack([np.interp(at, np.arange(160), column) for column in rows.T], axis=1)
    return (both / 255.0).astype(np.float32)


def init(key):
    keys = jax.random.split(key, 2)
    return {
        "w1": jax.random.normal(keys[0], (SIDE * SIDE, 64)) * 0.01, "b1": jnp.zeros(64),
        "w2": jax.random.normal(keys[1], (64, 3)) * 0.1, "b2": jnp.zeros(3),
    }  # fmt: skip


def q_values(params, x):
    x = jax.nn.relu(x.reshape(-1, SIDE * SIDE) @ params["w1"] + params["b1"])
    return x @ params["w2"] + params["b2"]


greedy = jax.jit(lambda params, x: q_values(params, x).argmax(-1)[0])


@partial(jax.jit, donate_argnums=0)
def update(params, s, a, r, s2, over):
    target = r + 0.99 * (1 - over) * q_values(params, s2).max(-1)

    def loss(p):
        q = jnp.take_along_axis(q_values(p, s), a[:, None], 1)[:, 0]
        return jnp.mean((q - jax.lax.stop_gradient(target)) ** 2)

    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, jax.grad(loss)(params))


def main():
    pace = Pace.from_args()
    rng, game, params = np.random.default_rng(1), Paddle(0), init(jax.random.key(0))
    states = np.zeros((2000, SIDE, SIDE), np.float32)
    following = np.zeros_like(states)
    acts, rewards, overs = np.zeros(2000, np.int32), np.zeros(2000), np.zeros(2000)
    now, n = shrink(game.serve()), 0
    while pace.on():
        action = int(rng.integers(3)) if rng.random() < 0.1 else int(greedy(params, now[None]))
        frame, reward, over = game.play(action)
        after = shrink(frame)
        i = n % 2000
        states[i], acts[i], rewards[i], following[i], overs[i] = now, action, reward, after, over
        now, n = (shrink(game.serve()) if over else after), n + 1
        if n > 100 and n % 4 == 0:
            rows = rng.integers(0, min(n, 2000), 32)
            params = update(
                params, states[rows], acts[rows], rewards[rows], following[rows], overs[rows]
            )
        pace.add()
    pace.report()


if __name__ == "__main__":
    main()
