"""Exact counts from windows: calls of networks with their batches, and operations' durations.

A window is every call of the main thread for some milliseconds. The measured cost of recording an
event is subtracted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from flatout_explain.program.evidence import C_CALL, CALL, RETURN, Process, Window
from flatout_explain.program.survey import CALLERS, Frames, Networks, Site, chains

PROBE = "_flatout_"  # in the names of the probe's own files, in which a window begins
SHORT_NS = 60_000  # an operation shorter than this is mostly launch overhead


@dataclass(frozen=True)
class Interval:
    """The time between two events of a window."""

    ns: float  # its length without the recorder's cost
    frames: Frames  # the thread's stack
    name: str  # the running built-in function, or empty


@dataclass(frozen=True)
class Call:
    """A relevant call: of a network, or a step of an environment or an optimiser."""

    kind: str  # ``network``, ``env`` or ``optimiser``
    owner: str  # the class
    batch: int  # its size; 0 if unknown
    grad: bool | None  # whether gradients are on
    frames: Frames  # the caller's stack, innermost first


@dataclass(frozen=True)
class Replay:
    """A window's intervals, and its relevant calls in the order of their ends."""

    intervals: list[Interval] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    t: float = 0.0  # its begin


@dataclass
class Counted:
    """Sums over the windows of a process."""

    seconds: float = 0.0  # the program's time in them
    calls: list[Call] = field(default_factory=list)  # the relevant calls
    names: Counter[str] = field(default_factory=Counter)  # its calls of built-in functions, by name

    def rate(self, number: float) -> float:
        """Return a number per second of the program's time."""
        return number / self.seconds if self.seconds else 0.0


def replay(process: Process, window: Window, stepping: Collection[int] = ()) -> Replay:
    """Replay a window's events in order; `stepping` are functions that step an environment."""
    stack = list(reversed(window.stack))
    details = {detail[0]: detail for detail in window.details}
    result = Replay(t=window.t)
    open_calls: list[tuple[int, Call]] = []  # each with the depth of its stack
    name = ""
    for position, (elapsed, kind, target, line) in enumerate(window.events):
        if position and stack and PROBE not in process.codes[stack[-1][0]].file:
            ns = max(0.0, elapsed - window.cost)
            result.intervals.append(Interval(ns, tuple(reversed(stack)), name))
        name = window.names[target] if kind == C_CALL else ""
        if kind in (CALL, C_CALL) and stack:
            stack[-1] = (stack[-1][0], line)
        if kind == CALL:
            steps = target in stepping and all(call.kind != "env" for _, call in open_calls)
            if steps:
                owner = (process.codes[target].owner or {}).get("name", "")
                call = Call("env", owner, 0, None, tuple(reversed(stack)))
                open_calls.append((len(stack), call))
            elif position in details:
                _, called, *rest = details[position]
                owner, batch, grad = (*rest, None, None, None)[:3]
                call = Call(called, owner or "", int(batch or 0), grad, tuple(reversed(stack)))
                open_calls.append((len(stack), call))
            stack.append((target, process.codes[target].line))
        elif kind == RETURN and stack:
            stack.pop()
            while open_calls and open_calls[-1][0] >= len(stack):
                result.calls.append(open_calls.pop()[1])
    result.calls.extend(call for _, call in open_calls)
    return result


def counted(windows: Iterable[Replay], program: Callable[[Frames], list[Site]]) -> Counted:
    """Sum up windows."""
    result = Counted()
    for window in windows:
        result.calls += window.calls
        for interval in window.intervals:
            result.seconds += interval.ns / 1e9
            if interval.name and program(interval.frames):
                result.names[interval.name] += 1
    return result


def network_sites(windows: Iterable[Replay], program: Callable[[Frames], list[Site]]) -> Networks:
    """Return whether each line of the program, with its callers, calls networks with gradients: the
    same line of a policy may be called for acting and for learning."""
    calls_by_chain: dict[tuple[Site, ...], list[Call]] = defaultdict(list)
    for window in windows:
        for call in window.calls:
            if call.kind == "network":
                for chain in chains(program(call.frames)[: CALLERS + 1]):
                    calls_by_chain[chain].append(call)
    return {
        chain: None if all(call.grad is None for call in calls) else mostly_with_gradients(calls)
        for chain, calls in calls_by_chain.items()
    }


def mostly_with_gradients(calls: Sequence[Call]) -> bool:
    """Return whether gradients were on in more than half of some calls."""
    return 2 * sum(bool(call.grad) for call in calls) > len(calls)
