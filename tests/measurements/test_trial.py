"""Trying a remedy: the settings as a file, what may change, and both runs made and compared."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flatout import child
from flatout.config.settings import load_file, resolve
from flatout.errors import FlatoutError, UsageError
from flatout.explain.runs import diagnose_evidence, read_run
from flatout.measurements import trial
from flatout.measurements.trial import Outcome, difference, effect, show, try_first
from flatout.storage.checkpoint import FORMAT
from flatout.storage.span_records import SpanRecord, as_line
from flatout_explain.diagnosis import Diagnosis, Finding, MeasuredGain
from tests.conftest import TINY, Result

Cli = Callable[..., Result]


def written(run: Path, settings: dict[str, Any], spans: dict[str, float]) -> None:
    """Write a run's folder as far as a trial reads it: 10 s of 5,000 steps/s after its start."""
    config = {"format": FORMAT, "algorithm": "ppo", "settings": settings, "parent": None}
    (run / "config.json").write_text(json.dumps(config))
    records = [
        SpanRecord(
            0.0, 1.0, spans={"compile": 1.0}, steps=256, updates=1, iterations=1, first=True
        ),
        SpanRecord(1.0, 10.0, spans=spans, steps=50_000, updates=200, iterations=200),
    ]
    lines = [{"begin": {"t": 0.0}}, *map(as_line, records)]
    (run / "spans.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


PPO = resolve("ppo", {"env": "CartPole-v1", "envs": 4, "n_steps": 64, "placement": "cpu"}).flat()


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "dqn", "ddpg", "td3", "sac", "genetic"])
def test_every_algorithms_settings_survive_their_file(algorithm: str, tmp_path: Path) -> None:
    config = resolve(algorithm, {"env": "X-v0", "env_kwargs": {"size": 3, "name": 'a"b'}})
    file = tmp_path / "base.json"
    file.write_text(json.dumps(config.flat()))
    assert resolve(algorithm, load_file(str(file))) == config
    file.write_text("{")
    with pytest.raises(UsageError, match=r"base\.json is not JSON"):
        load_file(str(file))


@pytest.mark.parametrize(
    ("setting", "same", "words"),
    [
        (("--log-every", "100"), True, "Nothing that is learned"),
        (("--eval-every", "100", "--checkpoint-every", "5"), True, "Nothing that is learned"),
        (("--placement", "schedule=overlapped"), True, "1 versions old instead of 0"),
        (("--placement", "sampler=processes workers=2x2"), True, "other numbers of environments"),
        (("--placement", "replay=device"), True, "never changes"),
        (("--envs", "8", "--n-steps", "32"), False, "--envs, --n-steps"),
        (("--envs", "8", "--placement", "sampler=processes"), False, "compare returns"),
    ],
)
def test_it_is_said_what_a_setting_may_change(
    setting: tuple[str, ...], same: bool, words: str
) -> None:
    comparable, why = effect(PPO, setting, 4)
    assert comparable == same
    assert words in why


def test_the_first_updates_are_compared() -> None:
    def rows(loss: float, updates: int = 4) -> list[dict[str, Any]]:
        return [
            {"train/updates": 0}, {"train/updates": updates, "train/loss": loss, "x": None},
            {"train/updates": 8, "train/loss": 99.0},
        ]  # fmt: skip

    assert difference(rows(1.0), rows(1.0)) == 0.0
    assert difference(rows(1.0), rows(1.5)) == pytest.approx(0.5)
    assert difference(rows(100.0), rows(101.0)) == pytest.approx(0.01), "relative"
    assert difference(rows(1.0), [{"train/updates": 0}]) is None


def test_what_a_setting_changes_is_checked_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = list[tuple[str, ...]]()
    monkeypatch.setattr(trial, "_train", lambda place, run, setting, limit: trained.append(setting))
    monkeypatch.setattr(trial, "_parameters", lambda run: {})
    spares, rare = ("--spare-envs", "all"), ("--log-every", "100", "--no-tensorboard")
    assert "Checked: the same" in trial._compare(tmp_path, PPO, spares, 256, 60.0)
    assert trained == [(), spares]
    assert "Checked" not in trial._compare(tmp_path, PPO, rare, 256, 60.0)
    assert trained == [(), spares], "two equal runs would show nothing"


def test_the_outcome_is_told() -> None:
    finding = Finding("env-bound", 0.7, ("x",), "y", setting=("--placement", "a b"))
    outcome = Outcome(finding, (100.0, 100.0), (150.0, 170.0), "All the same.")

    def said(outcome: Outcome) -> str:
        console = Console(record=True, width=200)
        show(outcome, console)
        return console.export_text()

    assert 'TRIED    --placement "a b"   measured 1.60x (1.50-1.70), 2 pairs' in said(outcome)
    assert "All the same." in said(outcome)
    assert "before" not in said(outcome), "it is compared only with a gain that there is"
    gain = MeasuredGain(1.7, 1.5, 1.9, "planning measured both placements here")
    planned = Outcome(replace(finding, gain=gain), outcome.was, outcome.now)
    assert "before: measured 1.7x (1.5-1.9), planning measured both placements here" in said(
        planned
    )
    saved = json.loads(json.dumps(outcome.as_json()))
    assert (saved["gain"], saved["low"], saved["high"]) == pytest.approx((1.6, 1.5, 1.7))


