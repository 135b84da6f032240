"""What windows tell exactly: who calls a network with which batch, how coarse operations are.

A window is every call of the main thread for some milliseconds. Recording an event takes time of
its own, which is measured with each window and taken off again.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
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


@dataclass(frozen=True)
class Call:
    """One interesting call: a network, an environment step, an optimiser step, a session.

    Attributes:
        kind: which of these.
        owner: the class.
        batch, grad: what it was given; 0 and None where that is unknown.
        frames: the stack at the call, innermost first, the caller before all.
        ns: how long it took; None where the window ended first.
    """

    kind: str
    owner: str
    batch: int
    grad: bool | None
    frames: Frames
    ns: float | None


@dataclass
class Counted:
    """Sums over the windows of a process.

    Attributes:
        seconds: the program's own time in them.
        calls: the interesting calls.
        names: (site, built-in function) -> [calls, nanoseconds].
    """

    seconds: float = 0.0
    calls: list[Call] = field(default_factory=list)
    names: dict[tuple[Site, str], list[float]] = field(
        default_factory=lambda: defaultdict(lambda: [0.0, 0.0])
    )

    def rate(self, number: float) -> float:
        """Per second of the program's time."""
        return number / self.seconds if self.seconds else 0.0


def intervals(
    process: Process, window: Window, calls: list[Call] | None = None
) -> Iterator[Interval]:
    """Replay a window: its intervals in order; interesting calls are added to `calls`."""
    stack = [list(site) for site in reversed(window.stack)]
    details = {detail[0]: detail for detail in window.details}
    open_calls: list[tuple[int, int, Frames, float]] = []
    clock, name = 0.0, ""
    for position, (elapsed, kind, what, line) in enumerate(window.events):
        ns = max(0.0, elapsed - window.cost) if position else 0.0
        clock += ns
        if position:
            frames = tuple((code, at) for code, at in reversed(stack))
            if frames:
                yield Interval(ns, frames, name)
        name = ""
        if kind == CALL:
            if stack:
                stack[-1][1] = line
            if position in details:
                caller = tuple((code, at) for code, at in reversed(stack))
                open_calls.append((position, len(stack), caller, clock))
            stack.append([what, process.codes[what].line])
        elif kind == RETURN and stack:
            stack.pop()
            while open_calls and open_calls[-1][1] >= len(stack):
                opened, _, caller, began = open_calls.pop()
                if calls is not None:
                    calls.append(_call(details[opened], caller, clock - began))
        elif kind == C_CALL:
            if stack:
                stack[-1][1] = line
            name = window.names[what]
    if calls is not None:
        calls.extend(_call(details[opened], caller, None) for opened, _, caller, _ in open_calls)


def _call(detail: tuple, caller: Frames, ns: float | None) -> Call:
    _, kind, *rest = detail
    owner, batch, grad = (*rest, None, None, None)[:3]
    return Call(kind, owner or "", int(batch or 0), grad, caller, ns)


def counted(
    process: Process, program: Callable[[Frames], list[Site]], within: Callable[[float], bool]
) -> Counted:
    """Sum up the windows that lie within the explained time."""
    found = Counted()
    for window in process.windows:
        if not within(window.t):
            continue
        for interval in intervals(process, window, found.calls):
            found.seconds += interval.ns / 1e9
            if interval.name:
                sites = program(interval.frames)
                if sites:
                    entry = found.names[sites[0], interval.name]
                    entry[0] += 1
                    entry[1] += interval.ns
    return found


def network_sites(
    process: Process, program: Callable[[Frames], list[Site]]
) -> dict[tuple[Site, ...], NetworkSite]:
    """How each line of the program calls networks, and each with its callers: one line of a
    policy's class may be called for choosing actions and for learning."""
    seen: dict[tuple[Site, ...], list[Call]] = defaultdict(list)
    for window in process.windows:
        calls: list[Call] = []
        for _ in intervals(process, window, calls):
            pass
        for call in calls:
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


def leaf_of(name: str) -> Leaf:
    """A built-in function's name as what a frame executes."""
    return Leaf(text=name, call=name)
