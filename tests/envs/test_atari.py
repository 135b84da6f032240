"""Atari: agreement with single environments, seeds, episode ends, replay, cropped input."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest

from flatout.config.schema import EnvConfig
from flatout.config.settings import resolve
from flatout.envs.atari import gray_crop
from flatout.envs.base import EVALUATION, TRAINING, Envs, episode_seed
from flatout.envs.host import HostEnvs
from flatout.envs.make import episode_limit, factory, specs
from flatout.envs.task import open_task
from flatout.envs.vector import Reseeding
from flatout.errors import EnvironmentFailure, UsageError
from flatout.run.build import assemble
from flatout.run.resolve import resolve_run
from flatout.spans import Spans
from flatout.storage.trust import refuse_foreign
from flatout.types import DiscreteSpec, ObservationSpec

pytest.importorskip("ale_py", reason="Atari needs ale-py")

from flatout.envs.ale import OneAtari, atari_specs, vector_settings
from flatout.envs.atari import AtariEnvs, cropped

End = tuple[int, bool, bool, float, int]
LIMIT = 40
CUT = {"max_num_frames_per_episode": 4 * LIMIT}


def config(game: str = "Breakout", **settings: Any) -> EnvConfig:
    """Return the settings of one game."""
    return EnvConfig(env=f"ALE/{game}-v5", **settings)


class Played:
    """Environments with the arrays that a sampler would give them."""

    def __init__(self, envs: Envs, spec: ObservationSpec, actions: int, seed: int = 0) -> None:
        self.envs = envs
        self.obs = np.zeros((envs.num_envs, *spec.shape), spec.dtype)
        self.rewards = np.zeros(envs.num_envs, np.float32)
        self.ended: list[End] = []
        self.finals: list[np.ndarray] = []
        self.taken: list[list[int]] = [[] for _ in range(envs.num_envs)]
        self._actions = actions
        self._rng = np.random.default_rng(seed)

    def step(self, active: list[int] | None = None) -> np.ndarray:
        """Take one step with random actions, and note the actions that a replay needs."""
        actions = self._rng.integers(0, self._actions, len(self.taken)).astype(np.int32)
        self.ended.clear()
        self.finals.clear()
        before = list(self.envs.steps_to_replay)
        self.envs.step(actions, self.obs, self.rewards, self._end, active)
        for env in range(len(self.taken)) if active is None else active:
            self.taken[env].append(int(actions[env]))
            if self.envs.steps_to_replay[env] <= before[env]:
                self.taken[env].clear()
        return actions

    def _end(self, env: int, terminated: bool, truncated: bool, final: np.ndarray) -> None:
        episode = self.envs.finished(env)
        self.ended.append((env, terminated, truncated, episode.episode_return, episode.length))
        self.finals.append(final.copy())


def played(game: EnvConfig, count: int, seed: int = 0, **more: Any) -> Played:
    """Make Atari environments that are not yet reset."""
    spec, actions, _ = atari_specs(game)
    return Played(AtariEnvs(game, count, seed, **more), spec, actions.n)


# Settings


def test_specs() -> None:
    assert atari_specs(config()) == (
        ObservationSpec((84, 84, 4), "uint8", 255, 4, "zeros"), DiscreteSpec(4), 27_000,
    )  # fmt: skip
    other = config(
        "Pong", frame_skip=3, frame_stack=2,
        env_kwargs={"full_action_space": True, "img_height": 40, "grayscale": False} | CUT,
    )  # fmt: skip
    assert atari_specs(other) == (
        ObservationSpec((40, 84, 6), "uint8", 255, 2, "zeros"), DiscreteSpec(18), 54,
    )  # fmt: skip
    task = open_task(config())
    assert task.first is None
    assert (task.obs_spec, task.action_spec, task.limit) == atari_specs(config())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "ALE/Brakout-v5"}, "unknown environment 'ALE/Brakout-v5'.*'ALE/Breakout-v5'"),
        ({"env": "ALE/Combat-v5"}, "unknown environment"),
        ({"frame_skip": 0}, "frame_skip = 0 is impossible"),
        ({"sticky_actions": 1.5}, "sticky_actions = 1.5 is impossible"),
        ({"noop_max": -1}, "noop_max = -1 is impossible"),
        ({"frame_stack": 0}, "frame_stack = 0 is impossible"),
        ({"grayscale": True}, "drop --grayscale and --resize"),
        ({"resize": 84}, "drop --grayscale and --resize"),
        ({"env_kwargs": {"frameskip": 2}}, "--frame-skip"),
        ({"env_kwargs": {"img_heigth": 80}}, "Did you mean 'img_height'"),
        ({"env_kwargs": {"img_height": 0}}, "at least 1"),
        ({"env_kwargs": {"maxpool": 1}}, "true or false"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    wrong = EnvConfig(**{"env": "ALE/Breakout-v5"} | settings)
    with pytest.raises(UsageError, match=message) as caught:
        vector_settings(wrong)
    assert str(caught.value).count("\n") == 0
    with pytest.raises(UsageError, match=message):
        open_task(wrong)


def test_a_missing_ale_py_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UsageError, match="pip install ale-py"):
        open_task(config())


def test_an_invalid_action_is_refused_before_the_emulator_hangs() -> None:
    games = played(config(), 1)
    games.envs.reset(0, games.obs)
    with pytest.raises(EnvironmentFailure, match="not one of its 4"):
        games.envs.step(np.array([4]), games.obs, games.rewards, games._end)


# The meaning of a step


def test_agrees_with_gymnasiums_preprocessing() -> None:
    pytest.importorskip("cv2", reason="Gymnasium's preprocessing needs OpenCV")
    game = config("Qbert", noop_max=0, env_kwargs={"use_fire_reset": False})
    games = played(game, 1, seed=5)
    env = gym.make("ALE/Qbert-v5", frameskip=1, disable_env_checker=True)
    other = gym.wrappers.AtariPreprocessing(env, noop_max=0)

    def reset(episode: int) -> tuple[np.ndarray, int]:
        raw: Any = other.unwrapped
        raw.ale.setInt("random_seed", episode_seed(5, TRAINING, 0, episode))
        raw.load_game()
        image, info = other.reset()
        return image, info["lives"]

    games.envs.reset_all(games.obs)
    image, lives = reset(0)
    assert np.abs(games.obs[0, :, :, 3].astype(int) - image).max() <= 1
    assert not games.obs[..., :3].any(), "zeros before an episode's first frame"
    seen, rewards, lost = np.copy(games.obs[0]), set(), 0
    for _ in range(350):
        (action,) = games.step()
        image, reward, terminated, truncated, info = other.step(action)
        assert games.rewards[0] == reward
        assert games.envs.life_lost is not None
        assert games.envs.life_lost[0] == (info["lives"] < lives and not terminated)
        lost += int(games.envs.life_lost[0])
        lives, ended = info["lives"], terminated or truncated
        assert [end[1:3] for end in games.ended] == [(terminated, truncated)] * ended
        now = games.finals[0] if ended else games.obs[0]
        assert np.abs(now[..., 3].astype(int) - image).max() <= 1
        assert np.array_equal(now[..., :3], seen[..., 1:]), "older frames move by one place"
        seen = games.obs[0].copy()
        rewards.add(float(reward))
        if ended:
            assert games.envs.episode == [1]
            _, lives = reset(1)
    assert lost >= 2
    assert games.envs.episode == [1], "an episode ended"
    assert max(rewards) == 25, "rewards are raw"


def test_agrees_with_the_scalar_environment() -> None:
    game = config("Pong", env_kwargs=CUT)
    games, task = played(game, 2, seed=3), open_task(game)
    envs = [factory(game)(), factory(game)()]
    assert specs(envs[0], "") == (task.obs_spec, task.action_spec)
    assert episode_limit(envs[0]) == LIMIT
    scalar = Played(HostEnvs(envs, "Pong", task.obs_spec, task.action_spec, 3), task.obs_spec, 6)
    for some in (games, scalar):
        some.envs.reset_all(some.obs)
    for t in range(LIMIT + 10):
        assert np.array_equal(games.obs, scalar.obs)
        games.step()
        scalar.step()
        assert np.array_equal(games.rewards, scalar.rewards)
        assert games.ended == scalar.ended
        assert len(games.ended) == 2 * (t == LIMIT - 1)
        assert all(map(np.array_equal, games.finals, scalar.finals))
    assert games.envs.returns == scalar.envs.returns


def test_pictures_are_of_the_game_that_is_observed() -> None:
    game = config(
        frame_skip=2, frame_stack=1,
        env_kwargs={"img_height": 210, "img_width": 160, "grayscale": False, "maxpool": False},
    )  # fmt: skip
    env = factory(game)(render_mode="rgb_array")
    assert isinstance(env, OneAtari)
    rng = np.random.default_rng(0)
    for _ in range(2):
        obs, _ = env.reset(seed=7)
        for _ in range(40):
            assert env.render().shape == obs.shape == (210, 160, 3)
            obs, *_ = env.step(int(rng.integers(0, 4)))
            assert np.array_equal(env.render(), obs)


# Some of the environments


def test_a_reset_leaves_the_others_alone() -> None:
    games, alone = played(config(), 2), played(config(), 2)
    for some in (games, alone):
        some.envs.reset_all(some.obs)
    for t in range(40):
        if t == 20:
            games.envs.reset(1, games.obs, episode=9)
            assert (games.envs.episode, games.envs.seeded_episode) == ([0, 9], [0, 9])
            assert (games.envs.lengths, games.envs.returns[1]) == ([20, 0], 0.0)
        for some in (games, alone):
            some.step()
        same = [np.array_equal(games.obs[env], alone.obs[env]) for env in range(2)]
        assert same == [True, t < 20]


def test_inactive_environments_wait_at_their_episodes_start() -> None:
    game = config("Pong", env_kwargs=CUT)
    games, alone = played(game, 2), played(game, 2)
    for some in (games, alone):
        some.envs.reset_all(some.obs)
    waiting = games.obs[0].copy()
    games.rewards[:] = 7
    for _ in range(LIMIT + 10):
        games.step(active=[1])
        alone.step()
        assert np.array_equal(games.obs[1], alone.obs[1])
        assert len(games.ended) == (games.envs.lengths[1] == 0)
    assert np.array_equal(games.obs[0], waiting)
    assert games.rewards[0] == 7
    assert (games.envs.episode, games.envs.lengths) == ([0, 1], [0, 10])
    assert [len(taken) for taken in games.taken] == [0, 10]
    alone.envs.reset(0, alone.obs, episode=0)
    for _ in range(20):  # it continues as if it had never waited
        actions = games.step()
        alone.envs.step(actions, alone.obs, alone.rewards, alone._end)
        assert np.array_equal(games.obs, alone.obs)
    assert games.envs.lengths == [20, 30]
    games.step(active=[1])
    with pytest.raises(ValueError, match="environment 0 cannot continue"):
        games.step()  # an environment may become inactive only between episodes


# Replay


@pytest.mark.parametrize(
    ("game", "count", "reseeding", "steps", "more"),
    [
        pytest.param(config("Breakout", sticky_actions=0.25), 4, Reseeding(), 100, 120,
                     marks=pytest.mark.slow),
        pytest.param(config("Pong", sticky_actions=0.25,
                            env_kwargs={"max_num_frames_per_episode": 400}),
                     2, Reseeding(steps=150), 110, 200, marks=pytest.mark.slow),
        pytest.param(EnvConfig(env="Pong-v0", env_kwargs={"max_num_frames_per_episode": 200}),
                     2, Reseeding(steps=60), 50, 120, marks=pytest.mark.slow),
        (config("Breakout", sticky_actions=0, env_kwargs=CUT), 3, Reseeding(episodes=4), 150, 100),
    ],
)  # fmt: skip
def test_replay_is_exact(
    game: EnvConfig, count: int, reseeding: Reseeding, steps: int, more: int
) -> None:
    first = played(game, count, seed=11, reseeding=reseeding)
    first.envs.reset_all(first.obs)
    for t in range(steps):
        first.step()
        if t == 33:  # so that the episodes end at different steps
            first.envs.reset(t % count, first.obs)
            first.taken[t % count].clear()
    assert [len(taken) for taken in first.taken] == first.envs.steps_to_replay
    assert len(set(first.envs.steps_to_replay)) > 1
    again = played(game, count, seed=11, reseeding=reseeding)
    actions = [np.array(taken, np.int32) for taken in first.taken]
    numbers = first.envs.seeded_episode, first.envs.episode
    assert again.envs.replay_all(*numbers, actions, again.obs) == [True] * count
    again._rng = copy.deepcopy(first._rng)
    ends = 0
    for _ in range(more):
        assert np.array_equal(first.obs, again.obs)
        for what in ("episode", "returns", "lengths", "seeded_episode", "steps_to_replay"):
            assert getattr(first.envs, what) == getattr(again.envs, what)
        for some in (first, again):
            some.step()
        assert first.ended == again.ended
        assert all(map(np.array_equal, first.finals, again.finals))
        assert np.array_equal(first.envs.life_lost, again.envs.life_lost)
        ends += len(first.ended)
    assert ends >= 3


def test_replay_reports_which_environments_it_could_not_reproduce() -> None:
    games = played(config("Pong", env_kwargs=CUT), 3)
    actions = [np.zeros(5, np.int32), None, np.zeros(LIMIT + 1, np.int32)]
    assert games.envs.replay_all([4, 5, 6], [4, 5, 6], actions, games.obs) == [True, False, False]
    assert (games.envs.episode[0], games.envs.lengths[0]) == (4, 5)
    with pytest.raises(ValueError, match="reset it"):
        games.step()
    for env in (1, 2):
        games.envs.reset(env, games.obs, episode=7)
    games.step()
    assert games.envs.lengths == [6, 1, 1]


# Cropped input


def test_cropped_input(tmp_path: Path) -> None:
    screen = np.random.default_rng(0).integers(0, 256, (210, 160, 3), np.uint8)
    gray = gray_crop(screen)
    assert (gray.shape, gray.dtype) == ((88, 80, 1), np.uint8)
    assert np.array_equal(gray[..., 0], screen[34:210:2, ::2].mean(-1).round())
    task = open_task(
        EnvConfig(env="flatout.envs.atari:cropped", env_kwargs={"game": "Breakout"}, frame_stack=3)
    )
    assert task.obs_spec == ObservationSpec((88, 80, 3), "uint8", 255, 3, "first")
    assert (task.action_spec, task.limit) == (DiscreteSpec(4), 10_000)
    name = {"env": "flatout.envs.atari:cropped", "env_kwargs": {"game": "Breakout"}}
    refuse_foreign(resolve("dqn", name), tmp_path / "config.json", code=None)
    with pytest.raises(UsageError, match="unknown environment 'ALE/Brakeout-v5'"):
        cropped("Brakeout")
    games = Played(task.open(1, 0, EVALUATION), task.obs_spec, 4)
    runs: list[list[bytes]] = [[], []]
    for run in runs:
        games.envs.reset_all(games.obs, episode=0)
        for action in np.random.default_rng(1).integers(0, 4, (30, 1)):
            games.envs.step(action, games.obs, games.rewards, games._end)
            run.append(games.obs.tobytes())
    assert runs[0] == runs[1]


def test_cropped_input_skips_two_to_four_frames() -> None:
    env = cropped("Breakout")
    _, info = env.reset(seed=2)
    frames = [info["episode_frame_number"]]
    assert 10 <= frames[0] <= 20, "five no-ops"
    for _ in range(60):
        frames.append(env.step(0)[-1]["episode_frame_number"])
    assert set(np.diff(frames)) == {2, 3, 4}


def test_lost_lives_and_clipped_rewards_reach_the_learner_and_raw_returns_the_log() -> None:
    settings = {
        "env": "ALE/MsPacman-v5", "envs": 2, "network": "mlp", "train_freq": 800, "batch_size": 8,
        "buffer_size": 1600, "learning_starts": 100_000, "terminal_on_life_loss": True,
        "clip_reward": True, "steps": 100_000,
    }  # fmt: skip
    parts = assemble(resolve_run(resolve("dqn", settings)), Spans())
    try:
        flow: Any = parts.schedule
        learn, seen = flow.learner.learn, list[Any]()

        def look(state: Any, trajectory: Any) -> Any:
            seen.append(jax.tree.map(np.array, trajectory))
            return learn(state, trajectory)

        flow.learner.learn = look
        flow.start()
        metrics = list(flow.advance(2))
    finally:
        parts.close()
    returns = [total for one in metrics for total in one.episodes.episode_return]
    assert [info for one in metrics for info in one.infos] == [{"lives": 0.0}] * len(returns)
    terminated = np.concatenate([one.terminated for one in seen])
    ended = np.concatenate([one.ended for one in seen])
    rewards = np.concatenate([one.rewards for one in seen])
    assert (terminated & ~ended).sum() >= 4, "lives were lost"
    assert ended.sum() == len(returns) > 0
    assert (terminated & ended).sum() == ended.sum(), "a lost game ends with its last life"
    assert set(np.unique(rewards)) == {0.0, 1.0}
    assert min(returns) >= 10.0


def test_the_fitness_of_a_member_is_the_return_of_a_game_not_of_a_life() -> None:
    """With `terminal_on_life_loss`, a member that lost three lives had a third of its return."""
    settings = {
        "env": "ALE/MsPacman-v5", "envs": 2, "network": "mlp", "hidden": [2], "n_steps": 400,
        "elites": 1, "terminal_on_life_loss": True, "placement": "cpu",
    }  # fmt: skip
    parts = assemble(resolve_run(resolve("genetic", settings)), Spans())
    try:
        flow: Any = parts.schedule
        flow.start()
        trajectory, _ = flow._sampler.collect(flow.state.environments, flow.params)
        assert trajectory.terminated.sum() == len(flow._sampler.episodes)
    finally:
        parts.close()
