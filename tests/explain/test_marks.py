"""Marks of the program, and ``--phase``: what they say is decided before all rules."""

from __future__ import annotations

import json
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flatout
from flatout_explain.program.attach import probe_module
from flatout_explain.program.codes import Code
from flatout_explain.program.diagnose import diagnose
from flatout_explain.program.evidence import build
from flatout_explain.program.marks import FunctionPhase
from tests.conftest import Result
from tests.explain.test_program import BUSY, explained, script
from tests.explain.test_program_rules import Recorded, meta, told

# --- In the source ----------------------------------------------------------------------------


class Mark:
    """Stands in for a range of a profiler."""

    def __init__(self, name: str = "", *more: str, message: str = "", color: str = "") -> None:
        self.name = name or message

    def __enter__(self) -> Mark:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def __call__(self, function: Any) -> Any:
        return function


def kind(module: str, name: str) -> Any:
    return type(name, (Mark,), {"__module__": module})


def nvtx_range(msg: str) -> Mark:
    return Mark(msg)


nvtx_range.__module__, nvtx_range.__name__ = "torch.cuda.nvtx", "range"


class Evasive(Mark):
    """A context manager that answers to every name."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the program's code ran: {name}")


LIBRARIES: dict[str, Any] = {
    "phase": flatout.phase,
    "record_function": kind("torch.autograd.profiler", "record_function"),
    "TraceAnnotation": kind("jax._src.profiler", "TraceAnnotation"),
    "annotate": kind("nvtx.nvtx", "annotate"),
    "range": nvtx_range,
    "theirs": kind("theirs", "record_function"),
    "evasive": Evasive("env"),
    "kept": flatout.phase("replay"),
    "NAME": "learn",
}


@pytest.fixture(scope="module")
def spans_at() -> Callable[[str], list[list[list[Any]] | None]]:
    """A function that runs a source whose calls of `here` are samples, and gives the spans that
    each finds."""
    probe = probe_module("_flatout_marks")

    def spans(text: str) -> list[list[list[Any]] | None]:
        found, known = list[Any](), dict[Any, Any]()

        def here() -> None:
            frame = sys._getframe(1)
            marks = known.setdefault(frame.f_code, probe.Marks(frame.f_code))
            found.append(marks.look(frame, frame.f_lineno))

        file = f"/home/me/marked_{abs(hash(text))}.py"  # the probe parses each file once
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        scope = {**LIBRARIES, "here": here}
        exec(compile(text, file, "exec"), scope)
        scope["train"]()
        return found

    return spans


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        ('phase("env")', "env"),
        ('record_function("env", "args")', "env"),
        ('TraceAnnotation(name="env")', "env"),
        ('annotate("env", color="red")', "env"),
        ('annotate(color="red", message="env")', "env"),
        ('range("env")', "env"),
        ("record_function(NAME)", "learn"),
        ("kept", "replay"),
        ('record_function("my part")', "my part"),
        ('theirs("env")', None),
        ("evasive", None),
        ('evasive or phase("env")', None),
        ("kept if NAME else evasive", "replay"),
    ],
)
def test_a_mark_is_known_by_the_object_and_its_text(
    spans_at: Callable[..., Any], mark: str, text: str | None
) -> None:
    found = spans_at(f"def train():\n    with {mark}:\n        here()\n    here()\n")
    assert found == [None if text is None else [[3, 3, text]], None]


def test_nothing_is_asked_before_a_block_runs(spans_at: Callable[..., Any]) -> None:
    """Names have their values then: a function may import its mark itself."""
    source = """\
def train():
    here()
    from flatout import phase as mine
    with mine("env") as a, record_function("act"):
        if a:
            here()
        with mine("io"): here()
    here()
"""
    first = [[5, 7, "env"], [5, 7, "act"]]
    assert spans_at(source) == [None, first, [*first, [7, 7, "io"]], None]


def test_decorators_mark_functions(spans_at: Callable[..., Any]) -> None:
    source = """\
def train():
    A().act()
class A:
    @staticmethod
    @record_function("act")
    @phase("env")
    def act():
        here()
"""
    assert spans_at(source) == [[[7, 8, "act"], [7, 8, "env"]]]


def test_a_mark_that_is_not_the_same_each_time_is_none(spans_at: Callable[..., Any]) -> None:
    source = """\
def train():
    for name in ("env", "env", "learn", "env"):
        with record_function(name):
            here()
