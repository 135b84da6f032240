"""Rules for learning: arithmetic or overhead? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.explain.collecting import COMPARE, LARGE, LEARN, overlapping, parts
from flatout.explain.facts import RunFacts
from flatout.explain.proposals import Advice, Proposal, takes
from flatout.explain.settings import more_envs, placed
from flatout_explain.ranking import LEAST_SHARE
from flatout_explain.report import duration, percent

LONGER = 16  # how many times longer turns are proposed

TINY_UPDATE_S = {"cpu": 50e-6, "gpu": 1e-3}
"""An update shorter than this is mostly the cost of starting its operations."""


def update_s(facts: RunFacts, share: float) -> float:
    """Return the seconds that a share of the time takes for each update."""
    return share * facts.seconds / max(facts.updates, 1)


def replay(facts: RunFacts, share: float) -> Advice:
    """Return the finding about gathering batches, or before any update about storing steps."""
    evidence = takes(facts, "replay", share)
    if not facts.updates:
        return Advice([evidence], "Store less: use smaller observations, or fewer frames in each.")
    words = "batches are then chosen and gathered inside the compiled update (docs/replay.md)."
    return Advice(
        [f"{evidence}, {duration(update_s(facts, share))} for each update"],
        "Use smaller batches, or fewer updates for each environment step.",
        _replay_on_device(facts, words),
    )


def _replay_on_device(facts: RunFacts, then: str) -> Iterator[Proposal]:
    """Propose replay on the learning device, unless it is there already."""
    if facts.replays and not facts.placement.replay_on_device:
        words = f"Keep replay on the learning device: {then}"
        yield Proposal(words, placed(facts.placement, replay="device"))


def images(facts: RunFacts, share: float) -> Advice:
    """Return the finding about waiting for a data set's batches, which another thread gathers."""
    otherwise = "Use smaller images, or a faster core: a single thread gathers all batches."
    return Advice([takes(facts, "input", share)], otherwise)


def transfer(facts: RunFacts, share: float) -> Advice:
    """Return the finding about moving trajectories and parameters between devices."""
    place = facts.placement
    proposals = [*_replay_on_device(facts, "trajectories must still be copied to it.")]
    if place.act != place.learn:
        words = "Act on the learning device: observations are then copied instead of parameters."
        proposals.append(Proposal(words, placed(place, act=place.learn[:1]), 1.1))
    otherwise = "Use longer trajectories, so that each copy is for more steps."
    return Advice([takes(facts, "transfer", share)], otherwise, proposals)


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


def turns(facts: RunFacts, share: float) -> Advice | None:
    """Return the finding about the fixed cost of many short iterations."""
    share = fixed_share(facts)
    if share < LARGE or not facts.updates:
        return None
    evidence = [
        f"{_iterations(facts)} in {duration(facts.seconds / max(facts.iterations, 1))}",
        f"starting iterations is estimated to take {percent(share)} of the time",
    ]
    otherwise = "Use longer trajectories (--n-steps), so that each iteration does more."
    return Advice(evidence, otherwise, _longer(facts), share)


def _longer(facts: RunFacts) -> Iterator[Proposal]:
    """Propose longer iterations."""
    if facts.replays:
        names = ("train_freq", "gradient_steps")
        words = (
            f"Collect {LONGER} times as many steps, then make {LONGER} times as many updates in "
            "one go, which keeps their ratio. Acting then uses older parameters: compare returns."
        )
        yield Proposal(words, {name: int(facts.settings[name]) * LONGER for name in names})
    elif facts.settings.get("algorithm") == "a2c":
        words = (
            "Use four times as many environments, so that each update learns from four times as "
            f"many steps. {COMPARE}"
        )
        if (more := more_envs(facts, 4)) is not None:
            yield Proposal(words, more)


def tiny_updates(facts: RunFacts, share: float) -> Advice | None:
    """Return the finding about updates so small that launching their operations takes the time."""
    if not _are_tiny(facts) or (rest := share - fixed_share(facts)) < LEAST_SHARE:
        return None
    evidence = [_updates(facts), "an update this short is mostly the cost of starting operations"]
    if facts.use.gpu_full is not None:
        evidence.insert(1, f"the GPU is {percent(facts.use.gpu_full)} full while they run")
    return Advice(evidence, "Use larger batches, or learn on the CPU.", _coarser(facts), rest)


def _are_tiny(facts: RunFacts) -> bool:
    device, full = facts.placement.learn[0], facts.use.gpu_full
    tiny = facts.updates and update_s(facts, facts.phases["learn"]) < TINY_UPDATE_S[device.kind]
    return bool(tiny) and (not device.is_gpu or full is None or full < 0.2)


def _updates(facts: RunFacts) -> str:
    learn = facts.phases["learn"]
    each = duration(update_s(facts, learn))
    return f"gradient steps take {percent(learn)} of the time, {each} each"


def _coarser(facts: RunFacts) -> Iterator[Proposal]:
    """Propose fewer and larger updates, or a device that starts them faster."""
    batch = facts.settings.get("batch_size")
    if batch and "n_epochs" in facts.settings:
        words = (
            "Use minibatches four times as large: a quarter of the updates, with as much "
            f"arithmetic in all. {COMPARE}"
        )
        yield Proposal(words, {"batch_size": int(batch) * 4})
    if facts.placement.learn[0].is_gpu:
        words = (
            "Learn on the CPU: one core is enough for updates this small, and starts operations "
            "faster than a GPU."
        )
        yield Proposal(words, {"placement": "cpu"})


def arithmetic(facts: RunFacts, share: float) -> Advice | None:
    """Return the finding about the gradient steps themselves."""
    if _are_tiny(facts) or (rest := share - fixed_share(facts)) < LEAST_SHARE:
        return None
    evidence, use = [_updates(facts)], facts.use
    if use.gpu_busy is not None:
        fullness = "" if use.gpu_full is None else f", {percent(use.gpu_full)} full"
        evidence.append(f"the GPU is busy {percent(use.gpu_busy)} of the time{fullness}")
    otherwise = (
        "Nothing holds learning up. Only a faster device, or fewer or cheaper updates (which "
        "change what is learned), would make it faster."
    )
    return Advice(evidence, otherwise, overlapping(facts), rest)


def fused(facts: RunFacts, share: float) -> Advice:
    """Return the finding about the one program of a fused schedule."""
    does = "acts, steps and learns" if facts.updates else "acts and steps"
    evidence = [f"one program {does} for {percent(share)} of the time", _iterations(facts),
                parts(facts)]  # fmt: skip
    if facts.use.gpu_full is not None:
        evidence.append(f"the GPU is {percent(facts.use.gpu_full)} full while it runs")
    otherwise = (
        "Nothing outside this program holds it up. If the device is not full, use more "
        "environments, or train several members (--seeds 8)."
    )
    return Advice(evidence, otherwise)
