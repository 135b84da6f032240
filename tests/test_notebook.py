"""Notebooks and plots: what an agent shows, progress in a cell, and Ctrl-C at a prompt."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import flatout
from flatout import PPO, UsageError
from tests import tiny
from tests.test_examples import FOLDER, said, shape

NOTEBOOK = FOLDER / "12_notebook.ipynb"
SETTINGS: dict[str, Any] = tiny.python("ppo", log_every=64)


@pytest.fixture(scope="module")
def agent() -> PPO:
    """Trained once; not to be trained further."""
    return PPO("CartPole-v1", **SETTINGS).learn(512)


class Tags(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.text = set[str](), ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_an_agent_shows_its_curve_and_its_verdict(agent: PPO) -> None:
    shown = Tags(agent._repr_html_())
    assert {"svg", "polyline"} <= shown.tags
    summary = agent.summary
    assert f"{summary['return_mean_last']:,.1f}" in shown.text
    assert summary["headline"] in shown.text
    before = Tags(PPO("CartPole-v1")._repr_html_())
    assert "svg" not in before.tags
    assert "nothing learned yet" in before.text


def test_names_are_no_markup(agent: PPO) -> None:
    import gymnasium as gym

    def make() -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1")

    make.__name__ = make.__qualname__ = "<script>alert(1)</script>"
    page = PPO(make, **SETTINGS).learn(256)._repr_html_()
    assert "script" not in Tags(page).tags
    assert "<script>" in Tags(page).text


def test_an_agents_curve(agent: PPO, tmp_path: Path) -> None:
    made = agent.plot(tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").read_text() == made._repr_svg_()
    ElementTree.fromstring(made._repr_svg_())
    (curve,) = made.curves
    assert curve.x[-1] == 512
    assert curve.mean[-1] == pytest.approx(agent.summary["return_mean_last"])
    assert "mean return" in str(made)


def test_curves_of_agents_and_folders_together(
    agent: PPO, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    PPO("CartPole-v1", **SETTINGS, seed=1).learn(512, run_dir=run)
    made = flatout.plot(agent, run)
    assert [curve.runs for curve in made.curves] == [2], "they differ in nothing but their seeds"
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    assert [curve.runs for curve in flatout.plot(tmp_path, run).curves] == [1], "it is one run"
    assert "damaged" in capsys.readouterr().err
    made = flatout.plot(agent, str(run), group="seed", by="seconds", out=tmp_path / "a.svg")
    assert [curve.label for curve in made.curves] == ["seed=0", "seed=1"]
    assert (tmp_path / "a.svg").exists()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: flatout.plot(), "takes run folders"),
        (lambda: flatout.plot(["a", "b"]), r"run folders and agents.*not \['a', 'b'\]"),  # type: ignore[arg-type]
        (lambda: flatout.plot("x", smooth="much"), "smooth = 'much'"),  # type: ignore[arg-type]
        (lambda: PPO("CartPole-v1").plot(), "learned nothing here"),
        (lambda: flatout.plot(PPO("CartPole-v1")), "nothing to plot"),
        (lambda: flatout.plot("no-such-run"), "no-such-run"),
        (lambda: flatout.plot("x", by="hours"), "hours"),
    ],
)
def test_a_plot_of_nothing(call: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call()


def test_an_agent_that_ended_no_episode_has_no_curve() -> None:
    agent = PPO("Pendulum-v1", **SETTINGS).learn(tiny.ITERATION)
    with pytest.raises(UsageError, match="ended no episode yet"):
        agent.plot()
    assert "svg" not in Tags(agent._repr_html_()).tags


def test_progress_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython is what a kernel brings along: only what it offers is stood in for here."""
    pages: list[str] = []
    handle = types.SimpleNamespace(update=pages.append)
    shell = types.SimpleNamespace(kernel=object())
    shown = types.SimpleNamespace(HTML=str, display=lambda page, display_id: handle)
    ipython = types.SimpleNamespace(get_ipython=lambda: shell, display=shown)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr("flatout.run.notebook.REDRAW_S", 0.0)
    PPO("CartPole-v1", **SETTINGS).learn(512, progress_bar=True)
    first = next(page for page in map(Tags, pages) if "of 512 steps" in page.text)
    assert "steps/s" not in first.text, "it would include compiling"
    last = Tags(pages[-1])
    assert {"progress", "svg"} <= last.tags
    assert "512 of 512 steps" in last.text
    assert "steps/s" in last.text


@pytest.mark.parametrize(
    "prompt",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["at a prompt", "in a script"],
)
def test_ctrl_c_keeps_what_was_learned(prompt: bool) -> None:
    code = f"""
import os, signal, sys, threading
if {prompt}: sys.ps1 = ">>> "
from flatout import PPO
def stop(progress, metrics):
    if progress.iterations == 3:
        os.kill(os.getpid(), signal.SIGINT)
agent = PPO("CartPole-v1", **{tiny.python("ppo")})
try:
    print(agent.learn(1_000_000, callback=stop) is agent)
except KeyboardInterrupt:
    print("raised")
print(agent.summary["ended"], agent.summary["steps"] < 10_000, agent.predict([0.0] * 4)[1] is None)
agent.learn(64)  # and the process goes on
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == ("True" if prompt else "raised")
    assert done.stdout.split("\n")[1] == "signal True True"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    """Cell by cell in one process; each result is shown as a notebook would."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    script = tmp_path / "cells.py"
    script.write_text(
        "import ast, json, sys\n"
        "names = {}\n"
        "for text in json.loads(sys.argv[1]):\n"
        "    tree = ast.parse(text)\n"
        "    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None\n"
        "    exec(compile(tree, 'cell', 'exec'), names)\n"
        "    value = eval(compile(ast.Expression(last.value), 'cell', 'eval'), names)\n"
        "    for show in ('_repr_html_', '_repr_svg_', '__repr__'):\n"
        "        if value is not None and hasattr(value, show):\n"
        "            print(getattr(value, show)())\n"
        "            break\n"
    )
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    done = subprocess.run(
        [sys.executable, "-W", "error", script, json.dumps(code)], cwd=tmp_path,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("<svg") == 2
    assert [shape(done.stdout.splitlines()[-1])] == list(map(shape, said(NOTEBOOK)))
    assert [path.name for path in tmp_path.iterdir()] == ["cells.py"]
