"""Step 5 of the data flow, inline: N Gymnasium environments take actions in this process.

Samplers and evaluation call it. An environment whose episode ends is reset within the same step;
the caller gets its final observation, for bootstrapping. Every episode's seed is a function of
(run seed, environment, episode): its number and its actions reproduce an episode.
"""

from __future__ import annotations

import functools
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np

from flatout import frames, tree
from flatout.actions import forbids_all
from flatout.casts import stored
from flatout.envs.base import TRAINING, Ended, Envs
from flatout.envs.deadline import CLOSE_S, DeadlineExceeded, close_in_time
from flatout.envs.mask_places import MASKS, info_masks
from flatout.envs.masks import STUCK, MaskError, raised_in_masks
from flatout.envs.spaces import array_of, flattened, in_range, structure
from flatout.envs.spares import (
    NoSpares,
    Spares,
    bound_to_thread,
    open_spares,
    without_spares,
)
from flatout.errors import (
    EnvironmentFailure,
    FlatoutError,
    Interrupt,
    InvalidReturn,
    one_line,
    raised_at,
    short,
    with_full_stop,
)
from flatout.frames import most_frames
from flatout.output import say
from flatout.types import ActionSpec, Episode, Obs, ObservationSpec, ObsSpec, mask_path

LARGEST = float(np.finfo(np.float32).max)


class UnreadMask(InvalidReturn):
    """An info holds a mask, although the environment was opened as one without masks."""


