"""What windows tell exactly: who calls a network with which batch, how coarse operations are.

A window is every call of the main thread for some milliseconds. Recording an event takes time of
its own, which is measured with each window and taken off again.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flatout.explain.program.evidence import C_CALL, CALL, RETURN, Leaf, Process, Window
from flatout.explain.program.places import CALLERS, Frames, NetworkSite, Site, chains

SHORT_NS = 60_000
"""An operation shorter than this is mostly the cost of starting it."""


@dataclass(frozen=True)
class Interval:
    """The time between two events of a window.

    Attributes:
        ns: its length without the recorder's own cost.
        frames: where the thread was.
        name: the built-in function that ran, or an empty text.
    """

    ns: float
    frames: Frames
    name: str

    @property
    def leaf(self) -> Leaf:
        """The built-in function as what the innermost frame executes."""
        return Leaf(text=self.name, call=self.name)


@dataclass(frozen=True)
class Call:
    """One interesting call: a network, an environment step, an optimiser step, a session.

    Attributes:
        kind: which of these.
        owner: the class.
        batch, grad: what it was given; 0 and None where that is unknown.
        frames: the stack at the call, innermost first, the caller before all.
    """

    kind: str
    owner: str
    batch: int
    grad: bool | None
    frames: Frames


@dataclass(frozen=True)
class Replay:
    """A window's intervals, and its interesting calls in the order in which they ended."""

    t: float
    intervals: list[Interval]
    calls: list[Call]


@dataclass
class Counted:
    """Sums over the windows of a process.

    Attributes:
        seconds: the program's own time in them.
        calls: the interesting calls.
        names: calls by (site, built-in function).
    """

    seconds: float = 0.0
    calls: list[Call] = field(default_factory=list)
    names: Counter[tuple[Site, str]] = field(default_factory=Counter[tuple[Site, str]])

    def rate(self, number: float) -> float:
        """Per second of the program's time."""
        return number / self.seconds if self.seconds else 0.0


def replay(process: Process, window: Window) -> Replay:
    """Go through a window's events in order."""
    stack = list(reversed(window.stack))
    details = {detail[0]: detail for detail in window.details}
    found = Replay(window.t, [], [])
    open_calls: list[tuple[int, Call]] = []  # each with the depth of its stack
    name = ""
    for position, (elapsed, kind, what, line) in enumerate(window.events):
        if position and stack:
            ns = max(0.0, elapsed - window.cost)
            found.intervals.append(Interval(ns, tuple(reversed(stack)), name))
        name = window.names[what] if kind == C_CALL else ""
        if kind in (CALL, C_CALL) and stack:
            stack[-1] = (stack[-1][0], line)
        if kind == CALL:
            if position in details:
                call = _call(details[position], tuple(reversed(stack)))
                open_calls.append((len(stack), call))
            stack.append((what, process.codes[what].line))
        elif kind == RETURN and stack:
            stack.pop()
            while open_calls and open_calls[-1][0] >= len(stack):
                found.calls.append(open_calls.pop()[1])
    found.calls.extend(call for _, call in open_calls)
    return found


def _call(detail: tuple, caller: Frames) -> Call:
    _, kind, *rest = detail
    owner, batch, grad = (*rest, None, None, None)[:3]
    return Call(kind, owner or "", int(batch or 0), grad, caller)


def counted(windows: Iterable[Replay], program: Callable[[Frames], list[Site]]) -> Counted:
    """Sum up windows."""
    found = Counted()
    for window in windows:
        found.calls += window.calls
        for interval in window.intervals:
            found.seconds += interval.ns / 1e9
            if interval.name and (sites := program(interval.frames)):
                found.names[sites[0], interval.name] += 1
    return found


def network_sites(
    windows: Iterable[Replay], program: Callable[[Frames], list[Site]]
) -> dict[tuple[Site, ...], NetworkSite]:
    """How each line of the program calls networks, and each with its callers: one line of a
    policy's class may be called for choosing actions and for learning."""
    seen: dict[tuple[Site, ...], list[Call]] = defaultdict(list)
    for window in windows:
        for call in window.calls:
            if call.kind in ("network", "session"):
                for chain in chains(program(call.frames)[: CALLERS + 1]):
                    seen[chain].append(call)
    return {
        chain: NetworkSite(
            int(statistics.median(call.batch for call in calls)),
            None
            if all(call.grad is None for call in calls)
            else sum(bool(call.grad) for call in calls) * 2 > len(calls),
        )
        for chain, calls in seen.items()
    }
