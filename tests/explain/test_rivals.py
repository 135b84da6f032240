"""`benchmarks/explain/rivals.py`: what other profilers write, and what they are found to name."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

EXPLAIN = Path(__file__).parents[2] / "benchmarks" / "explain"
PROGRAM = EXPLAIN / "ordinary" / "reinforce_torch.py"

RAW = """\
process 12:"python x.py";<module> (/me/reinforce_torch.py:69);select_action (/me/reinforce_torch.py:41);sample (/torch/dist.py:9) 40
process 12:"python x.py";<module> (/me/reinforce_torch.py:69);select_action (/me/reinforce_torch.py:40);forward (/torch/nn.py:5) 25
process 12:"python x.py";<module> (/me/reinforce_torch.py:76);update (/me/reinforce_torch.py:55);forward (/torch/nn.py:5) 20
process 12:"python x.py" 15
"""  # noqa: E501


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXPLAIN.parent))
    monkeypatch.syspath_prepend(str(EXPLAIN))
    import rivals  # pyright: ignore[reportMissingImports]

    return rivals


def test_the_first_line_of_each_tool_is_read(rivals: Any) -> None:
    own, within = rivals.first_of_py_spy(RAW, PROGRAM)
    assert own == ("/torch/nn.py", 5, pytest.approx(45 / 85))
    assert within == ("/me/reinforce_torch.py", 41, pytest.approx(40 / 85))
    lines = [
        {"lineno": n, "n_cpu_percent_python": 10, "n_cpu_percent_c": c, "n_sys_percent": 1}
        for n, c in ((7, 5), (8, 31))
    ]
    text = json.dumps({"files": {"a.py": {"lines": lines}}})
    assert rivals.first_of_scalene(text, PROGRAM) == [("a.py", 8, pytest.approx(0.42))]
    assert rivals.first_of_scalene("{}", PROGRAM) == []
    findings = [{"id": "contended", "place": None}, {"id": "a", "place": ["b.py", 4], "share": 0.3}]
    assert rivals.first_of_explain(json.dumps({"findings": findings}), PROGRAM) == [
        ("b.py", 4, 0.3)
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [(41, "the line"), (38, "the function"), (56, "another line"), (62, "another line")],
)
def test_a_line_is_judged_by_its_function(rivals: Any, line: int, words: str) -> None:
    right = rivals.lines_of(rivals.LINES["reinforce_torch"][0])
    assert right == {33, 34, 35, 39, 40, 41, 42, 69}
    library, mine = rivals.Seen("/torch/nn.py", 41, 0.5), rivals.Seen(str(PROGRAM), line, 0.4)
    assert rivals.verdict([mine], PROGRAM, right) == (words, mine)
    assert rivals.verdict([library, mine], PROGRAM, right)[0] == words, "the better view counts"
    assert rivals.verdict([library], PROGRAM, right)[0] == "another line"
    assert rivals.verdict([], PROGRAM, right) == ("none", None)


def test_each_program_has_lines(rivals: Any) -> None:
    programs = tomllib.loads((EXPLAIN / "ordinary" / "ordinary.toml").read_text())
    assert set(rivals.LINES) == set(programs)


def test_what_is_said_about_a_device_is_judged(rivals: Any) -> None:
    from rivals_traces import first_of_hta, verdict_of_hta

    said: dict[str, dict[str, float]] = {
        "time": {"idle": 60.0, "compute": 30.0, "non_compute": 10.0},
        "kinds": {"COMPUTATION": 30.0, "MEMORY": 10.0}, "idle": {"host_wait": 50.0, "other": 10.0},
    }  # fmt: skip
    assert first_of_hta(said) == "host_wait"
    assert verdict_of_hta("host_wait", "env-bound") == "the side"
    assert verdict_of_hta("host_wait", "transfer-bound") == "another"
    said["time"] = {"idle": 10.0, "compute": 30.0, "non_compute": 60.0}
    assert verdict_of_hta(first_of_hta(said), "transfer-bound") == "**the cause**"
