"""Sweeps: every trial is the run that it would be alone, whatever happens to the others."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.placement import parse
from flatout.config.schema import TrainConfig
from flatout.config.settings import resolve, revise
from flatout.errors import CheckpointError, FlatoutError, NoRoomError, UsageError
from flatout.hardware.inventory import Gpu, Hardware, inventory
from flatout.run.auto import with_placement
from flatout.run.interrupts import Interrupts
from flatout.storage import checkpoint
from flatout.storage.run_folder import RunFolder
from flatout.sweeps import engine, plan, worker
from flatout.sweeps.folder import PLAN
from flatout.sweeps.measured import keep, known
from flatout.sweeps.plan import Job, SweepPlan
from flatout.sweeps.sections import drawn
from flatout.sweeps.slots import Slots
from flatout.sweeps.sweep import DONE, MOST_LOST, State, Sweep
from tests import tiny
from tests.conftest import Result, furthest, last_saved
from tests.kills import finish, spawn, wait_for

Cli = Callable[..., Result]
SMALL = ("ppo", *tiny.flags("ppo"), "--steps", 320, "--no-tensorboard", "--checkpoint-every", 64)
GRID = ("--grid", "learning-rate=1e-4,1e-3")
LOTS = ",".join(map(str, range(1, 101)))


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def states(result: Result) -> dict[str, Any]:
    return json.loads(result.out)["trials"]


def test_each_trial_is_the_run_that_it_would_be_alone(flatout: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    words = (*SMALL, *GRID, "--seeds", 2, "--at-once", 1)  # one process makes them all
    result = flatout("sweep", *words, "--run-dir", folder, "--json")
    assert result.code == 0, result.err
    found = states(result)
    assert len(found) == 4
    assert {one["steps"] for one in found.values()} == {320}
    (table,) = json.loads(result.out)["tables"]
    assert "last evaluation" in table["what"]
    assert table["lines"][0]["iqm"]["value"] >= table["lines"][1]["iqm"]["value"]
    own = ("--learning-rate", "1e-3", "--seed", 1, "--eval-every", 320, "--quiet")
    assert flatout("train", *SMALL, *own, "--run-dir", tmp_path / "alone").code == 0
    trial = folder / "learning_rate=0.001_seed=1"
    assert furthest(last_saved(trial), last_saved(tmp_path / "alone")) == 0.0
    rows = [json.loads(line) for line in (trial / "metrics.jsonl").read_text().splitlines()]
    score = found["learning_rate=0.001_seed=1"]["score"]
    assert score == rows[-1]["eval/return_mean"]
    written = (trial / "summary.json").stat().st_mtime_ns
    page = tmp_path / "page.html"
    again = flatout("sweep", "--resume", folder, "--json", "--out", page)  # nothing is left to do
    assert states(again) == found
    assert "learning_rate=0.001" in page.read_text()
    assert (trial / "summary.json").stat().st_mtime_ns == written
    shown = flatout("sweep", "--resume", folder, "--out", page).out.splitlines()
    assert shown[-3:] == [
        str(page), f"NEXT     flatout runs {folder}", f"         flatout report --curves {folder}"
    ]  # fmt: skip


@pytest.mark.slow
def test_populations_are_trained_by_few_processes(flatout: Cli, tmp_path: Path) -> None:
    words = ("--env-backend", "device", "--strategy", "spread", "--seeds", 2, "--json")
    result = flatout("sweep", *SMALL, *GRID, *words, "--run-dir", tmp_path / "f")
    assert result.code == 0, result.err
    assert len(states(result)) == 4
    found = sorted((tmp_path / "f").glob("population-*/members/*"))
    assert len(found) == 4
    own = ("--env-backend", "device", "--learning-rate", "1e-3", "--seed", 1, "--eval-every", 320)
    assert flatout("train", *SMALL, *own, "--quiet", "--run-dir", tmp_path / "one").code == 0
    trial = next(path for path in found if path.name == "learning_rate=0.001_seed=1")
    assert furthest(last_saved(trial), last_saved(tmp_path / "one")) == 0.0


@pytest.mark.fault
@pytest.mark.slow
def test_a_trial_that_fails_is_tried_once_more_and_hurts_no_other(
    flatout: Cli, tmp_path: Path
) -> None:
    """One raises every time, one kills its process once."""
    (tmp_path / "once").mkdir()
    file = tmp_path / "sweep.toml"
    file.write_text(f"""
        algorithm = "ppo"
        n_steps = 32
        batch_size = 32
        steps = 128
        tensorboard = false
        eval_every = 0
        [[list]]
        env = "tests.fault_envs:failing"
        [[list]]
        env = "tests.fault_envs:faulty"
        env_kwargs = {{ fault = "kill", at = 40, folder = "{tmp_path / "once"}" }}
        [[list]]
        env = "CartPole-v1"
    """)
    words = ("--env", "CartPole-v1", "--trust", "--run-dir", tmp_path / "f", "--json")
    result = flatout("sweep", file, *words)
    assert result.code == 1
    found = {name.split("_seed")[0][:30]: one for name, one in states(result).items()}
    assert [one["state"] for one in found.values()].count("done") == 2, found
    (failed,) = [one for one in found.values() if one["state"] == "failed"]
    assert "the physics exploded" in failed["error"]
    assert "its process was killed (SIGKILL). It is tried once more." in result.err
    assert result.err.count("the physics exploded") == 3  # twice while it ran, and at the end


@pytest.mark.fault
@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_where_it_was(flatout: Cli, tmp_path: Path) -> None:
    words = [str(word) for word in (*SMALL, *GRID)]
    words += ["--env", "tests.fault_envs:sleepy", "--env-kwargs", "seconds=0.005", "--at-once", "1"]
    words += ["--eval-every", "0", "--run-dir"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = spawn("sweep", *words, str(killed))
    wait_for(lambda: (killed / PLAN).exists())
    second = flatout("sweep", "--resume", killed)
    assert "is in use by another sweep" in second.message
    wait_for(lambda: any(killed.glob("*seed=0/checkpoints/step_*")))
    process.kill()
    finish(process)
    ended = {path: path.stat().st_mtime_ns for path in killed.glob("*/summary.json")}
    assert len(ended) < 2, "it ended before it could be killed"
    result = flatout("sweep", "--resume", killed, "--json")
    assert result.code == 0, result.err
    assert {one["state"] for one in states(result).values()} == {"done"}
    for path, written in ended.items():
        assert path.stat().st_mtime_ns == written
    assert flatout("sweep", *words, whole, "--quiet").code == 0
    for trial in states(result):
        assert furthest(last_saved(killed / trial), last_saved(whole / trial)) == 0.0


def test_a_resumed_trial_learns_on_the_devices_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are named by its placement then: --devices would name them once more."""
    base = resolve("ppo", {"env": "CartPole-v1", "devices": 2, "shards": 2, "envs": 2})
    (trial,) = plan.trials(base, plan.Group("", {}), [0])
    chosen = parse("learn=cpu:0,cpu:1")
    with closing(RunFolder(tmp_path / "run")) as folder:
        folder.write_config(with_placement(trial.config(), chosen), str(chosen))
    resumed = list[TrainConfig]()

    def stops(config: TrainConfig, **_: Any) -> NoReturn:
        resumed.append(config)
        raise FlatoutError("stopped before a step")

    monkeypatch.setattr("flatout.run.trainer.Trainer", stops)
    with pytest.raises(FlatoutError, match="stopped before"):
        worker._lone(trial, tmp_path / "run", lambda **_: None, Interrupts(), {})
    assert [(one.run.placement, one.run.devices) for one in resumed] == [(str(chosen), None)]


