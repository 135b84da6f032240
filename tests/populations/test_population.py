"""Populations: many ordinary runs at once, each as if it had been alone."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from rich.console import Console

from flatout import Population as Agents
from flatout.__main__ import main
from flatout.cli.population import _draw, train
from flatout.config.placement import parse
from flatout.config.schema import TrainConfig
from flatout.config.settings import resolve, revise
from flatout.errors import FlatoutError, Interrupt, UsageError
from flatout.hardware.inventory import Gpu, Hardware
from flatout.populations.members import FOLDER, Member, Strategy, held, load, members, save
from flatout.populations.population import Population
from flatout.reports.curves import Run, curves, text
from flatout.run.auto import with_placement
from flatout.run.interrupts import Interrupts
from flatout.run.trainer import Trainer
from flatout.storage.run_folder import RunFolder
from flatout.storage.trust import NO_CONSENT
from tests import runs_made, tiny
from tests.conftest import Result, furthest, last_saved
from tests.kills import finish, spawn, wait_for
from tests.tiny import train_config

pytestmark = pytest.mark.usefixtures("shared_programs")

Cli = Callable[..., Result]
SMALL = ("ppo", *tiny.flags("ppo", env_backend="device"), "--steps", 640, "--log-every", 64,
         "--checkpoint-every", 160, "--no-tensorboard", "--quiet")  # fmt: skip
"""A run whose loop is one program; `--quiet` is its last word."""
SPREAD = ("--strategy", "spread")
REPLAY = ("dqn", *tiny.flags("dqn", env_backend="device"), "--steps", 512, "--no-tensorboard",
          "--quiet")  # fmt: skip


def test_each_member_is_the_run_that_it_would_be_alone(flatout: Cli, tmp_path: Path) -> None:
    grid = ("--population", "learning-rate=1e-4,1e-3", "--population", "gamma=0.98", "--seeds", 2)
    result = flatout("train", *SMALL, *SPREAD, *grid, "--run-dir", tmp_path / "p", "--json")
    assert result.code == 0, result.err
    told = json.loads(result.out)
    assert len(told) == 4
    for name, summary in told.items():
        folder = tmp_path / "p" / FOLDER / name
        assert json.loads((folder / "summary.json").read_text())["steps"] == 640
        assert summary["ended"] == "steps"
    name = "learning_rate=1e-3_gamma=0.98_seed=1"
    alone = tmp_path / "alone"
    own = ("--learning-rate", "1e-3", "--gamma", "0.98", "--seed", 1)
    assert flatout("train", *SMALL, *own, "--run-dir", alone).code == 0
    member = tmp_path / "p" / FOLDER / name
    assert furthest(last_saved(member), last_saved(alone)) == 0.0
    assert flatout("eval", member, "--episodes", 2).code == 0
    assert flatout("explain", member).code == 0
    out = flatout("report", "--curves", tmp_path / "p")
    assert out.code == 0
    assert "(2 runs)" in out.out


def test_one_thread_reads_the_hardware_for_all_members(
    flatout: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.run.recording.Monitor", None)  # so none makes one of its own
    words = ("train", *SMALL, *SPREAD, "--seeds", 2, "--run-dir", tmp_path / "p")
    assert flatout(*words).code == 0
    for seed in range(2):
        path = tmp_path / "p" / FOLDER / f"seed={seed}" / "devices.jsonl"
        samples = [json.loads(line) for line in path.read_text().splitlines()]
        assert samples
        wall_s = json.loads((path.parent / "summary.json").read_text())["wall_s"]
        assert samples[0]["t"] <= round(wall_s, 3)  # as the samples are


@pytest.mark.slow
def test_members_with_replay_draw_with_their_own_seed(flatout: Cli, tmp_path: Path) -> None:
    words = (*SPREAD, "--seeds", 3, "--run-dir", tmp_path / "p")
    assert flatout("train", *REPLAY, *words).code == 0
    for seed in range(3):
        alone = tmp_path / f"{seed}"
        assert flatout("train", *REPLAY, "--seed", seed, "--run-dir", alone).code == 0
        member = tmp_path / "p" / FOLDER / f"seed={seed}"
        assert furthest(last_saved(member), last_saved(alone)) == 0.0


def test_a_member_that_fails_ends_alone(flatout: Cli, tmp_path: Path) -> None:
    grid = ("--population", "learning-rate=1e-3,1e30", "--max-grad-norm", "1e30")
    result = flatout("train", *SMALL, *SPREAD, *grid, "--run-dir", tmp_path)
    assert result.code == 1
    assert "learning_rate=1e30: learning diverged" in result.err
    good = tmp_path / FOLDER / "learning_rate=1e-3" / "summary.json"
    assert json.loads(good.read_text())["steps"] == 640


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."),
         "the device's memory is full (RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.)"),
        pytest.param(MemoryError(), "out of memory; lower --envs", marks=pytest.mark.slow),
        pytest.param(ZeroDivisionError("a defect"), "ZeroDivisionError: a defect",
                     marks=pytest.mark.slow),
    ],
    ids=["device", "machine", "defect"],
)  # fmt: skip
def test_a_member_without_memory_leaves_the_results_of_the_others(
    tmp_path: Path, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """After a defect, too, which is raised when the results were shown."""
    train = Trainer.run

    def run(trainer: Trainer) -> Any:
        if trainer.config.run.seed == 1:
            raise error
        return train(trainer)

    monkeypatch.setattr(Trainer, "run", run)
    words = ("train", *SMALL[:-1], *SPREAD, "--seeds", 3, "--run-dir", tmp_path, "--json")
    raised = isinstance(error, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError) if raised else nullcontext():
        assert main([str(word) for word in words]) == 1
    shown = capsys.readouterr()
    assert f"seed=1: {said}" in shown.err
    table = [line.split()[:2] for line in shown.err.splitlines()]
    assert all([f"seed={seed}", "640"] in table for seed in (0, 2))
    steps = {name: summary.get("steps") for name, summary in json.loads(shown.out).items()}
    assert steps == {"seed=0": 640, "seed=1": None, "seed=2": 640}


def test_a_member_stops_early_by_itself(flatout: Cli, tmp_path: Path) -> None:
    words = ("--steps", 64_000, "--stop-at-return", 25, "--seeds", 2, "--run-dir", tmp_path)
    assert flatout("train", *SMALL, *SPREAD, *words).code == 0
    for seed in (0, 1):
        summary = json.loads((tmp_path / FOLDER / f"seed={seed}" / "summary.json").read_text())
        assert summary["ended"] == "return"
        assert summary["return_mean_100"] >= 25


@pytest.mark.slow
@pytest.mark.parametrize("when", ["early", "late"])
def test_a_killed_population_resumes_to_the_same_bits(
    when: str, flatout: Cli, tmp_path: Path
) -> None:
    words = [*map(str, SMALL), *SPREAD, "--seeds", "3", "--steps", "16000"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert flatout("train", *words, "--run-dir", whole).code == 0
    process = spawn("train", *words, "--run-dir", str(killed))
    last = killed / FOLDER / ("seed=0" if when == "early" else "seed=2") / "checkpoints"
    wait_for(lambda: (last.is_dir() and any(last.iterdir())) or process.poll() is not None)
    process.kill()
    assert finish(process).code == -signal.SIGKILL
    assert flatout("train", "--resume", killed, "--quiet").code == 0
    for seed in range(3):
        one, other = (folder / FOLDER / f"seed={seed}" for folder in (whole, killed))
        assert furthest(last_saved(one), last_saved(other)) == 0.0
    again = flatout("train", "--resume", killed, "--seeds", 4)
    assert "--resume continues the members in the folder" in again.message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hidden=64,128"], "hidden changes the program"),
        (["learning-rte=1e-3"], "is no setting"),
        (["learning-rate"], "not KEY=VALUE"),
        (["gamma=0.9,,0.99"], "not KEY=VALUE"),
        (["gamma=0.9", "gamma=0.8"], "names gamma twice"),
        (["gamma=0.9,0.9"], "names a value twice"),
        (["gamma=3"], "gamma"),
        (["clip-range-vf=none,0.2"], "two programs"),
        (["missing.toml"], "cannot be read"),
    ],
)
def test_an_impossible_population_is_one_sentence(words: list[str], said: str) -> None:
    config, _ = train_config([str(word) for word in SMALL])
    with pytest.raises(UsageError, match=said):
        members(config, None, words, Path("p"))


def test_members_that_learn_their_entropy_weight_are_another_program() -> None:
    config = resolve("sac", {"env": "Pendulum-v1"})
    with pytest.raises(UsageError, match="a number for ent_coef is left out by some members"):
        members(config, None, ["ent-coef=auto,0.2"], Path("p"))
    assert len(members(config, None, ["ent-coef=auto,auto_0.5"], Path("p"))) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"pass seeds=8, say, or population="),
        ({"population": {}}, r"pass seeds=8, say, or population="),
        ({"population": {"gamma": []}}, "population: gamma has no values."),
        ({"population": {"lr": [1e-3]}}, "lr is no setting; .* Did you mean 'learning_rate'?"),
    ],
)
def test_an_impossible_population_in_python_is_one_sentence(
    given: dict[str, Any], said: str
) -> None:
    import flatout

    with pytest.raises(UsageError, match=said):
        flatout.Population("ppo", "CartPole-v1", **given)


def test_a_population_in_python(tmp_path: Path) -> None:
    import flatout

    made = flatout.Population(
        flatout.PPO, "CartPole-v1", population={"gamma": [0.9, 0.99]}, run_dir=tmp_path,
        **tiny.python("ppo", env_backend="device"),
    ).learn(320)  # fmt: skip
    assert {name: s["steps"] for name, s in made.summaries.items()} == {
        "gamma=0.9": 320, "gamma=0.99": 320,
    }  # fmt: skip
    action = made.agent("gamma=0.9").predict(np.zeros(4, np.float32), deterministic=True)[0]
    assert action in (0, 1)
    made.learn(320)
    assert [s["steps"] for s in made.summaries.values()] == [640, 640]
    with pytest.raises(UsageError, match="hidden changes the program"):
        flatout.Population("ppo", "CartPole-v1", population={"hidden": [8, 16]})


def test_steps_before_which_python_was_stopped_are_not_owed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import flatout

    def stopped(*_: Any) -> NoReturn:
        raise Interrupt(signal.SIGINT)

    begun: list[int] = []

    def begins(members: list[Member], *_: Any) -> NoReturn:
        begun.extend(member.config.run.steps for member in members)
        raise FlatoutError("this is all that the test wants to know")

    made = flatout.Population("ppo", "CartPole-v1", seeds=2, run_dir=tmp_path / "p")
    monkeypatch.setattr("flatout.api.population.choose", stopped)
    with pytest.raises(KeyboardInterrupt):
        made.learn(100)
    monkeypatch.setattr("flatout.api.population.choose", lambda *_: Strategy("spread", 1))
    monkeypatch.setattr("flatout.api.population.Members", begins)
    with pytest.raises(FlatoutError, match="all that the test"):
        made.learn(100)
    assert begun == [100, 100]


def test_a_population_is_trained_by_one_process(flatout: Cli, tmp_path: Path) -> None:
    folder, words = tmp_path / "p", ("train", *SMALL, *SPREAD, "--seeds", 2)
    said = f"the population's folder {folder} is in use by another process"
    with held(folder, resume=False):
        assert said in flatout(*words, "--run-dir", folder).message
        agents = Agents("ppo", "CartPole-v1", seeds=2, run_dir=folder)
        with pytest.raises(FlatoutError, match=said):
            agents.learn(64)
    assert not folder.exists(), "nothing has begun"
    config, _ = train_config([*map(str, SMALL)])
    save(folder, config, members(config, 2, [], folder), Strategy("spread", 2))
    with held(folder, resume=True):
        assert said in flatout("train", "--resume", folder).message
    assert {path.name for path in folder.iterdir()} == {".lock", "population.json"}


def test_a_population_is_not_continued_with_other_settings_of_its_members(tmp_path: Path) -> None:
    config = resolve("ppo", {"env": "CartPole-v1"})
    file, folder = tmp_path / "p.toml", tmp_path / "p"
    file.write_text("[slow]\ngamma = 0.99\n")
    made = members(config, None, [str(file)], folder)
    save(folder, config, made, Strategy("spread", 1))
    file.write_text("[slow]\ngamma = 0.9\n")
    with pytest.raises(
        UsageError, match=r"slow has other settings there: gamma is 0.99 there, 0.9"
    ):
        train(config, None, [str(file)], None, folder, True, Interrupts(), goes_on=True)


def test_a_total_below_the_steps_of_an_ended_population_is_not_doubled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = resolve("ppo", {"env": "CartPole-v1", "steps": 320})
    made = members(config, 2, [], tmp_path)
    save(tmp_path, config, made, Strategy("spread", 2))
    for one in made:
        Path(str(one.config.run.run_dir)).mkdir(parents=True)
        (tmp_path / FOLDER / one.name / "summary.json").write_text(
            json.dumps({"ended": "steps", "steps": 320})
        )
    now = revise(config, {"steps": 100})
    assert train(now, None, [], None, tmp_path, True, Interrupts()) == 0
    assert "have made their 320 steps; to continue, name a larger total: --steps 640" in (
        " ".join(capsys.readouterr().out.split())
    )


def test_populations_that_are_made_in_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flatout.storage.run_folder.time.strftime", lambda *_: "now")
    one, other = (Agents("ppo", "CartPole-v1", seeds=2) for _ in range(2))
    one._path.mkdir(parents=True)
    begun = list[str | None]()

    def stops(configs: Any, *_: Any) -> NoReturn:
        begun.append(configs[0].run.run_dir)
        raise FlatoutError("stopped before a step")

    monkeypatch.setattr("flatout.api.population.choose", stops)
    with pytest.raises(FlatoutError, match="stopped before"):
        other.learn(64)
    assert begun == [str(Path("runs/ppo-CartPole-v1-0-now-2/members/seed=0").absolute())]


def test_a_population_of_the_command_takes_no_folder_that_another_begins_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    began = list[tuple[Path, Path, str | None]]()

    def begins(*words: Any) -> int:
        began.append((words[2], words[3], words[6][0].config.run.run_dir))
        return 0

    monkeypatch.setattr("flatout.cli.population._train", begins)
    path = Path("runs", "default")
    config = resolve("ppo", {"env": "CartPole-v1"})
    with held(path.absolute(), False):
        assert train(config, 2, [], None, path, False, Interrupts()) == 0
        named = revise(config, {"run_dir": str(path)})
        with pytest.raises(FlatoutError, match="in use by another process"):
            train(named, 2, [], None, path, False, Interrupts())
    other = tmp_path / "runs" / "default-2"
    assert began == [(Path("runs", "default-2"), other, str(other / FOLDER / "seed=0"))]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("sampler=processes workers=2x1", "sampler=processes workers=2x1"),
        ("act=gpu:1 learn=gpu:1", "act=gpu:1 learn=gpu:1"),
        ("act=gpu:0 learn=gpu:0", "act=gpu:1 learn=gpu:1"),  # it is full
        ("act=gpu:7 learn=gpu:7", "act=gpu:1 learn=gpu:1"),  # of another machine
    ],
)
def test_a_resumed_member_keeps_its_placement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, now: str
) -> None:
    gpus = tuple(Gpu(n, "A", 10_000, free, n) for n, free in enumerate((500, 9_000)))
    here = Hardware("cpu", 2, 1000, 1000, gpus=gpus, cuda_plugin=True)
    monkeypatch.setattr("flatout.populations.population.inventory", lambda: here)
    config = resolve("ppo", {"env": "CartPole-v1", "envs": 2})
    (member,) = members(config, 1, [], tmp_path)
    chosen = parse(before)
    with closing(RunFolder(Path(str(member.config.run.run_dir)))) as folder:
        folder.write_config(with_placement(member.config, chosen), str(chosen))
    resumed = list[str]()

    def stops(config: TrainConfig, **_: Any) -> NoReturn:
        resumed.append(config.run.placement)
        raise FlatoutError("stopped before a step")

    monkeypatch.setattr("flatout.populations.population.Trainer", stops)
    Population([member], Strategy("spread", 1), True, Interrupts()).run()
    assert resumed == [str(parse(now))]


def test_the_file_of_a_large_population_is_read_again(tmp_path: Path) -> None:
    """Of thousands of members it is larger than a run's settings may be."""
    config = resolve("ppo", {"env": "CartPole-v1", "env_kwargs": {"text": "x" * (1 << 20)}})
    made = members(config, 2, [], tmp_path / "p")
    save(tmp_path / "p", config, made, Strategy("spread", 2))
    assert load(tmp_path / "p", NO_CONSENT, {})[0] == made


