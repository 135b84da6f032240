"""Rules for collecting: stepping, acting, actor processes. Pure."""

from __future__ import annotations

from flatout.config.placement import CPU
from flatout.envs.ale_ids import is_atari
from flatout.envs.device.make import has_twin, in_library
from flatout.explain.diagnosis import Finding
from flatout.explain.own.proposals import Try, predicted, time_words
from flatout.explain.own.settings import Changes, more_envs, placed, worker_count
from flatout.explain.report import percent
from flatout.planning.facts import RunFacts
from flatout.planning.gains import Costs, on_device_gain, placement_gain, remaining
from flatout.planning.predict import in_program

COMPARE = "What is learned changes: compare returns."

MOST_WORKERS = 128
"""Actor processes that are proposed: more take long to simulate."""

ON_DEVICE = 0.02, 0.08, 0.3
"""What remains of collecting in one compiled program: at best, usually, and at worst."""

MEASURE = "`flatout explain RUN_DIR --measure`"
"""The command that measures a run's parts here."""


def _in_one_program(facts: RunFacts) -> list[Try]:
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
    found = on_device_gain(facts)
    if found is None:
        share = sum(facts.phases[phase] for phase in ("env", "act", "ipc", "wait"))
        gain, where = remaining(share, *ON_DEVICE), "auto"
        words += f" {MEASURE} measures what that gains here."
    else:
        gain, then = found
        where = str(then.placement)
        how = "predicted from its parts" if then.measured is None else "measured"
        words += f" {then.best_known:,.0f} steps/s {how} here."
    return [Try(gain, words, {"env_backend": "device", "placement": where}, 1.1)]


def parts(facts: RunFacts) -> list[str]:
    """What a program's time is, as its parts take it alone: a sentence for evidence."""
    try:
        spent = in_program(facts.plan.stages, facts.placement) if facts.plan else {}
    except KeyError:  # measured on other devices
        spent = {}
    if not spent:
        return [f"{MEASURE} tells what of it is environments, acting and learning"]
    total = max(sum(spent.values()), 1e-12)
    shares = ", ".join(f"{name} {percent(seconds / total)}" for name, seconds in spent.items())
    return [f"an iteration's parts, each timed alone here: {shares}"]


def proposals(facts: RunFacts, cost: Costs) -> list[Try]:
    """Return other ways to collect; each is simulated once for all rules that ask."""
    if "proposals" not in cost.known:
        cost.known["proposals"] = _proposals(facts, cost)
    return list(cost.known["proposals"])


