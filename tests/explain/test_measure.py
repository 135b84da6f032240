"""`flatout explain --measure -- program`: a remedy without a change of the source, measured."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from rich.console import Console

from flatout_explain import document, html
from flatout_explain.against import rounds, trial
from flatout_explain.against.rates import STEPS, Run
from flatout_explain.against.rounds import Comparison
from flatout_explain.diagnosis import Diagnosis, Finding, Trial
from flatout_explain.errors import FlatoutError
from flatout_explain.program import attach
from flatout_explain.program.counted import KEEPING
from flatout_explain.report import advised, show_advice
from tests.conftest import Result
from tests.explain.test_counted import found, steps, told
from tests.explain.test_json_report import SCHEMA
from tests.explain.test_program import explained, script
from tests.explain.test_program_rules import Recorded
from tests.explain.test_program_rules import told as told_of
from tests.explain.test_report import empty
from tests.explain.test_report import example as example_run

COMMAND = ["python", "train.py"]

MALLOC = Finding("allocation-bound", 0.3, ("faults",), "Let glibc keep memory.",
                 trial=Trial(("MALLOC_TOP_PAD_=67108864",)))  # fmt: skip
LOADS = Finding("input-bound", 0.5, ("loads",), "Load in processes.", trial=Trial(processes=3))
REWRITE = Finding("replay-bound", 0.6, ("rows",), "Use arrays.")


def example(*findings: Finding) -> Diagnosis:
    return replace(empty(), verdict=findings[0].id, findings=findings, headline="it is slow")


# --- Which remedies ---------------------------------------------------------------------------


def test_memory_that_is_fetched_again_is_tried_with_the_variables_of_its_remedy() -> None:
    one = found(told(steps(), faults={"1": [300_000, 300_000, 0, 0.3]}), "allocation-bound")
    assert one is not None
    assert one.trial == Trial(KEEPING)
    assert all(variable in one.remedy for variable in KEEPING)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_too_many_threads_are_tried_with_each_process_s_share_of_the_cores(library: str) -> None:
    one = found(told(steps().loads(library), runnable=6.0, cpu=0.95), "oversubscribed")
    assert one is not None
    assert one.trial is not None
    assert one.trial.variables[0] == "OMP_NUM_THREADS=2"
    assert len(one.trial.variables) == (2 if library == "jax" else 1), "XLA does not read OpenMP's"
    assert all(variable in one.remedy for variable in one.trial.variables)


def test_a_data_set_is_tried_with_the_proposed_number_of_processes() -> None:
    one = found(told(steps("input")), "input-bound")
    assert one is not None
    assert one.trial == Trial(processes=2)
    assert "num_workers=2" in one.remedy
    driver, workers = steps("input"), []
    for number in range(6):  # new ones again and again: their number is not what is wrong
        worker = Recorded(2 + number)
        worker.rows[0]["t"] = 101.0 + number * 0.7
        workers.append(worker.spend(0.5, "input"))
    again = found(told_of(driver, *workers), "input-bound")
    assert again is not None
    assert again.remedy.startswith("Keep the worker processes")
    assert again.trial is None


def test_a_remedy_that_changes_the_source_is_not_tried() -> None:
    assert all(one.trial is None for one in told(steps("env")).findings)
    with pytest.raises(FlatoutError, match="no remedy is an environment variable or a flag"):
        trial.first(example(REWRITE), COMMAND, ["--workers", "4"])


def test_the_first_remedy_of_that_kind_is_tried() -> None:
    tried = trial.first(example(REWRITE, MALLOC, LOADS), COMMAND, ["--workers", "4"])
    assert tried.finding is MALLOC
    assert tried.command == ["env", "MALLOC_TOP_PAD_=67108864", *COMMAND]
    tried = trial.first(example(LOADS, MALLOC), COMMAND, ["--workers", "4"])
    assert tried.finding is LOADS
    assert tried.command == [*COMMAND, "--workers", "4"]
    assert trial.first(example(LOADS, MALLOC), COMMAND, []).finding is MALLOC


def test_a_flag_that_is_unknown_is_asked_for() -> None:
    with pytest.raises(FlatoutError, match=r'in 3 processes, .* --measure-flag="--workers 3"\.'):
        trial.first(example(LOADS), COMMAND, [])


def test_variables_that_are_set_already_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "67108864")
    with pytest.raises(FlatoutError, match="no remedy is an environment variable"):
        trial.first(example(MALLOC), COMMAND, [])


def test_variables_that_the_command_sets_itself_are_changed_or_not_tried() -> None:
    """The last value of `env` counts: one in front of it would change nothing."""
    given = ["/usr/bin/env", "-u", "A", "MALLOC_TOP_PAD_=1", *COMMAND]
    tried = trial.first(example(MALLOC), given, [])
    assert tried.command == [*given[:4], "MALLOC_TOP_PAD_=67108864", *COMMAND]
    with pytest.raises(FlatoutError, match="no remedy is an environment variable"):
        trial.first(example(MALLOC), ["env", "MALLOC_TOP_PAD_=67108864", *COMMAND], [])


def test_nothing_is_tried_where_nothing_is_proposed() -> None:
    with pytest.raises(FlatoutError, match=r"was seen \(no learning yet\), .* raise --seconds"):
        trial.first(replace(example(MALLOC), part="no learning yet"), COMMAND, [])


# --- What is said -----------------------------------------------------------------------------


def compared(*pairs: tuple[float, float]) -> Comparison:
    """A measurement of pairs of speeds."""
    was, now = ([Run({STEPS: speed}) for speed in speeds] for speeds in zip(*pairs, strict=True))
    commands = COMMAND, ["env", "MALLOC_TOP_PAD_=67108864", *COMMAND]
    return Comparison(commands, runs=(was, now), gains=[{}] * len(pairs))


def gained(diagnosis: Diagnosis, *pairs: tuple[float, float]) -> Diagnosis:
    return trial.with_gain(diagnosis, trial.first(diagnosis, COMMAND, []), compared(*pairs))


def advice_lines(diagnosis: Diagnosis) -> str:
    file = io.StringIO()
    show_advice(diagnosis, Console(file=file, width=300))
    return file.getvalue()


WITH = "environment steps per second with MALLOC_TOP_PAD_=67108864"


def test_the_gain_stands_below_its_remedy_in_every_form_of_the_report(tmp_path: Path) -> None:
    diagnosis = gained(example(MALLOC), *[(100.0, 140.0)] * 4)
    words = f"): {WITH}, 4 pairs\n"
    text = advice_lines(diagnosis)
    assert text.startswith("TRY      Let glibc keep memory.")
    assert "\n         measured 1.4x (1." in text
    assert text.endswith(words)
    assert f"{WITH}, 4 pairs" in html.page(diagnosis)
    said = json.loads(json.dumps(diagnosis.as_json()))
    jsonschema.validate(said, json.loads(SCHEMA.read_text()))
    assert json.loads(msgspec.json.encode(document.read(said, tmp_path))) == said
    assert said["findings"][0]["gain"] == pytest.approx(1.4)
    assert said["findings"][0]["trial"] == {
        "variables": ["MALLOC_TOP_PAD_=67108864"], "processes": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(100.0, 320.0)], f"measured 3.2x: {WITH}, 1 pair: too few for an interval"),
        ([(100.0, 100.0)] * 4, f"measured 1.00x (0.96-1.05): {WITH}, 4 pairs: no difference"),
        ([(100.0, 150.0), (100.0, 300.0)], "2 pairs: undecided; raise --minutes or --seconds"),
    ],
)
def test_what_is_not_known_to_be_a_gain_is_not_called_one(
    pairs: list[tuple[float, float]], words: str
) -> None:
    assert words in advice_lines(gained(example(MALLOC), *pairs))


def test_a_measured_remedy_is_shown_wherever_its_cause_stands() -> None:
    diagnosis = example(REWRITE, replace(MALLOC, share=0.05))
    assert [one.id for _, one in advised(diagnosis)] == ["replay-bound"]
    diagnosis = gained(diagnosis, (100.0, 140.0))
    assert [(label, one.id) for label, one in advised(diagnosis)] == [
        ("Try", "replay-bound"), ("Or", "allocation-bound"),
    ]  # fmt: skip
    assert "1.7x" in advice_lines(example_run()), "gains of runs stand where they stood"


def test_threads_that_the_program_sets_itself_are_no_measurement_of_the_remedy() -> None:
    threads = Trial(("OMP_NUM_THREADS=2",))
    diagnosis = example(Finding("oversubscribed", 0.5, ("threads",), "Fewer.", trial=threads))
    tried, found = trial.first(diagnosis, COMMAND, []), compared(*[(100.0, 101.0)] * 4)
    for each in (0, 2):
        found.runs[1][:] = [replace(run, torch_threads=each) for run in found.runs[1]]
        assert trial.with_gain(diagnosis, tried, found).findings[0].gain is not None
    found.runs[1][:] = [replace(run, torch_threads=16) for run in found.runs[1]]
    with pytest.raises(FlatoutError, match="has 16 threads with OMP_NUM_THREADS=2, too: the prog"):
        trial.with_gain(diagnosis, tried, found)


# --- The command ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--measure", "--", "python", "x.py"),
         "--measure starts python x.py again once it has ended, two copies at the same time, and "
         "both write its results again: add --twice if that does no harm."),
        (("--measure", "--twice", "--pid", "1"), "--measure is for run folders and for programs"),
        (("--twice", "--", "python", "x.py"), "--twice is for --measure of a program"),
        (("--measure-flag", "--workers 4", "--", "python"), "--measure-flag is for --measure of"),
        (("--measure", "--twice", "--against", "python y.py", "--", "python", "x.py"),
         "--measure and --against cannot be combined"),
        (("--measure", "--twice", "--measure-flag", "--workers '4", "--", sys.executable),
         "--measure-flag \"--workers '4\" is no flag"),
        (("--measure", "--twice", "--measure-flag", "", "--", sys.executable), "is no flag"),
        (("--measure", "--twice", "--measure-flag", "--", sys.executable), "needs a flag"),
        (("--measure", "--twice", "--", "no-such-program"), "no-such-program cannot be started"),
        (("--measure", "--twice", "--", "python3", "-I", "x.py"), "-I keeps Python from"),
        (("--measure", "--twice", "--count", "no", "--", "python"), "--count 'no' is not a func"),
        (("--minutes", "2", "--", "python", "x.py"), "--minutes is for --against, and for --meas"),
    ],
)  # fmt: skip
def test_a_measurement_that_makes_no_sense_or_does_harm_is_refused_before_anything_starts(
    flatout: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, arguments: Any, words: str
) -> None:
    monkeypatch.setattr(attach, "record", None)
    result = flatout("explain", *arguments, exact=True)
    assert result.code == 2
    assert words in result.message


@pytest.fixture
def measured(
    flatout: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Result, list[Any]]]:
    """Explain a program that ends at once with --measure; the result, and what was compared. Its
    findings and the measurement are given."""

    def run(code: int, *findings: Finding, flags: tuple[object, ...] = (), **given: Any) -> Any:
        asked: list[Any] = []

        def compare(*arguments: Any) -> Comparison:
            asked.append(arguments)
            if "error" in given:
                raise given["error"]
            return compared(*[(100.0, 140.0)] * 4)

        monkeypatch.setattr(attach, "together", float)
        monkeypatch.setattr(rounds, "compare", compare)
        monkeypatch.setattr(
            "flatout_explain.program.diagnose.diagnosis_of", lambda _: example(*findings)
        )
        command = [sys.executable, "-c", f"raise SystemExit({code})"]
        flags = ("--measure", "--twice", *flags)
        return flatout("explain", *flags, "--", *command, exact=True), asked

    return run


def test_a_program_is_measured_against_itself_and_the_gain_is_written(
    measured: Callable[..., tuple[Result, list[Any]]], tmp_path: Path
) -> None:
    shown, page = tmp_path / "r.json", tmp_path / "r.html"
    flags = ("--json", shown, "--html", page, "--minutes", 2, "--count", "a:b", "--seconds", 5)
    result, ((commands, seconds, minutes, count, save),) = measured(0, MALLOC, flags=flags)
    assert result.code == 0
    assert commands[1] == ["env", "MALLOC_TOP_PAD_=67108864", *commands[0]]
    assert (seconds, minutes, count, save) == (5.0, 2.0, "a:b", None)
    said = result.err
    assert "measuring MALLOC_TOP_PAD_=67108864: two copies of the program run in turns" in said
    assert said.count("TRY      Let glibc keep memory.") == 2, "with its gain once that is known"
    assert f"measured 1.4x (1.3-1.5): {WITH}, 4 pairs" in said
    assert said.count("VERDICT") == 1
    assert "AGAINST  env MALLOC_TOP_PAD_=67108864 python train.py: 1.4x" in said
    written = json.loads(shown.read_text())
    assert written["findings"][0]["gain"] == pytest.approx(1.4)
    assert written["against"]["gain"] == pytest.approx(1.4)
    assert WITH in page.read_text()


def test_the_flag_of_the_program_is_appended(
    measured: Callable[..., tuple[Result, list[Any]]],
) -> None:
    _, ((commands, *_),) = measured(0, LOADS, flags=("--measure-flag", "--workers 4"))
    assert commands[1] == [*commands[0], "--workers", "4"]


@pytest.mark.parametrize(
    ("code", "findings", "given", "words"),
    [
        (0, [REWRITE], {}, "no remedy is an environment variable or a flag of the command."),
        (3, [MALLOC], {}, "nothing is measured, because the program ended with exit code 3."),
        (0, [MALLOC], {"error": FlatoutError("python x failed with exit code 1.")}, "x failed"),
    ],
)
def test_where_nothing_can_be_measured_a_sentence_says_so_and_the_exit_code_is_the_program_s(
    measured: Callable[..., tuple[Result, list[Any]]], code: int, findings: list[Finding],
    given: dict[str, Any], words: str,
) -> None:  # fmt: skip
    result, asked = measured(code, *findings, **given)
    assert result.code == code
    assert result.err.count(words) == 1
    assert bool(asked) == bool(given)
    assert result.err.count("TRY") == 1


ALLOCATES = """
import numpy as np

def work():
    np.empty(2**20, np.uint8).fill(1)

while True:
    work()
"""


@pytest.mark.slow
def test_a_program_that_gives_memory_back_is_measured_with_memory_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its arrays is a mapping of its own, which the variables of the remedy end."""
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    path, shown = script(tmp_path, ALLOCATES), tmp_path / "r.json"
    flags = ("--measure", "--twice", "--stop", "--seconds", 4, "--minutes", 0.001, "--json", shown)
    result = explained(*flags, "--count", "__main__:work", "--", sys.executable, path)
    assert result.code == 143, result.err
    said = json.loads(shown.read_text())
    (one,) = [one for one in said["findings"] if one["id"] == "allocation-bound"]
    assert one["gain"] > 0, result.err
    assert "calls of __main__:work per second with MALLOC_TRIM_THRESHOLD_=" in one["how"]
    assert one["how"] in result.err
