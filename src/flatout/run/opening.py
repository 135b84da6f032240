"""Open a run's environment, with JAX started first where looking at the environment starts it."""

from __future__ import annotations

from flatout.config.schema import TrainConfig
from flatout.envs.device.make import in_library
from flatout.envs.task import Task, open_task
from flatout.hardware import backend
from flatout.hardware.inventory import inventory, resolve_placement
from flatout.types import NAMED, UserCode


def backends(config: TrainConfig, task: Task) -> tuple[bool, bool]:
    """Whether the settings let environments step on the host, and on a device.

    Both is ``--env-backend auto`` with a proven twin: the faster is to be taken. An environment
    written in JAX steps on the host only where that is asked for.
    """
    placement, backend = config.run.placement.strip(), config.env.env_backend
    if backend == "auto":
        return task.device is None, task.compiles
    device = backend == "device"
    if backend is None:
        automatic = task.device is not None and placement == "auto"
        device = automatic or "sampler=device" in placement
    return not device, device


def open_environment(config: TrainConfig, code: UserCode = NAMED) -> Task:
    """`open_task` with a run's settings.

    gymnax and the like make arrays when they are imported, which opens JAX's devices: the
    placement's are named before. With placement auto that is a GPU, if there is one, because
    nothing is known of the observations yet.

    Raises:
        UsageError: as `open_task`, or a device of the placement is missing.
    """
    if code.env is None and in_library(config.env.env):
        run = config.run
        placement, _ = resolve_placement(
            run.placement, inventory(), images=True, soft=True, devices=run.devices
        )
        backend.start(placement)
    return open_task(config.env, code.env)
