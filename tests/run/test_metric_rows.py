"""Rows of metrics: the same as of a file that is read whole, whatever its size and its lines."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.run import metric_rows
from flatout.run.metric_rows import GrowingCurve, evaluated, sampled, value_at
from flatout_explain.documents import LONGEST_LINE

EVALUATION = "eval/return_mean"
values = st.one_of(st.none(), st.floats(-9, 9), st.just(float("nan")))
tables = st.lists(st.tuples(st.integers(1, 3), values, st.integers(0, 40)), min_size=1, max_size=30)
"""Of each row: steps since the one before, the evaluation if there is one, and its length."""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of metrics that is searched in blocks of a few lines."""
    monkeypatch.setattr(metric_rows, "BLOCK", 200)
    return tmp_path / "metrics.jsonl"


def rows(table: list[tuple[int, float | None, int]]) -> list[dict[str, Any]]:
    made, step = list[dict[str, Any]](), 0
    for more, value, length in table:
        step += more
        row: dict[str, Any] = {"step": step, "time/wall_s": step / 2, "x": "y" * length}
        made.append(row if value is None else row | {EVALUATION: value})
    return made


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tables, st.none() | st.integers(0, 100))
def test_the_last_value_is_found_from_the_end(
    path: Path, table: list[tuple[int, float | None, int]], at: int | None
) -> None:
    write(path, made := rows(table))
    known = [row[EVALUATION] for row in made if at is None or row["step"] <= at
             if row.get(EVALUATION) == row.get(EVALUATION, 0)]  # fmt: skip
    assert value_at(path, at, EVALUATION) == (known[-1] if known else None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tables)
def test_every_evaluation_is_found(path: Path, table: list[tuple[int, float | None, int]]) -> None:
    write(path, made := rows(table))
    found = [row["step"] for row in evaluated(path, [EVALUATION])]
    assert found == [row["step"] for row in made if EVALUATION in row]


def test_of_very_many_evaluations_even_ones_are_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_rows, "MOST_EVALUATIONS", 10)
    write(path, rows([(1, 1.0, 0)] * 1000))
    steps = [row["step"] for row in evaluated(path, [EVALUATION])]
    assert 10 <= len(steps) <= 25
    gaps = {after - before for before, after in itertools.pairwise(steps)}
    assert max(gaps) <= 4 * 1000 / len(steps)


def test_rows_hold_the_numbers_that_are_asked_for_alone(path: Path) -> None:
    """A stranger's rows take no memory after they were looked at."""
    row = {"step": 1, "time/wall_s": "?", EVALUATION: [1, 2], "b": 3.0, "c": True, "d": 4}
    write(path, [row])
    assert sampled(path, [EVALUATION, "b", "c"]) == [{"step": 1, "b": 3.0}]


def test_the_search_for_a_value_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_rows, "MOST_PARSED", 50)
    parsed, parse = list[bytes](), metric_rows.parse_line
    monkeypatch.setattr(metric_rows, "parse_line", lambda line: parsed.append(line) or parse(line))
    write(path, [{"step": step, EVALUATION: None} for step in range(1000)])
    assert value_at(path, None, EVALUATION) is None
    assert len(parsed) < 100


@pytest.mark.parametrize("end", ["[" * 3000, "[" + "1," * LONGEST_LINE + "1]", "7"])
@pytest.mark.parametrize("at", [None, 1])
def test_a_file_that_ends_in_no_row_is_damaged(path: Path, end: str, at: int | None) -> None:
    path.write_text(f"{end}\n")
    with pytest.raises((ValueError, TypeError, AttributeError)):
        value_at(path, at, EVALUATION)
    assert sampled(path, [EVALUATION]) == []
    assert evaluated(path, [EVALUATION]) == []


def test_of_a_file_that_grows_only_what_was_added_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pruner asks several times a second, and a long run's file has hundreds of MiB."""
    read, parse = list[bytes](), metric_rows.parse_line
    monkeypatch.setattr(metric_rows, "parse_line", lambda line: (read.append(line), parse(line))[1])
    curve = GrowingCurve(path, ["eval/accuracy", EVALUATION])
    assert curve.first(0) is None, "there is no file yet"
    made = rows([(10, 1.0, 0), (10, None, 0), (10, 3.0, 0)])
    write(path, made)
    assert [curve.first(step) for step in (0, 10, 11, 30, 31)] == [1.0, 1.0, 3.0, 3.0, None]
    assert len(read) == 3
    whole = path.read_bytes()
    last = json.dumps({"step": 40, EVALUATION: 4.0}).encode()
    path.write_bytes(whole + last[:20])
    assert curve.first(31) is None, "a line that is not whole yet is read once it is"
    path.write_bytes(whole + last + b"\n")
    assert (curve.first(31), len(read)) == (4.0, 4)
    write(path, made[:1])  # as a resumed run cuts it
    assert (curve.first(5), len(read)) == (1.0, 5)


def test_a_growing_file_of_a_stranger_is_read_in_pieces(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_rows, "MOST_ADDED", 100)
    path.write_bytes(b"x" * 250 + b"\n" + json.dumps({"step": 1, EVALUATION: 2.0}).encode() + b"\n")
    curve = GrowingCurve(path, [EVALUATION])
    assert [curve.first(0) for _ in range(4)] == [None, None, 2.0, 2.0]