def test_where_nothing_is_a_setting_it_is_said(tmp_path: Path) -> None:
    finding = Finding("compute-bound", 0.9, ("x",), "Buy a faster one.")
    diagnosis = Diagnosis("run", "healthy", "busy", (finding,), 1.0)
    outcome = try_first(tmp_path, diagnosis, Console(record=True))
    console = Console(record=True, width=200)
    show(outcome, console)
    assert "nothing to try" in console.export_text()
    assert outcome.as_json()["gain"] is None


def test_a_run_of_a_trial_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / trial.BASE).write_text(json.dumps(PPO | {"steps": 256}))
    with pytest.raises(FlatoutError, match=r"--n-steps 7.*does not divide into minibatches"):
        trial._train(tmp_path, tmp_path / "run", ("--n-steps", "7"), 60.0)


@pytest.mark.slow
def test_a_trial_that_fails_says_why(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "SECONDS", 0.01)
    run = tmp_path / "run"
    assert flatout("train", "ppo", *TINY, "--run-dir", run).code == 0
    finding = Finding("env-bound", 0.9, ("x",), "y", setting=("--n-steps", "7"))
    diagnosis = Diagnosis("run", "env-bound", "x", (finding,), 1.0)
    before = list(tmp_path.iterdir())
    with pytest.raises(FlatoutError, match=r"--n-steps 7.*does not divide into minibatches"):
        try_first(run, diagnosis, Console(record=True))
    assert list(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("flag", "span", "present"),
    [("--eval-every", "eval", {"eval_every": 50_000}),
     ("--checkpoint-every", "checkpoint", {"checkpoint_every": 50_000}),
     ("--checkpoint-every", "checkpoint", {"checkpoint_every": None})],
)  # fmt: skip
def test_what_happens_in_no_trial_is_computed_from_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, span: str, present: dict[str, Any]
) -> None:
    """5,000 steps a second: a trial has 25,000 steps, and the run does it every 50,000."""
    settings = PPO | {"steps": 500_000} | present
    written(tmp_path, settings, {span: 2.5, "learn": 7.5})
    monkeypatch.setattr(trial, "_train", lambda *_: pytest.fail("nothing is to be run"))
    finding = Finding("eval-bound", 0.25, ("x",), "y", setting=(flag, "500000"))
    outcome = try_first(tmp_path, Diagnosis("run", "x", "x", (finding,), 1.0), Console())
    assert outcome.gain is None
    assert "a trial makes 25,000 steps, and the run does this every 50,000" in outcome.learning
    assert f"25 % of the time, and with {flag} 500000 2 %" in outcome.learning
    assert "1.29x" in outcome.learning, "a tenth of a quarter remains: 1 / (0.75 + 0.025)"


def test_what_happens_often_in_a_trial_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, PPO | {"eval_every": 500}, {"eval": 2.5, "learn": 7.5})
    monkeypatch.setattr(trial, "_train", lambda place, run, setting, limit: None)
    monkeypatch.setattr(trial, "_rate", lambda run: 100.0)
    finding = Finding("eval-bound", 0.25, ("x",), "y", setting=("--eval-every", "5000"))
    outcome = try_first(tmp_path, Diagnosis("run", "x", "x", (finding,), 1.0), Console())
    assert outcome.gain is not None


def test_a_run_without_spans_is_refused(flatout: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert flatout("train", "ppo", *TINY, "--run-dir", run).code == 0
    (run / "spans.jsonl").unlink()
    finding = Finding("io-bound", 0.9, ("x",), "y", setting=("--log-every", "7"))
    with pytest.raises(FlatoutError, match=r"no spans\.jsonl"):
        try_first(run, Diagnosis("run", "io-bound", "x", (finding,), 1.0), Console(record=True))


def test_nothing_is_left_of_a_run_that_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def remember(*arguments: Any, **more: Any) -> Any:
        started.append(popen(*arguments, **more))
        return started[-1]

    monkeypatch.setattr(child.subprocess, "Popen", remember)
    (tmp_path / trial.BASE).write_text(json.dumps(PPO | {"steps": 10**8}))
    with pytest.raises(FlatoutError, match="did not end within"):
        trial._train(tmp_path, tmp_path / "run", (), 0.5)
    assert [process.poll() is not None for process in started] == [True]


@pytest.mark.slow
def test_a_remedy_is_tried_end_to_end(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments that sleep: in processes of their own they sleep at the same time."""
    monkeypatch.setattr(trial, "PAIRS", 1)
    monkeypatch.setattr(trial, "SECONDS", 1.0)
    run = tmp_path / "run"
    flags = ("--env", "tests.fault_envs:sleepy", "--env-kwargs", "length=10000", "--envs", 4,
             "--n-steps", 8, "--batch-size", 32, "--n-epochs", 1, "--checkpoint-every", 0,
             "--steps", 256)  # fmt: skip
    assert flatout("train", "ppo", *flags, "--run-dir", run, "--quiet").code == 0
    diagnosis = diagnose_evidence(read_run(run))
    assert "sampler=processes" in diagnosis.findings[0].setting[1]
    file = tmp_path / "d.json"
    done = flatout("explain", run, "--try", "--json", file)
    assert done.code == 0
    said = json.loads(file.read_text())["trial"]
    assert len(said["steps_per_s"]) == len(said["steps_per_s_with"]) == 1
    assert said["gain"] > 1.2, "sleeping side by side is faster, whatever else the machine does"
    assert "TRIED" in done.out
    assert "other numbers of environments" in said["learning"] or "versions old" in said["learning"]
