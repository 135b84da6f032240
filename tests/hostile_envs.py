"""An environment that misbehaves in one of its methods, or in one of an object that it returns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.bad_envs import Good


def _raise(error: type[BaseException], *values: Any) -> Any:
    raise error(*values)


_forks = 0


def _fork() -> None:
    """Fork, at most three times in a line of processes: there are never more than eight."""
    global _forks
    _forks += 1
    if _forks <= 3:
        os.fork()


DEEDS: dict[str, Callable[[], Any]] = {
    "raises": lambda: _raise(ValueError, "the bridge is out"),
    "SystemExit": lambda: _raise(SystemExit, 0),
    "KeyboardInterrupt": lambda: _raise(KeyboardInterrupt),
    "ends": lambda: os._exit(0),
    "hangs": lambda: time.sleep(1000.0),
    "forks": _fork,
    "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "nonsense": object,
}  # fmt: skip

HOOKS: dict[str, str] = {
    "constructor": "constructor|making the environment|made object",
    "reset": "reset", "step": "step", "close": "close",
    "getattr": "__getattr__", "sample": "sample", "contains": "contains",
    "eq": "==", "info": "info|reset|step", "masks": "action_masks", "array": "observation",
}  # fmt: skip
"""The methods of an environment that misbehave, and words that the finding has to use."""


class Info(dict[str, Any]):
    """An info whose ``in`` misbehaves."""

    def __init__(self, env: Hostile) -> None:
        super().__init__(key=1)
        self._env = env

    def __contains__(self, key: object) -> bool:
        self._env.act("info")
        return super().__contains__(key)


class Observation:
    """An observation that becomes an array when it is asked to, and misbehaves then."""

    def __init__(self, env: Hostile, values: np.ndarray) -> None:
        self._env, self._values = env, values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        done = self._env.act("array")
        return self._values if done is None else done


class Space(gym.Space[Any]):
    """A space of texts, of a class that is not Gymnasium's, whose methods misbehave."""

    env: Hostile

    def sample(self, *given: Any, **settings: Any) -> Any:
        done = self.env.act("sample")
        return "a text" if done is None else done

    def contains(self, x: Any) -> bool:
        done = self.env.act("contains")
        return isinstance(x, str) if done is None else done

    def __eq__(self, other: object) -> Any:
        done = self.env.act("eq")
        return isinstance(other, Space) if done is None else done

    __hash__ = None  # type: ignore[assignment]


class Hostile(Good):
    """Misbehaves at one place, always the same.

    Args:
        hook: the place, one of `HOOKS`.
        deed: what it does there, one of `DEEDS`.
    """

    def __init__(self, hook: str, deed: str) -> None:
        self.hook, self.deed = hook, deed
        super().__init__(length=10, ends="truncated")
        self.act("constructor")
        if hook in ("sample", "contains", "eq"):
            self.observation_space = Space()
            self.observation_space.env = self
        if hook == "masks":
            self.action_masks = self._masks

    def act(self, hook: str) -> Any:
        """Misbehave, if this is the place. None: nothing was returned."""
        return DEEDS[self.deed]() if hook == self.hook else None

    def __getattr__(self, name: str) -> Any:
        if name == "action_masks" and self.__dict__.get("hook") == "getattr":
            self.act("getattr")
        raise AttributeError(name)

    def _masks(self) -> Any:
        done = self.act("masks")
        return np.ones(2, np.int8) if done is None else done

    def observe(self, action: float) -> Any:
        obs = super().observe(action)
        if isinstance(self.observation_space, Space):
            return "at the bridge" if obs[2] > 0 else "on the bridge"
        return Observation(self, obs) if self.hook == "array" else obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        done = self.act("reset")
        obs, info = super().reset(seed=seed, options=options)
        return (obs, Info(self) if self.hook == "info" else info) if done is None else done

    def step(self, action: Any) -> Any:
        done = self.act("step")
        *result, _ = super().step(action)
        return (*result, Info(self)) if done is None else done

    def close(self) -> None:
        self.act("close")


def make(hook: str, deed: str) -> Any:
    """Make it; nonsense of a constructor is what this returns."""
    env = Hostile(hook, deed)
    return object() if (hook, deed) == ("constructor", "nonsense") else env


class Alarm(Good):
    """Asks for an alarm in `step`, which arrives there."""

    def step(self, action: Any) -> Any:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        time.sleep(1.0)
        return super().step(action)


class LateAlarm(Good):
    """Asks for an alarm in `step`, which arrives long after it."""

    def step(self, action: Any) -> Any:
        signal.alarm(1000)
        return super().step(action)


class ClosesFiles(Good):
    """Closes files that it has not opened."""

    def __init__(self, first: int = 3, **settings: Any) -> None:
        super().__init__(**settings)
        self.first = first

    def step(self, action: Any) -> Any:
        os.closerange(self.first, 3 if self.first < 3 else 1000)
        return super().step(action)


class ClosesStdout(Good):
    """Closes `sys.stdout`."""

    def step(self, action: Any) -> Any:
        sys.stdout.close()
        return super().step(action)


class NeedsArgument(Good):
    """Has a method `action_masks` with an argument."""

    def action_masks(self, number: int) -> Any:
        return np.ones(number, np.int8)


class Acts(Good):
    """Has an action space that tests choose."""

    def __init__(self, kind: str, *values: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.action_space = getattr(spaces, kind)(*values)


SPACE = spaces.Box(-1.0, 1.0, (4,), np.float32)


class SharedSpace(Good):
    """Seeds and samples a space of the module, which all environments share."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        SPACE.seed(seed)
        return super().reset(seed=seed)

    def observe(self, action: float) -> Any:
        return SPACE.sample()


class SharedAtReset(SharedSpace):
    """Draws from it only in `reset`, right after seeding it, which no comparison shows."""

    def observe(self, action: float) -> Any:
        return SPACE.sample() if self.t == 0 else Good.observe(self, action)


class StartsProcesses(Good):
    """Starts six programs when it is made."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for _ in range(6):
            subprocess.Popen(["sleep", "60"])
        time.sleep(0.2)


class Shapeless(spaces.Box):
    """A box whose shape ends the program when it is read, once it is `armed`."""

    armed = False

    @property
    def shape(self) -> Any:
        if self.armed:
            raise SystemExit(0)
        return super().shape


class EndsProgram(Good):
    """Has a space that ends the program when it is looked at."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.action_space = Shapeless(-1.0, 1.0, (2,), np.float32)
        self.action_space.armed = True


NUMBERS = np.random.default_rng(0)


class ModuleNumbers(Good):
    """Draws from a generator of the module."""

    def reward(self) -> Any:
        return float(NUMBERS.uniform())
