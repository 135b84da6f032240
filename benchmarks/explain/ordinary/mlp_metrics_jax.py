"""Classification with an MLP in JAX that prints its metrics."""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from phases import phase

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

batch_size = 256
layer_sizes = [784, 1024, 1024, 10]

# Ten noisy classes of the size of MNIST images
rng = np.random.default_rng(args.seed)
centers = rng.normal(size=(10, 784)).astype(np.float32)
train_labels = rng.integers(0, 10, size=20000)
train_images = centers[train_labels] + 8 * rng.normal(size=(20000, 784)).astype(np.float32)
test_labels = rng.integers(0, 10, size=1000)
test_images = centers[test_labels] + 8 * rng.normal(size=(1000, 784)).astype(np.float32)


def init_params(key):
    params = []
    for m, n in zip(layer_sizes[:-1], layer_sizes[1:]):
        key, subkey = jax.random.split(key)
        params.append((jax.random.normal(subkey, (m, n)) * jnp.sqrt(2 / m), jnp.zeros(n)))
    return params


def predict(params, images):
    x = images
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def loss_fn(params, images, labels):
    logits = predict(params, images)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, jnp.mean(logits.argmax(-1) == labels)


optimizer = optax.adam(1e-4)


@jax.jit
def train_step(params, opt_state, images, labels):
    (loss, acc), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, images, labels)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss, acc


eval_step = jax.jit(loss_fn)
params = init_params(jax.random.key(args.seed))
opt_state = optimizer.init(params)
step, losses, accuracies = 0, [], []
start = time.time()
while time.time() - start < args.seconds:
    with phase("input"):
        idx = rng.integers(0, len(train_images), size=batch_size)
        images, labels = train_images[idx], train_labels[idx]
    with phase("learning") as p:
        params, opt_state, loss, acc = train_step(params, opt_state, images, labels)
        p.block(params)
    losses.append(float(loss))
    accuracies.append(float(acc))
    step += 1
    if step % 100 == 0:
        with phase("evaluation"):
            test_acc = float(eval_step(params, test_images, test_labels)[1])
        train_loss, train_acc = np.mean(losses[-100:]), np.mean(accuracies[-100:])
        print(f"{step}: loss {train_loss:.4f} accuracy {train_acc:.3f} test {test_acc:.3f}")
