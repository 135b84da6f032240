"""Collect, then learn, then collect with what was learned."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from flatout.checkpoint import PREFIX, leaf_names, named_leaves, rebuild
from flatout.learner import Learner
from flatout.params import Policy
from flatout.samplers.inline import InlineSampler
from flatout.spans import Spans
from flatout.types import Metrics, Snapshot

BUFFER = "buffer/"
"""What the buffer's arrays are named after in snapshots."""


class SerialSchedule:
    """One thread: trajectory k is collected with version k, learning from it publishes k + 1.

    Args:
        sampler: collects.
        policy: holds the published parameters.
        learner: learns.
        spans: where the time goes.
        discardable: a context in which work may be interrupted and thrown away; learning may not.
        always: the metrics that mean something also where no update was made.
    """

    def __init__(
        self,
        sampler: InlineSampler,
        policy: Policy,
        learner: Learner,
        spans: Spans,
        discardable: Callable[[], AbstractContextManager[Any]],
        always: tuple[str, ...] = (),
    ) -> None:
        self._sampler = sampler
        self._policy = policy
        self._learner = learner
        self._spans = spans
        self._discardable = discardable
        self._always = frozenset((*always, "replay_fill", "replay_mb"))
        self._version = 0

    def start(self) -> None:
        """Draw the initial parameters and reset the environments."""
        self._learner.start()
        self._publish()
        self._sampler.start()

    def advance(self, n: int) -> list[Metrics]:
        """Collect and learn `n` times."""
        history: list[Metrics] = []
        for _ in range(n):
            with self._discardable():
                trajectory = self._sampler.collect()
            values = self._learner.update(trajectory)
            self._sampler.commit()
            self._version += 1
            self._publish()
            updates = round(values.pop("updates"))
            if not updates:  # nothing was averaged
                values = {name: values[name] for name in values if name in self._always}
            history.append(
                Metrics(
                    steps=self._sampler.steps_collected,
                    updates=updates,
                    episodes=list(self._sampler.episodes),
                    values=values,
                )
            )
        return history

    @property
    def params(self) -> tuple[Any, ...]:
        """The newest actor parameters, bundled."""
        return self._learner.bundle

    def snapshot(self) -> Snapshot:
        """All state at the last iteration's boundary."""
        arrays = named_leaves(self._learner.host_state(), PREFIX)
        sampler = self._sampler.state()
        arrays["sampler/obs"] = sampler.pop("obs")
        known: list[bool] = []
        for env, actions in enumerate(sampler.pop("actions")):
            known.append(actions is not None)
            if actions is not None:
                arrays[f"sampler/actions/{env}"] = actions
        kept, books, rows = self._learner.buffer_state()
        arrays |= {BUFFER + name: array for name, array in kept.items()}
        data = {"version": self._version, "sampler": sampler | {"known": known}, "buffer": books}
        return Snapshot(arrays, data, rows)

    def restore(self, snapshot: Snapshot) -> list[str]:
        """Take over such a state; sentences about what could not be restored."""
        arrays, data = snapshot.arrays, snapshot.data
        kept = {
            name.removeprefix(BUFFER): array
            for name, array in arrays.items()
            if name.startswith(BUFFER)
        }
        books = data.get("buffer", {})
        self._learner.restore(self._learned(arrays), kept, books, snapshot.rows)
        self._version = int(data["version"])
        self._publish()
        state = dict(data["sampler"])
        state["actions"] = [
            arrays[f"sampler/actions/{env}"] if known else None
            for env, known in enumerate(state.pop("known"))
        ]
        state["obs"] = np.asarray(arrays["sampler/obs"])
        notes = self._sampler.restore(state)
        for env, final_obs, first_obs in self._sampler.restarted:
            self._learner.cut(env, final_obs, first_obs)
        return notes

    def adopt(self, arrays: dict[str, np.ndarray]) -> None:
        """Start from learned arrays (parameters, normalisers, optimiser where kept) instead of
        fresh ones; counters stay at the start."""
        own = named_leaves(self._learner.host_state(), PREFIX)
        counters = tuple(PREFIX + name for name in (".step", ".iteration", ".updates", ".epsilon"))
        own |= {name: arrays[name] for name in own if name in arrays and name not in counters}
        self._learner.adopt(self._learned(own))
        self._publish()

    def close(self) -> None:
        """Close the environments."""
        self._sampler.close()

    def _learned(self, arrays: dict[str, np.ndarray]) -> Any:
        shapes = self._learner.shapes
        return rebuild(leaf_names(shapes, PREFIX), shapes, arrays)

    def _publish(self) -> None:
        self._policy.publish(self.params, self._version, self._spans)
