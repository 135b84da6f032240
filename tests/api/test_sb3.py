"""Scripts of Stable-Baselines3 with their import changed to `flatout.sb3`."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import flatout
from flatout import DQN, SAC, UsageError, sb3
from flatout.api.translate import schedule_of
from flatout.sb3.common import callbacks, env_util, evaluation, noise, vec_env
from flatout.sb3.common.monitor import Monitor
from tests import tiny
from tests.goal_envs import BitFlip

pytestmark = pytest.mark.usefixtures("shared_programs")

SMALL: dict[str, Any] = tiny.python("ppo", seed=1, placement="cpu")
PENDULUM: dict[str, Any] = tiny.python("sac")


# Values


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda left: 1e-3 * left, "lin_0.001"),
        (lambda left: 1e-4 + 9e-4 * left, "lin_0.001_0.0001"),
        (lambda left: 3e-4, 3e-4),
    ],
)
def test_a_linear_function_is_a_schedule(function: Callable[[float], float], found: Any) -> None:
    assert schedule_of("learning_rate", function) == found
    assert flatout.linear(1e-3) == "lin_0.001"
    assert flatout.linear(1e-3, 1e-4) == "lin_0.001_0.0001"


def test_values_of_stable_baselines3_are_settings() -> None:
    spread = noise.NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))
    given: dict[str, Any] = {
        "train_freq": (4, "step"), "gradient_steps": -1, "seed": None, "target_entropy": "auto",
        "use_sde": False, "policy_kwargs": {"net_arch": {"pi": [8], "qf": [16]}},
    }  # fmt: skip
    flat = SAC("Pendulum-v1", envs=2, **given).config.flat()
    assert (flat["train_freq"], flat["gradient_steps"], flat["target_entropy"]) == (8, 8, None)
    assert (flat["hidden"], flat["critic_hidden"]) == ((8,), (16,))
    assert sb3.TD3("MlpPolicy", "Pendulum-v1", action_noise=spread).config.hyper.action_noise == 0.1
    assert sb3.SAC("Pendulum-v1", n_envs=2, train_freq=3).config.hyper.train_freq == 6
    kinds = {"net_arch": [{"pi": [8], "vf": [8]}]}
    agent = flatout.PPO("CartPole-v1", clip_range=lambda left: 0.1 * left, policy_kwargs=kinds)
    assert (agent.clip_range, agent.hidden, agent.critic_hidden) == ("lin_0.1", (8,), None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train_freq": (1, "episode")}, "counts environment steps, not episodes: write"),
        ({"gradient_steps": -1}, "give train_freq, too"),
        ({"action_noise": noise.OrnsteinUhlenbeckActionNoise()}, r"write action_noise=0\.1"),
        ({"action_noise": noise.NormalActionNoise([1.0], [0.1])}, "has mean 0"),
        ({"learning_rate": lambda left: {}[left]}, r"raised KeyError.*flatout\.linear"),
        ({"policy_kwargs": {"net_arch": {"a": [8]}}}, r"write net_arch=\[64, 64\]"),
        ({"use_sde": True}, "use_sde.*not available"),
    ],
)
def test_values_without_a_counterpart_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        flatout.TD3("Pendulum-v1", **settings)


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("flatout", "Ppo", "Did you mean PPO"),
        ("flatout", "NormalActionNoise", r"action_noise=0\.1"),
        ("flatout.sb3", "CrossQ", "Instead: SAC"),
        ("flatout.sb3.common.torch_layers", "BaseFeaturesExtractor", "Equinox"),
        ("flatout.sb3.common.buffers", "ReplayBuffer", "buffer_size"),
    ],
)
def test_a_missing_name_says_what_to_write(module: str, name: str, words: str) -> None:
    with pytest.raises(ImportError, match=words):
        getattr(importlib.import_module(module), name)


def test_truncated_quantiles_and_hindsight_are_settings() -> None:
    policy = {"n_critics": 3, "n_quantiles": 5, "net_arch": [8]}
    flat = sb3.TQC(
        "MlpPolicy", "Pendulum-v1", top_quantiles_to_drop_per_net=1, policy_kwargs=policy
    ).config.flat()  # fmt: skip
    wanted = {"n_critics": 3, "n_quantiles": 5, "hidden": (8,), "top_quantiles_to_drop_per_net": 1}
    assert {name: flat[name] for name in wanted} == wanted
    with pytest.raises(UsageError, match=r"'policy_kwargs n_critics'\. It is a setting of tqc\."):
        sb3.SAC("MlpPolicy", "Pendulum-v1", policy_kwargs={"n_critics": 3})
    her = {"replay_buffer_class": sb3.HerReplayBuffer}
    given: dict[str, Any] = {"n_sampled_goal": 2, "goal_selection_strategy": "future"}
    agent = sb3.DQN("MultiInputPolicy", BitFlip, **her, replay_buffer_kwargs=given)
    assert agent.config.hyper.hindsight == 2
    assert sb3.DQN("MultiInputPolicy", BitFlip, **her).config.hyper.hindsight == 4
    given["goal_selection_strategy"] = "final"
    with pytest.raises(UsageError, match="'final' is not available"):
        sb3.DQN("MultiInputPolicy", BitFlip, **her, replay_buffer_kwargs=given)


# Environments


def test_vectorised_environments_are_settings() -> None:
    envs = vec_env.VecNormalize(env_util.make_vec_env("CartPole-v1", n_envs=2, seed=7))
    stacked = vec_env.VecFrameStack(envs, 3)
    flat = sb3.PPO("MlpPolicy", stacked).config.flat()
    wanted = {"env": "CartPole-v1", "envs": 2, "seed": 7, "frame_stack": 3,
              "normalize_observation": True, "normalize_reward": True}  # fmt: skip
    assert {name: flat[name] for name in wanted} == wanted
    each = vec_env.SubprocVecEnv([lambda: gym.make("CartPole-v1")] * 2)
    assert sb3.A2C("MlpPolicy", each).config.run.placement == "sampler=processes workers=2x1"
    game = env_util.make_atari_env("BreakoutNoFrameskip-v4", wrapper_kwargs={"noop_max": 5})
    assert (game.settings["frame_stack"], game.settings["noop_max"]) == (1, 5)
    with pytest.raises(UsageError, match="for PPO and A2C, not for SAC"):
        sb3.SAC("MlpPolicy", vec_env.VecNormalize("Pendulum-v1"))
    rewards = vec_env.VecNormalize("CartPole-v1", norm_obs=False)
    with pytest.raises(UsageError, match=r"for PPO and A2C, not for DQN.*that scales rewards"):
        sb3.DQN("MlpPolicy", rewards)
    neither = vec_env.VecNormalize("CartPole-v1", norm_obs=False, norm_reward=False)
    assert sb3.DQN("MlpPolicy", neither).config.env.env == "CartPole-v1"
    with pytest.raises(UsageError, match="leave clip_obs"):
        vec_env.VecNormalize("Pendulum-v1", clip_obs=5)
    with pytest.raises(UsageError, match="leave clip_obs, clip_reward, epsilon"):
        vec_env.VecNormalize("Pendulum-v1", epsilon=1e-4)


@pytest.mark.parametrize("kind", [sb3.TD3, sb3.DDPG])
def test_deterministic_policies_predict_without_noise(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flatout's own predict adds `action_noise`, unless it is asked not to."""
    monkeypatch.setattr(flatout.Agent, "predict", lambda self, *given, **named: (given, named))
    agent = kind("MlpPolicy", "Pendulum-v1")
    for given in ((0,), (0, None, None, False)):
        assert agent.predict(*given) == ((0, None, None, True), {})


