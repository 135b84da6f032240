"""Remedies look at the call that takes the time: one line to change, where there is one."""

from __future__ import annotations

from typing import Any

import pytest

from flatout_explain.program.codes import Code, Leaf
from flatout_explain.program.diagnose import diagnose
from flatout_explain.program.evidence import Process, build, process
from flatout_explain.program.remedies import call_remedy
from flatout_explain.program.tags import is_wait
from tests.explain.test_program_rules import ENV, STDLIB, Recorded, meta, seen_in, told


def with_library(name: str) -> Process:
    return process(Recorded(1).loads(name).written())


@pytest.mark.parametrize(
    ("library", "line", "call", "words"),
    [
        ("keras", "action = model.predict(state)", "predict", "Call the model itself"),
        ("keras", "q = self.model.predict(state, verbose=0)", "x", "Call the model itself"),
        ("torch", "x = torch.tensor(batch)", "tensor", "Make one array"),
        ("torch", "x = torch.FloatTensor(states)", "FloatTensor", "Make one array"),
        ("numpy", "rows = rng.permutation(n)[:64]", "permutation", "Draw only the indices"),
    ],
)
def test_a_call_that_is_known_to_be_slow_has_its_own_remedy(
    library: str, line: str, call: str, words: str
) -> None:
    assert call_remedy(with_library(library), "replay", line, call).startswith(words)


def test_the_remedy_for_tensors_is_true_for_lists_and_for_arrays() -> None:
    """Which of them the call is given is not known."""
    words = call_remedy(with_library("torch"), "replay", "x = torch.tensor(batch)", "tensor")
    assert "torch.as_tensor(np.array(...))" in words
    assert "Of an array, torch.as_tensor(array)" in words


@pytest.mark.parametrize(
    ("library", "line", "call"),
    [
        ("torch", "action = model.predict(state)", "predict"),  # Stable-Baselines3's, say
        ("torch", "x = torch.tensor(np.array(batch))", "tensor"),
        ("torch", "x = torch.tensor(batch)", "mean"),  # another call of that line
        ("numpy", "random.shuffle(cards)", "shuffle"),  # a game's
    ],
)
def test_other_calls_keep_the_remedy_of_their_phase(library: str, line: str, call: str) -> None:
    assert call_remedy(with_library(library), "env", line, call) == ""


