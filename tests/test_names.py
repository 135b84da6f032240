"""Tests of other libraries' names, and of an agent's help, signature and types."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tools import write_agents

import flatout
from flatout import A2C, DQN, PPO, SAC, FlatoutError, RecordEvery, UsageError, evaluate_policy
from flatout.config.aliases import IMPORTED, REFUSED, RENAMED, meant
from flatout.config.hyper import HYPER
from flatout.config.settings import settings_of
from flatout.run.loggers import NAMES, renamed
from tests import tiny

pytestmark = pytest.mark.usefixtures("shared_programs")

ROOT = Path(__file__).parent.parent
SMALL: dict[str, Any] = tiny.python("ppo", seed=1, placement="cpu")
OBS = np.random.default_rng(0).uniform(-0.2, 0.2, (70, 4)).astype(np.float32)


class ReLU:
    """An activation function with the name of PyTorch's."""


@pytest.mark.parametrize(
    ("made", "settings"),
    [
        (lambda: PPO("MlpPolicy", "CartPole-v1"), {"env": "CartPole-v1", "network": "mlp"}),
        (lambda: PPO("CnnPolicy", env="CartPole-v1"), {"network": "nature"}),
        (lambda: PPO("MultiInputPolicy", "CartPole-v1"), {"network": "auto"}),
        (lambda: PPO(policy="MlpPolicy", env="CartPole-v1"), {"network": "mlp"}),
        (
            lambda: PPO("CnnLstmPolicy", "CartPole-v1"),
            {"network": "nature", "recurrent": "lstm", "recurrent_size": 256,
             "critic_memory": "own"},
        ),
        (
            lambda: PPO("MlpLstmPolicy", "CartPole-v1", policy_kwargs={
                "lstm_hidden_size": 32, "n_lstm_layers": 1, "shared_lstm": True,
                "enable_critic_lstm": False}),
            {"network": "mlp", "recurrent_size": 32, "critic_memory": "shared"},
        ),
        (lambda: PPO("MlpPolicy", gym.make("CartPole-v1")), {"env": "CartPole-v1"}),
        (lambda: PPO("CartPole-v1", lr=0.1), {"learning_rate": 0.1}),
        (lambda: PPO("CartPole-v1", total_timesteps=9), {"steps": 9}),
        (lambda: PPO("CartPole-v1", n_envs=4), {"envs": 4}),
        (
            lambda: PPO(**dict[str, Any](env_id="CartPole-v1", num_envs=4, num_steps=16)),
            {"envs": 4, "n_steps": 16},
        ),
        (lambda: PPO("CartPole-v1", device="cpu"), {"placement": "cpu"}),
        (lambda: PPO("CartPole-v1", device="cuda:1"), {"placement": "act=gpu:1 learn=gpu:1"}),
        (
            lambda: PPO("CartPole-v1", policy_kwargs={"net_arch": [32, 16],
                                                      "activation_fn": ReLU}),
            {"hidden": (32, 16), "activation": "relu"},
        ),
        (
            lambda: A2C("CartPole-v1", policy_kwargs={"net_arch": {"pi": [8], "vf": [8]}}),
            {"hidden": (8,)},
        ),
        (lambda: SAC("Pendulum-v1", **dict[str, Any](q_lr=0.1)), {"critic_learning_rate": 0.1}),
    ],
)  # fmt: skip
def test_other_libraries_names_are_accepted(made: Any, settings: dict[str, Any]) -> None:
    flat = made().config.flat()
    assert {name: flat[name] for name in settings} == settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learning_rte": 1}, r"Did you mean 'learning_rate'\?$"),
        ({"nenvs": 1}, r"Did you mean 'envs'\?$"),
        ({"qqq": 1}, r"unknown setting 'qqq'\.$"),
        ({"n_step": 64}, r"'n_step'\. It is a setting of dqn, .*\. This algorithm has 'n_steps'\."),
        ({"lr": 1, "learning_rate": 1}, "one setting"),
        ({"use_sde": True}, "use_sde.*not available"),
        ({"tensorboard_log": "logs"}, "use run_dir: a run folder contains TensorBoard"),
        ({"tensorboard_logdir": "logs"}, "use run_dir: a run folder contains TensorBoard"),
        ({"device": "tpu"}, "'tpu' is none of auto, cpu, cuda"),
        ({"policy": "LstmPolicy"}, "LstmPolicy.*network="),
        ({"policy_kwargs": {"n_lstm_layers": 2}}, "has one layer"),
        ({"policy_kwargs": {"enable_critic_lstm": False}}, "either its own memory or the actor's"),
        ({"learning_rate": lambda left: left**2}, r"is not linear.*flatout\.linear\(1, 0\)"),
        ({"policy_kwargs": 3}, "policy_kwargs = 3 is not a dict"),
        ({"policy_kwargs": {"net_arch": [8, {"pi": [8], "vf": [4]}]}}, "share no hidden layers"),
        ({"policy_kwargs": {"features_extractor_class": 1}}, "network takes any Equinox"),
        ({"policy_kwargs": {"net_arhc": [8]}}, "unknown setting 'policy_kwargs net_arhc'"),
    ],
)
def test_other_names_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PPO("CartPole-v1", **settings)
    with pytest.raises(UsageError, match="one argument too many"):
        PPO("CartPole-v1", "Acrobot-v1")
    with pytest.raises(UsageError, match=r"policy 'MlpPolicyy' is none of.*Did you mean 'MlpPol"):
        PPO("MlpPolicyy", "CartPole-v1")


