"""Limits for the numbers in saved evidence, which may be damaged or a stranger's."""

from __future__ import annotations

from typing import Any

from flatout_explain.documents import plain_number

LATE_S = 60.0
"""Seconds before the observation and after it in which a probe may still sample."""

ROUNDED_S = 1e-3  # error of a sample's times
MOST_SHARE = 2.0  # maximum error of a share, whose two figures are not read at the same moment
MOST_CORES = 1e6  # of a machine, of which the program may use a part


def refuse_impossible(evidence: Any) -> None:
    """Refuse impossible times and shares, which would lead to absurd shares of the time.

    Args:
        evidence: an `Evidence`, whose module imports this one.

    Raises:
        AttributeError, LookupError, TypeError, ValueError: with the first one.
    """
    cores = plain_number(evidence.machine["cores"], "cores")
    seconds = plain_number(evidence.ended, "ended") - plain_number(evidence.began, "began")
    if not (cores > 0 and seconds >= 0):
        raise ValueError(f"{seconds:g} s on {cores:g} cores")
    if evidence.code is not None:
        plain_number(evidence.code, "code")
    for process in evidence.processes:
        for sample in process.samples:
            dt, t = plain_number(sample.dt, "dt"), plain_number(sample.t, "t") - evidence.began
            worked = 0.0 if sample.worked is None else plain_number(sample.worked, "worked")
            elsewhere = plain_number(sample.elsewhere or 0.0, "elsewhere")
            if not -LATE_S <= t <= seconds + LATE_S:
                raise ValueError(f"a sample at {t:g} s in a recording of {seconds:g} s")
            if not (0 <= worked <= dt + ROUNDED_S <= seconds + LATE_S and elsewhere >= 0):
                raise ValueError(f"a sample of {dt:g} s with {worked:g} s of work")
        for series in process.counts.values():
            if min(map(plain_number, sum(series, ())), default=0) < 0:
                raise ValueError("a count below zero")
        for row in process.garbage:
            if min(plain_number(n) for n in (*row.times, *row.seconds, row.asked)) < 0:
                raise ValueError("a garbage collection that took less than no time")
        for window in process.windows:
            if any(plain_number(ns) < 0 for ns in (window.cost, *(ns for ns, *_ in window.events))):
                raise ValueError("a call that took less than no time")
    last = evidence.unobserved
    for use in [*evidence.monitor, *([] if last is None else [last])]:
        shares = [use.cpu, use.cpu_all, *(gpu.busy for gpu in use.gpus)]
        used = [use.stolen, use.busiest, *use.others.values(), *use.processes.values()]
        for values, most in ((shares, MOST_SHARE), (used, MOST_CORES)):
            for value in values:
                if value is not None and not 0 <= value <= most:
                    raise ValueError(f"a use of {value:g}")
        counted = [use.brief, use.throttled, use.stalled, use.swapped, use.huge]
        counted += [number for faults in use.faults.values() for number in faults]
        if min(filter(None, counted), default=0) < 0:
            raise ValueError("a counter that fell")
        if use.seconds < 0 or (use.delayed or 0) < 0 or (use.runnable or 0) < 0:
            raise ValueError(f"{use.seconds:g} s with {use.runnable} threads, {use.delayed} late")