"""
    assert spans_at(source) == [[[4, 4, "env"]], None, [[4, 4, "env or learn"]], None]


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(flatout.UsageError, match="'gym' is no phase: a phase is one of env, act"):
        flatout.phase("gym")

    @flatout.phase("env")
    def step() -> int:
        with flatout.phase("io") as mark:
            assert mark.name == "io"
        return 3

    assert step() == 3


# --- Before all rules -------------------------------------------------------------------------


def marked(driver: Recorded, function: str, *spans: tuple[int, int, str]) -> Recorded:
    code = next(row["i"] for row in driver.rows if row.get("plain") == function)
    driver.rows.append({"k": "marks", "c": code, "spans": [list(span) for span in spans]})
    return driver


def test_the_innermost_mark_decides_whatever_runs_below() -> None:
    driver = Recorded(1)
    for _ in range(30):
        driver.spend(0.03, "learn").spend(0.02, "wait").spend(0.03, "replay").spend(0.02, "io")
    marked(driver, "main", (60, 64, "env"), (60, 63, "my part"), (66, 66, "act"), (66, 66, "input"))
    found = told(marked(driver, "improve", (50, 70, "eval")))
    assert found.phases == pytest.approx({"env": 0.3, "input": 0.4, "eval": 0.3}, abs=0.02)
    assert found.marked == pytest.approx(found.phases)
    assert found.as_json()["marked"] == found.marked
    assert all(words.endswith("marked by the program") for words in found.lines.values())
    assert found.verdict == "input-bound"
    assert "decided by the program's own marks: 40 % of the time" in found.findings[0].evidence


def test_imports_and_first_compilations_in_a_mark_stay_apart() -> None:
    driver = Recorded(1).spend(0.5, "env").spend(1.0, "learn", 1).spend(0.5, "import")
    for _ in range(20):
        driver.spend(0.05, "learn")
    found = told(marked(driver, "main", (0, 99, "env")))
    assert found.phases == {"env": 1.0}
    assert dict(found.apart)["first compilation"] == pytest.approx(1.0, abs=0.1)
    assert dict(found.apart)["imports and start"] >= 0.5


def test_waiting_in_a_mark_is_the_marks() -> None:
    """Not that of workers, nor of another thread that works meanwhile."""
    driver, worker = Recorded(1), Recorded(2)
    driver.rows.append({"k": "lane", "i": 1, "main": False, "name": "helper"})
    for _ in range(40):
        driver.spend(0.02, "learn", 0, 0.01).spend(0.08, "wait", 0, 0.0)
        driver.also(1, 0.08, "io", 0.08)
        worker.spend(0.1, "env")
    assert told(driver, worker).phases["env"] > 0.3
    marked(driver, "collect", (60, 66, "act"))
    found = told(driver, worker)
    assert found.phases["act"] == pytest.approx(0.8, abs=0.05)
    assert "env" not in found.phases


@pytest.mark.parametrize("thread", [False, True])
def test_a_mark_in_a_worker_counts_there(thread: bool) -> None:
    driver, worker = Recorded(1), Recorded(2)
    driver.rows.append({"k": "lane", "i": 1, "main": False, "name": "helper"})
    for _ in range(40):
        driver.spend(0.02, "learn").spend(0.08, "wait")
        if thread:
            driver.also(1, 0.08, "sync", 0.08)
        else:
            worker.spend(0.1, "sync")
    marked(driver if thread else worker, "improve", (60, 60, "env"))
    found = told(driver) if thread else told(driver, worker)
    assert found.verdict == "env-bound"
    assert found.marked == {"env": pytest.approx(0.8, abs=0.05)}


def test_a_mark_with_several_phases_is_named() -> None:
    driver = Recorded(1).spend(2.0, "learn")
    found = told(marked(driver, "improve", (63, 63, "env or none"), (64, 64, "a or b")))
    assert not found.marked
    assert [note for note in found.notes if "mark" in note] == [
        "The mark at train.py:63 is ignored, because its phase is not the same each time (env or "
        "none): write one `with` for each phase."
    ]


# --- By the user ------------------------------------------------------------------------------


def test_a_functions_phase_can_be_given() -> None:
    driver = Recorded(1)
    for _ in range(30):
        driver.spend(0.03, "sync").spend(0.07, "learn")
    about = meta(driver.clock) | {"phases": ["act=train:improve", "env=torch.optim.adam:Adam.step",
                                             "io=train:no_such"]}  # fmt: skip
    found = diagnose(build(about, [driver.written()]))
    assert found.phases == pytest.approx({"act": 0.3, "env": 0.7}, abs=0.02)
    assert found.lines["env"].endswith("marked by --phase")
    assert "decided by --phase: 70 % of the time" in found.findings[0].evidence
    assert (
        "--phase io=train:no_such: no such function was seen; check its module and name."
        in found.notes
    )


BASES = {"name": "Sub", "module": "m", "bases": ["m.Sub", "m.Maze"], "has": []}


def test_a_function_of_a_script_with_a_relative_path_is_not_said_to_be_missing() -> None:
    driver = Recorded(1).spend(3.0, "learn")
    driver.rows.append({"k": "main", "file": "/home/me/train.py", "name": "__main__"})
    about = meta(driver.clock) | {"phases": ["act=__main__:improve"]}
    found = diagnose(build(about, [driver.written()]))
    assert found.marked == {"act": pytest.approx(1.0)}
    assert not [note for note in found.notes if "--phase" in note]


@pytest.mark.parametrize(
    ("word", "code", "found"),
    [
        ("env=train:step", Code("/a/train.py", "step", 1), True),
        ("env=train:step", Code("C:\\a\\train.py", "step", 1), True),
        ("env=a.train:step", Code("/b/a/train.py", "step", 1), True),
        ("env=a:step", Code("/b/a/__init__.py", "step", 1), True),
        ("env=rain:step", Code("/a/train.py", "step", 1), False),
        ("env=b.train:step", Code("/a/train.py", "step", 1), False),
        ("env=__main__:step", Code("run.py", "step", 1), True),
        ("env=__main__:step", Code("/a/run.py", "step", 1), True),
        ("env=__main__:step", Code("/b/run.py", "step", 1), False),
        ("env=train:step", Code("/a/train.py", "step", 1, qualname="Maze.step"), False),
        ("env=train:step", Code("/a/train.py", "step", 1, qualname="main.<locals>.step"), True),
        ("env=train:Maze.step", Code("/a/train.py", "step", 1, qualname="Maze.step"), True),
        ("env=train:Maze.step", Code("/a/train.py", "step", 1, owner=BASES), True),
        ("env=train:Other.step", Code("/a/train.py", "step", 1, owner=BASES), False),
        ("env=train:Maze.step", Code("/a/train.py", "step", 1), False),
    ],
)
def test_a_function_is_known_by_its_module_and_name(word: str, code: Code, found: bool) -> None:
    assert FunctionPhase.parse(word).names(code, ["python", "run.py"], "/a/run.py") is found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--phase", "env", "--", "python"], "--phase env: write PHASE=MODULE:FUNCTION, such as"),
        (["--phase", "env=train", "--", "python"], "--phase env=train: write PHASE=MODULE:FUNC"),
        (["--phase=env=a b:c", "--", "python"], "--phase env=a b:c: write PHASE=MODULE:FUNCTION"),
        (["--phase", "gym=a:b", "--", "python"], "--phase gym=a:b: 'gym' is no phase: a phase is"),
        (["--phase", "--", "python"], "--phase needs PHASE=MODULE:FUNCTION"),
        (["--phase", "env=a:b", "--against", "true", "--", "python"], "without --against"),
    ],
)  # fmt: skip
def test_a_malformed_phase_is_one_sentence(
    words: list[str], message: str, flatout: Callable[..., Result]
) -> None:
    result = flatout("explain", *words)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1


# --- In a program -----------------------------------------------------------------------------

PROGRAM = (
    BUSY
    + """