def test_every_environment_has_a_monitor() -> None:
    env = gym.make("CartPole-v1")
    assert env_util.is_wrapped(env, Monitor)
    assert env_util.is_wrapped(env, gym.wrappers.TimeLimit)
    assert not env_util.is_wrapped(env, gym.wrappers.RescaleAction)


@pytest.mark.parametrize(
    "given",
    [{}, {"envs": 4}, {"n_envs": 4}, {"placement": "sampler=processes workers=2x2"},
     {"preset": "cartpole-dqn"}],
    ids=["vector", "envs", "n_envs", "placement", "preset"],
)  # fmt: skip
def test_a_pair_counts_the_steps_of_each_environment(given: dict[str, Any]) -> None:
    env = {"env": gym.make_vec("CartPole-v1", 4, "sync")} if not given else {"env": "CartPole-v1"}
    flat = DQN(**env | given, train_freq=(2, "step")).config.flat()
    assert flat["train_freq"] == 2 * flat["envs"]


class Numbered(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole with the environment's number as the reward; a file has the numbers that stepped."""

    def __init__(self, number: int, file: Path) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.number, self.file = number, file

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = self.env.step(action)
        with self.file.open("a") as file:
            file.write(f"{self.number} ")
        return obs, float(self.number), terminated, truncated, info


@pytest.mark.parametrize(
    "kind",
    [vec_env.DummyVecEnv, pytest.param(vec_env.SubprocVecEnv, marks=pytest.mark.slow)],
)
def test_each_of_several_factories_makes_an_environment(
    kind: type[vec_env.DummyVecEnv], tmp_path: Path
) -> None:
    file = tmp_path / "stepped.txt"
    each = [functools.partial(Numbered, number, file) for number in (1, 2)]
    settings: dict[str, Any] = {"n_steps": 8, "batch_size": 16, "n_epochs": 1}
    agent = sb3.PPO("MlpPolicy", kind(each), **settings)
    agent.learn(16)
    stepped = file.read_text().split()
    assert stepped.count("1") >= 8
    assert stepped.count("2") >= 8
    with pytest.raises(UsageError, match="lacks sampler=inline"):
        sb3.PPO("MlpPolicy", kind(each), placement="sampler=processes")
    by_hand = kind(each)
    by_hand.reset()
    assert by_hand.step(np.zeros(2, np.int64))[1].tolist() == [1, 2]
    by_hand.close()


def test_vectorised_environments_are_stepped_by_hand() -> None:
    envs = vec_env.VecFrameStack(env_util.make_vec_env("CartPole-v1", 2, seed=3), 2)
    assert envs.observation_space.shape == envs.reset().shape[1:] == (8,)
    ends = 0
    for _ in range(60):
        obs, rewards, done, infos = envs.step(np.ones(2, np.int64))
        ends += done.sum()
        for ended, info in zip(done, infos, strict=True):
            assert ended == ("episode" in info)
            if ended:
                assert info["episode"]["l"] == info["episode"]["r"] > 1
                assert abs(info["terminal_observation"][6]) > 0.2, "the pole has fallen"
    envs.close()
    assert ends > 5
    assert rewards.tolist() == [1, 1]
    assert obs.dtype == np.float32


# Training


class Counting(callbacks.BaseCallback):
    """Notes its calls."""

    def __init__(self, stop: int = 10**9) -> None:
        super().__init__()
        self.stop, self.seen, self.events = stop, list[int](), list[str]()

    def _on_training_start(self) -> None:
        self.events.append("start")

    def _on_rollout_end(self) -> None:
        self.events.append("rollout")

    def _on_step(self) -> bool:
        self.seen.append(self.num_timesteps)
        self.logger.record("mine/calls", self.n_calls)
        return self.num_timesteps < self.stop

    def _on_training_end(self) -> None:
        self.events.append("end")


def test_callbacks_are_called_for_each_step(tmp_path: Path) -> None:
    counting, seen = Counting(), list[int]()
    save = callbacks.CheckpointCallback(32, tmp_path, "cart")
    agent = sb3.PPO("MlpPolicy", "CartPole-v1", **SMALL)
    agent.learn(128, [counting, save, lambda a, b: seen.append(a["self"].num_timesteps)])
    assert counting.seen == seen == [*range(2, 129, 2)]
    assert counting.events == ["start", "rollout", "rollout", "end"]
    assert {path.name for path in tmp_path.iterdir()} == {
        "cart_64_steps.safetensors", "cart_128_steps.safetensors",
    }  # fmt: skip
    again = sb3.PPO.load(tmp_path / "cart_64_steps")
    assert again.predict(np.zeros(4))[0] in (0, 1)
    assert agent.learn(1000, Counting(stop=60), reset_num_timesteps=False).num_timesteps == 192
    with pytest.raises(flatout.FlatoutError, match=r"locals.*rewards.*not available"):
        agent.learn(64, lambda a, b: a["rewards"])


def test_evaluations_keep_the_best_and_stop(tmp_path: Path) -> None:
    best = callbacks.StopTrainingOnRewardThreshold(1.0)
    evaluates = callbacks.EvalCallback(
        gym.make("CartPole-v1"), best, eval_freq=32, n_eval_episodes=2, verbose=0,
        best_model_save_path=tmp_path, log_path=tmp_path,
    )  # fmt: skip
    agent = sb3.PPO("MlpPolicy", "CartPole-v1", **SMALL).learn(10_000, evaluates)
    assert agent.num_timesteps == 64
    assert evaluates.best_mean_reward == evaluates.last_mean_reward > 1
    assert np.load(tmp_path / "evaluations.npz")["timesteps"].tolist() == [64]
    loaded = sb3.PPO.load(tmp_path / "best_model.zip")
    found, _ = evaluation.evaluate_policy(loaded, agent.get_env(), 2, warn=False)
    assert found == evaluates.best_mean_reward
    with pytest.raises(AssertionError, match="reward_threshold = 501"):
        evaluation.evaluate_policy(agent, n_eval_episodes=1, reward_threshold=501)


def test_an_agent_is_found_with_and_without_its_ending(tmp_path: Path) -> None:
    """As in Stable-Baselines3, where `load` adds the ending that the file has."""
    model = sb3.PPO("MlpPolicy", "CartPole-v1", **SMALL).learn(64)
    for saved, names in {"a": ("a", "a.zip"), "b.zip": ("b", "b.zip")}.items():
        model.save(tmp_path / saved)
        for name in names:
            assert sb3.PPO.load(tmp_path / name).num_timesteps == 64
    (tmp_path / "logs").mkdir()
    model.save(tmp_path / "logs")
    assert sb3.PPO.load(tmp_path / "logs").num_timesteps == 64


def test_parameters_are_read_and_replaced() -> None:
    agent = sb3.PPO("MlpPolicy", "CartPole-v1", **SMALL).learn(64)
    parameters = agent.get_parameters()
    name = max(parameters["policy"], key=lambda one: parameters["policy"][one].size)
    parameters["policy"][name] *= 0.5
    agent.set_parameters(parameters)
    agent.learn(64, reset_num_timesteps=False)
    change = agent.get_parameters()["policy"][name] - parameters["policy"][name]
    assert 0 < np.abs(change).max() < 0.1
    with pytest.raises(UsageError, match="is missing"):
        agent.set_parameters({"policy": {name: parameters["policy"][name]}})
    with pytest.raises(UsageError, match="there is no array qqq"):
        agent.set_parameters({"policy": {"qqq": 1}})


def test_learn_starts_again_unless_it_is_to_continue(tmp_path: Path) -> None:
    agent = sb3.PPO("MlpPolicy", "CartPole-v1", tensorboard_log=tmp_path, **SMALL).learn(64)
    assert agent.learn(64).num_timesteps == 64
    assert agent.learn(64, reset_num_timesteps=False).num_timesteps == 128
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["run_1", "run_2", "run_3"]


@pytest.mark.slow
def test_recurrent_ppo_runs_as_in_its_documentation(tmp_path: Path) -> None:
    names = "MlpLstmPolicy, CnnLstmPolicy, MultiInputLstmPolicy"
    with pytest.raises(UsageError, match=f"the policy of RecurrentPPO is one of {names}"):
        sb3.RecurrentPPO("MlpPolicy", "CartPole-v1")
    model = sb3.RecurrentPPO(
        "MlpLstmPolicy", "CartPole-v1", policy_kwargs={"lstm_hidden_size": 8}, n_epochs=1
    )
    hyper = model.config.hyper
    assert (hyper.n_steps, hyper.batch_size, hyper.recurrent) == (128, 128, "lstm")
    assert (hyper.recurrent_size, hyper.critic_memory) == (8, "own")
    model.learn(128)
    model.save(tmp_path / "ppo_recurrent")
    model = sb3.RecurrentPPO.load(tmp_path / "ppo_recurrent")
    env = sb3.RecurrentPPO("MlpLstmPolicy", "CartPole-v1").get_env()
    obs, states, starts = env.reset(), None, np.ones((1,), dtype=bool)
    for _ in range(3):
        action, states = model.predict(
            obs, state=states, episode_start=starts, deterministic=True
        )  # fmt: skip
        obs, _, starts, _ = env.step(action)
    assert [leaf.shape for leaf in states] == [(1, 8), (1, 8)]
