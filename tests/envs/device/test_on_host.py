"""Device environments that the host steps play, end and reproduce like all others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout import PPO, DeviceEnv, UsageError
from flatout.config.schema import EnvConfig
from flatout.envs.base import EVALUATION, TRAINING, Envs
from flatout.envs.device.make import device_env
from flatout.envs.device.on_host import TOGETHER, DeviceEnvs, OneDevice
from flatout.envs.device.twins import TWINS
from flatout.envs.host import HostEnvs
from flatout.envs.task import open_task
from flatout.errors import EnvironmentFailure
from tests import tiny
from tests.conftest import Result, furthest, last_saved
from tests.device_envs import corridor, pushed

ROOT = Path(__file__).parents[3]
MANY = TOGETHER + 3


class Played:
    """Environments with the arrays that a sampler would give them."""

    def __init__(self, envs: Envs, device: DeviceEnv) -> None:
        self.envs = envs
        self.obs = np.zeros((envs.num_envs, *device.obs_spec.shape), device.obs_spec.dtype)
        self.rewards = np.zeros(envs.num_envs, np.float32)
        self.ended: list[tuple[Any, ...]] = []
        envs.reset_all(self.obs)

    def step(self, actions: Any, active: list[int] | None = None) -> None:
        self.envs.step(np.asarray(actions), self.obs, self.rewards, self._end, active)

    def _end(self, env: int, terminated: bool, truncated: bool, final: np.ndarray) -> None:
        episode = self.envs.finished(env)
        end = env, terminated, truncated, episode.episode_return, episode.length
        self.ended.append((*end, final.copy()))


def together(device: DeviceEnv, count: int, seed: int = 1, stream: int = TRAINING) -> Played:
    return Played(DeviceEnvs(device, count, seed, stream), device)


def one_by_one(device: DeviceEnv, count: int, seed: int = 1, stream: int = TRAINING) -> Played:
    envs = [OneDevice(device) for _ in range(count)]
    specs = device.obs_spec, device.action_spec
    return Played(HostEnvs(envs, device.name, *specs, seed, stream), device)


@pytest.mark.parametrize("stream", [TRAINING, EVALUATION])
@pytest.mark.parametrize(
    ("device", "count"),
    [(corridor(), MANY), (pushed(), 3), (corridor(patience=3), 1)],
    ids=["corridor", "pushed", "alone"],
)
def test_many_play_the_episodes_that_each_plays_alone(
    device: DeviceEnv, count: int, stream: int
) -> None:
    rng = np.random.default_rng(0)
    many, alone = together(device, count, stream=stream), one_by_one(device, count, stream=stream)
    assert np.allclose(many.obs, alone.obs, atol=1e-6)
    for _ in range(60):
        actions = rng.integers(0, 2, count).astype(np.int32)
        if device.name == "pushed":
            actions = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
        many.step(actions)
        alone.step(actions)
        assert np.allclose(many.obs, alone.obs, atol=1e-5)
        assert np.allclose(many.rewards, alone.rewards, atol=1e-5)
    assert len(many.ended) == len(alone.ended) > count
    for ours, theirs in zip(many.ended, alone.ended, strict=True):
        assert ours[:3] == theirs[:3]
        assert ours[3:5] == pytest.approx(theirs[3:5], abs=1e-4)
        assert np.allclose(ours[5], theirs[5], atol=1e-5)
    assert many.envs.episode == alone.envs.episode
    assert many.envs.lengths == alone.envs.lengths


def test_the_limit_truncates_and_hands_over_the_final_observation() -> None:
    played = together(corridor(length=50, limit=4), 3)
    for t in range(4):
        assert not played.ended
        assert played.envs.lengths == [t] * 3
        played.step([0, 0, 0])
    assert [end[:3] for end in played.ended] == [(env, False, True) for env in range(3)]
    assert all(end[4] == 4 and end[5][1] == pytest.approx(0.04) for end in played.ended)
    assert played.envs.episode == [1, 1, 1]
    assert (played.obs[:, 1] == 0).all(), "the next episodes' first observations"


def test_an_end_by_the_environments_patience_is_a_truncation() -> None:
    played = together(corridor(length=50, limit=None, patience=3), 2)
    for _ in range(3):
        played.step([0, 0])
    assert [end[1:3] for end in played.ended] == [(False, True)] * 2


def test_only_active_environments_step() -> None:
    played = together(corridor(length=50, limit=4), 3)
    before = played.obs.copy()
    played.step([1, 1, 1], active=[0, 2])
    assert played.envs.lengths == [1, 0, 1]
    assert np.array_equal(played.obs[1], before[1])
    played.step([1, 1, 1])
    assert np.allclose(played.obs[:, 1], [0.02, 0.01, 0.02])


def test_episodes_are_reproduced_from_their_actions() -> None:
    rng, device = np.random.default_rng(3), corridor()
    played = together(device, MANY)
    taken: list[list[int]] = [[] for _ in range(MANY)]
    for _ in range(33):
        actions = rng.integers(0, 2, MANY).astype(np.int32)
        before = list(played.envs.episode)
        played.step(actions)
        for env in range(MANY):
            same = played.envs.episode[env] == before[env]
            taken[env] = [*taken[env], int(actions[env])] if same else []
    again = together(device, MANY)
    given: list[np.ndarray | None] = [np.int32(actions) for actions in taken]
    numbers = played.envs.episode
    assert again.envs.replay_all(numbers, numbers, given, again.obs) == [True] * MANY
    assert again.envs.lengths == played.envs.lengths == played.envs.steps_to_replay
    for _ in range(20):  # and both continue equally, to the bit
        assert np.array_equal(again.obs, played.obs)
        actions = rng.integers(0, 2, MANY).astype(np.int32)
        played.step(actions)
        again.step(actions)


def test_actions_that_end_the_episode_reproduce_nothing() -> None:
    played = together(corridor(), MANY)
    given = [np.ones(40, np.int32), *[None] * (MANY - 2), np.zeros(3, np.int32)]
    done = played.envs.replay_all([0] * MANY, [0] * MANY, given, played.obs)
    assert done == [*[False] * (MANY - 1), True]


def test_a_callback_that_raises_is_a_sentence() -> None:
    import jax

    def fails(cell: np.ndarray) -> np.ndarray:
        raise RuntimeError("no such cell")

    good = corridor()

    def step(state: Any, action: Any, key: Any) -> Any:
        state, obs, reward, *flags = good.step(state, action, key)
        shape = jax.ShapeDtypeStruct((), np.float32)
        reward = jax.pure_callback(fails, shape, reward, vmap_method="sequential")
        return state, obs, reward, *flags

    played = together(replace(good, step=step), 2)
    with pytest.raises(EnvironmentFailure, match=r"\(corridor\) raised .* in step: .*no such cell"):
        played.step([0, 1])


# --- Tasks and runs ---------------------------------------------------------------------------

NAMED = "tests.device_envs:corridor"


def test_a_task_knows_its_device_environment() -> None:
    task = open_task(EnvConfig(env=NAMED, env_kwargs={"length": 7, "limit": 9}))
    assert task.limit == 9
    assert task.compiles
    assert task.on_device() is task.device
    assert task.device is not None
    assert task.device.name == NAMED
    envs = task.open(3, seed=1)
    assert isinstance(envs, DeviceEnvs)
    envs.close()


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_opened_as_its_original_and_offered(name: str) -> None:
    task = open_task(EnvConfig(env=name))
    envs = task.open(1, seed=1)
    assert isinstance(envs, HostEnvs)
    envs.close()
    assert task.compiles
    twin = task.on_device()
    assert (twin.obs_spec, twin.action_spec, twin.limit) == task.spaces


@pytest.mark.parametrize(
    ("config", "source", "words"),
    [
        (EnvConfig(env="tests.bad_envs:Good"), None, "returned Good; a device environment is"),
        (EnvConfig(env="CartPole-v1", frame_stack=2), None, "is prepared on the host"),
        (EnvConfig(env=NAMED, frame_stack=2), None, "is prepared on the host"),
        (EnvConfig(env="CartPole-v1"), lambda: open_gym(), "is no device environment"),
    ],
)
def test_a_missing_device_environment_is_named(config: EnvConfig, source: Any, words: str) -> None:
    task = open_task(config, source)
    assert not task.compiles
    with pytest.raises(UsageError, match=words):
        task.on_device()
    task.close()


def open_gym() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


def test_observations_of_a_device_environment_can_be_stacked() -> None:
    task = open_task(EnvConfig(env=NAMED, frame_stack=3))
    assert task.obs_spec.shape == (6,)
    assert task.limit == 20
    envs = task.open(2, seed=1)
    obs = np.zeros((2, 6), np.float32)
    envs.reset_all(obs)
    assert np.array_equal(obs[:, :2], obs[:, 4:])
    envs.close()
    assert task.make(render_mode="ansi").render_mode == "ansi"


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


FLAGS = (*tiny.flags("ppo", env=NAMED), "--quiet", "--json")
SETTINGS = tiny.python("ppo")


@pytest.mark.slow
@pytest.mark.usefixtures("at_root", "shared_programs")
def test_a_run_learns_resumes_and_is_evaluated(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    done = flatout("train", "ppo", *FLAGS, "--steps", 256, "--run-dir", whole)
    assert done.code == 0, done.err
    assert json.loads(done.out)["updates"] > 0
    assert flatout("train", "ppo", *FLAGS, "--steps", 128, "--run-dir", halves).code == 0
    done = flatout("train", "ppo", "--resume", halves, "--steps", 256, "--quiet", "--env", NAMED)
    assert done.code == 0, done.err
    assert furthest(last_saved(whole), last_saved(halves)) == 0.0
    done = flatout("eval", whole, "--episodes", 4, "--json", "--env", NAMED)
    assert done.code == 0, done.err
    assert json.loads(done.out)["episodes"] == 4


@pytest.mark.usefixtures("at_root")
@pytest.mark.slow
def test_workers_step_what_this_process_would(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    ends = []
    for placement in ("cpu", "sampler=processes workers=1x2"):  # each imports JAX
        run = tmp_path / str(len(ends))
        given = "--steps", 128, "--run-dir", run, "--placement", placement
        done = flatout("train", "ppo", *FLAGS, *given)
        assert done.code == 0, done.err
        ends.append(last_saved(run))
    assert furthest(*ends) < 1e-4


def test_an_agent_takes_a_device_environment_and_shows_it() -> None:
    agent = PPO(corridor(length=4), seed=3, **SETTINGS).learn(64)
    result = agent.evaluate(5)
    assert len(result.returns) == 5
    from flatout.run.evaluate import greedy_episode

    acting = agent._acting
    shown = list(greedy_episode(acting.task, acting.policy(), 3, ("ansi",)))
    assert all(frame.count("@") == 1 and len(frame) == 4 for frame, *_ in shown)
    assert shown[-1][3] == len(shown) - 1


@pytest.mark.slow
def test_a_function_may_return_a_device_environment() -> None:
    agent = PPO(lambda: corridor(length=4), **SETTINGS).learn(64)
    assert agent.evaluate(5).returns


def test_an_environment_without_render_is_refused() -> None:
    from flatout.run.evaluate import _rendering

    task = open_task(EnvConfig(), replace(corridor(), render=None))
    with pytest.raises(UsageError, match=r"renders neither text \(ansi\) nor pictures"):
        _rendering(task, ("ansi", "rgb_array"))


def test_snakes_board_is_shown() -> None:
    env = OneDevice(device_env("flatout/Snake-v0", {"size": 4}), "ansi")
    env.reset(seed=1)
    text = env.render()
    assert [len(line) for line in text.splitlines()] == [7] * 4
    assert text.count("@") == text.count("*") == 1
