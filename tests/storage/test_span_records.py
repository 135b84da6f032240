"""Span records: read back, truncated on resume, summed over the steady state."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import CheckpointError
from flatout.storage import span_records
from flatout.storage.span_records import (
    SpanRecord,
    Worker,
    as_line,
    cut_after,
    json_lines,
    read_lines,
    steady,
)
from flatout_explain.documents import LONGEST_LINE


def record(t: float, d: float = 1.0, **more: Any) -> SpanRecord:
    return SpanRecord(t, d, **({"spans": {"env": d / 2}, "iterations": 1, "steps": 10} | more))


def test_the_steady_state_leaves_out_what_comes_before_and_after() -> None:
    lines = [
        record(0, 3, first=True, updates=5), record(3, updates=5), record(4, updates=5),
        record(5, 2, closing=True, iterations=0),
    ]  # fmt: skip
    totals, apart = steady(lines)
    assert totals is not None
    assert (totals.seconds, totals.steps, totals.updates) == (2, 20, 10)
    assert dict(apart) == {"first iteration": 3, "end of the run": 2}
    assert totals.main == {"env": 1.0, "other": 1.0}


def test_time_before_the_first_update_is_not_the_steady_state() -> None:
    lines = [record(0, first=True), record(1), record(2, updates=1), record(3, updates=9)]
    totals, apart = steady(lines)
    assert totals is not None
    assert (totals.seconds, totals.updates) == (1, 9)
    assert dict(apart)["before the first update"] == 2


def test_a_run_of_one_iteration_is_explained_with_a_note() -> None:
    totals, _ = steady([record(0, 3, first=True)])
    assert totals is not None
    assert totals.notes
    assert steady([])[0] is None


def test_lines_survive_and_rubbish_is_skipped() -> None:
    one = record(1.5, 0.25, lane="worker 3", turns=4, square=0.5)
    lines = [as_line(one), {"t": "no"}, {"d": 1}, {"spans": 3}, {"begin": {"t": 0.5, "cores": 3}}]
    begins, records = read_lines(lines)
    assert records == [one]
    assert begins[0].cores == 3


@given(
    st.sampled_from(["t", "d", "lane", "steps", "square", "first", "spans"]),
    st.sampled_from(
        [None, [], [None], {}, "x", True, math.nan, math.inf, -math.inf, 1e308, 10**400]
    ),
)
def test_no_record_holds_what_is_no_number(name: str, value: Any) -> None:
    """Damaged lines are skipped: what remains can be summed up and drawn."""
    damaged = as_line(record(1.0)) | {name: {"env": value} if name == "spans" else value}
    for one in read_lines([damaged])[1]:
        numbers = [one.t, one.d, one.steps, one.square, *one.spans.values()]
        assert all(type(n) in (int, float) and math.isfinite(n) for n in numbers)
        assert type(one.lane) is str
        assert type(one.first) is bool
    begins, _ = read_lines([{"begin": {"t": 0.0, name: value, "cores": value}}])
    assert begins == []


def test_cutting_keeps_what_had_ended(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = [{"t": 0.0, "d": 1.0}, {"begin": {"t": 1.0}}, {"t": 1.0, "d": 1.0}, {"t": 2.0, "d": 9}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"t": 3')
    cut_after(path, 2.5)
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines[:3]
    cut_after(path, 0.0)
    assert path.read_text() == ""
    cut_after(tmp_path / "nothing", 1.0)


small = st.integers(0, 3)
worker_records = st.builds(
    SpanRecord,
    t=small.map(float), d=st.just(1.0),
    lane=st.sampled_from(["worker 0", "worker 1", "worker 2", "worker 10", "learner", "other"]),
    spans=st.dictionaries(st.sampled_from(["env", "act", "send"]), small.map(float)),
    turns=small, square=small.map(float),
)  # fmt: skip


@given(st.lists(worker_records, max_size=12))
def test_each_worker_is_summed_up_over_the_steady_time(others: list[SpanRecord]) -> None:
    """By the plain definition, which looks at all records for each worker."""
    mains = [record(0, first=True), record(1), record(2)]
    totals, _ = steady([*mains, *others])
    assert totals is not None
    names = sorted({one.lane for one in others if one.lane.startswith("worker ")},
                   key=lambda name: int(name.split()[1]))  # fmt: skip
    expected = list[Worker]()
    for name in names:
        own = [one for one in others if one.lane == name and one.t in (1.0, 2.0)]
        if own:
            env_s, act_s = (sum(one.spans.get(span, 0.0) for one in own) for span in ("env", "act"))
            turns, square = sum(one.turns for one in own), sum(one.square for one in own)
            expected.append(Worker(env_s, act_s, turns, square))
    assert totals.workers == tuple(expected)


@pytest.mark.parametrize(("limit", "words"), [("MOST_BYTES", "100 bytes"), ("MOST_LINES", "lines")])
def test_a_recording_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, words: str
) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(b"\n" * 100)
    assert json_lines(path) == []
    monkeypatch.setattr(span_records, limit, 99)
    with pytest.raises(CheckpointError, match=words):
        json_lines(path)


def test_a_line_without_end_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    whole = b'{"t": 0.0, "d": 1.0}\n'
    path.write_bytes(whole + b'{"t": 1.0, "d": 1.0, "x": "' + b"x" * LONGEST_LINE + b'"}\n' + whole)
    assert json_lines(path) == 2 * [json.loads(whole)]
    cut_after(path, 9.0)
    assert path.read_bytes() == whole
