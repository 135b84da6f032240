"""From a trace to findings: rules as for programs that are observed, numbers in, sentences out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from flatout.explain.causes import HEALTHY, UNKNOWN
from flatout.explain.diagnosis import Diagnosis, Finding, Lane
from flatout.explain.report import percent, place_words
from flatout.explain.trace import names
from flatout.explain.trace.events import Kind, Trace
from flatout.explain.trace.idle import PARTS, Host, Idle, causes
from flatout.explain.trace.intervals import clip, length, union
from flatout.explain.trace.remedies import remedy

LOST = 0.15
"""A smaller share of the time than this is lost to no cause that is worth naming before computing.
"""

STARTING = 0.25
"""A single call of the driver that takes this share of the window, in which the device idles, is
part of the start, not of a steady state."""

LEAST = 0.02  # minimum share of a finding

BINS = 600  # resolution of the timeline
LANES = 64

CAUSE = {
    "launch": "launch-bound", "input": "input-bound", "env": "env-bound", "io": "io-bound",
    "compile": "compile-bound", "transfer": "transfer-bound", "communicate": "communication-bound",
    "host": "host-bound",
}  # fmt: skip
MEANING = {
    "launch": "the devices wait for the host, which launches operations one by one",
    "input": "the devices wait for batches",
    "env": "the devices wait for environments",
    "io": "the devices wait while files are written",
    "compile": "the devices wait while programs are compiled",
    "transfer": "copies, and the host's waiting for them",
    "communicate": "data are exchanged with other devices, and nothing else runs",
    "host": "the devices wait for code of the host that launches nothing",
}
"""Parts of the time in words."""

WAITS_FOR = {
    "launch": "for the host's launches", "input": "for batches", "env": "for environments",
    "io": "for files", "compile": "for compiling", "transfer": "for copies to the host",
    "host": "for the host's own code", "unknown": "for what is not recorded",
    "queued": "with work in the queue",
}  # fmt: skip
SHOWN = 70  # characters of a name
TINY_S = 10e-6

PHASE = {"host": "other", "unknown": "other", "queued": "wait", "copy": "transfer"}
"""The phase of a part of the idle time; others have the phase of their name."""


@dataclass(frozen=True)
class Found:
    """The devices' time in one or more traces."""

    traces: Sequence[Trace]
    devices: list[tuple[str, Idle]]  # by name

    def share(self, part: str) -> float:
        """The mean share of the devices' time that a part takes."""
        return float(np.mean([_share(idle, part) for _, idle in self.devices]))

    def lines(self, part: str) -> list[tuple[str, float]]:
        """What the host did in a part of the idle time, with shares of the time, largest first."""
        total = sum(idle.seconds for _, idle in self.devices)
        seconds: defaultdict[str, float] = defaultdict(float)
        for _, idle in self.devices:
            for name, value in idle.lines[part].items():
                seconds[name] += value / total
        return sorted(seconds.items(), key=lambda line: -line[1])


