"""The traffic between a run and the machines of a cluster: bytes, round trips, and clocks. Pure.

Each answer says when its machine began and ended to work, by that machine's own clock. The clock's
difference from the run's follows from the round trip, as in the network time protocol: what is
known of it is exact to half of the time that the request and its answer were on their way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from flatout.spans import Work

DRIFT = 1e-4
"""Seconds per second by which the clocks of two machines may come to differ."""

WAITED_S = 1e-3
"""Seconds from which on the run has waited for an answer, so that its arrival is known."""


class Trip(NamedTuple):
    """A request for a trajectory and its answer.

    Attributes:
        sent, arrived: by the run's clock.
        began, ended: when the machine worked on it, by the machine's clock.
        waited: whether the run waited for the answer; otherwise it may have arrived earlier.
    """

    sent: float
    began: float
    ended: float
    arrived: float
    waited: bool = True

    @property
    def on_the_way_s(self) -> float:
        """Seconds of the round trip in addition to the machine's own work."""
        return (self.arrived - self.sent) - (self.ended - self.began)


@dataclass
class Clock:
    """The difference of a machine's clock from the run's.

    Attributes:
        offset_s: seconds that it is ahead.
        uncertainty_s: by how much that may be wrong; infinite before the first answer.
    """

    offset_s: float = 0.0
    uncertainty_s: float = math.inf
    _at: float = 0.0

    def align(self, trip: Trip) -> None:
        """Take the midpoint of a round trip, if that is more certain than what is known. An old
        estimate becomes less certain, because clocks drift."""
        uncertainty = max(trip.on_the_way_s, 0.0) / 2.0
        if uncertainty <= self.uncertainty_s + DRIFT * (trip.arrived - self._at):
            self.offset_s = ((trip.began - trip.sent) + (trip.ended - trip.arrived)) / 2.0
            self.uncertainty_s, self._at = uncertainty, trip.arrived


@dataclass
class Machine:
    """A machine's part in collecting.

    Attributes:
        name: for a reader; different for all machines.
        here: whether it is the run's own.
        bytes_per_s: that the network carried from it; 0 if that was not measured.
        clock: its clock.
        work_s: seconds in which at least one of its workers collected.
        way_s: seconds in which its requests and answers were on their way.
        held_s: seconds for which the run waited for this machine alone.
        trajectories: that its workers collected.
    """

    name: str
    here: bool = False
    bytes_per_s: float = 0.0
    clock: Clock = field(default_factory=Clock)
    work_s: float = 0.0
    way_s: float = 0.0
    held_s: float = 0.0
    trajectories: int = 0


class Traffic:
    """The bytes and times of the trajectories of a run on a cluster.

    Attributes:
        machines: by the number of their node.
        array_bytes: bytes of the arrays of trajectories from other machines; `steps`, their steps.
        round_trip_s: the shortest time that a request and its trajectory took in addition to the
            machine's own work; infinite before the first. `round_trip_bytes` were sent with it.
    """

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        self.array_bytes = self.steps = 0
        self.round_trip_s, self.round_trip_bytes = math.inf, 0
        self._round: list[tuple[Machine, Trip]] = []

    def machine(self, node: str, name: str, here: bool = False) -> Machine:
        """Return the machine of a node; nodes of one machine have different names."""
        if node not in self.machines:
            alike = sum(one.name.partition(" (")[0] == name for one in self.machines.values())
            unique = f"{name} ({alike + 1})" if alike else name
            clock = Clock(0.0, 0.0) if here else Clock()
            self.machines[node] = Machine(unique, here, clock=clock)
        return self.machines[node]

    def trajectory(
        self, machine: Machine, trip: Trip, steps: int, array_bytes: int, sent_bytes: int = 0
    ) -> None:
        """Count a worker's trajectory.

        Args:
            steps: of its environments.
            array_bytes: of its arrays; 0 if they did not cross the network.
            sent_bytes: of the parameters that the machine fetched for it.
        """
        machine.trajectories += 1
        self._round.append((machine, trip))
        if machine.here:
            return
        self.array_bytes += array_bytes
        self.steps += steps
        machine.clock.align(trip)
        if trip.on_the_way_s < self.round_trip_s:
            self.round_trip_s = max(trip.on_the_way_s, 0.0)
            self.round_trip_bytes = array_bytes + sent_bytes

    def end_round(self) -> None:
        """Add up the times of the workers that have collected one trajectory of the run."""
        trips, self._round = self._round, []
        ready: dict[str, float] = {}
        for machine in self.machines.values():
            mine = [trip for one, trip in trips if one is machine]
            if not mine:
                continue
            offset = machine.clock.offset_s
            sent = min(trip.sent for trip in mine)
            began = max(min(trip.began for trip in mine) - offset, sent)
            last = max(mine, key=lambda trip: trip.ended)
            ended = min(max(last.ended - offset, began), max(last.arrived, began))
            back = last.arrived - ended
            if not last.waited:  # it arrived earlier: probably as fast as the request
                back = min(back, began - sent)
            machine.work_s += ended - began
            machine.way_s += (began - sent) + back
            ready[machine.name] = ended + back
        if not ready:
            return
        begin = min(trip.sent for _, trip in trips)
        *others, latest = sorted(ready.values())
        for machine in self.machines.values():
            if ready.get(machine.name) == latest:
                machine.held_s += max(latest - max([begin, *others]), 0.0)
                break

    def figures(self) -> dict[str, float]:
        """Return the figures for `flow` in a run's summary; empty before the first trajectory."""
        if not self.steps:
            return {}
        each = self.array_bytes / self.steps
        found = {
            "network_bytes_per_step": round(each, 1),
            "network_round_trip_s": round(self.round_trip_s, 6),
        }
        # The fastest machine is the best known bound of what this machine's network carries.
        if rate := max((one.bytes_per_s for one in self.machines.values()), default=0.0):
            way_s = max(self.round_trip_s - self.round_trip_bytes / rate, 0.0)
            found |= {
                "network_way_s": round(way_s, 6), "network_bytes_per_s": round(rate),
                "network_full_steps_per_s": round(rate / max(each, 1e-9)),
            }  # fmt: skip
        clocks = [one.clock.uncertainty_s for one in self.machines.values() if not one.here]
        known = [uncertainty for uncertainty in clocks if math.isfinite(uncertainty)]
        return found | {"network_clocks_s": round(max(known, default=0.0), 6)}

    def work(self) -> dict[str, Work]:
        """Return the times of each machine, as work of a lane."""
        return {
            f"machine {one.name}": Work(
                {"work": one.work_s, "way": one.way_s, "held": one.held_s}, one.trajectories,
                clock_s=one.clock.uncertainty_s if math.isfinite(one.clock.uncertainty_s) else 0.0,
            )
            for one in self.machines.values() if one.trajectories
        }  # fmt: skip
