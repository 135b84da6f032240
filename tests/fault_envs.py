"""Environments for tests of faults: they are slow, crash, hang, or print escape sequences."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


class Sleepy(gym.Env[np.ndarray, np.int64]):
    """An environment whose steps sleep; episodes are truncated after `length` steps."""

    def __init__(self, seconds: float = 0.02, length: int = 20) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._seconds, self._length = seconds, length
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        self._step += 1
        return self._observe(), float(action), False, self._step >= self._length, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


def sleepy(seconds: float = 0.02, length: int = 20) -> gym.Env[Any, Any]:
    return Sleepy(seconds, length)


class SlowReset(gym.Wrapper[Any, Any, Any, Any]):
    """A CartPole whose resets sleep."""

    def __init__(self, seconds: float = 0.002, max_episode_steps: int | None = None) -> None:
        super().__init__(gym.make("CartPole-v1", max_episode_steps=max_episode_steps))
        self._seconds = seconds

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        time.sleep(self._seconds)
        return super().reset(seed=seed, options=options)


class SleepyReset(Sleepy):
    """A `Sleepy` whose resets sleep, too."""

    def __init__(self) -> None:
        super().__init__(0.01)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        time.sleep(0.05)
        return super().reset(seed=seed, options=options)


class DiesInReset(Sleepy):
    """A `Sleepy` whose process is killed in its first reset, once: `folder` then has a file."""

    def __init__(self, folder: str) -> None:
        super().__init__(0.0)
        self._mark = Path(folder) / "done"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        with suppress(FileExistsError):
            self._mark.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(seed=seed, options=options)


def slow_reset(**settings: Any) -> gym.Env[Any, Any]:
    return SlowReset(**settings)


class HangingReset(Sleepy):
    """An environment without rewards whose resets with some seeds hang."""

    def __init__(self, seeds: tuple[int, ...]) -> None:
        super().__init__(0.0)
        self._seeds = seeds

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        if seed in self._seeds:
            threading.Event().wait()
        return super().reset(seed=seed, options=options)


class InvalidLate(Sleepy):
    """A `Sleepy` whose 5th step returns text as its reward, late in episodes with some seeds."""

    def __init__(self, seeds: tuple[int, ...]) -> None:
        super().__init__(0.0)
        self._seeds, self._late = seeds, False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._late = seed in self._seeds
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if self._step < 5:
            return obs, reward, terminated, truncated, info
        time.sleep(self._late)
        return obs, "text", terminated, truncated, info


class LargeInfo(Sleepy):
    """A `Sleepy` whose `info` has more than 1 kB of numbers, and at its end `is_success`."""

    def __init__(self) -> None:
        super().__init__(0.0, length=5)

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        terms = {f"reward/{number}": number / 7 for number in range(40)}
        return *super().step(action)[:4], terms | {"is_success": True}


class HangsElsewhere(Sleepy):
    """A `Sleepy` whose steps return only in direct children of one process, and hang elsewhere."""

    def __init__(self, parent: int) -> None:
        super().__init__(1e-4)
        self._parent = parent

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if os.getppid() != self._parent:
            threading.Event().wait()
        return super().step(action)


class Faulty(gym.Env[np.ndarray, np.int64]):
    """An environment that counts its steps and has one of `FAULTS` in one of them.

    Observations are (seed, step of the episode); the reward is the step of the episode.

    Args:
        fault: a key of `FAULTS`.
        at: the step of this object, over all episodes, that has the fault; 0 is the constructor.
        folder: a file in it marks that the fault has happened, so that it happens once. Without a
            folder, every object has the fault.
        length: steps after which an episode is truncated.
    """

    def __init__(self, fault: str, at: int, folder: str | None = None, length: int = 1000) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self._fault, self._at, self._folder, self._length = fault, at, folder, length
        self._steps = self._step = self._seed = 0
        if at == 0 and self._first():
            FAULTS[fault]()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._seed, self._step = (seed or 0) % 100_003, 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        self._steps += 1
        if self._steps == self._at and self._first():
            FAULTS[self._fault]()
        return self._observe(), float(self._step), False, self._step >= self._length, {}

    def _first(self) -> bool:
        if self._folder is None:
            return True
        try:
            (Path(self._folder) / "done").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _observe(self) -> np.ndarray:
        return np.array([self._seed, self._step], np.float64)


def _spin() -> None:
    while True:
        pass


def _swallow() -> None:
    while True:
        try:
            time.sleep(1e6)
        except BaseException:
            continue


def _raise() -> None:
    raise RuntimeError("the physics exploded")


def _no_jax() -> None:
    loaded = sorted(name for name in ("jax", "equinox", "optax") if name in sys.modules)
    if loaded:
        raise RuntimeError(f"a worker imported {loaded}")


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(3),
    "raise": _raise,
    "sleep": lambda: time.sleep(1e6),
    "spin": _spin,
    "swallow": _swallow,
    "allocate": lambda: bytearray(1 << 60),
    "close": lambda: os.closerange(3, 1000),
    "none": lambda: None,
    "look": _no_jax,
    "mutex": lambda: _mutex(),
}


class Stuck(Sleepy):
    """An environment whose `close` blocks as `STUCK` says, if it has made more than one step."""

    def __init__(self, how: str) -> None:
        super().__init__(0.0)
        self._how, self._steps = how, 0

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return super().step(action)

    def close(self) -> None:
        if self._steps > 1:
            STUCK[self._how]()


def _mutex() -> None:
    """Block in native code that holds the interpreter's lock, so that no signal is handled."""
    native, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(128)
    for call in ("init", "lock", "lock"):
        function = getattr(native, f"pthread_mutex_{call}")
        function(mutex, None) if call == "init" else function(mutex)


STUCK = {
    "sleep": lambda: time.sleep(1e6),
    "spin": _spin,
    "wait": lambda: threading.Event().wait(),
    "mutex": _mutex,
    "thread": lambda: threading.Thread(target=time.sleep, args=(1e6,), name="simulator").start(),
}


def stuck(how: str = "sleep") -> gym.Env[Any, Any]:
    return Stuck(how)


STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\u202e"
"""Escape sequences: set a terminal's title, clear it, colour it, go back, reverse the direction."""


class Steering(Sleepy):
    """An environment that may print at each step, and may raise an exception with `STEERING` in its
    text at its 40th step."""

    def __init__(self, raises: bool, prints: bool) -> None:
        super().__init__(0.0)
        self._raises, self._prints = raises, prints
        self._steps = 0

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._prints:
            print("a word", file=sys.stderr, flush=True)
            print("a word", flush=True)
        if self._raises and self._steps == 40:
            raise RuntimeError(f"a {STEERING} word")
        return super().step(action)


def steering(raises: bool = True, prints: bool = False) -> gym.Env[Any, Any]:
    return Steering(raises, prints)


def faulty(fault: str, at: int, folder: str | None = None) -> gym.Env[Any, Any]:
    return Faulty(fault, at, folder)


def failing() -> gym.Env[Any, Any]:
    """Make an environment that raises an exception in its 20th step."""
    return Faulty("raise", 20)
