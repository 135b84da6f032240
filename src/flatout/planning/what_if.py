"""Answers about other machines and environments, from stages that were measured here. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flatout.config.placement import Placement
from flatout.errors import UsageError, nearest
from flatout.planning.answer import Answer
from flatout.planning.hosts import ASSUMED, Network, alike
from flatout.planning.limits import LIMITS, refusal
from flatout.planning.plan import Allowed, bottleneck, candidates, choose, worker_counts
from flatout.planning.predict import Prediction, predict
from flatout.planning.stages import Stages

MEASURED_ANEW = {"batch": "batch_size", "hidden": "hidden"}
"""Questions that other settings answer, whose stages have to be measured: the setting's name."""

SPARES = "spare-envs"
"""The question about resets in the background, named as the setting."""

KEYS = ("cores", "hosts", "gpus", "gpu", "env-speed", SPARES, *MEASURED_ANEW)

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
        numbers = key in ("cores", "hosts", "gpus")
        if numbers and not (re.fullmatch(r"\d{1,4}", value) and 1 <= int(value) <= MOST_CORES):
            raise UsageError(f"--what-if {word}: {key} is a whole number from 1 to {MOST_CORES}.")
        if key == "batch" and not re.fullmatch(r"[1-9]\d{0,8}", value):
            raise UsageError(f"--what-if {word}: {key} is a whole number from 1 on.")
        if key == "hidden" and not re.fullmatch(r"\d{1,6}(,\d{1,6})*", value):
            raise UsageError(f"--what-if {word}: write widths, such as hidden=512,512.")
        if key == "env-speed" and not 0.0 < speed(value) < 1e6:
            raise UsageError(f"--what-if {word}: write how many times as fast, such as 10x.")
        if key == SPARES and value not in ("all", "0"):
            raise UsageError(f"--what-if {word}: write {SPARES}=all or {SPARES}=0.")
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
    if change.key == "hosts" and not stages.act:
        raise UsageError(
            f"--what-if {change}: these environments step in a compiled program, not in workers; "
            "leave --env-backend out to ask about steps on the host."
        )
    if change.key != SPARES:
        return
    if not stages.act:
        raise UsageError(
            f"--what-if {change}: these environments step in a compiled program, in which a reset "
            "is a part of the step."
        )
    if not stages.resets.mean_s:
        raise UsageError(
            f"--what-if {change}: no reset was timed when this run was measured: no episode ended, "
            "or the environments are reset within the steps of a vector of their own."
        )


def changed(
    stages: Stages, changes: Sequence[Change], network: Network = ASSUMED
) -> tuple[Stages, float]:
    """The stages of that machine, and the factor by which intervals become wider.

    Args:
        network: between machines, for ``hosts=``.
    """
    wider = 0.0
    for change in changes:
        if change.key == "cores":
            cores = int(change.value)
            wider += PER_DOUBLING * max(math.log2(cores / stages.at_once), 0.0)
            # The speed of a core while all work is taken to stay: never extrapolated linearly.
            stages = replace(stages, cores=cores, running=None)
        elif change.key == "hosts":
            count = int(change.value)
            network = network if stages.hosts is None else stages.hosts.network
            wider += PER_DOUBLING * math.log2(count)
            hosts = alike(count, max(int(stages.at_once), 1), network)
            stages = replace(stages, hosts=hosts)
        elif change.key == "env-speed":
            stages = stages.faster_envs(speed(change.value))
        elif change.key == SPARES:
            resets = replace(stages.resets, spares=change.value == "all")
            stages = replace(stages, resets=resets)
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
    notes: tuple[str, ...] = ()


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
    resets = new.resets.spares or not old.resets.spares
    if (
        new.at_once >= old.at_once and new.env_s <= old.env_s and new.learn == old.learn and resets
    ):  # fmt: skip
        gain = max(gain, 1.0)  # nothing became slower
    wide = (after.high / after.rate) * (1.0 + wider)
    notes = () if new.hosts == old.hosts else _hosts_notes(now, then, before.rate, lag, untried)
    held, _ = bottleneck(new, after.placement)
    return Outcome(words, gain, gain / wide, gain * wide, after, held, notes)


def _hosts_notes(
    now: Answer, then: Answer, before: float, lag: bool, untried: bool
) -> tuple[str, ...]:
    """Return what more and more machines gain, which limit that meets, and what it assumes."""
    stages, hosts = then.stages, then.stages.hosts
    assert hosts is not None
    most = len(hosts.machines)
    useful = next(n for n in range(1, most + 1) if n == most or hosts.first(n).cores >= stages.envs)
    gains, held, since = list[str](), "", 1
    best = _best(then, lag, untried)
    for count in sorted({*(1 << n for n in range(useful.bit_length())), useful}):
        fewer = replace(stages, hosts=hosts.first(count))
        best = _best(replace(then, stages=fewer), lag, untried)
        gains.append(f"{best.rate / before:.2f} times with {_hosts(count)}")
        limit, _ = bottleneck(fewer, best.placement)
        if limit != held:
            held, since = limit, count
    notes = [
        ", ".join(gains),
        f"{LIMITS.get(held, f'{held} is the limit')} from {_hosts(since)} on",
    ]
    if useful < most:
        notes.append(
            f"{stages.envs} environments have work for {_hosts(useful)} with "
            f"{hosts.machines[0].cores} cores; more hosts need more --envs, which changes what is "
            "learned"
        )
    if not best.placement.on_cluster:
        here = [predict(stages, p.placement) for p in now.predictions]
        refused = refusal(stages, [*here, _best(then, True, untried)])
        notes.append(refused or "no placement with sampler=cluster is faster than on one machine")
    return (*notes, hosts.network.words())


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"


def _best(answer: Answer, lag: bool, untried: bool) -> Prediction:
    """The best placement for an answer's stages, within the limits in which it was searched.

    Args:
        untried: actor processes could not be of use where it was measured.
    """
    measured = {_where(p.placement) for p in (*answer.predictions, *answer.lagged)}
    kinds = {p.placement.collects for p in answer.predictions}

    def fits(placement: Placement) -> bool:
        possible = placement.on_cluster or placement.collects in kinds
        possible = possible or (untried and placement.in_processes)
        return possible and _where(placement) in measured

    found = candidates(answer.stages, answer.base, Allowed(lag=lag, fits=fits))
    known = answer.known
    return choose([predict(answer.stages, p, known=p.collects in known) for p in found])


def _where(placement: Placement) -> tuple[object, ...]:
    """The parts of a placement on which its memory depends."""
    program = placement.steps_on_device, placement.fused
    return placement.act, placement.learn, placement.replay, program
