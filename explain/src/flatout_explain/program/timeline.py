"""The timeline of a program's threads, and its steady state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from flatout_explain.hardware.core_use import samples_within
from flatout_explain.hardware.monitor import MonitorSample
from flatout_explain.program.calls import Replay, network_sites, replay
from flatout_explain.program.codes import Leaf
from flatout_explain.program.cycles import Steady, steady
from flatout_explain.program.device_time import DeviceTime
from flatout_explain.program.evidence import Evidence, Process
from flatout_explain.program.marks import Marks
from flatout_explain.program.places import Mark, Places
from flatout_explain.program.survey import Site, program_of
from flatout_explain.program.tags import is_program
from flatout_explain.program.tracks import APART, Moment, Track, learner
from flatout_explain.ranking import block_ends

FADED = 0.1
"""If less than this share of compiling falls into the second half, it was warm-up."""


@dataclass
class Timeline:
    """All samples of a program."""

    tracks: list[Track]  # all threads with samples
    places: list[Places]  # decide phases, by process
    driver: Track | None  # the thread that learns most, which the others serve
    begin: float  # of the steady state
    end: float
    apart: list[tuple[str, float]]  # (what, seconds) of the driver outside of it
    windows: list[Replay] = field(default_factory=list)  # of the driver's process, in that time
    part: str = ""  # why the steady state is no whole cycle, or empty
    ends: tuple[float, ...] = ()  # of the driver's whole cycles, if it collects and learns in turn

    def samples(self, evidence: Evidence) -> Sequence[MonitorSample]:
        """Return the monitor's samples of the steady state; all of them if it has none."""
        return samples_within(evidence.monitor, self.begin, self.end)

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges of the blocks by which it is judged how much shares vary; only `begin` where
        there are none, because a part of a cycle was seen or there is no room for two."""
        ends = () if self.part else block_ends(self.begin, self.end, self.ends)
        return (self.begin, *ends)

    def steady(self, track: Track) -> list[Moment]:
        """Return a track's moments in the steady state, without imports and first compilations."""
        return [
            m for m in track.moments if self.begin < m.t <= self.end and m.mark.phase not in APART
        ]


def timeline(evidence: Evidence) -> Timeline:
    """Decide the phase of every sample."""
    tracks: list[Track] = []
    places: list[Places] = []
    for index, process in enumerate(evidence.processes):
        helps = any("resource_tracker" in word or "forkserver" in word for word in process.argv)
        files = {code.file for code in process.codes if is_program(code, process.stdlib)}
        if helps and files <= {"<string>"}:  # not what a fork server has forked
            places.append(Places(process, {}))
            continue
        process_places = _places(process, Marks(evidence, process))
        places.append(process_places)
        device = DeviceTime(evidence, process, process_places)
        tracks += _tracks(index, process, process_places, device)
    if not tracks:
        return Timeline(tracks, places, None, evidence.began, evidence.ended, [])
    driver = learner(tracks)
    process = evidence.processes[driver.process]
    stepping = places[driver.process].stepping
    unseen = _learns_unseen(process, places[driver.process], driver)
    period = steady(driver.moments, evidence.began, evidence.finished, unseen)
    begin, end = period.begin, period.end
    windows = [
        replay(process, window, stepping) for window in process.windows if begin < window.t <= end
    ]
    late = driver.seconds(("compile",), (begin + end) / 2, end)
    if late < FADED * driver.seconds(("compile",), begin, end):
        for track in tracks:
            for at, moment in enumerate(track.moments):
                if moment.mark.phase == "compile":
                    mark = replace(moment.mark, phase="first compilation")
                    track.moments[at] = replace(moment, mark=mark)
    excluded = _excluded(driver, evidence, period)
    return Timeline(tracks, places, driver, begin, end, excluded, windows, period.part, period.ends)


def _places(process: Process, marks: Marks) -> Places:
    sampled = {sample.stack for sample in process.samples if not sample.compilation}
    seen = [
        (stack.frames, process.leaf(stack))
        for index, stack in process.stacks.items()
        if index in sampled and stack.frames
    ]
    windows = [replay(process, window) for window in process.windows]
    counted = [(each.frames, each.name) for window in windows for each in window.intervals]
    # These also have calls too short to be sampled.
    seen += [(frames, Leaf(name, name)) for frames, name in dict.fromkeys(counted)]
    return Places(process, network_sites(windows, program_of(process)), seen, marks)


def _tracks(index: int, process: Process, places: Places, device: DeviceTime) -> list[Track]:
    tracks: dict[int, Track] = {}
    first_compilations: dict[Site | None, int] = {}
    for sample in process.samples:
        stack = process.stacks.get(sample.stack)
        if stack is None or not stack.frames:
            continue
        mark = places.mark(stack.frames, process.leaf(stack))
        if sample.compilation and mark.phase != "import":
            number = first_compilations.setdefault(mark.site, sample.compilation)
            phase = "first compilation" if number == sample.compilation else "compile"
            mark = Mark(phase, False, mark.site, mark.call)
        if sample.lane not in tracks:
            row = process.lanes.get(sample.lane, {})
            name = "main" if row.get("main") else row.get("name") or f"thread {sample.lane}"
            tracks[sample.lane] = Track(index, f"{name} {process.pid}", bool(row.get("main")))
        tracks[sample.lane].moments += device.divide(sample, stack.frames, mark)
    return list(tracks.values())


def _learns_unseen(process: Process, places: Places, driver: Track) -> bool:
    """Return whether the driver's code takes gradients, and was not seen to do so."""
    stacks = {m.stack for m in driver.moments if m.mark.phase != "import"}
    codes = {code for stack in stacks for code, _ in process.stacks[stack].frames}
    # It may have been compiled, and then be too short to be sampled.
    if places.applied or any(places.survey.tag(code) == "optimise" for code in codes):
        return False
    learning = [process.codes[code] for code in codes if process.codes[code].learns]
    return any(is_program(code, process.stdlib) for code in learning)


def _excluded(driver: Track, evidence: Evidence, period: Steady) -> list[tuple[str, float]]:
    def between(begin: float, end: float) -> float:
        within = [m for m in driver.moments if begin < m.t <= end]
        return sum(m.dt for m in within if m.mark.phase not in APART)

    first, last = driver.moments[0].t, driver.moments[-1].t
    start = max(0.0, first - evidence.began) + between(0.0, period.started)
    periods = [
        ("imports and start", start + driver.seconds(("import",))),
        ("first compilation", driver.seconds(("first compilation",))),
        (period.before, between(period.started, period.begin)),
        (period.after, between(period.end, last)),
    ]
    return [(name, seconds) for name, seconds in periods if seconds >= 0.05]
