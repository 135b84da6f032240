"""Step 5 of the data flow, inline: N environments of one Gymnasium `VectorEnv` step together.

Samplers and evaluation call it as they call `HostEnvs`. `AtariEnvs` is a subclass.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from operator import add
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from flatout.envs.base import TRAINING, Ended, Envs
from flatout.envs.batched_obs import BatchedObs
from flatout.envs.host import scalars
from flatout.errors import EnvironmentFailure, with_full_stop
from flatout.types import ActionSpec, Episode, Obs, ObsSpec

KEEP_RANDOMNESS = -1
"""The seed of a reset after which an environment's random numbers continue."""

IDLE_STEPS_PER_RESET = 100
"""While environments wait in a replay, at most one episode of idle actions is expected to end in
this number of steps; more only cost time."""

UNKNOWN = 2**62
"""The number of resets of an environment that has to be seeded."""


class Reseeding(NamedTuple):
    """When an environment whose seeded resets are expensive is seeded again: at the first episode
    that begins this many steps or episodes after the last seeded reset; 0 seeds every episode.
    `VectorEnvs` says which of the two numbers applies."""

    steps: int = 0
    episodes: int = 0


EVERY_EPISODE = Reseeding()

RARELY = Reseeding(steps=16_000, episodes=200)
"""When Atari games are seeded again. While one is, all wait for as long as 200 of its steps take;
another reset takes as long as 15. A run that resumes repeats the resets, or the steps, since then:
at most 0.9 s of one core for each game, or 6 s."""


