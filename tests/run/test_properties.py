"""Promises of the design: placement changes no mathematics, numbers are honest, work is counted."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout import PPO
from flatout.spans import NAMES
from flatout.storage import checkpoint
from flatout.storage.span_records import Begin, SpanRecord
from flatout_explain.hardware.gpus import GpuSample
from flatout_explain.hardware.monitor import MonitorSample
from tests import tiny
from tests.conftest import TINY, Result, last_saved
from tests.kills import assert_same

pytestmark = pytest.mark.usefixtures("shared_programs")

PLACEMENTS = ("cpu", "act=cpu:2", "act=cpu learn=cpu:1", "act=cpu:2 learn=cpu:1")


@pytest.mark.bits
@pytest.mark.parametrize(
    ("env", "placements"),
    [
        ("CartPole-v1", PLACEMENTS[::3]),
        pytest.param("Pendulum-v1", PLACEMENTS[:3], marks=pytest.mark.slow),
    ],
    ids=["CartPole-v1", "Pendulum-v1"],
)
def test_placement_changes_no_bit_on_cpu(
    env: str, placements: tuple[str, ...], flatout: Callable[..., Result], tmp_path: Path
) -> None:
    """Property 1: every placement's parameters, optimiser, episodes and actions are the same."""
    states: list[dict[str, Any]] = []
    for number, placement in enumerate(placements):
        run = tmp_path / str(number)
        result = flatout(
            "train", "ppo", *TINY, "--env", env, "--steps", 384, "--placement", placement,
            "--normalize-observation", "--normalize-reward", "--run-dir", run, "--json",
        )  # fmt: skip
        assert result.code == 0, result.err
        assert json.loads(result.out)["placement"] == placement
        _, snapshot = checkpoint.load(checkpoint.latest(run))
        states.append({"arrays": snapshot.arrays, "version": snapshot.data["version"]})
    for other in states[1:]:
        assert_same(states[0], other)


@pytest.mark.bits
def test_each_environment_has_its_own_noise_however_many_act_in_one_call(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    actions: list[dict[str, np.ndarray]] = []
    for groups in (1, 2):
        run = tmp_path / str(groups)
        where = ("--placement", f"groups={groups}", "--steps", tiny.ITERATION)
        assert flatout("train", "ppo", *TINY, *where, "--run-dir", run).code == 0
        saved = last_saved(run).items()
        actions.append({name: array for name, array in saved if "sampler/actions/" in name})
    one, two = actions
    assert one.keys() == two.keys()
    assert sum(len(array) for array in one.values()) > 10
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], name)


def test_phases_name_every_span_and_sum_to_one(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    result = flatout(
        "train", "ppo", *TINY, "--eval-every", 128, "--run-dir", tmp_path / "run", "--json"
    )
    phases = json.loads(result.out)["phases"]
    assert set(phases) == {*NAMES, "other"}
    assert sum(phases.values()) == pytest.approx(1.0, abs=1e-6)
    for name in ("env", "act", "learn", "publish", "checkpoint", "eval", "log"):
        assert phases[name] > 0, name


def test_time_goes_to_the_span_that_took_it(flatout: Callable[..., Result], tmp_path: Path) -> None:
    """Property 6: an environment that sleeps 10 ms a step is where the time is found."""
    began = time.perf_counter()
    result = flatout(
        "train", "ppo", *TINY, "--env", "tests.fault_envs:sleepy", "--env-kwargs", "seconds=0.01",
        "--steps", 128, "--run-dir", tmp_path / "run", "--json",
    )  # fmt: skip
    outside = time.perf_counter() - began
    summary = json.loads(result.out)
    slept = 128 * 0.01
    inside = summary["phases"]["env"] * summary["wall_s"]
    assert slept <= inside <= slept + 0.5 * outside
    # The command's clock starts with the process, which here is the test run's.
    assert summary["wall_s"] - summary["startup_s"] <= outside


def test_setting_the_time_of_day_changes_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: now() - 3 * next(calls))
    summary = PPO("CartPole-v1", **tiny.python("ppo")).learn(64).summary
    assert 0 < summary["compile_s"] <= summary["startup_s"] <= summary["wall_s"]
    compiling = summary["phases"]["compile"] * summary["wall_s"]
    assert compiling == pytest.approx(summary["compile_s"] + summary["compile_later_s"])


def test_a_process_knows_how_long_it_has_run() -> None:
    began = time.perf_counter()
    code = "from flatout.cli.train import process_age; print(process_age())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 <= float(said.stdout) <= time.perf_counter() - began + 0.02  # a tick of the kernel's


