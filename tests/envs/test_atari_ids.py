"""Atari ids: each trains with the frame skip and sticky actions with which ale-py registers it."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from flatout.config.schema import EnvConfig
from flatout.envs.ale import DrawnSkips, open_vector, vector_settings
from flatout.envs.ale_ids import is_atari
from flatout.envs.atari import AtariEnvs
from flatout.envs.base import Ended
from flatout.envs.make import factory
from flatout.envs.task import open_task
from flatout.errors import UsageError

pytest.importorskip("ale_py", reason="Atari needs ale-py")

IDS = [
    name for name, spec in gym.registry.items() if spec.entry_point == "ale_py.env:AtariEnv"
]  # fmt: skip
COUNT = 3


def no_end(env: int, terminated: bool, truncated: bool, final: np.ndarray) -> None:
    """Do nothing at the end of an episode."""


def play(envs: AtariEnvs, steps: int, ended: Ended = no_end) -> list[tuple[np.ndarray, ...]]:
    """Take random steps; return the observations and rewards after the reset and each step."""
    out = np.zeros((COUNT, 84, 84, 4), np.uint8)
    rewards, rng = np.zeros(COUNT, np.float32), np.random.default_rng(0)
    envs.reset_all(out)
    seen = [(out.copy(), rewards.copy())]
    for _ in range(steps):
        envs.step(rng.integers(0, 4, COUNT).astype(np.int32), out, rewards, ended)
        seen.append((out.copy(), rewards.copy()))
    return seen


def test_every_id_means_what_ale_py_registers() -> None:
    assert {"Breakout-v0", "Breakout-v4", "BreakoutNoFrameskip-v4", "ALE/Pong-v5"} <= set(IDS)
    for name in IDS:
        assert is_atari(name), name
        registered, ours = gym.registry[name].kwargs, vector_settings(EnvConfig(env=name))
        sticky = "repeat_action_probability"
        assert (ours["game"], ours[sticky]) == (registered["game"], registered[sticky])
        skip = registered["frameskip"]
        assert ours["frameskip"] == (4 if "NoFrameskip" in name else skip)
    assert not is_atari("CartPole-v0")
    assert not is_atari("Pendulum-v1")


def test_flags_replace_what_an_id_means() -> None:
    for name in ("Breakout-v0", "BreakoutNoFrameskip-v4", "ALE/Breakout-v5"):
        ours = vector_settings(EnvConfig(env=name, frame_skip=2, sticky_actions=0.5))
        assert (ours["frameskip"], ours["repeat_action_probability"]) == (2, 0.5)


@pytest.mark.parametrize(
    "name", ["Breakout-v0", pytest.param("Breakout-v4", marks=pytest.mark.slow)]
)
def test_drawn_skips_are_two_to_four_frames(name: str) -> None:
    task = open_task(EnvConfig(env=name))
    assert task.source.atari
    assert task.limit == 54_000, "of 108,000 frames, at least two a step"
    settings = vector_settings(task.config)
    games = open_vector(settings, COUNT, 2)
    assert isinstance(games, DrawnSkips)
    _, info = games.reset(seed=np.arange(COUNT))
    skips: list[int] = []
    for _ in range(60):
        before = info["frame_number"]
        *_, info = games.step(np.zeros(COUNT, np.int32))
        skips += (info["frame_number"] - before).tolist()
    assert set(skips) == {2, 3, 4}
    assert len(set(map(tuple, np.reshape(skips, (-1, COUNT)).T.tolist()))) == COUNT


def test_a_skip_is_applied_once() -> None:
    games = open_vector(vector_settings(EnvConfig(env="BreakoutNoFrameskip-v4")), 1, 1)
    _, before = games.reset(seed=np.zeros(1, int))
    *_, after = games.step(np.zeros(1, np.int32))
    assert after["frame_number"] - before["frame_number"] == [4]


def test_drawn_skips_observe_what_frame_by_frame_play_shows() -> None:
    whole = {"img_height": 210, "img_width": 160, "maxpool": False}
    config = EnvConfig(env="Breakout-v0", frame_stack=1, env_kwargs=whole | {"grayscale": False})
    env: Any = factory(config)(render_mode="rgb_array")
    rng = np.random.default_rng(0)
    for _ in range(2):
        obs, _ = env.reset(seed=7)
        for _ in range(40):
            assert np.array_equal(env.render(), obs)  # a second emulator, frame by frame
            obs, *_ = env.step(int(rng.integers(0, 4)))


def test_drawn_skips_agree_with_a_vector_environment_of_the_same_skips() -> None:
    settings = vector_settings(EnvConfig(env="Breakout-v4"))
    drawn = open_vector(settings | {"frameskip": (4, 5)}, COUNT, 1)
    fixed = open_vector(settings | {"frameskip": 4}, COUNT, 1)
    rng = np.random.default_rng(1)
    ends = 0
    ours, theirs = drawn.reset(seed=np.arange(COUNT)), fixed.reset(seed=np.arange(COUNT))
    for _ in range(160):
        assert np.array_equal(ours[-1]["lives"], theirs[-1]["lives"])
        assert np.array_equal(ours[-1]["frame_number"], theirs[-1]["frame_number"])
        # `DrawnSkips` scales before it computes the maximum, so flickering pixels differ a little.
        assert np.mean(np.abs(ours[0].astype(int) - theirs[0])) < 0.05
        actions = rng.integers(0, 4, COUNT).astype(np.int32)
        ours, theirs = drawn.step(actions), fixed.step(actions)
        assert all(map(np.array_equal, ours[1:4], theirs[1:4]))
        over = theirs[2] | theirs[3]
        if over.any():
            ends += 1
            seeds, mask = np.full(over.sum(), -1), {"reset_mask": over}
            ours = drawn.reset(seed=seeds, options=mask)
            theirs = fixed.reset(seed=seeds, options=mask)
    assert ends


def test_a_seed_decides_drawn_skips() -> None:
    config = EnvConfig(env="Breakout-v0", noop_max=0)
    runs = [play(AtariEnvs(config, COUNT, seed), 15) for seed in (3, 3, 4)]
    same, other = (
        all(all(map(np.array_equal, a, b)) for a, b in zip(runs[0], run, strict=True))
        for run in runs[1:]
    )
    assert same
    assert not other


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Breakout-ram-v4", ["--env ALE/Breakout-v5", "--sticky-actions 0", "obs_type='ram'"]),
        ("ALE/Pong-ram-v5", ["--env ALE/Pong-v5", "obs_type='ram'"]),
        ("BreakoutDeterministic-v0", ["--env ALE/Breakout-v5 --frame-skip 4", "actions 0.25"]),
        ("BackgammonNoFrameskip-v4", ["--env ALE/Backgammon-v5 --frame-skip 4", "actions 0."]),
        ("Breakout-v5", ["--env ALE/Breakout-v5"]),
        ("Brakout-v4", ["'Breakout-v4'"]),
        ("CartPole-v2", ["unknown environment 'CartPole-v2'. Did you mean 'CartPole-v1' or 'phys"]),
        ("Combat-v4", ["unknown environment 'Combat-v4'. "]),
    ],
)
def test_an_id_that_is_not_registered_names_its_equivalent(name: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        open_task(EnvConfig(env=name))
    message = str(caught.value)
    assert name in message
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("name", ["BreakoutNoFrameskip-v4", "ALE/Breakout-v5"])
def test_a_missing_ale_py_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry: dict[str, Any] = {key: gym.registry[key] for key in gym.registry if key not in IDS}
    monkeypatch.setattr(gym, "registry", registry)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UsageError, match="pip install ale-py"):
        open_task(EnvConfig(env=name))