class VectorEnvs(Envs):
    """The N environments of a `VectorEnv`, whose steps mean the same as those of `HostEnvs`.

    The vector environment must reset the environments that `options["reset_mask"]` selects, as
    Gymnasium's do in every autoreset mode. Whatever it does by itself at the end of an episode, the
    next episode begins within the same step. Its reset has this run's seed, unless `reseeding` says
    that random numbers continue; in mode SAME_STEP that reset is the vector environment's own.

    All environments step at once. An environment that is not active (see `step`) takes idle actions
    whose results are dropped. Before it becomes active again, it is reset to the start of its
    episode.

    If a seeded reset is expensive, `reseeding` makes such resets rarer; in other episodes the
    environment's random numbers continue.

    * Usually such an episode depends on everything since episode `seeded_episode`. The environment
      is seeded again after ``reseeding.steps`` steps, and replay repeats all actions since then.
    * With `forgetful`, only resets draw random numbers, and what was played leaves no trace. Such
      an episode depends on `seeded_episode` and on the number of resets since. The environment is
      seeded again after ``reseeding.episodes`` episodes, and replay repeats the resets and the
      current episode's actions.

    Args:
        vector: the vector environment.
        obs_spec: the spec of one observation.
        action_spec: the spec of one action, which decides how actions are converted.
        reseeding: when an environment is seeded again.
        forgetful: see above; the mode must be SAME_STEP, unless every episode is seeded. For the
            other arguments see `Envs`.
    """

    def __init__(
        self,
        vector: Any,
        name: str,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        seed: int,
        stream: int = TRAINING,
        first: int = 0,
        reseeding: Reseeding = EVERY_EPISODE,
        forgetful: bool = False,
    ) -> None:
        count = vector.num_envs
        super().__init__(count, name, seed, stream, first)
        self._vector: Any = vector
        self._action_spec = action_spec
        self._batch = BatchedObs(name, obs_spec, count)
        self._idle_action = action_spec.idle()
        self._reseeding, self._forgetful = reseeding, forgetful
        self._mode = (vector.metadata or {}).get("autoreset_mode")
        self._seen: Any = np.zeros(0)  # the last observations, as `vector` returned them
        self._infos: Mapping[str, Any] = {}  # the info of the last step
        self._out_of_sync = np.ones(count, np.bool_)  # not in the state of its episode: reset it
        # Whose next episode `vector` has begun in the last step; `_begin` clears it.
        self._begun_within = np.zeros(count, np.bool_)
        self._resets = [UNKNOWN] * count  # unseeded resets since the seeded one
        self._started = False
        self._repeats = not forgetful  # whether replay needs more than an episode's own actions
        self._all = list(range(count))
        self.seeded_episode = [-1] * count
        if not forgetful:
            self.steps_to_replay = [0] * count

    def reset(self, env: int, out: Obs, episode: int | None = None) -> None:
        self._begin([env], [self.episode[env] + 1 if episode is None else episode], out)

    def reset_all(self, out: Obs, episode: int | None = None) -> None:
        numbers = [last + 1 if episode is None else episode for last in self.episode]
        self._begin(self._all, numbers, out)

    def step(
        self,
        actions: np.ndarray,
        out: Obs,
        rewards: np.ndarray,
        ended: Ended,
        active: Sequence[int] | None = None,
    ) -> None:
        """See `Envs.step`.

        An environment may become inactive only between episodes, and active again only if every
        episode is seeded.

        Raises:
            EnvironmentFailure: the vector environment failed, or an action is invalid.
            ValueError: an environment became inactive within an episode.
        """
        everyone = active is None or len(active) == self.num_envs
        players = self._all if everyone else list(active or ())
        self._resync(players)
        idle_over: np.ndarray | None = None
        if everyone:
            gained, terminated, truncated = self._advance(actions)
            self._write(out)
            rewards[:] = gained
        else:
            idle = self._all_but(players)
            gained, terminated, truncated = self._advance(self._idled(actions, idle))
            self._out_of_sync |= idle
            self._write(out, players)
            rewards[players] = gained[players]
            idle_over = idle & (terminated | truncated)
            if self.life_lost is not None:
                self.life_lost[idle] = False
            terminated, truncated = terminated & ~idle, truncated & ~idle
        self._count(players, gained)
        over = (terminated | truncated).nonzero()[0].tolist()
        for env in over:
            ended(env, bool(terminated[env]), bool(truncated[env]), self._final(env, out))
        if idle_over is not None:  # last: a reset may write to the arrays that the step returned
            self._reset_idle(idle_over)
        if over:
            began = time.perf_counter()
            if made := self._follow(over, out):
                self._count_resets(made, began)

    def finished(self, env: int) -> Episode:
        """See `Envs.finished`; the episode's `info` holds the numbers of the final `info`."""
        infos = self._infos
        if self._mode == AutoresetMode.SAME_STEP:
            infos = infos.get("final_info", {})
        mine = {
            name: values[env]
            for name, values in infos.items()
            if f"_{name}" in infos and infos[f"_{name}"][env]
        }
        return super().finished(env)._replace(info=scalars(mine))

    def replay_all(
        self,
        seeded: Sequence[int],
        episodes: Sequence[int],
        actions: Sequence[np.ndarray | None],
        out: Obs,
    ) -> list[bool]:
        """See `Envs.replay_all`.

        All environments finish at the same step. The one with the most actions begins; each of the
        others takes idle actions until as many steps are left as it has actions, and is then reset.
        """
        played = {env: taken for env, taken in enumerate(actions) if taken is not None}
        total = max(map(len, played.values()), default=0)
        plan = np.stack([self._idle_action] * self.num_envs)[None].repeat(total, 0)
        for env, taken in played.items():
            plan[total - len(taken) :, env] = taken
        first = {env: episodes[env] if self._forgetful else seeded[env] for env in played}
        resets = {env: number - seeded[env] for env, number in first.items()}
        self._resets = [UNKNOWN] * self.num_envs
        # Most resets come first, because all environments make them at the same time. Those that
        # are left also cover resets of episodes that end while an environment waits.
        early = {
            env: count - 1 - (total - len(played[env])) // IDLE_STEPS_PER_RESET
            for env, count in resets.items()
        }
        self._rewind({env: count for env, count in early.items() if count > 0}, seeded)
        playing: list[int] = []
        for t in range(total + 1):
            beginners = [env for env, taken in played.items() if total - len(taken) == t]
            if beginners:
                self._rewind({env: resets[env] for env in beginners}, seeded)
                for env in beginners:
                    self._number(env, first[env], seeded[env])
                playing = sorted(playing + beginners)
            if t == total:
                break
            waiting = self._all_but(playing)
            gained, terminated, truncated = self._advance(self._idled(plan[t], waiting))
            self._count(playing, gained)
            over = [env for env in playing if terminated[env] or truncated[env]]
            # The actions begin at the last seeded reset, or at the start of this episode: if an
            # episode ends after which they would not continue, the replay has failed.
            astray = [env for env in over if self._forgetful or self._is_seeded(env)]
            playing = [env for env in playing if env not in astray]
            self._reset_idle(self._all_but(playing) & (terminated | truncated))
            if len(over) > len(astray):
                self._follow([env for env in over if env not in astray], out)
        if playing:  # else there may not even be observations yet
            self._write(out, playing)
        self._out_of_sync.fill(True)
        self._out_of_sync[playing] = False
        if self.life_lost is not None:
            self.life_lost.fill(False)
        return [env in playing for env in self._all]

    def close(self) -> None:
        vector, self._vector = self._vector, None
        if vector is not None:
            vector.close()

    def failure(self, env: int, error: BaseException, call: str) -> EnvironmentFailure:
        """Return the error for an exception; env is -1 if any environment may have raised it."""
        which = self._label(env) if env >= 0 else f"an environment ({self._name})"
        return EnvironmentFailure(
            f"{which} raised {type(error).__name__} in {call}: {with_full_stop(error)}"
        )

    # --- Methods that subclasses override ------------------------------------------------------

    def _reset_some(self, mask: np.ndarray, seeds: list[int]) -> tuple[Any, Mapping[str, Any]]:
        """Reset the environments of a mask ``[N]``; `seeds` has one seed for each, in order."""
        given = iter(seeds)
        each = [next(given) if chosen else None for chosen in mask.tolist()]
        each = [None if seed == KEEP_RANDOMNESS else seed for seed in each]
        return self._vector.reset(seed=each, options={"reset_mask": mask})

    def _choices(self, actions: np.ndarray) -> Any:
        """Convert actions ``[N, ...]`` to what the vector environment takes."""
        return self._action_spec.to_env(actions)

    def _idled(self, actions: np.ndarray, idle: np.ndarray) -> np.ndarray:
        """Return actions ``[N, ...]`` in which the environments of a mask idle."""
        actions = np.array(actions)
        actions[idle] = self._idle_action
        return actions

    def _play(self, choices: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Any]:
        """Step the vector environment."""
        return self._vector.step(choices)

    def _write(self, out: Obs, envs: list[int] | None = None) -> None:
        """Copy the last observations of `envs` to `out`; None copies those of all environments."""
        self._batch.write(self._seen, out, envs)

    def _final(self, env: int, out: Obs) -> Obs:
        """Return the observation with which an environment's episode ended."""
        if not self._begun_within[env]:
            return self._batch.row(self._seen, env)
        return self._batch.final(self._infos["final_obs"], env)

    def _save_info(self, info: Mapping[str, Any], stepped: bool) -> None:
        """Save the parts of an info that are needed later; it is a reset's if not `stepped`."""
        if stepped:
            self._infos = info

    # --- Private methods ----------------------------------------------------------------------

    def _begin(self, envs: list[int], numbers: list[int], out: Obs, following: bool = False) -> int:
        """Start the episodes `numbers` of `envs` and write their first observations. Resets
        are seeded; with `following`, only those that `reseeding` requires. Return how many resets
        were made, in addition to those within the last step."""
        seeds: dict[int, int] = {}
        for env, number in zip(envs, numbers, strict=True):
            if not following or self._is_seeded(env):
                seeds[env] = self._seed_of(env, number)
                self._number(env, number, number)
                continue
            if not self._begun_within[env]:
                seeds[env] = KEEP_RANDOMNESS
            self._number(env, number, self.seeded_episode[env])
        self._begun_within[envs] = False
        if seeds:
            self._restart(list(seeds), list(seeds.values()))
            self._write(out, list(seeds))
        return len(seeds)

    def _number(self, env: int, episode: int, seeded: int) -> None:
        """Set the numbers of an episode that begins, and of the last seeded one."""
        if episode == seeded:
            self.steps_to_replay[env] = 0
        self.episode[env], self.seeded_episode[env] = episode, seeded
        self.lengths[env], self.returns[env] = 0, 0.0

    def _follow(self, envs: list[int], out: Obs) -> int:
        """Start the next episode of each of `envs`, whose episodes ended; return as `_begin`."""
        return self._begin(envs, [self.episode[env] + 1 for env in envs], out, following=True)

    def _is_seeded(self, env: int) -> bool:
        """Return whether the next episode would be seeded if it began now."""
        if self._forgetful:
            episodes = self.episode[env] + 1 - self.seeded_episode[env]
            return episodes >= self._reseeding.episodes
        return self.steps_to_replay[env] >= self._reseeding.steps

    def _rewind(self, resets: Mapping[int, int], seeded: Sequence[int]) -> None:
        """Bring environments to the states after the seeded reset of `seeded` and ``resets[env]``
        more. One that has made fewer resets since, and waits, continues from there."""
        envs = [env for env, count in resets.items() if self._resets[env] >= count]
        if envs:
            self._restart(envs, [self._seed_of(env, seeded[env]) for env in envs])
        while envs := [env for env, count in resets.items() if self._resets[env] < count]:
            self._restart(envs, [KEEP_RANDOMNESS] * len(envs))

    def _all_but(self, envs: list[int]) -> np.ndarray:
        """Return the mask ``[N]`` of all environments except `envs`."""
        mask = np.ones(self.num_envs, np.bool_)
        mask[envs] = False
        return mask

    def _resync(self, envs: list[int]) -> None:
        """Of `envs`, reset those that took idle actions to the start of their episodes."""
        if not self._out_of_sync.any() or not self._out_of_sync[envs].any():
            return
        astray = [env for env in envs if self._out_of_sync[env]]
        for env in astray:
            if self.steps_to_replay[env] or not 0 <= self.episode[env] == self.seeded_episode[env]:
                raise ValueError(f"environment {env} cannot continue from here; reset it.")
        self._restart(astray, [self._seed_of(env, self.episode[env]) for env in astray])

    def _reset_idle(self, over: np.ndarray) -> None:
        """Reset idle environments whose episodes ended (`over`) if `vector` does not reset them
        itself: otherwise its next step would fail."""
        if self._mode == AutoresetMode.DISABLED and over.any():
            envs = over.nonzero()[0].tolist()
            self._restart(envs, [self._seed_of(env, max(self.episode[env], 0)) for env in envs])
            self._out_of_sync[envs] = True

    def _restart(self, envs: list[int], seeds: list[int]) -> None:
        """Reset `envs`, given in increasing order; the other environments keep their state."""
        mask = np.zeros(self.num_envs, np.bool_)
        mask[envs] = True
        try:
            if not self._started and len(envs) < self.num_envs:
                self._vector.reset()  # the first reset must reset all environments
            self._started = True
            self._seen, info = self._reset_some(mask, seeds)
        except Exception as error:
            raise self.failure(envs[0] if len(envs) == 1 else -1, error, "reset") from error
        for env, seed in zip(envs, seeds, strict=True):
            self._resets[env] = self._resets[env] + 1 if seed == KEEP_RANDOMNESS else 0
        self._save_info(info, stepped=False)
        self._out_of_sync[envs] = False
        if self.life_lost is not None:
            self.life_lost[envs] = False

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step all environments; return rewards, terminated and truncated, ``[N]`` each."""
        choices = self._choices(actions)
        try:
            self._seen, gained, terminated, truncated, info = self._play(choices)
        except Exception as error:
            raise self.failure(-1, error, "step") from error
        if self._mode == AutoresetMode.SAME_STEP:
            self._begun_within = terminated | truncated
            for env in self._begun_within.nonzero()[0].tolist():
                self._resets[env] += 1
        self._save_info(info, stepped=True)
        if self.life_lost is not None:
            self.life_lost &= ~(terminated | truncated)
        return gained, terminated, truncated

    def _count(self, envs: list[int], gained: np.ndarray) -> None:
        points = gained.tolist()
        returns, lengths, steps_to_replay = self.returns, self.lengths, self.steps_to_replay
        if envs is self._all:  # in one pass each: a loop takes twice as long
            returns[:] = map(add, returns, points)
            lengths[:] = [length + 1 for length in lengths]
            if self._repeats:
                steps_to_replay[:] = [steps + 1 for steps in steps_to_replay]
            return
        for env in envs:
            returns[env] += points[env]
            lengths[env] += 1
            if self._repeats:
                steps_to_replay[env] += 1
