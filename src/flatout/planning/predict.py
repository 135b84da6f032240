"""Predicted gains: small formulas over measured times, each with an interval. Pure.

A gain is a ratio of speeds of the whole run. If r of a phase with share s remains, the gain is
1 / (1 - s + s r), at most 1 / (1 - s).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flatout.planning.facts import RunFacts

MODELLED, ASSUMED = "modelled", "assumed"
"""The basis of a gain: measured figures, or an assumed remaining share."""

ROUND_TRIP_S = (60e-6, 120e-6, 250e-6)
"""Waking actor processes and receiving their answers, per turn: least, usual, most."""

SHARING = (1.0, 0.9, 0.75)
"""Relative speed of a core while all others are busy: best, usual, worst."""

FIXED_S = (200e-6, 400e-6, 600e-6)
"""Fixed cost of an iteration: dispatches, publishing parameters, bookkeeping. Measured as the
difference between many short turns and few long ones of equal work."""

BATCHED = (0.0, 0.1, 0.4)
"""Share of a call of `act` that grows with the number of vector observations; least to most."""

BATCHED_IMAGES = (0.3, 0.7, 1.0)
"""The same for images, where arithmetic dominates."""

BEST, USUAL, WORST = range(3)

LEARN = ("learn", "replay", "transfer")
REST = ("input", "io", "eval", "publish", "other", "compile")
"""Phases that are neither collecting nor learning."""


@dataclass(frozen=True)
class Gain:
    """A predicted speed ratio and its interval: 1 <= low <= gain <= high.

    Attributes:
        kind: `MODELLED` or `ASSUMED`, as a finding's.
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
    """

    env: float
    act: float
    together: int
    learn: float
    rest: float
    computing: float = 1.0
    learn_cores: float = 1.0


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


def acting_s(cost: Costs, envs: int, images: bool, case: int) -> float:
    """Seconds of a call of `act`: a fixed cost, and a cost per environment."""
    grows = (BATCHED_IMAGES if images else BATCHED)[case]
    return cost.act * (1.0 - grows + grows * envs / cost.together)


def collecting_s(
    cost: Costs, envs: int, workers: int, cores: int, images: bool, case: int
) -> float:
    """Seconds of one environment step, collected with so many workers (0: without).

    Without workers, acting and stepping alternate. With workers, two groups alternate: one steps
    while the other's actions are chosen. A turn takes the longest of: one group's work, the main
    process's work for both, and all computing divided among the cores.
    """
    if workers < 2:
        return (acting_s(cost, envs, images, case) + envs * cost.env) / envs
    groups = 2
    act = acting_s(cost, max(envs // groups, 1), images, case)
    trip = ROUND_TRIP_S[case]
    stepping = envs * cost.env / workers / SHARING[case]
    computing = envs * cost.env * cost.computing + groups * act
    turn = max(groups * (act + trip / 3), act + trip + stepping, computing / cores / SHARING[case])
    return turn / envs


def step_s(
    cost: Costs,
    envs: int,
    workers: int,
    overlapped: bool,
    cores: int,
    images: bool,
    case: int = USUAL,
    unexplained: float = 0.0,
) -> float:
    """Seconds of one environment step of the whole run.

    Serial: collecting plus learning. Overlapped: the longer of the two, at least all computing
    divided among the cores. `unexplained` seconds are added to collecting.
    """
    collecting = collecting_s(cost, envs, workers, cores, images, case) + unexplained
    if not overlapped:
        return collecting + cost.learn + cost.rest
    act = acting_s(cost, envs, images, case) / envs
    computing = cost.env * cost.computing + act + cost.learn * cost.learn_cores
    # Concurrently, even the longer one is slower: both share caches and memory.
    return max(collecting, cost.learn, computing / cores) / SHARING[case] + cost.rest


def placement_gain(
    facts: RunFacts, cost: Costs, *, envs: int, workers: int, overlapped: bool
) -> Gain:
    """The gain of another way to collect, relative to the measured time of a step.

    Time beyond the formula for the current run (waiting for the slowest process, say) stays while
    processes step; if the formula overestimates, the prediction is scaled down.
    """
    now = facts.seconds / max(facts.steps, 1)
    count = len(facts.workers)
    ratios: list[float] = []
    for case in (BEST, USUAL, WORST):
        given = (facts.cores, facts.images, case)
        current = step_s(cost, facts.envs, count, facts.overlapped, *given)
        more = max(now - current, 0.0) if workers > 1 else 0.0
        then = step_s(cost, envs, workers, overlapped, *given, more)
        ratios.append(now / max(then * min(now / max(current, 1e-12), 1.0), 1e-12))
    best, usual, worst = ratios
    return between(best, usual, worst)


def longer_turns(facts: RunFacts, times: int) -> tuple[float, Gain]:
    """The usual share of iterations' fixed cost, and the gain of `times` longer iterations."""
    overhead = sum(facts.phases[name] for name in (*LEARN, "publish", "other"))
    shares = [
        min(fixed * facts.iterations / max(facts.seconds, 1e-9), 0.9 * overhead)
        for fixed in FIXED_S
    ]
    least, usual, most = (gain_of(share, 1.0 / times) for share in shares)
    return shares[USUAL], between(most, usual, least, ASSUMED)
