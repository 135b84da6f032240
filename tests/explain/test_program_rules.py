"""The rules of `flatout explain -- program` are pure: evidence made up here, findings out."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout_explain.diagnosis import Diagnosis
from flatout_explain.hardware import running_cores
from flatout_explain.hardware.monitor import MonitorSample
from flatout_explain.phases import PHASES
from flatout_explain.program import capacity
from flatout_explain.program.calls import Interval, Replay, counted
from flatout_explain.program.command_line import blocking_flags, is_inline
from flatout_explain.program.diagnose import diagnose
from flatout_explain.program.evidence import build, rows_of, save
from flatout_explain.program.mechanism import Learning
from flatout_explain.program.remedies import launch, transfer
from flatout_explain.program.tags import steps
from flatout_explain.report import advice, time_rows
from tests import tiny
from tests.conftest import Result

STDLIB = "/usr/lib/python3.11"
PIPE = (f"{STDLIB}/multiprocessing/connection.py", "Connection._recv", None)
ENV = {"name": "Maze", "module": "maze", "bases": ["maze.Maze", "gymnasium.Env"],
       "has": ["step", "reset"]}  # fmt: skip
ADAM = {"name": "Adam", "module": "torch.optim.adam", "bases": ["torch.Adam", "torch.Optimizer"],
        "has": ["step", "zero_grad", "state_dict"]}  # fmt: skip
DATASET = {"name": "Images", "module": "data", "bases": ["data.Images", "torch.Dataset"],
           "has": ["__getitem__", "__len__"]}  # fmt: skip
FLOWS = {
    "main": {"names": ["batch", "memory", "random.sample", "improve"], "args": [],
             "rows": [[60, 60, [0], [1, 2], [[2, 1]]], [66, 66, [], [0, 3], [[3, 0]]]]},
    "improve": {"names": ["rows", "loss"], "args": ["rows"], "rows": [[60, 63, [1], [0], []]]},
}  # fmt: skip
"""Statements of these functions: rows are drawn, and then learned from."""

PLACES: dict[str, tuple[list[tuple[str, str, dict[str, Any] | None]], str]] = {
    "learn": ([("/usr/lib/site-packages/torch/optim/adam.py", "Adam.step", ADAM),
               ("/home/me/train.py", "improve", None)], "addcdiv_"),
    "env": ([("/home/me/maze.py", "Maze.step", ENV)], "self.walls"),
    "reset": ([("/home/me/maze.py", "Maze.build", ENV), ("/home/me/maze.py", "Maze.reset", ENV)],
              "self.cells"),
    "replay": ([], "random.sample"),
    "io": ([(f"{STDLIB}/json/__init__.py", "dump", None), ("/home/me/train.py", "log", None)],
           "fp.write"),
    "sleep": ([], "time.sleep"),
    "send": ([(f"{STDLIB}/multiprocessing/connection.py", "Connection._send", None),
              ("/home/me/train.py", "collect", None)], "write"),
    "wait": ([PIPE, ("/home/me/train.py", "collect", None)], "read"),
    "traced": ([("/usr/lib/site-packages/jax/_src/api.py", "vjp", None),
                ("/home/me/train.py", "improve", None)], "trace"),
    "draw": ([], "rng.permutation"),
    "backward": ([("/usr/lib/site-packages/torch/_tensor.py", "backward", None),
                  ("/home/me/train.py", "improve", None)], "engine.run_backward"),
    "parallel": ([("/usr/lib/site-packages/torch/nn/parallel/distributed.py", "forward", None),
                  ("/home/me/train.py", "improve", None)], "self.module"),
    "own": ([("/home/me/train.py", "advantages", None)], "+"),
    "import": ([("<frozen importlib._bootstrap>", "_find_and_load", None)], "import"),
    "transfer": ([("/usr/lib/site-packages/torch/optim/adam.py", "Adam.step", ADAM),
                  ("/home/me/train.py", "improve", None)], "loss.item"),
    "sync": ([("/home/me/train.py", "improve", None)], "os.sync"),
    "fsync": ([("/home/me/train.py", "improve", None)], "os.fsync"),
    "average": ([("/usr/lib/site-packages/torch/distributed/distributed_c10d.py", "all_reduce",
                  None), ("/home/me/train.py", "improve", None)], "work.wait"),
    "open": ([("/home/me/train.py", "improve", None)], "open"),
    "fetch": ([("/usr/lib/site-packages/jax/_src/array.py", "_value", None),
               ("/home/me/train.py", "improve", None)], "self._npy_value"),
    "input": ([("/home/me/data.py", "Images.__getitem__", DATASET)], "self.flip"),
    "item": ([("/home/me/train.py", "improve", None)], "loss.item"),
    "cuda": ([("/home/me/train.py", "improve", None)], "batch.cuda"),
    "package": ([("/usr/lib/site-packages/maze/registry.py", "reset", None),
                 ("/usr/lib/site-packages/maze/registry.py", "<module>", None),
                 ("<frozen importlib._bootstrap>", "_find_and_load", None)], "parse"),
    "script": ([("/home/me/loop.py", "reset", ENV), ("/home/me/loop.py", "<module>", None),
                ("<frozen importlib._bootstrap>", "_find_and_load", None)], "parse"),
    "checks": ([("/usr/lib/site-packages/jax/_src/numpy/lax_numpy.py", "asarray", None),
                ("/usr/lib/site-packages/jax/_src/numpy/lax_numpy.py", "argmax", None),
                ("/home/me/train.py", "improve", None)], "dtype"),
}  # fmt: skip
"""What a thread can be at: the frames inside of ``main``, innermost first, and the call."""


Functions = Sequence[tuple[str, str, dict[str, Any] | None]]
"""File, name, and class of the object that is its first argument."""


def first_rows(pid: int = 1, script: str = "train.py") -> list[dict[str, Any]]:
    """The rows of a process and its main thread."""
    return [
        {"k": "process", "pid": pid, "ppid": 1, "t": 100.0, "python": [3, 11, 7],
         "argv": ["python", script], "stdlib": STDLIB},
        {"k": "lane", "i": 0, "main": True, "name": "MainThread", "native": pid},
    ]  # fmt: skip


def seen_in(script: str, functions: Functions, *stacks: list[int], **about: Any) -> list[Any]:
    """The rows of a process that was seen in these stacks (number of a function and line, the
    innermost first); `about` are further values of each function's row."""
    rows = first_rows(script=script)
    for index, (file, name, owner) in enumerate(functions):
        rows.append({"k": "code", "i": index, "file": file, "name": name, "plain": name, "line": 1}
                    | ({"self": owner} if owner else {}) | about)  # fmt: skip
    for index, stack in enumerate(stacks):
        rows.append({"k": "stack", "i": index, "at": index, "f": stack})
    return rows


