"""Rows of speed and learning: equal work, resuming, what is published, and its marks."""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.kills import ROOT, wait_for

ROW: dict[str, Any] = {
    "title": "A row", "work": "small", "paths": ["src/flatout/version.py"], "pairs": 2,
    "batch": 4, "full": {"steps": 100, "updates": 10, "window_from": 20},
    "dry": {"steps": 50, "updates": 5, "window_from": 10},
    "score": "training", "seeds": 3, "steps": 100,
    "sides": {"flatout": "train ppo", "sb3": "run_sb3.py stable_baselines3 PPO"},
}  # fmt: skip

FLATOUT = """#!{python} -S
import json, os, sys
words = sys.argv
open({log!r}, "a").write("flatout\\n")
folder, steps = (words[words.index(flag) + 1] for flag in ("--run-dir", "--steps"))
os.makedirs(folder)
row = lambda step, s: json.dumps({{"step": step, "time/wall_s": s, "train/updates": step // 10}})
with open(folder + "/metrics.jsonl", "w") as file:
    file.write("\\n".join([row(10, 0.001), row(20, 0.002), row(int(steps), 0.004)]))
with open(folder + "/config.json", "w") as file:
    json.dump({{"settings": {{"batch_size": 4}}}}, file)
print(json.dumps({{"steps": int(steps), "updates": int(steps) // 10, "wall_s": 0.01,
                  "return_mean_100": 50.0}}))
"""

PEER = """#!/bin/sh
echo peer >> {log}
if [ -e {stop} ]; then rm {stop}; echo "no memory" >&2; exit 3; fi
echo '{{"steps": 100, "updates": {updates}, "samples": 40, "first_update_s": 0.1,
  "window": {{"steps": 80, "updates": 8, "s": 0.004}}, "return_mean_100": 51, "score": 51}}'
"""


@pytest.fixture(scope="module")
def programs() -> Iterator[Any]:
    """The benchmarks' modules by name."""
    before = list(sys.path)
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import harness  # pyright: ignore[reportMissingImports]
    import learning  # pyright: ignore[reportMissingImports]
    import published  # pyright: ignore[reportMissingImports]
    import reach  # pyright: ignore[reportMissingImports]
    import regress  # pyright: ignore[reportMissingImports]
    import sides  # pyright: ignore[reportMissingImports]
    import speed  # pyright: ignore[reportMissingImports]

    modules = (harness, learning, published, reach, regress, sides, speed)
    yield {module.__name__: module for module in modules}
    sys.path[:] = before


