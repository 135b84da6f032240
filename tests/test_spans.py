"""Spans are exclusive, phases add up to the wall time, and viewers can open the trace."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import random
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from flatout import spans as module
from flatout.run.display import report
from flatout.spans import NAMES, RunClock, Spans, Times

# A span: its name, the time before its children, the children, and the time after them.
Tree = tuple[str, int, list[Any], int]


class Clock:
    """A clock in nanoseconds that only `spend` advances."""

    def __init__(self) -> None:
        self.now = 10**9

    def perf_counter_ns(self) -> int:
        return self.now

    def spend(self, nanoseconds: int) -> None:
        self.now += nanoseconds


@pytest.fixture(scope="module", autouse=True)
def clock() -> Any:
    """Replace the clock that spans read, once for all tests of this file.

    Hypothesis runs each test many times, and therefore refuses function-scoped fixtures.
    """
    with pytest.MonkeyPatch.context() as patch:
        fake = Clock()
        patch.setattr(module.time, "perf_counter_ns", fake.perf_counter_ns)
        yield fake


moments = st.integers(0, 10**7)
trees = st.recursive(
    st.tuples(st.sampled_from(NAMES), moments, st.just([]), moments),
    lambda inner: st.tuples(st.sampled_from(NAMES), moments, st.lists(inner, max_size=4), moments),
    max_leaves=20,
)


def play(spans: Spans, clock: Clock, tree: Tree, own: Callable[[str, int], None]) -> None:
    """Open and close a tree of spans. Call `own` with the name and the exclusive time of each."""
    name, before, children, after = tree
    with spans.span(name):
        clock.spend(before)
        for child in children:
            play(spans, clock, child, own)
        clock.spend(after)
    own(name, before + after)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(moments, trees), max_size=4), moments)
def test_every_moment_counts_once_for_the_innermost_span(
    clock: Clock, run: list[tuple[int, Tree]], rest: int
) -> None:
    spans = Spans()
    expected: dict[str, int] = defaultdict(int)

    def own(name: str, nanoseconds: int) -> None:
        expected[name] += nanoseconds

    start = clock.now
    for outside, tree in run:
        clock.spend(outside)
        play(spans, clock, tree, own)
    clock.spend(rest)
    wall = clock.now - start
    assert spans.totals == expected
    assert sum(spans.totals.values()) + sum(outside for outside, _ in run) + rest == wall

    phases = spans.phases(wall / 1e9)
    assert set(phases) == {*NAMES, "other"}
    assert math.isclose(sum(phases.values()), 1.0, abs_tol=1e-9)
    if wall:
        for name in NAMES:
            assert math.isclose(phases[name], expected[name] / wall, abs_tol=1e-6)


def printed(times: Times) -> tuple[list[float], list[float]]:
    """Return the numbers of the printed report.

    The first list is the wall time, the start-up and the compiling within it, in seconds; the
    second list is the shares in %.
    """
    summary = {
        "steps": 1, "updates": 1, "episodes": 0, "return_mean_100": None, "return_mean_last": None,
        "time_to_return_s": {}, "steps_to_return": {}, "steps_per_s": 1.0, "placement": "cpu",
        "flow": {"environments_lost": 0}, "verdict": None, "try": None, "run_dir": None,
        "ended": "callback", **dataclasses.asdict(times),
    }  # fmt: skip
    out = io.StringIO()
    report(summary, Console(file=out, width=200))
    text = out.getvalue()
    found = re.search(r"in ([\d.]+) s \(([\d.]+) s start-up, of it ([\d.]+) s compiling", text)
    assert found, text
    return [float(s) for s in found.groups()], [float(s) for s in re.findall(r"([\d.]+)%", text)]


@settings(deadline=None, max_examples=60)
@given(moments, st.lists(st.tuples(moments, trees), max_size=3), st.booleans(),
       st.lists(st.tuples(moments, trees), max_size=3), moments, st.integers(1, 1000))  # fmt: skip
def test_parts_of_a_run_add_up(
    clock: Clock, before: int, startup: list[tuple[int, Tree]], begins: bool,
    training: list[tuple[int, Tree]], rest: int, scale: int,
) -> None:  # fmt: skip
    """Compiling is a part of start-up or happens later; start-up is a part of the wall time."""
    spans, expected = Spans(), [defaultdict[str, int](int), defaultdict[str, int](int)]
    started = clock.now
    clock.spend(before * scale)
    run = RunClock(spans, started)

    def live(part: int, trees: list[tuple[int, Tree]]) -> None:
        for outside, tree in trees:
            clock.spend(outside * scale)
            play(spans, clock, scaled(tree, scale), lambda name, ns: add(part, name, ns))

    def add(part: int, name: str, nanoseconds: int) -> None:
        expected[part][name] += nanoseconds

    live(0, startup)
    at = clock.now
    if begins:
        run.ready()
        live(1, training)
        clock.spend(rest * scale)
    times = run.times()

    assert times.wall_s == (clock.now - started) / 1e9
    assert times.startup_s == ((at if begins else clock.now) - started) / 1e9
    assert times.compile_s == expected[0]["compile"] / 1e9
    assert times.compile_later_s == expected[1]["compile"] / 1e9
    assert 0 <= times.compile_s <= times.startup_s <= times.wall_s
    assert times.compile_later_s <= times.wall_s - times.startup_s + 1e-9
    assert math.isclose(sum(times.phases.values()), 1.0, abs_tol=1e-9)
    assert all(0 <= share <= 1 for share in times.phases.values())
    compiling = times.phases["compile"] * times.wall_s
    assert math.isclose(compiling, times.compile_s + times.compile_later_s, abs_tol=1e-6)

    (wall, start, compiled), shares = printed(times)
    assert compiled <= start <= wall
    hidden = len(times.phases) - len(shares)
    assert 100 - 0.5 * hidden - 0.05 * len(shares) <= sum(shares) + 1e-9
    assert sum(shares) <= 100 + 0.05 * len(shares) + 1e-9


def scaled(tree: Tree, scale: int) -> Tree:
    """Return the tree with all times multiplied by `scale`."""
    name, before, children, after = tree
    return name, before * scale, [scaled(child, scale) for child in children], after * scale


def test_a_start_in_the_future_counts_as_now(clock: Clock) -> None:
    run = RunClock(Spans(), clock.now + 10**9)
    clock.spend(5 * 10**8)
    assert run.elapsed_s() == run.times().startup_s == 0.5


def test_seconds_are_exclusive(clock: Clock) -> None:
    spans = Spans()
    with spans.span("eval"):
        clock.spend(1_000_000_000)
        with spans.span("act"):
            clock.spend(2_000_000_000)
        with spans.span("env"):
            clock.spend(500_000_000)
            with spans.span("act"):
                clock.spend(250_000_000)
    assert (spans.seconds("eval"), spans.seconds("env"), spans.seconds("act")) == (1.0, 0.5, 2.25)
    assert spans.seconds("learn") == 0.0


def test_time_added_by_a_hot_loop_is_taken_off_the_span_around_it(clock: Clock) -> None:
    spans = Spans()
    with spans.span("eval"):
        clock.spend(10)
        spans.add("env", 4)
    spans.add("env", 3)
    assert spans.totals == {"eval": 6, "env": 7}


def test_a_span_that_fails_is_closed_and_counted(clock: Clock) -> None:
    spans = Spans()

    def fail() -> None:
        with spans.span("eval"):
            clock.spend(5)
            with spans.span("env"):
                clock.spend(7)
                raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail()
    assert spans.totals == {"eval": 5, "env": 7}
    with spans.span("learn"):  # it is within no other span
        clock.spend(11)
    assert spans.totals == {"eval": 5, "env": 7, "learn": 11}


@pytest.mark.parametrize("wall_s", [0.0, 1e-12, 1.0, 2.0, 1e9])
def test_phases_are_shares_even_if_the_wall_time_is_less_or_more_than_all_spans(
    clock: Clock, wall_s: float
) -> None:
    spans = Spans()
    for name in ("env", "learn"):
        with spans.span(name):
            clock.spend(1_000_000_000)
    phases = spans.phases(wall_s)
    assert math.isclose(sum(phases.values()), 1.0)
    assert all(0 <= share <= 1 for share in phases.values())
    assert math.isclose(phases["env"], phases["learn"])


def test_without_spans_all_time_is_other() -> None:
    phases = Spans().phases(1.0)
    assert phases["other"] == 1.0
    assert sum(phases.values()) == 1.0


def trace_of(spans: Spans) -> list[dict[str, Any]]:
    """Return the trace's events, read from strict JSON (without NaN and infinities)."""
    text = json.dumps(spans.chrome_trace())
    written = json.loads(text, parse_constant=lambda text: pytest.fail(text))
    assert isinstance(written["traceEvents"], list)
    return written["traceEvents"]


