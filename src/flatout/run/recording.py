"""Where a run's time goes: records of its spans and hardware use (spans.jsonl, devices.jsonl, the
last seconds), what the machine does now, and the closing verdict.

Span records are written at an iteration's boundary about once a second, in a long run more rarely.
Recording never waits, and does not change what is learned.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from flatout.config.schema import TrainConfig
from flatout.envs.source import EnvSource
from flatout.errors import FlatoutError
from flatout.explain.rules import bottleneck
from flatout.explain.runs import Evidence, closing, diagnose_evidence, recent_phases
from flatout.hardware.inventory import Hardware
from flatout.output import json_text, say
from flatout.planning.machine import this_machine
from flatout.run.auto import recalled
from flatout.run.build import Components
from flatout.run.progress import Progress
from flatout.spans import RunClock, Spans, Work
from flatout.storage.span_records import (
    DEVICES,
    MAIN,
    PLAN,
    SPANS,
    WAIT_LEARNER,
    Begin,
    SpanRecord,
    as_line,
    cut_after,
    json_lines,
    read_samples,
)
from flatout.types import NAMED, UserCode
from flatout_explain.files import nofollow
from flatout_explain.hardware.monitor import GROWTH_S, Monitor, MonitorSample, Recorder, Sampler
from flatout_explain.report import percent

INTERVAL_S = 1.0
RECENT_S = 5.0  # seconds that the live display shows
MANY_LANES = 32  # runs with more processes than this write records more rarely


class RunRecording:
    """A run's recording.

    Args:
        spans: the main process's.
        lanes: the work of the run's other threads and processes so far.
        waited: seconds for which the main process has waited for the learner's thread.
        wall: seconds since the run's start.
        folder: of the files; None writes no files.
        kept_s: the checkpoint's time; a resumed run truncates the files after it.
        devices: sample the CPU and the GPUs.
        sampler: samples them for several runs; None makes one for this run alone.
    """

    def __init__(
        self,
        spans: Spans,
        *,
        lanes: Callable[[], Mapping[str, Work]],
        waited: Callable[[], float],
        wall: Callable[[], float],
        folder: Path | None,
        kept_s: float,
        cores: int,
        devices: bool = True,
        sampler: Sampler | None = None,
    ) -> None:
        self._spans, self._lanes, self._waited, self._wall = spans, lanes, waited, wall
        self._folder = folder
        self._file: Any = None
        self._sampler, self._own = sampler, sampler is None
        self._recorder: Recorder | None = None
        if folder is not None:
            try:
                for name in (SPANS, DEVICES):
                    cut_after(folder / name, kept_s)
                self._file = nofollow.open_stream(folder / SPANS, nofollow.APPEND)
            except OSError as error:
                self._stop(error)
        if devices:
            self._recorder = Recorder(None if folder is None else folder / DEVICES, wall)
            self._sampler = sampler or Sampler(Monitor(os.getpid(), INTERVAL_S, cores=cores))
        self._lines: list[dict[str, Any]] = []
        self._recent: deque[SpanRecord] = deque()
        self._counts = (0, 0, 0)
        self._begun = self._at = self._due = 0.0
        self._main: dict[str, int] = {}
        self._works: dict[str, Work] = {}
        self._waited_s = 0.0
        self._first = True

    def begin(self, begin: Begin, counts: tuple[int, int, int]) -> None:
        """Start when training begins; `counts` are the run's steps, updates and iterations."""
        self._write({"begin": asdict(begin)})
        self._counts = counts
        self._begun = self._at = self._due = time.perf_counter()
        self._main, self._works = dict(self._spans.totals), dict(self._lanes())
        self._waited_s = self._waited()
        if self._recorder is not None and self._sampler is not None:
            self._sampler.add(self._recorder)

    def tick(self, counts: tuple[int, int, int]) -> bool:
        """Write records after an iteration if they are due; return whether any were written."""
        if time.perf_counter() < self._due:
            return False
        self._write_records(counts, first=self._first)
        self._first = False
        return True

    def end(self, counts: tuple[int, int, int]) -> None:
        """Write the records of the last iteration."""
        if self._begun and counts[2] > self._counts[2]:
            self._write_records(counts, first=self._first)

    def close(self) -> None:
        """Write the last records and stop sampling."""
        if self._begun:
            self._write_records(self._counts, closing=True)
            self._begun = 0.0
        if self._recorder is not None and self._sampler is not None:
            self._sampler.remove(self._recorder)
            if self._own:
                self._sampler.close()
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    @property
    def recent(self) -> list[SpanRecord]:
        """The span records of the last seconds."""
        return list(self._recent)

    @property
    def sample(self) -> MonitorSample | None:
        """The newest sample of the hardware."""
        return None if self._recorder is None else self._recorder.latest

    def lines(self) -> list[dict[str, Any]]:
        """Return the run's lines from its folder, or those of this process if there is no
        folder."""
        return self._lines if self._folder is None else json_lines(self._folder / SPANS)

    def samples(self) -> list[MonitorSample]:
        """Return the hardware's samples, as `lines` does for spans."""
        if self._folder is not None:
            return read_samples(self._folder / DEVICES)
        return [] if self._recorder is None else list(self._recorder.samples)

    def _write_records(
        self, counts: tuple[int, int, int], *, first: bool = False, closing: bool = False
    ) -> None:
        """Write a record for each thread and process, and begin the next records."""
        now, end = time.perf_counter(), self._wall()
        duration = max(now - self._at, 0.0)
        main, works, waited = dict(self._spans.totals), dict(self._lanes()), self._waited()
        spent = {name: (ns - self._main.get(name, 0)) / 1e9 for name, ns in main.items()}
        learner_s = min(max(waited - self._waited_s, 0.0), spent.get("wait", 0.0))
        if learner_s:
            spent["wait"] -= learner_s
            spent[WAIT_LEARNER] = learner_s
        steps, updates, iterations = (
            new - old for new, old in zip(counts, self._counts, strict=True)
        )
        record = partial(
            SpanRecord, max(end - duration, 0.0), duration, first=first, closing=closing
        )
        made = {"steps": steps, "updates": updates, "iterations": iterations}
        records = [record(MAIN, spent, **made, **self._resets(works, MAIN))]
        for lane, work in works.items():
            if lane == MAIN:
                continue
            before = self._works.get(lane, Work())
            spent = {name: s - before.seconds.get(name, 0.0) for name, s in work.seconds.items()}
            turns, square = work.turns - before.turns, max(work.square - before.square, 0.0)
            resets = self._resets(works, lane)
            records.append(
                record(lane, spent, turns=turns, square=square, clock_s=work.clock_s, **resets)
            )
        for line in map(as_line, records):
            self._write(line)
        self._recent += records
        while self._recent and self._recent[0].end < end - RECENT_S and not closing:
            self._recent.popleft()
        self._counts, self._at = counts, now
        self._main, self._works, self._waited_s = main, works, waited
        factor = max(1.0, len(records) / MANY_LANES)
        self._due = now + factor * max(INTERVAL_S, (now - self._begun) / GROWTH_S)

    def _resets(self, works: Mapping[str, Work], lane: str) -> dict[str, Any]:
        """Return a record's fields of the resets since the last records."""
        nothing = Work()
        resets = works.get(lane, nothing).resets
        count, seconds, square, waited = resets.minus(self._works.get(lane, nothing).resets)
        return {
            "resets": count, "reset_s": seconds, "reset_square": square, "reset_wait_s": waited,
        }  # fmt: skip

    def _write(self, line: dict[str, Any]) -> None:
        if self._folder is None:
            self._lines.append(line)
        if self._file is None:
            return
        try:
            self._file.write(json_text(line, separators=(",", ":")).encode() + b"\n")
            self._file.flush()  # survives a kill
        except OSError as error:
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        """Stop recording. A failure to record does not end a run."""
        assert self._folder is not None
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()
        say(
            f"cannot write {self._folder / SPANS} ({error.strerror}): where the time goes is not "
            "recorded from here on, and the run's verdict leaves it out."
        )