class Recorded:
    """One process's rows, as the probe writes them; its clock runs while `spend` is called."""

    def __init__(self, pid: int) -> None:
        self.rows = first_rows(pid)
        self._codes: dict[str, int] = {}
        self._stacks: dict[str, int] = {}
        self._samples: list[tuple[float, ...]] = []
        self.clock = 0.0

    def learns(self) -> Recorded:
        """The program's own code takes gradients somewhere."""
        for row in self.rows:
            if row["k"] == "code" and row["file"] == "/home/me/train.py":
                row["learns"] = True
        return self

    def _code(self, file: str, name: str, owner: dict[str, Any] | None) -> int:
        index = self._codes.setdefault(file + name, len(self._codes))
        self.rows.append(
            {"k": "code", "i": index, "file": file, "name": name,
             "plain": name.rpartition(".")[2], "line": 10, "flow": FLOWS.get(name)}
            | ({"self": owner} if owner else {})
        )  # fmt: skip
        return index

    def _stack(self, place: str) -> int:
        if place not in self._stacks:
            frames, call = PLACES[place]
            flat = []
            for line, frame in enumerate([*frames, ("/home/me/train.py", "main", None)], 20):
                flat += [self._code(*frame), line * 3]
            at = 2 * len(self._stacks)
            self._stacks[place] = len(self._stacks)
            self.rows += [
                {"k": "leaf", "c": flat[0], "l": 60, "at": at, "text": f"{call}()", "call": call},
                {"k": "stack", "i": self._stacks[place], "at": at, "f": flat},
            ]
        return self._stacks[place]

    def spend(self, seconds: float, place: str, compilation: int = 0, *work: float) -> Recorded:
        """Be at a place for a while, sampled every 10 ms; `work` is what the thread, and the
        process's others, worked in each of these."""
        for _ in range(round(seconds / 0.01)):
            self.clock = round(self.clock + 0.01, 5)
            self._samples.append((self.clock, 0.01, 0, self._stack(place), compilation, *work))
        return self

    def also(self, lane: int, dt: float, place: str, worked: float) -> Recorded:
        """Another thread at the same time."""
        self._samples.append((self.clock, dt, lane, self._stack(place), 0, worked))
        return self

    def loads(self, library: str) -> Recorded:
        """The program has imported a library."""
        self.rows.append({"k": "library", "name": library, "version": "1.0"})
        return self

    def waits_for(self, call: str, learns: bool) -> Recorded:
        """The lines of `improve` that wait for a device wait for what this call made; where its
        values go is known if it learns."""
        code = next(row["i"] for row in self.rows if row.get("plain") == "improve")
        made = {"call": call, "line": 30, "learns": learns}
        for row in self.rows if not learns else ():
            row.pop("flow", None)
        for line in (60, 63):
            self.rows.append({"k": "site", "c": code, "line": line, "text": "float(loss)",
                              "made": made})  # fmt: skip
        self.rows.append({"k": "site", "c": code, "line": 30, "text": f"loss = {call}(state)"})
        return self

    def written(self) -> list[dict[str, Any]]:
        """All rows."""
        return [*self.rows, {"k": "samples", "d": self._samples}]


