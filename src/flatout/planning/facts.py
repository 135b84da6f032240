"""From sums over a run's steady state to the numbers that the rules read. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flatout.config.placement import Placement
from flatout.hardware.monitor import MonitorSample
from flatout.spans import OF_SPAN, PHASES
from flatout.storage.span_records import WAIT_LEARNER, Totals, Worker

EXPECTED_MAX = {1: 0.0, 2: 0.564, 3: 0.846, 4: 1.029, 6: 1.267, 8: 1.424, 12: 1.629, 16: 1.766,
                32: 2.070, 64: 2.343, 128: 2.594}  # fmt: skip
"""By how many standard deviations the largest of n normal draws exceeds their mean, on average."""


@dataclass(frozen=True)
class Use:
    """Means of the hardware's samples over the explained time; None where unknown.

    Attributes:
        cpu: share of the run's cores that the run used.
        cpu_all: the same of everybody.
        runnable: threads of the run that ran or wanted to.
        gpu_busy, gpu_full: of the GPU that the run used most.
        gpu_memory: share of that GPU's memory in use.
        gpu_others: other programs hold memory there.
    """

    cpu: float | None = None
    cpu_all: float | None = None
    runnable: float | None = None
    gpu_busy: float | None = None
    gpu_full: float | None = None
    gpu_memory: float | None = None
    gpu_others: bool = False


@dataclass(frozen=True)
class RunFacts:
    """What the rules know of a run's steady state.

    Attributes:
        seconds: how long it was looked at.
        phases: share of that time by phase, every known phase present; sums to 1. Waiting for
            actor processes or for the learner's thread is counted as what they did meanwhile.
        logs, checkpoints: the two parts of ``io``, as shares.
        steps, updates, iterations: made in it.
        settings: the run's, by name.
        placement: the run's, with its workers.
        envs, cores: environments stepped together; cores that the run may use.
        learner: share of the time in which the learner had something to do.
        waited: share in which the main process waited for actor processes.
        workers: what each of these did.
        use: of the hardware.
        gpus: names of the GPUs that JAX can use here.
        images: observations are images.
    """

    seconds: float
    phases: dict[str, float]
    settings: Mapping[str, Any]
    placement: Placement
    logs: float = 0.0
    checkpoints: float = 0.0
    steps: int = 0
    updates: int = 0
    iterations: int = 0
    envs: int = 1
    cores: int = 1
    learner: float = 0.0
    waited: float = 0.0
    workers: tuple[Worker, ...] = ()
    use: Use = field(default_factory=Use)
    gpus: tuple[str, ...] = ()
    images: bool = False

    @property
    def replays(self) -> bool:
        """Whether it learns from stored transitions."""
        return "train_freq" in self.settings

    @property
    def overlapped(self) -> bool:
        """Whether it collects while it learns."""
        return self.placement.schedule == "overlapped"


def facts(
    totals: Totals,
    *,
    settings: Mapping[str, Any],
    placement: Placement,
    envs: int,
    cores: int,
    use: Use | None = None,
    gpus: tuple[str, ...] = (),
    images: bool = False,
) -> RunFacts:
    """What the rules need, from sums of seconds."""
    main, learner = totals.main, totals.learner
    spent = dict.fromkeys(PHASES, 0.0)
    for span, duration in main.items():
        if span not in (WAIT_LEARNER, "wait"):
            spent[OF_SPAN.get(span, "other")] += duration
    for_workers = main.get("wait", 0.0)
    for phase, duration in shared_out(for_workers, totals.workers).items():
        spent[phase] += duration
    doing = {OF_SPAN.get(n, "other"): s for n, s in (learner or {}).items() if n != "other"}
    for_learner, busy = main.get(WAIT_LEARNER, 0.0), sum(doing.values())
    for phase, duration in doing.items() if busy else ():
        spent[phase] += for_learner * duration / busy
    if not busy:
        spent["wait"] += for_learner
    total = sum(spent.values())
    if total <= 0.0:
        spent["other"], total = 1.0, 1.0
    if learner is None:  # the main process learns
        busy = sum(main.get(name, 0.0) for name in ("learn", "replay", "transfer"))
    return RunFacts(
        seconds=totals.seconds,
        phases={phase: duration / total for phase, duration in spent.items()},
        settings=settings,
        placement=placement,
        logs=main.get("log", 0.0) / total,
        checkpoints=main.get("checkpoint", 0.0) / total,
        steps=totals.steps,
        updates=totals.updates,
        iterations=totals.iterations,
        envs=envs,
        cores=max(cores, 1),
        learner=min(busy / max(totals.seconds, 1e-9), 1.0),
        waited=min(for_workers / total, 1.0),
        workers=totals.workers,
        use=use or Use(),
        gpus=gpus,
        images=images,
    )


def shows_images(settings: Mapping[str, Any]) -> bool:
    """Whether a run's settings say that its observations are images."""
    pixels = settings.get("network") in ("nature", "nature_same")
    prepared = bool(settings.get("grayscale")) or settings.get("resize") is not None
    return pixels or prepared or str(settings.get("env", "")).startswith("ALE/")