def test_the_trace_has_the_format_of_viewers(clock: Clock) -> None:
    spans, generator = Spans(trace=True), random.Random(0)
    for _ in range(20):
        with spans.span("eval"):
            clock.spend(generator.randrange(1000, 9000))
            with spans.span("act"):
                clock.spend(generator.randrange(1000, 9000))
        begin = clock.now
        clock.spend(2500)
        spans.event("env", begin, clock.now)
    events = trace_of(spans)
    assert len(events) == 60
    for event in events:
        assert event["ph"] == "X"  # a complete event: it needs a start and a duration
        assert event["name"] in NAMES
        assert event["pid"] == os.getpid()
        assert isinstance(event["tid"], int)
        assert event["dur"] > 0
    starts = [event["ts"] for event in events]
    assert starts == sorted(starts)
    outer = [event for event in events if event["name"] == "eval"]
    inner = [event for event in events if event["name"] == "act"]
    for out, own in zip(outer, inner, strict=True):  # microseconds, nested
        assert out["ts"] < own["ts"]
        assert math.isclose(out["ts"] + out["dur"], own["ts"] + own["dur"])
    assert math.isclose(sum(event["dur"] for event in inner), spans.totals["act"] / 1e3)
    assert all(math.isclose(e["dur"], 2.5) for e in events if e["name"] == "env")


def test_without_trace_no_event_is_kept(clock: Clock) -> None:
    spans = Spans()
    with spans.span("env"):
        clock.spend(5)
    spans.event("env", 0, 5)
    assert trace_of(spans) == []
    assert spans.dropped_events == 0


def test_events_beyond_the_maximum_are_counted_and_reported(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TRACE_EVENTS", 10)
    spans = Spans(trace=True)
    for _ in range(13):
        with spans.span("env"):
            clock.spend(5)
    assert spans.dropped_events == 3
    assert spans.totals == {"env": 65}  # the sums include all events
    *kept, note = trace_of(spans)
    assert len(kept) == 10
    assert note["name"] == "3 later events were not kept"
    assert note["ph"] in "iI"
    assert note["s"] == "g"
