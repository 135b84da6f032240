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

COMPARE = "This changes what is learned: compare returns."

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
        words = (
            f"Step {name} in the same compiled program as acting and learning, instead of in a "
            "separate one."
        )
    elif in_library(name) or has_twin(name, given):
        words = (
            f"Step {name} in the same compiled program as acting and learning. Its steps are "
            "tested to equal the host's; its episodes start from other random states."
        )
    else:
        return []
    plan = facts.plan
    there = [p for p in plan.predictions if p.placement.schedule == "fused"] if plan else []
    if there:
        then = max(there, key=lambda p: p.best_known)
        where = str(then.placement)
        if then.measured is not None:
            words += f" Measured here: {then.measured:,.0f} steps per second."
    else:
        where, words = "auto", f"{words} {MEASURE} measures what this gains here."
    return [Proposal(words, {"env_backend": "device", "placement": where}, 1.1)]


def parts(facts: RunFacts) -> list[str]:
    """A sentence for evidence about the time that each part of a program takes alone."""
    try:
        spent = in_program(facts.plan.stages, facts.placement) if facts.plan else {}
    except KeyError:  # measured on other devices
        spent = {}
    if not spent:
        return [f"{MEASURE} shows how much of it is environments, acting and learning"]
    total = max(sum(spent.values()), 1e-12)
    shares = ", ".join(f"{name} {percent(seconds / total)}" for name, seconds in spent.items())
    return [f"the parts of an iteration, each timed alone on this machine: {shares}"]


def overlapping(facts: RunFacts, cost: Costs) -> list[Proposal]:
    """Collecting while learning, if both take long enough and there is a core for each."""
    place, collect = facts.placement, sum(facts.phases[phase] for phase in COLLECT)
    both = min(collect, cost.learn) >= 2 * WORTH_SAYING
    if place.schedule != "serial" or place.sampler == "device" or not both:
        return []
    if facts.cores < 2 and place.learn[0].kind == "cpu":
        return []
    words = (
        "Collect while learning: an iteration then takes as long as the longer of the two, and "
        "acting uses parameters that are one version old."
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
        f"Step the environments in {number} processes: their steps then run in parallel, and "
        "messages take some time."
    )
    return [Proposal(words, placed(place, sampler="processes", workers=(number, envs // number)))]


def _larger_calls(facts: RunFacts) -> list[Proposal]:
    """More environments in each call; for images the call itself would grow as much on a CPU."""
    if facts.images and facts.placement.act[0].kind == "cpu":
        return []
    return [
        Proposal(
            f"Use {facts.envs * factor} environments, whose actions are chosen in one call; their "
            f"steps take as long as before. {COMPARE}",
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
        f"one environment's step takes {time_words(cost.env)}; this run has {facts.envs} "
        f"{'environment' if facts.envs == 1 else 'environments'}",
    ]
    if cost.computing < 0.5:
        evidence.append(
            f"they compute for only {percent(cost.computing)} of that time: for the rest they "
            "sleep, or wait for something else"
        )
    if facts.placement.sampler == "device":
        evidence[1:] = ["a separate program steps environments and chooses actions", *parts(facts)]
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
            "Choose actions on the CPU: for a small network that takes less time than copying to "
            "the GPU and back. Parameters must still be copied from the GPU."
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
        f"communication with {len(facts.workers)} actor processes takes {percent(share)} of the "
        "time",
        f"{time_words(way_s)} for each of their turns, in which their steps take "
        f"{time_words(stepping_s)} in all",
    ]
    place = facts.placement
    inline = Proposal(
        "Step these environments in the main process, which needs no messages; the steps take as "
        "long as before.",
        placed(place, sampler="inline", workers=None, inference="central"),
    )
    local = Proposal(
        "Let each process choose its own actions: it then sends one message per trajectory instead "
        "of one per step.",
        placed(place, inference="local"),
        1.1,
    )
    # One after another in the main process, steps take as long as in all processes together.
    proposals = [inline, local] if stepping_s < way_s else [local]
    if place.inference == "local":
        proposals.remove(local)
    if (more := more_envs(facts.settings, 4, facts.cores)) is not None:
        words = (
            "Use four times as many environments, so that each message is for four times as many "
            f"steps. {COMPARE}"
        )
        proposals.append(Proposal(words, more))
    otherwise = "Give each actor process more environments, so that each message is for more steps."
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
            "Let each process choose its own actions: the processes then wait for each other once "
            "per trajectory, not at every step."
        )
        proposals.append(Proposal(words, placed(facts.placement, inference="local")))
    otherwise = "Put environments whose steps take equally long into the same process."
    return propose("waiting", share, evidence, otherwise, facts, proposals)
