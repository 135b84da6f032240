"""Where a run's time goes: its recording, what the machine does now, and the closing verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flatout.config.schema import TrainConfig
from flatout.envs.source import EnvSource
from flatout.errors import FlatoutError
from flatout.explain.rules import bottleneck
from flatout.explain.runs import Evidence, closing, diagnose_evidence, recent_phases
from flatout.hardware.inventory import Hardware
from flatout.planning.kept import this_machine
from flatout.run.auto import recalled
from flatout.run.build import Components
from flatout.run.progress import Progress
from flatout.run.recording import RunRecording
from flatout.spans import RunClock, Spans
from flatout.storage.span_records import MAIN, PLAN, Begin
from flatout.types import NAMED, UserCode
from flatout_explain.hardware.monitor import MonitorSample, Sampler
from flatout_explain.report import percent


def start_recording(
    config: TrainConfig, components: Components, progress: Progress, spans: Spans, clock: RunClock,
    wall: Callable[[], float], folder: Path | None, sample_devices: bool,
    sampler: Sampler | None = None,
) -> RunRecording:  # fmt: skip
    """Record from now on where the run's time goes.

    Args:
        sampler: samples the devices for several runs; None makes one for this run alone.
    """
    schedule, hardware = components.schedule, components.hardware
    recording = RunRecording(
        spans, lanes=schedule.work, wall=wall, folder=folder, kept_s=progress.wall_s,
        cores=hardware.cores, devices=sample_devices, sampler=sampler,
        waited=lambda: schedule.stats().get("sampler_wait_s", 0.0),
    )  # fmt: skip
    cards = ", ".join(gpu.name for gpu in hardware.gpus) or "no GPU"
    times = clock.times()
    begin = Begin(
        t=round(wall(), 3),
        startup_s=round(times.startup_s, 3),
        compile_s=round(times.compile_s, 3),
        plan_s=round(spans.seconds(PLAN), 3),
        cores=hardware.cores,
        envs=config.env.envs,
        placement=str(components.placement),
        machine=f"{hardware.cpu_name}, {hardware.cores} cores, {cards}",
        gpus=tuple(gpu.name for gpu in hardware.usable_gpus),
        images=shows_images(config.flat()),
    )
    recording.begin(begin, progress.counts)
    return recording


def current_load(recording: RunRecording, components: Components) -> tuple[float, str]:
    """Return the steps per second of the last seconds, and `load_words` of the machine in that
    time."""
    recent = recording.recent
    mains = [record for record in recent if record.lane == MAIN]
    outside = sum(record.spans.get(name, 0.0) for record in mains for name in ("compile", PLAN))
    seconds = sum(record.d for record in mains) - outside
    now = bottleneck(recent_phases(recent, components.placement))
    words = load_words(recording.sample, components.hardware.cores, *now)
    return sum(record.steps for record in mains) / max(seconds, 1e-9), words


def load_words(sample: MonitorSample | None, cores: int, cause: str, share: float) -> str:
    """Return CPU and GPU use, and the cause with the largest share of the time, on one line."""
    words: list[str] = []
    if sample is not None:
        words.append(f"cpu {percent(sample.cpu)} of {cores} {'core' if cores == 1 else 'cores'}")
    for number, gpu in enumerate(() if sample is None else sample.gpus):
        if gpu.busy is not None:
            filled = "" if gpu.full is None else f" ({percent(gpu.full)} full)"
            words.append(f"gpu:{number} busy {percent(gpu.busy)}{filled}")
    if cause:
        words.append(f"now {cause}, {percent(share)} of the time")
    return "   ".join(words)


def closing_verdict(
    recording: RunRecording, config: TrainConfig, folder: Path | None, hardware: Hardware,
    code: UserCode,
) -> dict[str, Any]:  # fmt: skip
    """Return the run's diagnosis for its summary, with gains that planning measured on this
    machine."""
    try:
        evidence = Evidence(
            "this run" if folder is None else str(folder), config, recording.lines(),
            recording.samples(), ended=True, machine=this_machine(),
            plan=recalled(config, hardware) if code == NAMED else None,
        )  # fmt: skip
        return closing(diagnose_evidence(evidence))
    except FlatoutError:  # no iteration was made, or its files are too large to be read
        return closing(None)


def shows_images(settings: Mapping[str, Any]) -> bool:
    """Return whether the settings of a run say that its observations are images."""
    pixels = settings.get("network") in ("nature", "nature_same")
    prepared = bool(settings.get("grayscale")) or settings.get("resize") is not None
    return pixels or prepared or EnvSource(str(settings.get("env", ""))).atari
