"""Rules for learning: arithmetic or overhead? Pure."""

from __future__ import annotations

from flatout.explain.diagnosis import Finding
from flatout.explain.own.collecting import COMPARE, overlapping, parts
from flatout.explain.own.costs import LEARN, Costs
from flatout.explain.own.proposals import WORTH_SAYING, Proposal, propose, time_words
from flatout.explain.own.settings import more_envs, placed
from flatout.explain.report import percent
from flatout.planning.facts import RunFacts

LONGER = 16  # how many times longer turns are proposed

TINY_UPDATE_S = {"cpu": 50e-6, "gpu": 1e-3}
"""An update shorter than this is mostly the cost of starting its operations."""


def replay(facts: RunFacts, cost: Costs, share: float) -> Finding:
    """Choosing and gathering batches, or before the first update storing what was collected."""
    if not facts.updates:
        stored = f"storing what was collected takes {percent(share)} of the time"
        otherwise = "Store less: use smaller observations, or fewer frames in each."
        return propose("replay-bound", share, [stored], otherwise, facts)
    evidence = [
        f"choosing and gathering batches takes {percent(share)} of the time, "
        f"{time_words(share * facts.seconds / max(facts.updates, 1))} for each update"
    ]
    words = (
        "Keep replay on the learning device: batches are then chosen and gathered inside the "
        "compiled update (docs/replay.md)."
    )
    proposals = _replay_on_device(facts, words)
    otherwise = "Use smaller batches, or fewer updates for each environment step."
    return propose("replay-bound", share, evidence, otherwise, facts, proposals)


def _replay_on_device(facts: RunFacts, words: str) -> list[Proposal]:
    """The proposal to keep replay on the learning device, where it is not there already."""
    if not facts.replays or facts.placement.replay_on_device:
        return []
    return [Proposal(words, placed(facts.placement, replay="device"))]


def images(facts: RunFacts, cost: Costs, share: float) -> Finding:
    """Waiting for a dataset's batches, which another thread gathers."""
    evidence = [f"learning waits for the next batch {percent(share)} of the time"]
    otherwise = "Use smaller images, or a faster core: a single thread gathers all batches."
    return propose("input-bound", share, evidence, otherwise, facts)


def transfer(facts: RunFacts, cost: Costs, share: float) -> Finding:
    """Moving trajectories and parameters between devices."""
    evidence = [
        f"moving trajectories and parameters between devices takes {percent(share)} of the time"
    ]
    place = facts.placement
    words = "Keep replay in the learning device's memory; trajectories must still be copied to it."
    proposals = _replay_on_device(facts, words)
    if place.act != place.learn:
        words = "Act on the learning device: observations are then copied instead of parameters."
        changes = placed(place, act=place.learn[:1])
        proposals.append(Proposal(words, changes, 1.1))
    otherwise = "Use longer trajectories, so that each copy is for more steps."
    return propose("transfer-bound", share, evidence, otherwise, facts, proposals)


def fixed_share(facts: RunFacts) -> float:
    """Estimate the share of the time that starting iterations takes, whatever they learn."""
    overhead = sum(facts.phases[name] for name in (*LEARN, "publish", "other"))
    starting_s = facts.machine.iteration * facts.iterations
    return min(starting_s / max(facts.seconds, 1e-9), 0.9 * overhead)


def _iterations(facts: RunFacts) -> str:
    """Return a sentence about how many iterations a run makes, and how large they are."""
    count = max(facts.iterations, 1)
    return (
        f"{facts.iterations / max(facts.seconds, 1e-9):,.0f} iterations per second, each with "
        f"{facts.steps / count:,.0f} steps and {facts.updates / count:,.1f} updates"
    )


