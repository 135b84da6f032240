"""Predicted gains: what any share of the time allows."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from flatout.planning.gains import between, remaining


@given(st.floats(0, 0.99), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_predictions_are_ordered(share: float, a: float, b: float, c: float) -> None:
    gain = remaining(share, a, b, c)
    assert 1 <= gain.low <= gain.gain <= gain.high <= 1 / (1 - share) + 1e-6
    assert between(math.nan, math.inf, -1).gain == 1.0
