"""`--fail-if`: an exit code for scripts that test a program's use of its time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flatout_explain.conditions import WORDS, Condition
from flatout_explain.diagnosis import Finding
from tests.conftest import Result
from tests.explain.recorded import unpacked
from tests.explain.test_program import explained, script
from tests.explain.test_report import empty, example

Cli = Callable[..., Result]


@pytest.mark.parametrize(
    ("text", "holds"),
    [("wait > 50", True), ("wait > 64.5", False), ("wait>=64", True), ("wait < 70 %", True),
     ("env > 0", False), ("env-bound > 60", True), ("compute-bound <= 24", True),
     ("io-bound > 0", True), ("io-bound > 0.4", False), ("gpu-idle > 70", True),
     ("gpu-idle > 99", False)],
)  # fmt: skip
def test_conditions_are_on_shares_of_the_time(text: str, holds: bool) -> None:
    assert Condition.parse(text).verdict(example())[0] is holds


@pytest.mark.parametrize("text", ["env > 50", "env-bound < 5", "gpu-idle > 5"])
def test_what_is_unknown_is_said_and_holds_nothing(text: str) -> None:
    holds, words = Condition.parse(text).verdict(empty())
    assert holds is None
    assert words.startswith(f'--fail-if "{text}" cannot be judged: ')


@pytest.mark.parametrize(
    ("text", "holds"),
    [("compute-bound < 50", None), ("launch-bound > 30", None), ("garbage-bound < 5", None),
     ("io-bound > 2", True), ("io-bound > 3", False), ("learn > 50", True)],
)  # fmt: skip
def test_a_cause_that_is_not_listed_has_the_share_of_its_phase(
    text: str, holds: bool | None
) -> None:
    """The calls of learning were not counted, and io is too small to be a finding."""
    phases = {"learn": 0.97, "io": 0.03}
    found = replace(example(), findings=(Finding("unknown", 0.97, ("x",), "y"),), phases=phases)
    assert Condition.parse(text).verdict(found)[0] is holds


def test_a_gpu_whose_use_is_unknown_is_not_idle() -> None:
    usage = tuple(replace(one, gpus=(replace(one.gpus[0], busy=None),)) for one in example().usage)
    assert Condition.parse("gpu-idle > 5").share(replace(example(), usage=usage)) is None


@pytest.mark.parametrize(
    ("busy", "idle"),
    [((0.9, 0.7, 0.01), 0.2), ((0.01, 0.01), 0.99), ((0.9, 0.5), 0.3)],
    ids=["one hardly computes", "none does", "both do"],
)
def test_recorded_gpus_that_hardly_compute_do_not_count(
    busy: tuple[float, ...], idle: float
) -> None:
    """As of sampled ones: a trace may list a device for a few copies."""
    recorded = {f"gpu:{number}": share for number, share in enumerate(busy)}
    found = Condition.parse("gpu-idle > 5").share(replace(example(), busy=recorded))
    assert found == pytest.approx(idle)


@pytest.mark.parametrize(
    ("text", "words"),
    [("envv > 50", "'envv' is no phase or cause. Did you mean 'env'"),
     ("env", "write --fail-if \"env > 50\", in quotation marks"),
     ("env > fifty", "is no condition"), ("env > 5e3", "is no condition"),
     ("env == 5", "is no condition"), ("> 5", "is no condition"), ("", "is no condition"),
     ("env > 500", "a share of the time is at most 100 per cent"),
     ("devices-reserved > 5", "'devices-reserved' is no phase or cause")],
)  # fmt: skip
def test_another_condition_is_refused_before_the_program_starts(
    text: str, words: str, flatout: Cli, tmp_path: Path
) -> None:
    program = script(tmp_path, f"open({str(tmp_path / 'started')!r}, 'w')")
    result = flatout("explain", "--fail-if", text, "--", sys.executable, program, exact=True)
    assert result.code == 2
    assert words in result.message
    assert not (tmp_path / "started").exists()
    if "no phase" in words:
        assert all(word in result.message for word in WORDS)


def test_a_flag_without_a_condition_is_refused(flatout: Cli) -> None:
    result = flatout("explain", "--fail-if", "--", "python")
    assert result.code == 2
    assert '--fail-if needs a condition: --fail-if "env > 50"' in result.message


def test_the_exit_code_is_3_where_a_condition_holds(flatout: Cli, tmp_path: Path) -> None:
    file = unpacked("two_ranks_torch", tmp_path)
    first = ("--fail-if", "communicate > 10")
    assert flatout("explain", file, "--fail-if", "communicate > 99", exact=True).code == 0
    result = flatout("explain", file, *first, "--fail-if", "env > 1", exact=True)
    assert result.code == 3
    assert '--fail-if "communicate > 10" holds: communicate takes 80 % of the time.' in result.err


SPINS = """
    import sys, time

    def spin(number):
        sum(range(1000))

    end = time.process_time() + 1.2
    while time.process_time() < end:
        spin(3)
    sys.exit({code})
"""


@pytest.mark.parametrize(("code", "expected"), [(0, 3), pytest.param(7, 7, marks=pytest.mark.slow)])
def test_a_program_that_fails_keeps_its_exit_code(code: int, expected: int, tmp_path: Path) -> None:
    program, said = script(tmp_path, SPINS.format(code=code)), tmp_path / "said.json"
    result = explained(
        "--fail-if", "host-bound > 50", "--count", "__main__:spin(number)", "--json", said, "--",
        sys.executable, program,
    )  # fmt: skip
    assert result.code == expected
    assert '--fail-if "host-bound > 50" holds' in result.err
    assert json.loads(said.read_text())["work"]["number of __main__:spin"]["per_s"] > 100


@pytest.mark.parametrize(
    ("argv", "words"),
    [("--count steps --pid 1", "--count is for programs that explain starts"),
     ("--count train -- python x.py", "--count 'train' is not a function")],
)  # fmt: skip
def test_what_cannot_be_counted_is_refused(argv: str, words: str, flatout: Cli) -> None:
    result = flatout("explain", *argv.split())
    assert result.code == 2
    assert words in result.message
