"""From evidence to findings: pure rules, numbers in, sentences out.

`flatout_explain.ranking` orders them; learning is divided into its mechanisms.
docs/explain-reference.md has the rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from signal import Signals

from flatout_explain import cards, cores
from flatout_explain.against.rates import (
    CALLS,
    count_words,
    counted,
    uncounted_words,
    without_evaluation,
    work,
)
from flatout_explain.causes import CAUSE_OF_LOSS, CAUSES, DEVICES, OVERLAPPING, UNKNOWN
from flatout_explain.diagnosis import Diagnosis, Finding, WorkRate, lanes, verdict
from flatout_explain.output import command_name
from flatout_explain.phases import PHASES
from flatout_explain.program import counted as exact
from flatout_explain.program import marks, ranks, remedies
from flatout_explain.program.evidence import Evidence
from flatout_explain.program.facts import Facts, facts_of
from flatout_explain.program.tracks import LEARNING, Track
from flatout_explain.ranking import LEAST_SHARE, causes, interval_of_ratio, ordered, tied
from flatout_explain.report import duration, percent, place_words, tie_words

FEW = 0.2  # if all causes are below this share, no single cause is named

SHORTEST_S = 0.5

RUNNING = "running a network outside of learning"  # where it chooses no actions


def diagnose(evidence: Evidence) -> Diagnosis:
    """Return the verdict and its findings."""
    return diagnosis_of(facts_of(evidence))


def diagnosis_of(facts: Facts) -> Diagnosis:
    """Return the same from the evidence's facts."""
    evidence, ranked = facts.evidence, findings(facts)
    gpus = evidence.machine["gpus"]
    cards = f"{len(gpus)} x {gpus[0]}" if gpus else "no GPU"
    driver, distributed = facts.line.driver, ranks.ranks(evidence, facts.line)
    if facts.gpu is None:
        ranked = [ranks.remedied(finding, distributed) for finding in ranked]
    tracks = sorted(facts.line.tracks, key=lambda track: track is not driver)
    apart = facts.line.apart
    if evidence.processes and not facts.ran:
        apart = [("imports and start", evidence.ended - evidence.began)]
    return Diagnosis(
        subject=" ".join(evidence.command),
        verdict=verdict(ranked),
        headline=_headline(facts, ranked),
        part=facts.line.part,
        findings=tuple(ranked),
        seconds=facts.blame.seconds,
        apart=tuple(apart),
        phases={p: facts.blame.shares[p] for p in PHASES if facts.blame.shares.get(p)},
        resets=facts.resets,
        lines={phase: facts.line_words(phase) for phase in facts.blame.shares},
        marked=facts.marked,
        lanes=lanes((track.name, _spans(evidence, track)) for track in tracks),
        explained=(facts.line.begin - evidence.began, facts.line.end - evidence.began),
        usage=tuple(replace(one, t=one.t - evidence.began) for one in evidence.monitor),
        cores=facts.cores,
        machine=f"{evidence.machine['cpu']}, {evidence.machine['cores']} cores, {cards}",
        notes=(*evidence.notes, *_notes(facts), *ranks.notes(distributed, facts.gpu is not None)),
        tie=tuple(finding.id for finding in tied(ranked)),
        ended=_ended(facts),
        intervals=facts.phase_intervals(),
        heaviest=tuple(facts.heaviest_lines()),
        work=_work(facts),
        ranks=distributed,
        slowest=ranks.slowest(distributed) if facts.gpu is None else "",
    )


def _work(facts: Facts) -> dict[str, WorkRate]:
    """Return the work that was counted (``--count``), per second of the explained time."""
    evidence, line = facts.evidence, facts.line
    if not any(process.counts for process in evidence.processes):
        return {}
    processes, found = without_evaluation(evidence, line), dict[str, WorkRate]()
    edges = list(pairwise(line.edges))
    for unit, (number, seconds) in work(processes, line).items():
        parts = [(counted(processes, unit, begin, end), end - begin) for begin, end in edges]
        name = count_words(evidence.count) if unit == CALLS else unit
        rate = number / seconds
        found[name] = WorkRate(rate, interval_of_ratio(rate, parts))
    return found


