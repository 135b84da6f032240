"""A wrapper that looks at everything that an environment takes and returns."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from flatout import tree
from flatout.envs.check import Watch
from flatout.envs.checking.calls import CONTAINS, MASKING, READING
from flatout.envs.checking.findings import Findings
from flatout.envs.mask_places import visible_masks
from flatout.envs.spaces import flat_spaces, flattened, observation_spec, structure
from flatout.errors import failure, short

ROUNDING = 1e-6
"""The relative error by which an observation may exceed its bounds."""

TIMES = 2000
"""The most steps whose durations are kept."""


class Tap(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose calls are timed, recorded and examined. It changes nothing.

    Args:
        env: the environment, not yet wrapped by Flatout, with spaces that Flatout supports.
        name: its name, for messages.
        findings: receives what is wrong.
        watch: gets the name of each call; see `flatout.envs.check.watched`.

    Attributes:
        seen: copies of what each call returned: the observation's arrays by path, and of a step
            reward, terminated and truncated.
        step_s: seconds of each step.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str, findings: Findings, watch: Watch) -> None:
        super().__init__(env)
        self._name, self._findings, self._watch = name, findings, watch
        self._after = MASKING if visible_masks(env) else READING
        space = env.observation_space
        self._spaces = dict(flat_spaces(space, name))
        spec = observation_spec(space, name)
        self._nesting = structure(spec)
        self._texts = {path for path, leaf in tree.items(spec) if leaf.text}
        self._kept: list[tuple[str, np.ndarray, np.ndarray]] = []
        self._time = 0  # steps of this episode
        self.seen: list[tuple[dict[str, np.ndarray], tuple[Any, ...]]] = []
        self.step_s: list[float] = []

    def reset(self, **kwargs: Any) -> Any:
        """Reset the environment and look at what it returns."""
        self._watch.call, self._time = "reset", 0
        result: Any = self.env.reset(**kwargs)
        self._watch.call = READING
        if isinstance(result, tuple) and len(result) == 2:
            self._examine(result[0], ())
        self._watch.call = self._after
        return result

    def step(self, action: Any) -> Any:
        """Step the environment and look at what it returns."""
        self._watch.call, self._time = "step", self._time + 1
        before = copy.deepcopy(action)
        begin = time.perf_counter()
        result: Any = self.env.step(action)
        if len(self.step_s) < TIMES:
            self.step_s.append(time.perf_counter() - begin)
        self._watch.call = READING
        if isinstance(action, np.ndarray) and not np.array_equal(action, before):
            self._findings.add(
                "warning", "action",
                f"step {self._time} changes the action array that it is given, from "
                f"{short(before)} to {short(action)}: work on a copy.",
            )  # fmt: skip
        if isinstance(result, tuple) and len(result) == 5:
            obs, reward, terminated, truncated, info = result
            self._examine(obs, (reward, terminated, truncated))
            self._examine_end(reward, terminated, truncated, info)
        self._watch.call = self._after
        return result

    def _examine(self, obs: Any, rest: tuple[Any, ...]) -> None:
        """Compare an observation with its space, and the last one with its copy."""
        self._find_changed()
        try:
            leaves = dict(flattened(obs, self._nesting))
            copies = {path: np.array(value) for path, value in leaves.items()}
        except (Exception, SystemExit):  # `HostEnvs` refuses it, and says why
            return
        self._kept = []
        for path, value in leaves.items():
            self._compare(path, value, self._spaces[path])
            if isinstance(value, np.ndarray):
                self._kept.append((path, value, copies[path]))
        self.seen.append((copies, rest))

    def _find_changed(self) -> None:
        """Look for arrays of the last observation that have changed since it was returned."""
        for path, value, before in self._kept:
            if not np.array_equal(value, before, equal_nan=value.dtype.kind == "f"):
                self._findings.add(
                    "warning", "reused",
                    f"the array of the observation{_at(path)} is changed after it was returned: a "
                    "program that keeps observations loses them; return a copy.",
                    path,
                )  # fmt: skip

    def _compare(self, path: str, value: Any, space: gym.Space[Any]) -> None:
        """Compare one array of an observation with its space."""
        where = f"the observation{_at(path)} of {self._when}"
        if path in self._texts:
            if not self._contains(space, value):
                self._findings.add(
                    "error", "space", f"{where} is {short(value)}, which is not in {space}.", path
                )
            return
        array = np.asarray(value)
        if array.dtype.kind not in "fiub" or array.shape != space.shape:
            return  # `HostEnvs` refuses it
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            bad = array[~np.isfinite(array)].flat[0]
            self._findings.add(
                "error", "nan", f"{where} holds {bad}: look at what step computes.", path
            )
            return
        if isinstance(space, gym.spaces.Box) and (isinstance(value, list | tuple) or (
            array.dtype != space.dtype
        )):  # fmt: skip
            given = type(value).__name__ if isinstance(value, list | tuple) else array.dtype
            self._findings.add(
                "warning", "dtype",
                f"{where} is {given}, but its space says {space.dtype}: every step casts it; "
                f"return np.asarray(..., np.{space.dtype}).",
                path,
            )  # fmt: skip
        if isinstance(space, gym.spaces.Box):
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            over = np.maximum(low - array, array - high)  # NaN between infinite bounds of one sign
            outside = over > ROUNDING * np.maximum(np.abs(array), 1.0)
            if outside.any():
                low, high = space.low[outside].flat[0], space.high[outside].flat[0]
                self._findings.add(
                    "error", "space",
                    f"{where} holds {array[outside].flat[0]}, which is outside of its space, {low} "
                    f"to {high}: correct the bounds or the values.",
                    path,
                )  # fmt: skip
        elif not self._contains(space, value, array.astype(space.dtype)):
            self._findings.add(
                "error", "space", f"{where} is {short(value)}, which is not in {space}.", path
            )

    def _contains(self, space: gym.Space[Any], *values: Any) -> bool:
        """Return whether a space contains one of the values; a method that fails is an error."""
        self._watch.call = CONTAINS
        try:
            contained = any(space.contains(value) for value in values)
        except (Exception, SystemExit) as error:
            text = f"{CONTAINS} raised {failure(error)}."
            self._findings.add("error", "space", text, "contains")
            contained = True
        self._watch.call = READING
        return contained

    def _examine_end(self, reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
        """Look at a step's reward and flags."""
        number = np.asarray(reward)
        if number.dtype.kind == "f" and not np.isfinite(number).all():
            self._findings.add(
                "error", "nan", f"the reward of {self._when} is {reward}: look at what step "
                "computes.",
            )  # fmt: skip
        old = isinstance(info, Mapping) and info.get("TimeLimit.truncated")
        if terminated and not truncated and old:
            self._findings.add(
                "error", "truncation",
                f"{self._when} is terminated, but its info says TimeLimit.truncated: return "
                "truncated=True for a time limit, so that the value after it is not taken for 0.",
            )  # fmt: skip

    @property
    def _when(self) -> str:
        return f"step {self._time}" if self._time else "reset"


def _at(path: str) -> str:
    return f" {path!r}" if path else ""