def turns(facts: RunFacts, cost: Costs, share: float) -> Finding | None:
    """Many short iterations: their fixed cost."""
    share = fixed_share(facts)
    if share < 2 * WORTH_SAYING or not facts.updates:
        return None
    evidence = [
        f"{_iterations(facts)} in {time_words(facts.seconds / max(facts.iterations, 1))}",
        f"starting iterations is estimated to take {percent(share)} of the time",
    ]
    proposals: list[Proposal] = []
    if facts.replays:
        names = ("train_freq", "gradient_steps")
        changes = {name: int(facts.settings[name]) * LONGER for name in names}
        words = (
            f"Collect {LONGER} times as many steps, then make {LONGER} times as many updates in "
            "one go, which keeps their ratio. Acting then uses older parameters: compare returns."
        )
        proposals.append(Proposal(words, changes))
    elif facts.settings.get("algorithm") == "a2c":
        more = more_envs(facts.settings, 4, facts.cores)
        if more is not None:
            words = (
                "Use four times as many environments, so that each update learns from four times "
                f"as many steps. {COMPARE}"
            )
            proposals.append(Proposal(words, more))
    otherwise = "Use longer trajectories (--n-steps), so that each iteration does more."
    return propose("launch-bound", share, evidence, otherwise, facts, proposals)


def arithmetic(facts: RunFacts, cost: Costs, share: float) -> Finding | None:
    """The gradient steps themselves, or launching their operations."""
    learn, use = facts.phases["learn"], facts.use
    share = max(learn - fixed_share(facts), 0.0)
    if share < WORTH_SAYING:
        return None
    kind = facts.placement.learn[0].kind
    update = learn * facts.seconds / max(facts.updates, 1)
    evidence = [f"gradient steps take {percent(learn)} of the time, {time_words(update)} each"]
    starved = kind == "cpu" or use.gpu_full is None or use.gpu_full < 0.2
    if facts.updates and update < TINY_UPDATE_S[kind] and starved:
        if use.gpu_full is not None:
            evidence.append(f"the GPU is {percent(use.gpu_full)} full while they run")
        return _tiny_updates(facts, share, evidence)
    if use.gpu_busy is not None:
        fullness = "" if use.gpu_full is None else f", {percent(use.gpu_full)} full"
        evidence.append(f"the GPU is busy {percent(use.gpu_busy)} of the time{fullness}")
    proposals = overlapping(facts, cost)
    otherwise = (
        "Nothing holds learning up. Only a faster device, or fewer or cheaper updates (which "
        "change what is learned), would make it faster."
    )
    return propose("compute-bound", share, evidence, otherwise, facts, proposals)


def fused(facts: RunFacts, cost: Costs, share: float) -> Finding:
    """The one program of a fused schedule."""
    does = "acts, steps and learns" if facts.updates else "acts and steps"
    evidence = [
        f"one program {does} for {percent(share)} of the time", _iterations(facts), *parts(facts)
    ]  # fmt: skip
    if facts.use.gpu_full is not None:
        evidence.append(f"the GPU is {percent(facts.use.gpu_full)} full while it runs")
    otherwise = (
        "Nothing outside this program holds it up. If the device is not full, use more "
        "environments, or train several members (--seeds 8)."
    )
    return Finding("compute-bound", share, tuple(evidence), otherwise)


def _tiny_updates(facts: RunFacts, share: float, evidence: list[str]) -> Finding:
    """Updates so small that launching operations dominates."""
    batch = facts.settings.get("batch_size")
    proposals: list[Proposal] = []
    if batch and "n_epochs" in facts.settings:
        words = (
            "Use minibatches four times as large: a quarter of the updates, with as much "
            f"arithmetic in all. {COMPARE}"
        )
        changes = {"batch_size": int(batch) * 4}
        proposals.append(Proposal(words, changes))
    if facts.placement.learn[0].kind == "gpu":
        words = (
            "Learn on the CPU: one core is enough for updates this small, and starts operations "
            "faster than a GPU."
        )
        proposals.append(Proposal(words, {"placement": "cpu"}))
    evidence.append("an update this short is mostly the cost of starting its operations")
    otherwise = "Use larger batches, or learn on the CPU."
    return propose("launch-bound", share, evidence, otherwise, facts, proposals)
