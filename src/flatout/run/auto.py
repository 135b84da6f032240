"""``--placement auto``: the question that a run asks, and the answers of earlier measurements."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatout.config.placement import CPU, DeviceName, Placement
from flatout.config.placement_checks import refuse_unavailable
from flatout.config.schema import (
    CLUSTER_SETTINGS,
    LENGTH,
    REPORT,
    SPEED,
    RunConfig,
    TrainConfig,
    affecting,
)
from flatout.config.workers import with_workers
from flatout.errors import FlatoutError, UsageError
from flatout.hardware.inventory import Hardware
from flatout.planning.answer import Answer, Question
from flatout.planning.machine import keep_machine
from flatout.types import NAMED, UserCode
from flatout_explain.files import nofollow
from flatout_explain.files.kept_numbers import plans

PACKAGES = ("flatout", "jax", "jaxlib", "numpy", "gymnasium", "ale_py")

UNIMPORTANT = (affecting(SPEED, LENGTH, REPORT) | {"reduce", "seed"}) - {"spare_envs"}
"""Settings that do not change the cost of any part of a run."""

MOST_BYTES = 1 << 20


def question(
    config: TrainConfig, base: Placement, hardware: Hardware, budget_s: float,
    lengths: Sequence[int] = (),
) -> Question:  # fmt: skip
    """Return the question that planning is asked about a run on this machine's devices.

    Args:
        base: the rule's placement.
        lengths: steps of its latest episodes.
    """
    base = with_workers(base, config.env.envs, hardware.cores)
    length = sum(lengths) / len(lengths) if lengths else 0.0
    gpus = base.gpus or [DeviceName("gpu", gpu.index) for gpu in hardware.freest()]
    return Question(
        config, base, budget_s, config.run.allow_lag, devices=(CPU, *gpus[:1]), length=length
    )


def plannable(config: TrainConfig) -> bool:
    """Return whether a run's placement is to be chosen by measuring."""
    run = config.run
    return run.chosen_here and run.virtual_devices is None and config.hyper.acts


def key(config: TrainConfig, hardware: Hardware, without: Iterable[str] = ()) -> str:
    """Return the key under which a plan is saved: machine, versions, settings (except those in
    `without`), and the environment's own code."""
    left_out = {*UNIMPORTANT, *without}
    settings = {name: v for name, v in config.flat().items() if name not in left_out}
    versions: dict[str, str] = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    gpus = [[gpu.name, gpu.memory_total_mb] for gpu in hardware.usable_gpus]
    machine = [hardware.cpu_name, hardware.cores, hardware.memory_total_mb, gpus]
    sources = [_source(name) for name in (config.env.env, config.algorithm)]
    text = json.dumps([machine, versions, settings, sources], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def plan_file(config: TrainConfig, hardware: Hardware) -> Path:
    """Return the file in which the plan of a run is saved, named by `key` and by the devices that
    the settings name."""
    run, name = config.run, key(config, hardware)
    if not run.chosen_here or run.virtual_devices is not None:
        named = [run.placement.strip(), run.devices, run.virtual_devices]
        name = hashlib.sha256(json.dumps([name, named]).encode()).hexdigest()[:32]
    return plans() / f"{name}.json"


def _source(name: str) -> Any:
    """Return where the code behind ``module:factory`` is, and when it was changed."""
    module, separator, _ = name.partition(":")
    if not separator:
        return None
    with suppress(ImportError, ValueError, AttributeError, OSError):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            stat = Path(spec.origin).stat()
            return [spec.origin, stat.st_mtime_ns, stat.st_size]
    return [name, time.time_ns()]  # never found again


def recall(config: TrainConfig, hardware: Hardware, code: UserCode) -> tuple[Answer | None, str]:
    """Return the plan that was made on this machine for this run before, and a sentence about
    it."""
    if code != NAMED or config.run.remeasure:  # an object has no name to find it again by
        return None, ""
    if config.run.ray_address is not None:  # machines of a cluster come and go
        return None, ""
    path = plan_file(config, hardware)
    try:
        found = Answer.from_json(nofollow.read_json(path, 1, MOST_BYTES))
        placement = found.chosen.placement
        refuse_unavailable(placement)
        if with_workers(placement, config.env.envs, hardware.cores) != placement:
            raise UsageError("its placement does not fit this run")
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, FlatoutError) as error:
        return None, f"the plan in {path} cannot be used ({error}); the rule is followed"
    return found, f"placement auto, measured here before: {found.words()}"


def recalled(config: TrainConfig, hardware: Hardware) -> Answer | None:
    """Return planning's earlier measurements of a running or finished run on this machine, if
    any."""
    found = (recall(asked, hardware, NAMED)[0] for asked in asked_about(config))
    return next(filter(None, found), None)


def remember(config: TrainConfig, hardware: Hardware, code: UserCode, answer: Answer) -> None:
    """Save a plan for later runs with the same settings. A folder that cannot be written is no
    error."""
    if code != NAMED or not answer.complete or config.run.ray_address is not None:
        return
    with suppress(OSError):
        plans().mkdir(parents=True, exist_ok=True)
        path = plan_file(config, hardware)
        nofollow.replace(path, json.dumps(answer.as_json()).encode())
    keep_machine(answer.stages)


def asked_about(config: TrainConfig) -> list[TrainConfig]:
    """Return the settings under which planning may have been asked about a run that has begun: one
    for each ``env_backend`` that allows environments to step where they do."""
    device = (config.run.placed or Placement()).steps_on_device
    return [
        replace(
            config, env=replace(config.env, env_backend=backend),
            run=replace(config.run, placement="auto", remeasure=False),
        )
        for backend in ("auto", None, "device" if device else "host")
    ]  # fmt: skip


def with_placement(config: TrainConfig, placement: Placement) -> TrainConfig:
    """Return the settings with this placement. Environments stay where they stepped when the run
    began."""
    env = config.env
    if env.backend_open:
        env = replace(env, env_backend="device" if placement.steps_on_device else "host")
    run = replace(config.run, placement=str(placement), devices=None)  # which it names itself
    if not placement.on_cluster:
        default = RunConfig()
        run = replace(run, **{name: getattr(default, name) for name in CLUSTER_SETTINGS})
    return replace(config, env=env, run=run)