@pytest.fixture
def bench(programs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`speed.py` with one row, whose sides are programs that do nothing."""

    def executable(path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    log, stop = tmp_path / "log", tmp_path / "stop"
    ours = executable(tmp_path / "flatout", FLATOUT.format(python=sys.executable, log=str(log)))
    monkeypatch.setattr(programs["sides"], "rows_of", lambda kind: {"row": ROW})
    for name in ("speed", "learning"):
        monkeypatch.setattr(programs[name], "HERE", tmp_path)

    def run(
        *words: str, program: str = "speed", updates: int = 10, fails: bool = False,
        installed: bool = True,
    ) -> int:  # fmt: skip
        if installed:
            text = PEER.format(log=log, stop=stop, updates=updates)
            executable(tmp_path / ".venv-sb3" / "bin" / "python", text)
        if fails:
            stop.touch()
        folder = str(tmp_path)
        places = ("--flatout", str(ours), "--environments", folder, "--results", folder)
        argv = [f"{program}.py", *places, *words]
        monkeypatch.setattr(sys, "argv", argv)
        return programs[program].main()

    return run


def test_a_row_is_published_with_its_ratios(bench: Any, tmp_path: Path, programs: Any) -> None:
    assert bench() == 0
    found = json.loads((tmp_path / "speed" / "row.json").read_text())
    published = programs["published"]
    steady = published.ratios(found)["sb3"]["steady"]
    assert steady == pytest.approx([2.0, 2.0])  # 80 steps in 2 and 4 ms
    assert [(run["side"], run["pair"], run["samples"]) for run in found["runs"]] == [
        ("flatout", 0, 40), ("flatout", 1, 40), ("sb3", 0, 40), ("sb3", 1, 40),
    ]  # fmt: skip
    assert published.marks(found, ROW) == []
    assert published.work_done(found) == {"every side": "100 steps and 10 updates"}


def test_whole_processes_are_compared_by_the_steps_that_they_made(programs: Any) -> None:
    published, runs = programs["published"], []
    for side, steps, updates in (("flatout", 100, 10), ("sb3", 200, 20)):
        work = {"steps": steps, "updates": updates, "process_s": 3.0, "steps_per_s": 1.0}
        runs += [{"side": side, "pair": pair, **work} for pair in (0, 1)]
    runs[-1] |= {"updates": 22}
    assert published.ratios({"runs": runs})["sb3"]["whole"] == [0.5, 0.5]
    assert published.work_done({"runs": runs}) == {
        "flatout": "100 steps and 10 updates", "sb3": "200 steps and 20 to 22 updates",
    }  # fmt: skip


def test_unequal_work_is_one_sentence_and_nothing_is_published(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(updates=11) == 1
    assert capsys.readouterr().out == (
        "row: unequal work, nothing is published: sb3 did 100 steps, 11 updates and 40 samples; "
        "100, 10 and 40 were asked for.\n"
    )
    assert not (tmp_path / "speed").exists()


def test_a_row_whose_peer_is_not_installed_is_skipped(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(installed=False) == 0
    assert "row: skipped. sb3 is not installed: `make peers PEERS=sb3`" in capsys.readouterr().out
    assert not (tmp_path / "log").exists()


def test_finished_runs_of_an_interrupted_row_are_not_repeated(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(fails=True) == 1
    assert "no memory" in capsys.readouterr().out
    assert not (tmp_path / "speed").exists()
    assert bench() == 0
    # The first peer failed; its pair's other side is not run again.
    assert (tmp_path / "log").read_text().split() == ["flatout", "peer", "peer", "flatout", "peer"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_ends_its_run_and_publishes_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    ours, peer = tmp_path / "flatout", tmp_path / ".venv-rltools" / "bin" / "python"
    peer.parent.mkdir(parents=True)
    peer.touch()
    note = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid"
    ours.write_text(f"#!/bin/sh\n{note}\nexec sleep 60\n")
    ours.chmod(0o755)
    argv = [
        sys.executable, ROOT / "benchmarks" / "speed.py", "--row", "sac-pendulum-rltools",
        "--flatout", ours, "--environments", tmp_path, "--results", tmp_path / "results",
    ]  # fmt: skip
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as program:
        wait_for((tmp_path / "pid").exists)
        program.send_signal(number)
        error = program.communicate(timeout=30)[1]
    assert error.endswith("interrupted: the same command resumes after the last finished run.\n")
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    assert not (tmp_path / "results" / "speed").exists()


def test_a_run_with_unequal_work_is_measured_again(bench: Any, tmp_path: Path) -> None:
    assert bench(updates=11) == 1
    assert bench() == 0
    assert (tmp_path / "log").read_text().split() == ["flatout", "peer", "peer", "flatout", "peer"]


def test_too_few_pairs_are_not_measured(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench("--pairs", "2")
    assert "argument --pairs: 2 is not a number from 3 on." in capsys.readouterr().err


def test_sides_of_two_machines_are_one_sentence(
    bench: Any, programs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert bench(fails=True) == 1
    monkeypatch.setattr(programs["harness"], "machine", lambda: "another machine")
    capsys.readouterr()
    assert bench() == 1
    out = capsys.readouterr().out
    assert out.startswith("row: the sides of pair 0 ran on different machines (")
    assert "another machine" in out
    assert out.endswith("): --fresh measures the row again.\n")
    assert not (tmp_path / "speed").exists()


def test_a_source_that_changes_during_a_run_is_one_sentence(
    bench: Any, tmp_path: Path, programs: Any, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    digests = iter("abc")
    monkeypatch.setattr(programs["sides"], "sources_of", lambda row: {"flatout": next(digests)})
    assert bench() == 1
    assert capsys.readouterr().out == (
        "row: speed: flatout, seed 0: the source changed during the run, which is not kept.\n"
    )
    assert not (tmp_path / "speed.jsonl").exists()


def test_what_fresh_forgets_is_forgotten_by_the_next_command(bench: Any, tmp_path: Path) -> None:
    assert bench() == 0
    assert bench("--fresh", fails=True) == 1
    runs = [json.loads(line) for line in (tmp_path / "speed.jsonl").read_text().splitlines()]
    assert [(run["side"], run["seed"]) for run in runs] == [("flatout", 0)]


def test_two_benchmarks_do_not_run_at_once(bench: Any, tmp_path: Path, programs: Any) -> None:
    with programs["sides"].alone(tmp_path), pytest.raises(SystemExit, match="another benchmark"):
        bench()
    assert bench() == 0


def test_broken_results_are_one_sentence(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(program="learning") == 0
    (tmp_path / "learning" / "row.json").write_text("<<<<<<< HEAD")
    capsys.readouterr()
    assert bench(program="learning") == 1
    assert capsys.readouterr().out.startswith(f"row: {tmp_path}/learning/row.json is no JSON")


def test_runs_that_would_share_a_core_are_refused(
    bench: Any, programs: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ROW | {"cores": 10_000}
    monkeypatch.setattr(programs["sides"], "rows_of", lambda kind: {"row": row})
    assert bench("--seeds-at-once", "2", program="learning") == 1
    assert "--seeds-at-once 2 needs 20000 cores" in capsys.readouterr().out
    monkeypatch.setattr(programs["sides"], "rows_of", lambda kind: {"row": ROW | {"score": "goal"}})
    assert bench("--seeds-at-once", "2", program="learning") == 1
    assert "its score is a time: --seeds-at-once 1" in capsys.readouterr().out


def test_a_failed_seed_does_not_end_the_run_beside_it(bench: Any, tmp_path: Path) -> None:
    assert bench("--seeds-at-once", "2", fails=True, program="learning") == 1
    unfinished = json.loads((tmp_path / "learning" / "row.unfinished.json").read_text())
    assert {run["side"] for run in unfinished["runs"]} == {"flatout"}


def test_a_dry_run_publishes_nothing(bench: Any, tmp_path: Path) -> None:
    bench("--dry")
    assert {path.name for path in tmp_path.iterdir()}.isdisjoint({"speed", "speed.jsonl"})


@pytest.mark.parametrize("at_once", [1, 2])
def test_what_is_learned_is_published_with_its_test(
    bench: Any, tmp_path: Path, at_once: int
) -> None:
    assert bench("--seeds-at-once", str(at_once), program="learning") == 0
    found = json.loads((tmp_path / "learning" / "row.json").read_text())
    assert found["iqm"] == {"flatout": [50, 50, 50], "sb3": [51, 51, 51]}
    assert found["tests"]["sb3"]["difference"] == [-1, -1, -1]
    assert found["tests"]["sb3"]["verdict"] == "equal within 10 %"
    assert len(found["runs"]) == 6


def test_an_incomplete_row_of_learning_resumes_from_what_is_committed(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished, lines = tmp_path / "learning" / "row.unfinished.json", tmp_path / "learning.jsonl"
    assert bench(fails=True, program="learning") == 1
    assert str(tmp_path) not in unfinished.read_text()
    assert not (tmp_path / "learning" / "row.json").exists()
    lines.unlink()  # another checkout has only what is committed
    capsys.readouterr()
    assert bench(program="learning") == 0
    assert "learning: flatout, seed 0: finished before" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "learning" / "row.json").read_text())["runs"]) == 6
    assert not unfinished.exists()


def test_runs_whose_settings_were_not_recorded_are_made_again(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(program="learning") == 0
    complete = tmp_path / "learning" / "row.json"
    complete.write_text(json.dumps(json.loads(complete.read_text()) | {"settings": None}))
    (tmp_path / "learning.jsonl").unlink()
    capsys.readouterr()
    assert bench(program="learning") == 0
    assert "finished before" not in capsys.readouterr().err
    assert json.loads(complete.read_text())["settings"] is not None


def test_fewer_seeds_than_are_finished_lose_none(bench: Any, tmp_path: Path) -> None:
    assert bench(program="learning") == 0
    complete = tmp_path / "learning" / "row.json"
    unfinished = complete.rename(complete.with_name("row.unfinished.json"))
    (tmp_path / "learning.jsonl").unlink()
    assert bench("--seeds", "1", program="learning") == 0
    assert len(json.loads(complete.read_text())["runs"]) == 2
    assert len(json.loads(unfinished.read_text())["runs"]) == 6


def test_a_peers_runs_are_taken_from_a_complete_row_while_its_program_is_the_same(
    bench: Any, tmp_path: Path, programs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(ours: str, peer: str) -> None:
        row = ROW | {"paths": [f"src/flatout/{ours}.py"], "peer_paths": {"sb3": [peer]}}
        monkeypatch.setattr(programs["sides"], "rows_of", lambda kind: {"row": row})

    def sides_run() -> set[str]:
        (tmp_path / "log").write_text("")
        (tmp_path / "learning.jsonl").unlink(missing_ok=True)
        assert bench(program="learning") == 0
        return set((tmp_path / "log").read_text().split())

    describe("version", "README.md")
    assert sides_run() == {"flatout", "peer"}
    assert sides_run() == set()
    describe("errors", "README.md")
    assert sides_run() == {"flatout"}
    describe("errors", "LICENSE")
    assert sides_run() == {"peer"}


def test_the_time_to_a_goal_ends_with_ten_episodes_that_reach_it(
    programs: Any, tmp_path: Path
) -> None:
    def write(name: str, rows: list[dict[str, float]]) -> None:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    returns = [-900.0] * 3 + [-150.0] * 10  # the last ten episodes reach it
    write("episodes.jsonl", [{"step": 200 * n, "return": one} for n, one in enumerate(returns, 1)])
    write("metrics.jsonl", [{"step": 100 * n, "time/wall_s": float(n)} for n in range(1, 31)])
    train = programs["harness"].Command([], run_dir=tmp_path)
    reaching = programs["learning"].reaching
    assert reaching(-200)(train, {"steps": 3000})["score"] == 26
    assert reaching(-100)(train, {"steps": 3000})["score"] is None
    compared = programs["learning"].comparison(np.full(5, 9.0), np.full(5, 5.0), seconds=True)
    assert compared["verdict"] == "the peer is sooner"


def test_a_commit_that_does_not_exist_is_one_sentence(programs: Any) -> None:
    with (
        pytest.raises(programs["harness"].BenchmarkError, match="git cannot read commit 'none'"),
        programs["regress"].source_of_commit("none"),
    ):
        pass


def test_changed_sources_are_old_and_two_machines_are_mixed(programs: Any) -> None:
    published = programs["published"]
    source = published.source_of(ROW["paths"])
    run = {"side": "flatout", "seed": 0, "source": source, "machine": "A", "isa": "avx2"}
    peers = [run | {"side": "sb3"}] * 3
    found = {"settings": published.settings_of(ROW), "runs": [run, run, run, *peers]}
    assert published.marks(found, ROW) == []
    assert published.marks(found, ROW | {"batch": 8}) == ["old"]
    assert published.marks(found, ROW | {"seeds": 4}) == ["incomplete"]
    found["runs"] = [run, run, run | {"isa": "avx512f"}, *peers]
    assert published.marks(found, ROW) == ["mixed"]
    found["runs"] = [run, run, run | {"source": "other"}, *peers]
    assert published.marks(found, ROW) == ["old", "mixed"]


def test_agents_of_a_peer_are_not_older_than_its_program(programs: Any) -> None:
    published = programs["published"]
    row = published.rows_of("learning")["ppo-halfcheetah"]
    assert "benchmarks/peers/run_sb3.py" in row["peer_paths"]["sb3"]
    runs = [
        {"side": side, "seed": 0, "source": source, "machine": "A", "isa": "avx2"}
        for side, source in published.sources_of(row).items()
        for _ in range(row["seeds"])
    ]
    found = {"settings": published.settings_of(row), "runs": runs}
    assert published.marks(found, row) == []
    assert published.marks(found, row | {"paths": ["src/flatout/version.py"]}) == ["old"]
    other = row | {"peer_paths": {"sb3": ["src/flatout/version.py"]}}
    assert published.marks(found, other) == ["old"]


def test_the_interval_of_a_median_is_of_order_statistics(programs: Any) -> None:
    interval = programs["published"].median_interval
    assert interval([3.0, 1.0, 2.0]) == (2, 1, 3)
    assert interval(range(6)) == (2.5, 0, 5)  # holds the median in 97 % of cases
    assert interval(range(9)) == (4, 1, 7)  # in 96 %


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([100, 101, 99, 100, 102], [100, 99, 101, 100, 98], "equal within 10 %"),
        ([150, 151, 149, 152, 148], [100, 99, 101, 100, 98], "Flatout's agents score more"),
        ([50, 51, 49, 52, 48], [100, 99, 101, 100, 98], "the peer's agents score more"),
        ([50, 150, 90, 10, 190], [100, 20, 180, 60, 140], "undecided: too wide an interval"),
        ([150, 151], [100, 101], "undecided: too few runs"),
    ],
)
def test_agents_are_equal_different_or_undecided(
    programs: Any, ours: list[float], theirs: list[float], verdict: str
) -> None:
    found = programs["learning"].comparison(np.array(ours, float), np.array(theirs, float))
    assert found["verdict"].startswith(verdict)
    difference, low, high = found["difference"]
    assert low <= difference <= high


@pytest.mark.parametrize("kind", ["speed", "learning"])
def test_each_row_names_files_and_programs_that_exist(programs: Any, kind: str) -> None:
    for name, row in programs["published"].rows_of(kind).items():
        assert [path for path in row["paths"] if not (ROOT / path).exists()] == [], name


def test_results_name_commands_that_exist() -> None:
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    sections = re.findall(r"^## .+?(?=^## |\Z)", results, flags=re.M | re.S)
    commands = [re.search(r"^- Command: `python (\S+\.py)", part, re.M) for part in sections]
    assert None not in commands
    assert [one[1] for one in commands if one and not (ROOT / one[1]).exists()] == []


def test_a_row_is_of_its_peers_program_and_of_its_environment(programs: Any) -> None:
    row = programs["published"].rows_of("speed")["ppo-masks"]
    assert {path for path in row["paths"] if path.startswith("benchmarks")} == {
        "benchmarks/masked_env.py", "benchmarks/peers/clock.py",
        "benchmarks/peers/requirements-sb3.txt", "benchmarks/peers/run_sb3.py",
        "benchmarks/window.py",
    }  # fmt: skip


def test_only_files_that_a_row_can_reach_make_it_old(programs: Any) -> None:
    rows = programs["published"].rows_of("speed")
    here, processes = (
        rows[name]["paths"] for name in ("ppo-cartpole", "ppo-breakout-sample-factory")
    )
    assert {"src/flatout/engine/collect.py", "src/flatout/networks/layers.py"} <= set(here)
    elsewhere = {"src/flatout/engine/workers/pool.py", "src/flatout/envs/atari_pool.py"}
    assert elsewhere.isdisjoint(here)
    assert elsewhere <= set(processes)
    assert "src/flatout/config/presets/hopper-ppo.toml" in rows["ppo-hopper"]["paths"]


def test_a_part_without_a_file_and_an_unknown_part_are_one_sentence(
    programs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, error = programs["published"], programs["harness"].BenchmarkError
    monkeypatch.setattr(published, "HERE", tmp_path)
    (tmp_path / "speed.toml").write_text('[row]\nparts = ["host"]\n[row.sides]\n')
    (tmp_path / "paths.toml").write_text('speed = ["engine/gone.py"]\n')
    with pytest.raises(error, match=r"paths.toml: src/flatout has no engine/gone.py"):
        published.rows_of("speed")
    (tmp_path / "paths.toml").write_text('speed = ["spans.py"]\n')
    with pytest.raises(error, match=r"row: paths.toml has no part host"):
        published.rows_of("speed")


@pytest.mark.slow
def test_a_file_that_a_row_calls_and_that_does_not_count_is_found(programs: Any) -> None:
    row = programs["published"].rows_of("speed")["ppo-cartpole"]
    reach = programs["reach"]
    called = reach.files_called(argparse.Namespace(flatout=None), "speed", row)
    assert reach.uncounted(called, row) == []
    fewer = row | {"paths": [path for path in row["paths"] if "/engine/collect" not in path]}
    assert reach.uncounted(called, fewer) == ["src/flatout/engine/collect.py"]
