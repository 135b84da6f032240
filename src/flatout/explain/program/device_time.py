"""Time in which a program waits for a device is the time of the part that the device works for.

JAX, and PyTorch on a GPU, return from a call before its result is there. Whatever reads the result
first (`float`, `.item()`, `block_until_ready`, `print`, a comparison) waits for it. While the
device computes, that wait is the arithmetic of the call that made the result. While it does not,
it is a transfer, or the cost of synchronising; fetching a chosen action is a part of acting.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from flatout.explain.cards import used_cards
from flatout.explain.program import tags
from flatout.explain.program.evidence import Evidence, Process, Sample
from flatout.explain.program.places import Mark, Places
from flatout.explain.program.survey import Frames, Site
from flatout.explain.program.tracks import Moment

ASLEEP = 0.5  # a thread that works for less than this share of a sample waits
BACKWARD = ("run_backward", "_run_backward")  # PyTorch's backward pass, one call
SLEPT = 0.2  # least share of such a call that is waiting

COMPUTES = 0.05
"""Share of the time from which on the process's other threads may be a CPU device that computes."""

FULLY = 0.7
"""From this share on a CPU device computes all the time: between operations it is idle, too."""

AROUND = 0.5  # the most work that comes with a wait, as a part of its length

DIVIDED = ("learn", "act", "transfer", "replay", "other", "eval", "wait")
"""Phases in which a wait may be one for a device."""


