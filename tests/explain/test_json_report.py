"""The JSON report has the form that its schema describes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from flatout_explain import document
from flatout_explain.diagnosis import Diagnosis
from flatout_explain.errors import FlatoutError
from flatout_explain.trace import load
from flatout_explain.trace.diagnose import diagnose as diagnose_trace
from tests.conftest import Result
from tests.explain.recorded import diagnosed, unpacked
from tests.explain.recorded_traces import MS, Kineto
from tests.explain.test_report import empty, example
from tests.explain.test_verdicts import diagnosed as diagnosed_run

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "explain-report.schema.json"


def trace(folder: Path) -> Diagnosis:
    """A trace of four steps that wait for batches."""
    kineto = Kineto()
    for number in range(4):
        begin = kineto.t
        kineto.host(10 * MS, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                    "user_annotation")  # fmt: skip
        kineto.launch(8 * MS)
        kineto.wait()
        kineto.step(number, begin)
    return diagnose_trace(load.load(kineto.write(folder / "trace.json")), "trace.json")


REPORTS: dict[str, Callable[[Path], Diagnosis]] = {
    **{name: lambda _, name=name: diagnosed(name)
       for name in ("two_ranks_torch", "dqn_jax", "acrobot_torch", "letters_jax")},
    "run": lambda _: diagnosed_run({"env": 6.0, "act": 2.0, "learn": 1.0, "other": 1.0}),
    "trace": trace,
    "example": lambda _: example(),
    "empty": lambda _: empty(),
    "tie": lambda _: replace(example(), tie=("env-bound", "compute-bound"), cores=3),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n == "acrobot_torch" else ()) for n in REPORTS],
)
def test_reports_have_the_form_of_the_schema_and_no_key_that_it_does_not_describe(
    name: str, tmp_path: Path
) -> None:
    said = json.loads(json.dumps(REPORTS[name](tmp_path).as_json()))
    jsonschema.validate(said, json.loads(SCHEMA.read_text()))
    assert json.loads(msgspec.json.encode(document.read(said, tmp_path))) == said
    assert said["schema"] == 1
    assert said["kind"] == (name if name in ("run", "trace") else "program")


def test_the_schema_in_the_documentation_is_that_of_the_code() -> None:
    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(document.schema()))


def test_a_comparison_with_a_second_program_has_its_form(tmp_path: Path) -> None:
    from flatout_explain.against.outcome import Moved, Outcome

    found = Outcome("environment steps", 10.0, 20.0, 2.0, 1.8, None, 3, (Moved("env", 0.5, 0.2),))
    about = {"command": "python fixed.py", "count": None}
    said = json.loads(json.dumps(empty().as_json() | {"against": about | found.as_json()}))
    jsonschema.validate(said, json.loads(SCHEMA.read_text()))
    assert json.loads(msgspec.json.encode(document.read(said, tmp_path))) == said


@pytest.mark.parametrize(
    ("change", "words"),
    [({"schema": 2}, "a report of version 2, and this tool reads version 1"),
     ({"schema": None}, "a report without a version"),
     ({"phases": {"env": "much"}}, r"a damaged report \(Expected `float`, got `str`"),
     ({"phases": {"env": 40.0}}, "a damaged report"),
     ({"kind": "game"}, "a damaged report")],
)  # fmt: skip
def test_a_report_that_cannot_be_read_is_refused_in_a_sentence(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(FlatoutError, match=words):
        document.read(empty().as_json() | change, tmp_path / "said.json")


def test_the_command_writes_that_form(flatout: Callable[..., Result], tmp_path: Path) -> None:
    file = unpacked("two_ranks_torch", tmp_path)
    assert flatout("explain", file, "--json", tmp_path / "said.json").code == 0
    said = json.loads((tmp_path / "said.json").read_text())
    jsonschema.validate(said, json.loads(SCHEMA.read_text()))
    assert [one["name"] for one in said["ranks"]] == ["process 8692", "process 8695"]
    assert said["heaviest"][0]["place"].startswith("two_ranks_torch.py:")