@pytest.mark.parametrize(("ns", "line", "words"), [
    (2_000_000, 61, "`advantages` computes on whole arrays already"),
    (20_000, 61, "Make `advantages` cheaper: work on whole arrays"),
    (2_000_000, 66, "Make `advantages` cheaper: work on whole arrays"),  # nothing in it calls
])  # fmt: skip
def test_code_that_computes_on_whole_arrays_is_not_told_to(ns: int, line: int, words: str) -> None:
    """Each second's window sees operations without a name between calls of a loop."""
    driver = Recorded(1).spend(12.0, "own").loads("numpy")
    codes = {row["plain"]: row["i"] for row in driver.rows if row["k"] == "code"}
    for row in driver.rows:
        if row.get("plain") == "advantages":
            row["loops"] = [[60, 64]]
    for second in range(12):
        events = [[0, 0, codes["advantages"], 63]]
        for _ in range(12_000_000 // ns):
            events += [[ns, 2, 0, line], [100, 3, 0, 0]]
        driver.rows.append(
            {"k": "window", "t": second + 0.5, "events": events, "names": ["append"],
             "details": [], "stack": [codes["main"], 63], "cost": 0.0}
        )  # fmt: skip
    found = told(driver).findings[0]
    assert found.id == "host-bound"
    assert found.remedy.startswith(words)


def driven(work_s: float, waits_s: float) -> Any:
    """The first finding about a driver that hands out work of `work_s` in each 100 ms, and waits
    for messages while its worker waits for them, too."""
    driver, worker = Recorded(1), Recorded(2)
    for _ in range(60):
        driver.spend(0.1 - waits_s - work_s, "learn").spend(waits_s + work_s, "wait")
        worker.spend(0.1 - work_s, "wait").spend(work_s, "env")
    rows = [driver.written(), worker.written()]
    found = diagnose(build(meta(driver.clock), rows)).findings
    return next(one for one in found if one.id in ("ipc-bound", "env-bound", "waiting"))


def test_work_that_is_smaller_than_its_messages_is_done_in_one_process() -> None:
    found = driven(work_s=0.01, waits_s=0.06)
    assert found.id == "ipc-bound"
    assert found.remedy.startswith("Do this work in one process")
    assert found.share == pytest.approx(0.7, abs=0.01)  # the work is part of what is waited for
    assert "70 % of the time is spent waiting for other processes" in found.evidence[0]
    assert "whose own work takes 10 %" in found.evidence[0]


def test_work_that_is_larger_than_its_messages_stays_where_it_is() -> None:
    found = driven(work_s=0.08, waits_s=0.01)
    assert found.id == "env-bound"


def test_workers_that_are_started_again_and_again_are_to_be_kept() -> None:
    """A data loader makes new processes in each epoch."""
    driver = Recorded(1)
    for _ in range(60):
        driver.spend(0.03, "learn").spend(0.07, "input")
    workers = []
    for number in range(6):
        worker = Recorded(2 + number)
        worker.rows[0]["t"] = 101.0 + number * 0.7
        workers.append(worker.spend(0.5, "input").written())
    facts_with = diagnose(build(meta(driver.clock), [driver.written(), *workers]))
    inputs = [one for one in facts_with.findings if one.id == "input-bound"]
    assert all(one.remedy.startswith("Keep the worker processes") for one in inputs)
    assert inputs


def runs_a_network(batches: list[int], steps: bool) -> Any:
    """The first finding about a program that only runs a network, with these batches. Its window
    begins in a call, within which layers are called."""
    codes = [
        ("/home/me/write.py", "generate", None),
        ("/usr/lib/site-packages/torch/nn/modules/module.py", "_call_impl", None),
        ("/home/me/model.py", "forward", None),
        ("/home/me/maze.py", "step", ENV),
    ]
    stack = [1, 5, 2, 7, 1, 5, 0, 20]
    rows = seen_in("write.py", codes, stack, [3, 5, 0, 21], loops=[[10, 30]])
    details: list[list[Any]] = []
    events = [[0, 1, 0, 0]]  # the layer that the window began in ends
    for _ in range(5):
        details.append([len(events), "network", "Layer", 1, False])
        events += [[900, 0, 1, 7], [9_000, 1, 0, 0]]
    events += [[900, 1, 0, 0], [900, 1, 0, 0]]
    for batch in batches:
        details.append([len(events), "network", "Writer", batch, False])
        events += [[900, 0, 1, 20], [90_000, 1, 0, 0]]
    samples = [(round(0.01 * (at + 1), 2), 0.01, 0, int(steps and at % 5 == 0), 0)
               for at in range(400)]  # fmt: skip
    rows += [
        {"k": "window", "t": 2.0, "names": [], "stack": stack, "cost": 0.0, "events": events,
         "details": details},
        {"k": "samples", "d": samples},
    ]  # fmt: skip
    found = diagnose(build(meta(4.0), [rows]))
    assert found.verdict == "acting-bound"
    return found


@pytest.mark.parametrize(
    ("batches", "steps", "seen", "words"),
    [
        ([1, 1], False, "batch size 1,", "Give a network several inputs in one call (stack those"),
        ([2, 5, 3], False, "batch sizes 2 to 5,", "Give a network more than 5 inputs in one call"),
        ([0, 0], False, "batch size unknown,", "Give a network several inputs in one call"),
        ([1, 1], True, "batch size 1,", "Choose actions for several environments in one call"),
        (
            [4] * 12,
            True,
            "batch size 4,",
            "Choose actions for more than 4 environments in one call",
        ),
    ],
)
def test_a_network_is_to_be_called_for_more_at_once_than_now(
    batches: list[int], steps: bool, seen: str, words: str
) -> None:
    """Actions are chosen, and environments stacked, only where there are environments."""
    found = runs_a_network(batches, steps)
    first = found.findings[0]
    assert first.evidence[0].startswith("Writer is called"), "not its layers"
    assert ("times per second" in first.evidence[0]) is (len(batches) >= 10), (
        "two calls are no rate"
    )
    assert seen in first.evidence[0]
    assert first.remedy.startswith(words)
    assert "on the CPU" not in first.remedy, "there is nothing else"
    assert found.headline.startswith("choosing actions" if steps else "running a network")


def test_who_waits_for_what_is_outside_of_the_program_waits_for_no_worker() -> None:
    """Such as a server without requests."""
    found = told(Recorded(1).spend(4.0, "wait").spend(1.0, "own")).findings[0]
    assert found.id == "waiting"
    assert found.remedy.startswith("Do other work meanwhile, or wait for less")


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ('b"".join(rows)', False),
        ("SEPARATOR.join(row)", False),
        ("self.comma.join(\n    map(str, row))", False),
        ("greenlet.join()", True),
        ("greenlet.join(timeout=2)", True),
        ("worker.join(0.5)", True),
    ],
)
def test_to_join_texts_is_no_waiting(text: str, waits: bool) -> None:
    assert is_wait(Leaf(text, "x.join"), Code("/home/me/train.py", "main", 1)) is waits
    inside = Code(f"{STDLIB}/threading.py", "join", 1)
    assert is_wait(Leaf("self._handle.join(timeout)", "self._handle.join"), inside)
