"""Rules for workers on a cluster: which machine is waited for, what the network takes. Pure."""

from __future__ import annotations

from flatout.explain.facts import RunFacts
from flatout.explain.proposals import Proposal
from flatout.storage.span_records import MachineTotals
from flatout_explain.diagnosis import MachineTime
from flatout_explain.report import duration, percent

HELD = 0.05
"""Minimum share of the time for which a run waits for one machine alone where it is named."""

SLOWER = 1.15
"""A machine is slow if its workers collect this many times as long as the others' on average."""


def machine_times(facts: RunFacts) -> tuple[MachineTime, ...]:
    """Return each machine's shares of the explained time."""
    seconds = max(facts.seconds, 1e-9)
    return tuple(
        MachineTime(
            one.name, max(round(one.trajectories / max(facts.iterations, 1)), 1),
            min(one.work_s / seconds, 1.0), min(one.way_s / seconds, 1.0),
            min(one.held_s / seconds, 1.0), one.clock_s,
        )
        for one in facts.machines
    )  # fmt: skip


def waited_for(facts: RunFacts) -> MachineTotals | None:
    """Return the machine for which the run waits longest after all others have answered; None if
    that is short, or if there is only one."""
    if len(facts.machines) < 2:
        return None
    most = max(facts.machines, key=lambda one: one.held_s)
    return most if most.held_s >= HELD * facts.seconds else None


def evidence(facts: RunFacts, late: MachineTotals) -> list[str]:
    """Return sentences about a machine for which the run waits."""
    rounds = max(facts.iterations, 1)
    others = [one for one in facts.machines if one is not late]
    work, way = (
        sum(getattr(one, name) for one in others) / len(others) / rounds
        for name in ("work_s", "way_s")
    )
    return [
        f"the run waits for {late.name} alone {percent(late.held_s / max(facts.seconds, 1e-9))} of "
        "the time, when all other machines have answered",
        f"in an iteration {late.name} collects for {duration(late.work_s / rounds)}, the other "
        f"machines for {duration(work)}; its requests and answers are on their way for "
        f"{duration(late.way_s / rounds)}, theirs for {duration(way)}",
    ]


def remedy(facts: RunFacts, late: MachineTotals) -> str:
    """Return what to do about a machine for which the run waits."""
    others = [one for one in facts.machines if one is not late]
    if late.work_s >= SLOWER * sum(one.work_s for one in others) / len(others):
        return (
            f"{late.name} is slow: stop other programs on it, give it fewer workers (there: ray "
            "start with a lower --num-cpus), or leave it out of the cluster."
        )
    return (
        f"The network to {late.name} is slow: use another connection, or leave that machine out of "
        "the cluster."
    )


def network(facts: RunFacts) -> list[str]:
    """Return sentences about the time that requests and trajectories are on their way."""
    if not facts.machines:
        return []
    rounds = max(facts.iterations, 1)
    way = max(one.way_s for one in facts.machines) / rounds
    work = max(one.work_s for one in facts.machines) / rounds
    return [
        f"in an iteration, requests and trajectories are on their way for {duration(way)}; the "
        f"machines collect for {duration(work)}"
    ]


def longer(facts: RunFacts) -> list[Proposal]:
    """Propose longer trajectories, each of which needs one request to each worker."""
    if "n_steps" not in facts.settings:
        return []
    steps = 2 * int(facts.settings["n_steps"])
    words = (
        f"Collect trajectories of {steps} steps: there are then half as many requests. This "
        "changes what is learned: compare returns."
    )
    return [Proposal(words, {"n_steps": steps}, 1.1)]
