"""A verdict never contradicts the table of times above it."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from rich.console import Console

from flatout.config.settings import resolve
from flatout.explain.rules import LEARNING_HOLDS
from flatout.explain.runs import Evidence, closing, diagnose_evidence
from flatout.run.display import MOST_ROWS, report
from flatout.spans import NAMES, PHASE_WORDS
from flatout.storage.span_records import MAIN, SpanRecord, as_line
from flatout_explain.causes import CAUSE_OF, HEALTHY
from flatout_explain.diagnosis import Diagnosis
from flatout_explain.phases import PHASES
from flatout_explain.report import percent
from tests import tiny
from tests.conftest import Result

Cli = Callable[..., Result]
CONFIGS = {
    name: resolve(name, {"env": "Hopper-v5", "envs": 8, "placement": "cpu", "eval_every": 100})
    for name in ("ppo", "dqn")
}  # fmt: skip


def diagnosed(
    spent: Mapping[str, float], algorithm: str = "ppo", updates: int = 300, iterations: int = 80,
    steps: int = 20_480,
) -> Diagnosis:  # fmt: skip
    """The diagnosis of a run that spent these seconds on these spans."""
    d = max(sum(spent.values()), 0.1)
    spent = {name: s for name, s in spent.items() if name != "other"}  # it is the rest
    records = (SpanRecord(0.0, 1.0, MAIN, {"compile": 1.0}, iterations=1, first=True),
               SpanRecord(1.0, d, MAIN, spent, steps, updates, iterations))  # fmt: skip
    begin = {"begin": {"t": 0.0, "startup_s": 2.0, "compile_s": 0.5, "cores": 4, "envs": 8}}
    lines = [begin, *map(as_line, records)]
    return diagnose_evidence(Evidence("run", CONFIGS[algorithm], lines, ended=True))


def shown(diagnosis: Diagnosis, updates: int) -> tuple[dict[str, float], str]:
    """The table of times (shares in %, by what they are called) and all that a run's end says."""
    summary = {
        "steps": 1, "updates": updates, "episodes": 0, "return_mean_100": None,
        "return_mean_last": None, "time_to_return_s": {}, "steps_to_return": {},
        "steps_per_s": 1.0, "placement": "cpu", "flow": {"environments_lost": 0}, "run_dir": None,
        "ended": "callback", "wall_s": 9.0, "startup_s": 2.0, "compile_s": 1.0,
        "compile_later_s": 0.0, "phases": {"compile": 0.9, "other": 0.1},
    }  # fmt: skip
    out = io.StringIO()
    report(json.loads(json.dumps(summary | closing(diagnosis))), Console(file=out, width=300))
    rows = re.findall(r"^ +([\d.]+)%  (.*?)  ", out.getvalue(), re.MULTILINE)
    return {words: float(share) for share, words in rows}, out.getvalue()


seconds = st.floats(0, 100).map(lambda x: round(x, 2))
tables = st.dictionaries(st.sampled_from([*NAMES, "other"]), seconds, min_size=1)


@hypothesis_settings(deadline=None, max_examples=60)
@given(tables, st.sampled_from([*CONFIGS]), st.sampled_from([0, 1, 300, 10**6]),
       st.integers(1, 10**5))  # fmt: skip
def test_a_verdict_and_the_table_above_it_agree(
    spent: dict[str, float], algorithm: str, updates: int, iterations: int
) -> None:
    if not updates and "learn" in spent:  # a learner that only stores rows records replay
        spent["replay"] = spent.get("replay", 0.0) + spent.pop("learn")
    found = diagnosed(spent, algorithm, updates, iterations)
    phases, first = found.phases, found.findings[0]
    table, text = shown(found, updates)
    large = sorted((share for share in phases.values() if share >= 0.005), reverse=True)
    rows = len(large) if len(large) <= MOST_ROWS else MOST_ROWS - 1
    for phase, share in phases.items():  # the same shares
        words = "storing replay" if phase == "replay" and not updates else PHASE_WORDS[phase]
        words = {"other": "the rest"}.get(phase, words)
        words = "acting, stepping" if phase == "fused" and not updates else words
        if words in table:
            assert table.pop(words) == pytest.approx(100 * share, abs=0.51)
            assert share >= large[rows - 1]
        else:
            assert share < 0.005 or (rows < len(large) and share <= large[rows - 1])
    small = {f"{len(large) - rows} smaller parts": pytest.approx(100 * sum(large[rows:]), abs=0.51)}
    assert table == (small if rows < len(large) else {})
    # The bottleneck is the largest row that a remedy can shorten.
    named = max((phases[phase] for phase in first.phases), default=0.0)
    if found.verdict == HEALTHY:
        assert max(phases["learn"], phases["fused"]) >= LEARNING_HOLDS or not any(
            one.phases for one in found.findings if one.id != "compute-bound"
        )
    for one in found.findings[1:]:
        if one.phases in [(phase,) for phase in (*CAUSE_OF, "eval")]:
            assert phases[one.phases[0]] <= named
    for phase, share in phases.items():  # where something else takes more, it says so
        if share > named + 0.05:
            assert "takes more" in found.headline, (phase, share)
            assert percent(max(phases.values())) in found.headline
    assert "points of" not in found.headline
    if len(first.phases) == 1 and first.phases[0] in (*CAUSE_OF, "fused", "eval"):
        assert percent(named) in found.headline
    assert all(one.gain is None for one in found.findings), "nothing was measured"
    if not updates:  # no proposal for a run that learns
        assert "gradient steps" not in text
        assert "nothing has been learned yet" in text
        assert not any(one.setting for one in found.findings)
        assert "TRY" not in text
    assert set(phases) == set(PHASES)


