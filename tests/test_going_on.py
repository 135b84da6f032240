"""Tests of learning again, and of runs that start from another run's parameters and replay."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout import DQN, PPO, Callback, CheckpointError, FlatoutError, Run, SaveEvery, UsageError
from flatout.cli.arguments import (
    TrainArguments,
    given_settings,
    read_settings,
)
from flatout.config.settings import resolve
from flatout.run.resume import _left_behind
from flatout.storage import checkpoint
from flatout.storage.run_folder import RunFolder
from tests import tiny
from tests.conftest import Result

pytestmark = pytest.mark.usefixtures("shared_programs")

Cli = Callable[..., Result]

SMALL: dict[str, Any] = {"seed": 1, "placement": "cpu", "tensorboard": False}
ON: dict[str, Any] = SMALL | tiny.python("ppo")
OFF: dict[str, Any] = SMALL | tiny.python("dqn")
SHAPES = (PPO, ON), (DQN, OFF)


def arrays(agent: Any) -> dict[str, np.ndarray]:
    assert agent._acting.arrays is not None
    return agent._acting.arrays


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], name)


def last(run: Path) -> dict[str, Any]:
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def made(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text())


@pytest.mark.bits
@pytest.mark.parametrize(
    ("kind", "settings", "kept"),
    [
        (PPO, ON, False),
        *(pytest.param(*one, marks=pytest.mark.slow)
          for one in ((PPO, ON, True), (DQN, OFF, True), (DQN, OFF, False))),
    ],
)  # fmt: skip
def test_learning_again_equals_learning_longer(
    kind: Any, settings: dict[str, Any], kept: bool, tmp_path: Path
) -> None:
    """Counters, optimiser, replay and environments continue, without a folder and in the same one.

    The results are bit-equal if exploration and rates do not depend on the run's length.
    """
    steady = {"exploration_steps": 128} if kind is DQN else {}
    whole = kind("CartPole-v1", **settings | steady).learn(384)
    run = tmp_path / "run" if kept else None
    agent = kind("CartPole-v1", **settings | steady).learn(128, run_dir=run)
    assert agent.learn(128, run_dir=run).summary["steps"] == 256
    agent.learn(128, run_dir=run)
    for name in ("steps", "updates", "iterations", "episodes"):
        assert agent.summary[name] == whole.summary[name], name
    assert_same(arrays(agent), arrays(whole))
    if run is not None:
        assert last(run)["step"] == 384
        assert agent.summary["parent"] is None


def test_reset_starts_a_new_run_with_the_learned_parameters() -> None:
    agent = DQN("CartPole-v1", **OFF).learn(128)
    before = arrays(agent)
    assert agent.summary["updates"] > 0
    agent.learn(32, reset=True)
    assert (agent.summary["steps"], agent.summary["updates"]) == (32, 0)  # the warm-up is repeated
    assert_same(
        {n: a for n, a in arrays(agent).items() if "params" in n},
        {n: a for n, a in before.items() if "params" in n},
    )


@pytest.mark.parametrize(("kind", "settings"), SHAPES)
def test_a_loaded_agent_counts_on_as_in_stable_baselines3(
    kind: Any, settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its steps, the schedules over them, and exploration go on; random actions do not return."""
    falling = settings | {"learning_rate": "lin_0.001"}
    if kind is DQN:
        falling |= {"exploration_fraction": 0.5, "exploration_final_eps": 0.0}
    file = kind("CartPole-v1", **falling).learn(128).save(tmp_path / "agent")
    agent, seen = kind.load(file), list[tuple[int, float | None]]()

    def see(progress: Any, metrics: Any) -> None:
        seen.append((progress.steps, metrics.get("train/epsilon")))

    agent.learn(64, see, reset_num_timesteps=False)
    summary = agent.summary
    assert min(steps for steps, _ in seen) > 128
    assert {epsilon for _, epsilon in seen} == ({0.0} if kind is DQN else {None})
    assert (summary["steps"], agent._steps) == (192, 192)
    assert repr(agent) == f"<{kind.__name__} on CartPole-v1: 192 steps>"
    assert arrays(agent)["learner.counters.step"] == 192
    assert summary["seed"] != settings["seed"], "its episodes are others"
    if kind is DQN:  # an empty replay is filled again, by the agent's own actions
        assert "learns again after 32 steps" in capsys.readouterr().err
        assert summary["updates"] == (64 - 32) // 16 * 4
    agent.learn(64)
    assert agent.summary["steps"] == 256
    found = checkpoint.load_agent(agent.save(tmp_path / "again"))[1]
    assert (found["learned"], found["steps"]) == (2, 256)
    assert kind.load(file).learn(64).summary["steps"] == 64, "a new run is the default"


