"""Sentiment of synthetic reviews with a GRU in JAX; a batch is padded to its longest review."""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from phases import phase

VOCAB, EMBED, HIDDEN, BATCH = 2000, 32, 64, 32


def make_reviews(rng, n=5000):
    lengths = np.clip(rng.lognormal(4.2, 0.6, n).astype(int), 8, 400)
    labels = rng.integers(0, 2, n)
    reviews = []
    for length, label in zip(lengths, labels):
        words = rng.integers(1, VOCAB, length)
        mood = rng.random(length) < 0.1
        words[mood] = rng.integers(1, 50, mood.sum()) + 50 * label
        reviews.append(words)
    return reviews, labels


def collate(reviews):
    longest = max(len(r) for r in reviews)
    tokens = np.zeros((len(reviews), longest), dtype=np.int32)
    for i, review in enumerate(reviews):
        tokens[i, : len(review)] = review
    return tokens


def init_params(key):
    k = jax.random.split(key, 4)
    return {
        "embed": 0.1 * jax.random.normal(k[0], (VOCAB, EMBED)),
        "wx": jax.random.normal(k[1], (EMBED, 3 * HIDDEN)) / np.sqrt(EMBED),
        "wh": jax.random.normal(k[2], (HIDDEN, 3 * HIDDEN)) / np.sqrt(HIDDEN),
        "b": jnp.zeros(3 * HIDDEN),
        "out": jax.random.normal(k[3], (HIDDEN,)) / np.sqrt(HIDDEN),
    }


def predict(params, tokens):
    def cell(h, inputs):
        x, mask = inputs
        xr, xz, xn = jnp.split(x @ params["wx"] + params["b"], 3, axis=-1)
        hr, hz, hn = jnp.split(h @ params["wh"], 3, axis=-1)
        z = jax.nn.sigmoid(xz + hz)
        new = (1 - z) * jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn) + z * h
        return jnp.where(mask[:, None], new, h), None

    x = params["embed"][tokens].transpose(1, 0, 2)
    h, _ = jax.lax.scan(cell, jnp.zeros((len(tokens), HIDDEN)), (x, (tokens > 0).T))
    return h @ params["out"]


optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-3))


def loss_fn(params, tokens, labels):
    logits = predict(params, tokens)
    loss = optax.sigmoid_binary_cross_entropy(logits, labels).mean()
    return loss, ((logits > 0) == labels).mean()


@jax.jit
def train_step(params, opt_state, tokens, labels):
    (loss, accuracy), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, tokens, labels)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss, accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rng = np.random.default_rng(args.seed)
    reviews, labels = make_reviews(rng)
    params = init_params(jax.random.key(args.seed))
    opt_state = optimizer.init(params)
    step, start = 0, time.time()
    while time.time() - start < args.seconds:
        with phase("input"):
            chosen = rng.choice(len(reviews), BATCH, replace=False)
            tokens, y = collate([reviews[i] for i in chosen]), labels[chosen]
        with phase("learning"):
            params, opt_state, loss, accuracy = train_step(params, opt_state, tokens, y)
            loss, accuracy = float(loss), float(accuracy)
        step += 1
        if step % 10 == 0:
            print(f"step {step}: loss {loss:.4f}, accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
