"""Causes that Python and the kernel count: recorded counters in, findings out."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flatout_explain.causes import OVERLAPPING
from flatout_explain.diagnosis import Diagnosis, Finding
from flatout_explain.hardware import counters
from flatout_explain.program import attach
from flatout_explain.program.attach import finish, probe_module
from flatout_explain.program.diagnose import diagnose
from flatout_explain.program.evidence import build, process, rows_of
from flatout_explain.program.garbage import between
from flatout_explain.ranking import ordered
from flatout_explain.report import advised, show
from flatout_explain.timespans import interpolated
from tests.explain.test_probe import observed
from tests.explain.test_program_rules import Recorded, meta

COST = {"fault_s": [1e-6, 50e-6], "memory_mb": 24 * 1024, "free_mb": 8 * 1024}


def steps(place: str = "env", seconds: float = 24.0) -> Recorded:
    """A program that learns for a tenth of the time."""
    driver = Recorded(1)
    while driver.clock < seconds:
        driver.spend(0.45, place).spend(0.05, "learn")
    return driver


def told(driver: Recorded, machine: dict[str, Any] | None = None, **sample: Any) -> Diagnosis:
    """The diagnosis, with the same counters in each of the monitor's samples."""
    about = meta(driver.clock, cores=2)
    about["machine"] |= COST | (machine or {})
    for row in about["monitor"]:
        row |= sample
    return diagnose(build(about, [driver.written()]))


def found(diagnosis: Diagnosis, cause: str) -> Finding | None:
    return next((one for one in diagnosis.findings if one.id == cause), None)


# --- Garbage ----------------------------------------------------------------------------------


def collecting(driver: Recorded, share: float, asked: float = 0.0) -> Recorded:
    """Rows of a process that collects garbage for a share of its time."""
    code = next(row["i"] for row in driver.rows if row.get("plain") == "main")
    for second in range(int(driver.clock) + 1):
        spent = share * second
        driver.rows.append({
            "k": "garbage", "t": second, "times": [700 * second, 70 * second, second],
            "seconds": [0.1 * spent, 0.1 * spent, 0.8 * spent], "asked": asked * spent,
            "places": [[code, 66, share]],
        })  # fmt: skip
    return driver


def test_garbage_is_named_with_its_share_its_generation_and_its_place() -> None:
    said = told(collecting(steps(), 0.3))
    one = found(said, "garbage-bound")
    assert one is not None
    assert one.share == pytest.approx(0.3, abs=0.01)
    assert one.interval == (pytest.approx(0.3, abs=0.01), pytest.approx(0.3, abs=0.01))
    assert "of generation 2" in one.evidence[0]
    assert one.place == ("/home/me/train.py", 66)
    assert "gc.freeze()" in one.remedy
    assert said.verdict == "env-bound", "the phase that it is a part of is larger"
    assert [(label, tried.id) for label, tried in advised(said)] == [
        ("Try", "env-bound"), ("Or", "garbage-bound"),
    ]  # fmt: skip


def test_collections_that_the_program_calls_for_have_another_remedy() -> None:
    one = found(told(collecting(steps(), 0.3, asked=0.9)), "garbage-bound")
    assert one is not None
    assert one.remedy.startswith("Call gc.collect() less often")


def test_collections_before_the_steady_state_decide_nothing() -> None:
    """Such as those of the imports, which the program calls for at another line."""
    driver = Recorded(1).spend(6.0, "import")
    while driver.clock < 30.0:
        driver.spend(0.45, "env").spend(0.05, "learn")
    codes = {row["plain"]: row["i"] for row in driver.rows if row["k"] == "code"}
    for second in range(31):
        start, steady = min(second, 6), max(second - 6, 0)
        place = [codes["_find_and_load"], 60] if second <= 6 else [codes["main"], 66]
        driver.rows.append({
            "k": "garbage", "t": second, "times": [9000 * start, 0, 10 * steady],
            "seconds": [0.9 * start, 0.0, 0.1 * steady], "asked": 0.9 * start,
            "places": [[*place, 0.9 if second <= 6 else 0.1]],
        })  # fmt: skip
    one = found(told(driver), "garbage-bound")
    assert one is not None
    assert one.evidence[0].endswith("take 10 % of the time: 235 of generation 2 (2.4 s)")
    assert one.remedy.startswith("Call gc.freeze()")
    assert one.place == ("/home/me/train.py", 66)


