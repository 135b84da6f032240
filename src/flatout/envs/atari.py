"""N Atari games stepped together in ale-py's C++ threads, with `HostEnvs`' meaning of a step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from flatout.config.schema import EnvConfig
from flatout.envs.ale import atari_specs, open_vector, vector_settings, write_frames
from flatout.envs.base import TRAINING, Ended, Envs
from flatout.envs.cropped import cropped as cropped
from flatout.errors import EnvironmentFailure, one_line
from flatout.types import Episode

NO_OP = 0
KEEP_RANDOMNESS = -1
"""AtariVectorEnv's seed for a reset that goes on with the game's random numbers."""


class AtariEnvs(Envs):
    """N games of one id; see `Envs`.

    AtariVectorEnv steps all its games at once. A game that does not play on (see `step`) makes
    no-ops that nobody sees, and is put back to the start of its episode before it plays again.

    A seeded reset makes ale-py load the ROM again, which takes as long as some 250 steps. With
    `reseed_after`, an episode that ends sooner than that after the last seeded start lets the next
    one go on with the same random numbers; it is then a function of all that happened since
    `origin`.

    Args:
        config: the id and its settings.
        reseed_after: steps after the last seeded start from which on the next episode is seeded
            again; 0 seeds every episode.
        threads: in which they step, unless the settings say; 0 takes as many as there are cores.

    Raises:
        UsageError: an unknown game or impossible settings.
    """

    def __init__(
        self,
        config: EnvConfig,
        count: int,
        seed: int,
        stream: int = TRAINING,
        reseed_after: int = 0,
        first: int = 0,
        threads: int = 0,
    ) -> None:
        super().__init__(count, config.env, seed, stream, first)
        settings = vector_settings(config)
        threads = settings["num_threads"] or threads or min(count, _cores())
        self._num_actions = atari_specs(config)[1].n
        self._reseed_after = reseed_after
        self._vector: Any = open_vector(settings, count, threads)
        self._stacks = np.zeros(0, np.uint8)  # what it last observed, [N, S, H, W]
        self._lives = np.zeros(count, np.int32)
        self.life_lost = self._lost = np.zeros(count, np.bool_)
        self._strayed = np.ones(count, np.bool_)  # not where its episode is
        self._started = False
        self._all = list(range(count))
        self.origin, self.since = [-1] * count, [0] * count

    def reset(self, env: int, out: np.ndarray, episode: int | None = None) -> None:
        self._begin([env], [self.episode[env] + 1 if episode is None else episode], out)

    def reset_all(self, out: np.ndarray, episode: int | None = None) -> None:
        numbers = [last + 1 if episode is None else episode for last in self.episode]
        self._begin(self._all, numbers, out)

    def step(
        self,
        actions: np.ndarray,
        out: np.ndarray,
        rewards: np.ndarray,
        ended: Ended,
        active: Sequence[int] | None = None,
    ) -> None:
        """See `Envs.step`.

        An environment may stop only between episodes, and go on only where every episode is seeded.

        Raises:
            EnvironmentFailure: the emulator failed, or an action is none of the game's.
        """
        everyone = active is None or len(active) == self.num_envs
        players = self._all if everyone else list(active or ())
        self._put_back(players)
        choices = np.array(actions, np.int32)
        if everyone:
            gained, terminated, truncated = self._advance(choices)
            write_frames(self._stacks, out)
            rewards[:] = gained
        else:
            idle = np.ones(self.num_envs, np.bool_)
            idle[players] = False
            choices[idle] = NO_OP
            gained, terminated, truncated = self._advance(choices)
            self._strayed |= idle
            write_frames(self._stacks, out, players)
            rewards[players] = gained[players]
            self._lost[idle] = terminated[idle] = truncated[idle] = False
        self._count(players, gained)
        over = (terminated | truncated).nonzero()[0].tolist()
        for env in over:
            ended(env, bool(terminated[env]), bool(truncated[env]), out[env])
        if over:
            self._follow(over, out)

    def finished(self, env: int) -> Episode:
        return super().finished(env)._replace(info={"lives": float(self._lives[env])})

    def replay_all(
        self, episodes: Sequence[int], actions: Sequence[np.ndarray | None], out: np.ndarray
    ) -> list[bool]:
        """See `Envs.replay_all`.

        All arrive together: the environment with the most actions begins; each of the rest makes
        no-ops until it has to begin, and is reset then.
        """
        played = {env: taken for env, taken in enumerate(actions) if taken is not None}
        total = max(map(len, played.values()), default=0)
        plan = np.full((total, self.num_envs), NO_OP, np.int32)
        for env, taken in played.items():
            plan[total - len(taken) :, env] = taken
        playing: list[int] = []
        for t in range(total + 1):
            beginners = [env for env, taken in played.items() if total - len(taken) == t]
            if beginners:
                self._begin(beginners, [episodes[env] for env in beginners], out)
                playing = sorted(playing + beginners)
            if t == total:
                break
            gained, terminated, truncated = self._advance(plan[t])
            self._count(playing, gained)
            over = [env for env in playing if terminated[env] or truncated[env]]
            # If the next episode were seeded, the actions would begin there.
            astray = [env for env in over if self._is_seeded(env)]
            playing = [env for env in playing if env not in astray]
            if len(over) > len(astray):
                self._follow([env for env in over if env not in astray], out)
        write_frames(self._stacks, out, playing)
        self._strayed.fill(True)
        self._strayed[playing] = False
        self._lost.fill(False)
        return [env in playing for env in self._all]

    def close(self) -> None:
        self._vector = None

    def failure(self, env: int, error: BaseException, call: str) -> EnvironmentFailure:
        """The sentence for an exception out of ale-py; env -1 where it may be any."""
        which = self._which(env) if env >= 0 else f"an environment ({self._name})"
        return EnvironmentFailure(
            f"{which} raised {type(error).__name__} in {call}: {one_line(error)}."
        )

    def _begin(
        self, envs: list[int], numbers: list[int], out: np.ndarray, following: bool = False
    ) -> None:
        """Start these episodes, each with its seed; those that follow others, where it is time."""
        seeds = [KEEP_RANDOMNESS] * len(envs)
        for place, (env, number) in enumerate(zip(envs, numbers, strict=True)):
            if not following or self._is_seeded(env):
                seeds[place] = self._seed_of(env, number)
                self.origin[env], self.since[env] = number, 0
            self.episode[env] = number
            self.lengths[env], self.returns[env] = 0, 0.0
        self._restart(envs, seeds)
        write_frames(self._stacks, out, envs)

    def _follow(self, envs: list[int], out: np.ndarray) -> None:
        """Start the episodes after those that ended."""
        self._begin(envs, [self.episode[env] + 1 for env in envs], out, following=True)

    def _is_seeded(self, env: int) -> bool:
        """Whether an episode that began now would be seeded."""
        return self.since[env] >= self._reseed_after

    def _put_back(self, envs: list[int]) -> None:
        """Return those that strayed to the start of their episodes."""
        if not self._strayed[envs].any():
            return
        astray = [env for env in envs if self._strayed[env]]
        for env in astray:
            if self.episode[env] < 0 or self.since[env]:
                raise ValueError(f"environment {env} cannot go on from here; reset it.")
        self._restart(astray, [self._seed_of(env, self.episode[env]) for env in astray])

    def _restart(self, envs: list[int], seeds: list[int]) -> None:
        """Reset games, in increasing order; the rest keep their state."""
        mask = np.zeros(self.num_envs, np.bool_)
        mask[envs] = True
        try:
            if not self._started and len(envs) < self.num_envs:
                self._vector.reset()  # its first reset must be of all
            self._started = True
            self._stacks, info = self._vector.reset(
                seed=np.array(seeds), options={"reset_mask": mask}
            )
        except Exception as error:
            raise self.failure(envs[0] if len(envs) == 1 else -1, error, "reset") from error
        self._lives = info["lives"]
        self._lost[envs] = self._strayed[envs] = False

    def _advance(self, choices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step all games; returns ``[N]`` rewards, terminated and truncated."""
        if choices.min() < 0 or choices.max() >= self._num_actions:
            # Its thread would fail, and the step never end.
            raise EnvironmentFailure(
                f"an action for {self._name} is none of its {self._num_actions}: {choices.tolist()}"
            )
        try:
            self._stacks, gained, terminated, truncated, info = self._vector.step(choices)
        except Exception as error:
            raise self.failure(-1, error, "step") from error
        np.less(info["lives"], self._lives, out=self._lost)
        self._lost &= ~(terminated | truncated)
        self._lives = info["lives"]
        return gained, terminated, truncated

    def _count(self, envs: list[int], gained: np.ndarray) -> None:
        points = gained.tolist()
        returns, lengths, since = self.returns, self.lengths, self.since
        for env in envs:
            returns[env] += points[env]
            lengths[env] += 1
            since[env] += 1


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
