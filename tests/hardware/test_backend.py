"""Starting JAX."""

from __future__ import annotations

import jax
import pytest

from flatout.config.placement import parse
from flatout.errors import UsageError
from flatout.hardware import backend


def test_64_bit_mode_is_refused_by_the_name_of_its_variable() -> None:
    placement = parse("cpu")
    backend.start(placement)
    jax.config.update("jax_enable_x64", True)
    try:
        with pytest.raises(UsageError, match="JAX_ENABLE_X64"):
            backend.start(placement)
    finally:
        jax.config.update("jax_enable_x64", False)