def test_a_smaller_share_is_no_bottleneck() -> None:
    """It was "env-bound, 29 points of it", while gradient steps took more and were shortened
    by larger batches."""
    found = diagnosed({"env": 2.9, "learn": 3.6, "act": 2.0, "other": 1.5}, updates=400_000)
    assert (found.verdict, found.findings[0].setting) == ("launch-bound", ("--batch-size", "256"))
    # Nothing shortens these updates: the verdict says what takes more.
    found = diagnosed({"env": 2.9, "learn": 4.1, "act": 2.0, "other": 1.0})
    assert found.verdict == "env-bound"
    assert found.headline == (
        "the learner is idle 59 % of the time; 29 % of the time goes into stepping environments; "
        "learning takes more: 41 % of the time"
    )


@pytest.mark.parametrize(("act", "tie"), [(0.5, True), (0.2, False)])
def test_a_tie_is_named_where_iterations_differ_more_than_the_causes(act: float, tie: bool) -> None:
    draw, t = random.Random(1), 1.0
    lines = [{"begin": {"t": 0.0, "startup_s": 2.0, "compile_s": 0.5, "cores": 4, "envs": 8}}]
    lines.append(as_line(SpanRecord(0.0, 1.0, MAIN, {"compile": 1.0}, iterations=1, first=True)))
    for _ in range(30):
        spent = {"env": draw.uniform(0.2, 0.8), "act": act * draw.uniform(0.4, 1.6), "learn": 0.1}
        record = SpanRecord(t, sum(spent.values()), MAIN, spent, 256, 10, 1)
        lines.append(as_line(record))
        t = record.end
    found = diagnose_evidence(Evidence("run", CONFIGS["ppo"], lines, ended=True))
    first, second = found.findings[:2]
    assert {first.id, second.id} == {"env-bound", "acting-bound"}
    assert found.tie == ((first.id, second.id) if tie else ())
    assert found.headline.startswith("a tie: ") is tie
    assert "of the time goes into" in found.headline
    for one in (first, second):
        low, high = one.interval or (1.0, 0.0)
        assert low < one.share < high < low + 0.2


def test_before_the_first_update_nothing_is_proposed() -> None:
    """It was "TRY ... 3.7x" for a run that had learned nothing."""
    found = diagnosed({"env": 7.0, "replay": 1.0, "act": 2.0}, "dqn", updates=0)
    table, text = shown(found, 0)
    assert table == {"stepping environments": 70.0, "choosing actions": 20.0,
                     "storing replay": 10.0}  # fmt: skip
    assert "TRY" not in text
    assert "VERDICT  env-bound: nothing has been learned yet: 70 % of the time" in text
    assert any("No update was made" in note for note in found.notes)
    assert "TRY" in shown(diagnosed({"env": 7.0, "learn": 1.0, "act": 2.0}, "dqn"), 1)[1]


@pytest.mark.usefixtures("shared_programs")
@pytest.mark.parametrize("placement", [
    "cpu", pytest.param("schedule=overlapped", marks=pytest.mark.slow),
    pytest.param("replay=device", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_run_without_updates_shows_no_gradient_steps(
    flatout: Cli, tmp_path: Path, placement: str
) -> None:
    """It was "6.7 % gradient steps" of a run with 0 updates."""
    words = (*tiny.flags("dqn", learning_starts=500), "--placement", placement)
    result = flatout("train", "dqn", *words, "--steps", 256, "--run-dir", tmp_path / "run")
    assert result.code == 0, result.err
    assert "0 updates in" in result.out
    assert "gradient steps" not in result.out
    assert "TRY" not in result.out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["phases"]["learn"] == summary["steady"]["phases"]["learn"] == 0.0
    assert summary["updates"] == 0


def test_measuring_placements_has_a_name_of_its_own() -> None:
    """It was "the rest", and more than half of a short run's steady state."""
    spent = {"env": 3.0, "learn": 1.0}
    plain, measured = diagnosed(spent), diagnosed(spent | {"plan": 5.0})
    assert (measured.phases, measured.seconds) == (plain.phases, plain.seconds)
    assert dict(measured.apart) == dict(plain.apart) | {"measuring placements": 5.0}
    _, text = shown(measured, 300)
    assert "measuring placements 5.0 s" in text
    assert measured.verdict == plain.verdict