def meta(seconds: float, cores: int = 4, busy: float = 1.0) -> dict[str, Any]:
    rows = [
        {"t": 100.0 + second, "seconds": 1.0, "cores": cores, "cpu": busy / cores}
        for second in range(1, int(seconds) + 1)
    ]
    return {
        "command": ["python", "train.py"], "began": 100.0, "ended": 100.0 + seconds,
        "monitor": rows, "machine": {"cores": cores, "cpu": "a CPU", "gpus": []}, "notes": [],
        "finished": False,
    }  # fmt: skip


def told(*processes: Recorded, **given: Any) -> Diagnosis:
    """The diagnosis of some processes' rows."""
    about = meta(max(one.clock for one in processes), **given)
    return diagnose(build(about, [one.written() for one in processes]))


# --- Whose time it is -------------------------------------------------------------------------


def test_while_the_driver_waits_the_time_is_its_busy_workers() -> None:
    driver, workers = Recorded(1), [Recorded(2), Recorded(3)]
    for _ in range(40):
        driver.spend(0.02, "learn").spend(0.08, "wait")
        for worker in workers:
            worker.spend(0.1, "env")
    found = told(driver, *workers, busy=2.2)
    assert found.verdict == "env-bound"
    assert found.phases["env"] == pytest.approx(0.8, abs=0.05)
    assert found.phases["learn"] == pytest.approx(0.2, abs=0.05)
    assert "maze.py:60" in found.findings[0].evidence[0]


@pytest.mark.parametrize("resets", [0.0, 0.03, 0.06])
def test_resets_are_a_row_within_the_environments(resets: float) -> None:
    driver, worker = Recorded(1), Recorded(2)
    for _ in range(40):
        driver.spend(0.02, "learn").spend(0.08, "wait")
        worker.spend(0.02, "wait").spend(0.08 - resets, "env").spend(resets, "reset")
    found = told(driver, worker)
    first = found.findings[0]
    assert first.id == "env-bound"
    assert found.resets == pytest.approx(resets / 0.1, abs=0.03)
    assert found.phases["env"] == pytest.approx(0.8, abs=0.05), "resets are a part of it"
    shares = {name: share for name, share, _ in time_rows(found)}
    assert shares.get("  resets", 0.0) == found.resets
    assert any("resets take" in words for words in first.evidence) is (resets > 0.0)
    assert first.remedy.startswith("Make reset() cheaper") is (resets > 0.04)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("cores", [2, 16])
def test_processes_are_proposed_where_the_cores_do_more_together(cores: int, share: float) -> None:
    """Two cores that share their units are not two."""
    driver = Recorded(1)
    for _ in range(20):
        driver.spend(0.02, "learn").spend(0.08, "env")
    times = 1 + (cores - 1) * share
    about = meta(driver.clock, cores=cores)
    about["machine"]["together"] = times
    found = diagnose(build(about, [driver.written()])).findings[0]
    assert found.id == "env-bound"
    if times < 1.2:
        assert "make the step itself cheaper" in found.remedy
    else:
        assert "processes in parallel" in found.remedy


def test_what_cores_do_together_is_measured_once_for_each_start_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards the cores are free when a program starts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(capacity, "busiest_others", lambda seconds: "")
    monkeypatch.setattr(capacity, "boot_id", lambda: "one")
    with monkeypatch.context() as limited:
        limited.setattr(running_cores, "SPINNER", "raise SystemExit(1)")
        assert capacity.together(2) == 2.0
    first = capacity.together(2)
    assert 1.0 <= first <= 2.0
    assert capacity.together(1) == 1.0
    monkeypatch.setattr(running_cores, "SPINNER", "raise SystemExit(1)")
    assert capacity.together(2) == pytest.approx(first, abs=0.001)
    monkeypatch.setattr(capacity, "boot_id", lambda: "another")
    assert capacity.together(2) == 2.0


@pytest.mark.parametrize("rounds", [1, 20], ids=["a fifth of the time", "a hundredth"])
def test_one_straggler_of_four_is_waiting(rounds: int) -> None:
    """However quick the others are."""
    driver, workers = Recorded(1), [Recorded(pid) for pid in range(2, 6)]
    for number in range(40):
        driver.spend(0.01, "learn").spend(0.09, "wait")
        workers[0].spend(0.1, "env")
        for worker in workers[1:]:
            busy = 0.02 if number % rounds == 0 else 0.0
            worker.spend(busy, "env").spend(0.1 - busy, "wait")
    found = told(driver, *workers)
    assert found.verdict == "waiting"
    assert found.phases["wait"] > 0.6
    assert "cores are idle" in " ".join(found.findings[0].evidence)


def test_a_helper_that_does_little_is_no_idle_worker() -> None:
    """A manager or a logger beside the one process that steps."""
    driver, worker, helper = Recorded(1), Recorded(2), Recorded(3)
    for number in range(40):
        driver.spend(0.01, "learn").spend(0.09, "wait")
        worker.spend(0.1, "env")
        busy = 0.01 if number % 10 == 0 else 0.0
        helper.spend(busy, "io").spend(0.1 - busy, "wait")
    assert told(driver, worker, helper).verdict == "env-bound"


