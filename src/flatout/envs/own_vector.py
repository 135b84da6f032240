"""Step 5 of the data flow, inline: the environments of a user's `VectorEnv`, whose values are
checked like those of single environments."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from flatout.actions import allowed, forbids_all
from flatout.envs.base import TRAINING
from flatout.envs.deadline import CLOSE_S, close_in_time
from flatout.envs.host import LARGEST, UnreadMask, too_large
from flatout.envs.mask_places import IGNORE, MASKS, info_masks
from flatout.envs.masks import STUCK
from flatout.envs.prepared_vector import FINAL, FINAL_INFO
from flatout.envs.vector import KEEP_RANDOMNESS, VectorEnvs
from flatout.envs.vector_kind import Resets, cannot_reset_alone
from flatout.errors import EnvironmentFailure, InvalidReturn, one_line, raised_at, short
from flatout.output import say
from flatout.types import ActionSpec, Obs, ObsSpec, mask_path


class OwnVectorEnvs(VectorEnvs):
    """The N environments of a user's vector environment; see `VectorEnvs`.

    If it takes no seed for each environment, episodes follow from a seed for all of them: an
    episode is not reproduced from its number and actions, and `replay_all` begins new episodes. If
    its reset ignores a mask, all environments are reset or none: either its mode is SAME_STEP, or
    their episodes end at the same time, and they are then reset within the step.

    Args:
        vector: the vector environment; see `flatout.envs.vector_kind.checked`.
        resets: how its environments are reset.
        ignore_masks: ignore masks in infos. For the other arguments see `Envs`.
    """

    def __init__(
        self,
        vector: Any,
        resets: Resets,
        name: str,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        seed: int,
        stream: int = TRAINING,
        first: int = 0,
        ignore_masks: bool = False,
    ) -> None:
        super().__init__(vector, name, obs_spec, action_spec, seed, stream, first)
        self._how, self._mask = resets, mask_path(obs_spec)
        self._ignore_masks = ignore_masks or bool(self._mask)
        if resets.together:
            self._mode = AutoresetMode.SAME_STEP
        self._over = np.zeros(self.num_envs, np.bool_)  # ended, and not yet reset
        self._fresh = np.zeros(self.num_envs, np.bool_)  # not stepped since its episode began
        self._repeats = resets.seeded  # otherwise no actions are kept

    @property
    def replays(self) -> bool:
        """Whether episodes are reproduced from their seeds and actions."""
        return self._how.seeded

    def replay_all(
        self,
        seeded: Sequence[int],
        episodes: Sequence[int],
        actions: Sequence[np.ndarray | None],
        out: Obs,
    ) -> list[bool]:
        """See `Envs.replay_all`; without a seed for each environment, none is reproduced."""
        if self._how.seeded:
            return super().replay_all(seeded, episodes, actions, out)
        self.reset_all(out, max(episodes) + 1)
        return [False] * self.num_envs

    def close(self) -> None:
        """Close the vector environment. The limit is `CLOSE_S`."""
        close_in_time(
            super().close, CLOSE_S, self._name, lambda error: say(self.failure(-1, error, "close"))
        )

    def failure(self, env: int, error: BaseException, call: str) -> EnvironmentFailure:
        """Return the error for an exception, with its file and line; see `VectorEnvs.failure`."""
        if isinstance(error, EnvironmentFailure):
            return error
        which = self._label(env) if env >= 0 else self._name
        return EnvironmentFailure(
            f"{which} raised {type(error).__name__} in {call}: {one_line(error)} "
            f"({raised_at(error)})."
        )

    # --- Methods of `VectorEnvs` ----------------------------------------------------------------

    def _restart(self, envs: list[int], seeds: list[int]) -> None:
        alone = len(envs) < self.num_envs
        if alone and not self._how.seeded and self._fresh[envs].all():
            self._out_of_sync[envs] = False
            return  # their episodes have begun, and no seed could make them others
        if alone and not self._how.masked:
            if self._started:
                raise EnvironmentFailure(cannot_reset_alone(self._name))
            envs, seeds = self._all, [seeds[0]] * self.num_envs
        super()._restart(envs, seeds)
        self._fresh[envs], self._over[envs] = True, False

    def _reset_some(self, mask: np.ndarray, seeds: list[int]) -> tuple[Any, Mapping[str, Any]]:
        if self._how.seeded and not (mask.all() and not self._how.masked):
            result = super()._reset_some(mask, seeds)
        elif mask.all():
            seed = None if seeds[0] == KEEP_RANDOMNESS else seeds[0]
            result = self._vector.reset(seed=seed)
        else:
            result = self._vector.reset(options={"reset_mask": mask})
        if not isinstance(result, tuple) or len(result) != 2:
            raise InvalidReturn(
                f"{self._name} did not return 2 values (observations, infos) from reset, but "
                f"{short(result)}."
            )
        self._check_info(result[1], "reset")
        return result

    def _play(self, choices: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Any]:
        result = self._vector.step(choices)
        if not isinstance(result, tuple) or len(result) != 5:
            raise InvalidReturn(
                f"{self._name} did not return 5 values (observations, rewards, terminations, "
                f"truncations, infos) from step, but {short(result)}."
            )
        obs, rewards, terminated, truncated, info = result
        rewards = self._column("rewards", rewards, "fiub")
        if rewards.dtype.kind == "f" and not np.abs(rewards).max() < LARGEST:
            self._refuse_too_large(rewards)
        terminated = self._flags("terminations", terminated)
        truncated = self._flags("truncations", truncated)
        self._check_info(info, "step")
        ended = terminated | truncated
        within = self._mode == AutoresetMode.SAME_STEP
        self._fresh[:], self._over = (ended, self._over) if within else (False, ended)
        if ended.any():
            self._check_final(info, ended)
            if self._how.together:
                kept = rewards, terminated, truncated, obs, self._columns(info)
                rewards, terminated, truncated, *last = (_copy(one) for one in kept)
                obs, info = self._reset_together(ended, *last)
            elif within:
                info = {**info, FINAL_INFO: self._columns(info.get(FINAL_INFO))}
            else:
                info = self._columns(info)
        return obs, rewards, terminated, truncated, info

    def _reset_together(
        self, ended: np.ndarray, final: Any, info: Mapping[str, Any]
    ) -> tuple[Any, Mapping[str, Any]]:
        """Reset all environments, whose episodes ended with the observations `final` and `info`, as
        one of mode SAME_STEP does within its step. It may write to arrays that the step returned.
        """
        if not ended.all():
            raise EnvironmentFailure(cannot_reset_alone(self._name))
        return self._vector.reset()[0], {FINAL: final, FINAL_INFO: info}

    def _columns(self, info: Any) -> dict[str, Any]:
        """Return the entries of infos that have one value for each environment, with the entries
        that say which values count (``_name``). Nested infos are left out."""
        found: dict[str, Any] = {}
        for name, values in info.items() if isinstance(info, Mapping) else ():
            counts = info.get(f"_{name}")
            if _shape(counts) == (self.num_envs,) == _shape(values):
                found |= {name: values, f"_{name}": counts}
        return found

    def _idled(self, actions: np.ndarray, idle: np.ndarray) -> np.ndarray:
        actions = super()._idled(actions, idle)
        if self._mask and idle.any():
            actions[idle] = allowed(
                np, self._action_spec, np.asarray(self._seen[self._mask])[idle], actions[idle]
            )
        return actions

    def _write(self, out: Obs, envs: list[int] | None = None) -> None:
        super()._write(out, envs)
        if self._mask:
            stuck = forbids_all(np, self._action_spec, np.asarray(self._seen[self._mask]))
            if (stuck & ~self._over).any():
                env = int((stuck & ~self._over).argmax())
                step = 0 if self._fresh[env] else self.lengths[env] + 1
                raise self._invalid_mask(env, STUCK, self.episode[env], step)

    def _is_seeded(self, env: int) -> bool:
        return self._how.seeded and super()._is_seeded(env)

    # --- Checks ---------------------------------------------------------------------------------

    def _column(self, what: str, values: Any, kinds: str) -> np.ndarray:
        """Return one number for each environment as an array."""
        array = np.asarray(values)
        if array.shape != (self.num_envs,) or array.dtype.kind not in kinds:
            raise self._invalid(
                f"{what} of shape {array.shape} and type {array.dtype} from step, which have to be "
                f"one for each of its num_envs = {self.num_envs} environments"
            )
        return array

    def _flags(self, what: str, values: Any) -> np.ndarray:
        flags = self._column(what, values, "biuf")
        if flags.dtype != np.bool_ and not ((flags == 0) | (flags == 1)).all():
            raise self._invalid(f"{what} {short(values)} from step, which are not True or False")
        return flags.astype(np.bool_, copy=False)

    def _refuse_too_large(self, rewards: np.ndarray) -> None:
        """Refuse finite rewards that float32 cannot hold; see `HostEnvs`."""
        large = np.isfinite(rewards) & (np.abs(rewards) >= LARGEST)
        if large.any():
            env = int(large.argmax())
            raise too_large(self._label(env), float(rewards[env]))

    def _check_info(self, info: Any, call: str) -> None:
        if not isinstance(info, Mapping):
            raise self._invalid(f"infos {short(info)} from {call}, which have to be a dict")
        if not self._ignore_masks and (MASKS[0] in info or MASKS[1] in info):
            raise UnreadMask(
                f"{self._name} gave {next(iter(info_masks(info)))} in {call}, but none after its "
                f"first reset: correct it, or {IGNORE}."
            )

    def _check_final(self, info: Mapping[str, Any], ended: np.ndarray) -> None:
        """Check that the infos at the end of episodes (`ended`) fit the mode."""
        within = self._how.mode == AutoresetMode.SAME_STEP
        missing = "" if FINAL in info else f" have no {FINAL!r}"
        given = np.asarray(info.get(f"_{FINAL}", True))  # Gymnasium's sign which ones there are
        if not missing and given.shape == ended.shape and not given[ended].all():
            missing = f"[{f'_{FINAL}'!r}] is False"
        if within and missing:
            raise InvalidReturn(
                f"{self._name} says that it resets in the same step (AutoresetMode.SAME_STEP), but "
                f"its infos{missing} at the end of an episode: add each episode's last "
                "observation there, or declare another mode."
            )
        if not within and FINAL in info:
            raise InvalidReturn(
                f"{self._name} declares AutoresetMode.{self._how.mode.name}, but its infos have "
                f"{FINAL!r}, as if it had reset by itself in the same step: set "
                'metadata["autoreset_mode"] to what it does.'
            )

    def _invalid(self, what: str) -> InvalidReturn:
        return InvalidReturn(f"{self._name} returned {what}; correct it.")


def _shape(values: Any) -> tuple[int, ...]:
    """Return the shape of an array or a list; of anything else, an empty one."""
    try:
        return tuple(np.shape(values))
    except Exception:  # rows differ in length; and a user's object may raise anything
        return ()


def _copy(values: Any) -> Any:
    """Return a copy whose arrays are copied; the objects in an array are not."""
    if isinstance(values, np.ndarray):
        return values.copy()
    if isinstance(values, dict):
        return {name: _copy(inner) for name, inner in values.items()}
    return copy.deepcopy(values)
