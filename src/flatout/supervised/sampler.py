"""A dataset as a sampler, for the schedule: batches of labelled examples, gathered while the
learner uses the previous ones."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from flatout.algorithms.base import RolloutSpec
from flatout.engine.finals import pack_finals
from flatout.engine.rollout_buffer import step_arrays
from flatout.engine.sampler import Sampler
from flatout.errors import CheckpointError
from flatout.spans import Spans
from flatout.supervised.datasets import Dataset
from flatout.types import Trajectory

AHEAD = 2
"""The number of trajectories that are gathered in advance."""


class DatasetSampler(Sampler):
    """A sampler of U batches of B examples at a time. The first time they are fewer, up to a
    multiple of U, if a run continues at another step.

    An epoch has every example once, in a new order. The examples of a step are a function of
    (seed, step), so that a run can resume at any step.

    Args:
        dataset: the examples.
        steps: U.
        batch: B.
        seed: raw key of the random stream that orders epochs.
        spans: records the time spent.
    """

    def __init__(
        self, dataset: Dataset, steps: int, batch: int, seed: np.ndarray, spans: Spans
    ) -> None:
        super().__init__()
        self._dataset, self._steps, self._batch = dataset, steps, batch
        self._seed = seed
        self._spans = spans
        self._position = 0  # steps learned from
        self._collected = steps  # by the last call
        self._orders: dict[int, np.ndarray] = {}
        self._gathered = 0  # steps whose examples are gathered, or will be
        self._thread: ThreadPoolExecutor | None = None
        self._ready: deque[Future[Trajectory]] = deque()

    @property
    def steps_collected(self) -> int:
        """The number of batches, because a step of a classifier is a batch."""
        return self._collected

    def start(self) -> None:
        """Start the thread that gathers batches."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="input")
        self._gathered = self._position
        for _ in range(AHEAD):
            self._gather_next()

    def _gather_next(self) -> None:
        assert self._thread is not None
        self._ready.append(self._thread.submit(self.gathered, self._gathered))
        self._gathered += self._count(self._gathered)

    def _count(self, first: int) -> int:
        """Return the number of steps from `first` to the next multiple of U."""
        return self._steps - first % self._steps

    def collect(self, environments: Any = None, params: Any = ()) -> tuple[Trajectory, None]:
        """Wait for the next batches and return them; re-raise an exception of the thread."""
        with self._spans.span("input"):
            trajectory = self._ready[0].result()
        self._ready.popleft()
        self._gather_next()
        self._collected = len(trajectory.actions)
        return trajectory, None

    def commit(self) -> None:
        self._position += self._collected

    def state(self, environments: Any = None) -> dict[str, Any]:
        return {"position": self._position, "obs": np.zeros(0, np.uint8), "actions": []}

    def restore(self, state: dict[str, Any]) -> list[str]:
        if type(state["position"]) is not int or not 0 <= state["position"] < 2**53:
            raise CheckpointError(f"its position {str(state['position'])[:40]} is impossible.")
        self.close()
        self._position = state["position"]
        self.start()
        return []

    def close(self) -> None:
        """Stop the thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self._thread = None
        self._ready.clear()

    def gathered(self, first: int) -> Trajectory:
        """Return the batches from step `first` to before the next multiple of U."""
        size, steps = len(self._dataset.train_y), self._count(first)
        number = first * self._batch + np.arange(steps * self._batch)
        epochs, places = np.divmod(number, size)
        rows = np.empty(len(number), np.int64)
        for epoch in range(epochs[0], epochs[-1] + 1):
            mine = epochs == epoch
            rows[mine] = self._order(epoch)[places[mine]]
        for old in [epoch for epoch in self._orders if epoch < epochs[-1]]:
            del self._orders[old]
        return batches(self._dataset.train_x[rows], self._dataset.train_y[rows], steps, self._batch)

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            entropy = [*map(int, self._seed), epoch]
            rng = np.random.default_rng(np.random.SeedSequence(entropy))
            self._orders[epoch] = rng.permutation(len(self._dataset.train_y))
        return self._orders[epoch]


def batches(examples: Any, labels: Any, steps: int, batch: int) -> Trajectory:
    """Return examples ``[U * B, ...]`` and labels ``[U * B]`` as a trajectory for the learner.

    Examples are its `obs` and labels its `actions`, ``[U, B, ...]``; all else is zeros or empty.
    """
    rollout = RolloutSpec(steps, None, 0, replayed=False)
    unused = step_arrays(rollout, batch, {})  # without observations
    return Trajectory(
        obs=examples.reshape(steps, batch, *examples.shape[1:]),
        actions=labels.reshape(steps, batch),
        last_obs=np.zeros((batch, 0), examples.dtype),
        finals=pack_finals(np.zeros(0, np.int32), examples[:0], steps * batch, 0),
        extras={},
        **{name: np.zeros(shape, dtype) for name, (shape, dtype) in unused.items()},
    )
