"""The facts about a program that the rules read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from flatout_explain import cards
from flatout_explain.cards import CardUse
from flatout_explain.diagnosis import LEAST_LINE, LineShare
from flatout_explain.hardware.monitor import MonitorSample
from flatout_explain.program.blame import Blame, Where, blame
from flatout_explain.program.calls import Call, Counted, counted
from flatout_explain.program.evidence import Evidence
from flatout_explain.program.flow import Site
from flatout_explain.program.marks import FLAG, PROGRAM
from flatout_explain.program.mechanism import Learning, learning
from flatout_explain.program.survey import program_of
from flatout_explain.program.timeline import Timeline, timeline
from flatout_explain.ranking import interval
from flatout_explain.report import percent, place_words, shortened
from flatout_explain.timespans import weighted_mean

STARTS = ("fork_exec", "posix_spawn", "posix_spawnp", "system")
"""Python's built-in functions that start another program."""

SHOWN = 60  # characters of a line that are shown
MAINLY = 0.3  # share of a phase from which on something is said of all of it

MOST_LINES = 5  # of a phase

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Facts:
    """The input of the rules."""

    evidence: Evidence
    line: Timeline
    blame: Blame
    counted: Counted  # exact counts of the driver's process
    learning: Learning  # the composition of its learning
    cards: tuple[CardUse, ...] = ()  # its use of each visible GPU
    # share of learning that is overhead, in each of the timeline's blocks
    launches: Sequence[float] = ()

    @property
    def gpu(self) -> float | None:
        """The mean share of the time in which GPUs compute, if any works; else None."""
        return cards.computing(self.cards)

    @property
    def host(self) -> dict[str, float]:
        """Shares of the host's time by phase; work that is not worth handing out is ``ipc``, and
        so is waiting for processes that are started again and again."""
        found = defaultdict(float, self.blame.shares)
        for phase, part in self._moved.items():
            share = part * found[phase]
            found[phase] -= share
            found["ipc"] += share
        return found

    @property
    def _moved(self) -> dict[str, float]:
        """The parts of phases that go with messages between processes."""
        shares = self.blame.shares
        waits = {"wait": shares.get("wait", 0.0)} if self.restarts else {}
        moved = self.blame.trivial | waits
        return {phase: min(moved[phase] / shares[phase], 1.0) for phase in moved if phase in shares}

    @property
    def waits(self) -> dict[str, float]:
        """Shares of the time in which working GPUs wait, by the host's phase.

        Work may be in flight while the GPU idles, such as between the kernels of a long loop: of
        the time in which the host waits for it, only as much as the GPU computes is the GPU's.
        """
        if self.gpu is None or not self.blame.seconds:
            return {}
        waited_for = {phase: s / self.blame.seconds for phase, s in self.blame.device.items()}
        computes = min(self.gpu / (sum(waited_for.values()) or 1.0), 1.0)
        host = {
            phase: max(share - computes * waited_for.get(phase, 0.0), 0.0)
            for phase, share in self.host.items()
        }
        return cards.waits(host, self.gpu)

    @property
    def cores(self) -> int:
        """Cores that the program may use."""
        return int(self.evidence.machine["cores"])

    @property
    def capacity(self) -> float:
        """The measured speed of all cores together, relative to one core alone."""
        return float(min(self.evidence.machine.get("together") or self.cores, self.cores))

    @property
    def spare(self) -> float:
        """Cores that the program does not use."""
        busy = self.blame.busy_cores
        return 0.0 if busy is None else max(0.0, self.cores - busy)

    @property
    def restarts(self) -> int:
        """Processes that were started in the steady state, if they are at least twice as many as
        ever lived at once; else 0. Programs that Python starts, such as commands, are counted if
        the kernel knows of processes that lived briefly."""
        begin, end = self.line.begin, self.line.end
        spans = [
            (process.started, process.samples[-1].t if process.samples else process.started)
            for process in self.evidence.processes[1:]
            if begin < process.started <= end
        ]
        alive = max((sum(a <= t <= b for a, b in spans) for t, _ in spans), default=0)
        again = len(spans) if len(spans) >= 2 * max(alive, 1) else 0
        return max(again, self.commands)

    @property
    def commands(self) -> int:
        """Return how many programs the driver's process started in the steady state that ended
        soon, by the rate in its windows."""
        used = weighted_mean((s.brief or 0.0, s.seconds) for s in self.line.samples(self.evidence))
        begun = sum(self.counted.names[name] for name in STARTS)
        return round(self.counted.rate(begun) * self.blame.seconds) if used else 0

    @property
    def ran(self) -> bool:
        """Whether the program was seen to do more than import modules."""
        moments = (moment for track in self.line.tracks for moment in track.moments)
        return any(moment.mark.phase != "import" for moment in moments)

    @property
    def resets(self) -> float:
        """Share of the explained time in which environments are reset, a part of ``env``."""
        return self.blame.resets / self.blame.seconds if self.blame.seconds else 0.0

    def share(self, *phases: str) -> float:
        """Return the share of the explained time of some phases."""
        return sum(self.blame.shares.get(phase, 0.0) for phase in phases)

    def interval(self, cause: str, phase: str, share: float) -> tuple[float, float] | None:
        """Return a 95 % interval for a cause's share of the time, which is a phase's share or a
        part of it; None if it is unknown."""
        moved = self._moved
        parts = moved | {phase: 1.0} if phase == "ipc" else {phase: 1.0 - moved.get(phase, 0.0)}
        spent = [
            sum(part * block.get(name, 0.0) for name, part in parts.items())
            for block in self.blame.blocks
        ]
        factors: Iterable[float] = [1.0] * len(spent)
        if self.gpu is not None:
            factors = map(self._idle, self.samples)
        elif cause == "launch-bound":
            factors = self.launches
        elif phase == "learn":
            factors = (1.0 - launch for launch in self.launches)
        spent = [seconds * factor for seconds, factor in zip(spent, factors, strict=True)]
        lengths = [sum(block.values()) for block in self.blame.blocks]
        return interval(share, zip(spent, lengths, strict=True))

    @property
    def samples(self) -> list[list[MonitorSample]]:
        """The monitor's samples in each of the timeline's blocks."""
        edges = pairwise(self.line.edges)
        return [[s for s in self.evidence.monitor if a < s.t <= b] for a, b in edges]

    def _idle(self, samples: Sequence[MonitorSample]) -> float:
        """Return the share of some samples' time (of all without any) in which working GPUs
        wait."""
        within = cards.card_uses(self.evidence.monitor, samples) if samples else self.cards
        return 1.0 - (cards.computing(within) or 0.0)

    def line_of(self, process: int, site: Site | None) -> tuple[str, int] | None:
        """Return the file and line of a place."""
        return site and (self.evidence.processes[process].codes[site[0]].file, site[1])

    def own_line(self, where: Where) -> tuple[str, int] | None:
        """Return file and line of the program's own line at a place or leading to it."""
        return self.line_of(where.process, where.own or where.site)

    def place(self, where: Where) -> str:
        """Return a place in words: ``train.py:88``, then the library's line that it leads to."""
        own, line = self.own_line(where), self.line_of(where.process, where.site)
        if own is None or line is None:
            return ""
        return place_words(own) + (f" in {place_words(line)}" if line != own else "")

    def text(self, where: Where) -> str:
        """Return the source of a place's line; the name of its call if the source is unknown."""
        lines = self.evidence.processes[where.process].lines
        return (where.site and lines.get(where.site)) or where.call

    def heaviest(self, phase: str, share: float) -> list[str]:
        """Return the two heaviest places of a phase with their shares of the time, or the phase's
        `share`."""
        sentences = []
        for (place, text), seconds in self._lines(phase)[:2]:
            place_share = seconds / self.blame.seconds
            if place and place_share >= 0.02:
                shown = f"{place} `{shortened(text, SHOWN)}`: {percent(place_share)}"
                whose = "of the time" if self.gpu is None else "of the host's time"
                sentences.append(f"{shown} {whose}")
        return sentences or [f"{percent(share)} of the time"]

    def line_words(self, phase: str) -> str:
        """Return a phase's heaviest line with its source, and the device's share of the phase."""
        (place, text), _ = next(iter(self._lines(phase)), (("", ""), 0.0))
        words = [f"{place}  {shortened(text, SHOWN)}" if place else ""]
        total = self.share(phase) * self.blame.seconds or 1.0
        if self.blame.device[phase] > MAINLY * total:
            words.append(
                f"{percent(self.blame.device[phase] / total)} of it waiting for the device"
            )
        words += [
            f"marked by {by}" for by in (PROGRAM, FLAG)
            if self.blame.marked[phase, by] > MAINLY * total
        ]  # fmt: skip
        return ", ".join(filter(None, words))

    def marked_words(self, phase: str) -> list[str]:
        """Return sentences about how much of the time marks have given to a phase."""
        seconds = self.blame.seconds or 1.0
        shares = [(by, self.blame.marked[phase, by] / seconds) for by in (PROGRAM, FLAG)]
        whose = {PROGRAM: "the program's own marks", FLAG: FLAG}
        return [
            f"decided by {whose[by]}: {percent(share)} of the time" for by, share in shares if share
        ]

    @property
    def marked(self) -> dict[str, float]:
        """Shares of the time, by phase, that marks decided."""
        sums = defaultdict[str, float](float)
        for (phase, by), seconds in self.blame.marked.items():
            if by and seconds:
                sums[phase] += seconds / self.blame.seconds
        return dict(sums)

    def heaviest_function(self, phase: str) -> tuple[str, float]:
        """Return the program's function in which a phase spends most of its time, and its part of
        the phase; empty if that is the program's top level."""

        def function(where: Where) -> str:
            codes = self.evidence.processes[where.process].codes
            name = codes[where.site[0]].plain if where.site else ""
            return "" if name.startswith("<") else name

        sums = self.summed(phase, function)
        name = max(sums, key=lambda one: sums[one], default="")
        return name, sums[name] / (sum(sums.values()) or 1.0) if name else 0.0

    def heaviest_line(self, phase: str) -> tuple[str, int] | None:
        """Return the file and line in which a phase spends most of its time; None if unknown."""
        by_line = self.summed(phase, self.own_line)
        return max(by_line, key=lambda line: by_line[line], default=None)

    def heaviest_lines(self) -> Iterator[LineShare]:
        """Yield the lines that take at least `LEAST_LINE` of the time, at most `MOST_LINES` of each
        phase."""
        for phase in self.blame.shares:
            for (place, text), seconds in self._lines(phase)[:MOST_LINES]:
                share = seconds / self.blame.seconds
                if share >= LEAST_LINE:
                    yield LineShare(phase, place, shortened(text, SHOWN), share)

    def phase_intervals(self) -> dict[str, tuple[float, float]]:
        """Return intervals that hold the phases' shares of the time with 95 %, where known."""
        blocks = self.blame.blocks
        found = {
            phase: interval(share, [(one.get(phase, 0.0), sum(one.values())) for one in blocks])
            for phase, share in self.blame.shares.items()
        }
        return {phase: known for phase, known in found.items() if known is not None}

    def _lines(self, phase: str) -> list[tuple[tuple[str, str], float]]:
        """Return place, source and seconds of a phase's lines, the heaviest first."""
        by_line = self.summed(phase, lambda where: (self.place(where), self.text(where)))
        return sorted(by_line.items(), key=lambda item: -item[1])

    def summed(self, phase: str, key: Callable[[Where], Key]) -> dict[Key, float]:
        """Return seconds of a phase's places, by what `key` says of them."""
        sums: defaultdict[Key, float] = defaultdict(float)
        for where, seconds in self.blame.where.get(phase, {}).items():
            sums[key(where)] += seconds
        return sums

    def acts(self, call: Call) -> bool:
        """Return whether a call of a network chooses actions. A window that begins within such a
        call sees those of its layers, which do not count."""
        if call.kind != "network" or self.line.driver is None or not call.frames:
            return False
        places = self.line.places[self.line.driver.process]
        inside = any(places.survey.tag(code) == "network" for code, _ in call.frames)
        return not inside and places.role(call.frames) == "act"

    @property
    def steps(self) -> bool:
        """Whether environments were seen to step in any process."""
        return any(places.survey.steps() for places in self.line.places)


def facts_of(evidence: Evidence) -> Facts:
    """Return the facts from the evidence."""
    line = timeline(evidence)
    blamed = blame(evidence, line)
    driver = line.driver
    used = cards.card_uses(evidence.monitor, line.samples(evidence))
    if driver is None:
        return Facts(evidence, line, blamed, Counted(), Learning(None), used)
    process, places = evidence.processes[driver.process], line.places[driver.process]
    moments = line.steady(driver)
    whole, launches = learning(process, places, moments, line.windows), list[float]()
    for begin, end in pairwise(line.edges):
        within = [moment for moment in moments if begin < moment.t <= end]
        windows = [window for window in line.windows if begin < window.t <= end]
        part = learning(process, places, within, windows)
        known = part if part.exact == whole.exact and part.launch is not None else whole
        launches.append(known.launch or 0.0)
    return Facts(
        evidence, line, blamed, counted(line.windows, program_of(process)), whole, used, launches
    )
