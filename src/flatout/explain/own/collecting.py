"""Rules for collecting: stepping, acting, actor processes. Pure."""

from __future__ import annotations

from flatout.config.placement import CPU
from flatout.envs.ale_ids import is_atari
from flatout.envs.device.make import has_twin, in_library
from flatout.explain.diagnosis import Finding
from flatout.explain.own.costs import Costs
from flatout.explain.own.proposals import WORTH_SAYING, Proposal, propose, time_words
from flatout.explain.own.settings import more_envs, placed, worker_count
from flatout.explain.report import percent
from flatout.planning.facts import RunFacts
from flatout.planning.predict import in_program

COMPARE = "What is learned changes: compare returns."

MOST_WORKERS, MOST_ENVS = 128, 256
"""Maximum of actor processes and of environments that are proposed."""

TRIPS = 4
"""Processes are proposed where a turn of all environments takes this many times the way to a
process and back."""

COLLECT = ("env", "act", "ipc", "wait")
"""The phases of collecting."""

MEASURE = "`flatout explain RUN_DIR --measure`"
"""The command that measures a run's parts here."""


def _in_one_program(facts: RunFacts) -> list[Proposal]:
    """Environments that step in the program that acts and learns, where they can."""
    name, given = str(facts.settings.get("env", "")), facts.settings.get("env_kwargs") or {}
    place = facts.placement
    if facts.settings.get("replay_trajectories", 1) > 1:  # one program keeps none
        return []
    if place.sampler == "device":
        words = f"Step {name} in one program with acting and learning, not in one of its own."
    elif in_library(name) or has_twin(name, given):
        words = (
            f"Step {name} in one program with acting and learning: it is proven to step as the "
            "host's does; other episodes are drawn."
        )
    else:
        return []
    plan = facts.plan
    there = [p for p in plan.predictions if p.placement.schedule == "fused"] if plan else []
    if there:
        then = max(there, key=lambda p: p.best_known)
        where = str(then.placement)
        if then.measured is not None:
            words += f" {then.measured:,.0f} steps/s measured here."
    else:
        where, words = "auto", f"{words} {MEASURE} measures what that gains here."
    return [Proposal(words, {"env_backend": "device", "placement": where}, 1.1)]


def parts(facts: RunFacts) -> list[str]:
    """A sentence for evidence about the time that each part of a program takes alone."""
    try:
        spent = in_program(facts.plan.stages, facts.placement) if facts.plan else {}
    except KeyError:  # measured on other devices
        spent = {}
    if not spent:
        return [f"{MEASURE} tells what of it is environments, acting and learning"]
    total = max(sum(spent.values()), 1e-12)
    shares = ", ".join(f"{name} {percent(seconds / total)}" for name, seconds in spent.items())
    return [f"an iteration's parts, each timed alone here: {shares}"]


def overlapping(facts: RunFacts, cost: Costs) -> list[Proposal]:
    """Collecting while learning, if both take long enough and there is a core for each."""
    place, collect = facts.placement, sum(facts.phases[phase] for phase in COLLECT)
    both = min(collect, cost.learn) >= 2 * WORTH_SAYING
    if place.schedule != "serial" or place.sampler == "device" or not both:
        return []
    if facts.cores < 2 and place.learn[0].kind == "cpu":
        return []
    words = (
        "Collect while learning (acting is then one version behind): the longer of the two remains."
    )
    return [Proposal(words, placed(place, schedule="overlapped"), 1.1)]


