"""`explain --diff`: which phases, causes and lines take more or less time than before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flatout_explain.diagnosis import Diagnosis, Finding, LineShare, WorkRate
from flatout_explain.difference import Difference, difference, lines
from flatout_explain.document import Report, read
from flatout_explain.errors import UsageError
from tests.conftest import Result
from tests.explain.recorded import unpacked, values_of
from tests.explain.test_report import empty

Cli = Callable[..., Result]
STEPS = "environment steps"


def report(**changes: Any) -> Report:
    """A report as `--json` writes it."""
    said = replace(empty(), **changes).as_json()
    return read(json.loads(json.dumps(said)), Path("said.json"))


def slow(**changes: Any) -> Report:
    """A program that spends 72 % on replay: 435 steps per second."""
    about: dict[str, Any] = {
        "phases": {"replay": 0.72, "learn": 0.25, "env": 0.03},
        "intervals": {"replay": (0.70, 0.74), "learn": (0.23, 0.27)},
        "work": {STEPS: WorkRate(435.0, (430.0, 440.0))},
        "findings": (
            Finding("replay-bound", 0.72, (), "", interval=(0.70, 0.74)),
            Finding("launch-bound", 0.25, (), ""),
        ),
        "heaviest": (
            LineShare("replay", "dqn.py:35", "torch.tensor(following)", 0.25),
            LineShare("learn", "dqn.py:48", "optimizer.step()", 0.20),
        ),
    }
    return report(**about | changes)


def fast(**changes: Any) -> Report:
    """The same with a faster replay, and one line more above it: 668 steps per second."""
    about: dict[str, Any] = {
        "phases": {"replay": 0.54, "learn": 0.41, "env": 0.05},
        "intervals": {"replay": (0.50, 0.58), "learn": (0.37, 0.45)},
        "work": {STEPS: WorkRate(668.0, (660.0, 676.0))},
        "findings": (
            Finding("replay-bound", 0.54, (), "", interval=(0.50, 0.58)),
            Finding("launch-bound", 0.41, (), ""),
        ),
        "heaviest": (LineShare("learn", "dqn.py:49", "optimizer.step()", 0.32),),
    }
    return report(**about | changes)


def words(found: Difference) -> str:
    return "\n".join(f"{label} {row}" for label, rows in lines(found).items() for row in rows)


def test_times_are_compared_for_one_unit_of_the_work_that_both_counted() -> None:
    found = difference(slow(), fast())
    assert found.unit == STEPS
    assert [change.name for change in found.phases] == ["replay", "learn"][:1]
    replay = found.phases[0]
    assert replay.was is not None
    assert replay.now is not None
    assert replay.was.each_s == pytest.approx(0.72 / 435)
    assert replay.now.each_s == pytest.approx(0.54 / 668)
    assert replay.moved == pytest.approx(0.54 * 435 / 668 - 0.72)
    assert replay.sure is True
    text = words(found)
    assert "each environment step takes 2.3 to 1.5 ms" in text
    assert "replay shrank most (1.66 to 0.808 ms for each environment step)" in text
    assert "grew" not in text, "learning takes the same time for a step; only its share is larger"
    assert "72 % (70 to 74) to 54 % (50 to 58) of the time" in text


def test_without_counted_work_shares_are_compared_and_that_is_said() -> None:
    found = difference(slow(work={}), fast())
    assert found.unit == ""
    assert [change.name for change in found.phases] == ["replay", "learn", "env"]
    text = words(found)
    assert "replay shrank most (72 % to 54 % of the time); learn grew most" in text
    assert "no counted work in common" in text
    assert "--count steps" in text


def test_a_change_within_the_intervals_is_not_certain() -> None:
    found = difference(slow(work={}), fast(intervals={"replay": (0.40, 0.71)}))
    assert found.phases[0].sure is False
    assert "shrank (not certain: the intervals overlap)" in words(found)
    assert "replay shrank most" not in words(found)


def test_a_line_is_known_by_its_source_though_the_file_was_edited() -> None:
    found = difference(slow(work={}), fast(work={}))
    assert [change.name for change in found.lines] == [
        "dqn.py `torch.tensor(following)`", "dqn.py `optimizer.step()`",
    ]  # fmt: skip
    text = words(found)
    assert "25 % of the time before, not listed now: shrank" in text
    assert "20 % to 32 % of the time: grew" in text


def test_a_cause_that_is_new_or_gone_is_listed() -> None:
    found = difference(slow(work={}), fast(work={}, findings=(Finding("io-bound", 0.3, (), ""),)))
    text = words(found)
    assert "io-bound      30 % of the time now, not listed before: grew" in text
    assert "replay-bound  72 % of the time before, not listed now: shrank" in text


def test_equal_reports_have_no_changes() -> None:
    found = difference(slow(), slow())
    assert (found.phases, found.causes, found.lines) == ((), (), ())
    assert "no phase changed by more than 2 % of the time" in words(found)


def test_reports_of_different_kinds_are_refused() -> None:
    with pytest.raises(UsageError, match="are of a program and of a profiler's trace"):
        difference(slow(), fast(kind="trace"))


def test_other_machines_and_parts_are_said() -> None:
    text = words(difference(slow(machine="A"), fast(machine="B", part="no learning yet")))
    assert "The machines differ: A; then B." in text
    assert "The second report shows only a part of what the program does (no learning yet)." in text


# --- The command ------------------------------------------------------------------------------


def test_evidence_and_a_report_of_it_are_compared(flatout: Cli, tmp_path: Path) -> None:
    evidence, said = unpacked("two_ranks_torch", tmp_path), tmp_path / "said.json"
    flatout("explain", evidence, "--json", said)
    result = flatout("explain", "--diff", evidence, said, "--json", tmp_path / "diff.json")
    assert result.code == 0
    assert "no phase changed" in result.out
    found = json.loads((tmp_path / "diff.json").read_text())
    assert (found["schema"], found["kind"], found["unit"]) == (1, "difference", None)
    assert found["phases"] == found["causes"] == found["lines"] == []
    other = unpacked("es_pool", tmp_path)
    result = flatout("explain", "--diff", evidence, other)
    assert "communicate shrank most (80 % to 0 % of the time)" in result.out
    assert result.out.startswith("VERDICT  ")


def diagnosis_json(**changes: Any) -> dict[str, Any]:
    said: Diagnosis = empty()
    return said.as_json() | changes


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("{", "is neither a report nor evidence: "), ("[1]", "is neither a report nor evidence of"),
     (json.dumps({"k": 1}), "is not evidence that flatout explain --save wrote"),
     (json.dumps({"verdict": "env-bound", "phases": {}}), "is a report without a version"),
     (json.dumps(diagnosis_json(schema=9)), "is a report of version 9"),
     (json.dumps(diagnosis_json(kind="difference")), "is a damaged report"),
     (json.dumps(diagnosis_json(findings=[1])), "is a damaged report")],
)  # fmt: skip
def test_a_file_that_is_no_report_is_refused_in_a_sentence(
    content: str, sentence: str, flatout: Cli, tmp_path: Path
) -> None:
    good, bad = unpacked("two_ranks_torch", tmp_path), tmp_path / "bad.json"
    bad.write_text(content)
    result = flatout("explain", "--diff", good, bad)
    assert result.code == 1
    assert f"{bad} {sentence}" in result.message


def test_evidence_of_another_form_is_refused(flatout: Cli, tmp_path: Path) -> None:
    good, old = unpacked("two_ranks_torch", tmp_path), tmp_path / "old.json"
    old.write_text(json.dumps(values_of("two_ranks_torch") | {"flatout_evidence": 1}))
    result = flatout("explain", "--diff", good, old)
    assert result.code == 1
    assert f"{old} was recorded by another version of this tool" in result.message


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [("--diff", "--diff needs two files"), ("--diff {good}", "--diff needs two files"),
     ("--diff {good} --json x", "--diff needs two files"),
     ("--diff {good} {good} --save x.json", "--save cannot be combined with --diff"),
     ("--diff {good} {good} --fail-if env>5", "--fail-if cannot be combined with --diff"),
     ("--diff {good} {good} -- python x.py", "explain needs one thing to explain"),
     ("--diff {good} {run}", "--diff compares saved reports, and {run} is a run's folder"),
     ("--diff {good} none.json", "none.json does not exist")],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(
    argv: str, sentence: str, flatout: Cli, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    paths = {"good": unpacked("two_ranks_torch", tmp_path), "run": run}
    result = flatout("explain", *argv.format(**paths).split(), exact=True)
    assert result.code == 2
    assert sentence.format(**paths) in result.message
