"""Atari games with spares that are reset in the background play as the games of `AtariEnvs`."""

from __future__ import annotations

from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest

from flatout.config.schema import EnvConfig
from flatout.envs.vector import EVERY_EPISODE, Reseeding
from flatout.errors import EnvironmentFailure

pytest.importorskip("ale_py", reason="Atari needs ale-py")

from flatout.envs import atari_pool
from flatout.envs.atari import AtariEnvs
from flatout.envs.atari_pool import AtariPool, Game

COUNT, LIMIT = 3, 40
SHORT = EnvConfig("ALE/Pong-v5", sticky_actions=0, env_kwargs={"max_num_frames_per_episode": 160})
BREAKOUT = EnvConfig("BreakoutNoFrameskip-v4")
OFTEN = Reseeding(episodes=3)


class Played:
    """Games with the arrays that a sampler would give them."""

    def __init__(self, envs: Any, actions: int = 6) -> None:
        self.envs = envs
        self.obs = np.zeros((COUNT, 84, 84, 4), np.uint8)
        self.rewards = np.zeros(COUNT, np.float32)
        self.ends: list[Any] = []
        self.taken: list[list[int]] = [[] for _ in range(COUNT)]
        self.rng, self._actions = np.random.default_rng(0), actions

    def step(self, active: list[int] | None = None) -> tuple[Any, ...]:
        """Take random actions; return everything that a sampler sees."""
        actions = self.rng.integers(0, self._actions, COUNT).astype(np.int32)
        self.ends.clear()
        for env in range(COUNT) if active is None else active:
            self.taken[env].append(int(actions[env]))
        self.envs.step(actions, self.obs, self.rewards, self._end, active)
        envs = self.envs
        return (
            self.obs.tobytes(), self.rewards.tolist(), list(self.ends), envs.life_lost.tolist(),
            list(envs.returns), list(envs.lengths), list(envs.episode), list(envs.seeded_episode),
            list(envs.steps_to_replay),
        )  # fmt: skip

    def _end(self, env: int, terminated: bool, truncated: bool, final: np.ndarray) -> None:
        self.ends.append((env, terminated, truncated, self.envs.finished(env), final.tobytes()))
        self.taken[env].clear()


def pool(game: EnvConfig = SHORT) -> Played:
    """Return games with spares, at the start of their first episodes."""
    games = Played(AtariPool(game, COUNT, 5, OFTEN))
    games.envs.reset_all(games.obs)
    return games


@pytest.mark.parametrize(
    ("game", "actions", "steps"),
    [(SHORT, 6, 190), pytest.param(BREAKOUT, 4, 600, marks=pytest.mark.slow)],
)
def test_spares_change_nothing(game: EnvConfig, actions: int, steps: int) -> None:
    both = (
        Played(AtariPool(game, COUNT, 5, OFTEN), actions),
        Played(AtariEnvs(game, COUNT, 5, reseeding=OFTEN), actions),
    )
    ends = 0
    for games in both:
        games.envs.reset_all(games.obs)
    for t in range(steps):
        if t == 60:  # within an episode
            for games in both:
                games.envs.reset(1, games.obs, episode=17)
        seen = both[0].step()
        assert seen == both[1].step()
        ends += len(seen[2])
    assert ends > COUNT
    assert both[0].envs.seeded_episode[0] > 0, "an environment was seeded again"
    for games in both:
        games.envs.close()