def duration_words(seconds: float) -> str:
    """A short time: ``4.0 ms``, ``12 s``."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"


def _share(idle: Idle, part: str) -> float:
    own = {"learn": idle.computes, "communicate": idle.communicates, "copy": idle.copies}
    return length(own[part]) / idle.seconds if part in own else idle.share(part)


def diagnose(traces: Sequence[Trace], subject: str) -> Diagnosis:
    """The verdict and its findings.

    Args:
        traces: one for each process that was recorded.
    """
    devices = []
    for number, trace in enumerate(traces):
        host = Host(trace)
        rank = f"rank {number if trace.rank is None else trace.rank} " if len(traces) > 1 else ""
        begin, end = trace.window
        for device in trace.devices:
            if end > begin and len(device.events):
                devices.append((f"{rank}{device.name}", causes(trace, device, (begin, end), host)))
    found = Found(traces, devices)
    why = unclear(found)
    ranked = [why] if why is not None else []
    if devices:
        ranked += findings(found)
    first = ranked[0].id
    phases: defaultdict[str, float] = defaultdict(float)
    if devices:
        for part in ("learn", "communicate", "copy", *PARTS):
            phases[PHASE.get(part, part)] += found.share(part)
    models = sorted({row.model for trace in traces for row in trace.devices if row.model})
    return Diagnosis(
        subject=subject,
        verdict=HEALTHY if first == "compute-bound" else first,
        headline=headline(found, ranked),
        findings=tuple(ranked),
        seconds=max((trace.window[1] - trace.window[0] for trace in traces), default=0.0),
        phases={phase: share for phase, share in phases.items() if share > 0.0},
        lines={PHASE.get(part, part): words for part in PARTS if (words := _line(found, part))},
        lanes=tuple(Lane(name, _lane(idle)) for name, idle in devices[:LANES]),
        busy={name: idle.busy for name, idle in devices},
        machine=", ".join(models),
        notes=tuple(notes(found)),
    )


def findings(found: Found) -> list[Finding]:
    """All findings about the devices, the one to act on first."""
    losses = {part: found.share(part) for part in CAUSE}
    losses["transfer"] += found.share("copy")
    made = [
        Finding(CAUSE[part], share, tuple(_evidence(found, part, share)), remedy(part, found))
        for part, share in sorted(losses.items(), key=lambda loss: -loss[1])
        if share >= LEAST
    ]
    computes = found.share("learn")
    if computes >= LEAST:
        words = "The time goes to the devices' arithmetic: a smaller network or fewer updates."
        seen = (f"the devices compute for {percent(computes)} of the time",)
        large = sum(one.share >= LOST for one in made)
        made.insert(large, Finding("compute-bound", computes, seen, words))
    return made


def unclear(found: Found) -> Finding | None:
    """Why a trace does not say what the devices wait for; None if it does."""
    if not found.devices:
        unknown = Counter[str]()
        for trace in found.traces:
            unknown.update(trace.unknown)
        words = ", ".join(f"{name} ({count:,})" for name, count in unknown.most_common(3))
        why = "no device's work is recorded, or none in the steps"
        if words:
            why = f"these categories of events are not understood: {words}"
        return Finding(
            UNKNOWN, 1.0, (why,), "Record a GPU: ProfilerActivity.CUDA." if not words else ""
        )
    seconds, call = max(idle.longest for _, idle in found.devices)
    window = max(idle.seconds for _, idle in found.devices)
    if seconds >= STARTING * window:
        why = (
            f"one call of {call} takes {duration_words(seconds)} of {duration_words(window)} in "
            "which the device idles: this is a start, not a steady state"
        )
        words = "Record later steps: torch.profiler.schedule(wait=, warmup=, active=)."
        return Finding(UNKNOWN, seconds / window, (why,), words)
    idle = {part: found.share(part) for part in PARTS}
    for part, why in UNCLEAR.items():
        if idle[part] >= max(LOST, *idle.values()):
            words = "Record Python's stacks too: with_stack=True." if part == "unknown" else ""
            return Finding(
                UNKNOWN, idle[part], (f"for {percent(idle[part])} of the time {why}",), words
            )
    return None


UNCLEAR = {
    "unknown": "the devices idle and nothing of the host is recorded",
    "queued": "the devices idle although they have been given work: the host is not late, and "
    "what the work waits for is not recorded",
}


def _evidence(found: Found, part: str, share: float) -> Iterator[str]:
    """Sentences about a finding."""
    yield f"{percent(share)} of the time: {MEANING[part]}"
    for name, seconds in found.lines(part)[:2]:
        if seconds >= LEAST:
            yield f"`{shown(name)}`: {percent(seconds)} of the time"
    if part == "launch":
        kernels = np.concatenate([_lasting(idle) for _, idle in found.devices])
        if len(kernels):
            tiny = percent(float(np.mean(kernels < TINY_S)))
            yield f"{len(kernels):,} kernels, {tiny} of them under {1e6 * TINY_S:.0f} us"
    elif part == "communicate":
        hidden = sum(
            length(_exchanging(idle)) - length(idle.communicates) for _, idle in found.devices
        )
        total = sum(idle.seconds for _, idle in found.devices)
        yield f"another {percent(hidden / total)} overlaps with computing, and costs nothing"


def headline(found: Found, ranked: Sequence[Finding]) -> str:
    """What the devices do and wait for, in a sentence."""
    if not found.devices:
        return ranked[0].evidence[0]
    busy = float(np.mean([idle.busy for _, idle in found.devices]))
    devices = "The GPU is" if len(found.devices) == 1 else f"{len(found.devices)} GPUs are"
    waits = {part: found.share(part) for part in PARTS}
    parts = [
        f"{percent(share)} {WAITS_FOR[part]}{_place(found, part)}"
        for part, share in sorted(waits.items(), key=lambda wait: -wait[1])[:3]
        if share >= LEAST
    ]
    alone = found.share("communicate")
    exchanges = f", {percent(alone)} only exchanging data" if alone >= LEAST else ""
    words = f"{devices} busy {percent(busy)} of the time{exchanges}"
    words += f"; idle {', '.join(parts)}" if parts else ""
    return f"{ranked[0].evidence[0]}. {words}" if ranked[0].id == UNKNOWN else words


def _place(found: Found, part: str) -> str:
    """The program's line of a part, in brackets, if the trace has it."""
    for name, _ in found.lines(part)[:1]:
        if (where := names.frame(name)) is not None:
            return f" ({place_words(where[:2])})"
    return ""