def start_recording(
    config: TrainConfig, components: Components, progress: Progress, spans: Spans, clock: RunClock,
    wall: Callable[[], float], folder: Path | None, sample_devices: bool,
    sampler: Sampler | None = None,
) -> RunRecording:  # fmt: skip
    """Record from now on where the run's time goes.

    Args:
        sampler: samples the devices for several runs; None makes one for this run alone.
    """
    schedule, hardware = components.schedule, components.hardware
    recording = RunRecording(
        spans, lanes=schedule.work, wall=wall, folder=folder, kept_s=progress.wall_s,
        cores=hardware.cores, devices=sample_devices, sampler=sampler,
        waited=lambda: schedule.stats().get("sampler_wait_s", 0.0),
    )  # fmt: skip
    cards = ", ".join(gpu.name for gpu in hardware.gpus) or "no GPU"
    times = clock.times()
    begin = Begin(
        t=round(wall(), 3),
        startup_s=round(times.startup_s, 3),
        compile_s=round(times.compile_s, 3),
        plan_s=round(spans.seconds(PLAN), 3),
        cores=hardware.cores,
        envs=config.env.envs,
        placement=str(components.placement),
        machine=f"{hardware.cpu_name}, {hardware.cores} cores, {cards}",
        gpus=tuple(gpu.name for gpu in hardware.usable_gpus),
        images=shows_images(config.flat()),
        could_have_spares=components.could_have_spares,
    )
    recording.begin(begin, progress.counts)
    return recording


