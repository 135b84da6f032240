"""Gradient steps against their formulas, target networks, schedules, and packed arrays.

The tests of the algorithms use `ByHand` and `slopes` too, which compute in NumPy's float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.algorithms.common.optimiser import KINDS, Optimiser, polyak, schedule
from flatout.config.schedules import entropy_coefficient, linear
from flatout.errors import UsageError
from flatout.packing import OutputLayout, PackedParams, Packing

SHAPES = {
    "bias": jax.ShapeDtypeStruct((3,), np.float32),
    "large": jax.ShapeDtypeStruct((128, 128), np.float32),  # too large to be packed
    "scalar": jax.ShapeDtypeStruct((), np.float32),
}


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    """Run on a CPU: the tolerances are those of its float32 arithmetic."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


class ByHand:
    """An optimiser in float64, one leaf at a time, from the formulas of its paper.

    adam: Kingma and Ba (2015), algorithm 1. rmsprop: Graves (2013), equations 38 to 40, with the
    constants of Mnih et al. (2015). rms: Tieleman and Hinton (2012) as PyTorch writes it. nesterov:
    Sutskever et al. (2013) as PyTorch writes it.
    """

    def __init__(self, kind: str = "adam", max_grad_norm: float | None = None) -> None:
        self.kind, self.max = kind, max_grad_norm
        self.t, self.norm = 0, 0.0
        self.m: dict[int, Any] = {}
        self.v: dict[int, Any] = {}

    def step(self, params: Any, grads: Any, rate: float) -> Any:
        """Return the parameters after one step; `norm` is then the gradient's before clipping."""
        self.t += 1
        leaves, tree = jax.tree.flatten(params)
        steep = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(grads)]
        self.norm = np.sqrt(sum((g**2).sum() for g in steep))
        if self.max is not None and self.norm > self.max:
            steep = [g * self.max / self.norm for g in steep]
        ways = [self._direction(i, g) for i, g in enumerate(steep)]
        moved = [np.asarray(p - rate * way) for p, way in zip(leaves, ways, strict=True)]
        return jax.tree.unflatten(tree, moved)

    def _direction(self, i: int, g: Any) -> Any:
        m, v = self.m.get(i, 0.0), self.v.get(i, 0.0)
        if self.kind == "adam":
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            direction = m / (1 - 0.9**self.t) / (np.sqrt(v / (1 - 0.999**self.t)) + 1e-8)
        elif self.kind == "rmsprop":
            m, v = 0.95 * m + 0.05 * g, 0.95 * v + 0.05 * g**2
            direction = g / np.sqrt(v - m**2 + 0.01)
        elif self.kind == "rms":
            v = 0.99 * v + 0.01 * g**2
            direction = g / (np.sqrt(v) + 1e-5)
        else:
            m = 0.95 * m + g
            direction = g + 0.95 * m
        self.m[i], self.v[i] = m, v
        return direction


def slopes(loss: Callable[[], float], params: Any) -> Any:
    """Return a loss's gradient by central differences.

    Args:
        loss: the loss of the current values of `params`.
        params: a pytree of float64 arrays, changed and put back one number at a time.
    """
    grads = jax.tree.map(np.zeros_like, params)
    for leaf, grad in zip(jax.tree.leaves(params), jax.tree.leaves(grads), strict=True):
        for i in np.ndindex(leaf.shape):
            kept = leaf[i]
            leaf[i] = kept + 1e-6
            above = loss()
            leaf[i] = kept - 1e-6
            grad[i] = (above - loss()) / 2e-6
            leaf[i] = kept
    return grads


