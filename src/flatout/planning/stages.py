"""Measured costs of a run's parts on one machine, as plain data. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from flatout.config.placement import Placement, parse
from flatout.errors import UsageError, short

SLICES = 33
"""Numbers that describe the distribution of an environment's steps."""

IN_A_PROGRAM = ("rollout", "stepping", "inside", "apart")
"""What is measured of environments that step in a compiled program."""

Curve = tuple[tuple[int, float], ...]
"""Seconds of a call by batch size, ascending."""


@dataclass(frozen=True)
class Stages:
    """What each part of one run costs on one machine. All times are in seconds.

    Attributes:
        envs: N, environments; horizon: T, steps of each in an iteration.
        cores: that the run may use, and `full`, a core's relative speed while all of them work.
        env: of one environment's step, resets included: means of equal slices of the sorted
            durations.
        computing: share of it in which a core works; the rest is sleep.
        lanes: environments of one group that step at the same time (a vector environment with
            threads of its own); 1 is one after another.
        call: what stepping a group costs beside its environments.
        turn: the sampler's bookkeeping for a group's step.
        act: of choosing actions, by device and batch size.
        learn: of an iteration's learning, with its batches and transfers, by `learning`.
        width: cores that learning keeps busy.
        iteration: dispatches, publishing and bookkeeping of one iteration.
        trip: the way to actor processes and back, for one of their turns.
        message: what one actor process costs the main one in each turn.
        local: of choosing actions in actor processes, by batch size.
        trajectory: what a trajectory costs with ``inference=local``, beside its steps.
        spread: relative half-width of the interval in which repetitions lay.
        rollout: of an iteration's steps and actions in a compiled loop, by devices; empty where no
            environment steps there. `stepping` is of the same with random actions.
        inside: of an iteration's learning in such a loop, by devices.
        apart: what a trajectory costs beside `rollout` where its program is one of its own.
    """

    envs: int
    horizon: int
    cores: int
    env: tuple[float, ...]
    act: Mapping[str, Curve]
    learn: Mapping[str, float]
    full: float = 0.9
    computing: float = 1.0
    lanes: int = 1
    call: float = 0.0
    turn: float = 0.0
    width: float = 1.0
    iteration: float = 0.0
    trip: float = 1e-4
    message: float = 2e-5
    local: Curve = ()
    trajectory: float = 0.0
    spread: float = 0.05
    memory: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    rollout: Mapping[str, float] = field(default_factory=dict[str, float])
    stepping: Mapping[str, float] = field(default_factory=dict[str, float])
    inside: Mapping[str, float] = field(default_factory=dict[str, float])
    apart: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def steps(self) -> int:
        """Environment steps of an iteration."""
        return self.envs * self.horizon

    @property
    def env_s(self) -> float:
        """Mean seconds of an environment's step."""
        return sum(self.env) / len(self.env)

    def as_json(self) -> dict[str, Any]:
        """The values for a file."""
        return asdict(self)

    @staticmethod
    def from_json(values: Any) -> Stages:
        """The inverse of `as_json`.

        Raises:
            UsageError: it is no such object, or a number in it is impossible.
        """
        try:
            given = {spec.name: values[spec.name] for spec in fields(Stages)}
            given["env"] = tuple(float(s) for s in given["env"])
            given["act"] = {name: _curve(points) for name, points in given["act"].items()}
            given["local"] = _curve(given["local"])
            for name in ("learn", *IN_A_PROGRAM):
                given[name] = {str(n): float(s) for n, s in given[name].items()}
            stages = Stages(**given)
            stages.check()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"these are no measured costs: {misfit(error)}.") from error
        return stages

    def check(self) -> None:
        """Raise `InvalidNumberError` where a number is impossible."""
        times = [*self.env, *self.learn.values(), self.call, self.turn, self.iteration, self.trip,
                 self.message, self.trajectory, self.spread]  # fmt: skip
        times += [seconds for name in IN_A_PROGRAM for seconds in getattr(self, name).values()]
        times += [seconds for curve in (*self.act.values(), self.local) for _, seconds in curve]
        if not all(0.0 <= seconds < 1e6 for seconds in times):
            raise InvalidNumberError("a time is negative or no number")
        if min(self.envs, self.horizon, self.cores, self.lanes, len(self.env)) < 1:
            raise InvalidNumberError("a count is below 1")
        if not (0.0 < self.full <= 1.0 and 0.0 <= self.computing <= 1.0 and self.width > 0.0):
            raise InvalidNumberError("a share is not between 0 and 1")

    def faster_envs(self, times: float) -> Stages:
        """These costs with environments that step `times` times as fast."""
        whole, env = self.rollout, tuple(seconds / times for seconds in self.env)
        steps = {place: min(self.stepping.get(place, 0.0), s) for place, s in whole.items()}
        stepping = {place: seconds / times for place, seconds in steps.items()}
        rollout = {place: s - steps[place] + stepping[place] for place, s in whole.items()}
        return replace(self, env=env, stepping=stepping, rollout=rollout)


class InvalidNumberError(ValueError):
    """A number that no measurement gives; the text says which."""


def misfit(error: Exception) -> str:
    """Why the values of a file are not what they should be, without Python's own words."""
    if isinstance(error, KeyError):
        return f"{short(error.args[0])} is missing"
    if isinstance(error, InvalidNumberError):
        return str(error)
    return "a value has another type or form than it should"


def learning(devices: str, replay: str) -> str:
    """The key of `Stages.learn`: where learning happens, and where replay is kept."""
    return f"{devices} {replay}"


def learning_of(placement: Placement) -> str:
    """The key of `Stages.learn` for a placement."""
    devices = ",".join(map(str, placement.learn))
    return learning(devices, "device" if placement.replay_on_device else "cpu")


def learns(key: str) -> dict[str, Any]:
    """The fields of a placement that such a key stands for."""
    devices, replay = key.split(" ")
    return {"learn": parse(f"act={devices}").act, "replay": replay}


def at(curve: Curve, batch: int) -> float:
    """Seconds for a batch: between measured sizes, and beyond the largest with its last slope."""
    if not curve:
        raise ValueError("nothing was measured")
    if len(curve) == 1 or batch <= curve[0][0]:
        return curve[0][1]
    pairs = list(itertools.pairwise(curve))
    (x0, y0), (x1, y1) = next((p for p in pairs if batch <= p[1][0]), pairs[-1])
    return max(y0 + (y1 - y0) * (batch - x0) / (x1 - x0), y0 if batch >= x0 else 0.0)


def _curve(points: Any) -> Curve:
    return tuple(sorted((int(batch), float(seconds)) for batch, seconds in points))