def test_what_a_resume_changes_is_kept_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*map(str, SMALL), "--run-dir", str(tmp_path / "p")]
    config, _ = train_config(words)
    save(tmp_path / "p", config, members(config, 2, [], tmp_path / "p"), Strategy("spread", 2))

    def stops(*_: Any) -> NoReturn:
        raise FlatoutError("stopped before a step")

    monkeypatch.setattr("flatout.populations.strategy.choose", lambda *_: Strategy("spread", 1))
    monkeypatch.setattr("flatout.populations.population.Population", stops)
    for changed in (["--steps", "2000", "--stop-at-return", "25"], ["--log-every", "32"]):
        config, resume = train_config(["--resume", str(tmp_path / "p"), *changed])
        with pytest.raises(FlatoutError, match="stopped before"):
            train(config, None, [], None, tmp_path / "p", resume, Interrupts())
    found, strategy = load(tmp_path / "p", NO_CONSENT, {})
    runs = [member.config.run for member in found]
    assert [(r.seed, r.steps, r.stop_at_return, r.log_every) for r in runs] == [
        (0, 2000, 25.0, 32), (1, 2000, 25.0, 32),
    ]  # fmt: skip
    assert strategy == Strategy("spread", 2)


def test_the_command_can_resume_a_population_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file named the steps for each member, and was corrupt for the command."""
    import flatout

    def stops(*_: Any) -> NoReturn:
        raise FlatoutError("stopped before a step")

    monkeypatch.setattr("flatout.api.population.choose", lambda *_: Strategy("spread", 1))
    monkeypatch.setattr("flatout.api.population.Members", stops)
    made = flatout.Population("ppo", "CartPole-v1", seeds=2, run_dir=tmp_path / "p")
    for steps in (100, 200):
        with pytest.raises(FlatoutError, match="stopped before"):
            made.learn(100)
        found, _ = load(tmp_path / "p", NO_CONSENT, {})
        assert [member.config.run.steps for member in found] == [steps] * 2


def test_a_file_lists_members(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text("[fast]\nlearning_rate = 1e-2\n[slow]\nlearning_rate = 1e-4\nseed = 7\n")
    config, _ = train_config([str(word) for word in SMALL])
    found = {member.name: member.config for member in members(config, None, [str(file)], tmp_path)}
    assert found["fast"].hyper.learning_rate == 1e-2
    assert found["slow"].run.seed == 7
    file.write_text("gamma = 0.9\n")
    with pytest.raises(UsageError, match="a table for each member"):
        members(config, None, [str(file)], tmp_path)
    file.write_text('["a/b"]\nseed = 3\n')
    with pytest.raises(UsageError, match="'a/b' is not a plain folder name"):
        members(config, None, [str(file)], tmp_path)


def test_the_end_of_a_population_says_how_many_runs_a_curve_has(tmp_path: Path) -> None:
    """Neither that nor a folder's name is taken for a style of the terminal."""
    path = tmp_path / "[b]"
    for rate in (0.1, 0.2):
        runs_made.folder(path / FOLDER / f"learning_rate={rate}", [20.0, 30.0], learning_rate=rate)
    file = io.StringIO()
    _draw(path, Console(file=file))
    said = file.getvalue()
    assert said.count("30.0 [one run]  learning_rate=0.") == 2
    assert f"{path}/curves.svg\n" in said


def test_curves_join_seeds_and_keep_settings_apart() -> None:
    def run(seed: int, gamma: float, end: float) -> Run:
        settings: dict[str, Any] = {"gamma": gamma, "env": "X"}
        return Run(f"{seed}", np.array([0.0, 100.0]), np.array([0.0, end]), settings)

    found = curves([run(0, 0.9, 10.0), run(1, 0.9, 20.0), run(0, 0.8, 5.0)])
    assert [(c.label, c.runs) for c in found] == [("gamma=0.9", 2), ("gamma=0.8", 1)]
    assert found[0].mean[-1] == pytest.approx(15.0)
    assert found[0].low[-1] == pytest.approx(10.0)
    assert found[0].high[-1] == pytest.approx(20.0)
    assert len(text(found).splitlines()) == 2