def test_unknown_attributes_of_an_agent_suggest_the_right_ones() -> None:
    agent: Any = PPO("CartPole-v1", gamma=0.9, lr=0.1)
    assert (agent.gamma, agent.lr, agent.env) == (0.9, 0.1, "CartPole-v1")
    with pytest.raises(AttributeError, match=r"'num_timesteps'\. Instead: agent\.summary"):
        _ = agent.num_timesteps
    with pytest.raises(AttributeError, match=r"'learning_rat'\. Did you mean 'learning_rate'\?"):
        _ = agent.learning_rat
    assert not hasattr(agent, "_repr_svg_")
    assert repr(agent) == "<PPO on CartPole-v1: nothing learned here>"
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="save"):
            copied(agent)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"log_interval": 4}, r"learn takes no log_interval\. Instead: use log_every"),
        ({"tb_log_name": "x"}, "run_dir names the run"),
        ({"callbck": 1}, "'callback'"),
        ({"eval_freq": 9}, r"no eval_freq\. It is a setting .*: PPO\(env, eval_every=9\)"),
        ({"steps": 9}, "'total_timesteps'"),
        ({"total_timesteps": "9"}, "steps = '9' is not a whole number"),
        ({"total_timesteps": -9}, "total_timesteps = -9 is impossible"),
    ],
)
def test_learn_refuses_other_names_with_advice(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PPO("CartPole-v1", **SMALL).learn(**given)


def test_learn_and_evaluate_as_in_stable_baselines3() -> None:
    agent = PPO("CartPole-v1", **SMALL).learn(64)
    first = agent.learn(64, reset_num_timesteps=False).summary["steps"]
    assert (first, agent.learn(64, reset_num_timesteps=True).summary["steps"]) == (128, 64)
    returns, lengths = evaluate_policy(
        agent, gym.make("CartPole-v1"), 3, deterministic=True, return_episode_rewards=True
    )
    assert returns == lengths
    assert len(returns) == 3
    assert evaluate_policy(agent, n_eval_episodes=2, deterministic=False)[0] > 0
    with pytest.raises(UsageError, match="no state"):
        agent.predict(OBS, state={})


def test_an_environment_object_is_recorded_in_its_render_mode(tmp_path: Path) -> None:
    one = SMALL | tiny.ONE
    agent = PPO(gym.make("CartPole-v1", render_mode="rgb_array"), **one).learn(64)
    agent.record(tmp_path / "a.gif")
    assert (tmp_path / "a.gif").read_bytes()[:3] == b"GIF"
    with pytest.raises(UsageError, match=r"made without render_mode='rgb_array'"):
        PPO(gym.make("CartPole-v1"), **one).learn(64).record(tmp_path / "b.gif")
    with pytest.raises(FlatoutError, match="is training"):
        agent.learn(64, RecordEvery(1, tmp_path))


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("lr", "learning_rate"), ("learning_rte", "learning_rate"), ("n_envs", "envs"),
        ("num_envs", "envs"), ("total_timesteps", "steps"), ("clip_coef", "clip_range"),
        ("n_env", "envs"), ("NUM_ENVS", "envs"), ("GAMMA", "gamma"),
    ],
)  # fmt: skip
def test_python_and_the_command_suggest_the_same_name(name: str, right: str, flatout: Any) -> None:
    assert meant(name, settings_of("ppo")) == f" Did you mean {right!r}?"
    flags = [f"--{name.replace('_', '-')}", f"--{right.replace('_', '-')}"]
    done = flatout("train", "ppo", "--env", "CartPole-v1", flags[0], 1)
    assert done.code == 2
    assert f"Did you mean {flags[1]!r}?" in done.err


