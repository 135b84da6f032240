"""Predicted gains: small formulas over measured times, each with an interval. Pure.

A gain is a ratio of speeds of the whole run. If r of a phase with share s remains, the gain is
1 / (1 - s + s r), at most 1 / (1 - s).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from flatout.config.placement import Placement
from flatout.config.workers import with_workers
from flatout.planning.facts import RunFacts
from flatout.planning.machine import Machine
from flatout.planning.predict import EXTRAPOLATED, MESSAGE, Prediction, fitted, predict
from flatout.planning.stages import Stages, learning_of

MEASURED, MODELLED, ASSUMED = "measured", "modelled", "assumed"
"""The basis of a gain: both speeds were measured, a formula of measured figures, or an assumed
remaining share."""

BEST, USUAL, WORST = range(3)

TURNS = 12
"""Turns of an iteration that are simulated: every run ends with these predictions."""

LEARN = ("learn", "replay", "transfer")
REST = ("input", "io", "eval", "publish", "other", "compile")
"""Phases that are neither collecting nor learning."""


@dataclass(frozen=True)
class Gain:
    """A predicted speed ratio and its interval: 1 <= low <= gain <= high.

    Attributes:
        kind: `MEASURED`, `MODELLED` or `ASSUMED`, as a finding's.
    """

    gain: float = 1.0
    low: float = 1.0
    high: float = 1.0
    kind: str = MODELLED


def gain_of(share: float, remains: float) -> float:
    """The gain if `remains` of a phase's share stays: 1 / (1 - s + s r)."""
    return 1.0 / max(1.0 - share + share * max(remains, 0.0), 1e-3)


def between(best: float, usual: float, worst: float, kind: str = MODELLED) -> Gain:
    """From three estimates of a speed ratio; a proposal is never predicted to be slower."""
    low, gain, high = sorted(
        max(ratio, 1.0) if math.isfinite(ratio) else 1.0 for ratio in (best, usual, worst)
    )
    return Gain(gain, low, high, kind)


def remaining(share: float, best: float, usual: float, worst: float, kind: str = ASSUMED) -> Gain:
    """The gain if so much of a phase remains, at best, usually, and at worst."""
    ratios = (gain_of(share, remains) for remains in (best, usual, worst))
    return between(*ratios, kind=kind)


@dataclass(frozen=True)
class Costs:
    """Seconds of one environment step of a run, by purpose.

    Attributes:
        env: in one environment.
        act: of one call that chooses the actions of `together` environments.
        together: environments whose actions are chosen in one call.
        learn: learning, replay and transfers.
        rest: everything else that no placement changes.
        computing: share of `env` in which a core is busy (the rest is sleep).
        learn_cores: cores that learning keeps busy.
        known: results that several rules compute from the same costs, by name.
    """

    env: float
    act: float
    together: int
    learn: float
    rest: float
    computing: float = 1.0
    learn_cores: float = 1.0
    known: dict[str, Any] = field(default_factory=dict[str, Any], compare=False, repr=False)


