"""How sure a verdict is, and in which order findings stand."""

from __future__ import annotations

import io
import random
from itertools import pairwise

import pytest
from rich.console import Console

from flatout_explain import html
from flatout_explain.diagnosis import Diagnosis, Finding
from flatout_explain.program.diagnose import diagnose, diagnosis_of
from flatout_explain.program.evidence import build
from flatout_explain.program.facts import facts_of
from flatout_explain.program.mechanism import _divided
from flatout_explain.ranking import MOST_BLOCKS, block_ends, interval, ordered, tied
from flatout_explain.report import meters, show
from tests.explain.test_program_rules import Recorded, meta, told


def shown(diagnosis: Diagnosis, width: int = 80) -> str:
    file = io.StringIO()
    show(diagnosis, Console(file=file, width=width, force_terminal=True, color_system=None))
    return file.getvalue()


# --- Intervals --------------------------------------------------------------------------------


@pytest.mark.parametrize("cycles", [True, False], ids=["whole cycles", "equal blocks"])
def test_an_interval_holds_the_true_share_as_often_as_it_says(cycles: bool) -> None:
    """Of 300 programs that step for a random time, then learn for a random time."""
    draw = random.Random(1)
    held = 0
    for _ in range(300):
        each, share = draw.uniform(0.2, 2.0), draw.uniform(0.1, 0.9)
        clock, spans, learned = 0.0, list[tuple[float, float]](), list[float]()
        while clock < 30.0:
            steps = each * share * draw.gammavariate(4.0, 0.25)
            spans.append((clock, clock + steps))
            clock += steps + each * (1 - share) * draw.gammavariate(4.0, 0.25)
            learned.append(clock)
        end = learned[-1] if cycles else 30.0
        edges = [0.0, *block_ends(0.0, end, learned if cycles else ())]
        parts = [
            (sum(max(min(stop, b) - max(start, a), 0.0) for start, stop in spans), b - a)
            for a, b in pairwise(edges)
        ]
        seen = sum(part for part, _ in parts) / sum(length for _, length in parts)
        found = interval(seen, parts)
        assert found is not None
        held += found[0] <= share <= found[1]
    assert 0.90 <= held / 300 <= 0.99


def test_blocks_are_whole_cycles_or_equally_long_and_never_short() -> None:
    assert block_ends(10.0, 15.5) == (11.1, 12.2, 13.3, 14.4, 15.5)
    assert len(block_ends(0.0, 900.0)) == MOST_BLOCKS
    cycles = [0.3 * number for number in range(1, 41)]
    found = block_ends(0.0, cycles[-1], cycles)
    assert set(found) <= set(cycles)
    assert found[-1] == cycles[-1]
    assert min(b - a for a, b in pairwise((0.0, *found))) >= 1.0
    assert block_ends(0.0, 7.0, [3.0, 7.0]) == (3.0, 7.0)
    assert block_ends(0.0, 1.9) == block_ends(0.0, 9.0, [9.0]) == ()


def test_an_interval_is_scaled_to_its_share_and_stays_a_share() -> None:
    parts = [(0.4, 1.0), (0.5, 1.0), (0.6, 1.0), (0.5, 1.0)]
    low, high = interval(0.5, parts) or (0.0, 0.0)
    assert (low + high) / 2 == pytest.approx(0.5)
    assert interval(0.25, parts) == pytest.approx((low / 2, high / 2))
    assert interval(0.02, [(0.0, 1.0), (0.1, 1.0)]) == (0.0, pytest.approx(0.27, abs=0.01))
    assert interval(0.5, parts[:1]) is interval(0.5, [(0.0, 1.0)] * 9) is None


# --- Ties -------------------------------------------------------------------------------------


def observed(seed: int, env: float, replay: float, seconds: float = 24.0) -> Diagnosis:
    """One observation of a program whose iterations take these times on average, and 20 ms of
    writing."""
    draw, driver = random.Random(seed), Recorded(1)
    while driver.clock < seconds:
        driver.spend(env * draw.uniform(0.3, 1.7), "env")
        driver.spend(replay * draw.uniform(0.3, 1.7), "replay").spend(0.02, "io")
        driver.spend(0.01, "learn")
    return told(driver)


def test_of_two_causes_that_cannot_be_distinguished_both_are_named() -> None:
    """Whichever is the larger in one of five observations: the third is never first."""
    found = [observed(seed, env=0.20, replay=0.20) for seed in range(3, 8)]
    assert {one.verdict for one in found} == {"env-bound", "replay-bound"}
    for one in found:
        first, second = one.findings[:2]
        assert one.tie == (first.id, second.id)
        assert set(one.tie) == {"env-bound", "replay-bound"}
        assert one.verdict == first.id
        assert one.headline.startswith(f"a tie: {first.id} (")
        assert f" or {second.id} (" in one.headline
        said = one.as_json()
        assert said["tie"] == [first.id, second.id]
        low, high = said["findings"][0]["interval"]
        assert low <= first.share <= high
        text = shown(one)
        assert text.startswith(f"VERDICT  a tie: {first.id} (")
        assert max(map(len, text.splitlines())) <= 80
        page = html.page(one)
        for remedy in (first.remedy, second.remedy):
            assert " ".join(remedy.split()[:6]) in " ".join(text.split())
            assert remedy.split("(")[0].split("'")[0] in page
        assert text.index("\nTRY ") < text.index("\nOR ") < text.index("\nEVIDENCE ")


