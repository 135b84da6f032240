"""The facts about a program that the rules read."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import PureWindowsPath
from typing import TypeVar

from flatout.explain.program.blame import Blame, Where, blame
from flatout.explain.program.calls import Call, Counted, counted
from flatout.explain.program.evidence import Evidence, Leaf
from flatout.explain.program.mechanism import Learning, learning
from flatout.explain.program.places import program_of
from flatout.explain.program.timeline import Timeline, timeline
from flatout.explain.report import percent

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Facts:
    """The input of the rules."""

    evidence: Evidence
    line: Timeline
    blame: Blame
    counted: Counted  # exact counts of the driver's process
    learning: Learning  # the composition of its learning

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

    def share(self, *phases: str) -> float:
        """Share of the explained time of some phases."""
        return sum(self.blame.shares.get(phase, 0.0) for phase in phases)

    def place(self, where: Where) -> str:
        """A place for a reader: ``file.py:88``."""
        process, site, _ = where
        if site is None:
            return ""
        file = PureWindowsPath(self.evidence.processes[process].codes[site[0]].file)
        return f"{file.name}:{site[1]}"  # of either kind of slash

    def heaviest(self, phase: str, share: float) -> list[str]:
        """The two heaviest places of a phase with their shares of the time, or the phase's
        `share`."""
        by_place = self._summed(phase, lambda where: (self.place(where), where[2]))
        sentences = []
        for (place, call), seconds in sorted(by_place.items(), key=lambda item: -item[1])[:2]:
            place_share = seconds / self.blame.seconds
            if place and place_share >= 0.02:
                sentences.append(f"{place} `{call}`: {percent(place_share)} of the time")
        return sentences or [f"{percent(share)} of the time"]

    def at(self, phase: str) -> str:
        """`` (at file.py:88)`` for the heaviest line of a phase."""
        by_line = self._summed(phase, self.place)
        heaviest = max(by_line, key=lambda line: by_line[line], default="")
        return f" (at {heaviest})" if heaviest else ""

    def by_call(self, phase: str) -> dict[str, float]:
        """Seconds of a phase by call; zero for other calls."""
        return self._summed(phase, lambda where: where[2])

    def _summed(self, phase: str, key: Callable[[Where], Key]) -> dict[Key, float]:
        sums: defaultdict[Key, float] = defaultdict(float)
        for where, seconds in self.blame.where.get(phase, {}).items():
            sums[key(where)] += seconds
        return sums

    def acts(self, call: Call) -> bool:
        """Whether a call of a network chooses actions."""
        if call.kind != "network" or self.line.driver is None or not call.frames:
            return False
        places = self.line.places[self.line.driver.process]
        phase = places.mark(call.frames, Leaf()).phase
        return phase == places.role(call.batch, call.grad) == "act"

    @property
    def acts_in_a_row(self) -> int:
        """The median number of acting calls before an environment steps; 0 if unknown."""
        runs, length = list[int](), 0
        for call in self.counted.calls:
            if call.kind == "env" and length:
                runs.append(length)
                length = 0
            elif self.acts(call):
                length += 1
        return round(statistics.median(runs)) if runs else 0


def facts_of(evidence: Evidence) -> Facts:
    """The facts from the evidence."""
    line = timeline(evidence)
    blamed = blame(evidence, line)
    driver = line.driver
    if driver is None:
        return Facts(evidence, line, blamed, Counted(), Learning(None))
    process, places = evidence.processes[driver.process], line.places[driver.process]
    return Facts(
        evidence, line, blamed, counted(line.windows, program_of(process)),
        learning(process, places, line.steady(driver), line.windows),
    )  # fmt: skip
