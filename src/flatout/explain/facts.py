"""Numbers for the rules about Flatout's own runs, from sums over a run's steady state. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from flatout.config.placement import Placement
from flatout.config.schema import TrainConfig
from flatout.envs.source import EnvSource
from flatout.planning.answer import Answer
from flatout.planning.machine import SHIPPED, Machine
from flatout.spans import NO_RESETS, OF_SPAN, ResetTimes
from flatout.storage.span_records import WAIT_LEARNER, MachineTotals, Totals, Worker
from flatout_explain.hardware.core_use import CoreUse, core_use
from flatout_explain.hardware.monitor import MonitorSample
from flatout_explain.phases import PHASES
from flatout_explain.timespans import weighted_mean

EXPECTED_MAX = {1: 0.0, 2: 0.564, 3: 0.846, 4: 1.029, 6: 1.267, 8: 1.424, 12: 1.629, 16: 1.766,
                32: 2.070, 64: 2.343, 128: 2.594}  # fmt: skip
"""Expected maximum of n standard normal draws."""


@dataclass(frozen=True)
class Use:
    """Mean hardware use in the explained time; None if unknown.

    Attributes:
        cpu: share of the run's cores that the run used.
        cpu_all: share of these that all programs used.
        cores: the use of the cores, by this run and by other programs.
        gpu_busy, gpu_full: of the GPU that the run used most.
    """

    cpu: float | None = None
    cpu_all: float | None = None
    cores: CoreUse | None = None
    gpu_busy: float | None = None
    gpu_full: float | None = None


@dataclass(frozen=True)
class RunFacts:
    """A run's steady state, as the rules read it.

    Attributes:
        seconds: its length.
        phases: share of the time by phase, with all phases; sums to 1. Waiting for actor processes
            or the learner's thread is attributed to what they did meanwhile.
        logs, checkpoints: shares of the time; together ``io``.
        steps, updates, iterations: made in it.
        config: the run's settings.
        placement: the run's, with its workers.
        envs, cores: environments stepped together; cores that the run may use.
        learner: share of the time in which the learner worked.
        waited: share in which the main process waited for actor processes.
        workers: the actor processes.
        machines: those of a cluster.
        resets: of all environments; `resetting`, the share of the time in which steps waited for
            them, a part of ``env``.
        use: of the hardware.
        gpus: names of the GPUs that JAX can use here.
        images: whether observations are images.
        could_have_spares: whether the environments have no spares, but could.
        machine: what planning measured of it.
        plan: what it measured of this run, if it did.
    """

    seconds: float
    phases: dict[str, float]
    config: TrainConfig
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
    machines: tuple[MachineTotals, ...] = ()
    resets: ResetTimes = NO_RESETS
    resetting: float = 0.0
    use: Use = field(default_factory=Use)
    gpus: tuple[str, ...] = ()
    images: bool = False
    could_have_spares: bool = True
    machine: Machine = SHIPPED
    plan: Answer | None = None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The run's settings by name."""
        return self.config.flat()

    @cached_property
    def source(self) -> EnvSource:
        """The meaning of the name of the run's environment."""
        return EnvSource.of(self.config.env)

    @property
    def replays(self) -> bool:
        """Whether the run uses replay."""
        return "train_freq" in self.settings


def phase_shares(totals: Totals) -> dict[str, float]:
    """Return shares of the time by phase, with all phases; they sum to 1.

    Waiting for actor processes or the learner's thread is attributed to what they did meanwhile.
    """
    main, learner = totals.main, totals.learner
    spent = dict.fromkeys(PHASES, 0.0)
    for span, duration in main.items():
        if span not in (WAIT_LEARNER, "wait"):
            spent[OF_SPAN.get(span, "other")] += duration
    for phase, duration in shared_out(main.get("wait", 0.0), totals.workers).items():
        spent[phase] += duration
    learner_spent = {OF_SPAN.get(n, "other"): s for n, s in (learner or {}).items() if n != "other"}
    wait_learner_s, busy = main.get(WAIT_LEARNER, 0.0), sum(learner_spent.values())
    for phase, duration in learner_spent.items() if busy else ():
        spent[phase] += wait_learner_s * duration / busy
    if not busy:
        spent["wait"] += wait_learner_s
    if (total := sum(spent.values())) <= 0.0:
        return spent | {"other": 1.0}
    return {phase: duration / total for phase, duration in spent.items()}