@pytest.mark.fault
def test_a_population_begins_where_only_rows_of_its_members_have_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They came from a cluster that was lost before its first checkpoint had come."""
    folder = tmp_path / "population-1"
    rows = folder / "members" / "seed=0" / "metrics.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text("{}\n")
    began, told = list[bool](), list[Mapping[str, Any]]()
    monkeypatch.setattr(worker, "_population", lambda *words: began.append(words[-1]))
    sweep = tiny.sweep([*map(str, SMALL)])
    job = Job("population-1", tuple(sweep.trials), str(folder), True)
    worker._do(job, lambda **event: told.append(event), Interrupts(), {})
    assert (began, told) == ([False], [])


@pytest.mark.slow
def test_ctrl_c_saves_every_trial(tmp_path: Path) -> None:
    words = (*SMALL, *GRID, "--at-once", 2, "--steps", 10**6, "--checkpoint-every", 0)
    process = spawn("sweep", *map(str, words), "--run-dir", str(tmp_path / "f"))

    def training() -> list[Path]:
        rows = (tmp_path / "f").glob("*/metrics.jsonl")
        return [path.parent for path in rows if path.stat().st_size]

    wait_for(lambda: len(training()) == 2)
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert result.code == 130
    assert "resume with: flatout sweep --resume" in result.err
    for trial in training():
        assert checkpoint.load(checkpoint.latest(trial))[0] > 0


@pytest.mark.fault
@pytest.mark.slow
def test_a_full_disk_ends_one_trial(flatout: Cli, tmp_path: Path) -> None:
    """One trial's folder is a real file system of 100 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    small = tmp_path / "f" / "learning_rate=0.001_seed=0"
    small.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this container may not mount a small file system")
    try:
        result = flatout("sweep", *SMALL, *GRID, "--run-dir", tmp_path / "f", "--json")
        assert result.code == 1
        found = states(result)
        assert found["learning_rate=0.0001_seed=0"]["state"] == "done"
        assert "No space left on device" in found["learning_rate=0.001_seed=0"]["error"]
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


@pytest.mark.slow
def test_a_trial_that_fits_nowhere_is_one_sentence(flatout: Cli, tmp_path: Path) -> None:
    words = ("dqn", "--env", "CartPole-v1", "--steps", 64, "--seeds", 1, "--no-tensorboard",
             "--grid", "buffer-size=100,2000000000", "--learning-starts", 32)  # fmt: skip
    result = flatout("sweep", *words, "--run-dir", tmp_path / "f", "--json")
    assert result.code == 1
    found = {name: one["state"] for name, one in states(result).items()}
    assert sorted(found.values()) == ["done", "failed"]
    assert "MiB are available" in result.err
    assert "Traceback" not in result.err


