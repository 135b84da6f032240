"""Tests of settings: precedence of layers, presets, and refusals that name an impossible value."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.hyper import PPOConfig
from flatout.config.settings import (
    load_file,
    load_preset,
    parse_grid,
    parse_kwargs,
    presets,
    resolve,
)
from flatout.errors import UsageError
from tests.tiny import train_config


def refusal(*layers: dict[str, Any], algorithm: str = "ppo") -> str:
    with pytest.raises(UsageError) as refused:
        resolve(algorithm, *layers)
    return str(refused.value)


REPLAY = {
    "buffer_size": 1_000_000, "learning_starts": 100, "gradient_steps": 1, "gamma": 0.99,
    "n_step": 1, "prioritized": False, "activation": "relu",
}  # fmt: skip
OFF_POLICY = REPLAY | {
    "batch_size": 256, "train_freq": 1, "tau": 0.005, "target_update_interval": 1,
    "max_grad_norm": None, "critic_learning_rate": None,
}  # fmt: skip
DDPG = OFF_POLICY | {"learning_rate": 1e-3, "action_noise": 0.0, "hidden": (400, 300)}
SB3: dict[str, dict[str, Any]] = {
    "ppo": {
        "learning_rate": 3e-4, "n_steps": 2048, "batch_size": 64, "n_epochs": 10, "gamma": 0.99,
        "gae_lambda": 0.95, "clip_range": 0.2, "clip_range_vf": None, "normalize_advantage": True,
        "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5, "target_kl": None,
        "log_std_init": 0.0, "adam_eps": 1e-5, "hidden": (64, 64), "activation": "tanh",
    },
    "dqn": REPLAY | {
        "learning_rate": 1e-4, "batch_size": 32, "train_freq": 4, "tau": 1.0,
        "target_update_interval": 10_000, "max_grad_norm": 10.0, "exploration_fraction": 0.1,
        "exploration_steps": None, "exploration_initial_eps": 1.0, "exploration_final_eps": 0.05,
        "double": False, "dueling": False, "loss": "huber", "optimizer": "adam",
        "hidden": (64, 64),
    },
    "a2c": {
        "learning_rate": 7e-4, "n_steps": 5, "gamma": 0.99, "gae_lambda": 1.0, "ent_coef": 0.0,
        "vf_coef": 0.5, "max_grad_norm": 0.5, "optimizer": "rms", "normalize_advantage": False,
        "hidden": (64, 64), "activation": "tanh",
    },
    "ddpg": DDPG,
    "td3": DDPG | {"policy_delay": 2, "target_policy_noise": 0.2, "target_noise_clip": 0.5},
    "sac": OFF_POLICY | {
        "learning_rate": 3e-4, "ent_coef": "auto", "target_entropy": None, "hidden": (256, 256),
    },
    "tqc": OFF_POLICY | {
        "learning_rate": 3e-4, "ent_coef": "auto", "target_entropy": None, "hidden": (256, 256),
        "n_critics": 2, "n_quantiles": 25, "top_quantiles_to_drop_per_net": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("algorithm", SB3)
def test_defaults_are_those_of_stable_baselines3(algorithm: str) -> None:
    flat, expected = resolve(algorithm, {"env": "CartPole-v1"}).flat(), SB3[algorithm]
    assert {name: flat[name] for name in expected} == expected
    assert flat["envs"] == 1


def test_later_layers_win_name_by_name() -> None:
    preset = {"env": "CartPole-v1", "gamma": 0.9, "n_epochs": 3, "hidden": [32]}
    file = {"gamma": 0.95, "n_epochs": 4}
    flags = {"gamma": 0.97}
    config = resolve("ppo", preset, file, flags)
    found = config.hyper.gamma, config.hyper.n_epochs, config.network.hidden
    assert found == (0.97, 4, (32,))
    assert config.hyper.gae_lambda == PPOConfig().gae_lambda


layer = st.fixed_dictionaries(
    {},
    optional={
        "gamma": st.floats(0, 1),
        "n_epochs": st.integers(1, 20),
        "seed": st.integers(0, 2**32 - 1),
        "hidden": st.lists(st.integers(1, 512), max_size=3).map(tuple),
        "threshold": st.lists(st.floats(-1e6, 1e6), max_size=3).map(tuple),
        "learning_rate": st.floats(1e-6, 1) | st.just("lin_0.01_0.001"),
        "max_grad_norm": st.none() | st.floats(0.1, 10),
        "env_kwargs": st.dictionaries(st.sampled_from(["size", "mode"]), st.integers()),
        "quiet": st.booleans(),
    },
)


@settings(deadline=None, max_examples=100)
@given(st.lists(layer, max_size=4))
def test_layers_merge_as_dicts_do_and_settings_survive_json(layers: list[dict[str, Any]]) -> None:
    config = resolve("ppo", *layers)
    flat = config.flat()
    wanted = {name: value for one in layers for name, value in one.items()}
    assert {name: flat[name] for name in wanted} == wanted
    assert resolve("ppo", flat) == config
    assert resolve("ppo", json.loads(json.dumps(flat))) == config


SOURCES: dict[str, dict[str, Any]] = {
    # Mnih et al. (2015), extended data table 1; steps are agent steps.
    "breakout-dqn": {
        "batch_size": 32,
        "buffer_size": 1_000_000,
        "frame_stack": None,
        "gamma": 0.99,
        "train_freq": 4,
        "gradient_steps": 1,
        "target_update_interval": 40_000,
        "optimizer": "rmsprop",
        "learning_rate": 0.00025,
        "exploration_initial_eps": 1.0,
        "exploration_final_eps": 0.1,
        "exploration_steps": 1_000_000,
        "learning_starts": 50_000,
        "noop_max": 30,
        "loss": "huber",
        "sticky_actions": 0.0,
        "clip_reward": True,
    },
    # A tutorial, which counts environment steps as iterations and trains on one in 4 of them.
    "breakout-dqn-w1": {
        "batch_size": 64,
        "buffer_size": 500_000,
        "frame_stack": 3,
        "gamma": 0.99,
        "train_freq": 4,
        "gradient_steps": 1,
        "target_update_interval": 40_000,
        "optimizer": "nesterov",
        "learning_rate": 0.001,
        "exploration_initial_eps": 1.0,
        "exploration_final_eps": 0.1,
        "exploration_steps": 8_000_000,
        "learning_starts": 10_000,
        "steps": 16_000_000,
        "loss": "mse",
        "network": "nature_same",
    },
    # A teaching program; its noise of 0.01 on actions from -2 to 2 is 0.005 of half their range.
    "pendulum-ddpg-w2": {
        "hidden": (64, 64),
        "learning_rate": 0.0005,
        "critic_learning_rate": 0.005,
        "buffer_size": 10_000,
        "learning_starts": 1_000,
        "batch_size": 64,
        "gamma": 0.98,
        "tau": 0.005,
        "action_noise": 0.005,
        "steps": 200 * 200,
    },
}


@pytest.mark.parametrize("name", SOURCES)
def test_presets_equal_their_sources(name: str) -> None:
    preset = load_preset(name)
    flat = resolve(preset["algorithm"], preset).flat()
    assert {key: flat[key] for key in SOURCES[name]} == SOURCES[name]


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_valid(name: str) -> None:
    preset = load_preset(name)
    config = resolve(preset["algorithm"], preset)
    assert config.env.env
    for setting, value in preset.items():
        kept = config.flat()[setting]
        if value == "none":
            assert kept is None
        else:
            assert (list(kept) if isinstance(kept, tuple) else kept) == value
    assert resolve(config.algorithm, preset, {"seed": 7}).run.seed == 7


def test_a_file_is_read_as_toml_and_wins_over_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('gamma = 0.5\nmax_grad_norm = "none"\nhidden = [8, 8]\nthreshold = 475\n')
    config = resolve("ppo", load_preset("pendulum-ppo"), load_file(str(file)))
    assert config.env.env == "Pendulum-v1"
    assert (config.hyper.gamma, config.hyper.max_grad_norm) == (0.5, None)
    assert (config.network.hidden, config.run.threshold) == ((8, 8), (475.0,))


@pytest.mark.parametrize("content", [None, b"gamma = ", b"\xff\xfe", b"gamma = 1\ngamma = 2"])
def test_an_unreadable_file_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "bad.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=r"--config .*bad\.toml"):
        load_file(str(file))


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("gama", "gamma"),
        ("batchsize", "batch_size"),
        ("learning-rate", "learning_rate"),
        ("n_envs", "envs"),
        ("stepps", "steps"),
    ],
)
def test_unknown_names_suggest_the_nearest(name: str, suggestion: str) -> None:
    message = refusal({name: 1})
    assert repr(name) in message
    assert f"'{suggestion}'" in message.split("Did you mean")[1]


def test_unknown_presets_and_algorithms_suggest_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'cartpol-ppo'.*Did you mean 'cartpole-ppo'"):
        load_preset("cartpol-ppo")
    with pytest.raises(UsageError, match=r"'ppoo'.*Did you mean 'ppo'"):
        resolve("ppoo")


NAN, INF = math.nan, math.inf
IMPOSSIBLE: dict[str, dict[str, list[Any]]] = {
    "ppo": {
        "envs": [0, -1], "frame_stack": [0], "resize": [0], "n_steps": [0], "batch_size": [0, -64],
        "n_epochs": [0], "gamma": [1.5, -0.1, NAN], "gae_lambda": [1.01, -1],
        "learning_rate": [
            NAN, INF, 0, -1e-3, "fast", "nan", "lin_0", "lin_nan", "lin_0.001_-0.1", "lin_",
            "lin_1_inf", "lin_1_2_3",
        ],
        "clip_range": [0, -0.2, INF], "clip_range_vf": [0], "max_grad_norm": [0, NAN],
        "target_kl": [0, -1], "critic_learning_rate": [0, INF], "adam_eps": [0], "ent_coef": [NAN],
        "vf_coef": [INF], "log_std_init": [NAN], "rollout_episodes": [0],
        "hidden": [[64, 0], [-1]], "steps": [0, -5, 2**31], "seed": [-1, 2**32],
        "checkpoint_every": [-1], "keep_checkpoints": [0], "eval_every": [-1],
        "eval_episodes": [0], "stop_at_return": [NAN, INF], "log_every": [0],
    },
    "dqn": {
        "learning_rate": ["lin_0_0.1"], "batch_size": [0], "gamma": [1.01], "buffer_size": [0],
        "train_freq": [0, 2**31], "gradient_steps": [0, -1], "learning_starts": [-1, 2**31],
        "hindsight": [-1, 1001],
        "tau": [0, 1.01, NAN], "n_step": [0, 1001], "target_update_interval": [0],
        "priority_alpha": [-0.1, 1.1], "priority_beta": ["lin_-1", "linear"],
        "exploration_fraction": [1.1], "exploration_steps": [-1, 2**31], "max_grad_norm": [0],
        "exploration_initial_eps": [1.1], "exploration_final_eps": [-0.1],
    },
    "ddpg": {"action_noise": [-0.1], "critic_learning_rate": [0]},
    "td3": {
        "policy_delay": [0], "target_policy_noise": [-1, NAN], "target_noise_clip": [-0.5],
    },
    "sac": {
        "target_entropy": [NAN],
        "ent_coef": [-1, NAN, "", "auto_", "auto_0", "auto_x", "automatic", "auto_nan", "inf"],
    },
    "tqc": {"n_critics": [0], "n_quantiles": [0], "top_quantiles_to_drop_per_net": [-1]},
}  # fmt: skip
CASES = [(algo, n, v) for algo, names in IMPOSSIBLE.items() for n, vs in names.items() for v in vs]


@pytest.mark.parametrize(("algorithm", "name", "value"), CASES)
def test_impossible_numbers_are_refused_by_name(algorithm: str, name: str, value: Any) -> None:
    message = refusal({name: value}, algorithm=algorithm)
    shown = (value, repr(value), float(value) if isinstance(value, int) else value)
    assert name in message
    assert any(str(one).strip("[]") in message for one in shown)
    assert "\n" not in message


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_threshold_is_finite(value: float) -> None:
    assert "threshold" in refusal({"threshold": [value]})


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {"clip_range": 1e300}),
        ("ppo", {"max_grad_norm": 1e300}),
        ("ppo", {"adam_eps": 1e-60}),
        ("ppo", {"log_std_init": -1e40}),
        ("ppo", {"learning_rate": "lin_1e300"}),
        ("dqn", {"learning_rate": "lin_1e-60_1e-3"}),
        ("sac", {"ent_coef": "auto_1e39"}),
        ("sac", {"target_entropy": -1e39}),
    ],
)
def test_values_that_float32_cannot_hold_are_refused(
    algorithm: str, settings: dict[str, Any]
) -> None:
    (name,) = settings
    with pytest.raises(UsageError, match=rf"{name} = .* is impossible: float32 cannot hold it\."):
        resolve(algorithm, settings)


@pytest.mark.parametrize("name", ["n_steps", "gamma"])
def test_numbers_too_large_for_a_float_are_refused(name: str) -> None:
    assert name in refusal({name: 10**400})


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("n_steps", True, "a whole number"), ("n_steps", 2048.5, "a whole number"),
        ("n_steps", "2048", "a whole number"), ("n_steps", NAN, "a whole number"),
        ("n_steps", None, "a whole number"), ("steps", INF, "a whole number"),
        ("gamma", True, "a number"), ("gamma", "0.9", "a number"),
        ("learning_rate", [0.1], "a number"), ("normalize_advantage", 1, "true or false"),
        ("normalize_advantage", "true", "true or false"), ("env", 1, "text"),
        ("hidden", ["64"], "a list of whole numbers"), ("hidden", [64.5], "a list of whole"),
        ("threshold", ["high"], "a number or a list of numbers"),
        ("env_kwargs", [1], "a table of names and values"), ("activation", "rely", "tanh, relu"),
        ("network", "cnn", "wide_grid, onehot, centred, compass"),
        ("prioritized", 1, "true or false"), ("loss", "l1", "huber, mse"),
        ("optimizer", "sgd", "adam, rmsprop, nesterov"),
        ("exploration_steps", "1e6", "a whole number"), ("priority_beta", [0.4], "a number"),
        ("learning_starts", None, "a whole number"),
    ],
)  # fmt: skip
def test_values_of_another_type_are_refused(name: str, value: Any, wanted: str) -> None:
    algorithm = "ppo" if name in resolve("ppo").flat() else "dqn"
    message = refusal({name: value}, algorithm=algorithm)
    assert f"{name} = {value!r}" in message
    assert wanted in message


def test_whole_floats_and_single_items_are_converted() -> None:
    config = resolve("ppo", {"steps": 1e6, "gamma": 1, "hidden": 32, "threshold": 475})
    assert (config.run.steps, config.hyper.gamma) == (1_000_000, 1.0)
    assert isinstance(config.run.steps, int)
    assert (config.network.hidden, config.run.threshold) == ((32,), (475.0,))


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 500), st.integers(1, 8), st.integers(1, 600))
def test_only_rollouts_that_divide_into_minibatches_pass(
    n_steps: int, envs: int, batch: int
) -> None:
    layer = {"n_steps": n_steps, "envs": envs, "batch_size": batch, "normalize_advantage": False}
    rollout = n_steps * envs
    if rollout % batch == 0:
        assert resolve("ppo", layer).hyper.batch_size == batch
        return
    message = refusal(layer)
    assert f"= {rollout} transitions" in message
    assert f"batch_size {batch}" in message
    suggested = int(message.rstrip(".").rpartition(" ")[2])
    assert resolve("ppo", layer, {"batch_size": suggested}).hyper.batch_size == suggested


def test_a_batch_of_one_cannot_be_normalised() -> None:
    assert "advantage" in refusal({"n_steps": 4, "batch_size": 1})
    resolve("ppo", {"n_steps": 4, "batch_size": 1, "normalize_advantage": False})


def test_the_suggested_batch_size_is_valid() -> None:
    message = refusal({"n_steps": 7, "batch_size": 4})
    suggested = int(message.rstrip(".").rpartition(" ")[2])
    resolve("ppo", {"n_steps": 7, "batch_size": suggested})


def test_replay_must_hold_the_steps_that_are_collected_at_once() -> None:
    for name in ("envs", "train_freq"):
        message = refusal({"buffer_size": 7, "batch_size": 4, name: 8}, algorithm="dqn")
        assert message.startswith("buffer_size = 7 is impossible: at least 8")
        resolve("dqn", {"buffer_size": 8, "batch_size": 8, name: 8})
    message = refusal({"buffer_size": 31, "batch_size": 32}, algorithm="dqn")
    assert message == "batch_size = 32 is impossible: at most buffer_size 31."


def test_flags_set_the_settings_of_their_algorithm() -> None:
    config, resumed = train_config([
        "dqn", "--env", "CartPole-v1", "--train-freq", "8", "--gradient-steps=2", "--double",
        "--no-dueling", "--loss", "mse", "--priority-beta", "lin_0.5_1", "--exploration-steps",
        "500", "--max-grad-norm", "None", "--network", "nature_same", "--hidden", "32,16",
    ])  # fmt: skip
    flat = config.flat()
    wanted = {
        "algorithm": "dqn", "train_freq": 8, "gradient_steps": 2, "double": True, "dueling": False,
        "loss": "mse", "priority_beta": "lin_0.5_1", "exploration_steps": 500,
        "max_grad_norm": None, "network": "nature_same", "hidden": (32, 16), "batch_size": 32,
    }  # fmt: skip
    assert {name: flat[name] for name in wanted} == wanted
    assert not resumed
    config, _ = train_config(["sac", "--env", "Pendulum-v1", "--ent-coef", "auto_0.2"])
    assert (config.hyper.ent_coef, config.network.hidden) == ("auto_0.2", (256, 256))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["dqn", "--train-freq", "0"], "train_freq = 0 is impossible"),
        (["dqn", "--train-freq", "often"], "--train-freq"),
        (["dqn", "--train-frequency", "4"], "Did you mean '--train-freq'"),
        (["ddpg", "--policy-delay", "4"], "--policy-delay is a setting of td3; ddpg does not"),
        (["ppo", "--acts", "3"], "does not know '--acts'"),
        (["sac", "--ent-coef", "off"], "ent_coef = 'off' is neither"),
    ],
)
def test_flags_that_do_not_fit_are_refused(argv: list[str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        train_config([*argv, "--env", "CartPole-v1"])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_environment_arguments_are_toml_or_words() -> None:
    pairs = [
        "size=12", "flag=true", 'name="x y"', "rate=0.5", "cells=[1, 2]", "mode=rgb_array",
        "text=a=b", "color=#fff", "table={a = 1}", "empty=",
    ]  # fmt: skip
    assert parse_kwargs(pairs) == {
        "size": 12, "flag": True, "name": "x y", "rate": 0.5, "cells": [1, 2],
        "mode": "rgb_array", "text": "a=b", "color": "#fff", "table": {"a": 1}, "empty": "",
    }  # fmt: skip
    assert isinstance(parse_kwargs(["size=12"])["size"], int)


@pytest.mark.parametrize("pair", ["size", "=3", "a b=3", "9lives=1", ""])
def test_environment_arguments_without_key_and_value_are_refused(pair: str) -> None:
    with pytest.raises(UsageError, match="KEY=VALUE") as refused:
        parse_kwargs([pair])
    assert repr(pair) in str(refused.value)


@settings(deadline=None, max_examples=100)
@given(st.text())
def test_any_value_is_parsed_as_toml_or_stays_text(text: str) -> None:
    try:
        expected = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        expected = text
    assert repr(parse_kwargs([f"x={text}"])) == repr({"x": expected})  # NaN is not equal to itself


def test_a_grid_is_read_by_one_rule() -> None:
    """``--grid`` of a sweep and ``--population`` of a run name the same values by the same text."""
    words = ["hidden=[64,64],[128]", "learning-rate=1e-3, .5,lin_0.001", "orthogonal-init=true"]
    assert parse_grid(words, "--grid") == {
        "hidden": {"[64,64]": [64, 64], "[128]": [128]},
        "learning_rate": {"1e-3": 1e-3, ".5": 0.5, "lin_0.001": "lin_0.001"},
        "orthogonal_init": {"true": True},
    }
    refused = {"gamma": "not KEY=VALUE", "gamma=0.9,": "not KEY=VALUE", "=1": "not KEY=VALUE",
               "gamma=0.9,0.90": "names a value twice"}  # fmt: skip
    for word, why in refused.items():
        with pytest.raises(UsageError, match=f"--grid.*{why}"):
            parse_grid([word], "--grid")
    with pytest.raises(UsageError, match="--grid names n_steps twice"):
        parse_grid(["n-steps=1", "n_steps=2"], "--grid")
