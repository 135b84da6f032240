"""Programs on GPUs, as constructed evidence: what the card computes and what it waits for."""

from __future__ import annotations

import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout_explain.cards import WAITS_FOR
from flatout_explain.cards import waits as waits_of
from flatout_explain.diagnosis import Diagnosis
from flatout_explain.hardware.nvml import visible_handles
from flatout_explain.phases import PHASES
from flatout_explain.program.attach import cards_shown, machine
from flatout_explain.program.diagnose import diagnose
from flatout_explain.program.evidence import build
from flatout_explain.ranking import LOST
from flatout_explain.report import advice
from tests.explain.test_program_rules import PLACES, Recorded, card, meta

Card = dict[str, Any]
LIBRARIES = pytest.mark.parametrize("library", ["torch", "jax"])


def loop(library: str = "torch", **seconds: float) -> Recorded:
    """A program that spends these seconds at places in turn, forty times."""
    driver = Recorded(1).loads(library)
    for _ in range(40):
        for place, spent in seconds.items():
            # A thread that waits for a device sleeps; everywhere else it works.
            worked = 0.001 if place in ("item", "fetch") else 0.01
            driver.spend(spent, place, 0, worked, 0.0)
    return driver


def on(driver: Recorded, *cards: Card, begin_mb: int | None = None, **given: Any) -> Diagnosis:
    """The diagnosis of a program beside these cards.

    Args:
        begin_mb: memory in use on each card in the first sample; by default as in the others.
        given: more of the evidence.
    """
    about: dict[str, Any] = meta(driver.clock) | given
    about["machine"]["gpus"] = ["H100"] * len(cards)
    for number, row in enumerate(about["monitor"]):
        row["gpus"] = [one | {"index": index} for index, one in enumerate(cards)]
        if begin_mb is not None and number == 0:
            row["gpus"] = [one | {"used_mb": begin_mb} for one in row["gpus"]]
    return diagnose(build(about, [driver.written()]))


def waits(found: Diagnosis) -> dict[str, float]:
    return {one.id: one.share for one in found.findings}


# --- A card that works ------------------------------------------------------------------------


@LIBRARIES
@pytest.mark.parametrize(
    "seconds",
    [{"learn": 0.1}, {"learn": 0.02, "item": 0.08}, {"env": 0.05, "learn": 0.05}],
    ids=["launching ahead", "blocked at item", "collecting meanwhile"],
)
def test_a_saturated_card_is_healthy_whatever_the_host_does(
    library: str, seconds: dict[str, float]
) -> None:
    if library == "jax" and "item" in seconds:
        seconds = {"learn": seconds["learn"], "fetch": seconds["item"]}
    found = on(loop(library, **seconds), card(0.95, 2_000))
    assert found.verdict == "healthy"
    assert found.headline.startswith("The GPU computes 95 % of the time.")
    assert advice(found) is None
    assert all(share <= 0.05 + 1e-9 for cause, share in waits(found).items()
               if cause != "compute-bound")  # fmt: skip


@LIBRARIES
def test_a_starved_card_waits_for_environments_batches_and_launches(library: str) -> None:
    found = on(loop(library, env=0.13, replay=0.05, learn=0.02), card(0.06, 2_000))
    assert found.verdict == "env-bound"
    assert found.headline == (
        "The GPU computes 6 % of the time. It waits 61 % of the time for environments "
        "(maze.py:60), 24 % for batches (train.py:60), 9 % for the host to launch work"
    )
    assert sum(waits(found).values()) == pytest.approx(1.0)
    assert advice(found) is found.findings[0]
    assert found.phases["env"] == pytest.approx(0.65, abs=0.02), "the host's time stays the host's"


def test_a_card_that_waits_for_replay_is_replay_bound() -> None:
    found = on(loop(env=0.02, replay=0.15, learn=0.03), card(0.10, 2_000))
    assert found.verdict == "replay-bound"
    assert (
        "It waits 67 % of the time for batches (train.py:60), 14 % for the host" in found.headline
    )


