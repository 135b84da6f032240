"""From a trace to findings: rules as for programs that are observed, numbers in, sentences out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from flatout_explain import cards
from flatout_explain.causes import CAUSE_OF_LOSS, UNKNOWN
from flatout_explain.diagnosis import Diagnosis, Finding, Lane, Rank, WorkRate, verdict
from flatout_explain.program.facts import MAINLY
from flatout_explain.program.ranks import compared, remedied, slowest
from flatout_explain.program.remedies import (
    AVERAGE_ONCE,
    COARSER,
    MOVE_ONCE,
    REMEDIES,
    WHILE_BUSY,
    Remedy,
)
from flatout_explain.ranking import LEAST_SHARE, LOST, interval, ordered, tied
from flatout_explain.report import duration, percent, tie_words
from flatout_explain.trace.events import Trace
from flatout_explain.trace.facts import PHASE, Found, by_phase, line_words, shown, timeline
from flatout_explain.trace.idle import PARTS

STARTING = 0.25
"""A single call of the driver that takes this share of the window, in which the device idles, is
part of the start, not of a steady state."""

LANES = 64

KERNELS = {"learn": "kernels", "communicate": "exchanging data while nothing is computed"}
TINY_S = 10e-6


def diagnose(traces: Sequence[Trace], subject: str) -> Diagnosis:
    """Return the verdict and its findings.

    Args:
        traces: one for each process that was recorded.
    """
    found = Found.of(traces)
    devices = found.devices
    why = unclear(found)
    ranked = [why] if why is not None else []
    if devices:
        ranked += findings(found)
    if steps := _steps(traces):
        ranked[0] = replace(ranked[0], evidence=(*ranked[0].evidence, steps))
    distributed = _ranks(found)
    ranked = [remedied(finding, distributed) for finding in ranked]
    models = sorted({row.model for trace in traces for row in trace.devices if row.model})
    return Diagnosis(
        subject=subject,
        verdict=verdict(ranked),
        headline=headline(found, ranked),
        findings=tuple(ranked),
        seconds=max((trace.window[1] - trace.window[0] for trace in traces), default=0.0),
        phases=by_phase(found.share) if devices else {},
        lines=KERNELS | {PHASE.get(p, p): _line(found, p) for p in PARTS if found.line(p)},
        marked=by_phase(found.marked) if devices else {},
        lanes=tuple(Lane(name, timeline(use)) for name, use in devices[:LANES]),
        busy={name: use.busy for name, use in devices},
        machine=", ".join(models),
        notes=tuple(_notes(found)),
        tie=tuple(finding.id for finding in tied(ranked)),
        kind="trace",
        work=_work(traces),
        ranks=distributed,
        slowest=slowest(distributed),
    )


def _ranks(found: Found) -> tuple[Rank, ...]:
    """Return the devices of several processes: how long each computes, and exchanges data while
    nothing else runs."""
    every = list[Rank]()
    for name, use in found.devices if found.traces[1:] else ():
        exchanges = use.share("communicate")
        every.append(Rank(name, 0, 1.0 - exchanges, exchanges, 0.0, by_phase(use.share)))
    return compared(every)


def _line(found: Found, part: str) -> str:
    """Return the host's largest work in a part of the idle time, and whether marks decided it."""
    mainly = found.marked(part) > MAINLY * found.share(part)
    return shown(found.line(part)) + (", marked by the program" if mainly else "")


def findings(found: Found) -> list[Finding]:
    """Return all findings about the devices, the one to act on first."""
    losses = {part: found.share(part) for part in PARTS if part not in UNCLEAR}
    losses["transfer"] += found.share("copy")
    made = [
        Finding(
            CAUSE_OF_LOSS[part],
            share,
            tuple(_evidence(found, part, share)),
            remedy(part, found),
            interval=interval(share, found.blocks(part, *["copy"] * (part == "transfer"))),
        )
        for part, share in losses.items()
        if share >= LEAST_SHARE
    ]
    computes = found.share("learn")
    if computes < LEAST_SHARE:
        return ordered(made, computes)
    words = (
        "The time goes into the devices' arithmetic: only a faster device, a smaller network or "
        "fewer updates would shorten it."
    )
    seen = (f"the devices compute for {percent(computes)} of the time",)
    return ordered([*made, Finding("compute-bound", computes, seen, words)], computes)


def remedy(part: str, found: Found) -> str:
    """Return the remedy for a part of the time: as for programs, where that needs no more facts."""
    _, rule = REMEDIES[CAUSE_OF_LOSS[part]]
    if isinstance(rule, Remedy):
        return rule.words
    if part == "launch":
        profilers = " ".join(trace.profiler for trace in found.traces).lower()
        hows = [how for name, how in COARSER.items() if name in profilers]
        return f"Do more in each operation: {'; '.join(hows)}."
    if part == "input" and any("MultiProcessing" in name for name, _ in found.lines(part)):
        return (
            "Load batches in more background processes (num_workers=), or make loading cheaper: "
            "the present ones do not keep up."
        )
    return WORDS[part]


