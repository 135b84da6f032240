"""Answers about other machines and environments, from stages that were measured here. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flatout.config.placement import Placement
from flatout.errors import UsageError, nearest
from flatout.planning.plan import Allowed, candidates, choose, kind
from flatout.planning.predict import ACT, ENV, LEARN, Prediction, in_program, predict
from flatout.planning.stages import Stages

MEASURED_ANEW = {"batch": "batch_size", "hidden": "hidden"}
"""Questions that other settings answer, whose stages have to be measured: the setting's name."""

KEYS = ("cores", "gpus", "gpu", "env-speed", *MEASURED_ANEW)

PER_DOUBLING = 0.10
"""How much wider an interval becomes with each doubling of the cores: what they share beyond the
measured ones (memory, caches) is not known."""

MOST_CORES = 4096


@dataclass(frozen=True)
class Change:
    """One ``KEY=VALUE`` of ``--what-if``."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


def parse(words: Sequence[str]) -> list[Change]:
    """Read ``--what-if``'s words.

    Raises:
        UsageError: an unknown key, or a value that is none.
    """
    changes: list[Change] = []
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or key not in KEYS:
            raise UsageError(
                f"--what-if {word}: write KEY=VALUE with {', '.join(KEYS)}.{nearest(key, KEYS)}"
            )
        numbers = key in ("cores", "gpus")
        if numbers and not (re.fullmatch(r"\d{1,4}", value) and 1 <= int(value) <= MOST_CORES):
            raise UsageError(f"--what-if {word}: {key} is a whole number from 1 to {MOST_CORES}.")
        if key == "env-speed" and not 0.0 < speed(value) < 1e6:
            raise UsageError(f"--what-if {word}: write how many times as fast, such as 10x.")
        changes.append(Change(key, value))
    return changes


def speed(text: str) -> float:
    """The number of ``10x``; 0 if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x?", text)
    return float(match[1]) if match else 0.0


def refuse_unmeasured(changes: Sequence[Change], stages: Stages) -> None:
    """Refuse what nothing here was measured for.

    Raises:
        UsageError: with how to measure it.
    """
    cards = [device for device in stages.act if device.startswith("gpu")]
    for change in changes:
        if change.key in ("gpu", "gpus"):
            here = f"{len(cards)} GPU" if cards else "no GPU"
            raise UsageError(
                f"--what-if {change}: these stages were measured with {here}, and speeds of "
                "other cards are not guessed; run `flatout plan ... --save-machine m.json` on a "
                "machine that has it, and ask here with --machine m.json."
            )
        if change.key == "cores" and stages.rollout:
            raise UsageError(
                f"--what-if {change}: what a compiled program makes of other numbers of cores is "
                "not guessed; leave --env-backend out to ask about steps on the host, or run "
                "`flatout plan ... --save-machine m.json` on a machine that has them, and ask here "
                "with --machine m.json."
            )


def changed(stages: Stages, changes: Sequence[Change]) -> tuple[Stages, float]:
    """The stages of that machine, and the factor by which intervals become wider."""
    wider = 0.0
    for change in changes:
        if change.key == "cores":
            cores = int(change.value)
            wider += PER_DOUBLING * max(math.log2(cores / stages.cores), 0.0)
            # The speed of a core while all work is taken to stay: never extrapolated linearly.
            stages = replace(stages, cores=cores)
        elif change.key == "env-speed":
            stages = stages.faster_envs(speed(change.value))
    return stages, wider


@dataclass(frozen=True)
class Outcome:
    """What a change gives: the ratio of the best placements' speeds, and what then holds it up."""

    change: str
    gain: float
    low: float
    high: float
    then: Prediction
    bottleneck: str


def outcome(
    words: str, now: Stages, then: Stages, wider: float, base: Placement, allowed: Allowed,
    known: Sequence[str],
) -> Outcome:  # fmt: skip
    """Compare the best placements of two sets of stages."""

    def best(stages: Stages) -> Prediction:
        found = candidates(stages, base, allowed)
        return choose([predict(stages, p, known=kind(p) in known) for p in found])

    before, after = best(now), best(then)
    gain = after.rate / before.rate
    if then.cores >= now.cores and then.env_s <= now.env_s and then.learn == now.learn:
        gain = max(gain, 1.0)  # nothing became slower
    wide = (after.high / after.rate) * (1.0 + wider)
    return Outcome(words, gain, gain / wide, gain * wide, after, bottleneck(then, after))


def bottleneck(stages: Stages, prediction: Prediction) -> str:
    """What holds a placement up most, in a few words."""
    placement = prediction.placement
    if placement.sampler == "device":
        parts = in_program(stages, placement)
        return max(parts, key=lambda name: parts[name])
    count, _ = placement.workers or (1, 0)
    count = min(count, stages.cores) if stages.computing > 0.5 else count
    learn = min(stages.learn.values())
    act = stages.horizon * max(min(points, key=lambda p: p[1])[1] for points in stages.act.values())
    parts = {
        ENV: stages.env_s * stages.steps / count,
        LEARN: learn,
        ACT: act,
        "the way to actor processes": stages.horizon * stages.trip if count > 1 else 0.0,
    }
    return max(parts, key=lambda name: parts[name])
