"""Step 5 of the data flow, inline: N environments of one Gymnasium `VectorEnv` step together.

Samplers and evaluation call it as they call `HostEnvs`. `AtariEnvs` is a subclass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from flatout import tree
from flatout.casts import stored
from flatout.envs.base import TRAINING, Ended, Envs
from flatout.envs.host import scalars
from flatout.envs.spaces import flattened, structure
from flatout.errors import EnvironmentFailure, InvalidReturn, one_line
from flatout.types import ActionSpec, Episode, Obs, ObsSpec

KEEP_RANDOMNESS = -1
"""The seed of a reset after which an environment's random numbers continue."""


class VectorEnvs(Envs):
    """The N environments of a `VectorEnv`, whose steps mean the same as those of `HostEnvs`.

    The vector environment must reset the environments that `options["reset_mask"]` selects, as
    Gymnasium's do in every autoreset mode. Whatever it does by itself at the end of an episode, the
    next episode begins within the same step, with a reset with this run's seed.

    All environments step at once. An environment that is not active (see `step`) takes idle actions
    whose results are dropped. Before it becomes active again, it is reset to the start of its
    episode.

    If a seeded reset is expensive, `reseed_after` makes such resets rarer. When an episode ends
    fewer than `reseed_after` steps after the last seeded reset, the environment's random numbers
    continue in the next episode, which then depends on everything since episode `seeded_episode`.

    Args:
        vector: the vector environment.
        obs_spec: the spec of one observation.
        action_spec: the spec of one action, which decides how actions are converted.
        reseed_after: after this many steps since a seeded reset, the next reset is seeded again;
            0 seeds every episode. For the other arguments see `Envs`.
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
        reseed_after: int = 0,
    ) -> None:
        count = vector.num_envs
        super().__init__(count, name, seed, stream, first)
        self._vector: Any = vector
        self._spec, self._action_spec = obs_spec, action_spec
        self._nesting = structure(obs_spec)
        self._idle_action = action_spec.idle()
        self._reseed_after = reseed_after
        self._mode = (vector.metadata or {}).get("autoreset_mode")
        self._seen: Any = np.zeros(0)  # the last observations, as `vector` returned them
        self._infos: Mapping[str, Any] = {}  # the info of the last step
        self._out_of_sync = np.ones(count, np.bool_)  # not in the state of its episode: reset it
        self._started = False
        self._all = list(range(count))
        self.seeded_episode, self.steps_since_seed = [-1] * count, [0] * count

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
        if everyone:
            gained, terminated, truncated = self._advance(actions)
            self._write(out)
            rewards[:] = gained
        else:
            idle = self._all_but(players)
            choices = np.array(actions)
            choices[idle] = self._idle_action
            gained, terminated, truncated = self._advance(choices)
            self._out_of_sync |= idle
            self._write(out, players)
            rewards[players] = gained[players]
            self._reset_idle(idle & (terminated | truncated))
            if self.life_lost is not None:
                self.life_lost[idle] = False
            terminated[idle] = truncated[idle] = False
        self._count(players, gained)
        over = (terminated | truncated).nonzero()[0].tolist()
        for env in over:
            ended(env, bool(terminated[env]), bool(truncated[env]), self._final(env, out))
        if over:
            self._follow(over, out)

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
        self, episodes: Sequence[int], actions: Sequence[np.ndarray | None], out: Obs
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
        playing: list[int] = []
        for t in range(total + 1):
            beginners = [env for env, taken in played.items() if total - len(taken) == t]
            if beginners:
                self._begin(beginners, [episodes[env] for env in beginners], out)
                playing = sorted(playing + beginners)
            if t == total:
                break
            gained, terminated, truncated = self._advance(plan[t])
            self._reset_idle(self._all_but(playing) & (terminated | truncated))
            self._count(playing, gained)
            over = [env for env in playing if terminated[env] or truncated[env]]
            # The actions begin at the last seeded reset: if another is due, the replay has failed.
            astray = [env for env in over if self._is_seeded(env)]
            playing = [env for env in playing if env not in astray]
            if len(over) > len(astray):
                self._follow([env for env in over if env not in astray], out)
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
            f"{which} raised {type(error).__name__} in {call}: {one_line(error)}."
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

    def _write(self, out: Obs, envs: list[int] | None = None) -> None:
        """Copy the last observations of `envs` to `out`; None copies those of all environments."""
        which: Any = slice(None) if envs is None else envs
        for path, seen in flattened(self._seen, self._nesting):
            array, target = np.asarray(seen), out[path] if path else out
            if array.shape != target.shape:
                raise InvalidReturn(
                    f"{self._name} returned observations of shape {array.shape}; its "
                    f"single_observation_space and its {self.num_envs} environments say "
                    f"{target.shape}."
                )
            try:
                target[which] = stored(array[which], target.dtype)
            except ValueError as error:
                raise InvalidReturn(
                    f"an environment ({self._name}) returned an observation with {error}; correct "
                    "the values, or its observation_space."
                ) from None

    def _final(self, env: int, out: Obs) -> Obs:
        """Return the observation with which an environment's episode ended."""
        if self._mode != AutoresetMode.SAME_STEP:
            return tree.take(out, env)
        final = flattened(self._infos["final_obs"][env], self._nesting)
        arrays = {path: np.asarray(array) for path, array in final}
        if isinstance(self._spec, dict):
            return {path: stored(arrays[path], spec.dtype) for path, spec in self._spec.items()}
        return stored(arrays[""], self._spec.dtype)

    def _save_info(self, info: Mapping[str, Any], stepped: bool) -> None:
        """Save the parts of an info that are needed later; it is a reset's if not `stepped`."""
        if stepped:
            self._infos = info

    # --- Private methods ----------------------------------------------------------------------

    def _begin(
        self, envs: list[int], numbers: list[int], out: Obs, following: bool = False
    ) -> None:
        """Start the episodes `numbers` of `envs` and write their first observations. Resets
        are seeded; with `following`, only those that `reseed_after` requires."""
        seeds = [KEEP_RANDOMNESS] * len(envs)
        for index, (env, number) in enumerate(zip(envs, numbers, strict=True)):
            if not following or self._is_seeded(env):
                seeds[index] = self._seed_of(env, number)
                self.seeded_episode[env], self.steps_since_seed[env] = number, 0
            self.episode[env] = number
            self.lengths[env], self.returns[env] = 0, 0.0
        self._restart(envs, seeds)
        self._write(out, envs)

    def _follow(self, envs: list[int], out: Obs) -> None:
        """Start the next episode of each of `envs`, whose episodes ended."""
        self._begin(envs, [self.episode[env] + 1 for env in envs], out, following=True)

    def _is_seeded(self, env: int) -> bool:
        """Return whether an episode that begins now would be seeded."""
        return self.steps_since_seed[env] >= self._reseed_after

    def _all_but(self, envs: list[int]) -> np.ndarray:
        """Return the mask ``[N]`` of all environments except `envs`."""
        mask = np.ones(self.num_envs, np.bool_)
        mask[envs] = False
        return mask

    def _resync(self, envs: list[int]) -> None:
        """Of `envs`, reset those that took idle actions to the start of their episodes."""
        if not self._out_of_sync[envs].any():
            return
        astray = [env for env in envs if self._out_of_sync[env]]
        for env in astray:
            if self.episode[env] < 0 or self.steps_since_seed[env]:
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
        self._save_info(info, stepped=False)
        self._out_of_sync[envs] = False
        if self.life_lost is not None:
            self.life_lost[envs] = False

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step all environments; return rewards, terminated and truncated, ``[N]`` each."""
        choices = self._choices(actions)
        try:
            self._seen, gained, terminated, truncated, info = self._vector.step(choices)
        except Exception as error:
            raise self.failure(-1, error, "step") from error
        ended = terminated | truncated
        self._save_info(info, stepped=True)
        if self.life_lost is not None:
            self.life_lost &= ~ended
        return gained, terminated.copy(), truncated.copy()

    def _count(self, envs: list[int], gained: np.ndarray) -> None:
        points = gained.tolist()
        returns, lengths, steps_since_seed = self.returns, self.lengths, self.steps_since_seed
        for env in envs:
            returns[env] += points[env]
            lengths[env] += 1
            steps_since_seed[env] += 1
