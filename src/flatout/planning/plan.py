"""The search for a placement, and the choice. Pure.

A candidate never changes the mathematics: environments, batches and lag stay. The groups that act
together move a last bit and stand in the placement's text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flatout.config.placement import CPU, Placement, on_device, parse
from flatout.config.workers import assign_groups, with_workers
from flatout.errors import FlatoutError
from flatout.planning.limits import cluster_parts, host_counts, shorter_than_way
from flatout.planning.predict import (
    ACT,
    ENV,
    LEARN,
    RESETS,
    Prediction,
    in_program,
    predict,
    resets_in,
)
from flatout.planning.stages import Stages, at, learning_of, learns
from flatout.planning.workers import acting_s

SLEEPERS = 64
"""Most actor processes for environments that sleep: these need no core each."""

AS_GOOD = 0.015
"""Of candidates whose speeds differ by less the simplest is taken."""


@dataclass(frozen=True)
class Allowed:
    """The changes that the search may make.

    Attributes:
        processes: the environments can be made in other processes.
        overlap: the algorithm can collect while it learns.
        lag: so it may act with older parameters (``--allow-lag``).
        fits: whether a placement's memory fits the devices.
    """

    processes: bool = True
    overlap: bool = True
    lag: bool = False
    fits: Callable[[Placement], bool] = lambda placement: True


def candidates(stages: Stages, base: Placement, allowed: Allowed) -> list[Placement]:
    """Every placement whose stages were measured, each once, the base first.

    Args:
        base: what the search does not touch (memory caps, sharded parameters) is taken from it.
    """
    found = {
        str(p): p for p in _candidates(stages, base, allowed)
        if not shorter_than_way(stages, p) and allowed.fits(p)
    }  # fmt: skip
    return list(found.values())


def _candidates(stages: Stages, base: Placement, allowed: Allowed) -> Iterator[Placement]:
    schedules: list[dict[str, Any]] = [{"schedule": "serial", "lag": 0}]
    if allowed.lag and allowed.overlap:
        schedules.append({"schedule": "overlapped", "lag": 1})
    for act in sorted(stages.act):
        for key in stages.learn:
            where = learns(key)
            for collecting in _collecting(stages, act, allowed):
                for schedule in schedules:
                    changed = replace(base, act=parse(f"act={act}").act, **where, **schedule,
                                      **collecting)  # fmt: skip
                    yield with_workers(changed, stages.envs, stages.cores)
    for place in stages.rollout:
        there = on_device(replace(base, learn=parse(f"act={place}").learn))
        if place in stages.inside:
            yield there
        for key in stages.learn if place in stages.apart else ():
            where = learns(key)
            if where["learn"] == there.act:
                yield replace(there, schedule="serial", **where)


def _collecting(stages: Stages, act: str, allowed: Allowed) -> Iterator[dict[str, Any]]:
    yield {"sampler": "inline", "workers": None, "inference": "central", "groups": None}
    if not allowed.processes:
        return
    for count in worker_counts(stages):
        processes = {"sampler": "processes", "workers": (count, stages.envs // count),
                     "groups": None}  # fmt: skip
        yield processes | {"inference": "central"}
        # In one group the processes wait for each action, but act as one process does, to the bit.
        yield processes | {"inference": "central", "groups": 1}
        if act == str(CPU) and stages.local:
            yield processes | {"inference": "local"}
    for count in host_counts(stages) if act == str(CPU) else ():
        yield {"sampler": "cluster", "workers": (count, stages.envs // count), "groups": None,
               "inference": "local"}  # fmt: skip


def worker_counts(stages: Stages) -> list[int]:
    """Numbers of equal actor processes that can be of use."""
    most = stages.cores if stages.computing > 0.5 else max(stages.cores, SLEEPERS)
    return [n for n in range(2, min(most, stages.envs) + 1) if stages.envs % n == 0]


def ranked(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The fastest first, by measured speed where there is one."""
    return sorted(predictions, key=lambda p: -p.best_known)