@LIBRARIES
def test_fetching_from_an_idle_card_is_a_transfer_and_from_a_busy_one_is_not(library: str) -> None:
    place = "item" if library == "torch" else "fetch"
    idle = on(loop(library, learn=0.02, **{place: 0.08}), card(0.05, 2_000))
    assert idle.verdict == "transfer-bound"
    assert "for copies and syncs" in idle.headline
    busy = on(loop(library, learn=0.02, **{place: 0.08}), card(0.78, 2_000))
    assert "The GPU computes 78 % of the time" in busy.headline
    assert busy.findings[0].id != "transfer-bound"


@LIBRARIES
def test_many_tiny_kernels_are_launches(library: str) -> None:
    found = on(loop(library, learn=0.18, env=0.02), card(0.20, 2_000))
    assert found.verdict == "launch-bound"
    assert waits(found)["launch-bound"] == pytest.approx(0.72, abs=0.01)
    assert waits(found)["compute-bound"] == pytest.approx(0.20)


def test_work_in_flight_on_an_idle_card_is_launches() -> None:
    """One compiled loop of many tiny kernels: the host waits for it, and the card mostly idles."""
    driver = loop("jax", learn=0.01, env=0.01)
    code = next(row["i"] for row in driver.rows if row.get("plain") == "improve")
    for _ in range(40):
        driver.spend(0.01, "env", 0, 0.01, 0.0).spend(0.09, "fetch", 0, 0.001, 0.0, code, 30)
    found = on(driver, card(0.20, 2_000))
    assert found.verdict == "launch-bound"
    assert waits(found)["env-bound"] < 0.2


def test_large_copies_are_a_transfer() -> None:
    """NVML's busy counts kernels, and no copies."""
    found = on(loop(transfer=0.16, learn=0.04), card(0.15, 2_000))
    assert found.verdict == "transfer-bound"
    assert found.headline.startswith("The GPU computes 15 % of the time. It waits")


@pytest.mark.parametrize("others", [0, 1])
def test_a_card_with_few_short_kernels_is_in_use_unless_others_may_run_them(others: int) -> None:
    """NVML rounds them down to nothing; GPM counts them."""
    used = card(0.0, 800) | {"full": 6e-5, "others": others}
    found = on(loop(env=0.19, learn=0.01), used)
    assert found.verdict == "env-bound"
    assert found.headline.startswith("The GPU computes <1 %") == (others == 0)
    assert "gpu-unused" not in waits(found)


def test_several_cards_that_work_are_told_by_their_mean() -> None:
    found = on(loop(env=0.15, learn=0.05), card(0.10, 2_000), card(0.30, 2_000), card(0.0, 0))
    assert found.headline.startswith(
        "On average, 2 GPUs compute 20 % of the time. They wait 60 % of the time for env"
    )


def test_the_hosts_own_code_is_a_cause_where_a_card_waits_for_it() -> None:
    found = on(loop(own=0.16, learn=0.04), card(0.10, 2_000))
    assert found.verdict not in ("healthy", "unknown")
    assert waits(found)[found.verdict] > 0.6


def test_a_part_is_named_as_a_part() -> None:
    """What was seen is not the whole: the headline says so first."""
    driver = Recorded(1).loads("torch").spend(2.0, "env").learns()
    found = on(driver, card(0.5, 2_000))
    seen = "only a part of its work was seen (no learning yet); in that part, the GPU computes"
    assert found.headline.startswith(seen)


def test_another_program_on_the_card_is_noted() -> None:
    busy = card(0.9, 2_000) | {"others": 1, "owners": ["blender"]}
    (note,) = [one for one in on(loop(learn=0.1), busy).notes if "blender" in one]
    assert "include other programs" in note
    assert not any("include other" in one for one in on(loop(learn=0.1), card(0.9, 2_000)).notes)


@settings(max_examples=40, deadline=None)
@given(
    spent=st.lists(
        st.tuples(st.sampled_from(sorted(PLACES)), st.integers(1, 40)), min_size=8, max_size=30
    ),
    busy=st.floats(0.021, 1.0),
)
def test_computing_and_waits_are_parts_of_the_time(
    spent: list[tuple[str, int]], busy: float
) -> None:
    driver = Recorded(1).spend(2.0, "learn")
    for place, steps in spent:
        driver.spend(steps / 100, place, 0, 0.005, 0.0)
    found = on(driver, card(busy, 2_000))
    if not found.findings:
        return
    shares = [one.share for one in found.findings]
    assert sum(shares) <= 1.0 + 1e-6
    assert all(0.0 < share <= 1.0 for share in shares)
    causes = [one.share for one in found.findings if one.id != "compute-bound"]
    assert causes == sorted(causes, reverse=True)
    assert (found.verdict == "healthy") == all(share < LOST for share in causes)
    said = re.search(r"computes (\d+) % of the time", found.headline)
    assert said is not None
    assert abs(int(said[1]) - 100 * busy) < 0.5001  # a half may be rounded either way