MANY = ("n-epochs", "steps", "envs", "n-steps", "log-every", "checkpoint-every", "eval-every",
        "eval-episodes")  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--grid", "learning-rte=1e-3"], "--grid: unknown setting 'learning_rte'"),
        (["--grid", "gamma=0.9", "--grid", "gamma=0.8"], "names gamma twice"),
        (["--grid", "gamma"], "not KEY=VALUE"),
        (["--grid", "gamma=3"], "gamma = 3"),
        (["--grid", "seed=1,2"], "seeds says which there are"),
        (["--seeds", "x"], "is not a whole number"),
        (["--seed", "4294967295", "--seeds", "2"], "4294967296 is impossible"),
        (["--grid", f"n-epochs={LOTS}", "--seeds", "2000"], "names 200,000 trials; a sweep has at"),
        ([f"--grid={key}={LOTS}" for key in MANY], "10,000,000,000,000,000 trials"),
        (["--strategy", "best"], "not one of auto, together, spread, apart"),
        (["--at-once", "0"], "--at-once = 0"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], said: str, flatout: Cli, tmp_path: Path
) -> None:
    result = flatout("sweep", *SMALL, *words, "--run-dir", tmp_path / "f")
    assert result.code == 2
    assert said in result.message
    assert not (tmp_path / "f").exists()


COMMON = "algorithm = 'ppo'\nenv = 'CartPole-v1'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("algorithm = 'ppo'\nlearning_rte = 1", "unknown setting 'learning_rte'"),
        ("env = 'CartPole-v1'", "names no algorithm"),
        ("algorithm = ", "is not TOML"),
        ("algorithm = 'ppo'\nenv = 'CartPole-v1'\n[grid]\ngamma = 0.9", "a list of its values"),
        ("algorithm = 'ppo'\nenv = 'CartPole-v1'\n[random]\ngamma = [0.9]", "needs count"),
        ("algorithm = 'ppo'\nenv = 'CartPole-v1'\n[random]\ncount = 2\ngamma = {low = 1}", "low"),
        ("algorithm = 'ppo'\nenv = 'os:system'", "whose code is not run because a file says so"),
        (f"{COMMON}[grid]\nenv = ['os:system']", "whose code is not run because a file says so"),
        (f"{COMMON}[[list]]\nenv = 'os:system'", "whose code is not run because a file says so"),
        (f"{COMMON}[random]\ncount = 1\nenv = ['os:system']", "names the environment os:system"),
        (f"{COMMON}wandb = 'a-strangers'", "asks for --wandb a-strangers, which reaches files"),
        (f"{COMMON}[grid]\nenv-kwargs = [{{ file = '/x' }}]", "asks for --env-kwargs file=/x"),
        (f"{COMMON}[[list]]\nenv_kwargs = 'file=/x'", "asks for --env-kwargs file=/x"),
        ("algorithm = 'classify'\n[optuna]\nspace = { data = ['digits', '/x'] }", "--data"),
    ],
)
def test_a_file_that_cannot_be_is_refused(
    text: str, said: str, flatout: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    result = flatout("sweep", file, "--run-dir", tmp_path / "f")
    assert result.code == 2
    assert str(file) in result.message
    assert said in result.message


def test_folders_are_taken_once(flatout: Cli, tmp_path: Path) -> None:
    assert "holds no sweep" in flatout("sweep", "--resume", tmp_path).message
    (tmp_path / PLAN).write_text("{}")
    assert "already holds a sweep" in flatout("sweep", *SMALL, "--run-dir", tmp_path).message
    assert "no format number" in flatout("sweep", "--resume", tmp_path).message
    assert "leave out --steps" in flatout("sweep", "--resume", tmp_path, "--steps", 9).message


def made(folder: Path, groups: list[plan.Group], seeds: list[int]) -> Path:
    """A sweep's folder with this plan; nothing is trained."""
    from flatout.sweeps.folder import Folder

    sweep = tiny.sweep([*map(str, SMALL), "--run-dir", str(folder)])
    with closing(Folder(folder, False)) as taken:
        taken.save(SweepPlan(sweep.base, seeds, groups, folder))
    return folder


def test_sweeps_that_begin_in_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.cli.sweep import new_folder

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flatout.storage.run_folder.time.strftime", lambda *_: "now")
    one, other, third = (tiny.sweep([*map(str, SMALL)]) for _ in range(3))
    first = Path("runs/sweep-ppo-CartPole-v1-0-now")
    assert {one.path, other.path, third.path} == {first}
    with closing(new_folder(one)) as folder:
        folder.save(one)
        with closing(new_folder(other)):  # each looks again as it begins
            assert (one.path, other.path) == (first, Path(f"{first}-2"))
        names = iter([first, Path(f"{first}-3")])
        monkeypatch.setattr("flatout.storage.run_folder.unused", lambda _: next(names))
        with closing(new_folder(third)):  # the first began as this one looked
            assert third.path == Path(f"{first}-3")


def test_a_refused_sweep_leaves_no_folder(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Any) -> NoReturn:
        raise FlatoutError("[optuna] cannot open the storage.")

    monkeypatch.setattr("flatout.cli.sweep.study_of", refused)
    assert "cannot open" in flatout("sweep", *SMALL, "--run-dir", tmp_path / "f").message
    assert not (tmp_path / "f").exists()
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "mine.txt").write_text("mine")
    assert "cannot open" in flatout("sweep", *SMALL, "--run-dir", tmp_path / "g").message
    assert (tmp_path / "g" / "mine.txt").read_text() == "mine"


