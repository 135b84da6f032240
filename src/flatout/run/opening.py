"""Open a run's environment, with JAX started first where looking at the environment starts it."""

from __future__ import annotations

from flatout.config.schema import TrainConfig
from flatout.envs.device.make import in_library
from flatout.envs.task import Task, open_task
from flatout.hardware import backend
from flatout.hardware.inventory import inventory, resolve_placement
from flatout.types import NAMED, UserCode


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