def findings(facts: Facts) -> list[Finding]:
    """Return all findings, the one to act on first."""
    errors = [process.error for process in facts.evidence.processes if process.error]
    full = (cards.memory_error(facts.cards, *each) for each in errors)
    error = next(filter(None, full), None) or exact.killed(facts.evidence)
    if facts.blame.seconds < SHORTEST_S:
        return [] if error is None else [error]
    reserved, wasted = cards.reserved(facts.cards, str(facts.evidence.machine.get("visible") or ""))
    found = [*_causes(facts), cores.contended(facts.blame.core_use)]
    found += exact.findings(facts)
    if not facts.blame.threads:
        found.append(remedies.oversubscribed(facts))
    learn = facts.share(*LEARNING)
    last = [
        None if wasted else reserved,
        None if error else cards.memory(facts.cards),
        None if error else exact.growth(facts),
        cards.unused(facts.cards, learn, facts.learning.update_s) if any(found) and learn else None,
    ]
    first = (error, reserved if wasted else None)
    return [*filter(None, first), *ordered(found, facts.gpu), *filter(None, last)]


def _causes(facts: Facts) -> list[Finding | None]:
    """Return the findings about what takes the time, in any order."""
    busy = facts.gpu
    found: list[Finding | None]
    if facts.blame.threads:
        found = [_indistinct(facts, 1 - (busy or 0.0))]
    else:
        found = []
        shares = _mechanisms(facts) if busy is None else facts.waits
        if busy is None and not facts.learning.counted:
            outside = any(process.outside for process in facts.evidence.processes)
            found.append(_uncounted(shares.pop("learn") + shares.pop("compute"), outside))
        found += [
            remedies.finding(cause, facts, shares[phase])
            for phase, cause in CAUSE_OF_LOSS.items()
            if shares.get(phase, 0.0) >= LEAST_SHARE
        ]
    if busy is not None and busy >= LEAST_SHARE:
        found.append(remedies.finding("compute-bound", facts, busy))
    return found


def _mechanisms(facts: Facts) -> dict[str, float]:
    """Return shares of the time without a GPU; learning is divided into launching (``learn``) and
    arithmetic (``compute``)."""
    shares = facts.host
    learn = shares.pop("learn", 0.0)
    launch = learn * (facts.learning.launch or 0.0)
    return shares | {"learn": launch, "compute": learn - launch}


def _uncounted(share: float, outside: bool) -> Finding | None:
    """Return the finding about learning whose calls could not be counted."""
    if share < LEAST_SHARE:
        return None
    evidence = (
        f"learning takes {percent(share)} of the time; whether it is arithmetic or the overhead of "
        "many small operations is unknown, because its calls were not counted"
    )
    remedy = (
        f"Start the program with {command_name()} -- COMMAND, which counts its calls."
        if outside
        else "Observe it for longer (--seconds), so that calls within learning are counted."
    )
    return Finding(UNKNOWN, share, (evidence,), remedy)


def _indistinct(facts: Facts, share: float) -> Finding:
    """Return the finding about threads that take turns with the interpreter's lock."""
    busy = facts.blame.busy_cores
    evidence = [
        f"{facts.blame.threads} threads of one process take turns holding Python's interpreter "
        "lock, so that what each of them does cannot be distinguished"
    ]
    if busy is not None:
        evidence.append(f"together they keep {busy:.1f} of {facts.cores} cores busy")
    remedy = (
        "Threads run Python code one at a time: use processes instead, or explain the program "
        "with one thread."
    )
    return Finding(UNKNOWN, share, tuple(evidence), remedy)


# --- Around the findings ----------------------------------------------------------------------


def _headline(facts: Facts, ranked: Sequence[Finding]) -> str:
    if not ranked and facts.evidence.processes and not facts.ran and not facts.evidence.finished:
        seconds = facts.evidence.ended - facts.evidence.began
        return f"the program was still importing modules after {duration(seconds)}"
    if not ranked:
        return "too little was seen to say where the time goes"
    first, *others = ranked
    if first.id == "contended":
        taken = f"{percent(first.share)} of the core time that it could have used"
        summary = f"{CAUSES[first.id]}: {taken}"
        rest = _headline(facts, others) if others else ""
        return f"{summary}. While it ran, {_inner(rest)}" if rest else summary
    tie = tie_words(ranked)
    on_gpu = _gpu_words(facts)
    summary = CAUSES.get(first.id, first.evidence[0] if first.evidence else "")
    if first.id == "acting-bound" and not facts.steps:
        summary = RUNNING
    if first.id not in (UNKNOWN, *DEVICES):
        summary += f" takes {percent(first.share)} of the time"
    if tie:
        summary = tie
    if on_gpu:
        kept = tie or first.id in (UNKNOWN, *OVERLAPPING, *DEVICES)
        summary = f"{summary}. {on_gpu}" if kept else on_gpu
    if facts.line.part and first.id != UNKNOWN:
        part = f"only a part of its work was seen ({facts.line.part})"
        return f"{part}; in that part, {_inner(summary)}"
    if on_gpu or first.id == UNKNOWN:
        return summary
    shares = [finding.share for finding in causes(ranked) if finding.id != "compute-bound"]
    if first.id not in ("compute-bound", *DEVICES) and max(shares) < FEW:
        return f"no cause takes a fifth of the time; begin with the first one: {summary}"
    return summary