def test_updates_steps_and_episodes_are_counted(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    result = flatout(
        "train", "ppo", *tiny.flags("ppo"), "--steps", 250, "--run-dir", tmp_path / "run", "--json",
        "--quiet",
    )  # fmt: skip
    summary = json.loads(result.out)
    iterations = 4  # 4 x 64 = 256 is the first multiple of a rollout not below 250
    assert summary["steps"] == iterations * 64
    assert summary["iterations"] == iterations
    assert summary["updates"] == iterations * 2 * 64 // 32
    rows = [json.loads(r) for r in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["rollout/episodes"] == summary["episodes"] > 0


def test_whole_episodes_are_counted_without_their_padding(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    """CartPole ends early at first: padded to 200 rows, but only real steps count."""
    result = flatout(
        "train", "ppo", "--env", "CartPole-v1", "--env-kwargs", "max_episode_steps=200",
        "--rollout-episodes", 1, "--batch-size", 200, "--n-epochs", 2, "--steps", 300,
        "--run-dir", tmp_path / "run", "--json", "--quiet",
    )  # fmt: skip
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    assert summary["episodes"] == summary["iterations"]
    assert 300 <= summary["steps"] < 500
    assert summary["updates"] == 2 * summary["iterations"]


def test_the_trace_is_a_time_line(flatout: Callable[..., Result], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert flatout("train", "ppo", *TINY, "--trace", "--run-dir", run).code == 0
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    count = {name: sum(event["name"] == name for event in events) for name in NAMES}
    assert count["learn"] == 4
    assert count["act"] == count["env"] - 1 == 4 * 32  # one more: the first resets
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.mark.slow
def test_every_metric_is_documented_and_every_documented_metric_exists(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    replayed = ("--steps", 416, "--quiet", "--log-every", 32)  # whole episodes of both environments
    runs: dict[str, tuple[Any, ...]] = {
        "ppo": (*TINY, "--eval-every", 64, "--log-every", 64, "--threshold", 1e9)
    }
    runs |= {name: (*tiny.flags(name), *replayed) for name in ("dqn", "td3", "sac")}
    runs |= {
        "a2c": (*tiny.flags("a2c"), "--steps", 256, "--quiet", "--env", "tests.test_callbacks:Goal",
                "--placement", "schedule=overlapped", "--log-every", 10, "--eval-every", 64,
                "--normalize-observation"),
        "genetic": (*tiny.flags("genetic"), "--steps", 256, "--quiet"),
        "classify": ("--steps", 6, "--batch-size", 64, "--log-every", 2, "--eval-every", 4,
                     "--quiet"),
    }  # fmt: skip
    written: set[str] = set()
    summary: set[str] = set()
    for algorithm, flags in runs.items():
        run = tmp_path / algorithm
        result = flatout("train", algorithm, *flags, "--run-dir", run, "--json")
        assert result.code == 0, result.err
        summary |= set(json.loads(result.out))
        for name in ("metrics.jsonl", "episodes.jsonl"):
            if (run / name).exists():
                rows = [json.loads(line) for line in (run / name).read_text().splitlines()]
                written |= {key for row in rows for key in row}
    described = {
        line.split("`")[1] for line in METRICS.read_text().splitlines() if line.startswith("| `")
    }
    assert written | summary == described


@pytest.mark.parametrize("kind", [Begin, SpanRecord, MonitorSample, GpuSample])
def test_every_field_of_records_and_samples_is_documented(kind: Any) -> None:
    page = METRICS.read_text()
    assert [field.name for field in fields(kind) if f"`{field.name}`" not in page] == []


def test_summary_is_alone_on_stdout_and_in_the_folder(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    result = flatout("train", "ppo", *TINY[:-1], "--run-dir", run, "--json", "--threshold", 5)
    summary = json.loads(result.out)  # nothing else on stdout, though not quiet
    assert "ACHIEVED" in result.err
    assert summary == json.loads((run / "summary.json").read_text())
    wanted = {
        "algorithm", "env", "seed", "steps", "updates", "episodes", "wall_s", "startup_s",
        "compile_s", "steps_per_s", "placement", "return_mean_100", "time_to_return_s",
        "steps_to_return", "phases", "peak_rss_mb", "versions",
    }  # fmt: skip
    assert wanted <= set(summary)
    assert summary["steps_to_return"] == {"5.0": None}  # never before 100 episodes have ended


def test_thresholds_are_recorded_once_and_stopping_stops(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    result = flatout(
        "train", "ppo", *tiny.flags("ppo"), "--steps", 50000, "--threshold", 15,
        "--threshold", 1000, "--stop-at-return", 16, "--run-dir",
        tmp_path / "run", "--json", "--quiet",
    )  # fmt: skip
    summary = json.loads(result.out)
    assert summary["ended"] == "return"
    assert summary["steps"] < 50000
    assert summary["return_mean_100"] >= 16
    assert summary["episodes"] >= 100
    reached = summary["steps_to_return"]
    assert set(reached) == {"15.0", "16.0", "1000.0"}
    assert reached["15.0"] <= reached["16.0"] == summary["steps"]
    assert reached["1000.0"] is None
    assert 0 < summary["time_to_return_s"]["15.0"] <= summary["wall_s"]


def test_the_best_by_evaluation_is_kept(flatout: Callable[..., Result], tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = flatout(
        "train", "ppo", *TINY, "--steps", 1024, "--eval-every", 128, "--log-every", 64,
        "--eval-episodes", 5, "--run-dir", run, "--json",
    )  # fmt: skip
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seen = [row["eval/return_mean"] for row in rows if "eval/return_mean" in row]
    assert len(seen) == 8
    best = json.loads(result.out)["best_eval_return"]
    assert best == max(seen)
    shown = flatout("eval", run, "--episodes", 5, "--json")
    assert json.loads(shown.out)["return_mean"] == best  # the same episodes, the same parameters


def test_only_the_last_checkpoints_stay(flatout: Callable[..., Result], tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = ("--checkpoint-every", 64, "--keep-checkpoints", 2, "--run-dir", run)
    assert flatout("train", "ppo", *TINY, *flags).code == 0
    names = [path.name for path in checkpoint.checkpoints(run / "checkpoints")]
    assert names == ["step_000000000192", "step_000000000256"]
