"""Measured costs of a run's parts on one machine, as plain data. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from msgspec import Meta

from flatout.config.placement import Placement, parse
from flatout.planning.hosts import Hosts
from flatout.planning.resets import NO_RESETS, Resets, Seconds

SLICES = 33
"""Numbers that describe the distribution of an environment's steps."""

Count = Annotated[int, Meta(ge=1, lt=2**53)]

Bytes = Annotated[float, Meta(ge=0.0, lt=1e15)]

Curve = tuple[tuple[int, Seconds], ...]
"""Seconds of a call by batch size, ascending."""


@dataclass(frozen=True)
class Stages:
    """The cost of each part of one run on one machine. All times are in seconds.

    Attributes:
        envs: N, environments; horizon: T, steps of each in an iteration.
        cores: that the run may use, and `full`, a core's relative speed while all of them work.
        running: how many of the cores ran at once for busy processes, where that is clearly fewer;
            None if all of them did, or nothing was measured.
        env: of one environment's step, without resets: means of equal slices of the sorted
            durations.
        resets: of the environments.
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
        step_bytes: bytes of a trajectory for each step of an environment, and `params_bytes`, of
            the parameters that act: what travels to and from other machines.
        hosts: machines of a cluster that can step environments; None without one.
    """

    envs: Count
    horizon: Count
    cores: Count
    env: Annotated[tuple[Seconds, ...], Meta(min_length=1)]
    act: Mapping[str, Curve]
    learn: Mapping[str, Seconds]
    full: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.9
    computing: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    lanes: Count = 1
    call: Seconds = 0.0
    turn: Seconds = 0.0
    width: Annotated[float, Meta(gt=0.0, lt=1e6)] = 1.0
    iteration: Seconds = 0.0
    trip: Seconds = 1e-4
    message: Seconds = 2e-5
    local: Curve = ()
    trajectory: Seconds = 0.0
    spread: Seconds = 0.05
    rollout: Mapping[str, Seconds] = field(default_factory=dict[str, float])
    stepping: Mapping[str, Seconds] = field(default_factory=dict[str, float])
    inside: Mapping[str, Seconds] = field(default_factory=dict[str, float])
    apart: Mapping[str, Seconds] = field(default_factory=dict[str, float])
    running: Annotated[float, Meta(gt=0.0, lt=2**53)] | None = None
    resets: Resets = NO_RESETS
    step_bytes: Bytes = 0.0
    params_bytes: Bytes = 0.0
    hosts: Hosts | None = None

    @property
    def at_once(self) -> float:
        """Cores that run at the same time for this run, at least one."""
        return self.cores if self.running is None else min(max(self.running, 1.0), self.cores)

    @property
    def steps(self) -> int:
        """Environment steps of an iteration."""
        return self.envs * self.horizon

    @property
    def env_s(self) -> float:
        """Mean seconds of an environment's step, without resets."""
        return sum(self.env) / len(self.env)

    def faster_envs(self, times: float) -> Stages:
        """These costs with environments that step `times` times as fast."""
        whole, env = self.rollout, tuple(seconds / times for seconds in self.env)
        steps = {place: min(self.stepping.get(place, 0.0), s) for place, s in whole.items()}
        stepping = {place: seconds / times for place, seconds in steps.items()}
        rollout = {place: s - steps[place] + stepping[place] for place, s in whole.items()}
        resets = self.resets.faster(times)
        return replace(self, env=env, resets=resets, stepping=stepping, rollout=rollout)


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