WORDS = {
    "input": "Load batches in background processes: DataLoader(num_workers=4, "
    "persistent_workers=True, pin_memory=True), or tf.data's .map(..., "
    "num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE).",
    "env": "Step many environments in one call, or in other processes while the device learns.",
    "transfer": MOVE_ONCE, "communicate": AVERAGE_ONCE, "other": WHILE_BUSY.format("this code"),
    "act": "Choose actions for many environments in one call, without gradients.",
    "ipc": "Pass arrays through shared memory, and several steps in each message.",
    "wait": "Do not wait for the slowest worker each time: take results as they arrive.",
}  # fmt: skip
"""By part of the time: what to change."""


def unclear(found: Found) -> Finding | None:
    """Return why a trace does not show what the devices wait for; None if it does."""
    if not found.devices:
        unknown = Counter[str]()
        for trace in found.traces:
            unknown.update(trace.unknown)
        words = ", ".join(f"{name} ({count:,})" for name, count in unknown.most_common(3))
        why = "the trace has no work of a device, or none within its steps"
        how = "Record the device, too: activities=[..., ProfilerActivity.CUDA]."
        if words:
            why = f"the trace has no events of a device, only ones of unknown categories: {words}"
            how = "Record it with PyTorch's, JAX's or TensorFlow's own profiler."
        return Finding(UNKNOWN, 1.0, (why,), how)
    seconds, call = max(use.longest_call for _, use in found.devices)
    window = max(use.seconds for _, use in found.devices)
    if seconds >= STARTING * window:
        why = (
            f"one call of {shown(call)}, during which the device is idle, takes "
            f"{duration(seconds)} of the {duration(window)} recorded: this is the "
            "program's start, not its steady state"
        )
        words = "Record later steps, once programs are compiled and memory is allocated."
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
    "unknown": "the devices are idle, and what the host does is not recorded",
    "queued": "the devices are idle although they have been given work: the host is not late, and "
    "what the work waits for is not recorded",
}


def _evidence(found: Found, part: str, share: float) -> Iterator[str]:
    """Yield sentences about a finding."""
    yield f"the devices wait {percent(share)} of the time {cards.WAITS_FOR[part]}"
    if share < 0.95:
        yield f"without this the program would be at most {1 / (1 - share):.2f} times as fast"
    for name, seconds in found.lines(part)[:2]:
        if seconds >= LEAST_SHARE:
            yield f"`{shown(name)}`: {percent(seconds)} of the time"
    if marked := found.marked(part):
        yield f"decided by the program's own marks: {percent(marked)} of the time"
    if part == "launch":
        kernels = found.kernels
        if len(kernels):
            tiny = percent(float(np.mean(kernels < TINY_S)))
            yield f"{len(kernels):,} kernels, {tiny} of them under {duration(TINY_S)}"
    elif part == "communicate":
        yield (
            f"for another {percent(found.hidden)} of the time they exchange data while they "
            "compute, which costs nothing"
        )


def headline(found: Found, ranked: Sequence[Finding]) -> str:
    """Return a sentence about how long the devices compute, and the causes of their waiting."""
    if not found.devices:
        return ranked[0].evidence[0]
    waits = {part: found.share(part) for part in (*PARTS, "copy")}
    words = cards.headline(
        len(found.devices), found.share("learn"), waits, lambda part: line_words(found.line(part))
    )
    first = ranked[0].evidence[0] if ranked[0].id == UNKNOWN else tie_words(ranked)
    return f"{first}. {words}" if first else words


def _work(traces: Sequence[Trace]) -> dict[str, WorkRate]:
    """Return the steps per second that the program has marked in its trace."""
    steps, (begin, end) = traces[0].steps, traces[0].window
    return {"marked steps": WorkRate(len(steps) / (end - begin))} if len(steps) else {}


def _steps(traces: Sequence[Trace]) -> str:
    """Return a sentence about how many steps are explained; an empty text if none is marked."""
    steps, (begin, end) = traces[0].steps, traces[0].window
    if not len(steps):
        return ""
    which = "one step" if len(steps) == 1 else f"{len(steps)} steps"
    return f"{which} in {duration(end - begin)}, by the program's own marks"


def _notes(found: Found) -> Iterator[str]:
    """Yield sentences about what was left out."""
    if earlier := sum(trace.earlier for trace in found.traces):
        recordings = "recording was" if earlier == 1 else "recordings were"
        yield f"Of each process the newest recording was read: {earlier} earlier {recordings} not."
    for trace in found.traces if found.devices else ():
        for name, count in trace.unknown.items():
            yield f"{count:,} events of the unknown category {name} were left out."