def _ended(facts: Facts) -> str:
    """Return how the program ended, if it failed or too little was seen; else an empty text."""
    evidence = facts.evidence
    code = evidence.code
    if not evidence.finished or code is None:
        return ""
    if not code and facts.blame.seconds >= SHORTEST_S:
        return ""
    seconds = evidence.ended - evidence.began
    words = f"the program ended with exit code {code} after {duration(seconds)}"
    if not code:
        return words
    why = [evidence.why, *(_error_words(*one.error) for one in evidence.processes if one.error)]
    with suppress(ValueError):
        why.append(f"{Signals(code - 128).name} ended it" if code > 128 else "")
    return ": ".join([words, *list(filter(None, why))[:1]])


def _error_words(kind: str, text: str) -> str:
    """Return the last line of a traceback: ``ValueError: not a number``."""
    kind = kind.removeprefix("builtins.").removeprefix("__main__.")
    return f"{kind}: {text}" if text else kind


def _gpu_words(facts: Facts) -> str:
    """Return a sentence about working GPUs; an empty text without any."""
    if facts.gpu is None:
        return ""

    def place(phase: str) -> str:
        line = facts.heaviest_line(phase) if phase != "learn" else None
        return "" if line is None else f" ({place_words(line)})"

    waited = {} if facts.blame.threads else facts.waits
    return cards.headline(sum(card.works for card in facts.cards), facts.gpu, waited, place)


def _inner(sentence: str) -> str:
    """Return a sentence as it is written in the middle of another."""
    lower = sentence.startswith(("The ", "On "))
    return sentence[:1].lower() + sentence[1:] if lower else sentence


def _notes(facts: Facts) -> Iterator[str]:
    """Yield sentences about what limits the diagnosis."""
    blame, driver, part = facts.blame, facts.line.driver, facts.line.part
    cheap = "the time of short pieces of Python code is underestimated there."
    ended = facts.evidence.finished
    if blame.seconds < SHORTEST_S and not (ended and facts.evidence.code):
        how = "Let the program do more work, such as more steps" if ended else "Raise --seconds"
        yield f"Only {blame.seconds:.1f} s could be explained. {how}."
    elif part:
        yield (
            f"Nothing is proposed, because {blame.seconds:.0f} s show only a part of what the "
            f"program does ({part}). Raise --seconds."
        )
    for process in facts.evidence.processes:
        if process.failure:
            yield (
                f"Process {process.pid} was observed only in part: the probe in it failed "
                f"({process.failure})."
            )
    if uncounted := uncounted_words(facts.evidence):
        yield f"--count {facts.evidence.count}: nothing was counted, because {uncounted}."
    yield from marks.notes(facts.evidence)
    yield from filter(None, (cores.slowdown(facts.evidence.monitor), cards.shared(facts.cards)))
    if driver is not None and not driver.main and not blame.threads:
        yield f"The thread that does the work ({driver.name}) is not the main one: {cheap}"
    if any(card.ours and card.busy is None for card in facts.cards):
        yield (
            "How busy the GPU is cannot be read (a MIG instance does not report it): time in which "
            "the program waits for the GPU counts as computing, and copies are not seen."
        )
    if blame.locked > 0.05 * blame.seconds:
        yield (
            f"For {percent(blame.locked / blame.seconds)} of the time the main thread waited for "
            "Python's interpreter lock; that time is shown as the work of the threads that held it."
        )
    for process in facts.evidence.processes:
        if process.by_thread:
            how = f"Process {process.pid} was sampled by a second thread ({process.by_thread})"
            yield f"{how}: {cheap}"


def _spans(evidence: Evidence, track: Track) -> Iterator[tuple[float, float, str]]:
    """Yield a thread's samples as spans of the timeline."""
    for moment in track.moments:
        end = moment.t - evidence.began
        yield end - moment.dt, end, moment.shown