def test_a_run_that_is_loaded_goes_on_with_all_of_it(tmp_path: Path) -> None:
    steady = OFF | {"exploration_steps": 128}
    run, new = tmp_path / "run", tmp_path / "new"
    agent = DQN("CartPole-v1", **steady).learn(128, run_dir=run)
    others = [DQN.load(run).learn(64, reset_num_timesteps=False, run_dir=p) for p in (None, new)]
    agent.learn(64)
    for other in others:
        assert other.summary["steps"] == 192
        assert other.summary["updates"] == agent.summary["updates"], "replay is there"
        assert_same(arrays(other), arrays(agent))
    assert made(new)["parent"] == str(run)
    assert last(new)["step"] == 192


def test_steps_of_a_resumed_run_are_counted_once(tmp_path: Path) -> None:
    PPO("CartPole-v1", **ON).learn(64, run_dir=tmp_path / "run")
    agent = PPO.load(tmp_path / "run").learn(64, run_dir=tmp_path / "run")
    assert repr(agent) == "<PPO on CartPole-v1: 128 steps>"


def test_steps_that_nothing_tells_cannot_be_counted_on(tmp_path: Path) -> None:
    path = PPO("CartPole-v1", **ON).learn(64).save(tmp_path / "agent")
    found, metadata = checkpoint.load_agent(path)
    checkpoint.save_agent(path, found, metadata | {"steps": None})
    assert PPO.load(path).learn(64, reset_num_timesteps=False).summary["steps"] == 128
    agent = PPO.load(path)
    del arrays(agent)["learner.counters.step"]
    with pytest.raises(UsageError, match="does not say how many steps"):
        agent.learn(64, reset_num_timesteps=False)


def test_an_agent_saved_within_a_run_does_not_repeat_its_episodes(tmp_path: Path) -> None:
    class Ends(Callback):
        def on_end(self, run: Run) -> None:
            run.agent.save(tmp_path / "end")
            words.append(repr(run.agent))

    words: list[str] = []
    agent = PPO("CartPole-v1", **ON)
    for before in (0, 1):
        agent.learn(128, callback=[SaveEvery(64, tmp_path), Ends()], reset=bool(before))
        agent.save(tmp_path / "after")
        saved = {"agent_000000000064.safetensors": 64, "end": 128, "after": 128}
        for name, steps in saved.items():
            found = checkpoint.load_agent(tmp_path / name)[1]
            assert (found["learned"], found["steps"]) == (before + 1, steps), name
    assert words == ["<PPO on CartPole-v1: training, 128 steps>"] * 2
    agent.learn(192, callback=Ends())  # continues the same run
    assert checkpoint.load_agent(tmp_path / "end")[1]["learned"] == 2
    again = PPO.load(tmp_path / "end").learn(64)
    assert again.summary["seed"] not in (agent.summary["seed"], ON["seed"])


def test_an_agent_of_a_run_that_failed_is_saved_with_its_steps(tmp_path: Path) -> None:
    def fails(progress: Any, metrics: Any) -> None:
        assert progress.steps < 128

    agent = PPO("CartPole-v1", **ON)
    with pytest.raises(FlatoutError):
        agent.learn(256, callback=fails)
    found = checkpoint.load_agent(agent.save(tmp_path / "agent"))[1]
    assert (found["learned"], found["steps"]) == (1, 128)