import asyncio, multiprocessing, os
from pathlib import Path
from flatout import phase

LIMIT = time.monotonic() + 90

def waits_for(*texts):
    # Whether the probe has not written some texts yet, which takes longer on a busy machine.
    files = Path(os.environ["FLATOUT_EXPLAIN"]).glob("*.jsonl")
    written = "".join(file.read_text() for file in files)
    return time.monotonic() < LIMIT and any(text not in written for text in texts)

def generates():
    while True:
        with phase("input"):
            busy(0.02)
            yield 1

async def steps():
    for _ in range(3):
        with phase("replay"):
            busy(0.01)
            await asyncio.sleep(0)

async def other():
    for _ in range(3):
        busy(0.01)
        await asyncio.sleep(0)

async def both():
    await asyncio.gather(steps(), other())

def works():
    while waits_for('"env"]'):
        with phase("env"):
            busy(0.1)
        time.sleep(0.3)

def collects():
    busy(0.2)

if __name__ == "__main__":
    phase("io").__enter__()  # never left
    child = multiprocessing.get_context("spawn").Process(target=works)
    child.start()
    numbers = generates()
    while waits_for('"input"]', '"replay"]', '"env"]', '"collects"'):
        next(numbers)
        busy(0.02)
        asyncio.run(both())
        collects()
        time.sleep(0.3)
    with phase("eval"):
        with phase("act"):
            while waits_for('"act"]'):
                time.sleep(0.1)
    child.join()
"""
)


def test_a_programs_marks_are_seen(tmp_path: Path) -> None:
    """In generators and coroutines while they run, in a worker process, and where it waits."""
    program, save = script(tmp_path, PROGRAM), tmp_path / "evidence.json"
    result = explained(
        "--phase", "learn=script:collects", "--phase", "io=script:nothing", "--json",
        tmp_path / "said.json", "--save", save, "--", sys.executable, program,
    )  # fmt: skip
    assert result.code == 0, result.err
    assert (
        "--phase io=script:nothing: no such function was seen; check its module and name."
        in result.err
    )
    assert "script:collects: no such" not in result.err
    said = json.loads((tmp_path / "said.json").read_text())
    assert "io" not in said["marked"], "the mark that is never left"
    lines = {number: line.strip() for number, line in enumerate(PROGRAM.splitlines(), 1)}
    found = {}
    for rows in json.loads(save.read_text())["processes"]:
        for row in (row for row in rows if row["k"] == "marks"):
            found |= {name: lines[first] for first, _, name in row["spans"]}
    assert found == {
        "input": "busy(0.02)", "replay": "busy(0.01)", "env": "busy(0.1)",
        "act": "while waits_for('\"act\"]'):", "eval": 'with phase("act"):',
    }  # fmt: skip