def test_without_workers_the_driver_is_to_blame() -> None:
    driver = Recorded(1)
    for _ in range(30):
        driver.spend(0.02, "learn").spend(0.07, "replay").spend(0.01, "io").spend(0.001, "env")
    found = told(driver.spend(0.01, "env"))
    assert [one.id for one in found.findings][:1] == ["replay-bound"]
    assert found.findings[0].share == pytest.approx(0.7, abs=0.05)
    assert {one.id for one in found.findings} >= {"replay-bound", "io-bound"}


def test_the_first_compilation_stands_apart_and_others_are_the_cause() -> None:
    driver = Recorded(1).spend(0.5, "env").spend(2.0, "learn", compilation=1)
    for number in range(2, 12):
        driver.spend(0.1, "learn").spend(0.3, "learn", compilation=number)
    found = told(driver)
    assert found.verdict == "compile-bound"
    assert dict(found.apart)["first compilation"] == pytest.approx(2.0, abs=0.1)
    assert found.findings[0].share == pytest.approx(0.75, abs=0.05)


def test_whether_learning_computes_is_unknown_without_counted_calls() -> None:
    driver = Recorded(1)
    for _ in range(30):
        driver.spend(0.1, "learn").spend(0.002, "env")
    found = told(driver, busy=4.0)
    assert found.verdict == "unknown"
    assert "calls were not counted" in found.headline


@settings(max_examples=60, deadline=None)
@given(
    driver=st.lists(
        st.tuples(st.sampled_from(sorted(PLACES)), st.integers(1, 40), st.integers(0, 3)),
        max_size=30,
    ),
    workers=st.lists(
        st.lists(st.tuples(st.sampled_from(sorted(PLACES)), st.integers(1, 60)), max_size=12),
        max_size=4,
    ),
    busy=st.floats(0, 4),
)
def test_whatever_is_recorded_the_figures_make_sense(
    driver: list[tuple[str, int, int]], workers: list[list[tuple[str, int]]], busy: float
) -> None:
    processes = [Recorded(pid) for pid in range(1, len(workers) + 2)]
    for place, steps_, compilation in driver:
        processes[0].spend(steps_ / 100, place, compilation)
    for process, records in zip(processes[1:], workers, strict=True):
        for place, steps_ in records:
            process.spend(steps_ / 100, place)
    found = told(*processes, busy=busy)
    assert not found.phases or sum(found.phases.values()) == pytest.approx(1.0)
    assert set(found.phases) <= set(PHASES)
    assert all(share > 0 for share in found.phases.values())
    for one in found.findings:
        assert 0 < one.share <= 1
        assert one.gain is None, "nothing was measured"
        assert one.remedy
        assert all(one.evidence)
        assert set(one.as_json()) - {"interval", "trial"} == {
            "id",
            "share",
            "evidence",
            "remedy",
            "place",
        }
        low, high = one.interval or (0, 1)
        assert 0 <= low <= one.share <= high <= 1
    assert all(a.share >= b.share for a, b in pairwise(found.findings))
    json.dumps(found.as_json(), allow_nan=False)


@pytest.mark.parametrize("call", ["sync", "fsync", "open"])
def test_writing_amid_learning_is_no_learning(call: str) -> None:
    """A checkpoint is written and synced after each update, in the function that learns."""
    driver = Recorded(1)
    for _ in range(40):
        driver.spend(0.04, "learn").spend(0.06, call)
    found = told(driver)
    assert found.verdict == "io-bound"
    assert found.phases["io"] == pytest.approx(0.6, abs=0.03)


def spread(*, busy: float = 1.0, **shares: float) -> Diagnosis:
    """The diagnosis of a driver alone that spends its time so."""
    driver = Recorded(1)
    for _ in range(30):
        for place, share in shares.items():
            driver.spend(share, place)
    return told(driver, busy=busy)


def test_the_largest_share_is_the_headline() -> None:
    """Not the largest part of the phase that is the largest."""
    found = spread(learn=0.26, transfer=0.16, env=0.31, replay=0.27)
    assert found.findings[0].id == found.verdict == "env-bound"
    assert found.findings[0].share == max(one.share for one in found.findings)
    assert "no cause" not in found.headline


def test_a_program_with_a_cause_larger_than_its_arithmetic_is_not_healthy() -> None:
    found = spread(learn=0.4, env=0.45, replay=0.15)
    assert found.verdict == "env-bound"
    assert advice(found) is found.findings[0]


def test_where_no_cause_holds_a_fifth_the_headline_says_so() -> None:
    found = spread(learn=0.16, transfer=0.16, average=0.16, env=0.17, replay=0.17, io=0.18)
    assert found.headline.startswith("no cause takes a fifth of the time")
    assert found.verdict == "io-bound"
    assert "no cause" not in spread(learn=0.5, env=0.3, replay=0.2).headline