def choose(predictions: Sequence[Prediction]) -> Prediction:
    """The fastest, or the simplest of those that are as good; measured ones if there are any.

    Raises:
        FlatoutError: there is none.
    """
    if not predictions:
        raise FlatoutError("no placement fits this machine.")
    verified = [p for p in predictions if p.measured is not None] or list(predictions)
    best = max(p.best_known for p in verified)
    good = [p for p in verified if p.best_known >= best * (1.0 - AS_GOOD)]
    return min(good, key=lambda p: (_complexity(p.placement), -p.best_known))


def _complexity(placement: Placement) -> tuple[int, ...]:
    count, _ = placement.workers or (0, 0)
    # One group acts as this process alone does: what it has trained stays valid to the bit.
    groups = placement.groups not in (None, 1)
    elsewhere = placement.replay_on_device, placement.acts_in_workers
    # One program is simplest; where it is allowed it is the rule, and runs begin with it.
    order = not placement.fused, not placement.steps_on_device
    return (
        placement.on_cluster,
        len(set(placement.devices)),
        *order,
        placement.lag,
        count,
        *elsewhere,
        groups,
    )


def larger(
    stages: Stages, base: Placement, allowed: Allowed, known: Sequence[str]
) -> tuple[int, Prediction] | None:
    """The fastest of 2, 4 and 8 times as many environments in iterations of as many steps, which
    changes what is learned; None where an iteration cannot be divided so."""
    best: tuple[int, Prediction] | None = None
    for factor in (2, 4, 8):
        if stages.horizon % factor:
            break
        more = replace(
            stages, envs=stages.envs * factor, horizon=stages.horizon // factor,
            spread=stages.spread + 0.05 * factor,  # acting in larger batches was not measured
            rollout={},  # how a program grows was not measured
        )  # fmt: skip
        for placement in candidates(more, base, allowed):
            found = predict(more, placement, known=placement.collects in known)
            if best is None or found.rate > best[1].rate:
                best = more.envs, found
    return best


def parts(stages: Stages, placement: Placement) -> dict[str, float]:
    """Return the seconds of the parts of an iteration, each alone.

    Raises:
        KeyError: a stage was not measured.
    """
    if placement.steps_on_device:
        return in_program(stages, placement)
    if placement.on_cluster and stages.hosts is not None:
        return cluster_parts(stages, placement)
    turns, each, way = stages.horizon, stages.envs, 0.0
    if placement.in_processes:
        _, each = placement.workers or (1, each)
    if placement.acts_in_workers:
        act, way = acting_s(stages, placement), stages.trajectory
    elif placement.in_processes:
        way = turns * stages.trip
        act = turns * sum(
            one.count // one.batch * at(stages.act[str(one.device)], one.batch)
            for groups in assign_groups(placement, stages.envs)
            for one in groups
        )
    else:
        count = placement.groups or 1
        act = turns * count * at(stages.act[str(placement.act[0])], each // count)
    # Environments that compute take turns on the cores.
    together = stages.computing * stages.envs / stages.at_once
    return {
        ENV: turns * stages.env_s * max(each / min(stages.lanes, each), together),
        RESETS: turns * resets_in(stages, placement).seconds,
        LEARN: stages.learn[learning_of(placement)],
        ACT: act,
        "the way to actor processes": way,
    }


def bottleneck(stages: Stages, placement: Placement) -> tuple[str, float]:
    """Return the largest part of an iteration in words, and its seconds."""
    found = parts(stages, placement)
    return max(found.items(), key=lambda part: part[1])


def why(chosen: Prediction, stages: Stages) -> str:
    """Return a sentence about the bottleneck of the chosen placement."""
    seconds = stages.steps / max(chosen.rate, 1e-12)
    largest, took = bottleneck(stages, chosen.placement)
    waits = chosen.waits
    idle = f"; the main process waits {100 * waits['main']:.0f} % of the time" if (
        waits.get("main", 0.0) > 0.05
    ) else ""  # fmt: skip
    return (
        f"of an iteration's {seconds:.3g} s, {largest} is the largest part: "
        f"{took:.3g} s alone{idle}"
    )