class DeviceTime:
    """Divides a process's samples into its own time and that of its device."""

    def __init__(self, evidence: Evidence, process: Process, places: Places) -> None:
        self._process, self._places = process, places
        self._learning = self._learning_shares(process)
        self._is_jax = "jax" in process.libraries
        self._parallel = not used_cards(evidence.monitor) and any(
            "/torch/nn/parallel/distributed.py" in code.file for code in process.codes
        )
        known = [(s.t, s.delayed) for s in evidence.monitor if s.delayed is not None]
        self._delays_t, self._delays = [t for t, _ in known], [delay for _, delay in known]
        used = used_cards(evidence.monitor)
        samples = [sample for sample in evidence.monitor if used and sample.gpus]
        self._times = [sample.t for sample in samples]
        self._busy = [busiest([gpu.busy for at, gpu in enumerate(sample.gpus) if at in used])
                      for sample in samples]  # fmt: skip

    def divide(self, sample: Sample, frames: Frames, mark: Mark) -> Iterator[Moment]:
        """Yield a sample's moments, in order: those in which the device computed come first."""
        worked = sample.worked

        def moment(later: float, dt: float, mark: Mark, device: bool) -> Moment:
            return Moment(sample.t - later, dt, mark, sample.stack, worked, device)

        slept = self._averages(sample, mark)
        if slept:
            exchange = replace(mark, phase="communicate")
            yield moment(slept, sample.dt - slept, mark, False)
            yield moment(0.0, slept, exchange, False)
            return
        if sample.compilation or not self._waits(sample, mark):
            yield moment(0.0, sample.dt, mark, False)
            return
        if mark.marked:
            busy = self._computes(sample)
            if busy > 0.0:
                yield moment((1 - busy) * sample.dt, busy * sample.dt, mark, True)
            if busy < 1.0:
                yield moment(0.0, (1 - busy) * sample.dt, mark, False)
            return
        leaf = self._process.leaf(self._process.stacks[sample.stack])
        worked_for, site, made = self._places.waited_for(frames, leaf)
        site = site or mark.site
        call = made.call.rpartition(".")[2] if made is not None else mark.call
        role = worked_for if mark.phase in ("transfer", "other", "wait", "act") else mark.phase
        busy = self._computes(sample)
        share, learning = self._learning.get(sample.stack, (0.0, (0, 0)))
        if worked is not None and worked < ASLEEP * sample.dt:
            share = float(sample.learning is not None)
        if share:  # the device works in order: it learns first
            learns = replace(mark, phase="learn", site=learning, call="", waits=False)
            yield moment((1 - share) * sample.dt, share * sample.dt, learns, True)
            if share == 1.0:
                return
        rest = (1 - share) * sample.dt
        if busy > 0.0:
            on_device = replace(mark, phase=role, site=site, call=call, waits=False)
            yield moment((1 - busy) * rest, busy * rest, on_device, True)
        if busy < 1.0:
            phase = mark.phase if mark.phase == "eval" or role == "act" else "transfer"
            fetches_action = role == "act" and made is not None
            phase = role if fetches_action or phase in ("other", "wait") else phase
            yield moment(0.0, (1 - busy) * rest, replace(mark, phase=phase, waits=False), False)

    @staticmethod
    def _learning_shares(process: Process) -> dict[int, tuple[float, Site]]:
        """By stack, in which part of the thread's own work there the device learned, and the
        learning line.

        Waiting begins and ends with a little work. Its part that belongs to learning is that of the
        waits themselves, and at most `AROUND` of their length.
        """
        waits: defaultdict[int, float] = defaultdict(float)
        learns: defaultdict[int, float] = defaultdict(float)
        works: defaultdict[int, float] = defaultdict(float)
        lines: dict[int, Site] = {}
        for sample in process.samples:
            if sample.worked is None:
                continue
            if sample.worked >= ASLEEP * sample.dt:
                works[sample.stack] += sample.dt
                continue
            waits[sample.stack] += sample.dt
            if sample.learning is not None and sample.learning < len(process.codes):
                learns[sample.stack] += sample.dt
                lines[sample.stack] = (sample.learning, sample.learning_line)
        return {
            stack: (
                min(learns[stack] / waits[stack], AROUND * learns[stack] / (works[stack] or 1.0)),
                line,
            )
            for stack, line in lines.items()
        }

    def _averages(self, sample: Sample, mark: Mark) -> float:
        """The seconds of a sample in which a backward pass slept. With DistributedDataParallel on
        the CPU it waits there for the average of the gradients, which other threads exchange."""
        backward = mark.phase == "learn" and mark.call in BACKWARD and not mark.marked
        if not (self._parallel and backward) or sample.worked is None:
            return 0.0
        slept = sample.dt - sample.worked
        return slept if slept > SLEPT * sample.dt else 0.0

    def _waits(self, sample: Sample, mark: Mark) -> bool:
        """Whether the thread waits for a device, or pays for having asked it."""
        if mark.phase not in DIVIDED:
            return False
        if mark.fetches:
            return True
        if self._times and mark.call in tags.SYNCS:
            return True
        asleep = sample.worked is not None and sample.worked < ASLEEP * sample.dt
        computes = sample.elsewhere is not None and sample.elsewhere > COMPUTES * sample.dt
        return self._is_jax and asleep and computes and not mark.waits

    def _computes(self, sample: Sample) -> float:
        """The share of a sample in which the device computed."""
        if self._times:
            busy = self._busy[_first_from(self._times, sample.t)]
            return 1.0 if busy is None else min(max(busy, 0.0), 1.0)
        if sample.worked is None or sample.elsewhere is None:
            return 1.0  # evidence without these figures
        if sample.worked > ASLEEP * sample.dt:
            return 0.0  # it did not wait: copying, and the cost of the calls
        busy = sample.elsewhere / max(sample.dt, 1e-9)
        if self._delays:  # threads of the program that were ready to run and had no core
            busy += self._delays[_first_from(self._delays_t, sample.t)]
        return 1.0 if busy >= FULLY else busy if busy > COMPUTES else 0.0


def busiest(shares: Iterable[float | None]) -> float | None:
    """The share of the time in which the busiest card computed; None where no driver reports it (of
    a MIG instance). A wait for such a card counts as its computing, and is no transfer."""
    return max((share for share in shares if share is not None), default=None)


def _first_from(times: Sequence[float], t: float) -> int:
    """The position of the first time that is not before `t`, or of the last one."""
    return min(bisect.bisect_left(times, t), len(times) - 1)