def current_load(recording: RunRecording, components: Components) -> tuple[float, str]:
    """Return the steps per second of the last seconds, and `load_words` of the machine in that
    time."""
    recent = recording.recent
    mains = [record for record in recent if record.lane == MAIN]
    outside = sum(record.spans.get(name, 0.0) for record in mains for name in ("compile", PLAN))
    seconds = sum(record.d for record in mains) - outside
    now = bottleneck(recent_phases(recent, components.placement))
    words = load_words(recording.sample, components.hardware.cores, *now)
    return sum(record.steps for record in mains) / max(seconds, 1e-9), words


def load_words(sample: MonitorSample | None, cores: int, cause: str, share: float) -> str:
    """Return CPU and GPU use, and the cause with the largest share of the time, on one line."""
    words: list[str] = []
    if sample is not None:
        words.append(f"cpu {percent(sample.cpu)} of {cores} {'core' if cores == 1 else 'cores'}")
    for number, gpu in enumerate(() if sample is None else sample.gpus):
        if gpu.busy is not None:
            filled = "" if gpu.full is None else f" ({percent(gpu.full)} full)"
            words.append(f"gpu:{number} busy {percent(gpu.busy)}{filled}")
    if cause:
        words.append(f"now {cause}, {percent(share)} of the time")
    return "   ".join(words)


def closing_verdict(
    recording: RunRecording, config: TrainConfig, folder: Path | None, hardware: Hardware,
    code: UserCode,
) -> dict[str, Any]:  # fmt: skip
    """Return the run's diagnosis for its summary, with gains that planning measured on this
    machine."""
    try:
        evidence = Evidence(
            "this run" if folder is None else str(folder), config, recording.lines(),
            recording.samples(), ended=True, machine=this_machine(hardware.cores),
            plan=recalled(config, hardware) if code == NAMED else None,
        )  # fmt: skip
        return closing(diagnose_evidence(evidence))
    except FlatoutError:  # no iteration was made, or its files are too large to be read
        return closing(None)


def shows_images(settings: Mapping[str, Any]) -> bool:
    """Return whether the settings of a run say that its observations are images."""
    pixels = settings.get("network") in ("nature", "nature_same")
    prepared = bool(settings.get("grayscale")) or settings.get("resize") is not None
    return pixels or prepared or EnvSource(str(settings.get("env", ""))).atari