def test_runs_of_others_are_not_taken_for_the_sweeps(flatout: Cli, tmp_path: Path) -> None:
    """Neither what lies in a new sweep's folder, nor what a link in it leads to."""
    ended = tmp_path / "f" / "seed=0"
    ended.mkdir(parents=True)
    (ended / "config.json").write_text("{}")
    (ended / "summary.json").write_text('{"ended": "steps", "steps": 320, "wall_s": 1.0}')
    result = flatout("sweep", *SMALL, "--run-dir", tmp_path / "f")
    assert result.code == 2
    assert "seed=0 already holds a run of another sweep" in result.message
    folder = made(tmp_path / "g", [plan.Group("", {})], [0])
    (folder / "seed=0").symlink_to(ended)
    result = flatout("sweep", "--resume", folder)
    assert result.code == 1
    assert "it is a symbolic link" in result.message
    assert len(list(ended.iterdir())) == 2


def test_a_large_plan_is_read_again(tmp_path: Path) -> None:
    from flatout.storage.trust import NO_CONSENT
    from flatout.sweeps.folder import Folder

    row = {"env_kwargs": {"text": "x" * 4000}}
    groups = [plan.Group(str(number), row) for number in range(300)]
    folder = made(tmp_path / "f", groups, [0])
    assert (folder / PLAN).stat().st_size > 1 << 20
    with closing(Folder(folder, True)) as taken:
        assert taken.load(NO_CONSENT).groups == groups


