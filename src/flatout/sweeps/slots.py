"""How many jobs run at the same time: one more while the sum of their rates grows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LOOK_S = 1.5
"""Seconds in which each job's rate is measured, at least: from one of its reports to another, for
between them nobody knows how far it is."""

PATIENCE_S = 8.0
"""A job that trains only after so long is not waited for."""

GROWTH = 1.1
"""Minimum gain of the total speed from one more run at a time; smaller gains are noise."""

LEAST_MB = 500.0
"""What a process takes at least."""

FULL = 0.9
"""Share of the free memory that jobs may take."""


@dataclass
class Slots:
    """The number of jobs at a time, measured while they run.

    Args:
        most: never more than these.
        cores: up to here one more is begun unmeasured where jobs are too short to be measured.
        free_mb: memory for all.
        known: what was measured here before, or asked for, or 0.
        why: where `known` comes from.

    Attributes:
        limit: jobs at a time now.
        settled: whether `limit` is final.
        rates: measured sums, steps per second by the number of jobs.
        each_mb: the most memory that a process has taken.
    """

    most: int
    cores: int
    free_mb: float
    known: int = 0
    why: str = "measured here before"
    limit: int = 1
    settled: bool = False
    short_of: str = ""
    rates: dict[int, float] = field(default_factory=dict[int, float])
    each_mb: float = 0.0
    _began: float | None = None
    _from: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])
    _since: float = 0.0

    def __post_init__(self) -> None:
        self.most = min(self.most, max(int(FULL * self.free_mb / LEAST_MB), 1))
        if self.known:
            self.limit, self.settled = max(min(self.known, self.most), 1), True
        self.settled = self.settled or self.most == 1

    def look(self, now: float, steady: bool, reports: Mapping[str, tuple[float, int]]) -> None:
        """Note what runs at this moment.

        Args:
            now: seconds.
            steady: whether all jobs train.
            reports: when each job that runs last told of its steps, and how many.
        """
        if self.settled or len(reports) < self.limit:
            self._began, self._since = None, now
            return
        if now - self._since > PATIENCE_S and self.limit < self.cores:
            self._more(now)
            return
        if not steady:
            self._began = None
            return
        if self._began is None:
            self._began, self._from = now, {}
        self._from |= {
            job: report for job, report in reports.items()
            if job not in self._from and report[0] > self._began
        }  # fmt: skip
        spans = [(reports[job][0] - at, reports[job][1] - steps)
                 for job, (at, steps) in self._from.items() if job in reports]  # fmt: skip
        if len(spans) < len(reports) or min(seconds for seconds, _ in spans) < LOOK_S:
            return
        rate = sum(steps / seconds for seconds, steps in spans)
        self.rates[self.limit] = rate
        fewer = self.rates.get(self.limit - 1)
        if fewer is not None and rate < GROWTH * fewer:
            self.limit, self.settled = self.limit - 1, True
        else:
            self._more(now)

    def ended(self, now: float) -> None:
        """A job has ended: those are short, and cores are not left idle to measure."""
        if not self.settled and self.limit < self.cores:
            self._more(now)

    def _more(self, now: float) -> None:
        self._began, self._since = None, now
        if self.each_mb and (self.limit + 1) * self.each_mb > FULL * self.free_mb:
            self.settled, self.short_of = True, "memory"
        elif self.limit >= self.most:
            self.settled = True
        else:
            self.limit += 1

    @property
    def cap_mb(self) -> float:
        """Memory that one of the jobs may take."""
        each = FULL * self.free_mb / max(self.limit, min(self.cores, self.most))
        return max(each, LEAST_MB)

    def words(self) -> str:
        """What was decided and why, in a line."""
        why = ", ".join(f"{count}: {rate:,.0f}" for count, rate in sorted(self.rates.items()))
        measured = f"steps/s measured together by number: {why}" if why else (
            self.why if self.known else "too short to measure"
        )  # fmt: skip
        short = f"; more do not fit into {self.short_of}" if self.short_of else ""
        memory = f"; about {self.each_mb:,.0f} MiB each of {self.free_mb:,.0f} MiB"
        return f"{self.limit} at a time ({measured}{short}{memory if self.each_mb else ''})"
