"""Rules for collecting: stepping, acting, actor processes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from flatout.config.placement import CPU
from flatout.explain import machines
from flatout.explain.facts import RunFacts
from flatout.explain.proposals import Advice, Proposal, takes
from flatout.explain.settings import more_envs, placed, worker_count
from flatout.planning.predict import in_program
from flatout_explain.ranking import LEAST_SHARE
from flatout_explain.report import duration, percent, reset_words

COMPARE = "This changes what is learned: compare returns."

MOST_WORKERS, MOST_ENVS = 128, 256
"""Maximum of actor processes and of environments that are proposed."""

TRIPS = 4
"""Processes are proposed where a turn of all environments takes this many times the way to a
process and back."""

LARGE = 0.1
"""Minimum share of the time of what is worth a change of how all of the run works."""

WORTH_SPARES = 0.05
"""Minimum share of the time in which steps wait for resets where spare environments are
proposed."""

BACKGROUND = 0.5
"""Maximum share of resets' seconds that steps waited for where most are in the background."""

LEARN, COLLECT = ("learn", "replay", "transfer"), ("env", "act", "ipc", "wait")
"""The phases of learning and of collecting."""

MEASURE = "`flatout explain RUN_DIR --measure`"
"""The command that measures a run's parts here."""


@dataclass(frozen=True)
class Costs:
    """Seconds of one environment step of a run, by purpose."""

    env: float  # in one environment
    act: float  # of one call that chooses the actions of `together` environments
    together: int  # environments whose actions are chosen in one call
    computing: float = 1.0  # share of `env` in which a core is busy; the rest is sleep


