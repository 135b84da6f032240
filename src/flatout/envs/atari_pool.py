"""N Atari games that step on their own, with spares that are reset while the others step.

`open_atari` chooses this class where a reset forgets what was played and cores are plenty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Literal, NamedTuple

import numpy as np

from flatout.config.schema import EnvConfig
from flatout.envs.ale import atari_specs, check_choices, open_vector, vector_settings, write_frames
from flatout.envs.ale_starts import forgets, resets_within
from flatout.envs.atari import AtariEnvs
from flatout.envs.base import TRAINING, Ended, Envs
from flatout.envs.vector import EVERY_EPISODE, KEEP_RANDOMNESS, UNKNOWN, Reseeding
from flatout.errors import EnvironmentFailure, with_full_stop
from flatout.types import Episode
from flatout_explain.hardware.cores import usable_cores
from flatout_explain.hardware.machine import memory
from flatout_explain.hardware.processes import MiB

FULL_STRENGTH = (1.0,)
SPARES_FROM = 12
"""Cores from which spares are faster. By the model of benchmarks/steps.py, their second reset for
each episode costs more with fewer cores than steps wait for resets. On 2 cores games
were measured to step at 0.82 to 0.86 of their speed with spares; on 16, PPO with 32 games was 1.19
and 1.27 times as fast."""
GAME_MB = 1.5
"""MiB of memory that one game takes."""
LEAVE_FREE = 0.1
"""Share of the available memory that spares leave free."""

SpareEnvs = Literal["all", "0"]


def open_atari(
    config: EnvConfig,
    count: int,
    seed: int,
    stream: int = TRAINING,
    reseeding: Reseeding = EVERY_EPISODE,
    first: int = 0,
    threads: int = 0,
    spares: SpareEnvs | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Envs:
    """Open `count` games: an `AtariPool`, or `AtariEnvs`, which play the same episodes.

    Args:
        config: the id and its settings.
        count: the number of games.
        reseeding, threads: see `AtariEnvs`; for the other arguments see `Envs`.
        spares: whether each game has a spare; None decides by the number of threads.
        report: receives a sentence if there can be no spares although they were asked for, or if
            memory does not suffice.

    Raises:
        UsageError: the game is unknown or a setting is impossible.
    """
    settings = vector_settings(config)
    possible = reseeding != EVERY_EPISODE and resets_within(settings) and forgets(settings)
    cores = settings["num_threads"] or threads or usable_cores()
    reason = ""
    if spares == "all" and not possible:
        reason = "an episode's start depends on what was played before, or every episode is seeded"
    elif possible and (spares == "all" or (spares is None and cores >= SPARES_FROM)):
        needed, available = count * GAME_MB, memory()[1] / MiB * (1 - LEAVE_FREE)
        if needed <= available:
            pool = AtariPool(config, count, seed, reseeding, stream, first, threads)
            pool.spares, pool.spare_mb = count, needed
            return pool
        reason = f"they need about {needed:,.0f} MiB of memory, and {available:,.0f} MiB are free"
    if reason:
        report(f"{config.env} has no spare environments: {reason}.")
    return AtariEnvs(config, count, seed, stream, reseeding, first, threads)


class Game:
    """One game in a vector environment of its own.

    Args:
        settings: those of `vector_settings`.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.ale = open_vector(settings, 1, 1).ale
        self._seed, self._resets = KEEP_RANDOMNESS, UNKNOWN

    def go_to(self, seed: int, resets: int) -> tuple[np.ndarray, int, float]:
        """Go to the state after a seeded reset and `resets` more; return the frame stack
        ``[1, S, ...]``, the lives, and how many seconds that took."""
        began = time.perf_counter()
        stack: Any = None
        info: Any = None
        if seed != self._seed or self._resets >= resets:
            stack, info = self.ale.reset((0,), (seed,))
            self._seed, self._resets = seed, 0
        while self._resets < resets:
            stack, info = self.ale.reset((0,), (KEEP_RANDOMNESS,))
            self._resets += 1
        return stack, int(info["lives"][0]), time.perf_counter() - began


