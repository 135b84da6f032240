"""Fifteen tasks of a beginner: they run as they stand, none longer than in Stable-Baselines3."""

from __future__ import annotations

import io
import json
import runpy
import sys
import tokenize
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "quick_start"
TASKS = sorted(FOLDER.glob("*.py"))
QUICK = ("02_stop_early", "06_go_on", "14_export")
CODE = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}


def code_lines(path: Path) -> int:
    """Lines with code on them: blank ones, comments and the title do not count."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    spans = [range(t.start[0], t.end[0] + 1) for t in tokens if t.type in CODE]
    return len({line for span in spans for line in span}) - 1


def test_no_task_takes_more_lines_than_in_stable_baselines3() -> None:
    assert len(TASKS) == 15
    for path in TASKS:
        other = FOLDER / "sb3" / path.name
        assert path.read_text().splitlines()[0] == other.read_text().splitlines()[0]
        ours, theirs = code_lines(path), code_lines(other)
        assert ours <= theirs, f"{path.name}: {ours} lines, {theirs} with Stable-Baselines3"


def test_the_page_lists_every_task_with_its_lines() -> None:
    page = (FOLDER.parent.parent / "docs" / "quick-start.md").read_text()
    for path in TASKS:
        here, theirs = f"(../examples/quick_start/{path.name})", FOLDER / "sb3" / path.name
        other = f"[{code_lines(theirs)}](../examples/quick_start/sb3/{path.name})"
        assert f"{here} | {code_lines(path)} | {other} |" in page


def metric_rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def metric(folder: Path, printed: str, logged: list[dict[str, Any]]) -> None:
    assert metric_rows(folder / "runs/metric")[-1]["my/longest"] > 9


def evaluation(folder: Path, printed: str, logged: list[dict[str, Any]]) -> None:
    found = [row for row in metric_rows(folder / "runs/evaluation") if "eval/return_mean" in row]
    assert [row["step"] for row in found] == [512, 1024]


def network(folder: Path, printed: str, logged: list[dict[str, Any]]) -> None:
    assert not list(folder.iterdir()), "an agent without a run folder writes nothing"


def file(name: str, start: bytes) -> Callable[..., None]:
    def check(folder: Path, printed: str, logged: list[dict[str, Any]]) -> None:
        (found,) = folder.glob(name)
        assert found.read_bytes().startswith(start)

    return check


def number(low: float, high: float) -> Callable[..., None]:
    def check(folder: Path, printed: str, logged: list[dict[str, Any]]) -> None:
        assert low <= float(printed.split()[-1]) <= high

    return check


def online(folder: Path, printed: str, logged: list[dict[str, Any]]) -> None:
    assert logged[-1]["step"] == 1024
    assert logged[-1]["rollout/return_mean_100"] > 9


LEFT: dict[str, Callable[..., None]] = {
    "01_custom_environment": number(0.0, 1.0), "02_stop_early": number(256, 19_000),
    "03_custom_metric": metric, "04_evaluation": evaluation,
    "05_best_model": file("runs/best/best.safetensors", b""), "06_go_on": file("agent*", b""),
    "07_normalise": number(-2000, 0), "08_tensorboard": file("runs/board/events*", b""),
    "09_wandb": online, "10_video": file("agent.gif", b"GIF8"), "11_custom_network": network,
    "12_several_environments": network, "13_predict": number(8, 500),
    "14_export": number(0, 1), "15_plot": file("curve.svg", b"<svg"),
}  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else [pytest.mark.slow])
        for path in TASKS
    ],
)
def test_task_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logged: list[dict[str, Any]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "policy", raising=False)
    monkeypatch.setenv("WANDB_MODE", "")  # what the script sets is taken back
    run = SimpleNamespace(step=0, log=lambda row, step: logged.append({"step": step} | row))
    run.finish = lambda: None
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: run))
    runpy.run_path(str(path), run_name="__main__")
    LEFT[path.stem](tmp_path, capsys.readouterr().out, logged)
