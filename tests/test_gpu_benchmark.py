"""`benchmarks/gpu.py`: it runs where there is no GPU, and no row harms another."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.hardware.test_inventory import divide, install
from tests.kills import ROOT

GPU = ROOT / "benchmarks" / "gpu.py"
FAULTS = ROOT / "tests" / "gpu_faults.py"


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(GPU), *words, "--results", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=200, cwd=tmp_path,
    )  # fmt: skip


def ask(tmp_path: Path, *words: str, code: int = 0) -> tuple[str, dict[str, dict[str, Any]]]:
    """What the command printed, and its rows by name."""
    done = run(tmp_path, *words)
    assert done.returncode == code, done.stdout + done.stderr
    rows: dict[str, dict[str, Any]] = {}
    for file in tmp_path.glob("gpu*.jsonl"):
        rows |= {(row := json.loads(line))["row"]: row for line in file.read_text().splitlines()}
    return done.stdout, rows


def test_a_row_that_goes_wrong_harms_no_other(tmp_path: Path) -> None:
    words = ("--dry", "--rows", str(FAULTS), "--only", "faults")
    out, rows = ask(tmp_path, *words, code=1)
    status = {name.partition("/")[2]: row["status"] for name, row in rows.items()}
    assert status == {
        "raises": "failed", "hangs": "failed", "eats": "failed", "dies": "failed",
        "needs": "skipped", "fine": "ok",
    }  # fmt: skip
    tail = rows["faults/raises"]["tail"]
    assert len(tail) == 20
    assert tail[-1] == "ValueError: this row is wrong"
    assert "killed after 2 s" in rows["faults/hangs"]["why"]
    started = int(rows["faults/hangs"]["tail"][-1])
    assert not alive(started)
    assert "MemoryError" in rows["faults/eats"]["tail"][-1]
    assert "no_such_package" in rows["faults/needs"]["why"]
    assert "absent: no_such_package; rows that need it are skipped: faults" in out
    assert "| yes | act=cpu learn=cpu:1 |" in out
    assert "a note" in out


def test_what_was_found_is_not_asked_again(tmp_path: Path) -> None:
    words = ("--dry", "--rows", str(FAULTS), "--only", "faults/fine")
    ask(tmp_path, *words)
    kept = tmp_path / "gpu-dry.jsonl"
    kept.write_text(kept.read_text() + '{"row": "torn')
    out = run(tmp_path, *words).stdout
    assert "faults/fine: ok" not in out  # nothing ran
    assert "| yes |" in out  # and yet it is shown


def test_it_stops_in_time(tmp_path: Path) -> None:
    _, rows = ask(tmp_path, "--dry", "--minutes", "0", "--only", "hello")
    assert rows == {}


def test_without_a_gpu_every_row_says_so(tmp_path: Path) -> None:
    out, rows = ask(tmp_path, "--only", "hello")
    assert "--dry tries every row on the CPU" in out
    assert {row["status"] for row in rows.values()} == {"skipped"}
    assert all("GPU" in row["why"] or "driver" in row["why"] for row in rows.values())


@pytest.mark.parametrize(
    "words",
    [
        ("hello/cap",),
        pytest.param(("hello/cap", "hello/cards", "agree/a2c"), marks=pytest.mark.slow),
    ],
    ids=["one", "several"],
)
def test_the_cheap_rows_run_dry_from_a_source_tree(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    out, rows = ask(tmp_path, "--dry", "--only", *words)
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert ("| a2c | highest | 0.0e+00 |" in out) == ("agree/a2c" in words)


def test_a_row_that_no_one_has_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "w3")
    assert done.returncode != 0
    assert "no row or group is called 'w3'; groups: hello, agree" in done.stderr


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(GPU.parent))
    spec = importlib.util.spec_from_file_location("gpu_benchmark", GPU)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plugin(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    find = importlib.util.find_spec

    def found(name: str, *rest: Any) -> Any:
        if name.startswith("jax_cuda"):
            return object() if there and name == "jax_cuda13_plugin" else None
        return find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", found)


def test_a_driver_without_a_plugin_and_a_divided_card_are_named(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    plugin(monkeypatch, there=False)
    assert "JAX has no CUDA plugin" in gpu.no_gpu()
    plugin(monkeypatch, there=True)
    assert gpu.no_gpu() == ""
    sys.modules["pynvml"].nvmlDeviceGetMigMode = lambda handle: (1, 1)
    assert "(MIG)" in gpu.no_gpu()
    divide(monkeypatch, "MIG-10")
    sys.modules["pynvml"].nvmlDeviceGetMigMode = lambda handle: (1, 1)
    assert gpu.no_gpu() == ""


def test_a_card_that_others_fill_is_named_with_them(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    asked = SimpleNamespace(dry=False)
    row = gpu.Row("w2/ppo-64", None, free_mb=9_000)
    said = gpu.refusal(row, asked, {}, "")
    assert said.startswith("needs 9,000 MiB; 8,192 are free beside ")
    assert str(os.getpid()) in said
    assert gpu.refusal(gpu.Row("w2/ppo-64", None, free_mb=8_000), asked, {}, "") == ""
    assert "needs 3 cards; 2 are visible" in gpu.refusal(
        gpu.Row("explain/devices-reserved", None, cards=3), asked, {}, ""
    )
