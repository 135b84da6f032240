"""The machines of a cluster that step environments, and the network to them: plain data. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from flatout.planning.resets import Seconds

Count = Annotated[int, Meta(ge=1, lt=2**31)]
Rate = Annotated[float, Meta(gt=0.0, lt=1e15)]


@dataclass(frozen=True)
class Network:
    """The network between a run and the other machines of a cluster.

    Attributes:
        way_s: seconds that a worker's request, its parameters and its answer take, in addition to
            the machine's own work, as far as they do not depend on the size of the answer.
        bytes_per_s: bytes of arrays that it carries per second, in each direction.
        where: how both are known, for a reader.
        measured: False if both are assumptions.
    """

    way_s: Seconds
    bytes_per_s: Rate
    where: str = ""
    measured: bool = True

    def words(self) -> str:
        """Return a sentence about both numbers and how they are known."""
        known = "measured" if self.measured else "assumed, not measured"
        return (
            f"the network to other machines: {1e3 * self.way_s:.1f} ms for a request and its "
            f"answer, {self.bytes_per_s / 1e6:,.0f} MB/s ({known}: {self.where})"
        )


ASSUMED = Network(
    way_s=6e-3, bytes_per_s=110e6, measured=False,
    where="Ray's own time for a request, and Ethernet of 1 Gbit/s; a run with sampler=cluster, or "
    "plan with --ray-address, measures them",
)  # fmt: skip
"""Used until a run on a cluster, or planning with its address, has measured the network."""

REQUEST_S = 1.5e-3
"""Seconds in which a core of the run's machine works for one request and its answer: Ray's part."""


@dataclass(frozen=True)
class Host:
    """A machine of a cluster.

    Attributes:
        cores: that workers may use; each worker occupies one.
        here: whether it is the run's own machine, whose workers share memory with the run.
        name: for a reader.
    """

    cores: Count
    here: bool = False
    name: str = ""


@dataclass(frozen=True)
class Hosts:
    """The machines of a cluster that can step environments of a run.

    Attributes:
        machines: each with its cores.
        network: between the run and them.
        request_s: seconds in which a core of the run's machine works for one request and its
            answer.
    """

    machines: Annotated[tuple[Host, ...], Meta(min_length=1)]
    network: Network
    request_s: Seconds = REQUEST_S

    @property
    def cores(self) -> int:
        """The number of workers for which there is room."""
        return sum(host.cores for host in self.machines)

    def first(self, count: int) -> Hosts:
        """Return the first `count` of the machines."""
        return replace(self, machines=self.machines[:count])

    def assigned(self, workers: int) -> list[int]:
        """Return the number of the machine of each worker: Ray spreads them, in turns. It is -1
        for workers without room, which step on the run's machine."""
        free = [host.cores for host in self.machines]
        found: list[int] = []
        while len(found) < workers and any(free):
            for number, room in enumerate(free):
                if room and len(found) < workers:
                    free[number] -= 1
                    found.append(number)
        return found + [-1] * (workers - len(found))


def alike(count: int, cores: int, network: Network) -> Hosts:
    """Return machines like this one, this one among them."""
    return Hosts(tuple(Host(cores, here=number == 0) for number in range(count)), network)
