"""A second run: the state of callbacks, agents and folders that it takes over, and the state that
begins anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from flatout import PPO, SAC, Callback, Evaluate, Run, UsageError, sb3
from flatout.api.callbacks import StopOnNoImprovement
from flatout.errors import FlatoutError
from flatout.run.resume import saved_agent
from flatout.sb3.common import callbacks, env_util, evaluation
from tests import tiny

pytestmark = pytest.mark.usefixtures("shared_programs")

SMALL: dict[str, Any] = tiny.python("ppo", seed=1, placement="cpu")
CART = "CartPole-v1"


def test_each_run_is_evaluated_anew() -> None:
    evaluates = callbacks.EvalCallback(CART, eval_freq=32, n_eval_episodes=1, verbose=0)
    agent, played = sb3.PPO("MlpPolicy", CART, **SMALL), list[float]()
    plain = agent.evaluate

    def noted(*args: Any, **others: Any) -> Any:
        found = plain(*args, **others)
        played.append(found.return_mean)
        return found

    object.__setattr__(agent, "evaluate", noted)
    agent.learn(64, evaluates)
    agent.learn(64, evaluates)
    assert [results[0] for results in evaluates.evaluations_results] == played
    assert len(played) == 2


def test_a_callback_of_a_longer_run_is_called_in_the_next_one() -> None:
    seen, every = list[int](), 64
    evaluates = Evaluate(lambda agent: seen.append(1) or 0.0, every)
    PPO(CART, **SMALL).learn(192, evaluates)
    assert len(seen) == 3
    PPO(CART, **SMALL).learn(128, evaluates)
    assert len(seen) == 5
    stops = StopOnNoImprovement(1)
    stops.restore({"best": 1e9, "since": 0})
    agent = PPO(CART, **SMALL, eval_every=64, eval_episodes=1).learn(64, stops)
    assert stops.state()["best"] == agent.summary["best_eval_return"]


def test_episodes_of_earlier_runs_are_not_counted() -> None:
    agent = sb3.PPO("MlpPolicy", CART, **SMALL).learn(512)
    stops = callbacks.StopTrainingOnMaxEpisodes(10)
    agent.learn(640, stops, reset_num_timesteps=False)
    assert stops.n_episodes >= 20
    assert agent.num_timesteps > 512 + 64


class Logging(callbacks.BaseCallback):
    """Logs a number when training ends."""

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.logger.record("mine/end", 1.0)


def test_several_callbacks_log_when_training_ends() -> None:
    agent = sb3.PPO("MlpPolicy", CART, **SMALL).learn(64, [Logging(), Logging()])
    assert agent.summary["steps"] == 64
    assert "policy_loss" in agent.summary["last"], "the newest means are not those of the last row"


class Setting(callbacks.BaseCallback):
    """Sets parameters within the run."""

    def _on_step(self) -> bool:
        self.model.set_parameters(self.model.get_parameters())
        return True


def test_replaced_parameters_are_those_of_the_next_run(tmp_path: Path) -> None:
    agent = sb3.PPO("MlpPolicy", CART, **SMALL).learn(64, run_dir=tmp_path / "run")
    agent.set_parameters(agent.get_parameters())
    with pytest.raises(UsageError, match="continues with its own parameters"):
        agent.learn(64, run_dir=tmp_path / "run", reset_num_timesteps=False)
    with pytest.raises(FlatoutError, match="cannot be called while the agent learns"):
        agent.learn(64, Setting())
    loaded = sb3.PPO.load(tmp_path / "run")
    given = loaded.get_parameters()
    zeros = {name: np.zeros_like(array) for name, array in given["policy"].items()}
    loaded.set_parameters({"policy": zeros})
    with pytest.raises(UsageError, match="continues with its own parameters"):
        loaded.learn(64, run_dir=tmp_path / "run", reset_num_timesteps=False)
    loaded.learn(64, reset_num_timesteps=False)
    arrays = loaded.get_parameters()["policy"].values()
    change = max(np.abs(array).max() for array in arrays if array.size)
    assert change < 0.05, "the parameters are near the zeros that were set"


def test_a_folder_has_its_own_best_parameters(tmp_path: Path) -> None:
    agent = PPO(CART, **SMALL, eval_every=64, eval_episodes=1)
    agent.learn(64, run_dir=tmp_path / "a")
    agent._history._kept[1].data["progress"]["best_return"] = 1e9  # pyright: ignore
    agent.learn(64, run_dir=tmp_path / "b")
    assert (tmp_path / "b" / "best.safetensors").exists()
    assert agent.summary["best_eval_return"] < 1e9


class Failing(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole that raises after some steps, counted over all of its instances."""

    left = 10**9

    def __init__(self) -> None:
        super().__init__(gym.make(CART))

    def step(self, action: Any) -> Any:
        Failing.left -= 1
        if Failing.left < 0:
            raise RuntimeError("broken")
        return self.env.step(action)