def test_a_finding_names_the_file_and_line_to_change() -> None:
    found = {one.id: one for one in spread(learn=0.3, replay=0.4, env=0.3).findings}
    assert found["replay-bound"].place == ("/home/me/train.py", 60)
    assert found["env-bound"].place == ("/home/me/maze.py", 60)
    assert found["env-bound"].as_json()["place"] == ["/home/me/maze.py", 60]


def card(busy: float | None, held_mb: int) -> dict[str, Any]:
    return {"index": 0, "name": "H100", "busy": busy, "used_mb": held_mb, "total_mb": 80_000,
            "ours": [1] if held_mb else [], "ours_mb": held_mb, "others": 0}  # fmt: skip


def with_cards(*cards: dict[str, Any]) -> Diagnosis:
    driver = Recorded(1)
    for _ in range(40):
        driver.spend(0.09, "env").spend(0.01, "learn")
    about = meta(driver.clock)
    for row in about["monitor"]:
        row["gpus"] = [card | {"index": index} for index, card in enumerate(cards)]
    return diagnose(build(about, [driver.written()]))


@pytest.mark.parametrize(
    ("cards", "first", "last"),
    [
        ((card(0.5, 900), card(0.0, 1000)), "devices-reserved", "launch-bound"),
        ((card(0.5, 900), card(0.0, 800)), "env-bound", "devices-reserved"),
    ],
    ids=["most memory is idle", "some memory is idle"],
)
def test_cards_come_first_only_where_they_hold_most_of_the_memory(
    cards: tuple[dict[str, Any], ...], first: str, last: str
) -> None:
    found = with_cards(*cards)
    assert found.verdict == found.findings[0].id == first
    assert found.findings[-1].id == last
    assert "(0 %)" not in found.headline
    memory = [one for one in found.findings if one.id == "devices-reserved"]
    assert all(one.share == 0.0 for one in memory), "memory takes no time"


def test_one_line_that_acts_and_learns_is_told_apart_by_its_caller() -> None:
    """As in CleanRL's ppo.py: no function but the policy's, called for acting and for learning."""
    codes = [
        ("/home/me/ppo.py", "<module>", None),
        ("/home/me/ppo.py", "get_action_and_value", None),
        ("/usr/lib/site-packages/torch/nn/modules/module.py", "_call_impl", None),
        ("/home/me/maze.py", "step", ENV),
        ("/usr/lib/site-packages/torch/optim/adam.py", "step", ADAM),
    ]
    acts, learns, steps_, applies = ([2, 5, 1, 30, 0, 200], [2, 5, 1, 30, 0, 260],
                                     [3, 5, 0, 205], [4, 5, 0, 270])  # fmt: skip
    rows = seen_in("ppo.py", codes, acts, learns, steps_, applies)
    samples, clock = [], 0.0
    for _ in range(40):
        for stack, times in ((0, 6), (2, 1), (1, 2), (3, 1)):
            for _ in range(times):
                clock = round(clock + 0.01, 5)
                samples.append((clock, 0.01, 0, stack, 0))
    events, details = [[0, 0, 3, 205], [900, 1, 0, 0]], []
    for line, call in (
        (200, ["Sequential", 4, False, True]),
        (260, ["Sequential", 128, True, True]),
    ):
        for _ in range(3 if line == 260 else 5):
            events += [[900, 0, 1, line]]
            details.append([len(events), "network", *call])
            events += [[900, 0, 2, 30], [90_000, 1, 0, 0], [900, 1, 0, 0]]
    rows += [
        {"k": "window", "t": 2.0, "names": [], "stack": [0, 200], "cost": 0.0, "events": events,
         "details": details},
        {"k": "samples", "d": samples},
    ]  # fmt: skip
    found = diagnose(build(meta(clock), [rows]))
    assert found.phases["act"] == pytest.approx(0.6, abs=0.03)
    first = found.findings[0]
    assert first.id == "acting-bound"
    assert "batch size 4, without gradients" in first.evidence[0]
    assert "no_grad" not in first.remedy


def test_the_loop_around_acting_and_learning_tells_nothing_about_one_of_its_calls() -> None:
    """As in a Keras tutorial: no window saw the batch of `predict`, some saw the batch of 32."""
    keras = "/usr/lib/site-packages/keras/src"
    codes = [
        ("/home/me/dqn.py", "main", None),
        ("/home/me/dqn.py", "act", None),
        ("/home/me/dqn.py", "replay", None),
        (f"{keras}/backend/tensorflow/trainer.py", "predict", None),
        (f"{keras}/layers/layer.py", "__call__", None),
        ("/home/me/maze.py", "step", ENV),
        (f"{keras}/optimizers/adam.py", "update_step", None),
        ("/home/me/dqn.py", "<module>", None),
    ]
    stacks = [3, 5, 1, 10, 0, 50], [6, 5, 2, 20, 0, 60], [5, 5, 0, 52]
    rows = seen_in("dqn.py", codes, *([*stack, 7, 99] for stack in stacks))
    samples, clock = [], 0.0
    for _ in range(40):
        for stack in (0, 0, 0, 0, 0, 0, 1, 1, 2):
            clock = round(clock + 0.01, 5)
            samples.append((clock, 0.01, 0, stack, 0))
    events = [[0, 0, 2, 60], [900, 0, 4, 19], [90_000, 1, 0, 0], [900, 1, 0, 0]]
    rows += [
        {"k": "window", "t": 2.0, "names": [], "stack": [0, 60, 7, 99], "cost": 0.0,
         "events": events, "details": [[1, "network", "Functional", 32, None]]},
        {"k": "samples", "d": samples},
    ]  # fmt: skip
    found = diagnose(build(meta(clock), [rows]))
    assert found.phases["act"] == pytest.approx(6 / 9, abs=0.03)
    assert found.phases["learn"] == pytest.approx(2 / 9, abs=0.03)


