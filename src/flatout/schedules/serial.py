"""Step 2 of the data flow, inline: collect a trajectory, learn from it, publish the parameters."""

from __future__ import annotations

from flatout.schedules.base import Schedule
from flatout.types import Metrics


class SerialSchedule(Schedule):
    """A schedule in one thread: collect trajectory k with version k, learn, publish k + 1."""

    def _iterate(self) -> Metrics:
        resumed = bool(self._pending)  # from an overlapped run
        pending = self._pending.popleft() if resumed else self._collect(self._version)
        self._state, packed, values = self._learn(self._state, pending)
        if not resumed:
            self._sampler.commit()
        self._version += 1
        self._publish(packed, self._version)
        return self._metrics(values, pending)