@pytest.mark.parametrize("envs", [1, 8])
def test_an_agent_is_loaded_for_any_number_of_environments(envs: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = ON | {"normalize_reward": True}
    agent = PPO("CartPole-v1", **settings).learn(64)
    other = PPO.load(agent.save(tmp_path / "agent"), envs=envs)
    obs = np.random.default_rng(0).uniform(-0.2, 0.2, (8, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        agent.predict(obs, deterministic=True)[0], other.predict(obs, deterministic=True)[0]
    )
    start = other._acting.arrays
    assert start is not None
    assert_same(start, arrays(agent))  # learning continues from all arrays


def test_acting_reads_the_counters_that_it_needs(tmp_path: Path) -> None:
    path = DQN("CartPole-v1", **OFF).learn(32).save(tmp_path / "agent")
    found, metadata = checkpoint.load_agent(path)
    name = next(name for name in found if name.endswith("counters.epsilon"))
    for broken in ({name: np.ones(3, np.float32)}, {}):
        others = {other: array for other, array in found.items() if other != name}
        checkpoint.save_agent(path, others | broken, metadata)
        with pytest.raises(CheckpointError, match="epsilon"):
            DQN.load(path)


def test_learn_makes_the_remaining_steps_by_default() -> None:
    agent = PPO("CartPole-v1", **ON | {"steps": 192}).learn(64)
    assert agent.learn().summary["steps"] == 192
    assert agent.learn().summary["steps"] == 384


@pytest.mark.parametrize(
    ("kind", "settings"), [SHAPES[0], pytest.param(*SHAPES[1], marks=pytest.mark.slow)]
)
def test_a_new_run_starts_from_another_with_other_settings(
    kind: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    run, new = tmp_path / "run", tmp_path / "new"
    first = kind("CartPole-v1", **settings).learn(256, run_dir=run)
    agent = kind.load(run, learning_rate=1e-12)
    assert agent.config.hyper.learning_rate == 1e-12
    agent.learn(64, run_dir=new)
    assert (agent.summary["steps"], agent.summary["parent"]) == (64, str(run))
    config = made(new)
    assert (config["parent"], config["settings"]["learning_rate"]) == (str(run), 1e-12)
    assert config["settings"]["seed"] != settings["seed"]
    start = checkpoint.load(checkpoint.checkpoints(new / "checkpoints")[0])[1]
    before = arrays(first)
    learned = [n for n in before if "counters" not in n and ("params" in n or ".opt" in n)]
    assert learned
    if kind is PPO:
        for name in learned:
            np.testing.assert_array_equal(start.arrays[name], before[name], name)
        return
    # The new run has the replay buffer, so it needs no warm-up.
    assert config["settings"]["learning_starts"] == 0
    assert agent.summary["updates"] == 64 // 16 * 4
    assert agent.summary["last"]["replay_fill"] > 256 / 512


def test_the_command_starts_from_a_run(flatout: Cli, tmp_path: Path) -> None:
    run, new = tmp_path / "run", tmp_path / "new"
    DQN("CartPole-v1", **OFF).learn(128, run_dir=run)
    words = ("--learning-rate", 1e-4, "--steps", 64, "--quiet", "--json")
    done = flatout("train", "--from", run, "--run-dir", new, *words)
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert (summary["parent"], summary["steps"], summary["updates"]) == (str(run), 64, 16)
    assert made(new)["parent"] == str(run)
    # A run that is killed at once resumes from its first checkpoint, without the parent.
    for saved in checkpoint.checkpoints(new / "checkpoints")[1:]:
        shutil.rmtree(saved)
    shutil.rmtree(run)
    done = flatout("train", "--resume", new, "--steps", 64, "--quiet", "--json")
    assert done.code == 0, done.err
    again = json.loads(done.out)
    assert (again["parent"], again["updates"]) == (str(run), 16)


def test_settings_that_resume_cannot_change_name_the_command_that_can(
    flatout: Cli, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    PPO("CartPole-v1", **ON).learn(64, run_dir=run)
    done = flatout("train", "--resume", run, "--learning-rate", 0.0001)
    assert done.code == 2
    assert f"flatout train --from {run} --learning-rate VALUE" in done.err
    assert len(done.err.strip().splitlines()) == 1
    for words, sentence in (
        (("--resume", run), "give one of them"),
        (("--seeds", 2), "--from starts one run"),
        (("--from", tmp_path / "none"), "none does not exist"),
    ):
        done = flatout("train", "--from", run, *words)
        assert done.code == 2
        assert sentence in done.err
    with pytest.raises(UsageError, match=r"its own gamma.*another run_dir"):
        PPO.load(run, gamma=0.5).learn(64, run_dir=run)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"buffer_size": 64}, "larger than"), ({"prioritized": True}, "no priorities"),
        ({"frame_stack": 1}, "another environment"), ({"env": "Acrobot-v1"}, "another environ"),
        ({"shards": 2}, "filled with shards 1, not 2"), ({"learning_rate": 0.1}, ""),
        ({"spare_envs": "all"}, ""),
    ],
)  # fmt: skip
def test_settings_decide_whether_replay_fits(change: dict[str, Any], words: str) -> None:
    before = resolve("dqn", OFF | {"env": "CartPole-v1"})
    found = _left_behind(before, resolve("dqn", before.flat(), change))
    assert words in found
    assert bool(words) == bool(found)


def test_a_run_without_the_parents_replay_repeats_the_warm_up(tmp_path: Path) -> None:
    run = tmp_path / "run"
    DQN("CartPole-v1", **OFF).learn(64, run_dir=run)
    agent = DQN.load(run, envs=4).learn(32, run_dir=tmp_path / "new")
    assert any("filled with envs 2, not 4" in note for note in agent.summary["notes"])
    assert agent.summary["updates"] == 0, "the warm-up is repeated"
    agent.learn(32, run_dir=tmp_path / "new")  # continues this run with its settings
    assert (agent.summary["steps"], agent.summary["updates"]) == (64, 8)


