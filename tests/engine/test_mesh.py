"""The placement of a learner's arrays on its devices."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from flatout.engine.mesh import LARGE, Mesh


def places(shapes: list[tuple[int, ...]], *, divided: bool) -> list[tuple[object, ...]]:
    """Return the partition of each array of the state over four devices."""
    mesh = Mesh(jax.devices("cpu")[:4], 4, divided)
    state = mesh.state([jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes])
    return [tuple(s.spec) for s in (state if divided else [state] * len(shapes))]


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((LARGE,), ("devices",)),
        ((LARGE - 4,), ()),  # small
        ((128, 512), (None, "devices")),  # the longest axis
        ((512, 1023), ("devices",)),  # the longest axis that is a multiple of four
        ((1023, 1023), ()),  # no axis is a multiple of four
    ],
)
def test_large_arrays_of_a_divided_state_are_divided(
    shape: tuple[int, ...], spec: tuple[object, ...]
) -> None:
    assert places([shape], divided=True) == [spec]
    assert places([shape], divided=False) == [()]


def test_a_program_maps_each_shard_and_shares_the_rest() -> None:
    for devices in (1, 2, 4):
        mesh = Mesh(jax.devices("cpu")[:devices], 4)
        program = mesh.program(lambda state, own, x: (state, own + x), (None, 0, None), (None, 0))
        state, own, x = mesh.put((np.zeros(2), np.arange(4.0), np.ones(())), (None, 0, None))
        _, added = program(state, own, x)
        np.testing.assert_array_equal(added, np.arange(4.0) + 1)
