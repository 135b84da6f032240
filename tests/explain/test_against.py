"""`explain --against`: from pairs of runs to a ratio of speeds, and its interval."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from flatout_explain.against import rounds
from flatout_explain.against.outcome import Outcome, interval, lines, moved, outcome
from flatout_explain.against.rates import (
    CALLS,
    STEPS,
    UPDATES,
    WALL,
    Run,
    counted,
    counted_outside,
    observed,
    without_evaluation,
)
from flatout_explain.against.rounds import Comparison, check, command_of, refuse_brief
from flatout_explain.errors import FlatoutError, UsageError
from flatout_explain.program.evidence import Evidence, process
from flatout_explain.program.facts import facts_of
from flatout_explain.program.places import Mark
from flatout_explain.program.timeline import Timeline
from flatout_explain.program.tracks import Moment, Track


def runs(*rates: float, unit: str = STEPS, **phases: float) -> list[Run]:
    return [Run({unit: rate}, phases, 10.0) for rate in rates]


# --- The ratio and its interval ---------------------------------------------------------------


@hypothesis_settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.1, 1e6)), min_size=2, max_size=20))
def test_an_interval_contains_the_median_and_scales_as_speeds_do(
    pairs: Sequence[tuple[float, float]],
) -> None:
    first, second = (runs(*rates) for rates in zip(*pairs, strict=True))
    found, back = outcome(first, second), outcome(second, first)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.gain < found.high
    assert found.pairs == len(pairs)
    assert back.low == pytest.approx(1 / found.high)
    assert back.same == found.same
    thrice = outcome(first, [Run({STEPS: 3 * run.rates[STEPS]}) for run in second])
    assert thrice.gain == pytest.approx(3 * found.gain)
    assert thrice.low == pytest.approx(3 * found.low)


@pytest.mark.parametrize("pairs", [2, 3, 4, 6, 8, 9, 12, 20])
def test_intervals_hold_the_true_ratio_as_often_as_they_say(pairs: int) -> None:
    rng = np.random.default_rng(pairs)
    held = 0
    for _ in range(400):
        low, high = interval(np.exp(0.1 * rng.standard_normal(pairs)).tolist(), pairs) or (0, 0)
        held += low <= 1 <= high
    assert held >= 0.92 * 400


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_intervals_hold_the_true_ratio_of_programs_whose_starts_differ(rounds: int) -> None:
    rng = np.random.default_rng(rounds)
    held = 0
    for _ in range(400):
        starts = 0.04 * rng.standard_normal(rounds)
        turns = starts[:, None] + 0.05 * rng.standard_normal((rounds, 10))
        low, high = interval(np.exp(turns).ravel().tolist(), rounds) or (0, 0)
        held += low <= 1 <= high
    assert held >= 0.92 * 400


def test_one_pair_has_no_interval_and_is_never_enough() -> None:
    found = outcome(runs(100), runs(320))
    assert (found.low, found.high, found.narrow) == (None, None, False)
    assert "3.2x environment steps per second, 1 pair: too few" in lines(found, "p")[0]
    assert found.as_json()["same"] is None


def test_runs_of_equal_speed_show_no_difference_and_end_the_measurement() -> None:
    found = outcome(runs(100, 103, 99), runs(101, 101, 100))
    assert (found.same, found.narrow) == (True, True)
    assert lines(found, "python b.py")[0].startswith("python b.py: no difference (0.9")


def test_few_pairs_that_differ_much_are_not_called_a_difference() -> None:
    found = outcome(runs(100, 100), runs(150, 300))
    assert (found.same, found.narrow) == (None, False)
    assert ": undecided; raise --minutes" in lines(found, "b")[0]


def test_a_run_that_others_have_disturbed_does_not_decide() -> None:
    found = outcome(runs(*[100] * 9), runs(*[300] * 8, 20))
    assert found.gain == pytest.approx(3)
    assert (found.same, found.narrow) == (False, True)


def test_the_unit_is_the_first_that_both_programs_have() -> None:
    first = [Run({STEPS: 5.0, UPDATES: 2.0, WALL: 0.1})]
    assert outcome(first, [Run({UPDATES: 4.0, WALL: 0.1})]).unit == UPDATES
    assert outcome(first, [Run({WALL: 0.2})]).unit == WALL
    assert outcome(first, [Run({STEPS: 4.0, CALLS: 1.0})]).unit == STEPS
    with pytest.raises(FlatoutError, match=r"environment steps .* calls; name a function"):
        outcome(first, [Run({CALLS: 4.0})])
    with pytest.raises(FlatoutError, match="--count module:function, or raise --seconds"):
        outcome([Run({})], [Run({})])


def test_programs_that_evaluate_are_compared_by_their_optimiser_steps() -> None:
    """Evaluation steps environments, too: evaluating less often would look like a loss."""
    often = [Run({STEPS: 2000.0, UPDATES: 2.0}, {"eval": 0.8})]
    seldom = [Run({STEPS: 1000.0, UPDATES: 8.0}, {"eval": 0.2})]
    found, back = outcome(often, seldom), outcome(seldom, often)
    assert (found.unit, found.gain, back.unit, back.gain) == (UPDATES, 4.0, UPDATES, 0.25)
    assert any("evaluation takes up to 80 % of a run" in note for note in found.notes)
    without = [Run({STEPS: 1000.0}, {"eval": 0.2})]  # what is compiled counts no optimiser's steps
    assert outcome(often, without).unit == STEPS


def test_phases_that_moved_come_with_their_time_for_each_step() -> None:
    first, second = runs(100, env=0.8, learn=0.2), runs(400, env=0.2, learn=0.79, io=0.01)
    found = outcome(first, second)
    assert [one.phase for one in found.moved] == ["env", "learn"]  # io moved by one point
    env = found.moved[0]
    assert (env.was_s, env.now_s) == (pytest.approx(0.008), pytest.approx(0.0005))
    assert (
        lines(found, "b")[2]
        == "env     80 % to  20 % of the time, 8 to 0.5 ms for each environment step"
    )
    assert moved(first, first) == ()


def test_the_whole_program_s_time_is_a_speed_too() -> None:
    found = outcome(*(runs(*rates, unit=WALL) for rates in ((0.1, 0.1), (0.2, 0.2))))
    said = lines(found, "b")
    assert said[0].startswith("b: 2.00x") or said[0].startswith("b: 2.0x")
    assert "speed of the whole program" in said[0]
    assert said[1] == "10.0 s before, 5.0 s with it"


# --- What was counted -------------------------------------------------------------------------


def counts(pid: int, parent: int, rows: Sequence[Sequence[float]], ended: float = 20.0) -> list:
    return [
        {"k": "process", "pid": pid, "t": 5.0, "argv": ["p"], "python": [3], "stdlib": "/lib"},
        {"k": "counts", "parent": parent, "units": [CALLS, STEPS, UPDATES], "d": rows},
        {"k": "end", "t": ended},
    ]


def test_workers_of_a_vector_environment_count_once() -> None:
    vector = [[10, 0, 0, 0], [20, 7, 4000, 0]]
    worker = [[9, 0, 0, 0], [10, 3, 0, 0], [20, 5, 1000, 0]]
    many = [counts(1, 0, vector), *(counts(pid, 1, worker) for pid in (2, 3, 4, 5))]
    processes = list(map(process, many))
    assert counted(processes, STEPS, 10, 20) == 4000
    assert counted(processes, STEPS, 15, 20) == 2000  # between two times that were noted
    assert counted(processes[1:], STEPS, 10, 20) == 4000  # workers whose parent counts nothing
    assert counted(processes, CALLS, 0, 99) == 7 + 4 * 5  # calls are everybody's
    assert counted(processes, UPDATES, 0, 99) == 0


@hypothesis_settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(1, 50), st.lists(st.integers(0, 9), max_size=4)),
        min_size=1, max_size=20,
    )
)  # fmt: skip
def test_what_is_counted_during_evaluation_is_left_out(
    parts: list[tuple[bool, int, list[int]]],
) -> None:
    """Each part lasts for some hundredths of a second, and counts some steps in each."""
    t, number, trained = 0, 0, 0
    series, spans = [(0.0, 0)], []
    for evaluates, length, steps in parts:
        if evaluates:
            spans.append((t / 100, (t + length) / 100))
        for more in [*steps, 0]:
            t, number = t + length, number + more
            trained += more * (not evaluates)
            series.append((t / 100, number))
        if evaluates:  # moments follow each other
            spans.append(((t - length * len(steps)) / 100, t / 100))
    found = counted_outside(series, spans)
    values = [value for _, value in found]
    assert values[-1] == pytest.approx(trained)
    assert values == sorted(values)
    assert {time for time, _ in series} <= {time for time, _ in found}
    assert counted_outside(series, []) == series


@pytest.mark.parametrize("alone", [True, False])
def test_environment_steps_of_evaluation_are_no_work(alone: bool) -> None:
    """For 0.4 s of each second it evaluates, in environments of its own or of its workers."""
    rows = [[10 + t / 10, 0, 100 * t, 0] for t in range(101)]
    many = [counts(1, 0, rows)] if alone else [counts(1, 0, []), counts(2, 1, rows)]
    processes = list(map(process, many))
    driver = Track(0, "main")
    for t in range(100):
        phase = "eval" if t % 10 < 4 else "env"
        driver.moments.append(Moment(10 + (t + 1) / 10, 0.1, Mark(phase, False, None, ""), 0))
    line = Timeline([driver], [], driver, 10.0, 20.0, [])
    machine = {"cores": 2, "gpus": [], "cpu": "c"}
    work = without_evaluation(Evidence(["p"], machine, 5.0, 20.0, processes, [], []), line)
    assert counted(work, STEPS, 10, 20) == pytest.approx(6000)
    assert counted(work, STEPS, 10, 11) == pytest.approx(600)
    assert counted(work, STEPS, 10, 10.4) == pytest.approx(0, abs=0.001)


def test_a_program_too_short_for_a_steady_state_has_the_rate_of_its_counts() -> None:
    rows = counts(1, 0, [[6.0, 0, 0, 0], [10.0, 0, 0, 0], [10.5, 0, 500, 0]], ended=11.0)
    machine = {"cores": 2, "gpus": [], "cpu": "c"}
    run = observed(facts_of(Evidence(["p"], machine, 5.0, 11.0, [process(rows)], [], [])))
    assert run.rates == {STEPS: pytest.approx(1000), WALL: pytest.approx(1 / 6)}
    assert run.ended
    assert msgspec.convert(json.loads(json.dumps(asdict(run))), Run) == run


# --- What is asked for ------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["python 'fixed.py", "", "  "])
def test_a_command_line_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--against"):
        command_of(text)


@pytest.mark.parametrize(
    ("command", "count", "words"),
    [
        ("python3 a.py", "step", "write module:function"),
        ("python3 a.py", ":step", "write module:function"),
        ("python3 a.py", "a:", "write module:function"),
        ("python3 a.py", "a:b(c", "write module:function"),
        ("python3 a.py", "a:b(c.d)", "write module:function"),
        ("no-such-program a.py", "", "no-such-program cannot be started"),
        ("python3 -I a.py", "a:step", "-I keeps Python from"),
    ],
)
def test_what_cannot_be_counted_is_refused_at_once(command: str, count: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check([["python3", "a.py"], command.split()], count)


def test_damaged_runs_are_refused() -> None:
    good = Comparison((["a"], ["b"]), runs=(runs(1.0), runs(2.0)), gains=[{STEPS: [2.0, 2.5]}])
    good = good.as_json()
    again = Comparison.from_json(json.loads(json.dumps(good)))
    assert isinstance(again.outcome, Outcome)
    assert (again.outcome.gain, again.outcome.pairs) == (2.25, 2)
    for damaged in (-1.0, 0.0, "x", None, float("nan")):
        for change in ("rate", "ratio"):
            broken = json.loads(json.dumps(good))
            if change == "rate":
                broken["runs"][0][0]["rates"][STEPS] = damaged
            else:
                broken["gains"][0][STEPS][1] = damaged
            with pytest.raises((TypeError, ValueError)):
                Comparison.from_json(broken)
    with pytest.raises(ValueError, match="incomplete"):
        Comparison.from_json({**good, "gains": []})


def test_a_program_that_ends_too_early_is_named_unless_both_do() -> None:
    brief = Run({STEPS: 9.0, WALL: 2.0}, {}, 0.5, ended=True, counted_s=0.3)
    lasting = Run({STEPS: 5.0}, {}, 10.0, counted_s=9.0)
    found = Comparison((["python", "a.py"], ["python", "b.py"]), runs=([lasting], [brief]))
    with pytest.raises(FlatoutError, match=r"python b\.py ended after 0\.5 s, with 0\.3 s of"):
        refuse_brief(found)
    refuse_brief(Comparison(found.commands, runs=([brief], [brief])))
    refuse_brief(Comparison(found.commands, runs=([lasting], [lasting])))


def test_what_makes_the_ratio_less_certain_is_told() -> None:
    part = Run({STEPS: 5.0}, part="no learning yet", counted={STEPS: 7}, contended=0.6)
    said = lines(outcome([part], runs(5.0)), "b")
    assert "took up to 60 % of the core time" in said[-2]
    assert said[-3].startswith("only 7 environment steps were counted in a run: raise --seconds")
    assert "was seen in a run (no learning yet): raise --seconds" in said[-1]
    assert outcome(runs(5.0), runs(5.0)).notes == ()


def test_what_was_counted_is_named() -> None:
    found = outcome(runs(9.0, 9.0, 9.0, unit=CALLS), runs(18.0, 18.0, 18.0, unit=CALLS))
    assert (
        " calls of agent:Agent.act per second, 3 pairs" in lines(found, "b", "agent:Agent.act")[0]
    )
    assert " rows of agent:fill per second, 3 pairs" in lines(found, "b", "agent:fill(rows)")[0]


def test_rounds_of_another_machine_are_not_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that was carried to a server has the laptop's rounds."""
    facts = {"cpu": "a CPU", "cores": 4, "gpus": []}
    narrow = Comparison((["python"], ["python"]), runs=(runs(*[1.0] * 9), runs(*[2.0] * 9)),
                        gains=[{}] * 9)  # fmt: skip
    for machine in (facts, facts | {"cores": 64}):
        values = {"flatout_evidence": 2, "machine": machine, "against": narrow.as_json(),
                  "processes": []}  # fmt: skip
        (tmp_path / "s.json").write_text(json.dumps(values))
        asked = Comparison((["python"], ["python"]))
        found = rounds._continued(asked, tmp_path / "s.json", facts)
        said = capsys.readouterr().err
        assert (found is asked) is (machine is not facts)
        assert ("another machine (a CPU, 64 cores)" in said) is (machine is not facts)