def costs(facts: RunFacts) -> Costs:
    """The costs of a step, from the measured phases."""
    phases, steps = facts.phases, max(facts.steps, 1)
    each = facts.seconds / steps
    working = facts.workers and any(worker.turns for worker in facts.workers)
    env = sum(w.env_s for w in facts.workers) / steps if working else phases["env"] * each
    together = facts.envs
    if working and facts.placement.inference == "central":
        together = -(-facts.envs // min(len(facts.workers), 2 * len(facts.placement.act)))
    act = phases["act"] * each * together
    learn = sum(map(phases.__getitem__, LEARN)) * each
    rest = sum(map(phases.__getitem__, REST)) * each
    computing = learn_cores = 1.0
    if facts.use.cpu is not None:
        share = env / max(each, 1e-12)  # may exceed 1 with several workers
        main_share = 1.0 - (facts.waited if working else phases["env"])
        used = facts.use.cpu * facts.cores
        # If other programs take the cores, low CPU use may mean waiting for a core.
        taken = max(facts.use.cpu, facts.use.cpu_all or 0.0) * facts.cores
        if share > 0.05:
            computing = min(max((taken - main_share) / share, 0.0), 1.0)
        learning = phases["learn"]
        if learning > 0.05:
            learn_cores = (used - computing * share - (main_share - learning)) / learning
            learn_cores = min(max(learn_cores, 1.0), float(facts.cores))
    return Costs(env, act, max(together, 1), learn, rest, computing, learn_cores)


def stages_of(facts: RunFacts, cost: Costs, machine: Machine, envs: int) -> Stages:
    """The stages of a run, from what it told of itself and what this machine's planning measured;
    with `envs` environments and as many steps in an iteration."""
    steps = max(facts.steps // max(facts.iterations, 1), 1)
    horizon = max(steps // envs, 1)
    grows = machine.grows_images if facts.images else machine.grows
    first = cost.act * (1.0 - grows + grows / cost.together)
    act = tuple(
        (n, cost.act * (1.0 - grows + grows * n / cost.together))
        for n in sorted({1, cost.together, envs})
    )
    place = facts.placement
    spread = (cost.env * 0.8,) * 4 + (cost.env * 1.8,)  # a fifth takes longer, as resets do
    return Stages(
        envs=envs, horizon=horizon, cores=facts.cores, env=spread, full=machine.full,
        computing=cost.computing, act={str(device): act for device in place.act},
        learn={learning_of(place): cost.learn * steps}, width=cost.learn_cores,
        iteration=cost.rest * steps, trip=machine.trip, message=machine.trip * MESSAGE,
        local=((1, first), *act[1:]),
    )  # fmt: skip


def placement_gain(
    facts: RunFacts, cost: Costs, *, envs: int, workers: int, overlapped: bool
) -> Gain:
    """The gain of another way to collect: the ratio of two predictions of `plan`'s.

    The stages are first fitted, so that the current way is predicted to take what it took.
    """
    place = facts.placement
    if place.workers is not None and math.prod(place.workers) != facts.envs:
        place = replace(place, workers=None, groups=None)  # a damaged record of the run
    now = with_workers(place, facts.envs, facts.cores)
    then = replace(place, schedule="overlapped" if overlapped else "serial",
                   lag=max(place.lag, 1) if overlapped else 0, groups=None)  # fmt: skip
    if workers > 1 and envs % workers == 0:
        local = place.inference == "local" and place.sampler == "processes"
        then = replace(then, sampler="processes", workers=(workers, envs // workers),
                       inference="local" if local else "central")  # fmt: skip
    else:
        then = replace(then, sampler="inline", workers=None, inference="central")
    then = with_workers(then, envs, facts.cores)
    each = facts.seconds / max(facts.steps, 1)
    if "present" not in cost.known:
        cost.known["present"] = _present(facts, cost, now)
    ratios: list[float] = []
    for machine, stages, rate in cost.known["present"]:
        other = stages_of(facts, cost, machine, envs)
        other = replace(other, turn=stages.turn, trip=stages.trip, message=stages.message,
                        trajectory=stages.trajectory)  # fmt: skip
        ratios.append(predict(other, then, turns=TURNS).rate / rate)
    best, usual, worst = ratios
    wide = 1.0 + EXTRAPOLATED
    most = math.inf
    if overlapped and not facts.overlapped and envs == facts.envs and workers <= len(facts.workers):
        learning_s = min(cost.learn, each)
        most = each / max(learning_s, each - learning_s, 1e-12)  # the longer side remains
    return between(min(best * wide, most), min(usual, most), min(worst / wide, most))


def _present(facts: RunFacts, cost: Costs, now: Placement) -> list[tuple[Machine, Stages, float]]:
    """The stages of the run as it is and their predicted rate, on three machines: the costs that
    processes share are known to a factor of two."""
    each = facts.seconds / max(facts.steps, 1)
    collecting = max(each - cost.learn - cost.rest, 1e-9)
    found: list[tuple[Machine, Stages, float]] = []
    for factor in (0.5, 1.0, 2.0):
        machine = facts.machine.scaled(factor)
        stages = stages_of(facts, cost, machine, facts.envs)
        if not facts.overlapped:
            stages = fitted(stages, now, collecting, stages.horizon, TURNS)
        found.append((machine, stages, predict(stages, now, turns=TURNS).rate))
    return found


def on_device_gain(facts: RunFacts) -> tuple[Gain, Prediction] | None:
    """The gain of environments that step in one program with acting and learning, from what
    planning measured of this run here, and its prediction; None if it did not.

    What planning does not run stays: evaluation, logs and checkpoints.
    """
    plan = facts.plan
    if plan is None:
        return None
    there = [p for p in plan.predictions if p.placement.schedule == "fused"]
    place = with_workers(facts.placement, facts.envs, facts.cores)
    here = [p for p in (*plan.predictions, *plan.lagged) if p.placement == place]
    if not (there and here):
        return None
    then, now = max(there, key=lambda p: p.best_known), here[0]
    share = 1.0 - sum(facts.phases[name] for name in ("input", "io", "eval", "compile"))
    remains = (now.low / then.high, now.best_known / then.best_known, now.high / then.low)
    run = now.measured is not None and then.measured is not None
    return remaining(share, *remains, kind=MEASURED if run else MODELLED), then


def longer_turns(facts: RunFacts, times: int) -> tuple[float, Gain]:
    """The usual share of iterations' fixed cost, and the gain of `times` longer iterations."""
    overhead = sum(facts.phases[name] for name in (*LEARN, "publish", "other"))
    shares = [
        min(
            factor * facts.machine.iteration * facts.iterations / max(facts.seconds, 1e-9),
            0.9 * overhead,
        )
        for factor in (0.5, 1.0, 1.5)
    ]
    least, usual, most = (gain_of(share, 1.0 / times) for share in shares)
    return shares[USUAL], between(most, usual, least, ASSUMED)