def costs(facts: RunFacts) -> Costs:
    """Return the costs of a step, from the measured phases."""
    phases, steps = facts.phases, max(facts.steps, 1)
    each = facts.seconds / steps
    working = facts.workers and any(worker.turns for worker in facts.workers)
    env = sum(w.env_s for w in facts.workers) / steps if working else phases["env"] * each
    together = facts.envs
    if working and not facts.placement.acts_in_workers:
        together = -(-facts.envs // min(len(facts.workers), 2 * len(facts.placement.act)))
    act = phases["act"] * each * together
    computing = 1.0
    share = env / max(each, 1e-12)  # may exceed 1 with several workers
    if facts.use.cpu is not None and share > 0.05:
        main_share = 1.0 - (facts.waited if working else phases["env"])
        # If other programs take the cores, low CPU use may mean waiting for a core.
        taken = max(facts.use.cpu, facts.use.cpu_all or 0.0) * facts.cores
        computing = min(max((taken - main_share) / share, 0.0), 1.0)
    return Costs(env, act, max(together, 1), computing)


def _in_one_program(facts: RunFacts) -> Iterator[Proposal]:
    """Propose environments that step in the program that acts and learns, if that is possible."""
    if facts.settings.get("replay_trajectories", 1) > 1:  # one program keeps none
        return
    words = f"Step {facts.source.name} in the same compiled program as acting and learning"
    if facts.placement.steps_on_device:
        words += ", instead of in a separate one."
    elif facts.source.library or facts.source.has_twin:
        words += (
            ". Its steps are tested to equal the host's; its episodes start from other random "
            "states."
        )
    else:
        return
    plan, where = facts.plan, "auto"
    there = [p for p in plan.predictions if p.placement.fused] if plan else []
    if there:
        then = max(there, key=lambda p: p.best_known)
        where = str(then.placement)
        if then.measured is not None:
            words += f" Measured here: {then.measured:,.0f} steps per second."
    else:
        words += f" {MEASURE} measures what this gains here."
    yield Proposal(words, {"env_backend": "device", "placement": where}, 1.1)


def parts(facts: RunFacts) -> str:
    """Return a sentence about the time that each part of a program takes alone."""
    try:
        spent = in_program(facts.plan.stages, facts.placement) if facts.plan else {}
    except KeyError:  # measured on other devices
        spent = {}
    if not spent:
        return f"{MEASURE} shows how much of it is environments, acting and learning"
    total = max(sum(spent.values()), 1e-12)
    shares = ", ".join(f"{name} {percent(seconds / total)}" for name, seconds in spent.items())
    return f"the parts of an iteration, each timed alone on this machine: {shares}"


def overlapping(facts: RunFacts) -> Iterator[Proposal]:
    """Propose collecting while learning, if both take long enough and there is a core for each."""
    place = facts.placement
    both = min(sum(map(facts.phases.__getitem__, phases)) for phases in (COLLECT, LEARN))
    if place.overlapped or place.steps_on_device or both < LARGE:
        return
    if facts.cores > 1 or place.learn[0].is_gpu:
        words = (
            "Collect while learning: an iteration then takes as long as the longer of the two, and "
            "acting uses parameters that are one version old."
        )
        yield Proposal(words, placed(place, schedule="overlapped", lag=1), 1.1)


def _processes(facts: RunFacts, cost: Costs) -> Iterator[Proposal]:
    """Propose more processes that step, if a turn takes longer than a message to them and back."""
    place, envs = facts.placement, facts.envs
    if place.acts_in_workers or place.steps_on_device:
        return
    count = len(facts.workers) or (place.workers[0] if place.workers else 0)
    # ALE's vector environment starts threads itself.
    threaded = facts.source.atari and not facts.workers
    # Environments that sleep do not need a core each.
    cores = facts.cores if cost.computing > 0.5 else max(facts.cores, 64)
    number = worker_count(envs, min(cores, MOST_WORKERS))
    if not threaded and number > max(count, 1) and envs * cost.env >= TRIPS * facts.machine.trip:
        words = (
            f"Step the environments in {number} processes: their steps then run in parallel, and "
            "messages take some time."
        )
        changes = placed(place, sampler="processes", workers=(number, envs // number))
        yield Proposal(words, changes)


def _larger_calls(facts: RunFacts) -> Iterator[Proposal]:
    """Propose more environments in each call, but not for images on a CPU."""
    for factor in (8, 4, 2) if not facts.images or facts.placement.act[0].is_gpu else ():
        count, more = facts.envs * factor, more_envs(facts, factor)
        if more is not None and count <= MOST_ENVS:
            words = (
                f"Use {count} environments, whose actions are chosen in one call; their steps take "
                f"as long as before. {COMPARE}"
            )
            yield Proposal(words, more)


def _spares(facts: RunFacts) -> Iterator[Proposal]:
    """Propose spare environments, if steps wait long enough for resets."""
    possible = facts.could_have_spares and facts.settings["spare_envs"] is None
    if facts.resetting < WORTH_SPARES or not possible or facts.placement.steps_on_device:
        return
    words = (
        "Keep a spare of each environment, which is reset in the background while the environment "
        "plays. Resets that sleep are then no longer waited for; of those that compute, a part is "
        "hidden. Environments then need twice the memory; what is learned stays the same."
    )
    yield Proposal(words, {"spare_envs": "all"})


def _resets(facts: RunFacts, share: float) -> list[str]:
    """Return a sentence about resets, if they take a part of the time that is worth one."""
    count, seconds, square, waited = facts.resets
    if not count or facts.resetting < LEAST_SHARE:
        return []
    mean = seconds / count
    spread = math.sqrt(max(square / count - mean * mean, 0.0))
    each = f"{duration(mean)} each" + (f" (± {duration(spread)})" if spread > mean / 4 else "")
    steps = facts.steps / count
    return [
        f"{reset_words(facts.resetting, share)}: {each}, one for every {steps:,.0f} steps"
        + (", in the background" if waited < BACKGROUND * seconds else "")
    ]


def _uneven(facts: RunFacts) -> bool:
    """Return whether it is mainly resets that make turns of the same worker unequally long."""
    if facts.resets.waited < BACKGROUND * facts.resets.seconds:
        return False
    by_resets = of_all = 0.0
    for worker in facts.workers:
        if worker.turns:
            each, resets = worker.busy_s / worker.turns, worker.resets
            of_all += max(worker.square / worker.turns - each * each, 0.0)
            mean = resets.waited / worker.turns
            by_resets += max(resets.square / worker.turns - mean * mean, 0.0)
    return by_resets > of_all / 2 and not facts.placement.acts_in_workers


def env(facts: RunFacts, share: float) -> Advice:
    """Return the finding about stepping environments, in this process or in others."""
    cost, count = costs(facts), len(facts.workers)
    first = takes(facts, "env", share) + (f", in {count} processes" if count else "")
    evidence = [
        first,
        f"one environment's step takes {duration(cost.env)}; this run has {_environments(facts)}",
    ]
    if cost.computing < 0.5:
        evidence.append(
            f"they compute for only {percent(cost.computing)} of that time: for the rest they "
            "sleep, or wait for something else"
        )
    if facts.placement.steps_on_device:
        does = "a separate program steps environments and chooses actions"
        evidence = [first, does, parts(facts)]
    evidence += _resets(facts, share)
    spares = list(_spares(facts))
    proposals = [*_in_one_program(facts), *_processes(facts, cost), *overlapping(facts)]
    proposals = spares + proposals if facts.resetting > share / 2 else proposals + spares
    otherwise = "Make the environment's own step faster: profile it, or step it on more cores."
    if facts.envs == 1:
        otherwise = "Step several environments in processes (--envs 8), or make the step faster."
    return Advice(evidence, otherwise, proposals)


def _environments(facts: RunFacts) -> str:
    return f"{facts.envs} {'environment' if facts.envs == 1 else 'environments'}"


def act(facts: RunFacts, share: float) -> Advice:
    """Return the finding about choosing actions."""
    cost = costs(facts)
    calls = facts.steps / max(facts.seconds, 1e-9) / cost.together
    environments = "environment" if cost.together == 1 else "environments"
    evidence = [
        takes(facts, "act", share),
        f"{calls:,.0f} calls per second, each for {cost.together} {environments}, "
        f"{duration(cost.act)} a call",
    ]
    proposals = list(_in_one_program(facts))
    if facts.placement.act[0].is_gpu and not facts.images and cost.together < 64:
        words = (
            "Choose actions on the CPU: for a small network that takes less time than copying to "
            "the GPU and back. Parameters must still be copied from the GPU."
        )
        proposals.append(Proposal(words, placed(facts.placement, act=(CPU,))))
    if not facts.placement.steps_on_device:
        proposals += [*_larger_calls(facts), *overlapping(facts)]
    otherwise = "Choose the actions of more environments in each call, or use a smaller network."
    return Advice(evidence, otherwise, proposals)


def _local(facts: RunFacts, words: str, handicap: float = 1.0) -> Iterator[Proposal]:
    """Propose actor processes that choose their own actions, where they do not yet."""
    if not facts.placement.acts_in_workers:
        words = f"Let each process choose its own actions: {words}"
        yield Proposal(words, placed(facts.placement, inference="local", groups=None), handicap)


def ipc(facts: RunFacts, share: float) -> Advice:
    """Return the finding about communication with actor processes."""
    if facts.placement.on_cluster:
        words = [takes(facts, "ipc", share), *machines.network(facts)]
        otherwise = "Use longer trajectories (--n-steps): each needs one request to each worker."
        if (late := machines.waited_for(facts)) is not None:
            return Advice([*words, *machines.evidence(facts, late)], machines.remedy(facts, late))
        return Advice(words, otherwise, [*overlapping(facts), *machines.longer(facts)])
    turns = max((worker.turns for worker in facts.workers), default=0)
    way_s = share * facts.seconds / max(turns, 1)
    stepping_s = sum(worker.busy_s for worker in facts.workers) / max(turns, 1)
    evidence = [
        takes(facts, "ipc", share),
        f"{duration(way_s)} for each turn of {len(facts.workers)} actor processes, in which their "
        f"steps take {duration(stepping_s)} in all",
    ]
    proposals = [
        *_local(facts, "it then sends one message per trajectory instead of one per step.", 1.1)
    ]
    if stepping_s < way_s:  # in the main process, one step comes after the other
        words = (
            "Step these environments in the main process, which needs no messages; the steps take "
            "as long as before."
        )
        inline = placed(
            facts.placement, sampler="inline", workers=None, groups=None, inference="central"
        )
        proposals.insert(0, Proposal(words, inline))
    if (more := more_envs(facts, 4)) is not None:
        words = (
            "Use four times as many environments, so that each message is for four times as many "
            f"steps. {COMPARE}"
        )
        proposals.append(Proposal(words, more))
    otherwise = "Give each actor process more environments, so that each message is for more steps."
    return Advice(evidence, otherwise, proposals)


LOCKSTEP = "waiting for the slowest actor process"


def lockstep(facts: RunFacts, share: float) -> Advice:
    """Return the finding about waiting for the slowest actor process."""
    evidence = [f"{LOCKSTEP} takes {percent(share)} of the time"]
    busy = sorted(worker.busy_s for worker in facts.workers)
    if busy and facts.seconds:
        low, high = (percent(seconds / facts.seconds) for seconds in (busy[0], busy[-1]))
        evidence.append(f"the processes step between {low} and {high} of the time")
    spares = list[Proposal]()
    if (late := machines.waited_for(facts)) is not None:
        return Advice([*evidence, *machines.evidence(facts, late)], machines.remedy(facts, late))
    if _uneven(facts):
        evidence.append("most of the difference between their turns is resets of environments")
        evidence += _resets(facts, facts.phases["env"])
        spares = list(_spares(facts))
    then = "the processes then wait for each other once per trajectory, not at every step."
    otherwise = "Put environments whose steps take equally long into the same process."
    local = _local(facts, then) if facts.workers else ()
    return Advice(evidence, otherwise, [*spares, *local])
