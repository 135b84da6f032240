"""Random episodes whose steps are all recorded, and the transitions that a ring must give for them.

Tests of algorithms, buffers, the learner and storage use them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from flatout.algorithms.base import ReplaySpec
from flatout.engine.replay.counters import RingCounters
from flatout.engine.replay.ring import Gathered, Ring, RingLayout, gather, ring_shapes
from flatout.types import Batch, Finals, ObservationSpec, Trajectory

VECTOR = ObservationSpec((3,), "float32")
NEEDS = ReplaySpec(
    batch_size=4, train_freq=1, gradient_steps=1, learning_starts=0, buffer_size=1, n_step=1,
    total_steps=1000,
)  # fmt: skip
GAMMA = 0.9
"""The default discount."""


def image(stack: int, pad: str = "first", channels: int = 1, side: int = 2) -> ObservationSpec:
    """Return the space of a small image with a frame stack."""
    return ObservationSpec((side, 3, stack * channels), "uint8", 255, stack, pad)


@dataclass(frozen=True)
class Rates:
    """The probabilities that a step terminates, is truncated, or loses a life."""

    terminated: float = 0.1
    truncated: float = 0.1
    life: float = 0.1


@dataclass
class Step:
    """One recorded step; `after` is the next observation of the same episode."""

    obs: np.ndarray
    action: Any
    reward: float
    after: np.ndarray
    terminated: bool
    truncated: bool


@dataclass
class World:
    """Random episodes of N environments. Every step is recorded with whole observations.

    Args:
        spec: one observation.
        num_envs: N.
        seed: the seed of all random numbers.
        rates: the probabilities of episodes' ends.
        box: the number of components of continuous actions; 0 for discrete ones.
        room: the initial capacity for final observations; 0 for N.
    """

    spec: ObservationSpec
    num_envs: int
    seed: int
    rates: Rates = field(default_factory=Rates)
    box: int = 0
    room: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.steps: list[list[Step]] = [[] for _ in range(self.num_envs)]
        self.made, self.room = 0, self.room or self.num_envs
        self.episodes = [[self.frame()] for _ in range(self.num_envs)]

    def frame(self) -> np.ndarray:
        """Return a new frame, which is unique: the pixels of an image contain a number."""
        shape = (*self.spec.shape[:-1], self.spec.shape[-1] // self.spec.stack)
        if self.spec.dtype != "uint8":
            return self.rng.normal(size=shape).astype(self.spec.dtype)
        self.made += 1
        out = self.rng.integers(0, 256, shape).astype(np.uint8)
        out.reshape(-1)[:4] = np.frombuffer(np.uint32(self.made).tobytes(), np.uint8)
        return out

    def seen(self, lane: int) -> np.ndarray:
        """Return the lane's current observation, stacked."""
        frames, depth = self.episodes[lane], self.spec.stack
        blank = frames[0] if self.spec.stack_pad == "first" else np.zeros_like(frames[0])
        missing = max(depth - len(frames), 0)
        return np.concatenate([blank] * missing + frames[-depth:], axis=-1)

    def collect(self, rows: int) -> Trajectory:
        """Make `rows` steps of every lane and return them as a sampler does."""
        rng, num_envs, spec = self.rng, self.num_envs, self.spec
        obs = np.zeros((rows + 1, num_envs, *spec.shape), spec.dtype)
        shape = (rows, num_envs, self.box) if self.box else (rows, num_envs)
        actions = rng.uniform(-1, 1, shape).astype(np.float32)
        if not self.box:
            actions = rng.integers(0, 3, shape).astype(np.int32)
        rewards = rng.normal(size=(rows, num_envs)).astype(np.float32)
        terminated, truncated, ended = np.zeros((3, rows, num_envs), np.bool_)
        finals: list[tuple[int, np.ndarray]] = []
        for t in range(rows):
            for lane in range(num_envs):
                before = obs[t, lane] = self.seen(lane)
                self.episodes[lane].append(self.frame())
                after = self.seen(lane)
                over, cut, lost = rng.random(3) < (
                    self.rates.terminated, self.rates.truncated, self.rates.life
                )  # fmt: skip
                cut = cut and not over
                terminated[t, lane] = over or (lost and not cut)
                truncated[t, lane], ended[t, lane] = cut, over or cut
                step = Step(
                    before.copy(), actions[t, lane], rewards[t, lane], after,
                    bool(terminated[t, lane]), bool(cut),
                )  # fmt: skip
                self.steps[lane].append(step)
                if cut:
                    finals.append((t * num_envs + lane, after))
                if ended[t, lane]:
                    self.episodes[lane] = [self.frame()]
        obs[rows] = [self.seen(lane) for lane in range(num_envs)]
        while self.room < len(finals):
            self.room *= 2
        final_obs = np.zeros((self.room, *spec.shape), spec.dtype)
        final_index = np.full(self.room, rows * num_envs, np.int32)
        for i, (index, final) in enumerate(finals):
            final_index[i], final_obs[i] = index, final
        return Trajectory(
            obs=obs[:-1], actions=actions, rewards=rewards, terminated=terminated,
            truncated=truncated, last_obs=obs[-1], finals=Finals(final_obs, final_index),
            extras={}, ended=ended,
        )  # fmt: skip

    def restart(self, lane: int) -> tuple[np.ndarray, np.ndarray]:
        """Truncate the lane's episode, as if it could not be restored, and begin the next one.

        If the last step ended the episode or lost a life, it is not marked as truncated.

        Returns:
            The last observation of the episode and the first of the next one.
        """
        final = self.seen(lane)
        fresh = len(self.episodes[lane]) == 1
        if self.steps[lane] and not fresh and not self.steps[lane][-1].terminated:
            self.steps[lane][-1].truncated = True
        self.episodes[lane] = [self.frame()]
        return final, self.seen(lane)


