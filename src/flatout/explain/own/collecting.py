"""Rules for what comes before learning: stepping, acting, actor processes. Pure."""

from __future__ import annotations

from flatout.config.placement import CPU
from flatout.explain.diagnosis import Finding
from flatout.explain.own.proposals import WORTH_SAYING, Try, best, predicted, time_words
from flatout.explain.own.settings import Changes, more_envs, placed, worker_count
from flatout.explain.report import percent
from flatout.planning.facts import RunFacts
from flatout.planning.predict import Costs, placement_gain, remaining


def proposals(facts: RunFacts, cost: Costs) -> list[Try]:
    """Other ways to collect."""
    place, envs, cores = facts.placement, facts.envs, facts.cores
    tries: list[Try] = []
    count = len(facts.workers) or (place.workers[0] if place.workers else 0)
    local = place.inference == "local"
    # Environments that sleep or wait for others do not need a core each.
    most = cores if cost.computing > 0.5 else max(cores, 64)
    wanted = worker_count(envs, most)
    learns = place.schedule

    def add(words: str, changes: Changes, number: int, together: int, overlap: bool) -> None:
        gain = placement_gain(facts, cost, envs=together, workers=number, overlapped=overlap)
        handicap = 1.25 if "envs" in changes else 1.0
        if overlap and learns == "serial":
            handicap *= 1.1
        tries.append(Try(gain, words, changes, handicap))

    overlap = "collect while learning (acting is then one version behind)"
    if wanted > max(count, 1) and not local and facts.settings.get("algorithm"):
        text = {"sampler": "processes", "workers": (wanted, envs // wanted)}
        words = f"Step the environments in {wanted} processes"
        add(
            f"{words}: their steps run side by side, the way to them and back remains.",
            {"placement": placed(place, **text)}, wanted, envs, facts.overlapped,
        )  # fmt: skip
        if learns == "serial" and cost.learn > 0.0:
            changes = {"placement": placed(place, **text, schedule="overlapped")}
            add(f"{words}, and {overlap}: the longer side remains.", changes, wanted, envs, True)
    if learns == "serial" and cost.learn > 0.0:
        add(
            f"{overlap.capitalize()}: the longer of the two remains.",
            {"placement": placed(place, schedule="overlapped")}, count, envs, True,
        )  # fmt: skip
    for factor in (2, 4, 8):
        more = more_envs(facts.settings, factor, cores)
        if more is None or envs * factor > 256:
            continue
        words = (
            f"{envs * factor} environments share each call that chooses actions; the call itself "
            "remains, and so does every step. What is learned changes: compare returns."
        )
        add(words, more, count, envs * factor, facts.overlapped)
        if envs == 1 and not count and factor >= min(cores, 2):
            number = worker_count(factor, most)
            processes = placed(place, sampler="processes", workers=(number, factor // number))
            add(
                f"{factor} environments in {number} processes step side by side; the way to them "
                "and back remains. What is learned changes: compare returns.",
                {**more, "placement": processes}, number, factor, facts.overlapped,
            )  # fmt: skip
    return tries


def env(facts: RunFacts, cost: Costs) -> Finding | None:
    """Stepping environments, in this process or in others."""
    share = facts.phases["env"]
    if share < WORTH_SAYING:
        return None
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
    name = str(facts.settings.get("env", ""))
    tries = proposals(facts, cost)
    if name.startswith("ALE/") and not count:  # its vector environment has threads of its own
        tries = [one for one in tries if "sampler=processes" not in str(one.changes)]
    tries = [one for one in tries if facts.envs == 1 or "envs" not in one.changes]
    otherwise = "Make the environment's own step faster: profile it, or step it on more cores."
    return predicted("env-bound", share, evidence, best(tries, facts), otherwise)


def act(facts: RunFacts, cost: Costs) -> Finding | None:
    """Choosing actions."""
    share = facts.phases["act"]
    if share < WORTH_SAYING:
        return None
    calls = facts.steps / max(facts.seconds, 1e-9) / cost.together
    evidence = [
        f"choosing actions takes {percent(share)} of the time",
        f"{calls:,.0f} calls per second, each for {cost.together} "
        f"{'environment' if cost.together == 1 else 'environments'}, {time_words(cost.act)} a call",
    ]
    tries = proposals(facts, cost)
    if facts.placement.act[0].kind == "gpu" and not facts.images and cost.together < 64:
        text = placed(facts.placement, act=(CPU,))
        words = (
            "Choose actions on the CPU: a small network is faster there than the way to the GPU "
            "and back; handing over parameters remains."
        )
        tries.append(Try(remaining(share, 0.1, 0.3, 0.8), words, {"placement": text}))
    otherwise = "Choose the actions of more environments in each call, or use a smaller network."
    return predicted("acting-bound", share, evidence, best(tries, facts), otherwise)


def ipc(facts: RunFacts, cost: Costs) -> Finding | None:
    """The way to actor processes and back."""
    share = facts.phases["ipc"]
    if share < WORTH_SAYING:
        return None
    turns = max((worker.turns for worker in facts.workers), default=0)
    evidence = [
        f"the way to {len(facts.workers)} actor processes and back takes {percent(share)} of "
        "the time",
        f"{time_words(share * facts.seconds / max(turns, 1))} for each of their turns, in which "
        f"they step for {time_words(sum(w.busy_s for w in facts.workers) / max(turns, 1))} in all",
    ]
    place = facts.placement
    inline = placed(place, sampler="inline", workers=None, inference="central")
    tries = [
        Try(
            placement_gain(
                facts, cost, envs=facts.envs, workers=0, overlapped=facts.overlapped
            ),
            "Step these environments in the main process: their steps remain, the way to others "
            "does not.",
            {"placement": inline},
        )
    ]  # fmt: skip
    if place.inference == "central":
        tries.append(
            Try(
                remaining(share, 0.05, 0.2, 0.6),
                "Let each process act for itself: one message for a trajectory remains instead of "
                "one for a step.",
                {"placement": placed(place, inference="local")},
                1.1,
            )
        )
    if (more := more_envs(facts.settings, 4, facts.cores)) is not None:
        words = (
            "Four times as many environments share each message; the message remains. What is "
            "learned changes: compare returns."
        )
        tries.append(Try(remaining(share, 0.25, 0.35, 0.7), words, more, 1.25))
    otherwise = "Give each actor process more environments, so that a message is for many steps."
    return predicted("ipc-bound", share, evidence, best(tries, facts), otherwise)


def lockstep(facts: RunFacts, cost: Costs) -> Finding | None:
    """Waiting for the slowest of them."""
    share = facts.phases["wait"]
    if share < WORTH_SAYING:
        return None
    evidence = [f"waiting for the slowest actor process takes {percent(share)} of the time"]
    busy = sorted(worker.busy_s for worker in facts.workers)
    if busy and facts.seconds:
        evidence.append(
            f"the processes step between {percent(busy[0] / facts.seconds)} and "
            f"{percent(busy[-1] / facts.seconds)} of the time"
        )
    tries: list[Try] = []
    if facts.workers and facts.placement.inference == "central":
        tries.append(
            Try(
                remaining(share, 0.1, 0.3, 0.8),
                "Let each process act for itself: they then wait for one another once for a "
                "trajectory, which remains, not at every step.",
                {"placement": placed(facts.placement, inference="local")},
            )
        )
    otherwise = "Give environments that take equally long to the same process."
    return predicted("waiting", share, evidence, best(tries, facts), otherwise)
