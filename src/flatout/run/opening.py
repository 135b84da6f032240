"""Open a run's environment, with JAX started first where looking at the environment starts it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from flatout.config.actions import UNSCALED, unsuited_range
from flatout.config.placement import DeviceName, Placement
from flatout.config.schema import TrainConfig
from flatout.envs.source import EnvSource
from flatout.envs.task import Task, open_task
from flatout.errors import UsageError
from flatout.hardware import backend
from flatout.hardware.inventory import Hardware, inventory, resolve_placement
from flatout.types import NAMED, UserCode


def backends(config: TrainConfig, task: Task) -> tuple[bool, bool]:
    """Return whether the settings allow environments to step on the host, and on a device.

    Both are true with ``--env-backend auto`` and a proven twin; the faster is taken then. An
    environment written in JAX steps on the host only if the settings say so.
    """
    placed, device = config.run.placed, config.env.backend_device
    if config.env.backend_open:
        return task.device is None, task.compiles
    if config.env.env_backend is None:
        device = task.device is not None if placed is None else placed.steps_on_device
    return not device, device


def member_devices(
    config: TrainConfig, placement: Placement, hardware: Hardware
) -> tuple[DeviceName, ...]:
    """Return the learning devices that members of a population share, one device per member; empty
    if every member has all devices of its placement.

    They are the devices that the user names, if a member has one shard. If no devices are named,
    they are all GPUs of the kind that the rule chooses.

    Args:
        placement: the settings' placement on this machine.
    """
    first, *others = placement.learn
    if others:
        return placement.learn if config.run.shards == 1 else ()
    if not config.run.chosen_here:
        return ()
    names = {DeviceName("gpu", gpu.index): gpu.name for gpu in hardware.usable_gpus}
    alike = tuple(device for device, name in names.items() if name == names.get(first))
    return alike if len(alike) > 1 else ()


def other_environment(
    config: TrainConfig, code: UserCode, env: tuple[str | None, Any], task: Task
) -> Task:
    """Open another environment, whose spaces are those of a task.

    Args:
        config, code: the settings and the objects of the task's run.
        env: its name, and the object or function behind it.

    Raises:
        UsageError: it has other spaces. Also raises as `open_environment`.
    """
    name, source = env
    config = replace(config, env=replace(config.env, env=name or ""))
    other = open_environment(config, replace(code, env=source))
    if other.spaces[:2] != task.spaces[:2]:
        other.close()
        raise UsageError(f"{other.name} has other spaces than {task.name}.")
    return other


def open_environment(
    config: TrainConfig, code: UserCode = NAMED, members: bool = False,
    hardware: Hardware | None = None, in_info: bool | None = None,
) -> Task:  # fmt: skip
    """Open a run's environment; see `open_task`.

    gymnax and similar libraries create arrays when they are imported, which opens JAX's devices, so
    the placement's devices are chosen before. With placement auto they include a GPU if there is
    one, because the observations are not known yet.

    Args:
        members: whether it is a population, whose members share devices (`member_devices`).
        hardware: the machine, by which the run's GPUs are chosen; by default in its present state.
        in_info: see `open_task`.

    Raises:
        UsageError: as `open_task`, or a device of the placement is missing.
    """
    source = EnvSource.of(config.env, code.env)
    if source.library:
        run, hardware = config.run, hardware or inventory()
        placement, _ = resolve_placement(
            run.placement, hardware, images=True, soft=True, devices=run.devices
        )
        devices = member_devices(config, placement, hardware) if members else ()
        backend.start(replace(placement, learn=devices or placement.learn))
    task = open_task(config.env, source, in_info)
    deviation = math.exp(getattr(config.hyper, "log_std_init", 0.0))
    if config.algorithm in UNSCALED and (why := unsuited_range(task.action_spec, deviation)):
        task.notes = (*task.notes, f"{task.name}: {why}")
    return task
