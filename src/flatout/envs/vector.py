"""Step 5 of the data flow, inline: N environments of one Gymnasium `VectorEnv` step together.

`AtariEnvs` is one; samplers and evaluation call it as they call `HostEnvs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from flatout.envs.base import TRAINING, Ended, Envs
from flatout.envs.host import action_array, scalars
from flatout.envs.stored import stored
from flatout.errors import EnvironmentFailure, InvalidReturn, one_line
from flatout.types import ActionSpec, ContinuousSpec, Episode, ObservationSpec

KEEP_RANDOMNESS = -1
"""The seed of a reset that goes on with an environment's random numbers."""


class VectorEnvs(Envs):
    """The N environments of a `VectorEnv` with `HostEnvs`' meaning of a step; see `Envs`.

    The vector environment must reset those of its environments that `options["reset_mask"]` names,
    as Gymnasium's do in every autoreset mode: whatever it does by itself at an episode's end, the
    next episode begins with a reset with this run's seed, within the same step.

    All environments step at once. One that does not play on (see `step`) takes idle actions that
    nobody sees, and is put back to the start of its episode before it plays again.

    Where a seeded reset is expensive, `reseed_after` lets an episode that ends sooner than that
    after the last seeded start go on with the same random numbers. The next episode is then a
    function of all that happened since `origin`.

    Args:
        vector: steps them.
        obs_spec: one observation.
        action_spec: how actions are handed to them.
        reseed_after: steps after the last seeded start from which on the next episode is seeded
            again; 0 seeds every episode. For the other arguments see `Envs`.
    """

    def __init__(
        self,
        vector: Any,
        name: str,
        obs_spec: ObservationSpec,
        action_spec: ActionSpec,
        seed: int,
        stream: int = TRAINING,
        first: int = 0,
        reseed_after: int = 0,
    ) -> None:
        count = vector.num_envs
        super().__init__(count, name, seed, stream, first)
        self._vector: Any = vector
        self._dtype, self._action_spec = np.dtype(obs_spec.dtype), action_spec
        self._idle_action = idle_action(action_spec)
        self._reseed_after = reseed_after
        self._mode = (vector.metadata or {}).get("autoreset_mode")
        self._seen: Any = np.zeros(0)  # the last observations, as `vector` gives them
        self._infos: Mapping[str, Any] = {}  # of the last step
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
            EnvironmentFailure: the vector environment failed, or an action is none of its actions.
        """
        everyone = active is None or len(active) == self.num_envs
        players = self._all if everyone else list(active or ())
        self._put_back(players)
        if everyone:
            gained, terminated, truncated = self._advance(actions)
            self._write(out)
            rewards[:] = gained
        else:
            idle = np.ones(self.num_envs, np.bool_)
            idle[players] = False
            choices = np.array(actions)
            choices[idle] = self._idle_action
            gained, terminated, truncated = self._advance(choices)
            self._strayed |= idle
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
        """See `Envs.finished`; with the numbers that the environment's last `info` holds."""
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
        self, episodes: Sequence[int], actions: Sequence[np.ndarray | None], out: np.ndarray
    ) -> list[bool]:
        """See `Envs.replay_all`.

        All arrive together: the environment with the most actions begins; each of the rest takes
        idle actions until it has to begin, and is reset then.
        """
        played = {env: taken for env, taken in enumerate(actions) if taken is not None}
        total = max(map(len, played.values()), default=0)
        playing: list[int] = []
        for t in range(total + 1):
            beginners = [env for env, taken in played.items() if total - len(taken) == t]
            if beginners:
                self._begin(beginners, [episodes[env] for env in beginners], out)
                playing = sorted(playing + beginners)
            if t == total:
                break
            choices = np.stack([self._idle_action] * self.num_envs)
            for env in playing:
                taken = played[env]
                choices[env] = taken[t - total + len(taken)]
            gained, terminated, truncated = self._advance(choices)
            idle = np.ones(self.num_envs, np.bool_)
            idle[playing] = False
            self._reset_idle(idle & (terminated | truncated))
            self._count(playing, gained)
            over = [env for env in playing if terminated[env] or truncated[env]]
            # If the next episode were seeded, the actions would begin there.
            astray = [env for env in over if self._is_seeded(env)]
            playing = [env for env in playing if env not in astray]
            if len(over) > len(astray):
                self._follow([env for env in over if env not in astray], out)
        self._write(out, playing)
        self._strayed.fill(True)
        self._strayed[playing] = False
        if self.life_lost is not None:
            self.life_lost.fill(False)
        return [env in playing for env in self._all]

    def close(self) -> None:
        vector, self._vector = self._vector, None
        if vector is not None:
            vector.close()

    def failure(self, env: int, error: BaseException, call: str) -> EnvironmentFailure:
        """The sentence for an exception; env -1 where it may be of any environment."""
        which = self._which(env) if env >= 0 else f"an environment ({self._name})"
        return EnvironmentFailure(
            f"{which} raised {type(error).__name__} in {call}: {one_line(error)}."
        )

    # --- What a kind of vector environment does in its own way ---------------------------------

    def _reset_some(self, mask: np.ndarray, seeds: list[int]) -> tuple[Any, Mapping[str, Any]]:
        """Reset the environments of a mask ``[N]``, each with its seed, in increasing order."""
        given = iter(seeds)
        each = [next(given) if chosen else None for chosen in mask.tolist()]
        return self._vector.reset(seed=each, options={"reset_mask": mask})

    def _choices(self, actions: np.ndarray) -> Any:
        """Actions ``[N, ...]`` as the vector environment takes them."""
        return action_array(self._action_spec, actions)

    def _write(self, out: np.ndarray, envs: list[int] | None = None) -> None:
        """Copy the last observations to `out`, of all environments or of some."""
        seen = np.asarray(self._seen)
        if seen.shape != out.shape:
            raise InvalidReturn(
                f"{self._name} returned observations of shape {seen.shape}; its "
                f"single_observation_space and its {self.num_envs} environments say {out.shape}."
            )
        try:
            which: Any = slice(None) if envs is None else envs
            out[which] = stored(seen[which], self._dtype)
        except ValueError as error:
            raise InvalidReturn(
                f"an environment ({self._name}) returned an observation with {error}; correct the "
                "values, or its observation_space."
            ) from None

    def _final(self, env: int, out: np.ndarray) -> np.ndarray:
        """The observation with which an environment's episode ended."""
        if self._mode == AutoresetMode.SAME_STEP:
            return stored(np.asarray(self._infos["final_obs"][env]), self._dtype)
        return out[env]

    def _heed(self, info: Mapping[str, Any], stepped: bool) -> None:
        """Take what a step or a reset says beside its observations."""
        if stepped:
            self._infos = info

    # --- Inside -------------------------------------------------------------------------------

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
        self._write(out, envs)

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

    def _reset_idle(self, over: np.ndarray) -> None:
        """Reset idle environments whose episodes ended, where the next step would fail."""
        if self._mode == AutoresetMode.DISABLED and over.any():
            envs = over.nonzero()[0].tolist()
            self._restart(envs, [self._seed_of(env, max(self.episode[env], 0)) for env in envs])
            self._strayed[envs] = True

    def _restart(self, envs: list[int], seeds: list[int]) -> None:
        """Reset environments, in increasing order; the rest keep their state."""
        mask = np.zeros(self.num_envs, np.bool_)
        mask[envs] = True
        try:
            if not self._started and len(envs) < self.num_envs:
                self._vector.reset()  # its first reset must be of all
            self._started = True
            self._seen, info = self._reset_some(mask, seeds)
        except Exception as error:
            raise self.failure(envs[0] if len(envs) == 1 else -1, error, "reset") from error
        self._heed(info, stepped=False)
        self._strayed[envs] = False
        if self.life_lost is not None:
            self.life_lost[envs] = False

    def _advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step all environments; returns ``[N]`` rewards, terminated and truncated."""
        choices = self._choices(actions)
        try:
            self._seen, gained, terminated, truncated, info = self._vector.step(choices)
        except Exception as error:
            raise self.failure(-1, error, "step") from error
        ended = terminated | truncated
        self._heed(info, stepped=True)
        if self.life_lost is not None:
            self.life_lost &= ~ended
        return gained, terminated.copy(), truncated.copy()

    def _count(self, envs: list[int], gained: np.ndarray) -> None:
        points = gained.tolist()
        returns, lengths, since = self.returns, self.lengths, self.since
        for env in envs:
            returns[env] += points[env]
            lengths[env] += 1
            since[env] += 1


def idle_action(spec: ActionSpec) -> np.ndarray:
    """An action that any environment with these actions takes: the first, or the one nearest 0."""
    if isinstance(spec, ContinuousSpec):
        return np.clip(np.zeros(spec.size, np.float32), spec.low, spec.high).astype(np.float32)
    return np.zeros((), np.int32)