@given(
    host=st.dictionaries(st.sampled_from(sorted(PHASES)), st.floats(0.0, 1.0)),
    busy=st.floats(0.0, 1.0),
)
def test_waits_are_the_rest_of_the_time_in_the_hosts_proportions(
    host: dict[str, float], busy: float
) -> None:
    found = waits_of(host, busy)
    assert sum(found.values()) == pytest.approx(1.0 - busy if sum(host.values()) else 0.0)
    ordered = sorted(found, key=lambda name: host[name])
    assert all(found[a] <= found[b] + 1e-12 for a, b in pairwise(ordered))


def test_every_phase_has_words_for_waiting() -> None:
    assert PHASES.keys() - WAITS_FOR.keys() <= {"fused", "publish"}  # parts of others


# --- A card that does not work ----------------------------------------------------------------


def on_the_cpu(update_ns: int, operation_ns: int) -> Recorded:
    """Learning on the CPU, counted in windows: an update is some operations and a step of Adam."""
    driver = loop(learn=0.08, env=0.02)
    rows = [row for row in driver.rows if row["k"] == "code"]
    codes = {row["plain"]: row["i"] for row in rows if "maze" not in row["file"]}
    call, c_call, c_return, returns = 0, 2, 3, 1
    events: list[list[int]] = [[0, call, codes["improve"], 63]]
    details = []
    for _ in range(max(1, 20_000_000 // update_ns)):
        for _ in range(max(1, update_ns // operation_ns)):
            events += [[100, c_call, 0, 60], [operation_ns, c_return, 0, 0]]
        details.append([len(events), "optimiser", "Adam", None, None])
        events += [[100, call, codes["step"], 63], [1_000, returns, 0, 0]]
    for t in (1.0, 2.0, 3.0):
        driver.rows.append({"k": "values", "c": codes["improve"], "line": 60, "grad": True})
        driver.rows.append(
            {"k": "window", "t": t, "events": events, "names": ["addmm"], "details": details,
             "stack": [codes["main"], 66], "cost": 0.0}
        )  # fmt: skip
    return driver


def test_a_small_network_on_the_cpu_beside_an_idle_card_is_no_matter_of_the_card() -> None:
    """Four layers of 64 and 256: an update of 0.6 ms, in operations of 20 us."""
    found = on(on_the_cpu(600_000, 20_000), card(0.0, 0))
    assert found.verdict == "launch-bound"
    assert "gpu-unused" not in waits(found)
    assert "GPU" not in found.headline


def test_a_large_update_on_the_cpu_beside_an_idle_card_is_mentioned_and_never_first() -> None:
    found = on(on_the_cpu(20_000_000, 2_000_000), card(0.0, 0))
    assert found.findings[0].id == "compute-bound"
    assert found.findings[-1].id == "gpu-unused"
    assert "20 ms" in found.findings[-1].evidence[0]


def test_nothing_is_said_of_an_idle_card_where_the_update_is_unknown() -> None:
    assert "gpu-unused" not in waits(on(loop(learn=0.08, env=0.02), card(0.0, 0)))


# --- Memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [False, True], ids=["memory told", "memory hidden"])
def test_eight_cards_held_and_one_computing_comes_first(hidden: bool) -> None:
    cards = [card(0.5, 70_000)] + [card(0.0, 60_000)] * 7
    if hidden:
        cards = [one | {"ours_mb": None} for one in cards]
    found = on(loop(env=0.1, learn=0.1), *cards, begin_mb=1_000 if hidden else None)
    first = found.findings[0]
    assert found.verdict == first.id == "devices-reserved"
    words = " ".join(first.evidence)
    assert ("59,000 MiB" if hidden else "60,000 MiB") in words
    assert all(f"gpu:{index}" in words for index in range(1, 8))
    assert ("growth" in words) == hidden
    assert "CUDA_VISIBLE_DEVICES=0" in first.remedy
    assert "The GPU computes 50 % of the time" in found.headline


@pytest.mark.parametrize(
    ("setting", "entry"),
    [("", "1"), ("4,6,7", "6"), (" GPU-aa, GPU-bb,GPU-cc", "GPU-bb"), (None, "1")],
)
def test_the_setting_that_is_proposed_names_the_card_for_a_new_start(
    setting: str | None, entry: str
) -> None:
    """And not its number among the visible ones. Older evidence does not have the setting."""
    driver = loop(env=0.1, learn=0.1)
    facts = meta(driver.clock)["machine"] | ({} if setting is None else {"visible": setting})
    cards = [card(0.0, 60_000), card(0.5, 70_000), card(0.0, 60_000)]
    first = on(driver, *cards, machine=facts).findings[0]
    assert first.id == "devices-reserved"
    assert f"(CUDA_VISIBLE_DEVICES={entry})" in first.remedy
    assert "only gpu:1 computes" in first.evidence[0]


def test_the_setting_is_recorded_with_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert machine()["visible"] == "4,6"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert machine()["visible"] == ""


def test_the_setting_that_a_command_line_begins_with_is_that_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else `gpu:1` would be a card that the program calls `gpu:0`."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    nvml: Any = SimpleNamespace(
        nvmlDeviceGetCount=lambda: 8, nvmlDeviceGetHandleByIndex=str, nvmlDeviceGetUUID=str
    )
    for words, shown in [("-u A B=2 CUDA_VISIBLE_DEVICES=1", [1]), ("B=2", [4, 6])]:
        with cards_shown(["env", *words.split(), "python", "CUDA_VISIBLE_DEVICES=2"]):
            assert [index for index, _ in visible_handles(nvml)] == shown
    assert machine()["visible"] == "4,6"


def test_cards_whose_processes_are_hidden_are_known_by_their_growth() -> None:
    """As in a container, where the driver's numbers of processes mean nothing."""
    hidden = {"ours": [], "ours_mb": 0}
    cards = [card(0.4, 9_000) | hidden, card(0.0, 500) | hidden]
    found = on(loop(env=0.15, learn=0.05), *cards, begin_mb=500)
    assert found.headline.startswith("The GPU computes 40 % of the time")
    named = [one | {"others": 1, "owners": ["blender"]} for one in cards]
    other = on(loop(env=0.15, learn=0.05), *named, begin_mb=500)
    assert "GPU" not in other.headline, "it is another program's"


def test_full_memory_names_who_holds_it() -> None:
    full = card(0.5, 30_000) | {"used_mb": 79_700, "others": 1, "owners": ["blender"]}
    found = on(loop(env=0.15, learn=0.05), full)
    last = found.findings[-1]
    assert last.id == "memory-contended"
    words = " ".join(last.evidence)
    assert "gpu:0 has 300 of 80,000 MiB free" in words
    assert "30,000 MiB" in words
    assert "blender" in words
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in last.remedy


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 9.00 GiB."),
        ("jaxlib.XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate."),
    ],
)
@pytest.mark.parametrize("seconds", [4.0, 0.3])
def test_full_memory_that_ended_the_program_comes_first(
    kind: str, text: str, seconds: float
) -> None:
    driver = Recorded(1).loads("torch").spend(seconds / 2, "env").spend(seconds / 2, "learn")
    driver.rows.append({"k": "end", "t": 104.0, "error": [kind, text]})
    row = {"t": 100.2, "seconds": 0.2, "cores": 4, "cpu": 0.25}
    full = card(0.5, 30_000) | {"used_mb": 79_700, "others": 1}
    about = meta(driver.clock)
    about["monitor"] = [row | {"t": 100.0 + 0.2 * n, "gpus": [full]} for n in range(1, 20)]
    found = diagnose(build(about, [driver.written()]))
    assert found.verdict == "memory-contended"
    words = " ".join(found.findings[0].evidence)
    assert kind in words
    assert text[:20] in words
    assert "smaller batches" in found.findings[0].remedy


def test_another_error_is_no_matter_of_memory() -> None:
    driver = loop(env=0.15, learn=0.05)
    driver.rows.append({"k": "end", "t": 104.0, "error": ["ValueError", "out of range"]})
    assert "memory-contended" not in waits(on(driver, card(0.5, 30_000)))
