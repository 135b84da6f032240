"""Networks and data of a user's, right or wrong in one way, as ``tests.own_networks:name``."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

CLASSES, INPUTS, ROWS = 3, 16, 90
NO_FUNCTION = "text"


def make() -> tuple[np.ndarray, np.ndarray]:
    """Vectors around a centre for each class, which differs in a few components."""
    rng = np.random.default_rng(0)
    y = np.arange(ROWS) % CLASSES
    x = rng.normal(0, 0.5, (ROWS, INPUTS)) + 2 * rng.normal(size=(CLASSES, INPUTS))[y]
    return x.astype(np.float32), y


def raising() -> Any:
    raise KeyError("missing")


def other_labels() -> Any:
    x, y = make()
    return x, y + 1


class Dense(eqx.Module):
    """A network whose hidden layer is large enough to be divided with params=sharded."""

    hidden: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array, shape: tuple[int, ...], outputs: int = CLASSES) -> None:
        one, two = jax.random.split(key)
        self.hidden = eqx.nn.Linear(shape[0], 1024, key=one)
        self.head = eqx.nn.Linear(1024, outputs, key=two)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(jax.nn.relu(self.hidden(x)))


class Double(Dense):
    """Weights that NumPy draws, in float64."""

    def __init__(self, key: jax.Array, shape: tuple[int, ...]) -> None:
        super().__init__(key, shape)
        drawn = np.random.default_rng(0).normal(size=(CLASSES, 1024)) / 32
        self.head = eqx.tree_at(lambda layer: layer.weight, self.head, drawn)


def wide(key: jax.Array, shape: tuple[int, ...]) -> Any:
    return Dense(key, shape, CLASSES + 1)


class Matrix(Dense):
    def __call__(self, x: jax.Array) -> Any:
        return super().__call__(x)[None]


class Pair(Dense):
    def __call__(self, x: jax.Array) -> Any:
        return super().__call__(x), x


class Label(Dense):
    def __call__(self, x: jax.Array) -> Any:
        return super().__call__(x).argmax(keepdims=True)


class Misfit(Dense):
    def __call__(self, x: jax.Array) -> Any:
        return self.head(x)


class Dropping(Dense):
    """A layer that needs a key, which no network gets."""

    drop: eqx.nn.Dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x: jax.Array) -> Any:
        return self.drop(super().__call__(x))


class Normalised(Dense):
    norm: eqx.nn.BatchNorm

    def __init__(self, key: jax.Array, shape: tuple[int, ...]) -> None:
        super().__init__(key, shape)
        self.norm = eqx.nn.BatchNorm(CLASSES, "batch", mode="batch")


def stateful(key: jax.Array, shape: tuple[int, ...]) -> Any:
    return eqx.nn.make_with_state(Normalised)(key, shape)


def unbuilt(key: jax.Array, shape: tuple[int, ...]) -> Any:
    return eqx.nn.Conv2d(1, 4, 3, key=key)(jnp.zeros(shape))


def nothing(key: jax.Array, shape: tuple[int, ...]) -> Any:
    return None


def constant(key: jax.Array, shape: tuple[int, ...]) -> Any:
    return lambda x: x[:CLASSES]