def nested(levels: int) -> Any:
    return json.loads("[" * levels + "]" * levels)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"populations": {"population-1": ["a_seed=0", "a_seed=0"]}}, "twice"),
        ({"populations": {"population-1": ["a_seed=0"], "population-2": ["a_seed=0"]}}, "twice"),
        ({"populations": {"population-1": ["c_seed=0"]}}, "is not one of the sweep"),
        ({"populations": {"../population": ["a_seed=0"]}}, "no folder's name of a population"),
        ({"seeds": [0, 1, 0]}, "its seeds are not different whole numbers"),
        ({"seeds": [0, "1"]}, "its seeds are not different whole numbers"),
        ({"seeds": list(range(50_001))}, "100,002 trials"),
        ({"strategy": "../../x"}, "its strategy '../../x' is none of auto, together"),
        ({"strategy": ["auto"]}, "is none of auto, together"),
        ({"groups": {"a": {"env_kwargs": {"x": nested(400)}}}}, "deep"),
        ({"groups": {"a": {"gamma": 2}}}, "gamma = 2"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    from flatout.storage.trust import NO_CONSENT
    from flatout.sweeps.folder import Folder

    folder = made(tmp_path / "f", [plan.Group("a", {}), plan.Group("b", {"gamma": 0.9})], [0, 1])
    values = json.loads((folder / PLAN).read_text()) | change
    (folder / PLAN).write_text(json.dumps(values))
    with closing(Folder(folder, True)) as taken, pytest.raises(CheckpointError) as raised:
        taken.load(NO_CONSENT)
    assert said in str(raised.value)
    assert str(folder / PLAN) in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_the_settings_of_a_plan_are_resolved_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each of very many groups, of which only what differs is read."""
    from flatout.storage.trust import NO_CONSENT
    from flatout.sweeps.folder import Folder

    groups = [plan.Group(f"g{number}", {"gamma": 0.5 + number / 1000}) for number in range(300)]
    folder = made(tmp_path / "f", groups, [0])
    monkeypatch.setattr(plan, "resolve", lambda *layers: pytest.fail("all of it is resolved"))
    count = list[Any]()
    monkeypatch.setattr(
        "flatout.sweeps.folder.revise",
        lambda base, row: count.append(row) or revise(base, row),
    )
    with closing(Folder(folder, True)) as taken:
        assert taken.load(NO_CONSENT).groups == groups
    assert len(count) == len(groups)


ROWS: dict[str, list[Any]] = {
    "gamma": [0.9, 1, "x", 2], "learning_rate": [1e-3, "lin_0.001", None, float("nan")],
    "n_epochs": [1, 2.0, 0], "hidden": [[8], "8,8", ["a"]], "envs": [2, 3, 64],
    "placement": ["cpu", "workers=2x4"], "env_kwargs": [{"a": 1}, 3], "learning_rte": [1],
    "algorithm": ["ppo", "dqn"], "steps": [64, "none"], "shards": [1, 2, 3],
}  # fmt: skip
"""Possible and impossible values, also such as depend on each other."""


@settings(deadline=None)
@given(st.fixed_dictionaries({}, optional={n: st.sampled_from(v) for n, v in ROWS.items()}))
def test_a_configuration_is_what_all_settings_resolve_to(row: dict[str, Any]) -> None:
    base = resolve("ppo", tiny.settings("ppo"))
    try:
        expected: Any = resolve(base.algorithm, base.flat(), row)
    except UsageError as error:
        expected = str(error)
    try:
        found: Any = revise(base, row)
    except UsageError as error:
        found = str(error)
    assert type(found) is type(expected)
    if isinstance(expected, str):  # of several impossible values another may be the first
        return
    assert found == expected


def test_measurements_are_of_the_same_devices_and_programs() -> None:
    def planned(*words: str) -> SweepPlan:
        return tiny.sweep([*tiny.latest([*map(str, SMALL), *words])])

    hardware = inventory()

    def measure(limit: int, short_of: str = "") -> None:
        slots = Slots(4, 4, 1e6, limit=limit, settled=True, rates={limit: 9.0}, short_of=short_of)
        keep(planned(*GRID), SimpleNamespace(slots=slots), hardware)  # type: ignore[arg-type]

    sizes = "--grid", "hidden=[8],[16]"
    trials = len(planned(*GRID).trials)
    measure(trials)
    measure(1, "memory")
    assert known(planned(*GRID), hardware).at_once == 0, "more might have been faster"
    measure(1)
    for words, at_once in (
        (GRID, 1), (("--grid", "gamma=0.9,0.99"), 1), ((*GRID, "--log-every", "32"), 1),
        ((*GRID, "--placement", "schedule=overlapped"), 0), ((*GRID, "--devices", "1"), 0),
        ((*GRID, "--virtual-devices", "2"), 0), (sizes, 0),
        (("--grid", "placement=auto,cpu"), 0),
    ):  # fmt: skip
        assert known(planned(*words), hardware).at_once == at_once, words


def test_evaluations_that_a_file_turns_off_stay_off(tmp_path: Path) -> None:
    (tmp_path / "off.toml").write_text("eval_every = 0\n")
    words = [*map(str, SMALL), "--run-dir", str(tmp_path / "f")]
    assert tiny.sweep(words).base.run.eval_every == 320
    words += ["--config", str(tmp_path / "off.toml")]
    assert tiny.sweep(words).base.run.eval_every == 0


def test_a_strangers_plan_runs_no_code(flatout: Cli, tmp_path: Path) -> None:
    """Neither its settings' nor a configuration's."""
    from flatout.sweeps.folder import Folder

    sweep = tiny.sweep([*map(str, SMALL), "--run-dir", str(tmp_path / "f")])
    folder = Folder(sweep.path, False)
    evil = plan.Group("evil", {"env": "os:system", "env_kwargs": {"command": "touch gone"}})
    folder.save(SweepPlan(sweep.base, [0], [evil], sweep.path))
    folder.close()
    values = json.loads((sweep.path / PLAN).read_text())
    del values["signature"]
    (sweep.path / PLAN).write_text(json.dumps(values))
    assert "os:system" in flatout("sweep", "--resume", sweep.path).message
    values["groups"] = {"../up": {}}
    (sweep.path / PLAN).write_text(json.dumps(values))
    assert "no folder's name" in flatout("sweep", "--resume", sweep.path).message


@pytest.mark.slow
def test_a_dry_run_says_time_and_memory_and_writes_nothing(flatout: Cli, tmp_path: Path) -> None:
    words = ("--steps", 10**6, "--run-dir", tmp_path / "f", "--dry-run")
    result = flatout("sweep", *SMALL, *GRID, "--seeds", 3, *words)
    assert result.code == 0, result.err
    assert "6: 2 configurations x 3 seeds, 6,000,000 steps" in result.out
    assert "TIME     about" in result.out
    assert "MiB each of" in result.out
    assert not (tmp_path / "f").exists()


# --- Plans -------------------------------------------------------------------------------------


def base(*more: Any) -> Any:
    from tests.tiny import train_config

    return train_config([str(word) for word in (*SMALL, *more)])[0]


def test_grid_list_and_random_are_added_up() -> None:
    sections = {
        "grid": {"gamma": [0.9, 0.99], "hidden": [[64, 64], [128]]},
        "list": [{"ent_coef": 0.01}, {"gamma": 0.9, "hidden": [64, 64]}],  # the latter again
        "random": {"count": 5, "seed": 1, "n_epochs": {"low": 1, "high": 3},
                   "learning_rate": {"low": 1e-5, "high": 1e-3, "log": True}},
    }  # fmt: skip
    found = plan.groups(base(), sections, "x")
    assert len(found) == 4 + 1 + 5
    assert found[0].name == "gamma=0.9_hidden=64-64"
    assert len({group.name for group in found}) == len(found)
    for group in found[5:]:
        assert 1e-5 <= group.row["learning_rate"] <= 1e-3
        assert group.row["n_epochs"] in (1, 2, 3)
    assert plan.groups(base(), sections, "x") == found  # drawn by its seed


@pytest.mark.parametrize("log", [False, True])
def test_drawn_numbers_stay_within_their_limits(log: bool) -> None:
    """They have four digits, but 0.99996 is not 1."""
    table = {"count": 50, "gamma": {"low": 0.99991, "high": 0.99996, "log": log}}
    found = [row["gamma"] for row in drawn(table, "[random]")]
    assert all(0.99991 <= gamma <= 0.99996 for gamma in found)
    assert len({*found}) == 50


def test_whole_numbers_below_zero_are_drawn_as_often_as_others() -> None:
    table = {"count": 3000, "log_std_init": {"low": -2, "high": 0}}
    found = [row["log_std_init"] for row in drawn(table, "[random]")]
    assert {number: round(found.count(number), -3) for number in (-2, -1, 0)} == dict.fromkeys(
        (-2, -1, 0), 1000
    )


def test_configurations_of_a_classifier_differ_in_no_environment() -> None:
    config = resolve("classify", {})
    assert len(plan.groups(config, {"grid": {"batch_size": [64, 128]}}, "x")) == 2
    for key in ("env", "envs", "frame-stack"):
        with pytest.raises(UsageError, match=f"x: {key.replace('-', '_')}: classify has no env"):
            plan.groups(config, {"grid": {key: [2, 3]}}, "x")


def test_trials_that_learn_their_entropy_weight_share_no_program_with_others() -> None:
    learned, also, fixed, other = (
        plan.shape(resolve("sac", {"env": "Pendulum-v1", "ent_coef": value}))
        for value in ("auto", "auto_0.5", 0.2, 0.1)
    )
    assert learned == also != fixed == other


def test_populations_are_of_one_shape() -> None:
    config = base("--env-backend", "device")
    grid = {"grid": {"gamma": [0.9, 0.99], "n_steps": [32, 64]}}
    found = [t for g in plan.groups(config, grid, "x") for t in plan.trials(config, g, [0, 1])]
    shared = plan.populations(found, 2)
    assert [len(names) for names in shared.values()] == [2, 2, 2, 2]
    by_name = {trial.name: trial for trial in found}
    for names in shared.values():
        assert len({by_name[name].settings["n_steps"] for name in names}) == 1
    assert sorted(name for names in shared.values() for name in names) == sorted(by_name)
    assert (
        plan.populations(
            [t for g in [plan.Group("", {})] for t in plan.trials(base(), g, [0, 1])], 2
        )
        == {}
    )


# --- How many at a time -----------------------------------------------------------------------


def limit(slots: Slots, rate: Callable[[int], float], at: float = 0.0) -> int:
    """Return the number of jobs that is settled on within a minute, if n of them together make
    `rate(n)` steps per second. The clock begins at `at`."""
    steps, told = [0.0] * 20, dict[str, tuple[float, int]]()
    for tick in range(4 * 60):
        now = at + tick / 4
        for job in range(slots.limit):
            steps[job] += rate(slots.limit) / slots.limit / 4
            if (tick + job) % 7 == 0 or str(job) not in told:  # they tell now and then
                told[str(job)] = now, int(steps[job])
        slots.look(now, True, {str(job): told[str(job)] for job in range(slots.limit)})
    return slots.limit


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(lambda n: 1000 * min(n, 3), 3), (lambda n: 1000, 1), (lambda n: 1000 * n, 8)],
)
@pytest.mark.parametrize("at", [0.0, 5000.0])  # the clock is the machine's
def test_one_more_is_begun_while_the_sum_grows(
    rate: Callable[[int], float], expected: int, at: float
) -> None:
    slots = Slots(8, 2, 1e6)
    assert limit(slots, rate, at) == expected
    assert 1 in slots.rates
    assert slots.settled
    assert f"{expected} at a time" in slots.words()


def test_memory_limits_how_many_run() -> None:
    slots = Slots(8, 2, 10_000.0)
    slots.each_mb = 4000.0
    assert limit(slots, lambda n: 1000.0 * n) == 2
    assert "do not fit into memory" in slots.words()
    assert Slots(8, 8, 1200.0).most == 2


def test_processes_start_early_only_where_trials_will_use_them() -> None:
    assert Slots(100, 64, 1e9).early == 64, "each core may get one"
    assert Slots(10, 64, 1e9).early == 10
    assert Slots(100, 64, 1e9, known=2).early == 2
    assert Slots(100, 4, 1e9, known=8).early == 4, "others start with their first trial"


def test_short_jobs_leave_no_core_idle() -> None:
    slots = Slots(8, 2, 1e6)
    slots.ended(1.0)
    assert slots.limit == 2
    slots.ended(2.0)
    assert slots.limit == 2


def test_long_names_of_trials_show_their_seeds(tmp_path: Path) -> None:
    """What tells them apart stands at their ends."""
    from rich.console import Console

    from flatout.cli.sweep_screen import _running

    group = plan.Group("learning_rate=0.0001_gae_lambda=0.95_clip_range=0.2", {})
    sweep = Sweep(tmp_path, base(), [10, 11], plan.Fixed([group]), Acting(lambda job: []),
                  Slots(2, 2, 8000.0, 2))  # fmt: skip
    sweep.add(group)
    for state in sweep.states.values():
        state.begin(0.0)
        state.hear({"steps": 123_456, "updates": 1, "mean": -1234.5, "busy": "acting-bound"}, 1.0)
        state.rate = 123_456.0
    with io.StringIO() as file:
        Console(file=file, width=80).print(_running(sweep, 80))
        lines = file.getvalue().splitlines()
    assert [line.split()[0][-8:] for line in lines[1:]] == ["_seed=10", "_seed=11"]
    assert all(line.endswith("acting-bound") for line in map(str.rstrip, lines[1:]))


def test_the_rate_of_a_trial_is_that_of_its_last_seconds(tmp_path: Path) -> None:
    state = State(plan.Trial("one", "group", "ppo", {}), tmp_path)
    state.begin(100.0)
    for steps, now in ((1000, 101.0), (1500, 102.0), (2500, 104.0), (7500, 106.0)):
        state.hear({"steps": steps, "updates": 1, "mean": None, "busy": ""}, now)
    assert state.rate == (7500 - 2500) / 2.0  # a report is kept for 2 s


# --- Engines ----------------------------------------------------------------------------------


class Acting:
    """An engine whose jobs do what a function says."""

    def __init__(self, act: Callable[[Job], list[dict[str, Any]]]) -> None:
        self._act, self._events = act, list[Mapping[str, Any]]()
        self.started = list[Job]()

    def start(self, job: Job) -> None:
        self.started.append(job)
        self._events += [*self._act(job), {"done": job.name}]

    def poll(self, timeout_s: float) -> list[Mapping[str, Any]]:
        events, self._events = self._events, []
        return events

    def stop(self, job: str) -> None: ...

    def close(self) -> None: ...


def test_a_trial_without_room_is_tried_again_alone_with_all_memory(tmp_path: Path) -> None:
    def act(job: Job) -> list[dict[str, Any]]:
        return [{"trial": job.trials[0].name, "error": "no room.", "kind": "room"}]

    acting = Acting(act)
    made = Sweep(
        tmp_path, base(), [0, 1], plan.Fixed([plan.Group("", {})]), acting,
        Slots(2, 2, 8000.0, 2),
    )  # fmt: skip
    made.run(lambda: None)
    caps = [(job.name, job.cap_mb) for job in acting.started]
    assert caps[:2] == [("seed=0", 3600.0), ("seed=1", 3600.0)]
    assert caps[2:] == [("seed=0", 8000.0), ("seed=1", 8000.0)]
    assert {state.state for state in made.states.values()} == {"failed"}


def test_a_population_of_which_one_lacks_room_is_tried_again_alone(tmp_path: Path) -> None:
    def act(job: Job) -> list[dict[str, Any]]:
        lacking = {"trial": "seed=1", "error": "no room.", "kind": "room"}
        return [lacking] if job.population else []

    acting = Acting(act)
    made = Sweep(
        tmp_path, base(), range(3), plan.Fixed([plan.Group("", {})]), acting,
        Slots(2, 2, 8000.0, 2), populations={"population-1": ["seed=0", "seed=1"]},
    )  # fmt: skip
    made.run(lambda: None)
    jobs = [(job.name, job.cap_mb, job.alone) for job in acting.started if job.population]
    assert jobs[:2] == [("population-1", 3600.0, False), ("population-1", 8000.0, True)]


@pytest.mark.parametrize(
    ("fates", "last"),
    [
        (("lost", "free", "lost", "lost", "done"), "done"),
        (("lost", "free", "lost", "free"), "failed"),
        (("lost",) * 6, "failed"),
    ],
)
def test_a_lost_machine_is_not_a_trials_retry(
    tmp_path: Path, fates: tuple[str, ...], last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again after a few of them, whatever its own failures."""
    left = list(fates)

    def finish(state: State) -> bool:
        if left or last != DONE:
            return False
        state.state = DONE
        return True

    def act(job: Job) -> list[dict[str, Any]]:
        kind, name = left.pop(0), job.trials[0].name
        if kind == "done":
            return [{"trial": name, "ended": "steps", "steps": 9}]
        return [{"trial": name, "error": f"{kind}.", "kind": kind}]

    made = Sweep(
        tmp_path, base(), [0], plan.Fixed([plan.Group("", {})]), Acting(act),
        Slots(1, 1, 8000.0, 1),
    )  # fmt: skip
    monkeypatch.setattr(State, "finish", finish)
    made.run(lambda: None)
    assert (left, made.states["seed=0"].state) == ([], last)
    assert made.states["seed=0"].failures == fates.count("free")
    assert sum("lost workers do not count as failures" in note for note in made.notes) == min(
        fates.count("lost"), MOST_LOST
    )
    if len({*fates}) == 1:
        assert made.states["seed=0"].error == "lost. Its worker was lost 6 times."


def test_a_process_that_was_told_to_end_loses_no_trial(tmp_path: Path) -> None:
    """By another than the sweep: what it trained is tried once more, then reported."""

    def act(job: Job) -> list[dict[str, Any]]:
        return [{"trial": job.trials[0].name, "ended": "signal", "steps": 9}]

    acting = Acting(act)
    made = Sweep(
        tmp_path, base(), [0], plan.Fixed([plan.Group("", {})]), acting, Slots(1, 1, 8000.0, 1)
    )
    made.run(lambda: None)
    assert len(acting.started) == 2
    assert made.states["seed=0"].state == "failed"
    assert "was ended by a signal" in made.states["seed=0"].error


def test_a_process_that_is_stopped_while_it_starts_has_not_failed(tmp_path: Path) -> None:
    """It has no handler of signals yet: SIGTERM kills it."""

    class Starting(Acting):
        def start(self, job: Job) -> None:
            self.started.append(job)

        def stop(self, job: str) -> None:
            died = {"trial": job, "error": "its process was killed (SIGTERM).", "kind": "died"}
            self._events += [died, {"done": job}]

    starting = Starting(lambda job: [])
    made = Sweep(tmp_path, base(), [0, 1], plan.Fixed([plan.Group("", {})]), starting,
                 Slots(2, 2, 8000.0, 2))  # fmt: skip
    made.run(lambda: None, lambda: bool(starting.started))
    made.stop()
    assert {state.state for state in made.states.values()} == {"waiting"}
    assert made.notes == []


ENDING = """
import json, signal, sys, time
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
print('{"ready": 1}', flush=True)
read = sys.stdin.buffer.read
while size := read(8):
    name = json.loads(read(int.from_bytes(size, "little")))["name"]
    print(json.dumps({"trial": name, "steps": 1}), flush=True)
    while name == "seed=0" and not stopped:
        time.sleep(0.01)
    print(json.dumps({"trial": name, "ended": "signal" if stopped else "steps"}))
    print(json.dumps({"done": name}), flush=True)
    if stopped:
        break
"""
"""A worker that trains `seed=0` until it is told to end, and then ends, as `sweep.worker` does."""


def test_a_worker_that_was_told_to_stop_gets_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pruner gives one trial up; the next one must not go to the process that ends with it."""
    command = [sys.executable, "-S", "-c", ENDING]
    monkeypatch.setattr(engine.child, "command", lambda *words: command)
    first, second = plan.trials(base(), plan.Group("", {}), [0, 1])
    with open(os.devnull) as nothing, closing(engine.Local(nothing.fileno(), [])) as local:

        def until(key: str) -> Mapping[str, Any]:
            while True:
                for event in local.poll(5.0):
                    if key in event:
                        return event

        local.start(Job(first.name, (first,), "nowhere"))
        until("steps")
        local.stop(first.name)
        until("done")
        local.start(Job(second.name, (second,), "nowhere"))
        assert until("ended") == {"trial": second.name, "ended": "steps"}


def test_a_trial_alone_has_a_card_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[Mapping[str, str]]()

    class Worker(engine.Worker):
        def __init__(self, variables: Mapping[str, str], keeps: int) -> None:
            opened.append(variables)
            super().__init__(variables, keeps)

    monkeypatch.setattr(engine, "Worker", Worker)
    (trial,) = plan.trials(base(), plan.Group("", {}), [0])
    part, whole = [{"XLA_CLIENT_MEM_FRACTION": "0.2"}], [{"XLA_CLIENT_MEM_FRACTION": "0.8"}]
    with open(os.devnull) as nothing, closing(engine.Local(nothing.fileno(), part, whole)) as local:
        local.warm(1)
        local.start(Job(trial.name, (trial,), "nowhere", alone=True))
        assert opened == [*part, *whole]
        assert len(local._workers) == 1  # the idle one has given back what it held


def test_cards_are_given_in_turn_with_their_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus = (Gpu(0, "A", 10_000, 8_000, 2), Gpu(1, "B", 10_000, 10_000, 5))
    hardware = Hardware("cpu", 8, 1000, 1000, gpus=gpus, cuda_plugin=True)
    found = engine.cards(hardware, 4)
    assert [card["CUDA_VISIBLE_DEVICES"] for card in found] == ["2", "5"]
    assert [card["XLA_CLIENT_MEM_FRACTION"] for card in found] == ["0.180", "0.225"]
    assert engine.cards(Hardware("cpu", 8, 1000, 1000, gpus=gpus), 4) == []  # no CUDA plugin
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    assert [card["CUDA_VISIBLE_DEVICES"] for card in engine.cards(hardware, 4)[:1]] == ["MIG-1"]
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert "would let" in engine.mps_words()
    (tmp_path / "control").touch()
    assert "MPS runs" in engine.mps_words()


def test_what_lacks_memory_within_another_failure_needs_more_of_it() -> None:
    with pytest.raises(FlatoutError) as failed:
        raise FlatoutError("init failed") from MemoryError()
    assert worker.kind_of(failed.value) == worker.ROOM
    assert worker.kind_of(FlatoutError("init failed")) != worker.ROOM
    assert worker.kind_of(NoRoomError("it does not fit")) == worker.ROOM