@pytest.mark.slow
def test_replay_continues_with_the_same_bits() -> None:
    games, again = pool(), Played(AtariPool(SHORT, COUNT, 5, OFTEN))
    for t in range(2 * LIMIT + 12):
        if t == 30:
            games.envs.reset(1, games.obs, episode=7)
            games.taken[1].clear()
        games.step()
    envs = games.envs
    assert [len(taken) for taken in games.taken] == envs.steps_to_replay == [12, 22, 12]
    actions: list[Any] = [np.array(taken, np.int32) for taken in games.taken]
    given = envs.seeded_episode, envs.episode, actions
    assert again.envs.replay_all(*given, again.obs) == [True] * COUNT
    assert np.array_equal(games.obs, again.obs)
    again.rng = np.random.default_rng(3)
    games.rng = np.random.default_rng(3)
    for _ in range(2 * LIMIT):
        assert games.step() == again.step()
    actions = [np.zeros(5, np.int32), None, np.zeros(LIMIT + 1, np.int32)]
    numbers = [4, 5, 6]
    assert envs.replay_all(numbers, numbers, actions, games.obs) == [True, False, False]
    with pytest.raises(ValueError, match="reset it"):
        games.step()
    for env in (1, 2):
        envs.reset(env, games.obs, episode=9)
    games.step()
    assert envs.lengths == [6, 1, 1]


def test_inactive_games_keep_their_state() -> None:
    games = pool()
    waiting = games.obs[0].copy()
    for _ in range(LIMIT):
        games.step(active=[1])
    assert np.array_equal(games.obs[0], waiting)
    assert (games.envs.lengths, games.envs.episode) == ([0, 0, 0], [0, 1, 0])
    games.step()
    assert games.envs.lengths == [1, 1, 1]


def test_an_invalid_action_is_refused_and_games_in_flight_are_closed() -> None:
    games = pool()
    with pytest.raises(EnvironmentFailure, match="not one of its 6"):
        games.envs.step(np.array([0, 6, 0]), games.obs, games.rewards, games._end)
    games.envs.reset(0, games.obs)  # the spare is being reset
    games.envs.close()


def test_a_failure_in_the_background_names_environment_and_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    games = pool()
    for _ in range(LIMIT - 1):
        games.step()

    def fails(game: Game, seed: int, resets: int) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(Game, "go_to", fails)
    for _ in range(LIMIT):  # the spares were at their starts already
        games.step()
    with pytest.raises(EnvironmentFailure, match=r"environment 0 .* in reset of episode 2: no mem"):
        games.step()


def test_resets_in_the_background_are_not_waited_for() -> None:
    games = pool()
    for _ in range(LIMIT):
        wait([start.reached for start in games.envs._next])
        games.step()
    times = games.envs.reset_times
    assert times.number == COUNT
    assert 0.0 < times.waited < times.seconds


def test_games_have_spares_where_cores_are_plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def kind(game: EnvConfig, cores: int, spares: Any = None, reseeding: Any = OFTEN) -> type:
        monkeypatch.setattr(atari_pool, "usable_cores", lambda: cores)
        envs = atari_pool.open_atari(
            game, 1, 0, reseeding=reseeding, spares=spares, report=said.append
        )
        envs.close()
        return type(envs)

    assert kind(SHORT, 16) is AtariPool
    assert kind(SHORT, 16, spares="0") is AtariEnvs
    assert kind(SHORT, 2) is AtariEnvs
    assert kind(SHORT, 2, spares="all") is AtariPool
    sticky, other = EnvConfig("ALE/Pong-v5"), EnvConfig("SeaquestNoFrameskip-v4")
    assert kind(SHORT, 16, reseeding=EVERY_EPISODE) is AtariEnvs
    assert kind(sticky, 16) is kind(other, 16) is AtariEnvs
    assert said == []
    assert kind(sticky, 16, spares="all") is AtariEnvs
    assert len(said) == 1
    assert said[0].startswith("ALE/Pong-v5 has no spare environments: an episode's start depends")
    monkeypatch.setattr(atari_pool, "memory", lambda: (2**30, 2**20))
    assert kind(SHORT, 16) is AtariEnvs
    assert "and 1 MiB are free" in said[1]


@pytest.mark.slow
def test_num_threads_limits_the_games_that_step_at_once() -> None:
    kwargs = dict(SHORT.env_kwargs) | {"num_threads": 2}
    games, slower = pool(), pool(EnvConfig(SHORT.env, sticky_actions=0, env_kwargs=kwargs))
    for _ in range(LIMIT + 3):
        assert games.step() == slower.step()
