"""The statistics of a report, held against rliable's numbers and what must hold of any scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from flatout.reports.statistics import (
    Estimate,
    compared,
    enough,
    estimates,
    improvement,
    iqm,
    mean,
    median,
    profile,
    profiled,
)

THRESHOLDS = np.array([70.0, 90.0, 110.0])

RLIABLE: list[dict[str, Any]] = [
    {
        "x": [[61.5, 39.6, 123.1, 131.3, 126.6, 91.4]],
        "y": [[61.5, 81.3, 131.0, 116.2, 91.8]],
        "iqm": 100.65, "mean": 95.583333, "iqm_in": [58.02, 127.78], "mean_in": [66.38, 121.72],
        "better": 0.516667, "better_in": [0.167, 0.867], "profile": [0.666667, 0.666667, 0.5],
    },
    {
        "x": [[96.2, 86.2, 80.9, 108.7, 64.6], [117.7, 135.4, 100.9, 73.2, 121.9],
              [113.3, 107.3, 83.4, 109.6, 105.4]],
        "y": [[96.2, 48.9, 107.2, 74.1, 73.1, 63.8, 82.9],
              [117.7, 82.7, 129.4, 80.0, 81.3, 89.0, 114.9],
              [113.3, 148.9, 63.7, 125.1, 138.6, 49.7, 125.8]],
        "iqm": 101.222222, "mean": 100.313333, "median": 103.8, "iqm_in": [90.94, 109.54],
        "mean_in": [91.9, 108.15], "median_in": [91.0, 110.24], "better": 0.538095,
        "better_in": [0.348, 0.719], "profile": [0.933333, 0.666667, 0.266667],
    },
    {
        "x": [[72.2, 110.8, 86.0, 100.5, 46.6, 109.7, 93.5, 80.7, 123.4, 95.3],
              [49.5, 133.3, 105.3, 56.9, 98.7, 69.7, 84.1, 74.2, 100.2, 90.2]],
        "y": [[72.2, 94.5, 99.9, 106.2, 65.0, 135.7, 86.3, 59.3],
              [49.5, 66.5, 80.2, 42.1, 51.6, 70.0, 36.4, 36.4]],
        "iqm": 90.34, "mean": 89.04, "median": 89.04, "iqm_in": [79.1, 100.09],
        "mean_in": [79.31, 98.78], "median_in": [79.31, 98.78], "better": 0.7125,
        "better_in": [0.55, 0.866], "profile": [0.8, 0.55, 0.15],
    },
]  # fmt: skip
"""By rliable 1.2.0 with `numpy.random.seed(24)`: 20,000 resamples, 2,000 or 10,000 of
`better`."""

SEVERAL = [pytest.param(one, id=f"{len(one['x'])} environments") for one in RLIABLE]


def strata(rows: list[list[float]]) -> list[np.ndarray]:
    return [np.array(row) for row in rows]


def close(found: Estimate, value: float, interval: list[float]) -> None:
    """The same number, and ends that differ by less than 5 % of the interval's length: other
    random numbers."""
    assert found.low is not None
    assert found.high is not None
    assert found.value == pytest.approx(value, abs=1e-5)
    assert_allclose([found.low, found.high], interval, atol=0.05 * (interval[1] - interval[0]))


@pytest.mark.parametrize("oracle", SEVERAL)
def test_estimates_are_those_of_rliable(oracle: dict[str, Any]) -> None:
    x, y = strata(oracle["x"]), strata(oracle["y"])
    found = estimates([scores[None] for scores in x], (iqm, mean, median))[0]
    for name, estimate in zip(("iqm", "mean", "median"), found, strict=True):
        if name in oracle:
            close(estimate, oracle[name], oracle[f"{name}_in"])
    close(compared(x, y), oracle["better"], oracle["better_in"])
    assert_allclose(profile(x, THRESHOLDS), oracle["profile"], atol=1e-6)


@pytest.mark.slow
def test_against_rliable_itself() -> None:
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is not installed")
    library = pytest.importorskip("rliable.library", reason="rliable is not installed")
    random = np.random.default_rng(3)
    for runs, others, tasks in ((1, 2, 1), (4, 4, 3), (9, 6, 2), (30, 11, 5)):
        x = random.normal(size=(runs, tasks)).round(1)
        y = random.normal(0.2, 1, size=(others, tasks)).round(1)
        assert iqm(list(x.T)) == pytest.approx(metrics.aggregate_iqm(x))
        assert mean(list(x.T)) == pytest.approx(metrics.aggregate_mean(x))
        if tasks > 1:
            assert median(list(x.T)) == pytest.approx(metrics.aggregate_median(x))
        expected = metrics.probability_of_improvement(x, y)
        assert improvement(list(x.T), list(y.T)) == pytest.approx(expected)
        thresholds = np.linspace(-2, 2, 11)
        expected = library.score_distributions(x, thresholds)
        assert_allclose(profile(list(x.T), thresholds), expected, atol=1e-9)


SCORES = st.lists(
    st.lists(st.floats(-1e6, 1e6).map(lambda v: round(v, 2)), min_size=1, max_size=12),
    min_size=1, max_size=3,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(SCORES, st.randoms(use_true_random=False))
def test_what_holds_of_any_scores(rows: list[list[float]], shuffler: Any) -> None:
    scores = strata(rows)
    low, high = np.concatenate(scores).min(), np.concatenate(scores).max()
    found = estimates([one[None] for one in scores], (iqm, mean, median))[0]
    shuffled = [np.array(shuffler.sample(row, len(row))) for row in rows]
    again = estimates([one[None] for one in shuffled], (iqm, mean, median))[0]
    slack = 1e-9 * max(1.0, abs(low), abs(high))
    for one, other in zip(found, again, strict=True):
        assert low - slack <= one.value <= high + slack
        assert other.value == pytest.approx(one.value, abs=slack)
        if not enough(scores):
            assert one.low is None
            assert one.high is None
        else:
            assert one.low is not None
            assert one.high is not None
            assert low - slack <= one.low <= one.value <= one.high <= high + slack


@settings(max_examples=60, deadline=None)
@given(SCORES, st.data())
def test_improvement_is_antisymmetric(rows: list[list[float]], data: st.DataObject) -> None:
    ours = strata(rows)
    theirs = [
        np.array(data.draw(st.lists(st.sampled_from([*row, 0.0, 1.0]), min_size=1, max_size=9)))
        for row in rows
    ]
    chance = float(improvement(ours, theirs))
    assert chance + float(improvement(theirs, ours)) == pytest.approx(1)
    direct = [
        np.mean((x[:, None] > y) + 0.5 * (x[:, None] == y))
        for x, y in zip(ours, theirs, strict=True)
    ]
    assert chance == pytest.approx(np.mean(direct))
    assert float(improvement(ours, ours)) == pytest.approx(0.5)
    assert float(improvement([x + 1e7 for x in ours], theirs)) == 1
    found = compared(ours, theirs)
    assert found.low is None or found.low <= found.value <= (found.high or 0)


@settings(max_examples=30, deadline=None)
@given(SCORES)
def test_profiles_fall_from_all_to_none(rows: list[list[float]]) -> None:
    scores = strata(rows)
    every = np.concatenate(scores)
    thresholds = np.linspace(every.min() - 1, every.max(), 30)
    value, low, high = profiled(scores, thresholds)
    assert value[0] == pytest.approx(1)
    assert value[-1] == pytest.approx(0)
    assert (np.diff(value) <= 1e-12).all()
    assert ((low <= value) & (value <= high)).all()


def test_groups_of_one_shape_are_as_each_alone() -> None:
    groups = np.random.default_rng(0).normal(size=(7, 5))
    together = estimates([groups], (iqm, median))
    assert together == [estimates([one[None]], (iqm, median))[0] for one in groups]


def test_an_interval_covers_about_as_often_as_documented() -> None:
    """Of five runs a bootstrap's interval is too narrow: docs/statistics.md says so."""
    draws = np.random.default_rng(0).normal(size=(500, 20))
    for runs, least, most in ((5, 0.78, 0.88), (20, 0.89, 0.96)):
        found = [one for (one,) in estimates([draws[:, :runs]], (mean,))]
        covered = np.mean([(e.low or 0) <= 0 <= (e.high or 0) for e in found])
        assert least < covered < most