def test_a_clear_lead_is_no_tie_and_its_interval_is_shown_once() -> None:
    found = observed(0, env=0.30, replay=0.10)
    assert (found.verdict, found.tie) == ("env-bound", ())
    assert "tie" not in found.as_json()
    assert "tie" not in found.headline
    first, second, third = found.findings[:3]
    text = shown(found, width=120)
    for one in (first, second):
        low, high = one.interval or (0.0, 0.0)
        assert 0.0 < low < one.share < high < 1.0
        assert text.count(f"{100 * low:.0f} to {100 * high:.0f}") == 1
        assert html.page(found).count(f"{100 * low:.0f} to {100 * high:.0f}") >= 1
    assert third.interval is not None
    assert text.count(" to ") - "".join((first.remedy, second.remedy)).count(" to ") <= 4


def test_how_learning_is_divided_is_as_sure_as_its_windows() -> None:
    """All of the time is learning; each second's window sees operations of 20 or of 200 us."""
    driver = Recorded(1).spend(16.0, "learn")
    codes = {row["plain"]: row["i"] for row in driver.rows if row["k"] == "code"}
    for line in (61, 62):
        driver.rows.append({"k": "values", "c": codes["improve"], "line": line, "grad": True})
    for second in range(16):
        ns, line = (20_000, 61) if second % 3 else (200_000, 62)
        events = [[0, 0, codes["improve"], 63]]
        for _ in range(12_000_000 // ns):
            events += [[100, 2, 0, line], [ns, 3, 0, 0]]
        driver.rows.append(
            {"k": "window", "t": second + 0.5, "events": events, "names": ["addmm"],
             "details": [], "stack": [codes["main"], 66], "cost": 0.0}
        )  # fmt: skip
    found = {one.id: one for one in told(driver).findings}
    for cause, share in (("launch-bound", 2 / 3), ("compute-bound", 1 / 3)):
        low, high = found[cause].interval or (0.0, 0.0)
        assert found[cause].share == pytest.approx(share, abs=0.05)
        assert low + 0.3 < high


def test_one_long_interval_of_few_is_no_operator() -> None:
    """As garbage collected within a line of which a window saw three others."""
    name, limit = "", 60_000.0
    assert _divided(name, [2e3, 3e3, 55e6], limit) == (9e3, 0.0)
    assert _divided(name, [2e3, 40e6, 55e6], limit) == (2e3, 95e6)
    assert _divided(name, [55e6], limit) == (0.0, 55e6)
    assert _divided(name, [1e3] * 38 + [55e6] * 2, limit) == (38e3, 110e6)


def test_a_part_of_a_cycle_has_no_interval() -> None:
    found = told(Recorded(1).spend(6.0, "env").spend(3.0, "learn").learns())
    assert found.part
    assert all(one.interval is None for one in found.findings)


@pytest.mark.parametrize(("second", "tie"), [
    (Finding("env-bound", 0.39, (), "", interval=(0.34, 0.44)), True),
    (Finding("env-bound", 0.30, (), "", interval=(0.25, 0.35)), False),
    (Finding("env-bound", 0.39, (), ""), False),
    (Finding("env-bound", 0.20, (), "", interval=(0.0, 0.40)), False),
    (Finding("gpu-unused", 0.39, (), "", interval=(0.34, 0.44)), False),
])  # fmt: skip
def test_a_tie_is_between_causes_whose_intervals_overlap(second: Finding, tie: bool) -> None:
    first = Finding("ipc-bound", 0.41, (), "", interval=(0.36, 0.46))
    others = Finding("contended", 0.5, (), "")
    assert tied([first, second]) == tied([others, first, second]) == ((first, second) * tie)
    memory = Finding("memory-contended", 0.0, (), "")
    assert tied([memory, first, second]) == ()


# --- The order --------------------------------------------------------------------------------


def order(busy: float | None = None, **shares: float) -> list[str]:
    found = [Finding(name.replace("_", "-"), share, (), "") for name, share in shares.items()]
    return [finding.id for finding in ordered(found, busy)]


def test_the_larger_share_stands_first_and_only_contention_before_it() -> None:
    assert order(oversubscribed=0.4, launch_bound=0.15, ipc_bound=0.79) == [
        "ipc-bound", "oversubscribed", "launch-bound"
    ]  # fmt: skip
    assert order(env_bound=0.6, contended=0.3) == ["contended", "env-bound"]
    assert order(gpu_unused=0.9, env_bound=0.2, compute_bound=0.8) == [
        "compute-bound", "env-bound", "gpu-unused"
    ]  # fmt: skip
    # The arithmetic takes so long because its threads wait for each other.
    assert order(compute_bound=0.95, oversubscribed=0.6) == ["oversubscribed", "compute-bound"]
    assert order(unknown=0.96, oversubscribed=0.8) == ["oversubscribed", "unknown"]
    assert order(unknown=0.5, env_bound=0.6, oversubscribed=0.4) == [
        "env-bound", "oversubscribed", "unknown"
    ]  # fmt: skip


def test_computing_of_a_device_stands_after_what_it_waits_for() -> None:
    assert order(0.5, compute_bound=0.5, env_bound=0.3, io_bound=0.1, contended=0.3) == [
        "contended", "env-bound", "compute-bound", "io-bound"
    ]  # fmt: skip
    assert order(0.9, compute_bound=0.9, env_bound=0.1, contended=0.3) == [
        "compute-bound", "contended", "env-bound"
    ]  # fmt: skip


def test_messages_stand_above_the_oversubscription_within_them() -> None:
    driver, worker = Recorded(1), Recorded(2)
    for _ in range(60):
        driver.spend(0.02, "learn").spend(0.08, "wait")
        worker.spend(0.09, "wait").spend(0.01, "env")
    about = meta(driver.clock, busy=3.6)
    for row in about["monitor"]:
        row["runnable"] = 6.7
    found = diagnose(build(about, [driver.written(), worker.written()]))
    assert [one.id for one in found.findings][:2] == ["ipc-bound", "oversubscribed"]
    assert found.findings[1].share == pytest.approx(0.4, abs=0.01)


# --- A program that has ended -----------------------------------------------------------------


def test_a_failed_program_says_so_first() -> None:
    driver = Recorded(1).spend(0.3, "import")
    missing = ["builtins.ModuleNotFoundError", "No module named 'torch'"]
    driver.rows.append({"k": "end", "t": 100.4, "error": missing})
    about = meta(0.4) | {"finished": True, "code": 1}
    found = diagnose(build(about, [driver.written()]))
    words = "the program ended with exit code 1 after 0.4 s: ModuleNotFoundError: No module named"
    assert shown(found, 200).startswith(f"ENDED    {words} 'torch'\nVERDICT  unknown: ")
    assert words in html.page(found)
    assert html.page(found).index(words) < html.page(found).index("<h1>")
    assert "Raise" not in shown(found)
    assert found.apart == (("imports and start", pytest.approx(0.4)),)
    # It is no reason not to explain what was seen before.
    late = Recorded(1).spend(20.0, "env")
    found = diagnose(build(meta(20.0) | {"finished": True, "code": 137}, [late.written()]))
    assert found.ended == "the program ended with exit code 137 after 20.0 s: SIGKILL ended it"
    assert found.verdict == "env-bound"
    well = diagnose(build(meta(20.0) | {"finished": True, "code": 0}, [late.written()]))
    assert well.ended == ""


def test_a_program_that_still_imports_says_so() -> None:
    found = told(Recorded(1).spend(9.0, "import"))
    assert found.headline == "the program was still importing modules after 9.0 s"
    assert "Raise --seconds" in " ".join(found.notes)


def test_a_driver_that_sleeps_and_asks_again_does_not_wait_for_messages() -> None:
    driver, worker = Recorded(1), Recorded(2)
    for _ in range(60):
        driver.spend(0.02, "learn").spend(0.08, "sleep")
        worker.spend(0.09, "send").spend(0.01, "env")
    found = diagnose(build(meta(driver.clock, busy=0.3), [driver.written(), worker.written()]))
    assert found.findings[0].id == "waiting"
    assert found.phases.get("ipc", 0.0) < 0.05


def test_what_follows_training_is_no_part_of_the_explained_time() -> None:
    driver = Recorded(1).spend(5.0, "import").spend(15.0, "learn").spend(10.0, "io")
    about = meta(30.0, busy=2.0) | {"finished": True, "code": 0}
    for row in about["monitor"]:
        row["cpu"] = 0.5 if 105.0 < row["t"] <= 120.0 else 0.0
    facts = facts_of(build(about, [driver.written()]))
    found = diagnosis_of(facts)
    assert found.explained == pytest.approx((5.0, 20.0), abs=0.05)
    assert found.apart[-1] == ("after the last learning", pytest.approx(10.0))
    (cpu,) = meters(found)
    assert cpu.mean == pytest.approx(0.5, abs=0.01)
    used = facts.blame.core_use
    assert used is not None
    assert used.used / used.cores == pytest.approx(cpu.mean), "one figure for rules and report"
