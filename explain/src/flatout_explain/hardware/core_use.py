"""The mean use of the cores, of a program and of others, from the monitor's samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flatout_explain.hardware.monitor import MonitorSample
from flatout_explain.timespans import weighted_mean


@dataclass(frozen=True)
class CoreUse:
    """The mean use of the cores over some time; every figure in cores or threads.

    Attributes:
        cores: cores that the program may use.
        used: cores that the program used.
        others: cores that other programs used, or the host took.
        delayed: threads of the program that were ready to run and had no core; None if unknown.
        runnable: threads of the program that ran or were ready to; None if unknown.
        stolen: cores that the host took.
        programs: cores that each of the busiest other programs used, at most `others` together.
        throttled: threads that a CPU quota stopped, which are not among `delayed`.
    """

    cores: int
    used: float
    others: float
    delayed: float | None = None
    runnable: float | None = None
    stolen: float = 0.0
    programs: tuple[tuple[str, float], ...] = ()
    throttled: float = 0.0

    @property
    def wanting(self) -> float | None:
        """Threads of the program that ran or were ready to, on average: as the kernel counts their
        time, or else by looks; None if unknown."""
        return self.runnable if self.delayed is None else self.used + self.delayed

    @property
    def stopped(self) -> float:
        """Share of the core time that the program could have used without its CPU quota."""
        return quota_share(self.throttled, self.used)

    @property
    def taken(self) -> float:
        """Share of the core time that the program could have used and others took."""
        if self.delayed is None:
            return 0.0
        wanted = min(self.used + self.delayed + self.stolen, float(self.cores))
        lost = min(max(wanted - self.used, 0.0), self.others)
        return lost / wanted if wanted else 0.0


def quota_share(throttled: float, used: float) -> float:
    """Return the share of the time of `used` cores and `throttled` threads that a quota took."""
    return throttled / (throttled + used) if throttled else 0.0


def seconds_within(samples: Sequence[MonitorSample], begin: float, end: float) -> list[float]:
    """Return how many seconds of each sample are between two times of the monitor's clock."""
    return [max(min(s.t, end) - max(s.t - s.seconds, begin), 0.0) for s in samples]


def samples_within(
    samples: Sequence[MonitorSample], begin: float, end: float
) -> Sequence[MonitorSample]:
    """Return the samples of some time, or all if there are none. Of those that reach beyond its
    edges, only the seconds within count."""
    weights = seconds_within(samples, begin, end)
    return [replace(s, seconds=w) for s, w in zip(samples, weights, strict=True) if w] or samples


def core_use(samples: Sequence[MonitorSample], cores: int) -> CoreUse | None:
    """The mean over samples of the monitor; None without any."""
    if not any(sample.seconds for sample in samples):
        return None

    def mean(of: str) -> float | None:
        return weighted_mean((getattr(sample, of), sample.seconds) for sample in samples)

    used = weighted_mean((s.cpu * s.cores, s.seconds) for s in samples) or 0.0
    others = weighted_mean(
        (max(s.cpu_all - s.cpu, 0.0) * s.cores, s.seconds) for s in samples if s.cpu_all is not None
    )
    stolen = weighted_mean((s.stolen or 0.0, s.seconds) for s in samples) or 0.0
    programs = {
        name: weighted_mean((s.others.get(name, 0.0), s.seconds) for s in samples) or 0.0
        for name in dict.fromkeys(name for sample in samples for name in sample.others)
    }
    # These are cores of the whole machine, of which the program may use a part.
    scale = min((others or 0.0) / (sum(programs.values()) or 1.0), 1.0)
    named = sorted(
        ((name, amount * scale) for name, amount in programs.items()), key=lambda pair: -pair[1]
    )
    throttled, delayed = mean("throttled") or 0.0, mean("delayed")
    if delayed is not None:  # the kernel counts the same time as waiting for a core
        delayed = max(delayed - throttled, 0.0)
    return CoreUse(
        cores, used, (others or 0.0) + stolen, delayed, mean("runnable"), stolen,
        tuple(named[:3]), throttled,
    )  # fmt: skip
