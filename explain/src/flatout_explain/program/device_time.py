"""Time in which a program waits for a device is the time of the part that the device works for.

JAX, and PyTorch on a GPU, return from a call before its result is there. Whatever reads the result
first (`float`, `.item()`, `block_until_ready`, `print`, a comparison) waits for it. While the
device computes, that wait is the arithmetic of the call that made the result. While it does not,
it is a transfer, or the cost of synchronising; fetching a chosen action is a part of acting.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flatout_explain.cards import used_cards
from flatout_explain.hardware.monitor import MonitorSample
from flatout_explain.program import tags
from flatout_explain.program.evidence import Evidence, Process, Sample
from flatout_explain.program.places import Mark, Places
from flatout_explain.program.survey import Frames, Site
from flatout_explain.program.tracks import Moment

ASLEEP = 0.5  # a thread that works for less than this share of a sample waits
BACKWARD = ("run_backward", "_run_backward")  # PyTorch's backward pass, one call
SLEPT = 0.2  # least share of such a call that is waiting

COMPUTES = 0.05
"""Share of the time from which on the process's other threads may be a CPU device that computes."""

FULLY = 0.7
"""From this share on a CPU device counts as computing all the time: operations have gaps."""

AROUND = 0.5  # the most work that comes with a wait, as a part of its length

DIVIDED = ("learn", "act", "transfer", "replay", "other", "eval", "wait")
"""Phases in which a wait may be one for a device."""


class DeviceTime:
    """Divides a process's samples into its own time and that of its device."""

    def __init__(self, evidence: Evidence, process: Process, places: Places) -> None:
        self._process, self._places = process, places
        self._learning = self._learning_shares(process)
        self._is_jax = "jax" in process.libraries
        self._used = used_cards(evidence.monitor)
        self._parallel = not self._used and any(
            "/torch/nn/parallel/distributed.py" in code.file for code in process.codes
        )
        self._cards = [use for use in evidence.monitor if self._used and use.gpus]
        self._delays = [use for use in evidence.monitor if use.delayed is not None]

    def divide(self, sample: Sample, frames: Frames, mark: Mark) -> Iterator[Moment]:
        """Yield a sample's moments, in order: those in which the device computed come first."""
        slept = self._averages(sample, mark)
        if slept:
            parts = [(1 - slept, mark, False), (slept, replace(mark, phase="communicate"), False)]
        elif sample.compilation or not self._waits(sample, mark):
            parts = [(1.0, mark, False)]
        else:
            parts = self._waiting(sample, frames, mark)
        later = sample.dt
        for share, part, device in parts:
            if share > 0.0:
                dt = share * sample.dt
                later -= dt
                t = sample.t - max(later, 0.0)
                yield Moment(t, dt, part, sample.stack, sample.worked, device)

    def _waiting(
        self, sample: Sample, frames: Frames, mark: Mark
    ) -> list[tuple[float, Mark, bool]]:
        """Divide a sample of a thread that waits for a device: shares, their marks, and whether
        the device computed."""
        busy = self._computes(sample)
        if mark.marked:
            return [(busy, mark, True), (1 - busy, mark, False)]
        leaf = self._process.leaf(self._process.stacks[sample.stack])
        role, site, made = self._places.waited_for(frames, leaf)
        if mark.phase not in ("transfer", "other", "wait", "act"):
            role = mark.phase
        call = made.call.rpartition(".")[2] if made is not None else mark.call
        share, line = self._learning.get(sample.stack, (0.0, (0, 0)))
        if sample.worked is not None and sample.worked < ASLEEP * sample.dt:
            share = float(sample.learning is not None)
        # The device works in order: it learns first.
        learns = replace(mark, phase="learn", site=line, call="", waits=False)
        on_device = replace(mark, phase=role, site=site or mark.site, call=call, waits=False)
        phase = mark.phase if mark.phase == "eval" or role == "act" else "transfer"
        if phase in ("other", "wait"):
            phase = role
        on_host = replace(mark, phase=phase, waits=False)
        rest = 1 - share
        return [(share, learns, True), (busy * rest, on_device, True),
                ((1 - busy) * rest, on_host, False)]  # fmt: skip

    @staticmethod
    def _learning_shares(process: Process) -> dict[int, tuple[float, Site]]:
        """Return, by stack, the part of the thread's own work there in which the device learned,
        and the learning line.

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
        """Return the share of a sample in which a backward pass slept. With DistributedDataParallel
        on the CPU it waits there for the average of the gradients, which other threads exchange."""
        backward = mark.phase == "learn" and mark.call in BACKWARD and not mark.marked
        if not (self._parallel and backward) or sample.worked is None:
            return 0.0
        slept = 1 - sample.worked / max(sample.dt, 1e-9)
        return slept if slept > SLEPT else 0.0

    def _waits(self, sample: Sample, mark: Mark) -> bool:
        """Return whether the thread waits for a device, or spends time on asking it."""
        if mark.phase not in DIVIDED:
            return False
        if mark.fetches:
            return True
        if self._cards and mark.call in tags.SYNCS:
            return True
        asleep = sample.worked is not None and sample.worked < ASLEEP * sample.dt
        computes = sample.elsewhere is not None and sample.elsewhere > COMPUTES * sample.dt
        return self._is_jax and asleep and computes and not mark.waits

    def _computes(self, sample: Sample) -> float:
        """Return the share of a sample in which the device computed."""
        if self._cards:
            cards = enumerate(_first_from(self._cards, sample.t).gpus)
            shares = [card.busy for at, card in cards if at in self._used and card.busy is not None]
            # Where no driver reports it (of a MIG instance), a wait counts as its computing.
            return min(max(shares, default=1.0), 1.0)
        if sample.worked is None or sample.elsewhere is None:
            return 1.0  # evidence without these figures
        if sample.worked > ASLEEP * sample.dt:
            return 0.0  # it did not wait: copying, and the cost of the calls
        busy = sample.elsewhere / max(sample.dt, 1e-9)
        if self._delays:  # threads of the program that were ready to run and had no core
            busy += _first_from(self._delays, sample.t).delayed or 0.0
        return 1.0 if busy >= FULLY else busy if busy > COMPUTES else 0.0


def _first_from(samples: Sequence[MonitorSample], t: float) -> MonitorSample:
    """Return the first sample that does not end before `t`, or the last one."""
    at = bisect.bisect_left(samples, t, key=lambda sample: sample.t)
    return samples[min(at, len(samples) - 1)]