def drawn(seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Return a tree of `SHAPES` with standard normal numbers times `scale`."""
    rng = np.random.default_rng(seed)
    return {n: np.asarray(scale * rng.normal(size=s.shape), np.float32) for n, s in SHAPES.items()}


def assert_close(own: Any, wanted: Any, atol: float) -> None:
    """Require equal structures and close numbers."""
    assert jax.tree.structure(own) == jax.tree.structure(wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=1e-5), own, wanted)


@pytest.mark.parametrize(
    ("kind", "max_grad_norm"),  # a norm here is about 128
    [
        *((kind, 100.0) for kind in KINDS), ("adam", None),
        *(pytest.param(k, None, marks=pytest.mark.slow) for k in KINDS if k != "adam"),
    ],
)  # fmt: skip
def test_steps_are_those_of_the_formulas(kind: str, max_grad_norm: float | None) -> None:
    optimiser = Optimiser(SHAPES, kind)
    most = None if max_grad_norm is None else np.float32(max_grad_norm)
    step, reference = jax.jit(optimiser.step), ByHand(kind, max_grad_norm)
    params, state = drawn(0), optimiser.init()
    wanted = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    for t in range(6):
        grads = drawn(t + 1, scale=[1.0, 0.01, 3.0][t % 3])
        rate = 0.01 * (t + 1)  # changes from step to step, as under a schedule
        params, state, norm = step(params, grads, state, np.float32(rate), most)
        wanted = reference.step(wanted, grads, rate)
        np.testing.assert_allclose(norm, reference.norm, rtol=1e-5)
        assert_close(params, wanted, atol=2e-6)


def test_central_differences_are_gradients() -> None:
    params = {"a": np.array([1.0, -2.0]), "b": np.array(3.0)}
    found = slopes(lambda: float((params["a"] ** 3).sum() * params["b"]), params)
    assert_close(found, {"a": np.array([9.0, 36.0]), "b": np.array(-7.0)}, atol=1e-7)
    assert_close(params, {"a": np.array([1.0, -2.0]), "b": np.array(3.0)}, atol=0.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_initial_states_are_zeros_of_the_host_and_keep_their_shapes(kind: str, dtype: str) -> None:
    params = {n: jax.ShapeDtypeStruct(s.shape, jnp.dtype(dtype)) for n, s in SHAPES.items()}
    optimiser = Optimiser(params, kind)
    start = optimiser.init()
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(start))
    assert not any(leaf.any() for leaf in jax.tree.leaves(start))
    own, after, _ = jax.eval_shape(
        optimiser.step, params, params, start, jnp.float32(0.1), jnp.float32(1)
    )
    for before, later in ((params, own), (start, after)):
        described = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (before, later)]
        assert described[0] == described[1]


CLIPPING = Optimiser({"a": np.zeros(2, np.float32), "b": np.zeros((), np.float32)}, "nesterov")
"""An optimiser whose first step is 1.95 times the gradient."""
clipped = jax.jit(CLIPPING.step)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.1, 1e3), st.floats(0.1, 1e2))
def test_clipping_keeps_the_direction_and_only_shortens(size: float, most: float) -> None:
    params = {"a": np.zeros(2, np.float32), "b": np.zeros((), np.float32)}
    grads = {"a": np.float32([0.6, 0.0]) * np.float32(size), "b": np.float32(-0.8 * size)}
    state, rate = CLIPPING.init(), np.float32(1)
    after, _, norm = jax.device_get(clipped(params, grads, state, rate, np.float32(most)))
    assert float(norm) == pytest.approx(size, rel=1e-5)  # before clipping
    short = -1.95 * min(size, most)
    assert float(after["a"][0]) == pytest.approx(0.6 * short, rel=1e-4)
    assert float(after["a"][1]) == 0.0
    assert float(after["b"]) == pytest.approx(-0.8 * short, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_of_zero_moves_nothing(kind: str) -> None:
    optimiser = Optimiser(SHAPES, kind)
    none = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), SHAPES)
    params = drawn(0)
    step = jax.jit(optimiser.step)
    after, _, norm = step(params, none, optimiser.init(), np.float32(0.1), np.float32(100))
    assert float(norm) == 0.0
    assert_close(after, params, atol=0.0)


def test_rmsprop_survives_gradients_that_do_not_change() -> None:
    rng = np.random.default_rng(0)
    shape = {"w": np.zeros(1000, np.float32)}
    optimiser = Optimiser(shape, "rmsprop")
    step = jax.jit(optimiser.step)
    params, state, steady = shape, optimiser.init(), 1000 * rng.uniform(0.3, 1, 1000)
    for _ in range(400):
        grads = {"w": np.float32(steady * (1 + 1e-6 * rng.normal(size=1000)))}
        params, state, _ = step(params, grads, state, np.float32(1e-3))
    assert np.isfinite(params["w"]).all()


moves = jax.jit(polyak)
value_of = jax.jit(schedule)


@pytest.mark.parametrize("tau", [0.005, 0.3, 1.0])
def test_targets_move_by_their_share(tau: float) -> None:
    target, online = drawn(0), drawn(1)
    moved = jax.device_get(moves(target, online, np.float32(tau)))
    share = jax.tree.map(lambda t, p: t + tau * (p.astype(np.float64) - t), target, online)
    assert_close(moved, share, atol=1e-6)
    if tau == 1.0:
        jax.tree.map(np.testing.assert_array_equal, moved, online)
    for _ in range(5):
        moved = jax.device_get(moves(moved, online, np.float32(tau)))
    left = jax.tree.map(lambda t, p: p + (1 - tau) ** 6 * (t - p), target, online)
    assert_close(moved, left, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 10**6), st.integers(0, 2 * 10**6))
def test_schedules_are_straight_lines_and_then_stay(
    first: float, last: float, total: int, step: int
) -> None:
    value = value_of(np.float32([first, last]), np.int32(step), total)
    assert value.dtype == np.float32
    wanted = np.interp(step, [0, total], [first, last])
    assert float(value) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("value", "ends"),
    [
        (0.1, (0.1, 0.1)),
        ("0.1", (0.1, 0.1)),
        ("lin_0.001", (0.001, 0.0)),
        ("lin_1e-3_1e-4", (1e-3, 1e-4)),
        ("lin_0_0.2", (0.0, 0.2)),
    ],
)
def test_linear_schedules(value: float | str, ends: tuple[float, float]) -> None:
    assert linear("learning_rate", value) == ends


def test_entropy_coefficients() -> None:
    values = ("auto", "auto_0.1", 0.2, "0.2")
    wanted = [(1.0, True), (0.1, True), (0.2, False), (0.2, False)]
    assert [entropy_coefficient("ent_coef", value) for value in values] == wanted


# Packed arrays


PACKED: list[list[tuple[tuple[int, ...], str]]] = [
    [((), "float32")],
    [((0, 2), "float16"), ((2, 1, 2), "bfloat16"), ((), "float32")],
    [((3,), "bfloat16"), ((3,), "float32"), ((2, 1, 2), "float16"), ((0, 2), "float32")],
]
"""Shapes and dtypes of trees, with and without scalars and empty arrays, of all three dtypes."""


@functools.cache
def packing_of(number: int) -> tuple[Packing, Any]:
    """Return the layout of a tree of `PACKED`, and its compiled ``tree -> vector, tree``."""
    specs = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in PACKED[number]]
    packing = Packing({"first": specs[0], "rest": specs[1:]})

    def there_and_back(tree: Any) -> Any:
        vector = packing.pack(tree)
        return vector, packing.unpack(jax.lax.optimization_barrier(vector))

    return packing, jax.jit(there_and_back)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from(range(len(PACKED))))
def test_packed_arrays_come_back_unchanged(seed: int, number: int) -> None:
    generator = np.random.default_rng(seed)
    leaves = [np.asarray(generator.normal(size=s), jnp.dtype(d)) for s, d in PACKED[number]]
    tree = {"first": leaves[0], "rest": leaves[1:]}
    packing, there_and_back = packing_of(number)
    on_host = packing.pack(tree, np)
    assert on_host.dtype == np.float32
    assert on_host.shape == (packing.size,) == (sum(leaf.size for leaf in leaves),)
    vector, again = there_and_back(tree)
    np.testing.assert_array_equal(vector, on_host)
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    for own, leaf in zip(jax.tree.leaves(again), jax.tree.leaves(tree), strict=True):
        assert (own.shape, own.dtype) == (leaf.shape, leaf.dtype)
        np.testing.assert_array_equal(np.asarray(own), leaf)


def test_bundles_copy_only_small_arrays() -> None:
    tree = drawn(0)
    bundle = PackedParams(SHAPES)
    on_host = bundle.pack(tree, np)
    assert [array.shape for array in on_host] == [(4,), (128, 128)]
    assert on_host[1] is tree["large"]
    on_device = jax.jit(bundle.pack)(tree)
    unpack = jax.jit(bundle.unpack)
    for packed in (on_host, jax.device_get(on_device)):
        assert_close(unpack(packed), tree, atol=0.0)
    np.testing.assert_array_equal(on_device[0], on_host[0])
    assert bundle.count == 4 + 128 * 128


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float64", "complex64"])
def test_arrays_that_float32_cannot_hold_are_not_packed(dtype: str) -> None:
    for size in (2, 1 << 14):
        with pytest.raises(UsageError, match=f"array of {dtype}"):
            PackedParams([jax.ShapeDtypeStruct((size,), np.dtype(dtype))])


def test_packed_outputs_read_back_bit_by_bit() -> None:
    generator = np.random.default_rng(0)
    outputs = {
        "action": generator.integers(-5, 5, (4, 2), np.int32),  # [T, N]
        "log_prob": generator.normal(size=(4, 2)).astype(np.float32),
        "sample": generator.normal(size=(4, 2, 3)).astype(np.float32),
    }
    outputs["log_prob"][0] = [np.nan, -np.inf]
    layout = OutputLayout(jax.eval_shape(lambda: {k: v[0] for k, v in outputs.items()}))
    pack = jax.jit(OutputLayout.pack)
    rows = np.stack([pack({k: v[t] for k, v in outputs.items()}) for t in range(4)])
    assert rows.shape == (4, layout.words)
    read = layout.read(rows)
    for name, value in outputs.items():
        np.testing.assert_array_equal(read[name], value)
        assert read[name].dtype == value.dtype
    np.testing.assert_array_equal(layout.action(rows[2]), outputs["action"][2])


def test_outputs_may_be_named_in_any_order() -> None:
    """A user's `act` may return them in any order; JAX sorts them in the shapes that it reports."""

    def act() -> dict[str, jax.Array]:
        return {"value": jnp.ones(2), "action": jnp.zeros(2, jnp.int32), "bonus": 3 * jnp.ones(2)}

    layout = OutputLayout(jax.eval_shape(act))
    row = np.asarray(jax.jit(lambda: OutputLayout.pack(act()))())
    read = layout.read(row[None])
    assert {name: values.tolist() for name, values in read.items()} == {
        "action": [[0, 0]], "bonus": [[3.0, 3.0]], "value": [[1.0, 1.0]],
    }  # fmt: skip