def wanted(
    world: World, layout: RingLayout, rows_written: int, row: int, lane: int, gamma: float
) -> Batch:
    """Compute one transition from the list of all steps, by the definition."""
    steps = world.steps[lane]
    total, discount, after = 0.0, 1.0, None
    for number in range(row, min(row + layout.n_step, rows_written)):
        step = steps[number]
        total += discount * float(step.reward)
        discount *= gamma
        after = step.after
        if step.terminated:
            discount = 0.0
        if step.terminated or step.truncated:
            break
    return Batch(steps[row].obs, steps[row].action, total, after, discount, 1.0)


class Store:
    """A ring in host memory and its ledger, without the programs of a buffer."""

    def __init__(self, layout: RingLayout) -> None:
        self.layout = layout
        self.ring_counters = RingCounters(layout, NEEDS)
        like = World(layout.spec, layout.num_envs, 0).collect(1)
        shapes = ring_shapes(layout, like, layout.num_envs)
        self.ring = Ring(*(np.zeros(shape.shape, shape.dtype) for shape in shapes))

    def take(self, trajectory: Trajectory) -> None:
        """Ingest a trajectory, as `HostReplay.ingest` does."""
        self.ring, _ = self.ring_counters.write(self.ring, trajectory)

    def cut(self, world: World, lane: int) -> None:
        """Lose the lane's episode, as if it could not be restored."""
        self.ring = self.ring_counters.truncate(self.ring, lane, *world.restart(lane))


def grid(layout: RingLayout, rows_written: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows and lanes that can be sampled."""
    first, count = layout.window(rows_written)
    row, lane = np.meshgrid(
        np.arange(first, first + count), np.arange(layout.num_envs), indexing="ij"
    )
    return row.reshape(-1).astype(np.int32), lane.reshape(-1).astype(np.int32)


def plain(layout: RingLayout, found: Gathered, gamma: float = GAMMA) -> Batch:
    """Compute in NumPy the batch that `merge` must make."""
    powers = gamma ** np.arange(layout.n_step)
    counted = np.arange(layout.n_step) < found.steps[:, None]
    rewards = (found.rewards * powers * counted).sum(-1).astype(np.float32)
    discounts = np.where(found.terminated, 0, gamma ** found.steps.astype(np.float64))

    depth = layout.spec.stack

    def whole(frames: np.ndarray) -> np.ndarray:
        if depth == 1:
            return frames[:, 0]
        return np.moveaxis(frames, 1, 3).reshape(len(frames), *layout.spec.shape)

    return Batch(
        whole(found.frames[:, :depth]), found.actions, rewards, whole(found.frames[:, -depth:]),
        discounts.astype(np.float32), found.weights,
    )  # fmt: skip


def assert_right(
    world: World, layout: RingLayout, ring: Ring, rows_written: int, gamma: float = GAMMA
) -> None:
    """Check every transition that can be sampled against the list of all steps."""
    row, lane = grid(layout, rows_written)
    batch = plain(layout, gather(np, layout, ring, rows_written, row, lane), gamma)
    compare(world, layout, batch, rows_written, row, lane, gamma)


def compare(
    world: World, layout: RingLayout, batch: Batch, rows_written: int, row: np.ndarray,
    lane: np.ndarray, gamma: float = GAMMA,
) -> None:  # fmt: skip
    """Check each of a batch's transitions against the list of all steps."""
    assert batch.rewards.dtype == batch.discounts.dtype == batch.weights.dtype == np.float32
    assert batch.obs.dtype == batch.next_obs.dtype == layout.spec.dtype
    for i, (r, n) in enumerate(zip(row.tolist(), lane.tolist(), strict=True)):
        right = wanted(world, layout, rows_written, r, n, gamma)
        np.testing.assert_array_equal(batch.obs[i], right.obs, err_msg=f"obs of {r}, {n}")
        np.testing.assert_array_equal(batch.actions[i], right.actions)
        assert batch.rewards[i] == pytest.approx(right.rewards, rel=1e-5, abs=1e-6)
        assert batch.discounts[i] == pytest.approx(right.discounts, rel=1e-6)
        assert batch.weights[i] == 1
        if right.discounts:  # after a terminal step the next observation has no meaning
            np.testing.assert_array_equal(batch.next_obs[i], right.next_obs, err_msg=f"{r}, {n}")