def test_steps_of_a_failed_run_count(tmp_path: Path) -> None:
    agent = sb3.PPO("MlpPolicy", Failing, **SMALL).learn(64)
    Failing.left = 96
    with pytest.raises(FlatoutError, match="broken"):
        agent.learn(256, reset_num_timesteps=False)
    assert agent.num_timesteps == 128
    assert sb3.PPO.load(agent.save(tmp_path / "a"), env=CART).num_timesteps == 128


def test_other_settings_of_environments_are_refused_in_evaluation() -> None:
    lake = "FrozenLake-v1"
    agent = sb3.PPO("MlpPolicy", env_util.make_vec_env(lake, env_kwargs={"is_slippery": False}))
    with pytest.raises(UsageError, match=r"env_kwargs = \{\} of these environments differs"):
        evaluation.evaluate_policy(agent, env_util.make_vec_env(lake), 1)
    game = env_util.make_atari_env("BreakoutNoFrameskip-v4", wrapper_kwargs={"frame_skip": 1})
    task, envs = game._open()
    envs.close()
    assert task.config.frame_skip == 1


@pytest.mark.parametrize("given", [{}, {"train_freq": 1}, {"train_freq": (1, "step")}])
def test_a_frequency_of_updates_counts_steps_of_all_environments(
    given: dict[str, Any], tmp_path: Path
) -> None:
    small = {"hidden": [16], "batch_size": 8, "buffer_size": 256, "learning_starts": 16}
    env = env_util.make_vec_env("Pendulum-v1", n_envs=4)
    agent = sb3.SAC("MlpPolicy", env, **small, **given)
    assert agent.config.flat()["train_freq"] == 4
    again = sb3.SAC.load(agent.learn(32).save(tmp_path / "a"), **given)
    assert again.config.flat()["train_freq"] == 4


def test_a_loaded_agent_keeps_its_frequency_of_updates(tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "hidden": [16],
        "batch_size": 8,
        "buffer_size": 256,
        "learning_starts": 16,
    }
    env = env_util.make_vec_env("Pendulum-v1", n_envs=4)
    first = sb3.SAC("MlpPolicy", env, **small).learn(32).save(tmp_path / "first")
    saved = sb3.SAC.load(first, train_freq=16).save(tmp_path / "saved")

    def found(**given: Any) -> tuple[int, int, int]:
        flat = sb3.SAC.load(saved, **given).config.flat()
        return flat["envs"], flat["train_freq"], flat["gradient_steps"]

    assert SAC.load(saved, train_freq=(3, "step")).config.flat()["train_freq"] == 12
    with pytest.raises(UsageError, match="preset = 'pendulum-sac' is for a new agent"):
        SAC.load(saved, preset="pendulum-sac")
    assert found() == (4, 64, 1)
    assert found(gradient_steps=2) == (4, 64, 2)
    assert found(custom_objects={"gradient_steps": 2}) == (4, 64, 2)
    assert found(env=env_util.make_vec_env("Pendulum-v1", n_envs=1)) == (1, 16, 1)
    assert found(n_envs=np.int64(8), gradient_steps=-1) == (8, 128, 128)
    assert found(num_envs=2, train_freq=(3, "step")) == (2, 6, 1)
    assert sb3.SAC("Pendulum-v1", num_envs=2, train_freq=3).config.flat()["train_freq"] == 6
    with pytest.raises(FlatoutError, match="holds an agent of sac"):
        sb3.PPO.load(saved, n_envs=2)