def shown(name: str) -> str:
    """A name for a reader."""
    if (where := names.frame(name)) is not None:
        return f"{place_words(where[:2])} {where[2]}"
    return name[:SHOWN] + ("..." if len(name) > SHOWN else "")


def _line(found: Found, part: str) -> str:
    """The heaviest line of a part."""
    return next((shown(name) for name, _ in found.lines(part)[:1]), "")


def notes(found: Found) -> Iterator[str]:
    """What was seen, and what could not be."""
    for trace in found.traces:
        begin, end = trace.window
        rank = "" if trace.rank is None or len(found.traces) == 1 else f"rank {trace.rank}: "
        if (number := len(trace.steps)) > 1:
            mean = duration_words((end - begin) / number)
            yield f"{rank}{number} steps of {mean} on average are explained."
        elif number == 1:
            yield f"{rank}Only one step is recorded."
        yield from trace.notes
        for name, count in trace.unknown.items():
            if found.devices:
                yield f"{rank}{count:,} events of the category {name} are not understood."


def _lane(idle: Idle) -> tuple[tuple[float, float, str], ...]:
    """A device's timeline: for each of `BINS` bins what takes most of it."""
    begin, end = idle.window
    edges = np.linspace(begin, end, BINS + 1)
    rows = {"learn": idle.computes, "communicate": idle.communicates, "transfer": idle.copies}
    parts = list(rows.items())
    parts += [(PHASE.get(part, part), spans) for part, spans in idle.idle.items()]
    filled = np.array([_covered(spans, edges) for _, spans in parts])
    winner = filled.argmax(axis=0)
    found: list[tuple[float, float, str]] = []
    for at, index in enumerate(winner.tolist()):
        span = float(edges[at] - begin), float(edges[at + 1] - begin), parts[index][0]
        if found and found[-1][2] == span[2]:
            span = found.pop()[0], span[1], span[2]
        found.append(span)
    return tuple(found)


def _covered(spans: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """How much of each bin some intervals cover."""
    if not len(spans):
        return np.zeros(len(edges) - 1)
    lengths = spans[:, 1] - spans[:, 0]
    before = np.concatenate([[0.0], np.cumsum(lengths)])
    at = np.searchsorted(spans[:, 0], edges, "right") - 1
    within = np.minimum(edges - spans[np.maximum(at, 0), 0], lengths[np.maximum(at, 0)])
    passed = np.where(at < 0, 0.0, before[np.maximum(at, 0)] + within)
    return np.diff(passed)


def _lasting(idle: Idle) -> np.ndarray:
    """The durations of the kernels in the window."""
    events = idle.device.events
    begin, end = idle.window
    inside = (events.kind == Kind.KERNEL) & (events.begin >= begin) & (events.begin < end)
    return (events.end - events.begin)[inside]


def _exchanging(idle: Idle) -> np.ndarray:
    events = idle.device.events
    some = events.where(events.kind == Kind.COLLECTIVE)
    return clip(union(some.begin, some.end), *idle.window)