def reset_share(totals: Totals) -> float:
    """Return the share of the time in which steps waited for resets, a part of ``env``."""
    env_s = totals.main.get("env", 0.0) + sum(worker.env_s for worker in totals.workers)
    waited = totals.resets.waited + sum(worker.resets.waited for worker in totals.workers)
    return phase_shares(totals)["env"] * min(waited / env_s, 1.0) if env_s > 0.0 else 0.0


def facts(totals: Totals, *, cores: int, use: Use | None = None, **given: Any) -> RunFacts:
    """A run's facts, from sums of seconds and the fields of `RunFacts` that these do not tell."""
    main, learner = totals.main, totals.learner
    total = sum(main.values()) or 1.0
    if learner is None:  # the main process learns
        learner = {name: main.get(name, 0.0) for name in ("learn", "replay", "transfer", "fused")}
    busy = sum(seconds for name, seconds in learner.items() if name != "other")
    resets = functools.reduce(ResetTimes.plus, (w.resets for w in totals.workers), totals.resets)
    return RunFacts(
        seconds=totals.seconds,
        phases=phase_shares(totals),
        logs=main.get("log", 0.0) / total,
        checkpoints=main.get("checkpoint", 0.0) / total,
        steps=totals.steps,
        updates=totals.updates,
        iterations=totals.iterations,
        learner=min(busy / max(totals.seconds, 1e-9), 1.0),
        waited=min(main.get("wait", 0.0) / total, 1.0),
        workers=totals.workers,
        machines=totals.machines,
        resets=resets,
        resetting=reset_share(totals),
        cores=max(cores, 1),
        use=use or Use(),
        **given,
    )


def shared_out(waited: float, workers: Sequence[Worker]) -> dict[str, float]:
    """Divide the time of waiting for actor processes among phases.

    Each turn lasts until the slowest worker is done. The mean worker's work is ``env`` and ``act``;
    the slowest worker's excess, estimated from the spread of turns, is ``wait``; the rest is
    communication, ``ipc``.

    Args:
        waited: seconds.
        workers: what each did, also while the main process did not wait.

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
    # The workers also worked while the main process did not wait.
    scale = min(1.0, waited / explained) if explained else 0.0
    acting = sum(worker.act_s for worker in workers) / count
    return {
        "env": (mean - acting) * scale,
        "act": acting * scale,
        "wait": excess * scale,
        "ipc": max(waited - explained * scale, 0.0),
    }


def mean_use(samples: Sequence[MonitorSample]) -> Use:
    """Means of the hardware's samples, weighted by duration."""

    def of(name: str) -> float | None:
        return weighted_mean((getattr(sample, name), sample.seconds) for sample in samples)

    count = max((len(sample.gpus) for sample in samples), default=0)
    ours = [
        sum(gpu < len(s.gpus) and bool(s.gpus[gpu].ours) for s in samples) for gpu in range(count)
    ]
    cores = core_use(samples, samples[-1].cores) if samples else None
    use = Use(of("cpu"), of("cpu_all"), cores)
    if not any(ours):
        return use
    used_most = ours.index(max(ours))
    cards = [(s.gpus[used_most], s.seconds) for s in samples if used_most < len(s.gpus)]
    return replace(
        use,
        gpu_busy=weighted_mean((card.busy, weight) for card, weight in cards),
        gpu_full=weighted_mean((card.full, weight) for card, weight in cards),
    )
