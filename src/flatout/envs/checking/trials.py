"""Trials of an environment: random steps, repeated with the same seeds alone and next to a copy;
and the random numbers that environments draw outside of themselves, from modules and classes."""

from __future__ import annotations

import contextlib
import io
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import gymnasium as gym
import numpy as np

from flatout import tree
from flatout.config.schema import EnvConfig
from flatout.envs.base import TRAINING
from flatout.envs.check import Watch
from flatout.envs.checking.calls import CLOSING, OWN_WORK
from flatout.envs.checking.findings import Findings
from flatout.envs.checking.tap import Tap
from flatout.envs.deadline import DeadlineExceeded, deadline
from flatout.envs.host import HostEnvs, UnreadMask
from flatout.envs.make import specs
from flatout.envs.preparation import prepare
from flatout.envs.task import Task
from flatout.errors import EnvironmentFailure, one_line, with_full_stop
from flatout.types import Obs


class RandomSources:
    """The generators and spaces in the modules and classes of an environment and its wrappers.

    All environments of a process share them, and no reset with a seed concerns only one of them.

    Args:
        env: the environment.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self._sources = dict(_sources(env))
        self._states = self._now()

    def drawn(self) -> list[str]:
        """Return the names of those from which numbers were drawn since this object was made."""
        now = self._now()
        return [name for name, state in self._states.items() if now[name] != state]

    def _now(self) -> dict[str, str]:
        return {name: _state(source) for name, source in self._sources.items()}


def _sources(env: Any) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for owner in _layers(env):
        for kind in type(owner).__mro__:
            module = kind.__module__
            if module.partition(".")[0] in ("builtins", "gymnasium", "flatout", "typing"):
                continue
            places = {kind.__name__: dict(vars(kind))}
            for function in vars(kind).values():
                if isinstance(function, FunctionType):
                    places[function.__module__] = function.__globals__
            for place, values in places.items():
                for name, value in list(values.items()):
                    if id(value) not in seen and _is_source(value):
                        seen.add(id(value))
                        yield f"{place}.{name}", value


def _layers(env: Any) -> Iterator[Any]:
    """Yield an environment and those that it wraps."""
    while True:
        yield env
        if not isinstance(env, gym.Wrapper):
            return
        env = env.env


def _is_source(value: Any) -> bool:
    kinds = (np.random.Generator, np.random.RandomState, random.Random, gym.Space)
    return issubclass(type(value), kinds)


def _state(source: Any) -> str:
    """Return the state of a generator, or of a space's generators, as a text."""
    with suppress(Exception):  # a user's class may raise anything
        if isinstance(source, np.random.Generator):
            return repr(source.bit_generator.state)
        if isinstance(source, np.random.RandomState):
            return repr(source.get_state(legacy=False))
        if isinstance(source, random.Random):
            return str(hash(source.getstate()))
        inner = getattr(source, "spaces", ())
        parts = list(inner.values() if isinstance(inner, dict) else inner)
        return " ".join(map(_state, [one for one in (source._np_random, *parts) if one]))
    return ""


REPEATED = 300
"""Steps of the trials that repeat the first one."""

LIMIT_S = 4.0
"""Seconds after which a trial ends, however few steps it has made."""

FEW_EPISODES = 3
"""The least number of episodes of equal length that look like a time limit."""


@dataclass
class Trial:
    """The record of one environment.

    Attributes:
        tap: the environment, with the record of its calls.
        lengths: the length of each episode that ended, and whether it was terminated, truncated.
        in_info: whether its infos hold masks.
        task: its spaces, as Flatout prepares it.
        printed: what it wrote to standard output.
        drew: whether it drew from Python's or NumPy's global random numbers.
        drew_from: the names of random sources in its modules and classes from which it drew.
    """

    tap: Tap
    task: Task
    in_info: bool = False
    lengths: list[tuple[int, bool, bool]] = field(default_factory=list[tuple[int, bool, bool]])
    printed: str = ""
    drew: bool = False
    drew_from: list[str] = field(default_factory=list[str])


