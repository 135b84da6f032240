"""What a diagnosis says: findings with their gains, and what the reports draw beside them.

Plain values: the rules make them, the reports show them, nothing here measures or decides.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from flatout.planning.predict import MODELLED

if TYPE_CHECKING:
    from flatout.hardware.monitor import MonitorSample


@dataclass(frozen=True)
class Finding:
    """One diagnosed cause.

    Attributes:
        id: the cause (see `flatout.explain.causes`).
        share: fraction of the explained wall time that it takes.
        evidence: sentences with numbers, most telling first.
        remedy: what to change, in one or two sentences.
        gain: predicted speed ratio of the whole program (1.7: 70 % more work per second).
        low, high: the interval that the prediction is believed to hold.
        setting: flags of Flatout that apply the remedy, where it is one; empty otherwise.
        kind: of the gain, `MODELLED` or `ASSUMED`.
    """

    id: str
    share: float
    evidence: tuple[str, ...]
    remedy: str
    gain: float = 1.0
    low: float = 1.0
    high: float = 1.0
    setting: tuple[str, ...] = ()
    kind: str = MODELLED


@dataclass(frozen=True)
class Lane:
    """What one thread or device did over time.

    Attributes:
        name: for a reader ("main 4711", "worker 2", "gpu:0").
        spans: (start, end, phase): seconds from the beginning, phases of `PHASES`.
    """

    name: str
    spans: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class Usage:
    """How busy the hardware was at one moment.

    Attributes:
        t: seconds from the beginning.
        cpu: share of all cores that this program used, 0 to 1.
        cpu_all: share of all cores used by anybody, 0 to 1; None where it is unknown.
        gpu_busy: share of time with some kernel running, by GPU; empty without GPUs.
        gpu_full: how full the GPU was while it ran (SM utilisation), by GPU; None where unknown.
        gpu_memory: share of the memory in use, by GPU.
        rss_mb: resident memory of the program, in MiB.
    """

    t: float
    cpu: float
    cpu_all: float | None = None
    gpu_busy: tuple[float, ...] = ()
    gpu_full: tuple[float | None, ...] = ()
    gpu_memory: tuple[float, ...] = ()
    rss_mb: float | None = None

    @staticmethod
    def of(sample: MonitorSample, began: float = 0.0) -> Usage:
        """A monitor's sample, `began` on its clock being the beginning."""
        return Usage(
            sample.t - began, sample.cpu, sample.cpu_all,
            tuple(gpu.busy or 0.0 for gpu in sample.gpus),
            tuple(gpu.full for gpu in sample.gpus),
            tuple(gpu.used_mb / max(gpu.total_mb, 1) for gpu in sample.gpus),
            sample.rss_mb,
        )  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """The whole answer.

    Attributes:
        subject: what was explained: a command line or a run folder.
        verdict: a cause's id, ``healthy``, or ``unknown`` where too little was seen.
        headline: the verdict's sentence.
        findings: best first.
        seconds: explained (steady) wall time.
        apart: (what, seconds) that were left out of the shares: imports, warm-up, compilation.
        phases: share of the explained time by phase; sums to 1.
        lanes: the timeline.
        usage: utilisation over time.
        cores: logical cores that the program may use.
        machine: one line about the machine.
        notes: what could not be seen, one sentence each.
        part: why only a part of what the program does was seen: then nothing is predicted. Empty
            where the shares are of the whole.
    """

    subject: str
    verdict: str
    headline: str
    findings: tuple[Finding, ...]
    seconds: float
    apart: tuple[tuple[str, float], ...] = ()
    phases: dict[str, float] = field(default_factory=dict)
    lanes: tuple[Lane, ...] = ()
    usage: tuple[Usage, ...] = ()
    cores: int = 1
    machine: str = ""
    notes: tuple[str, ...] = ()
    part: str = ""

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` writes: everything but the timeline."""
        shown = asdict(self)
        del shown["lanes"], shown["usage"]
        return shown