def _processes(facts: RunFacts, cost: Costs) -> list[Proposal]:
    """More processes that step, if a turn takes longer than the way to them and back."""
    place, envs = facts.placement, facts.envs
    if place.inference == "local" or place.sampler == "device":
        return []
    count = len(facts.workers) or (place.workers[0] if place.workers else 0)
    # Environments that sleep do not need a core each.
    cores = facts.cores if cost.computing > 0.5 else max(facts.cores, 64)
    number = worker_count(envs, min(cores, MOST_WORKERS))
    if number <= max(count, 1) or envs * cost.env < TRIPS * facts.machine.trip:
        return []
    words = (
        f"Step the environments in {number} processes: their steps run side by side, the way to "
        "them and back remains."
    )
    return [Proposal(words, placed(place, sampler="processes", workers=(number, envs // number)))]


def _larger_calls(facts: RunFacts) -> list[Proposal]:
    """More environments in each call; for images the call itself would grow as much on a CPU."""
    if facts.images and facts.placement.act[0].kind == "cpu":
        return []
    return [
        Proposal(
            f"{facts.envs * factor} environments share each call that chooses actions; the call "
            f"itself remains, and so does every step. {COMPARE}",
            more,
        )
        for factor in (8, 4, 2)
        if facts.envs * factor <= MOST_ENVS
        and (more := more_envs(facts.settings, factor, facts.cores)) is not None
    ]


def env(facts: RunFacts, cost: Costs, share: float) -> Finding:
    """Stepping environments, in this process or in others."""
    count = len(facts.workers)
    evidence = [
        f"stepping environments takes {percent(share)} of the time"
        + (f", in {count} processes" if count else ""),
        f"one environment's step takes {time_words(cost.env)}; {facts.envs} step together",
    ]
    if cost.computing < 0.5:
        evidence.append(
            f"they compute for only {percent(cost.computing)} of that: the rest is sleeping or "
            "waiting for something else"
        )
    if facts.placement.sampler == "device":
        evidence[1:] = ["a program of its own steps and acts", *parts(facts)]
    # ALE's vector environment starts threads itself.
    threaded = is_atari(str(facts.settings.get("env", ""))) and not count
    processes = [] if threaded else _processes(facts, cost)
    proposals = [*_in_one_program(facts), *processes, *overlapping(facts, cost)]
    otherwise = "Make the environment's own step faster: profile it, or step it on more cores."
    if facts.envs == 1:
        otherwise = "Step several environments in processes (--envs 8), or make the step faster."
    return propose("env-bound", share, evidence, otherwise, facts, proposals)


def act(facts: RunFacts, cost: Costs, share: float) -> Finding:
    """Choosing actions."""
    calls = facts.steps / max(facts.seconds, 1e-9) / cost.together
    evidence = [
        f"choosing actions takes {percent(share)} of the time",
        f"{calls:,.0f} calls per second, each for {cost.together} "
        f"{'environment' if cost.together == 1 else 'environments'}, {time_words(cost.act)} a call",
    ]
    proposals = _in_one_program(facts)
    if facts.placement.act[0].kind == "gpu" and not facts.images and cost.together < 64:
        words = (
            "Choose actions on the CPU: a small network is faster there than the way to the GPU "
            "and back; handing over parameters remains."
        )
        proposals.append(Proposal(words, placed(facts.placement, act=(CPU,))))
    if facts.placement.sampler != "device":
        proposals += [*_larger_calls(facts), *overlapping(facts, cost)]
    otherwise = "Choose the actions of more environments in each call, or use a smaller network."
    return propose("acting-bound", share, evidence, otherwise, facts, proposals)


def ipc(facts: RunFacts, cost: Costs, share: float) -> Finding:
    """Communication with actor processes."""
    turns = max((worker.turns for worker in facts.workers), default=0)
    way_s = share * facts.seconds / max(turns, 1)
    stepping_s = sum(worker.busy_s for worker in facts.workers) / max(turns, 1)
    evidence = [
        f"the way to {len(facts.workers)} actor processes and back takes {percent(share)} of "
        "the time",
        f"{time_words(way_s)} for each of their turns, in which they step for "
        f"{time_words(stepping_s)} in all",
    ]
    place = facts.placement
    inline = Proposal(
        "Step these environments in the main process: their steps remain, the way to others does "
        "not.",
        placed(place, sampler="inline", workers=None, inference="central"),
    )
    local = Proposal(
        "Let each process act for itself: one message for a trajectory remains instead of one for "
        "a step.",
        placed(place, inference="local"),
        1.1,
    )
    # One after another in the main process, steps take as long as in all processes together.
    proposals = [inline, local] if stepping_s < way_s else [local]
    if place.inference == "local":
        proposals.remove(local)
    if (more := more_envs(facts.settings, 4, facts.cores)) is not None:
        words = (
            f"Four times as many environments share each message; the message remains. {COMPARE}"
        )
        proposals.append(Proposal(words, more))
    otherwise = "Give each actor process more environments, so that a message is for many steps."
    return propose("ipc-bound", share, evidence, otherwise, facts, proposals)


def waits_for(facts: RunFacts) -> str:
    """Whom it is that a run waits for in lockstep."""
    if facts.placement.sampler == "processes":
        return "waiting for the slowest actor process"
    return "waiting for the other members of its population"


def lockstep(facts: RunFacts, cost: Costs, share: float) -> Finding:
    """Waiting for the slowest actor process, or for other members of a population."""
    waiting = f"{waits_for(facts)} takes {percent(share)} of the time"
    if facts.placement.sampler != "processes":
        evidence = [f"{waiting}: their environments step in the same thread"]
        otherwise = (
            "Compare with --strategy spread: each member as a run of its own, as many at a time as "
            "there are cores; --strategy auto measures both where that is worth its time."
        )
        return propose("waiting", share, evidence, otherwise, facts)
    evidence = [waiting]
    busy = sorted(worker.busy_s for worker in facts.workers)
    if busy and facts.seconds:
        evidence.append(
            f"the processes step between {percent(busy[0] / facts.seconds)} and "
            f"{percent(busy[-1] / facts.seconds)} of the time"
        )
    proposals: list[Proposal] = []
    if facts.workers and facts.placement.inference == "central":
        words = (
            "Let each process act for itself: they then wait for one another once for a "
            "trajectory, which remains, not at every step."
        )
        proposals.append(Proposal(words, placed(facts.placement, inference="local")))
    otherwise = "Give environments that take equally long to the same process."
    return propose("waiting", share, evidence, otherwise, facts, proposals)