class Trials:
    """The trials of one environment and of copies of it.

    Args:
        config: its name, and how Flatout prepares it.
        findings: receives what is wrong.
        watch: see `flatout.envs.check.watched`.
        steps: the most steps of the first trial.
        seed: the seed of episodes and actions.
        patience: seconds that all calls together may take.
        close_limit: seconds after which a call of close is interrupted; None does not.
    """

    def __init__(
        self, config: EnvConfig, findings: Findings, watch: Watch, steps: int, seed: int,
        patience: float, close_limit: float | None,
    ) -> None:  # fmt: skip
        self._config, self._findings, self._watch = config, findings, watch
        self._steps, self._seed = steps, seed
        self._limit = min(LIMIT_S, patience / 10)  # there are five trials, and slow resets
        self._close_limit = close_limit

    def first(self, env: gym.Env[Any, Any]) -> Trial | None:
        """Play the first trial; None if it failed, which the findings say."""
        trial = self._play([env], self._steps)
        if trial is not None:
            self._judge_ends(trial)
        return trial

    def repeat(self, trial: Trial, copies: Sequence[gym.Env[Any, Any]]) -> None:
        """Repeat a trial, with the same environment, and with a new one next to another.

        Args:
            trial: the first trial.
            copies: two further environments; none if there is only one.
        """
        add, own = self._findings.add, "draw from self.np_random, which reset(seed=) sets"
        steps = min(len(trial.tap.seen), REPEATED)
        again = self._play([trial.tap.env], steps, trial.in_info)
        if again is None:
            return
        if found := difference(trial.tap, again.tap):
            why = "it draws from global random numbers: " if trial.drew else ""
            if trial.drew_from:
                why = f"it draws from {_listed(trial.drew_from)}, outside of the environment: "
            add(
                "error", "determinism",
                f"the same seeds and actions gave {found} when they were repeated: {why}{own}, and "
                "keep nothing from earlier episodes. Without that no result can be reproduced, and "
                "a resumed run starts new episodes.",
            )  # fmt: skip
            return
        if trial.drew:
            add(
                "warning", "determinism",
                f"it draws from Python's or NumPy's global random numbers, or seeds them: {own}.",
            )  # fmt: skip
        if trial.drew_from:
            add(
                "warning", "shared",
                f"it draws from {_listed(trial.drew_from)}, which all environments of a process "
                "share: episodes that are stepped in turns differ from the same ones alone, and a "
                f"resumed run cannot repeat them: {own}, or make the space or generator in "
                "__init__.",
                "sources",
            )  # fmt: skip
        if copies:
            self._repeat_in_copies(trial, copies, steps)
        other = self._play([trial.tap.env], steps, trial.in_info, self._seed + 1)
        if other is not None and not difference(trial.tap, other.tap):
            add("note", "seed", "every episode is the same: its seed decides nothing.")

    def _repeat_in_copies(
        self, trial: Trial, copies: Sequence[gym.Env[Any, Any]], steps: int
    ) -> None:
        """Repeat a trial in a new environment, alone and while another one is stepped."""
        again = self._play(copies[:1], steps, trial.in_info)
        if again is None:
            return
        if found := difference(trial.tap, again.tap):
            self._findings.add(
                "error", "determinism",
                f"the same seeds and actions gave {found} in another environment of the same kind: "
                "something that is drawn when it is made, or kept outside of it, changes the "
                "episodes; draw it in reset, from self.np_random.",
            )  # fmt: skip
            return
        together = self._play(copies, steps, trial.in_info)
        if together is not None and (found := difference(trial.tap, together.tap)):
            self._findings.add(
                "error", "shared",
                f"next to a second environment of the same kind it gave {found}: the two share "
                f"{_listed(trial.drew_from) or 'something that changes'}, in the module or the "
                "class; keep it in self.",
            )  # fmt: skip

    def try_resets(self, env: gym.Env[Any, Any]) -> None:
        """Reset an environment without a seed and with options, which Flatout never does."""
        self._watch.call = "reset"
        calls: dict[str, dict[str, Any]] = {
            "without a seed": {}, "with options=": {"seed": self._seed, "options": {}},
        }  # fmt: skip
        for words, settings in calls.items():
            try:
                env.reset(**settings)
            except (Exception, SystemExit) as error:
                self._findings.add(
                    "warning", "reset",
                    f"reset {words} raised {type(error).__name__}: {one_line(error).rstrip('.')}; "
                    "other programs call it like this.",
                    words,
                )  # fmt: skip

    def close(self, envs: Sequence[gym.Env[Any, Any]]) -> None:
        """Close environments twice, and report what fails first."""
        for env in envs:
            for time_, self._watch.call in zip(("", "second "), CLOSING, strict=True):
                limit = self._close_limit
                try:
                    with contextlib.nullcontext() if limit is None else deadline(limit):
                        env.close()
                except DeadlineExceeded:
                    text = f"close did not return within {limit:g} s: a run leaves it "
                    self._findings.add("error", "close", f"{text}open then.")
                    return
                except (Exception, SystemExit) as error:
                    self._findings.add(
                        "warning" if time_ else "error", "close",
                        f"the {time_}call of close raised {type(error).__name__}: "
                        f"{with_full_stop(error)}",
                    )  # fmt: skip
                    break

    # --- One trial ----------------------------------------------------------------------------

    def _play(
        self, envs: Sequence[gym.Env[Any, Any]], steps: int, in_info: bool = False,
        seed: int | None = None,
    ) -> Trial | None:  # fmt: skip
        """Take random allowed steps; the trial is of the first environment.

        Args:
            seed: the seed of its episodes, if that differs from the seed of the actions.
        """
        taps = [Tap(env, self._config.env, self._findings, self._watch) for env in envs]
        states, out = _global_random(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                trial = self._stepped(taps, steps, in_info, self._seed if seed is None else seed)
        except UnreadMask as error:
            if in_info or len(taps[0].seen) > 1:
                self._findings.add("error", "mask", str(error))
                return None
            return self._play(envs, steps, in_info=True, seed=seed)
        except EnvironmentFailure as error:
            topic = "mask" if "mask" in str(error) else "returns"
            self._findings.add("error", topic, str(error))
            return None
        self._watch.call = OWN_WORK
        if out.closed:
            text = "reset or step closes sys.stdout, which the program needs: leave it open."
            self._findings.add("error", "output", text, "closed")
        else:
            trial.printed = out.getvalue()
        trial.drew = _global_random() != states
        return trial

    def _stepped(self, taps: Sequence[Tap], steps: int, in_info: bool, seed: int) -> Trial:
        config, count = self._config, len(taps)
        prepared = [prepare(tap, config, in_info) for tap in taps]
        task = Task(config, lambda: prepared[0], *specs(prepared[0], config.env), None)
        trial = Trial(taps[0], task, in_info)
        envs: HostEnvs = task.host(prepared, seed, TRAINING)
        obs, rewards = tree.zeros(task.obs_spec, count), np.zeros(count)

        def ended(env: int, terminated: bool, truncated: bool, final: Obs) -> None:
            if not env:
                trial.lengths.append((envs.lengths[0], terminated, truncated))

        rngs = [np.random.default_rng((self._seed, env)) for env in range(count)]
        sources = RandomSources(taps[0].env)
        envs.reset_all(obs)
        end = time.monotonic() + self._limit
        for _ in range(steps):
            self._watch.call = OWN_WORK
            drawn = np.concatenate([task.action_spec.random(rng, 1) for rng in rngs])
            envs.step(task.first_allowed(drawn, obs), obs, rewards, ended)
            if time.monotonic() > end:
                break
        trial.drew_from = sources.drawn()
        return trial

    def _judge_ends(self, trial: Trial) -> None:
        """Look at how episodes ended, and at what the environment printed."""
        add, ends = self._findings.add, trial.lengths
        if trial.printed:
            shown = " ".join(trial.printed.split())[:40]
            add("warning", "output", f"it prints while it is stepped ({shown!r}): remove that.")
        if both := sum(terminated and truncated for _, terminated, truncated in ends):
            text = f"{both} of {len(ends)} episodes were terminated and truncated at once"
            add("note", "truncation", f"{text}: they count as terminated.", "both")
        if not ends:
            return
        lengths = {length for length, *_ in ends}
        if (
            len(ends) >= FEW_EPISODES
            and len(lengths) == 1
            and min(lengths) >= 10
            and all(terminated and not truncated for _, terminated, truncated in ends)
        ):
            add(
                "warning", "truncation",
                f"all {len(ends)} episodes were terminated after {min(lengths)} steps: if this is "
                "a time limit, return truncated=True instead, so that the value after it is not "
                "taken for 0.",
            )  # fmt: skip


def difference(one: Tap, other: Tap) -> str:
    """Return the first difference between two records, as a phrase; an empty string if there is
    none within the shorter one."""
    for call, ((obs, rest), (same, others)) in enumerate(zip(one.seen, other.seen, strict=False)):
        for path, array in obs.items():
            equal_nan = array.dtype.kind == "f"
            if not np.array_equal(array, same[path], equal_nan=equal_nan):
                return f"another observation{f' {path!r}' if path else ''} in {_call(call)}"
        for name, value, twin in zip(("reward", "terminated", "truncated"), rest, others,
                                     strict=False):  # fmt: skip
            nan = isinstance(value, float | np.floating)
            if not np.array_equal(value, twin, equal_nan=nan):
                return f"another {name} in {_call(call)}"
        if len(rest) != len(others):
            return f"an episode of another length, before {_call(call)}"
    return ""


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names[:3])


def _call(number: int) -> str:
    return f"call {number} after the first reset" if number else "the first reset"


def _global_random() -> tuple[Any, bytes, int]:
    """Return the state of Python's and NumPy's global random numbers."""
    _, keys, position, *_ = np.random.get_state()
    return random.getstate(), np.asarray(keys).tobytes(), int(position)