def test_an_environment_without_its_flag_and_cleanrls_track(flatout: Any) -> None:
    done = flatout("train", "ppo", "CartPole-v1")
    assert (done.code, "--env CartPole-v1" in done.err) == (2, True)
    assert "set wandb to the name" in flatout("train", "ppo", "--env", "CartPole-v1", "--track").err


def test_every_other_name_leads_to_a_setting() -> None:
    every = {name for algorithm in HYPER for name in settings_of(algorithm)}
    assert set(RENAMED.values()) <= every
    assert not (set(RENAMED) | set(REFUSED)) & every
    page = (ROOT / "docs" / "coming-from.md").read_text()
    missing = [name for name in (*RENAMED, *REFUSED) if f"`{name}`" not in page]
    assert missing == []


# Metrics


def test_metrics_have_the_requested_names(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    for names in NAMES.values():
        assert [name for name in names if f"`{name}`" not in page] == []
    run = tmp_path / "run"
    PPO("CartPole-v1", metric_names="sb3", **SMALL).learn(640, run_dir=run)
    events = next(run.glob("events.out.tfevents*")).read_bytes()
    assert b"rollout/ep_rew_mean" in events
    assert b"return_mean_100" not in events
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert "rollout/return_mean_100" in row
    assert renamed({"train/entropy": 2.0, "my/own": 1.0}, "sb3") == {
        "train/entropy_loss": -2.0, "my/own": 1.0,
    }  # fmt: skip
    assert renamed(row, "cleanrl")["charts/episodic_return"] == row["rollout/return_mean_100"]


# Acting


def test_batches_of_any_size_use_few_programs() -> None:
    agent = PPO("CartPole-v1", **SMALL).learn(64)
    one = [int(agent.predict(obs, deterministic=True)[0]) for obs in OBS]
    for size in (1, 3, 17, 64, 65, 70):
        assert agent.predict(OBS[:size], deterministic=True)[0].tolist() == one[:size]
    sizes = sorted(count for count, greedy in agent._acting._policies if greedy)
    assert sizes == [1, 4, 32, 64, 128]
    before = len(agent._acting._policies)
    for size in range(65, 71):  # these sizes need no further programs
        agent.predict(OBS[:size], deterministic=True)
    assert len(agent._acting._policies) == before
    draws = agent.predict(np.repeat(OBS[:1], 5, 0), deterministic=False)[0]
    assert draws.shape == (5,)
    assert agent.predict(OBS[:0], deterministic=True)[0].shape == (0,)


def test_evaluate_policy_in_another_environment() -> None:
    agent = PPO("CartPole-v1", **SMALL).learn(64)
    found = agent.evaluate(5)
    assert evaluate_policy(agent, n_eval_episodes=5) == (found.return_mean, found.return_std)
    short = gym.make("CartPole-v1", max_episode_steps=5)
    assert evaluate_policy(agent, short, 3) == (5.0, 0.0)
    short.reset()  # evaluation has not closed it
    with pytest.raises(UsageError, match=r"Acrobot-v1 has other spaces than CartPole-v1"):
        evaluate_policy(agent, "Acrobot-v1", 1)


# Discovery


@pytest.mark.parametrize("kind", [PPO, DQN, SAC])
def test_help_and_signature_have_every_setting(kind: Any) -> None:
    names = set(settings_of(kind.algorithm))
    parameters = inspect.signature(kind).parameters
    assert names <= set(parameters)
    flat = kind("Pendulum-v1" if kind is SAC else "CartPole-v1").config.flat()
    assert all(parameters[name].default == flat[name] for name in names - {"env", "network"})
    shown = inspect.getdoc(kind)
    assert shown is not None
    assert (HYPER[kind.algorithm].__doc__ or "") in shown
    entries = {line.split(" = ")[0].strip() for line in shown.splitlines() if " = " in line}
    assert names <= entries
    assert all(len(line) <= 100 for line in shown.splitlines())


def test_subclasses_have_their_own_signature() -> None:
    class Mine(PPO):
        def __init__(self, env: Any, mine: int = 3) -> None:
            super().__init__(env)

    assert list(inspect.signature(Mine).parameters) == ["env", "mine"]
    assert Mine.__doc__ is None


def test_the_generated_agents_are_up_to_date() -> None:
    assert write_agents.FILE.read_text() == write_agents.text(), "run tools/write_agents.py"


def test_dir_is_complete_and_loads_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, flatout; names = dir(flatout)\n"
        "assert set(flatout.__all__) <= set(names), names\n"
        "assert not {'jax', 'gymnasium', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    for name in flatout.__all__:
        assert getattr(flatout, name) is not None


@pytest.mark.slow
def test_pyright_knows_every_setting(tmp_path: Path) -> None:
    """A misspelt name and a wrong type are errors on their lines, and nothing else is."""
    script = tmp_path / "script.py"
    lines = {
        'PPO("CartPole-v1", learning_rate="lin_0.001", hidden=[64], threshold=1.0)': False,
        'PPO("MlpPolicy", "CartPole-v1", verbose=1, policy_kwargs={"net_arch": [64]})': False,
        'PPO("CartPole-v1", learning_rte=0.1)': True,
        'PPO("CartPole-v1", n_steps="many")': True,
        'PPO("CartPole-v1", buffer_size=1000)': True,
        'DQN("CartPole-v1", buffer_size=1000, exploration_steps=None)': False,
        "SAC.load('agent', learning_rate=1e-4).learn(10, lambda progress, metrics: None)": False,
    }
    script.write_text("from flatout import DQN, PPO, SAC\n\n" + "\n".join(lines) + "\n")
    config = {
        "venvPath": str(ROOT),
        "venv": ".venv",
        "extraPaths": [str(ROOT / "src"), str(ROOT / "explain" / "src")],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    done = subprocess.run(
        [Path(sys.executable).parent / "pyright", "--outputjson", "-p", tmp_path],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = {one["range"]["start"]["line"] - 2 for one in found if one["severity"] == "error"}
    assert errors == {number for number, wrong in enumerate(lines.values()) if wrong}, found


def test_imports_from_stable_baselines3_name_the_replacement() -> None:
    with pytest.raises(ImportError, match=r"no VecNormalize. Instead: PPO\(env, normalize_obs"):
        from flatout import VecNormalize  # type: ignore[attr-defined] # noqa: F401
    settings = {name for algorithm in HYPER for name in settings_of(algorithm)}
    known = {*flatout.__all__, *settings, "sampler", "sb3"}
    for name, instead in IMPORTED.items():
        assert name not in flatout.__all__
        for word in re.findall(r"flatout\.(\w+)|(\w+)=", instead):
            assert (word[0] or word[1]) in known
    assert not hasattr(flatout, "no_such_name")