# --- Whole cycles -----------------------------------------------------------------------------


def cycling(seconds: float, collect: float = 2.0, learn: float = 1.0) -> Recorded:
    """A driver that collects and learns in turn, seen for so long, from its start on."""
    driver = Recorded(1)
    while driver.clock < seconds:
        driver.spend(min(collect, seconds - driver.clock), "env")
        driver.spend(max(0.0, min(learn, seconds - driver.clock)), "learn")
    return driver.learns()


@pytest.mark.parametrize("seconds", [6.4, 7.5, 8.6, 8.9, 9.4, 11.0, 12.4, 20.5])
def test_wherever_the_window_ends_the_shares_are_of_whole_cycles(seconds: float) -> None:
    found = told(cycling(seconds))
    assert found.part == ""
    assert found.phases["env"] == pytest.approx(2 / 3, abs=0.03)
    assert found.verdict == "env-bound"
    assert advice(found) is found.findings[0]


@pytest.mark.parametrize(
    ("seconds", "part"),
    [(1.8, "no learning yet"), (2.9, "not one whole cycle of collecting and learning"),
     (4.5, "only one whole cycle"), (5.7, "only one whole cycle")],
)  # fmt: skip
def test_less_than_two_cycles_are_a_part_and_nothing_is_proposed(seconds: float, part: str) -> None:
    found = told(cycling(seconds))
    assert part in found.part
    assert found.headline.startswith(f"only a part of its work was seen ({found.part}); in that")
    assert advice(found) is None
    assert "Raise --seconds" in " ".join(found.notes)
    assert not any("warm-up" in what for what, _ in found.apart)
    about = meta(seconds) | {"finished": True}  # then there is no more of it
    assert diagnose(build(about, [cycling(seconds).written()])).part == ""


def test_two_short_cycles_before_a_long_time_of_something_else_are_no_steady_state() -> None:
    """Such as the first updates after a compilation, before replay takes the time."""
    driver = Recorded(1)
    for _ in range(2):
        driver.spend(1.0, "env").spend(0.5, "learn")
    found = told(driver.spend(9.0, "replay").spend(0.4, "env").learns())
    assert found.part == ""
    assert found.phases["replay"] > 0.5


@pytest.mark.parametrize(("cycles", "part"), [(1, "only one whole cycle"), (2, ""), (3, "")])
def test_learning_in_one_long_call_is_a_period_of_learning(cycles: int, part: str) -> None:
    """As in one call of a compiled function: a single sample among many of collecting."""
    driver = Recorded(1)
    for _ in range(cycles):
        driver.spend(4.0, "env")
        driver.clock += 4.0
        driver.also(0, 4.0, "learn", 4.0)
    found = told(driver.spend(1.0, "env").learns())
    assert found.part.startswith(part)
    assert bool(found.part) is bool(part)
    if not part:
        assert found.phases["learn"] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("cycles", "part"), [(1, "only one whole cycle"), (2, "")])
def test_a_little_learning_within_collecting_is_no_period(cycles: int, part: str) -> None:
    """Such as a running mean of rewards, once for every 50 steps."""
    driver = Recorded(1)
    for _ in range(cycles):
        for _ in range(5):
            driver.spend(0.49, "env").spend(0.01, "learn")
        driver.spend(2.0, "learn")
    found = told(driver.spend(1.0, "env").learns())
    assert found.part.startswith(part)
    assert bool(found.part) is bool(part)


def test_learning_too_short_to_be_met_was_seen_as_it_was_compiled() -> None:
    """An update of a millisecond after a second of collecting: many cycles, and no sample of it."""
    driver = Recorded(1).spend(0.5, "env").spend(0.3, "traced", compilation=1).spend(5.0, "env")
    assert told(driver.learns()).part == ""


def test_a_program_that_cannot_learn_is_seen_whole() -> None:
    found = told(Recorded(1).spend(5.0, "env"))
    assert (found.part, found.verdict) == ("", "env-bound")


def test_learning_beside_collecting_needs_no_cycle() -> None:
    """As with replay: some seconds of collecting at first are a warm-up, and not half a cycle."""
    driver = Recorded(1).spend(0.3, "import").spend(3.0, "env")
    for _ in range(50):
        driver.spend(0.06, "env").spend(0.06, "learn")
    found = told(driver.learns())
    assert found.part == ""
    assert found.phases["env"] == pytest.approx(0.5, abs=0.03)
    assert dict(found.apart)["warm-up before steady learning"] == pytest.approx(3.1, abs=0.1)


