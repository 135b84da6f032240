"""Answers about other machines and environments, from stages that were measured here. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flatout.config.placement import Placement
from flatout.errors import UsageError, nearest
from flatout.planning.answer import Answer
from flatout.planning.plan import Allowed, candidates, choose, worker_counts
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
        if key == "batch" and not re.fullmatch(r"[1-9]\d{0,8}", value):
            raise UsageError(f"--what-if {word}: {key} is a whole number from 1 on.")
        if key == "hidden" and not re.fullmatch(r"\d{1,6}(,\d{1,6})*", value):
            raise UsageError(f"--what-if {word}: write widths, such as hidden=512,512.")
        if key == "env-speed" and not 0.0 < speed(value) < 1e6:
            raise UsageError(f"--what-if {word}: write how many times as fast, such as 10x.")
        changes.append(Change(key, value))
    return changes


def speed(text: str) -> float:
    """The number of ``10x``; 0 if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x?", text)
    return float(match[1]) if match else 0.0


def refuse_cards(changes: Sequence[Change], cards: int) -> None:
    """Refuse questions about other GPUs, before anything is measured.

    Args:
        cards: GPUs of this machine.

    Raises:
        UsageError: with how to measure it.
    """
    here = f"{cards} GPU{'s' if cards > 1 else ''}" if cards else "no GPU"
    for change in changes:
        if change.key in ("gpu", "gpus"):
            raise UsageError(
                f"--what-if {change}: this machine has {here}, and speeds of other cards are not "
                "guessed; run `flatout plan ... --save-machine m.json` on a machine that has it, "
                "and read that here with --machine m.json."
            )


def refuse_unmeasured(change: Change, stages: Stages) -> None:
    """Refuse what nothing was measured for.

    Raises:
        UsageError: with how to measure it.
    """
    if change.key == "cores" and stages.rollout:
        raise UsageError(
            f"--what-if {change}: what a compiled program makes of other numbers of cores is not "
            "guessed; leave --env-backend out to ask about steps on the host, or run `flatout plan "
            "... --save-machine m.json` on a machine that has them, and ask here with --machine "
            "m.json."
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
    """The effect of a change: the ratio of the best placements' speeds, and the bottleneck then."""

    change: str
    gain: float
    low: float
    high: float
    then: Prediction
    bottleneck: str


def outcome(words: str, now: Answer, then: Answer, wider: float, lag: bool) -> Outcome:
    """Compare the best placements of two answers.

    Args:
        words: the question.
        now: the run as it is.
        then: the run as it would be, as it was measured; or `now` with other stages.
        wider: factor by which the interval becomes wider.
        lag: acting with older parameters is allowed.
    """
    # Actor processes that a machine has no cores for may be of use on another.
    untried = not worker_counts(now.stages)
    before, after = _best(now, lag, untried), _best(then, lag, untried)
    gain = after.rate / before.rate
    old, new = now.stages, then.stages
    if new.cores >= old.cores and new.env_s <= old.env_s and new.learn == old.learn:
        gain = max(gain, 1.0)  # nothing became slower
    wide = (after.high / after.rate) * (1.0 + wider)
    return Outcome(words, gain, gain / wide, gain * wide, after, bottleneck(new, after))


def _best(answer: Answer, lag: bool, untried: bool) -> Prediction:
    """The best placement for an answer's stages, within the limits in which it was searched.

    Args:
        untried: actor processes could not be of use where it was measured.
    """
    measured = {_where(p.placement) for p in (*answer.predictions, *answer.lagged)}
    kinds = {p.placement.collects for p in answer.predictions}

    def fits(placement: Placement) -> bool:
        possible = placement.collects in kinds or (untried and placement.in_processes)
        return possible and _where(placement) in measured

    found = candidates(answer.stages, answer.base, Allowed(lag=lag, fits=fits))
    known = answer.known
    return choose([predict(answer.stages, p, known=p.collects in known) for p in found])


def _where(placement: Placement) -> tuple[object, ...]:
    """The parts of a placement on which its memory depends."""
    program = placement.steps_on_device, placement.fused
    return placement.act, placement.learn, placement.replay, program


def bottleneck(stages: Stages, prediction: Prediction) -> str:
    """Return the bottleneck of a placement in a few words."""
    placement = prediction.placement
    if placement.steps_on_device:
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