class Start(NamedTuple):
    """The start of an environment's next episode, to which its spare goes in the background."""

    episode: int
    seeded: int
    reached: Future[tuple[np.ndarray, int, float]]


class AtariPool(Envs):
    """N games of one id, each with a spare that goes to the start of the next episode meanwhile.

    When an episode ends, game and spare change places. Both play the same sequence of episodes,
    every second one each, so that observations are those of `AtariEnvs`: an episode's start depends
    only on the last seeded episode and the number of resets since. A spare makes two resets for
    each episode, or a seeded one; nobody waits for them while episodes are longer.

    Args:
        config: the id and its settings; the game must be one that `forgets`.
        count: N.
        reseeding: see `VectorEnvs`. For the other arguments see `Envs`.
        threads: the number of games that step, and of spares that are reset, at the same time; 0
            means all games, and one reset per core. ``num_threads`` in `config` goes before it.

    Raises:
        UsageError: the game is unknown or a setting is impossible.
    """

    def __init__(
        self,
        config: EnvConfig,
        count: int,
        seed: int,
        reseeding: Reseeding,
        stream: int = TRAINING,
        first: int = 0,
        threads: int = 0,
    ) -> None:
        super().__init__(count, config.env, seed, stream, first)
        settings, (spec, actions, self._limit) = vector_settings(config), atari_specs(config)
        self._final = np.zeros((1, *spec.shape), np.uint8)  # the last observation of an episode
        self._num_actions, self._reseeding = actions.n, reseeding
        threads = settings["num_threads"] or threads
        self._at_once = threads or count
        self._games = [Game(settings) for _ in range(count)]
        self._spares = [Game(settings) for _ in range(count)]
        self._next: list[Start | None] = [None] * count
        self._lost = [True] * count  # in no episode
        self._background = ThreadPoolExecutor(threads or usable_cores(), "atari-reset")
        self._all = list(range(count))
        self._lives = [0] * count
        self.seeded_episode = [-1] * count
        self.life_lost = self._life_lost = np.zeros(count, np.bool_)

    def reset(self, env: int, out: np.ndarray, episode: int | None = None) -> None:
        number = self.episode[env] + 1 if episode is None else episode
        self._begin({env: (number, number)}, out)

    def reset_all(self, out: np.ndarray, episode: int | None = None) -> None:
        numbers = [last + 1 if episode is None else episode for last in self.episode]
        self._begin({env: (number, number) for env, number in enumerate(numbers)}, out)

    def step(
        self,
        actions: np.ndarray,
        out: np.ndarray,
        rewards: np.ndarray,
        ended: Ended,
        active: Sequence[int] | None = None,
    ) -> None:
        """See `Envs.step`. Games that are not active keep their state.

        Raises:
            EnvironmentFailure: a game failed, or an action is invalid.
            ValueError: an active environment is in no episode.
        """
        players = self._all if active is None else list(active)
        choices = check_choices(self._name, actions, self._num_actions).tolist()
        for env in players:
            if self._lost[env]:
                raise ValueError(f"environment {env} cannot continue from here; reset it.")
        self._life_lost.fill(False)
        over: list[tuple[int, bool, np.ndarray]] = []
        for at in range(0, len(players), self._at_once):
            some = players[at : at + self._at_once]
            for env in some:
                self._games[env].ale.send((choices[env],), FULL_STRENGTH)
            for env in some:
                before = self._lives[env]
                stack, rewards[env], terminated = self._receive(env)
                write_frames(stack, out[env : env + 1])
                if terminated or self.lengths[env] >= self._limit:
                    over.append((env, terminated, stack))
                elif self._lives[env] < before:
                    self._life_lost[env] = True
        for env, terminated, stack in over:
            write_frames(stack, self._final)
            ended(env, terminated, not terminated, self._final[0])
        began = time.perf_counter()
        took = sum(self._change_places(env, out) for env, *_ in over)
        if over:
            self._count_resets(len(over), began, took)

    def finished(self, env: int) -> Episode:
        return super().finished(env)._replace(info={"lives": float(self._lives[env])})

    def replay_all(
        self,
        seeded: Sequence[int],
        episodes: Sequence[int],
        actions: Sequence[np.ndarray | None],
        out: np.ndarray,
    ) -> list[bool]:
        """See `Envs.replay_all`."""
        self._lost = [True] * self.num_envs
        played = {env: taken.tolist() for env, taken in enumerate(actions) if taken is not None}
        self._begin({env: (episodes[env], seeded[env]) for env in played}, out)
        for t in range(max(map(len, played.values()), default=0)):
            some = [env for env, taken in played.items() if t < len(taken)]
            for env in some:
                self._games[env].ale.send((played[env][t],), FULL_STRENGTH)
            for env in some:
                stack, _, terminated = self._receive(env)
                if terminated or self.lengths[env] >= self._limit:  # it did not end there before
                    self._lost[env] = True
                    del played[env]
                elif t == len(played[env]) - 1:
                    write_frames(stack, out[env : env + 1])
        self._life_lost.fill(False)
        return [env in played for env in self._all]

    def close(self) -> None:
        """Close every game; wait for those that are being reset."""
        self._background.shutdown(cancel_futures=True)
        self._games, self._spares, self._next = [], [], []

    def _receive(self, env: int) -> tuple[np.ndarray, float, bool]:
        """Wait for a game's step and count it; return the frame stack, the reward, and whether the
        game is over."""
        try:
            stack, reward, terminated, _, info = self._games[env].ale.recv()
        except Exception as error:
            raise self._failure(env, self.episode[env], error, "step") from error
        gained = float(reward[0])
        self.returns[env] += gained
        self.lengths[env] += 1
        self._lives[env] = int(info["lives"][0])
        return stack, gained, bool(terminated[0])

    def _begin(self, starts: dict[int, tuple[int, int]], out: np.ndarray) -> None:
        """Start an episode of each environment at once: ``starts[env]`` has its number and that of
        the last seeded episode."""
        reached: dict[int, Future[tuple[np.ndarray, int, float]]] = {}
        for env, (episode, seeded) in starts.items():
            go_to, seed = self._games[env].go_to, self._seed_of(env, seeded)
            reached[env] = self._background.submit(go_to, seed, episode - seeded)
        for env, (episode, seeded) in starts.items():
            self._start(env, Start(episode, seeded, reached[env]), out)

    def _change_places(self, env: int, out: np.ndarray) -> float:
        """Continue in the spare, which is at the start of the next episode or goes there; return
        how many seconds its resets took."""
        start = self._next[env]
        assert start is not None
        self._games[env], self._spares[env] = self._spares[env], self._games[env]
        self._next[env] = None
        return self._start(env, start, out)

    def _start(self, env: int, start: Start, out: np.ndarray) -> float:
        """Wait for the start of an episode, and send the spare to the start of the one after it;
        return how many seconds the resets of the first took."""
        self.episode[env], self.seeded_episode[env] = start.episode, start.seeded
        self.lengths[env], self.returns[env] = 0, 0.0
        self._lost[env] = True
        try:
            stack, self._lives[env], took = start.reached.result()
        except Exception as error:
            raise self._failure(env, start.episode, error, "reset") from error
        write_frames(stack, out[env : env + 1])
        self._lost[env] = False
        self._life_lost[env] = False
        before, following = self._next[env], start.episode + 1
        if before is not None:
            wait([before.reached])  # a game does one thing at a time
        seeded = start.seeded
        if following - seeded >= self._reseeding.episodes:
            seeded = following
        go_to, seed = self._spares[env].go_to, self._seed_of(env, seeded)
        reached = self._background.submit(go_to, seed, following - seeded)
        self._next[env] = Start(following, seeded, reached)
        return took

    def _failure(
        self, env: int, episode: int, error: BaseException, call: str
    ) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"{self._label(env)} raised {type(error).__name__} in {call} of episode {episode}: "
            f"{with_full_stop(error)}"
        )
