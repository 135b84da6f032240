"""An episode's memory, of acting and of learning, begins again with the next, however it ended."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.algorithms.base import RolloutSpec
from flatout.engine.collect import CentralSampler
from flatout.engine.groups import ActingGroup, InlineEnvGroup
from flatout.engine.rollout_buffer import RolloutBuffer
from flatout.packing import OutputLayout
from flatout.spans import Spans
from flatout.types import Trajectory
from tests.engine.test_collect import SPEC, Scripted, T

SIZES = 2, 1
"""The number of environments of each acting group."""


class Counting:
    """A recurrent policy whose carry counts the steps since an episode's start. It also returns the
    count as `seen`."""

    recurrent = True

    def __init__(self, count: int) -> None:
        self.num_envs = count
        shapes = {"action": np.int32, "seen": np.float32}
        self.layout = OutputLayout(
            {name: jax.ShapeDtypeStruct((count,), kind) for name, kind in shapes.items()}
        )
        self._newest = self._before = np.zeros(count, np.int32)

    def begin(self, obs: Any, step: int, first: int, begun: np.ndarray) -> np.ndarray:
        self._before, seen = self._newest, self.carry(first, begun)
        self._newest = seen + 1
        outputs = [np.zeros(self.num_envs, np.int32), seen.astype(np.float32)]
        return np.concatenate([part.view(np.uint32) for part in outputs])

    def carry(self, first: int, begun: np.ndarray) -> np.ndarray:
        return np.where(begun, 0, self._newest)

    def set_carry(self, carry: np.ndarray, first: int) -> None:
        self._newest = self._before = carry

    def undo(self, first: int) -> None:
        self._newest = self._before


class Losing(InlineEnvGroup):
    """A group that loses one of its environments before each of the steps `losses`."""

    def __init__(self, envs: Scripted, buffers: Any, losses: set[int]) -> None:
        super().__init__(envs, buffers, envs.first)
        self.losses, self.steps = losses, -1

    def receive(self, ended: Any) -> Any:
        self.steps += 1
        slot, t, _, _ = self._begun
        if self.steps not in self.losses:
            return super().receive(ended)
        self.losses = self.losses - {self.steps}
        self.steps -= 1
        env = t % self.num_envs
        last = self._obs[slot][t, env].copy()
        self._envs.reset(env, self._obs[slot][t])
        return [(env, last)]

    def repeat_step(self, actions: np.ndarray) -> None:
        slot, t, _, active = self._begun
        self._begun = (slot, t, actions, active)


def made(losses: list[set[int]], lives: bool, slots: int) -> tuple[CentralSampler, list[Scripted]]:
    policies = [Counting(size) for size in SIZES]
    buffers = [
        RolloutBuffer(RolloutSpec(T, None, 1, True), sum(SIZES), SPEC, [p.layout for p in policies])
        for _ in range(slots)
    ]
    envs = [
        Scripted(first, size, [], lives=lives) for first, size in zip((0, 2), SIZES, strict=True)
    ]
    groups: list[list[Any]] = []
    for one, policy, lost in zip(envs, policies, losses, strict=True):
        group = Losing(one, buffers, lost)
        groups.append([ActingGroup(group, policy)])  # type: ignore[arg-type]
    return CentralSampler(groups, buffers, "script", None, Spans(), life_loss=lives), envs


def check_carry(trajectory: Trajectory, lives: bool) -> None:
    """Check that acting counted each episode's steps, and that an update counts the same ones from
    the trajectory's carry."""
    carry, seen = trajectory.carry, trajectory.extras["seen"]
    of_episode = trajectory.obs[..., 2]
    np.testing.assert_array_equal(seen, of_episode % 2 if lives else of_episode)
    for t in range(T):
        np.testing.assert_array_equal(seen[t], carry)
        done: Any = trajectory.terminated[t] | trajectory.truncated[t]
        carry = np.where(done, 0, carry + 1)


STEPS = st.sets(st.integers(0, 3 * T - 1), max_size=4)


@settings(deadline=None)
@given(st.tuples(STEPS, STEPS), st.booleans(), st.integers(1, 2), st.booleans())
def test_a_carry_lasts_for_one_episode(
    losses: tuple[set[int], set[int]], lives: bool, slots: int, resumes: bool
) -> None:
    sampler, _ = made(list(losses), lives, slots)
    sampler.start()
    for _ in range(3):
        check_carry(sampler.collect()[0], lives)
        sampler.commit()
    if resumes:
        state = sampler.state()
        sampler, envs = made([set(), set()], lives, slots)
        envs[0].shift = 9  # its episodes do not reproduce and are restarted
        (note,) = sampler.restore(state)
        assert note.startswith("environments 0, 1: the episode of each does not reproduce")
        check_carry(sampler.collect()[0], lives)
