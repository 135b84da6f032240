"""`flatout explain --record`: the program's own profiler records, and the program goes on."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from flatout_explain.diagnosis import Diagnosis
from flatout_explain.program.attach import INJECT
from flatout_explain.program.diagnose import diagnosis_of
from flatout_explain.program.evidence import build, rows_of
from flatout_explain.program.facts import facts_of
from flatout_explain.program.recorded import MARK, join
from flatout_explain.report import show
from flatout_explain.trace.load import load
from flatout_explain.trace.operators import operators
from tests.conftest import Result
from tests.explain import test_program
from tests.explain.recorded_traces import MS, Kineto
from tests.explain.test_probe import VERSIONS, interpreter
from tests.explain.test_program import explained, script
from tests.explain.test_program_rules import Recorded, meta

LOOP = """
import os, pathlib, sys, time

folder = pathlib.Path(os.environ["FLATOUT_EXPLAIN"])


def wait_for(done, compute=lambda: sum(range(1000))):
    while not done() and time.process_time() < 40:
        for _ in range(20):
            compute()


def reported():
    return any('"recorded"' in file.read_text() for file in folder.glob("*.jsonl"))


def recording():
    return bool(list(folder.glob("*.recording")))
"""

JAX = (
    LOOP
    + """
import jax, numpy as np


def loss(weights, batch):
    return ((batch @ weights) ** 2).mean()


@jax.jit
def improve(weights, batch):
    return weights - 1e-3 * jax.grad(loss)(weights, batch)


weights, batch = np.ones((8, 2), np.float32), np.ones((16, 8), np.float32)


def learn():
    jax.block_until_ready(improve(weights, batch))
    time.sleep(0.0005)  # fewer events

