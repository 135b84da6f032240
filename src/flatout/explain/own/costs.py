"""Seconds that a run's environment steps and actions cost, from its measured phases. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.planning.facts import RunFacts

LEARN = ("learn", "replay", "transfer")
"""The phases of learning."""

OUTSIDE = ("input", "io", "eval", "compile")
"""Phases that planning does not measure, and that no placement changes."""


@dataclass(frozen=True)
class Costs:
    """Seconds of one environment step of a run, by purpose."""

    env: float  # in one environment
    act: float  # of one call that chooses the actions of `together` environments
    together: int  # environments whose actions are chosen in one call
    learn: float  # share of the time that learning takes, with replay and transfers
    computing: float = 1.0  # share of `env` in which a core is busy; the rest is sleep


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
    computing = 1.0
    share = env / max(each, 1e-12)  # may exceed 1 with several workers
    if facts.use.cpu is not None and share > 0.05:
        main_share = 1.0 - (facts.waited if working else phases["env"])
        # If other programs take the cores, low CPU use may mean waiting for a core.
        taken = max(facts.use.cpu, facts.use.cpu_all or 0.0) * facts.cores
        computing = min(max((taken - main_share) / share, 0.0), 1.0)
    return Costs(env, act, max(together, 1), sum(map(phases.__getitem__, LEARN)), computing)