def test_a_damaged_parent_run_is_one_clear_sentence(tmp_path: Path) -> None:
    run = tmp_path / "run"
    DQN("CartPole-v1", **OFF).learn(128, run_dir=run)
    shutil.rmtree(run / "replay")
    with pytest.raises(CheckpointError, match="run") as raised:
        DQN.load(run).learn(64)
    assert "\n" not in str(raised.value)


def test_another_network_is_refused(tmp_path: Path) -> None:
    file = PPO("CartPole-v1", **ON).learn(64).save(tmp_path / "agent")
    with pytest.raises(CheckpointError, match=r"does not fit its settings.*PPO\.load\(path, netw"):
        PPO.load(file, hidden=[8])
    with pytest.raises(CheckpointError, match=r"would not be used.*Leave out hidden"):
        PPO.load(file, hidden=[64])  # the first of its two layers, and the head, would fit
    arrays, metadata = checkpoint.load_agent(file)
    counter = next(name for name in arrays if ".counters." in name)
    checkpoint.save_agent(file, arrays | {counter: np.zeros(3, np.int8)}, metadata)
    with pytest.raises(CheckpointError, match=rf"the array {counter} is int8") as raised:
        PPO.load(file)
    assert "network of its own" not in str(raised.value)


def test_given_settings_win_over_those_of_the_parent_run(flatout: Cli, tmp_path: Path) -> None:
    """Once, the seed and the warm-up of a --config file were replaced by the parent run's."""
    run, file = tmp_path / "run", tmp_path / "more.toml"
    DQN("CartPole-v1", **OFF).learn(64, run_dir=run)
    file.write_text("seed = 7\nlearning_starts = 48\ngamma = 0.5\n")
    words = ("--from", run, "--config", file, "--gamma", 0.75, "--steps", 64, "--quiet")
    assert flatout("train", *words, "--run-dir", tmp_path / "new").code == 0
    settings = made(tmp_path / "new")["settings"]
    assert [settings[name] for name in ("seed", "learning_starts", "gamma")] == [7, 48, 0.75]
    assert settings["buffer_size"] == OFF["buffer_size"], "no other value was given"


PROCESSES = "act=cpu sampler=processes workers=2x1 groups=1"
FUSED = "act=cpu sampler=device schedule=fused"


@pytest.mark.parametrize(
    ("before", "words", "text", "now"),
    [
        ({"placement": PROCESSES}, ["--envs", "6"], "", {"placement": "act=cpu sampler=processes"}),
        ({"placement": PROCESSES}, [], "envs = 6", {"envs": 6}),
        ({"placement": PROCESSES}, [], "seed = 3", {"envs": 2, "placement": PROCESSES}),
        ({"placement": PROCESSES}, ["--placement=cpu"], "envs = 6", {"envs": 6}),
        ({"placement": FUSED, "env_backend": "device"}, ["--env-backend", "host"], "",
         {"placement": "act=cpu", "env_backend": "host"}),
        ({"placement": FUSED, "env_backend": "device"}, [], 'placement = "sampler=processes"',
         {"placement": "sampler=processes", "env_backend": None}),
        ({"placement": FUSED, "env_backend": "device"}, ["--placement", "cpu"], "",
         {"placement": "cpu", "env_backend": "device"}),
        ({"env_kwargs": {"size": 4}}, ["--env", "Other-v1"], "", {"env_kwargs": {}}),
        ({"env_kwargs": {"size": 4}}, ["--env-kwargs", "more=1"], "",
         {"env_kwargs": {"size": 4, "more": 1}}),
        ({"placement": "act=cpu learn=cpu,cpu:1"}, ["--devices", "3", "--quiet"], "",
         {"placement": "act=cpu", "devices": 3}),
    ],
)  # fmt: skip
def test_settings_of_the_parent_run_yield_to_given_ones(
    before: dict[str, Any], words: list[str], text: str, now: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "more.toml").write_text(text)
    config = resolve("ppo", ON | {"env": "CartPole-v1"} | before)
    with closing(RunFolder(tmp_path / "run")) as folder:
        folder.write_config(config, "cpu")
    file = str(tmp_path / "more.toml")
    got = tiny.train_config(["--from", str(tmp_path / "run"), "--config", file, *words])[0].flat()
    assert {name: got[name] for name in now} == now


def test_given_settings_come_from_preset_file_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "more.toml"
    file.write_text("seed = 7\nhidden = [8]\n")
    words = ["--preset", "cartpole-ppo", "--config", str(file), "--run-dir", "my-learning_starts",
             "--ent-coef=0.1", "--clip_range", "0.2", "--env-kwargs", "seed=3"]  # fmt: skip
    given = given_settings(*read_settings(TrainArguments, "flatout train", words))
    assert {"seed", "hidden", "run_dir", "ent_coef", "clip_range"} <= given
    assert given.isdisjoint({"learning_starts", "preset", "config", "vf_coef"})