def test_what_an_installed_package_calls_while_it_is_imported_is_the_import() -> None:
    """A registry's `reset`, say; below the import of a user's own file a program may run."""
    found = told(Recorded(1).spend(1.0, "package").spend(3.0, "learn"))
    assert dict(found.apart)["imports and start"] == pytest.approx(1.0, abs=0.1)
    assert "env" not in found.phases
    found = told(Recorded(1).spend(1.0, "learn").spend(2.0, "script").spend(1.0, "learn"))
    assert found.phases["env"] > 0.3


def test_no_warm_up_is_told_where_no_learning_was_seen() -> None:
    """What lies between two imports belongs to the start."""
    driver = Recorded(1).spend(0.3, "import").spend(0.5, "env").spend(0.3, "import")
    found = told(driver.spend(5.0, "env"))
    assert [what for what, _ in found.apart] == ["imports and start"]
    assert dict(found.apart)["imports and start"] == pytest.approx(1.1, abs=0.1)


def test_a_permutation_for_each_batch_is_named_where_all_is_one_function() -> None:
    """A script without functions: nothing but the call tells the choice of rows from learning."""
    process = Recorded(1)
    for _ in range(40):
        process.spend(0.03, "draw").spend(0.05, "learn")
    found = {one.id: one for one in told(process).findings}
    assert found["input-bound"].share == pytest.approx(0.375, abs=0.02)
    assert "integers(len(data), size=batch)" in found["input-bound"].remedy


# --- What a step returns, what a command line says --------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("onbbo", True),  # observation, reward, terminated, truncated, info
        ("onbo", True),  # the old four
        ("Nnbo", True),  # a flat observation
        ("nnbo", True),  # a discrete one
        ("onb", True),
        ("oNBBo", True),  # of a vector of environments
        ("NNBo", True),
        ("", False),
        ("on", False),
        ("oo", False),
        ("nnn", False),  # three losses
        ("ooooo", False),  # a batch of experience
        ("oNNoB", False),
        ("?nbo", False),
        ("bnbo", False),
        ("obno", False),
    ],
)
def test_a_step_is_recognised_by_what_it_returns(kinds: str, expected: bool) -> None:
    assert steps(kinds) is expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -I x.py", ["-I"]),
        ("/usr/bin/python3.12 -uE x.py", ["-E"]),
        ("pypy3 -S x.py", ["-S"]),
        ("python -BsEO -S x.py", ["-E", "-S"]),
        ("python -W error -S x.py", ["-S"]),
        ("python -uW error -S x.py", ["-S"]),
        ("python -X dev -I x.py", ["-I"]),
        ("python -Ximporttime -I x.py", ["-I"]),
        ("python -Wignore::ImportWarning:some.module -E x.py", ["-E"]),
        ("python --check-hash-based-pycs never -I x.py", ["-I"]),
        ("python x.py -I -E -S", []),
        ("python -c -I", []),
        ("python -m pkg -E", []),
        ("python -ucprint -E", []),
        ("python - -E", []),
        ("python -s -B -Werror x.py", []),
        ("python", []),
        ("bash -E x", []),
    ],
)
def test_flags_that_keep_the_probe_out_are_recognised(command: str, expected: list[str]) -> None:
    assert blocking_flags(command.split()) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -c print()", True),
        ("python -ucprint()", True),
        ("python -X dev -c print()", True),
        ("python train.py -c config.yaml", False),
        ("python -m train -c config.yaml", False),
        ("python", False),
    ],
)
def test_a_program_on_the_command_line_is_recognised(command: str, expected: bool) -> None:
    """A script's own flag made generated code, such as that of dataclasses, the program's."""
    assert is_inline(command.split()) is expected


# --- Evidence that is not as it should be -----------------------------------------------------


def test_calls_of_one_name_are_added_up_whatever_lines_they_are_on() -> None:
    seen = [(1, "item")] * 3 + [(2, "item")] * 4 + [(2, "cpu")] * 5 + [(3, "matmul")] * 8
    window = Replay([Interval(1e9 / len(seen), ((0, line),), name) for line, name in seen])
    facts: Any = SimpleNamespace(counted=counted([window], list))
    assert transfer(facts, 0.5).after == [
        "`item` is called about 7 times per second", "`cpu` is called about 5 times per second"
    ]  # fmt: skip


def test_python_s_own_functions_are_not_called_operations() -> None:
    """A window does not tell `isinstance` from `addcmul_`, and the first is called more often."""
    process = SimpleNamespace(libraries={"torch"})
    facts: Any = SimpleNamespace(
        learning=Learning(0.8, calls=370_000.0, exact=True),
        evidence=SimpleNamespace(processes=[process]),
        line=SimpleNamespace(driver=SimpleNamespace(process=0)),
    )
    (seen,) = launch(facts, 0.5).before
    assert seen.startswith("learning calls about 370,000 built-in functions per second (Python's")
    assert seen.endswith("take 80 % of learning's time")


