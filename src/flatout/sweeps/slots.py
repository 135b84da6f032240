"""The number of jobs that run at a time: it rises while their total speed grows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LOOK_S = 1.5
"""Minimum seconds over which a job's rate is measured. The time runs from one of its reports to
another, because its steps are known only then."""

PATIENCE_S = 8.0
"""Maximum seconds to wait until all jobs train; then one more job starts without a measurement."""

GROWTH = 1.1
"""Minimum gain of the total speed from one more run at a time; smaller gains are noise."""

LEAST_MB = 500.0
"""Minimum memory of a process."""

FULL = 0.9
"""Share of the free memory that jobs may take."""


@dataclass
class Slots:
    """The number of jobs at a time, measured while they run.

    Args:
        most: the maximum.
        cores: the number up to which jobs that are too short to measure are added unmeasured.
        free_mb: memory for all jobs together.
        known: a number that was measured before or that the user gave, or 0.
        why: the source of `known`, for messages.

    Attributes:
        limit: the present number of jobs at a time.
        settled: whether `limit` is final.
        short_of: what keeps the number from rising, for messages.
        rates: the measured steps per second of all jobs together, by the number of jobs.
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
    _since: float | None = None

    def __post_init__(self) -> None:
        self.most = min(self.most, max(int(FULL * self.free_mb / LEAST_MB), 1))
        if self.known:
            self.limit, self.settled = max(min(self.known, self.most), 1), True
        self.settled = self.settled or self.most == 1

    def look(self, now: float, steady: bool, reports: Mapping[str, tuple[float, int]]) -> None:
        """Record the running jobs, and decide whether one more may run.

        Args:
            now: the time in seconds.
            steady: whether all jobs train.
            reports: the time of each running job's last report, and its steps then.
        """
        if self.settled or len(reports) < self.limit:
            self._began, self._since = None, now
            return
        if self._since is None:
            self._since = now
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
        """Allow one more job after one has ended: jobs this short cannot be measured."""
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
    def early(self) -> int:
        """The number of processes that are worth starting before the first job needs them."""
        return min(self.cores, self.limit if self.settled else self.most)

    @property
    def cap_mb(self) -> float:
        """The memory that one job may take, in MiB."""
        each = FULL * self.free_mb / max(self.limit, min(self.cores, self.most))
        return max(each, LEAST_MB)

    def words(self) -> str:
        """Return one line with the number of jobs and the reason for it."""
        why = ", ".join(f"{count}: {rate:,.0f}" for count, rate in sorted(self.rates.items()))
        measured = f"steps/s measured together by number: {why}" if why else (
            self.why if self.known else "too short to measure"
        )  # fmt: skip
        short = f"; more do not fit into {self.short_of}" if self.short_of else ""
        memory = f"; about {self.each_mb:,.0f} MiB each of {self.free_mb:,.0f} MiB"
        return f"{self.limit} at a time ({measured}{short}{memory if self.each_mb else ''})"