def _proposals(facts: RunFacts, cost: Costs) -> list[Try]:
    place, envs, cores = facts.placement, facts.envs, facts.cores
    tries = _in_one_program(facts)
    if place.sampler == "device":
        return tries
    count = len(facts.workers) or (place.workers[0] if place.workers else 0)
    # Environments that sleep do not need a core each.
    most = min(cores if cost.computing > 0.5 else max(cores, 64), MOST_WORKERS)
    processes = worker_count(envs, most)

    def add(
        words: str, changes: Changes, envs: int = envs, workers: int = count,
        overlapped: bool = facts.overlapped,
    ) -> None:  # fmt: skip
        gain = placement_gain(facts, cost, envs=envs, workers=workers, overlapped=overlapped)
        handicap = 1.25 if "envs" in changes else 1.0
        if overlapped and place.schedule == "serial":
            handicap *= 1.1
        tries.append(Try(gain, words, changes, handicap))

    overlap = "collect while learning (acting is then one version behind)"
    can_overlap = place.schedule == "serial" and cost.learn > 0.0
    if processes > max(count, 1) and place.inference != "local" and facts.settings.get("algorithm"):
        to: Changes = {"sampler": "processes", "workers": (processes, envs // processes)}
        words = f"Step the environments in {processes} processes"
        add(
            f"{words}: their steps run side by side, the way to them and back remains.",
            placed(place, **to), workers=processes,
        )  # fmt: skip
        if can_overlap:
            add(
                f"{words}, and {overlap}: the longer side remains.",
                placed(place, **to, schedule="overlapped"), workers=processes, overlapped=True,
            )  # fmt: skip
    if can_overlap:
        words = f"{overlap.capitalize()}: the longer of the two remains."
        add(words, placed(place, schedule="overlapped"), overlapped=True)
    for factor in (2, 4, 8):
        more = more_envs(facts.settings, factor, cores)
        if more is None or envs * factor > 256:
            continue
        add(
            f"{envs * factor} environments share each call that chooses actions; the call itself "
            f"remains, and so does every step. {COMPARE}",
            more, envs=envs * factor,
        )  # fmt: skip
        if envs == 1 and not count and factor >= min(cores, 2):
            number = worker_count(factor, most)
            to = {"sampler": "processes", "workers": (number, factor // number)}
            add(
                f"{factor} environments in {number} processes step side by side; the way to them "
                f"and back remains. {COMPARE}",
                more | placed(place, **to), envs=factor, workers=number,
            )  # fmt: skip
    return tries


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
    tries = [
        proposal
        for proposal in proposals(facts, cost)
        if not (threaded and "sampler=processes" in str(proposal.changes))
        and (facts.envs == 1 or "envs" not in proposal.changes)
    ]
    otherwise = "Make the environment's own step faster: profile it, or step it on more cores."
    return predicted("env-bound", share, evidence, otherwise, facts, tries)


def act(facts: RunFacts, cost: Costs, share: float) -> Finding:
    """Choosing actions."""
    calls = facts.steps / max(facts.seconds, 1e-9) / cost.together
    evidence = [
        f"choosing actions takes {percent(share)} of the time",
        f"{calls:,.0f} calls per second, each for {cost.together} "
        f"{'environment' if cost.together == 1 else 'environments'}, {time_words(cost.act)} a call",
    ]
    tries = proposals(facts, cost)
    if facts.placement.act[0].kind == "gpu" and not facts.images and cost.together < 64:
        words = (
            "Choose actions on the CPU: a small network is faster there than the way to the GPU "
            "and back; handing over parameters remains."
        )
        changes = placed(facts.placement, act=(CPU,))
        tries.append(Try(remaining(share, 0.1, 0.3, 0.8), words, changes))
    otherwise = "Choose the actions of more environments in each call, or use a smaller network."
    return predicted("acting-bound", share, evidence, otherwise, facts, tries)


def ipc(facts: RunFacts, cost: Costs, share: float) -> Finding:
    """Communication with actor processes."""
    turns = max((worker.turns for worker in facts.workers), default=0)
    evidence = [
        f"the way to {len(facts.workers)} actor processes and back takes {percent(share)} of "
        "the time",
        f"{time_words(share * facts.seconds / max(turns, 1))} for each of their turns, in which "
        f"they step for {time_words(sum(w.busy_s for w in facts.workers) / max(turns, 1))} in all",
    ]
    place, overlapped = facts.placement, facts.overlapped
    tries = [
        Try(
            placement_gain(facts, cost, envs=facts.envs, workers=0, overlapped=overlapped),
            "Step these environments in the main process: their steps remain, the way to others "
            "does not.",
            placed(place, sampler="inline", workers=None, inference="central"),
        )
    ]
    if place.inference == "central":
        words = (
            "Let each process act for itself: one message for a trajectory remains instead of "
            "one for a step."
        )
        gain = remaining(share, 0.05, 0.2, 0.6)
        tries.append(Try(gain, words, placed(place, inference="local"), 1.1))
    if (more := more_envs(facts.settings, 4, facts.cores)) is not None:
        words = (
            f"Four times as many environments share each message; the message remains. {COMPARE}"
        )
        tries.append(Try(remaining(share, 0.25, 0.35, 0.7), words, more, 1.25))
    otherwise = "Give each actor process more environments, so that a message is for many steps."
    return predicted("ipc-bound", share, evidence, otherwise, facts, tries)


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
        return predicted("waiting", share, evidence, otherwise, facts, [])
    evidence = [waiting]
    busy = sorted(worker.busy_s for worker in facts.workers)
    if busy and facts.seconds:
        evidence.append(
            f"the processes step between {percent(busy[0] / facts.seconds)} and "
            f"{percent(busy[-1] / facts.seconds)} of the time"
        )
    tries: list[Try] = []
    if facts.workers and facts.placement.inference == "central":
        words = (
            "Let each process act for itself: they then wait for one another once for a "
            "trajectory, which remains, not at every step."
        )
        changes = placed(facts.placement, inference="local")
        tries.append(Try(remaining(share, 0.1, 0.3, 0.8), words, changes))
    otherwise = "Give environments that take equally long to the same process."
    return predicted("waiting", share, evidence, otherwise, facts, tries)