def test_little_garbage_and_older_evidence_say_nothing() -> None:
    assert found(told(collecting(steps(), 0.02)), "garbage-bound") is None
    assert not {*OVERLAPPING, "memory-full"} & {one.id for one in told(steps()).findings}


COLLECTS = """
import gc, os, time

class Node:
    def __init__(self):
        self.me = self

def search():
    nodes = [Node() for _ in range(20000)]  # MAKES
    return len(nodes)

seen = [0, 0, 0]

def note(event, about):
    seen[about["generation"]] += event == "stop"

gc.collect()
gc.callbacks.append(note)
end = time.process_time() + 1.5
while time.process_time() < end:
    search()
gc.callbacks.remove(note)
print(*seen)
"""


def test_collections_of_a_program_are_counted_as_itself_does(tmp_path: Path) -> None:
    done, folder = observed(COLLECTS, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (seen,) = map(process, rows_of(folder))
    times = list(map(int, done.stdout.split()))
    last = seen.garbage[-1]
    assert all(own <= counted for own, counted in zip(times, last.times, strict=True))
    assert last.asked < 0.5 * sum(last.seconds)
    places = between(seen.garbage, 0.0, last.t).places
    (code, line) = max(places, key=lambda place: places[place])
    lines = COLLECTS.splitlines()
    makes = {n for n, text in enumerate(lines, 1) if "MAKES" in text or "self" in text}
    assert line in makes
    assert seen.codes[code].plain in ("__init__", "<listcomp>", "search")
    hidden = {one.plain for one in seen.codes}
    assert "collected" not in hidden, "the probe's own callback is no part of what is seen"


CALLS_FOR = """
import gc, time

kept = []
gc.collect()
{before}
end = time.process_time() + 0.7
while time.process_time() < end:
    {step}
"""


@pytest.mark.parametrize(
    ("before", "step"),
    [
        ("gc.disable()", "kept.extend([] for _ in range(5000)); gc.collect()"),
        ("kept.extend([] for _ in range(50_000))", "gc.collect(1)"),
    ],
    ids=["disabled", "a young generation"],
)
def test_collections_that_the_program_calls_for_are_recognised(
    tmp_path: Path, before: str, step: str
) -> None:
    done, folder = observed(CALLS_FOR.format(before=before, step=step), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (seen,) = map(process, rows_of(folder))
    last = seen.garbage[-1]
    assert last.asked > 0.5 * sum(last.seconds)


PARSES = """\
import ast
import gc

big = "x = (" + "+".join(f"f{n}(a[{n}])" for n in range(300)) + ")"
kept = [[] for _ in range(50_000)]
gc.set_threshold(300, 2, 2)

""" + "".join(
    f"""
def parse_{n}():
    for _ in range(3):
        ast.parse(big)

parse_{n}()
"""
    for n in range(40)
)
"""Is interrupted by collections, in functions not seen before, while it makes syntax trees."""


def test_a_collection_does_not_end_a_program_that_parses(tmp_path: Path) -> None:
    done, _ = observed(PARSES, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


# --- Memory -----------------------------------------------------------------------------------


def test_memory_that_is_fetched_again_and_again_is_named_with_the_variables() -> None:
    """300,000 faults of a microsecond each, by the main thread."""
    said = told(steps(), faults={"1": [300_000, 300_000, 0, 0.3]}, rss_mb=500.0)
    one = found(said, "allocation-bound")
    assert one is not None
    assert one.share == pytest.approx(0.3, abs=0.01)
    assert "300,000 times per second" in one.evidence[0]
    assert "MALLOC_TRIM_THRESHOLD_" in one.remedy


@pytest.mark.parametrize(
    ("sample", "share"),
    [
        ({"faults": {"1": [300_000, 300_000, 0, 0.1]}}, 0.1),  # no more than the kernel's time
        ({"faults": {"1": [8_000, 8_000, 0, 0.9]}, "huge": 4000.0}, 0.204),
        ({"faults": {"1": [300_000, 300_000, 0, 0.5]}}, 0.5),  # mostly faults: all of it
        ({"faults": {"1": [300_000, 30_000, 0, 0.9]}, "processes": {"1": 2.0}}, 0.15),
        ({"faults": {"2": [300_000, 300_000, 0, 0.9]}}, None),  # of another process
    ],
    ids=["kernel", "huge pages", "mostly", "two threads", "another process"],
)
def test_the_time_of_page_faults(sample: dict[str, Any], share: float | None) -> None:
    one = found(told(steps(), **sample), "allocation-bound")
    assert (None if one is None else one.share) == (
        share if share is None else pytest.approx(share, abs=0.01)
    )


def test_memory_that_only_grows_is_not_fetched_again() -> None:
    about = meta(24.0, cores=2)
    about["machine"] |= COST
    for row in about["monitor"]:
        row |= {"faults": {"1": [100_000, 100_000, 0, 0.4]}, "rss_mb": 390.6 * row["t"]}
    said = diagnose(build(about, [steps().written()]))
    assert found(said, "allocation-bound") is None


def test_a_program_that_observing_makes_faster_is_named() -> None:
    """Observed it fetches nothing; right after that, half of the time."""
    about = meta(24.0, cores=2) | {
        "unobserved": {"t": 125.0, "seconds": 0.7, "cores": 2, "cpu": 0.5,
                       "faults": {"1": [500_000, 500_000, 0, 0.5]}},
    }  # fmt: skip
    about["machine"] |= COST
    one = found(diagnose(build(about, [steps().written()])), "allocation-bound")
    assert one is not None
    assert one.share == pytest.approx(0.5)
    assert any("right after that" in words for words in one.evidence)


def test_waiting_for_pages_that_had_to_leave_is_named() -> None:
    counts = {"faults": {"1": [0, 0, 900, 0.1]}, "stalled": 0.4, "swapped": 800.0}
    one = found(told(steps(), **counts), "swapping")
    assert one is not None
    assert one.share == pytest.approx(0.4)
    assert "900 times per second" in one.evidence[0]
    assert "swaps 800 pages per second" in one.evidence[1]
    assert found(told(steps(), stalled=0.4, swapped=800.0), "swapping") is None, "others' waiting"


def test_memory_that_will_soon_be_full_is_named_with_the_time_that_is_left() -> None:
    about = meta(24.0, cores=2)
    about["machine"] |= COST
    for row in about["monitor"]:
        row["rss_mb"] = 1000.0 + 3.0 * (row["t"] - 100.0)
    driver = steps()
    said = diagnose(build(about, [driver.written()]))
    one = found(said, "memory-full")
    assert one is not None
    assert one == said.findings[-1]
    assert "grows by 180 MiB per minute" in one.evidence[0]
    assert "the 24 GiB are full in 40 min" in one.evidence[0]
    file = io.StringIO()
    show(said, Console(file=file, width=200))
    assert "ALSO" in file.getvalue()
    assert "the 24 GiB are full in 40 min" in file.getvalue()
    for row in about["monitor"]:  # it has come to an end
        row["rss_mb"] = min(row["rss_mb"], 1030.0)
    assert found(diagnose(build(about, [driver.written()])), "memory-full") is None


class Ended:
    """A program that has ended."""

    pid = 4711

    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int:
        return self.code


class Counts:
    """A group of 512 MiB in which a process was ended."""

    def oom_kills(self) -> tuple[int, int]:
        return 1, 8

    def memory_limit(self) -> int:
        return 512 << 20


@pytest.mark.parametrize(
    ("code", "whom"),
    [(-9, "the program"), (0, "a process of the program"), (1, "a process of the program")],
)
def test_what_the_oom_killer_ended_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, whom: str
) -> None:
    monkeypatch.setattr(counters, "Counters", Counts)
    driver = steps()
    about = meta(driver.clock, cores=2)
    about["machine"] |= COST | {"oom_kills": (0, 7)}
    (tmp_path / attach.LOCK).touch()
    recorded, _ = finish(Ended(code), tmp_path, about, about["ended"])  # pyright: ignore[reportArgumentType]
    said = diagnose(build(recorded, [driver.written()]))
    assert said.verdict == "memory-full"
    assert (
        f"OOM killer ended {whom}, because the 0.5 GiB of its control"
        in (said.findings[0].evidence[0])
    )
    assert ("because the 0.5 GiB of its control group was full" in said.ended) == (code == -9)


# --- Quotas and order -------------------------------------------------------------------------


def test_a_quota_is_named_and_neither_other_programs_nor_threads_are() -> None:
    """Half a core of quota, and one thread that wants a whole one."""
    counts = {"cores": 1, "cpu": 0.5, "cpu_all": 1.0, "delayed": 0.5, "throttled": 0.5}
    about = meta(24.0, cores=1)
    for row in about["monitor"]:
        row |= counts
    said = diagnose(build(about, [steps().written()]))
    one = found(said, "throttled")
    assert one is not None
    assert one.share == pytest.approx(0.5)
    assert "left it 0.5 cores; it wanted 1.0" in one.evidence[0]
    assert found(said, "contended") is found(said, "oversubscribed") is None


def test_an_overlapping_cause_stands_first_only_if_it_is_most_of_the_arithmetic() -> None:
    def order(**shares: float) -> list[str]:
        each = [Finding(name.replace("_", "-"), share, (), "") for name, share in shares.items()]
        return [one.id for one in ordered(each)]

    assert order(garbage_bound=0.3, env_bound=0.6) == ["env-bound", "garbage-bound"]
    assert order(compute_bound=0.9, throttled=0.5) == ["throttled", "compute-bound"]
    assert order(compute_bound=0.9, throttled=0.4) == ["compute-bound", "throttled"]
    assert order(unknown=0.9, oversubscribed=0.5) == ["oversubscribed", "unknown"]
    assert order(compute_bound=0.9, garbage_bound=0.1) == ["compute-bound", "garbage-bound"]


def test_a_healthy_program_gets_the_remedy_of_its_largest_other_cause() -> None:
    diagnosis = diagnose(build(meta(1.0), [steps("learn").written()]))
    computing = Finding("compute-bound", 0.9, (), "")
    waiting = Finding("allocation-bound", 0.4, (), "Keep memory.")
    few = replace(waiting, share=0.1)
    for others, advice in (((waiting, few), [("Try", waiting)]), ((few,), [])):
        healthy = replace(diagnosis, verdict="healthy", tie=(), findings=(computing, *others))
        assert advised(healthy) == advice


def test_behind_other_programs_stands_the_remedy_of_the_largest_cause() -> None:
    """A machine that is shared stays shared."""
    diagnosis = diagnose(build(meta(1.0), [steps("learn").written()]))
    others, loading = (
        Finding("contended", 0.4, (), "Stop."),
        Finding("input-bound", 0.9, (), "Load."),
    )
    few, memory = replace(loading, share=0.1), Finding("allocation-bound", 0.2, (), "Keep memory.")
    for behind, advice in (
        ((loading,), [("Try", others), ("Then", loading)]),
        ((loading, memory), [("Try", others), ("Then", loading), ("Or", memory)]),
        ((memory, few), [("Try", others), ("Then", memory)]),
        ((few,), [("Try", others)]),
        ((Finding("unknown", 0.9, (), "Observe it for longer."),), [("Try", others)]),
    ):
        shared = replace(diagnosis, verdict="contended", tie=(), findings=(others, *behind))
        assert advised(shared) == advice


def test_without_an_interpreters_lock_nothing_is_said_of_it() -> None:
    """The main thread sleeps in its work while another thread works."""
    driver = Recorded(1)
    driver.rows.append({"k": "lane", "i": 1, "main": False, "name": "helper"})
    for _ in range(100):
        driver.spend(0.1, "replay", 0, 0.004, 0.006).also(1, 0.1, "own", 0.1)
        driver.spend(0.02, "learn", 0, 0.01, 0.0)

    def lock_words() -> list[str]:
        said = diagnose(build(meta(driver.clock), [driver.written()]))
        return [note for note in said.notes if "interpreter lock" in note]

    assert lock_words()
    driver.rows.append({"k": "gil", "on": False})
    assert not lock_words()


def test_programs_that_are_started_in_each_turn_are_named_like_workers() -> None:
    """Each second's window sees one start of a command; the kernel knows of brief processes."""
    driver = steps("wait")
    code = next(row["i"] for row in driver.rows if row.get("plain") == "main")
    for second in range(24):
        driver.rows.append({
            "k": "window", "t": second + 0.1, "stack": [code, 66], "details": [], "cost": 0.0,
            "names": ["fork_exec", "poll"],
            "events": [[0, 2, 0, 66], [2_000_000, 3, 0, 0], [0, 2, 1, 66], [18_000_000, 3, 0, 0]],
        })  # fmt: skip
    said = told(driver, brief=0.3)
    assert said.verdict == "ipc-bound"
    assert "programs were started in 24 s" in said.findings[0].evidence[0]
    assert said.findings[0].remedy.startswith("Do not start a program in each turn")
    assert told(driver).verdict == "waiting", "nothing ended soon"


# --- Counts of calls --------------------------------------------------------------------------


def counting(missing: str | None, calls: int = 0) -> list[str]:
    """Return the report's notes about ``--count`` of a function with this number of calls."""
    driver = steps(seconds=4.0)
    counts: dict[str, Any] = {
        "k": "counts",
        "parent": 0,
        "units": ["calls"],
        "d": [[0.0, 0], [4.0, calls]],
    }
    driver.rows.append(counts | ({} if missing is None else {"missing": missing}))
    about = meta(driver.clock)
    about["machine"] |= COST
    about["count"] = "agent:learn(rows)"
    return [note for note in diagnose(build(about, [driver.written()])).notes if "--count" in note]


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("function", "agent:learn was not found (in the program's own file a function is"),
        ("argument", "agent:learn has no argument rows."),
        ("", "agent:learn was found, but not called, or rows was 0 or no number."),
        (None, "agent:learn may not have been found (in"),  # older evidence
    ],
)
def test_a_function_that_was_not_counted_is_named_with_the_reason(
    missing: str | None, words: str
) -> None:
    (note,) = counting(missing)
    assert note.startswith(f"--count agent:learn(rows): nothing was counted, because {words}")
    assert counting(missing, calls=7) == []


def test_many_changes_of_a_count_are_noted_less_often_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program may be observed for hours."""
    module = probe_module("_flatout_count")
    monkeypatch.setattr(module, "MANY_ROWS", 100)
    counter = module.Counter("agent:learn")
    for second in range(4000):
        counter.tallies["calls"].one()
        counter.note(float(second))
        counter.note(second + 0.5)
    times, calls, *_ = zip(*counter.row()["d"], strict=True)
    assert len(times) < 2 * 700
    assert (times[-1], calls[-1]) == (pytest.approx(3999, abs=32), pytest.approx(4000, abs=32))
    for t in range(100, 3900, 100):
        assert interpolated(t, times, calls) == pytest.approx(t + 1, abs=32)
