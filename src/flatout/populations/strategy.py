"""How the members of a population share the machine: chosen by measuring, within its memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from flatout.config.placement import Placement, parse
from flatout.config.schema import TrainConfig
from flatout.engine.members import FusedPopulation
from flatout.engine.memory import Expectation, available_mb
from flatout.engine.programs import Programs
from flatout.engine.schedule import Schedule
from flatout.errors import FlatoutError, UsageError
from flatout.hardware import backend
from flatout.hardware.inventory import Hardware, inventory
from flatout.populations.members import NAMES, SPREAD, TOGETHER, Strategy
from flatout.run.auto import with_placement
from flatout.run.build import assemble, foreseen
from flatout.run.job import shape_key
from flatout.run.probe_process import MeasuringError, Report, call, unheard
from flatout.run.resolve import resolve_run
from flatout.spans import Spans
from flatout_explain.files.kept_numbers import keep_number, numbers

FULL = 0.8
"""Share of the available memory that members may take: compiled programs take some, too."""

SHARE, MOST_S, LEAST_S = 0.05, 60.0, 10.0
"""Each part of measuring (compiling, the first update) may take this share of the expected time,
and at most this number of seconds. With fewer than the last no program gets to a first step: then
the rule is followed."""

FEW = 8
"""Most members with which one program is measured."""

LOOK_S, PATIENCE_S = 1.0, 5.0
"""Seconds of training that tell a speed, and how long a look waits for the first update."""


def choose(
    configs: Sequence[TrainConfig], asked: str, programs: Programs, before: Strategy | None = None
) -> Strategy:
    """The strategy for members of these settings; nothing is written but what was measured.

    Args:
        asked: one of `NAMES`, or ``auto``.
        programs: keeps what is compiled here.
        before: that a resumed population has begun with, and keeps: its members' bits depend on it.

    Raises:
        UsageError: an impossible strategy.
        FlatoutError: not even one member fits into memory.
    """
    if asked not in ("auto", *NAMES):
        raise UsageError(f"--strategy {asked[:100]} is neither auto nor {' nor '.join(NAMES)}.")
    if before is not None and asked not in ("auto", before.name):
        raise UsageError(f"--resume keeps --strategy {before.name}: {asked} has other bits.")
    config, count, hardware = configs[0], len(configs), inventory()
    try:
        placements, expected = foreseen(config)
    except UsageError:
        raise
    except FlatoutError as error:
        raise FlatoutError(f"not even one member of this population fits: {error}") from error
    placements = placements[:count]
    placement = placements[0]
    if placement.on_cluster:
        raise UsageError(
            "members of a population train in one process, which cannot share a Ray cluster among "
            "them: train them as a sweep (flatout sweep ... --seeds N --ray-address HOST:PORT), or "
            "with sampler=processes."
        )
    obstacle, wanted = _obstacle(config, placement), asked if before is None else before.name
    if wanted == TOGETHER and obstacle:
        raise UsageError(f"--strategy together is not possible: {obstacle}.")
    fit, memory = _fitting(placements, expected, hardware)
    on, key = len(placements), shape_key(config, hardware, placement)
    groups = on * -(-count // (on * (fit // on)))
    fit = min(fit, count)
    several = placements if on > 1 else ()
    if several:
        key = f"{key} on {on}"
        configs = [with_placement(one, placements[i % on]) for i, one in enumerate(configs)]
    if before is not None:
        name, why = before.name, "as it began"
    elif obstacle:
        name, why = SPREAD, obstacle
    elif asked == "auto":
        name, why = _automatic(configs, placements, hardware, fit, key, programs)
    else:
        name, why = asked, "as asked"
    size = min(fit, max(hardware.cores, on))
    if name == TOGETHER:
        size = -(-count // groups) if before is None else before.size
    return Strategy(name, size, f"{why}; {memory}", key, several)


def _obstacle(config: TrainConfig, placement: Placement) -> str:
    """Why one program cannot train members of this placement; empty where it can."""
    if not placement.fused:
        return (
            f"one program needs environments on the device (--env-backend device, "
            f"schedule=fused), and these members' placement is '{placement}'"
        )
    if config.run.shards > 1:
        return f"one program needs --shards 1, and these members have {config.run.shards} shards"
    return ""


def _fitting(
    placements: Sequence[Placement], expected: Expectation, hardware: Hardware
) -> tuple[int, str]:
    """How many members fit at the same time, at least one on each device, and the memory in
    words."""
    fits: list[tuple[int, str]] = []
    for placement in placements:
        for device, sizes in expected.by_memory(placement).items():
            free, capped = available_mb(device, placement, hardware)
            each = sum(sizes.values())
            on = 1  # all devices of a CPU share the host's memory
            if device.is_gpu:  # all on it share one context
                free, each = free - backend.CUDA_CONTEXT_MB, each - backend.CUDA_CONTEXT_MB
                on = len(placements)
            words = f"about {each:,.1f} MiB each of {free:,.0f} MiB on {device}{capped}"
            fits.append((max(on * int(FULL * free / max(each, 1e-3)), len(placements)), words))
    return min(fits)


def _automatic(
    configs: Sequence[TrainConfig], placements: Sequence[Placement], hardware: Hardware, fit: int,
    key: str, programs: Programs,
) -> tuple[str, str]:  # fmt: skip
    """The faster strategy and why, measured where that is worth its time."""
    config, count = configs[0], len(configs)
    if fit == 1:
        return SPREAD, "one at a time"
    announce: Callable[[str], None] = programs.announce or (lambda _: None)
    side = min(fit, max(hardware.cores, len(placements)))
    few = min(fit, FEW * len(placements))
    apart_key, together_key = f"{key} spread {side}", f"{key} together {few}"
    known = {} if config.run.remeasure else numbers()
    apart = known.get(apart_key, 0.0)
    if not apart:
        apart = speed(configs[:side], False, programs)
        keep_number(apart_key, apart)
    if (together := known.get(together_key)) is None:
        expected_s = count * config.run.steps / apart
        limit_s = min(SHARE * expected_s, MOST_S)
        if limit_s < LEAST_S:
            return TOGETHER, f"about {expected_s:,.0f} s of training, too short to measure"
        announce(f"measuring one program for all members; each part of it may take {limit_s:.0f} s")
        try:
            speed_of = f"{__name__}:speed", (list(configs[:few]), True)
            together = float(call(*speed_of, limit_s, announce=announce))
            keep_number(together_key, together)
        except MeasuringError as stop:
            if stop.so_far is not None:
                together = float(stop.so_far)
            elif stop.slow:
                return TOGETHER, f"one program for all members was not measured: {stop}"
            else:
                announce(f"one program for all members counts as slower: {stop}")
                together = 0.0
                keep_number(together_key, together)
    one = f"{together:,.0f}" if together else "failed"
    name = TOGETHER if together > apart else SPREAD
    return name, f"steps/s measured here: together {one}, spread {apart:,.0f}"


def speed(
    configs: Sequence[TrainConfig], together: bool, programs: Programs | None = None,
    report: Report = unheard,
) -> float:  # fmt: skip
    """Steps per second that these members make side by side, in memory alone.

    Args:
        report: hears of each part of the measurement, and of the speed by then.

    Raises:
        FlatoutError: a member failed.
    """
    report("making the members")
    where = [config.run.placement for config in configs]  # programs are of one device
    shared = {text: Programs(several=True) for text in where}
    if programs is not None:
        shared[where[0]] = programs
    if len(shared) > 1:  # before JAX opens the first one's device alone
        backend.start(Placement(learn=tuple(parse(text).learn[0] for text in shared)))
    joints: dict[str, FusedPopulation] = {}
    if together:
        joints = {text: FusedPopulation(where.count(text)) for text in where}

    def one(number: int) -> float:
        own, joint = shared[where[number]], joints.get(where[number])
        if joint is not None:
            own = Programs(joint, number, several=True)
        try:
            run = resolve_run(configs[number], programs=own)
            with closing(assemble(run, Spans(), programs=own)) as made:
                made.schedule.start()
                report("compiling")

                def begins(stage: str, so_far: float | None = None) -> None:
                    if not number:  # all members make the same progress
                        report(stage, None if so_far is None else so_far * len(configs))

                return _steady(made.schedule, configs[number].run.steps, begins)
        finally:
            if joint is not None:
                joint.leave(number)

    with ThreadPoolExecutor(len(configs)) as threads:
        return sum(threads.map(one, range(len(configs))))


def _steady(schedule: Schedule, most: int, begins: Report) -> float:
    """Steps per second of the fastest piece, from the first update on where one comes soon."""
    first = list(schedule.advance(1))  # one program for all is compiled here
    began, steps, updates = time.perf_counter(), 0, sum(metrics.updates for metrics in first)
    while not updates and steps < most and time.perf_counter() - began < PATIENCE_S:
        begins("waiting for the first update")
        for metrics in schedule.advance(1):
            steps, updates = steps + metrics.steps, metrics.updates
    began, now, best, steps, count = time.perf_counter(), 0.0, 0.0, 0, 1
    while now < LOOK_S and steps < most:
        begins("training all members", best if steps else None)
        piece = sum(metrics.steps for metrics in schedule.advance(count))
        before, now = now, time.perf_counter() - began
        best, steps, count = max(best, piece / (now - before)), steps + piece, 2 * count
    return best