def recorded() -> Recorded:
    """A process of every kind of row."""
    found = Recorded(1)
    for number in range(20):
        found.spend(0.03, "env").spend(0.03, "learn").spend(0.02, "replay").spend(0.01, "io")
        found.spend(0.01, "wait", compilation=number % 2)
    found.rows += [
        {"k": "returns", "c": 1, "kinds": "onbo"},
        {"k": "library", "name": "torch", "version": "2.0", "t": 0.1},
        {"k": "torch", "threads": 2},
        {"k": "window", "t": 1.0, "names": ["matmul"], "stack": [0, 60, 1, 63], "cost": 100.0,
         "events": [[0, 0, 2, 61], [9000, 2, 0, 61], [9000, 3, 0, 0], [9000, 1, 0, 0]],
         "details": [[0, "env", "Maze", None, None, False]]},
    ]  # fmt: skip
    return found


def test_rows_that_two_threads_wrote_out_of_order_tell_the_same() -> None:
    rows = recorded().written()
    straight = diagnose(build(meta(2.0), [rows]))
    first, *rest = rows
    for seed in range(5):
        random.Random(seed).shuffle(rest)
        again = diagnose(build(meta(2.0), [[first, *rest]]))
        assert again.phases == straight.phases
        assert again.findings == straight.findings


def test_what_a_killed_process_left_is_read(tmp_path: Path) -> None:
    """Every row may be the last, and half of the next may stand behind it."""
    rows = recorded().written()
    samples = rows.pop()
    rows.insert(6, samples)  # what was sampled is known before what it refers to is written
    lines = [json.dumps(row) for row in rows]
    for kept in range(len(lines)):
        (tmp_path / "1.jsonl").write_text("\n".join([*lines[:kept], lines[kept][:-7]]))
        read = rows_of(tmp_path)
        assert len(read) == (1 if kept else 0)
        assert diagnose(build(meta(2.0), read)).subject == "python train.py"


def test_a_lost_row_costs_no_more_than_that_row() -> None:
    rows = recorded().written()
    for lost in range(1, len(rows)):
        diagnose(build(meta(2.0), [rows[:lost] + rows[lost + 1 :]]))


def leaves(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything inside of a JSON value, long lists by their beginnings."""
    inner = node.items() if isinstance(node, dict) else enumerate(node[:40])
    found = []
    for key, value in inner:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += leaves(value, (*path, key))
    return found


def of_a_program() -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        save(Path(folder) / "evidence.json", meta(2.0), [recorded().written()])
        return json.loads((Path(folder) / "evidence.json").read_text())


def of_a_run() -> dict[str, Any]:
    line = {"t": 2.0, "d": 1.0, "lane": "main", "steps": 64, "updates": 4, "iterations": 1,
            "spans": {"env": 0.9, "learn": 0.1}}  # fmt: skip
    begin = {"begin": {"t": 0.5, "cores": 4, "envs": 2, "placement": "cpu"}}
    sample = MonitorSample(3.0, 1.0, 4, 0.5, cpu_all=0.6, rss_mb=300.0)
    settings = pytest.importorskip("flatout.config.settings", reason="evidence of a run of Flatout")
    config = settings.resolve("ppo", tiny.settings("ppo"))
    lines = [begin, line | {"t": 1.0, "first": True}, line, line | {"t": 3.0}]
    from flatout.explain.runs import Evidence as RunEvidence

    return RunEvidence("run", config, lines, [sample], True).as_json()


@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(of_a_program(), id="program"),
        pytest.param(of_a_run(), id="run", marks=pytest.mark.slow),
    ],
)
def test_damaged_evidence_is_refused_in_a_sentence_or_read(
    whole: dict[str, Any], flatout: Callable[..., Result], tmp_path: Path
) -> None:
    file, page, told = (tmp_path / name for name in ("evidence.json", "page.html", "out.json"))
    file.write_text(json.dumps(whole))
    result = flatout("explain", file)
    assert "env-bound" in result.err
    dice = random.Random(0)
    paths = leaves(whole)
    wrong = [None, "x", {}, [], -1, 1e308, 10**30, float("nan"), [[]], {"a": [1]}]
    refused = 0
    for path in dice.sample(paths, min(len(paths), 120)):
        damaged = copy.deepcopy(whole)
        inside = damaged
        for key in path[:-1]:
            inside = inside[key]
        if isinstance(inside, dict) and dice.random() < 0.5:
            del inside[path[-1]]
        else:
            inside[path[-1]] = copy.copy(dice.choice(wrong))
        file.write_text(json.dumps(damaged))
        try:
            result = flatout("explain", file, "--html", page, "--json", told)
        except Exception as error:
            error.add_note(f"damaged at {path}: {inside}"[:300])
            raise
        if result.code:
            refused += 1
            assert result.code == 1
            assert str(file) in result.message
    assert 0 < refused < 120