def shared_out(waited: float, workers: Sequence[Worker]) -> dict[str, float]:
    """What waiting for actor processes was for.

    They are waited for in turns, each until the slowest is done. The mean worker's work is what
    would remain if all were equally fast; the slowest one's excess, from the spread of the turns,
    is ``wait``; what is left is the way there and back, ``ipc``.

    Args:
        waited: seconds.
        workers: what each did in the meantime (and while nobody waited).

    Returns:
        Seconds by phase; they sum to `waited`.
    """
    count, turns = len(workers), max((worker.turns for worker in workers), default=0)
    if not turns:
        return {"wait": waited}
    mean = sum(worker.busy_s for worker in workers) / count
    variance = sum(
        max(worker.square / worker.turns - (worker.busy_s / worker.turns) ** 2, 0.0)
        for worker in workers
        if worker.turns
    ) / count  # fmt: skip
    slowest = max(worker.busy_s for worker in workers)
    spread = turns * math.sqrt(variance) * EXPECTED_MAX[max(n for n in EXPECTED_MAX if n <= count)]
    excess = max(slowest - mean, spread)
    explained = mean + excess
    # Some of the work was done while nobody waited for it.
    scale = min(1.0, waited / explained) if explained else 0.0
    acting = sum(worker.act_s for worker in workers) / count
    return {
        "env": (mean - acting) * scale,
        "act": acting * scale,
        "wait": excess * scale,
        "ipc": max(waited - explained * scale, 0.0),
    }


def mean_use(samples: Sequence[MonitorSample]) -> Use:
    """Means of the hardware's samples, each weighed with its length."""

    def mean(pairs: Iterable[tuple[float | None, float]]) -> float | None:
        values = [(value, weight) for value, weight in pairs if value is not None]
        whole = sum(weight for _, weight in values)
        return sum(value * weight for value, weight in values) / whole if whole else None

    def of(name: str) -> float | None:
        return mean((getattr(sample, name), sample.seconds) for sample in samples)

    count = max((len(sample.gpus) for sample in samples), default=0)
    ours = [
        sum(gpu < len(s.gpus) and bool(s.gpus[gpu].ours) for s in samples) for gpu in range(count)
    ]
    use = Use(of("cpu"), of("cpu_all"), of("runnable"))
    if not any(ours):
        return use
    most = ours.index(max(ours))
    cards = [(s.gpus[most], s.seconds) for s in samples if most < len(s.gpus)]
    return replace(
        use,
        gpu_busy=mean((card.busy, weight) for card, weight in cards),
        gpu_full=mean((card.full, weight) for card, weight in cards),
        gpu_memory=mean((card.used_mb / max(card.total_mb, 1), weight) for card, weight in cards),
        gpu_others=any(card.others for card, _ in cards),
    )