class HostEnvs(Envs):
    """N Gymnasium environments; see `Envs`.

    Args:
        envs: the environments, not yet reset.
        obs_spec: the spec of one observation; others are refused. Nested Dict and Tuple
            observations become flat dicts of arrays by path.
        action_spec: the spec of one action, which decides how actions are converted.
        ignore_masks: ignore masks in infos. Others: see `Envs`.
    """

    def __init__(
        self,
        envs: Sequence[gym.Env[Any, Any]],
        name: str,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        seed: int,
        stream: int = TRAINING,
        first: int = 0,
        ignore_masks: bool = False,
    ) -> None:
        super().__init__(len(envs), name, seed, stream, first)
        self._envs = list(envs)
        self._steps = [env.step for env in self._envs]
        self._spec, self._nesting = obs_spec, structure(obs_spec)
        nesting = self._nesting or {}  # its keys, if no entry is nested
        self._flat = None if any(nesting.values()) else nesting.keys()
        self._dtypes = tree.map(lambda leaf: np.dtype(leaf.dtype), obs_spec)
        # What a single array must have to be stored as it is; nothing has this for a tree, nor for
        # categories, whose values are checked.
        self._shape, self._dtype = (), None
        if isinstance(obs_spec, ObservationSpec) and not obs_spec.categories:
            self._shape, self._dtype = obs_spec.shape, np.dtype(obs_spec.dtype)
        # Arrays for observations may have room for the newest frames of stacks only.
        self._put = tree.put if most_frames(obs_spec) == 1 else frames.put
        self._action_spec, self._mask = action_spec, mask_path(obs_spec)
        self._ignore_masks = ignore_masks or bool(self._mask)
        # Each environment's newest info, among those that are not empty or end an episode.
        self._infos: list[Mapping[str, Any]] = [{}] * self.num_envs
        self._all = range(self.num_envs)
        self._spares: Spares | None = None
        self._any_thread = False  # whether one stepped after a reset in another thread
        self._stopped: Spares | None = None  # only to be closed
        self._report = say

    def reset_all(self, out: Obs, episode: int | None = None) -> None:
        for env in self._all:
            self.reset(env, out, episode)

    def reset(self, env: int, out: Obs, episode: int | None = None) -> None:
        self._begin(env, out, self.episode[env] + 1 if episode is None else episode)

    def _begin(self, env: int, out: Obs, number: int) -> float | None:
        """Start episode `number`. Return the seconds of the reset if it happened in the background,
        else None."""
        spares, seed = self._spares, self._seed_of(env, number)
        done = spares.take(env, number) if spares is not None else None
        failed, swapped = done.error if done is not None else None, False
        try:
            if spares is None or done is None or failed is not None:
                # A reset that raised an exception in the background raises it again, as it would
                # without a spare, unless the other thread was the reason.
                obs, info = _reset(self._envs[env], seed)
                took = None
            else:
                (obs, info), took, swapped = done.result, done.seconds, True
                spares.give_back(env, self._envs[env])
                self._envs[env] = done.env
            self._check_info(env, info, "reset")
            self._infos[env] = {}
            self.episode[env] = number
            self.returns[env] = 0.0
            self.lengths[env] = 0
            obs = self._to_stored(env, obs, "reset")
        except (FlatoutError, Interrupt, KeyboardInterrupt, DeadlineExceeded):
            raise
        except BaseException as error:  # a user's environment may raise anything
            raise self.failure(env, error, "reset", number) from error
        self._steps[env] = self._envs[env].step
        if spares is not None:
            if swapped and not self._any_thread:
                self._steps[env] = functools.partial(self._first_step, env, seed)
            if failed is not None:
                self._stop_spares(bound_to_thread(failed))
            else:
                spares.request(env, number + 1, self._seed_of(env, number + 1))
        if self._mask:
            self._refuse_mask(env, obs)
        self._put(out, env, obs)
        return took

    def _first_step(self, env: int, seed: int, action: Any) -> Any:
        """Take the first step after a reset in another thread. If it raises an exception, and no
        such step has succeeded before, reset the environment in this thread and step again."""
        step = self._steps[env] = self._envs[env].step
        if self._any_thread:
            return step(action)
        try:
            result = step(action)
            self._any_thread = True
            return result
        except (FlatoutError, Interrupt, KeyboardInterrupt, DeadlineExceeded):
            raise
        except BaseException as error:  # a user's environment may raise anything
            _reset(self._envs[env], seed)
            result = step(action)
            self._stop_spares(bound_to_thread(error))
            return result

    def add_spares(
        self, make: Callable[[], gym.Env[Any, Any]], total: int, report: Callable[[str], None],
        seconds: float,
    ) -> None:  # fmt: skip
        """Open a spare for each environment; see `envs.spares`. If that is impossible, report one
        sentence.

        Args:
            make: makes one more environment and checks it.
            total: the environments of the whole run.
            report: receives a sentence for the user.
            seconds: the time limit for opening all spares.
        """
        self._report = report
        try:
            self._spares = open_spares(self._envs, make, _reset, self._seed_of, total, seconds)
        except NoSpares as reason:
            report(without_spares(self._name, str(reason)))
            return
        self.spares, self.spare_mb = self.num_envs, self.num_envs * self._spares.mb

    def _stop_spares(self, reason: str) -> None:
        """Reset each environment in this thread from here on."""
        if self._spares is not None:
            self._spares.stop()
            self._stopped, self._spares = self._spares, None
            self.spares, self.spare_mb = 0, 0.0
            self._report(without_spares(self._name, reason))

    def step(
        self,
        actions: np.ndarray,
        out: Obs,
        rewards: np.ndarray,
        ended: Ended,
        active: Sequence[int] | None = None,
    ) -> None:
        """See `Envs.step`.

        Raises:
            EnvironmentFailure: an environment raised, or returned an invalid value.
        """
        choices = self._action_spec.separate(actions)
        shape, dtype, returns, lengths = self._shape, self._dtype, self.returns, self.lengths
        env = -1
        try:
            for env in self._all if active is None else active:
                obs, reward, terminated, truncated, info = self._steps[env](choices[env])
                if dtype is None or getattr(obs, "dtype", None) is not dtype or obs.shape != shape:
                    obs = self._to_stored(env, obs, "step")
                if not (type(reward) is float and type(terminated) is type(truncated) is bool):
                    reward = self._to_float(env, reward)
                    terminated = self._to_bool(env, "terminated", terminated)
                    truncated = self._to_bool(env, "truncated", truncated)
                if type(info) is not dict or info:
                    self._check_info(env, info, "step")
                    self._infos[env] = info
                if not -LARGEST < reward < LARGEST:
                    reward = self._refuse_too_large(env, reward)
                rewards[env] = reward
                returns[env] += reward
                lengths[env] += 1
                if terminated or truncated:
                    self._infos[env] = info
                    ended(env, terminated, truncated, obs)
                    began = time.perf_counter()
                    took = self._begin(env, out, self.episode[env] + 1)
                    self._count_resets(1, began, took)
                elif dtype is None or self._put is not tree.put:
                    if self._mask:
                        self._refuse_mask(env, obs)
                    self._put(out, env, obs)
                else:
                    out[env] = obs
        except (FlatoutError, Interrupt, KeyboardInterrupt, DeadlineExceeded):
            raise
        except BaseException as error:  # a user's environment may raise anything
            raise self.failure(env, error, "step") from error

    def finished(self, env: int) -> Episode:
        episode = super().finished(env)
        info = self._infos[env]
        return episode._replace(info=scalars(info)) if info else episode

    def replay(self, env: int, episode: int, actions: np.ndarray, out: Obs) -> bool:
        """Reproduce one environment's state, as `replay_all` does for all."""

        def ended(env: int, terminated: bool, truncated: bool, final: Obs) -> None:
            pass  # `self.episode` changes when an episode ends

        self.reset(env, out, episode)
        batch = np.zeros((self.num_envs, *actions.shape[1:]), actions.dtype)
        rewards = np.zeros(self.num_envs)
        for action in actions:
            batch[env] = action
            self.step(batch, out, rewards, ended, [env])
            if self.episode[env] != episode:
                return False
        return True

    def replay_all(
        self,
        seeded: Sequence[int],
        episodes: Sequence[int],
        actions: Sequence[np.ndarray | None],
        out: Obs,
    ) -> list[bool]:
        return [
            taken is not None and self.replay(env, episode, taken, out)
            for env, (episode, taken) in enumerate(zip(seeded, actions, strict=True))
        ]

    def close(self) -> None:
        """Close every environment, even if some fail to close. The limit for all is `CLOSE_S`."""
        end = time.monotonic() + CLOSE_S
        spares = self._spares or self._stopped
        if spares is not None:
            spares.stop()  # no further reset begins
        for number, env in enumerate(self._envs):
            self._close_one(number, env, end)
        if spares is None:
            return
        for number in spares.idle_first():
            spare = spares.release(number, end)
            if spare is not None:
                self._close_one(number, spare, end)
            else:
                say(
                    f"the reset in the background of {self._label(number)} did not end within "
                    f"{CLOSE_S:g} s; its spare was left open."
                )

    def _close_one(self, number: int, env: gym.Env[Any, Any], end: float) -> None:
        """Close an environment or its spare before `end`, a reading of `time.monotonic`."""
        close_in_time(
            env.close, end - time.monotonic(), self._label(number),
            lambda error: say(self.failure(number, error, "close")),
        )  # fmt: skip

    def failure(
        self, env: int, error: BaseException, call: str, episode: int | None = None
    ) -> EnvironmentFailure:
        """Return the error for an exception in `call` of an environment, with its file and line.
        `episode` is the number of the episode that a reset was to begin."""
        if isinstance(error, MaskError):
            reset = call == "reset"
            return self._invalid_mask(
                env, str(error), self.episode[env] + reset, 0 if reset else self.lengths[env] + 1
            )
        if _is_raised_here(error):  # by a call with wrong arguments, or by unpacking its result
            if isinstance(error, TypeError) and "argument" in str(error):
                takes = "seed= and options=" if call == "reset" else "one action"
                return InvalidReturn(
                    f"{call} of {self._label(env)} has to take {takes}: {with_full_stop(error)}"
                )
            what = "5 values (observation, reward, terminated, truncated, info)"
            if call == "reset":
                what = "2 values (observation, info)"
            return InvalidReturn(
                f"{self._label(env)} did not return {what} from {call}: {with_full_stop(error)}"
            )
        inner = "action_masks" if raised_in_masks(error) else call
        inner += "" if episode is None else f" of episode {episode}"
        return EnvironmentFailure(
            f"{self._label(env)} raised {type(error).__name__} in {inner}: "
            f"{one_line(error)} ({raised_at(error)})."
        )

    def _to_stored(self, env: int, obs: Any, call: str) -> Obs:
        """Cast an observation to the types that it is stored as, or refuse it."""
        if isinstance(self._spec, ObservationSpec):
            return self._array(env, obs, call, self._spec, self._dtypes)
        try:
            flat = type(obs) is dict and obs.keys() == self._flat
            given = obs if flat else dict(flattened(obs, self._nesting))
        except ValueError as error:
            raise InvalidReturn(
                f"{self._label(env)} returned an observation with {error} from {call}; its "
                f"observation_space has {', '.join(self._spec)}."
            ) from None
        return {
            path: self._array(env, given[path], call, spec, self._dtypes[path], path)
            for path, spec in self._spec.items()
        }

    def _array(
        self, env: int, obs: Any, call: str, spec: ObservationSpec, dtype: Any, path: str = ""
    ) -> np.ndarray:
        """Cast one array of an observation to `dtype`; the path of a single array is empty."""
        if not spec.categories:
            if getattr(obs, "dtype", None) is dtype and obs.shape == spec.shape:
                return obs
        elif (  # one category: faster than `in_range`
            not spec.shape
            and isinstance(obs, int | np.integer)
            and 0 <= int(obs) - spec.starts[0] < spec.categories[0]
        ):
            return np.asarray(obs, dtype)
        what = f"the observation {path!r}" if path else "an observation"
        try:
            array = array_of(obs, spec)
        except ValueError as error:
            raise InvalidReturn(
                f"{self._label(env)} returned {what} of {error} from {call}; its "
                f"observation_space says {spec.shape} {spec.dtype}."
            ) from None
        try:
            return stored(in_range(array, spec), dtype)
        except ValueError as error:
            when = f" {self.lengths[env] + 1}" if call == "step" else ""
            raise InvalidReturn(
                f"{self._label(env)} returned {what} from {call}{when} of episode "
                f"{self.episode[env]} with {error}; correct the values, or its observation_space."
            ) from None

    def _check_info(self, env: int, info: Any, call: str) -> None:
        if not isinstance(info, Mapping):
            raise self._error(env, "info", info, call, "a dict")
        if not self._ignore_masks and (MASKS[0] in info or MASKS[1] in info):
            what = f"{next(iter(info_masks(info)))} in {call}, but none after its first reset"
            step = 0 if call == "reset" else self.lengths[env] + 1
            raise UnreadMask(str(self._invalid_mask(env, what, self.episode[env], step)))
        if call == "reset" and not self._ignore_masks and (place := _nested_mask(info)):
            raise self._invalid_mask(
                env, f"{place}, and masks are read from info[{MASKS[0]!r}] alone",
                self.episode[env] + 1, 0,
            )  # fmt: skip

    def _refuse_mask(self, env: int, obs: Any) -> None:
        """Refuse an observation, from which an action has to be chosen, whose mask allows none."""
        if forbids_all(np, self._action_spec, obs[self._mask]):
            raise self._invalid_mask(env, STUCK, self.episode[env], self.lengths[env])

    def _to_float(self, env: int, value: Any) -> float:
        try:
            if _is_scalar(value):
                return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
        raise self._error(env, "reward", value, "step", "one number")

    def _refuse_too_large(self, env: int, reward: float) -> float:
        """Refuse a finite reward that float32 cannot hold. NaN and infinity are returned, because
        the check of the trajectory reports them."""
        if math.isfinite(reward):
            raise too_large(self._label(env), reward)
        return reward

    def _to_bool(self, env: int, name: str, value: Any) -> bool:
        if isinstance(value, bool | np.bool_) or (_is_scalar(value) and value in (0, 1)):
            return bool(value)
        raise self._error(env, name, value, "step", "True or False")

    def _error(self, env: int, name: str, value: Any, call: str, right: str) -> EnvironmentFailure:
        return InvalidReturn(
            f"{self._label(env)} returned {name} {short(value)} from {call}, which has to be "
            f"{right}."
        )