class Low(callbacks.BaseCallback):
    """Returns NumPy's False at the first step."""

    def _on_step(self) -> bool:
        return np.mean([0.0, 1.0]) > 1.0  # type: ignore[return-value]


def test_numpys_false_stops_a_run() -> None:
    plain = PPO(CART, **SMALL).learn(640, lambda progress, metrics: np.float64(0.0) > 1.0)
    assert plain.summary["steps"] == 64
    agent = sb3.PPO("MlpPolicy", CART, **SMALL)
    assert agent.learn(640, Low()).summary["steps"] == 64
    function: Any = lambda values, _: np.bool_(False)  # noqa: E731
    assert agent.learn(640, function).summary["steps"] == 64


def test_a_run_that_went_on_after_its_end_plays_its_newest_parameters(tmp_path: Path) -> None:
    folder, final = tmp_path / "run", tmp_path / "run" / "params.safetensors"
    PPO(CART, **SMALL).learn(64, run_dir=folder)
    before = final.read_bytes()
    agent = PPO.load(folder).learn(64, run_dir=folder, reset_num_timesteps=False)
    final.write_bytes(before)  # as a run leaves it that is stopped after its newest checkpoint
    for checkpoint in ("best", "final", "newest"):
        saved = saved_agent(folder, checkpoint, None)
        assert saved.steps == 128
        learned = {name: agent._acting.arrays[name] for name in saved.arrays
                   if name in agent._acting.arrays}  # fmt: skip
        for name, array in learned.items():
            np.testing.assert_array_equal(saved.arrays[name], array)
        assert learned
    (folder / "best.safetensors").write_bytes(before)
    assert saved_agent(folder, "best", None).steps == 64
    final.unlink()
    assert saved_agent(folder, "final", None).steps == 128


class Counting(Callback):
    """Counts iterations."""

    count = 0

    def on_iteration(self, run: Run) -> None:
        self.count += 1

    def state(self) -> dict[str, int]:
        return {"count": self.count}

    def restore(self, values: dict[str, int]) -> None:
        self.count = values["count"]


def test_states_of_callbacks_outlive_a_part_of_the_run_without_them(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    PPO(CART, **SMALL).learn(64, Counting(), run_dir=folder)
    between = PPO.load(folder).learn(64, run_dir=folder, reset_num_timesteps=False)
    assert any("continues without them" in note for note in between.summary["notes"])
    later = Counting()
    PPO.load(folder).learn(64, later, run_dir=folder, reset_num_timesteps=False)
    assert later.count == 2


def test_states_of_callbacks_continue_in_another_folder(tmp_path: Path) -> None:
    folder, other, third = (tmp_path / name for name in "abc")
    PPO(CART, **SMALL).learn(64, Counting(), run_dir=folder)
    counting = Counting()
    PPO.load(folder).learn(64, counting, run_dir=third, reset_num_timesteps=False)
    assert counting.count == 2
    between = PPO.load(folder).learn(64, run_dir=other, reset_num_timesteps=False)
    assert any("their states are kept" in note for note in between.summary["notes"])
    later = Counting()
    PPO.load(other).learn(64, later, reset_num_timesteps=False)
    assert later.count == 2
    alone = PPO.load(folder).learn(64, reset_num_timesteps=False)
    assert any(note.endswith("continues without them.") for note in alone.summary["notes"])
    started = Counting()
    PPO.load(folder).learn(64, started, run_dir=tmp_path / "d")
    assert started.count == 1, "a new run that begins with what another learned"


def test_a_run_that_is_stopped_before_its_start_leaves_the_summary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = PPO(CART, **SMALL).learn(64)
    summary = agent.summary
    monkeypatch.setattr("flatout.run.trainer.Trainer.run", lambda self: {})
    agent.learn(64)
    assert agent.summary == summary
