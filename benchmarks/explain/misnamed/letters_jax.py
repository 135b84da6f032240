"""A classifier in JAX that computes its error on the whole held-out set after every batch."""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

rng = np.random.default_rng(args.seed)
centres = rng.normal(size=(26, 400))
train_y = rng.integers(0, 26, 20000)
train_x = (centres[train_y] + 3 * rng.normal(size=(20000, 400))).astype(np.float32)
held_y = rng.integers(0, 26, 5000)
held_x = (centres[held_y] + 3 * rng.normal(size=(5000, 400))).astype(np.float32)


def network(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def loss_fn(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(network(params, x), y).mean()


@jax.jit
def train(params, opt_state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


@jax.jit
def error_rate(params, x, y):
    return jnp.mean(network(params, x).argmax(axis=1) != y)


sizes = [400, 256, 128, 26]
params = [
    (jnp.asarray(rng.normal(size=(m, n)) / m**0.5, jnp.float32), jnp.zeros(n))
    for m, n in zip(sizes, sizes[1:])
]
tx = optax.adam(1e-3)
opt_state = tx.init(params)
step, start = 0, time.time()
while time.time() - start < args.seconds:
    rows = rng.integers(0, len(train_y), 128)
    with phase("learning") as timer:
        params, opt_state, loss = train(params, opt_state, train_x[rows], train_y[rows])
        timer.block(loss)
    with phase("evaluation"):
        error = float(error_rate(params, held_x, held_y))
    step += 1
    if step % 50 == 0:
        print(f"step {step}: loss {loss:.3f}, error {error:.3f}", flush=True)