"""
)


def observed(
    program: str,
    folder: Path,
    record: str = "0.2 0.1",
    path: Path | None = None,
    python: str = sys.executable,
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run a program with the probe, whose profiler is to record: how it ended, and the probe's
    report.

    Args:
        record: how many seconds, after how many steady ones.
        path: a folder with modules for the program.
    """
    (folder / "program.py").write_text(program)
    seen = folder / "seen"
    seen.mkdir()
    (seen / "record").write_text(record)
    paths = os.pathsep.join(map(str, filter(None, [INJECT, path])))
    done = subprocess.run(
        [python, str(folder / "program.py"), str(folder)],
        env={**os.environ, "FLATOUT_EXPLAIN": str(seen), "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    (rows,) = rows_of(seen)
    assert not list(seen.glob("*.recording"))
    assert not [row for row in rows if row["k"] == "failed"]
    (report,) = [row for row in rows if row["k"] == "recorded"]
    return done, report


# --- The program goes on as if nothing had been -----------------------------------------------


@pytest.fixture(scope="module")
def jax_on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that explaining a JAX program leaves whose profiler recorded."""
    folder = tmp_path_factory.mktemp("jax")
    program = script(
        folder, JAX + "wait_for(reported, learn)\nprint(reported())\nsys.exit(3)\n", "train.py"
    )
    soon = test_program.EXPLAIN.replace("import attach\n", "import attach\nattach.STEADY_S = 0.1\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(test_program, "EXPLAIN", soon)
        result = explained(
            "--seconds", 20, "--record", 0.2, "--json", folder / "said.json",
            "--save", folder / "evidence.json", "--", sys.executable, program,
        )  # fmt: skip
    assert (result.code, result.out) == (3, "True\n"), result.err
    (folder / "said.txt").write_text(result.err)
    return folder


def test_the_operators_of_a_program_on_the_cpu_are_evidence(jax_on_cpu: Path) -> None:
    said = json.loads((jax_on_cpu / "said.json").read_text())
    evidence = [words for finding in said["findings"] for words in finding["evidence"]]
    (words,) = {words for words in [*evidence, *said["recorded"]] if "JAX's profiler" in words}
    assert re.search(r"recorded [\d,]+ operators in \d+\.\d s; they took .*, of which `\w", words)
    assert words in (jax_on_cpu / "said.txt").read_text()


def test_the_trace_is_kept_next_to_the_evidence(
    jax_on_cpu: Path, flatout: Callable[..., Result]
) -> None:
    (trace,) = load(jax_on_cpu / "evidence.json.xplane.pb")
    assert operators(trace).count > 0
    said = json.loads((jax_on_cpu / "said.json").read_text())
    result = flatout("explain", jax_on_cpu / "evidence.json", "--json", jax_on_cpu / "again.json")
    assert result.code == 0
    assert json.loads((jax_on_cpu / "again.json").read_text())["verdict"] == said["verdict"]


def test_planes_are_read_as_jax_reads_them(jax_on_cpu: Path) -> None:
    file = jax_on_cpu / "evidence.json.xplane.pb"
    (trace,) = load(file)
    read, expected = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for row in [*trace.devices, *trace.threads]:
        lengths = np.rint((row.events["end"] - row.events["begin"]) * 1e9).astype(int)
        for name, length in zip(row.events["name"], lengths, strict=True):
            read[trace.names[name], int(length)] += 1
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        if plane.name.startswith(("/device:", "/host:CPU")):
            for line in plane.lines:
                for event in line.events:
                    expected[event.name[:500], int(np.rint(event.duration_ns))] += 1
    missing = read - expected
    assert sum(read.values()) > 100
    assert not missing, missing.most_common(3)


def test_a_program_that_ends_meanwhile_leaves_what_was_recorded(tmp_path: Path) -> None:
    done, report = observed(
        JAX + "wait_for(recording, learn)\nlearn()\nsys.exit(7)\n", tmp_path, "50 0.1"
    )
    assert (done.returncode, done.stderr) == (7, "")
    assert report["seconds"] < 50
    (trace,) = load(Path(report["path"]))
    assert MARK in trace.names


OWN_BEFORE = """
options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0
jax.profiler.start_trace(sys.argv[1] + "/own", profiler_options=options)
wait_for(reported, learn)
jax.profiler.stop_trace()
"""

OWN_MEANWHILE = """
lock = jax._src.profiler._profile_state.lock
lock = getattr(lock, "lock", lock)  # JAX's own, if the probe has already put its lock there
wait_for(recording, learn)
jax.profiler.start_trace(sys.argv[1] + "/own")
learn()
jax.profiler.stop_trace()
print(jax._src.profiler._profile_state.lock is lock)
"""


@pytest.mark.slow
def test_a_profiler_that_is_active_is_left_alone(tmp_path: Path) -> None:
    done, report = observed(JAX + OWN_BEFORE, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert report["why"] == "it uses JAX's profiler itself"
    (own,) = load(tmp_path / "own")
    assert MARK not in own.names
    assert operators(own).count


def test_a_profiler_that_the_program_starts_meanwhile_is_its_own(tmp_path: Path) -> None:
    done, report = observed(JAX + OWN_MEANWHILE, tmp_path, "50 0.1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    (ours,), (own,) = load(Path(report["path"])), load(tmp_path / "own")
    assert MARK in ours.names
    assert MARK not in own.names
    assert operators(own).count


def test_a_program_without_such_a_profiler_is_reported(tmp_path: Path) -> None:
    done, report = observed(LOOP + "wait_for(lambda: time.process_time() > 0.6)\n", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert report["why"] == "it uses neither PyTorch nor JAX"


# --- PyTorch's profiler -----------------------------------------------------------------------

TORCH = {
    "torch/__init__.py": """
        __version__ = "1.9"
        import torch._C._autograd, torch.autograd.profiler
        """,
    "torch/_C/__init__.py": "",
    "torch/_C/_autograd.py": """
        called, state = [], []

        def _prepare_profiler(config, activities):
            called.append("prepare")

        def _enable_profiler(config, activities):
            if state:
                raise RuntimeError("Profiler is already enabled")
            called.append("enable")
            state.append(config)

        def _disable_profiler():
            called.append("disable")
            state.clear()
            return Result()

        def _profiler_enabled():
            return bool(state)

        def _record_function_with_args_enter(name):
            called.append(name)

        def _record_function_with_args_exit(handle):
            pass

        class Result:
            def save(self, path):
                open(path, "w").write('{"traceEvents": []}')
        """,
    "torch/autograd/__init__.py": "",
    "torch/autograd/function.py": """
        def apply(until):
            while not until():
                sum(range(1000))
        """,
    "torch/autograd/profiler.py": """
        from enum import Enum
        from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler

        ProfilerState = Enum("ProfilerState", "KINETO")
        ProfilerActivity = Enum("ProfilerActivity", "CPU CUDA")
        _is_profiler_enabled = False

        class ProfilerConfig:
            def __init__(self, state, shapes, memory, stack, flops):
                pass

        class profile:
            entered = False

            def __init__(self):
                self.entered, self.kineto_results, self.function_events = False, None, None

            def prepare(self):
                self.entered = True
                _prepare_profiler(None, None)

            def __enter__(self):
                self.prepare()
                _enable_profiler(None, None)

            def __exit__(self, *error):
                self.kineto_results = _disable_profiler()
        """,
}
"""A package with the functions of PyTorch's profiler that are called, as an old version has
them."""

IMPORT_TORCH = """
import torch
from torch._C._autograd import called
"""


@pytest.fixture
def torch_path(tmp_path: Path) -> Path:
    """A folder with a stand-in for PyTorch."""
    for name, text in TORCH.items():
        path = tmp_path / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        script(path.parent, text, path.name)
    return tmp_path / "modules"


@pytest.mark.parametrize(
    "version", [pytest.param(one, marks=pytest.mark.slow) for one in VERSIONS] + [None]
)
def test_pytorchs_profiler_makes_way_for_the_programs_own(
    tmp_path: Path, torch_path: Path, version: str | None
) -> None:
    """It refuses to be enabled twice."""
    python = sys.executable if version is None else interpreter(version)
    program = """
functions = dict(vars(torch.autograd.profiler))
wait_for(recording)
with torch.autograd.profiler.profile():
    print(*called)
print(vars(torch.autograd.profiler) == functions)
"""
    done, report = observed(LOOP + IMPORT_TORCH + program, tmp_path, "50 0.1", torch_path, python)
    assert (done.returncode, done.stderr) == (0, "")
    ours = ["prepare", "enable", *MARK.split(), "disable"]
    assert done.stdout.split() == [*ours, "prepare", "enable", "True"]
    assert Path(report["path"]).exists()


def test_a_profiler_of_pytorch_that_is_prepared_is_left_alone(
    tmp_path: Path, torch_path: Path
) -> None:
    """As during the warm-up of a schedule: another would undo it."""
    program = """
own = torch.autograd.profiler.profile()
own.prepare()
wait_for(reported)
print(*called)
"""
    done, report = observed(LOOP + IMPORT_TORCH + program, tmp_path, path=torch_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "prepare\n", "")
    assert report["why"] == "it uses PyTorch's profiler itself"


def test_pytorchs_profiler_is_not_started_within_its_own_functions(
    tmp_path: Path, torch_path: Path
) -> None:
    """The state of the thread is put back where they end, and the profiler would be lost."""
    program = """
from torch.autograd.function import apply
apply(lambda: time.process_time() > 0.8)
print(*called, "and then")
wait_for(recording)
"""
    done, report = observed(LOOP + IMPORT_TORCH + program, tmp_path, "50 0.1", torch_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "and then\n", "")
    assert Path(report["path"]).exists()


# --- What is said -----------------------------------------------------------------------------


def joined(trace: Kineto, driver: Recorded, folder: Path, save: Path | None = None) -> Diagnosis:
    """A diagnosis with a trace that began with the program."""
    report = {"k": "recorded", "of": "PyTorch", "path": str(trace.write(folder / "1.trace.json")),
              "t": 100.0, "seconds": driver.clock}  # fmt: skip
    rows = [[*driver.written(), report]]
    facts = facts_of(build(meta(driver.clock), rows))
    found = join(diagnosis_of(facts), facts, rows, None if save is None else str(save))
    found.check()
    return found


def begun() -> Kineto:
    """A trace with the probe's mark."""
    trace = Kineto()
    trace.event("user_annotation", MARK, trace.t, 1.0)
    trace.t += 1.0
    return trace


def test_the_samples_say_what_a_device_waits_for(tmp_path: Path) -> None:
    """Without Python stacks the trace alone shows only that nothing was launched."""
    trace, driver = begun(), Recorded(1)
    for _ in range(40):
        driver.spend(0.06, "env").spend(0.04, "learn")
        trace.t += 60 * MS
        trace.launch(10 * MS)
        trace.t += 40 * MS - 5.0
    found = joined(trace, driver, tmp_path)
    assert found.busy == {"gpu:0": pytest.approx(0.1, abs=0.01)}
    (words,) = found.recorded
    assert words.startswith(
        "The GPU computes 10 % of the 4.0 s that PyTorch's profiler recorded. It waits "
        "60 % of the time for environments (maze.py:60), 30 % for the host to launch "
        "work (train.py:"
    )
    assert found.verdict == "env-bound"
    assert "gpu:0 recorded" in [lane.name for lane in found.lanes]


def test_the_time_of_an_operator_is_its_own(tmp_path: Path) -> None:
    """Without the time of operators that it calls, and of ranges that are no operators."""
    trace, driver = begun(), Recorded(1).spend(1.0, "learn")
    for _ in range(10):
        begin = trace.t
        trace.host(30.0, "aten::addmm")
        trace.host(5.0, "aten::item")
        trace.event("cpu_op", "aten::linear", begin, 50.0)
        trace.event("user_annotation", "Optimizer.step#Adam.step", begin, 60.0)
        trace.t = begin + 100.0
    (read,) = load(trace.write(tmp_path / "a.json"))
    found = operators(read)
    expected = {"aten::addmm": 300e-6, "aten::linear": 150e-6, "aten::item": 50e-6}
    assert found.seconds == {name: pytest.approx(own) for name, own in expected.items()}
    assert found.count == 30
    learning = joined(trace, driver, tmp_path).findings[0]
    assert learning.evidence[-1] == (
        "PyTorch's profiler recorded 30 operators in 1.0 s; they took 500 µs, of which "
        "`aten::addmm` 60 %, `aten::linear` 30 %, `aten::item` 10 %"
    )


def test_operators_of_learning_that_is_not_first_are_shown_by_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    trace, driver = begun(), Recorded(1)
    trace.host(30.0, "aten::addmm")
    for _ in range(20):
        driver.spend(0.08, "env").spend(0.02, "learn")
    found = joined(trace, driver, tmp_path)
    assert found.verdict == "env-bound"
    show(found, Console(width=300))
    line = next(text for text in capsys.readouterr().out.splitlines() if text.startswith("RECORD"))
    assert "`aten::addmm` 100 %" in line


def test_a_kept_trace_of_pytorch_is_compressed(tmp_path: Path) -> None:
    trace, driver = begun(), Recorded(1).spend(1.0, "learn")
    trace.host(30.0, "aten::addmm")
    joined(trace, driver, tmp_path, tmp_path / "evidence.json")
    assert gzip.decompress((tmp_path / "evidence.json.trace.json.gz").read_bytes())
    found = joined(trace, driver, tmp_path, tmp_path / "no" / "folder.json")
    assert "could not be kept" in found.notes[-1]


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (None, "recorded nothing: the program or the observation ended"),
        ({"why": "it uses JAX's profiler itself"}, "nothing: it uses JAX's profiler itself."),
        ({"path": "/no/such.json", "of": "JAX", "t": 1.0, "seconds": 1.0}, "was lost: /no/such"),
    ],
)
def test_why_nothing_was_recorded_is_one_note(report: dict[str, Any] | None, said: str) -> None:
    rows = [Recorded(1).spend(1.0, "learn").written()]
    rows[0] += [] if report is None else [{"k": "recorded"} | report]
    facts = facts_of(build(meta(1.0), rows))
    before = diagnosis_of(facts)
    found = join(before, facts, rows)
    (note,) = found.notes[len(before.notes) :]
    assert said in note
    assert (found.findings, found.recorded) == (before.findings, ())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("/", "--record", "1"), "--record is for programs that explain starts"),
        (("--pid", "1", "--record", "1"), "--record is for programs that explain starts"),
        (("--record", "0", "--", "true"), "--record 0 is impossible"),
        (("--record", "nan", "--", "true"), "--record nan is impossible"),
        (("--record", "21", "--", "true"), "between 0.1 and 20"),
        (("--seconds", "5", "--record", "3", "--", "true"), "at most half of --seconds (5)"),
    ],
)
def test_recordings_that_cannot_be_are_refused_in_a_sentence(
    flatout: Callable[..., Result], argv: tuple[str, ...], said: str
) -> None:
    result = flatout("explain", *argv)
    assert result.code == 2
    assert said in result.message