def too_large(label: str, reward: float) -> InvalidReturn:
    """Return the error for a finite reward that float32 cannot hold."""
    return InvalidReturn(
        f"{label} returned reward {reward:g} from step, which float32 cannot hold; scale rewards."
    )


def _reset(env: gym.Env[Any, Any], seed: int) -> Any:
    return env.reset(seed=seed)


def _is_raised_here(error: BaseException) -> bool:
    """Return whether an exception was raised by a call in this file or in a wrapper of Flatout, not
    in code that these called."""
    frame, _ = [*traceback.walk_tb(error.__traceback__)][-1]
    caller = frame.f_locals.get("self")
    wraps = isinstance(caller, gym.Wrapper) and type(caller).__module__.startswith("flatout.")
    return frame.f_code.co_filename == __file__ or wraps


def _is_scalar(value: Any) -> bool:
    """Return whether a value is one real number. Text is not, nor is an array ``[1]``."""
    if isinstance(value, complex | np.complexfloating):
        return False
    return hasattr(value, "__float__") and getattr(value, "shape", ()) == ()


def scalars(info: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the numbers and flags in an `info` by name, or None if there are none."""
    found: dict[str, float] = {}
    for name, value in info.items():
        if isinstance(name, str) and _is_scalar(value):
            with suppress(TypeError, ValueError, OverflowError):
                found[name] = float(value)
    return found or None


def _nested_mask(info: Mapping[str, Any]) -> str:
    """Return the place of a mask in a dict within an info, where it is not read; or an empty
    string."""
    inner = ((key, one) for key, one in info.items() if isinstance(one, Mapping))
    places = (f"info[{key!r}]" + place[4:] for key, one in inner for place in info_masks(one))
    return next(places, "")
