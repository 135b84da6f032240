"""Times learning and acting, each by itself: no environment steps for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from flatout import tree
from flatout.config.placement import DeviceName, Placement
from flatout.learner.learner import Learner
from flatout.planning import measure
from flatout.planning.stages import learns
from flatout.run.device_probe import example
from flatout.run.factory import Factory
from flatout.spans import Spans
from flatout.types import ObsSpec


class LearnerProbe:
    """Makes a run's learners, one for each place, and policies.

    Args:
        make: the components of a placement.
        inline: a placement; where it learns and keeps replay is exchanged.
        factory: the components of that one.
        obs_spec: of one observation.
    """

    def __init__(
        self, make: Callable[[Placement], Factory], inline: Placement, factory: Factory,
        obs_spec: ObsSpec,
    ) -> None:  # fmt: skip
        self._make, self._inline = make, inline
        self._factory, self._spec = factory, obs_spec
        self._learners: dict[tuple[str, bool], Learner] = {}

    def learn_s(self, key: str, on_device: bool, limit_s: float) -> float:
        """Seconds to learn from a trajectory; `key` of `Stages.learn`."""
        learner = self.learner(key, on_device)
        return measure.learn_s(learner, example(learner.trajectory), limit_s)

    def learner(self, key: str, on_device: bool = False) -> Learner:
        """A compiled learner, which all placements that learn there share; trajectories of device
        environments have room of their own."""
        if (key, on_device) not in self._learners:
            where = replace(self._inline, **learns(key))
            factory = self._make(replace(where, sampler="device") if on_device else where)
            learner = factory.learner()
            learner.compile_update(factory.shapes)
            self._learners[key, on_device] = learner
        return self._learners[key, on_device]

    @cached_property
    def packed_params(self) -> tuple[Any, ...]:
        """Parameters to act with, once there is a learner."""
        learner = next(iter(self._learners.values()))
        return learner.publish(learner.start().learned)

    def act_s(self, device: DeviceName, batch: int, limit_s: float) -> float:
        """Seconds to choose so many environments' actions."""
        policy = self._factory.policy(device, batch)
        policy.compile()
        policy.publish(self.packed_params, 0, Spans())
        obs = tree.zeros(self._spec, batch)
        return measure.act_s(policy, obs, limit_s)
