"""The resolution of a run: from settings to all that is decided before its parts are made.

`resolve_run` is the one place where placement, devices and the environment of a run are decided, in
this order: virtual devices, the machine, a placement that was measured here before, the
environment, where it steps, the placement on this machine, its workers, and JAX's start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace

from flatout.config.placement import (
    DeviceName,
    Placement,
    cards_in,
    moved,
    on_cards,
    on_device,
    parse,
)
from flatout.config.placement_checks import (
    refuse_cluster_settings,
    refuse_shards,
    refuse_unavailable,
)
from flatout.config.schema import TrainConfig
from flatout.config.workers import with_workers
from flatout.engine.programs import Programs
from flatout.envs.check import making, refuse, undisturbed
from flatout.envs.device.base import DeviceEnv
from flatout.envs.goals import refuse_without_goals
from flatout.envs.task import Task
from flatout.errors import UsageError
from flatout.hardware import backend
from flatout.hardware.inventory import Hardware, inventory, resolve_placement
from flatout.planning.predict import Prediction
from flatout.run.auto import plannable, recall, with_placement
from flatout.run.opening import backends, member_devices, open_environment
from flatout.types import NAMED, UserCode, has_images

Announce = Callable[[str], None]
"""A function that receives sentences for the user as they become known."""


def silent(note: str) -> None:
    """Announce nothing."""


@dataclass(frozen=True)
class ResolvedRun:
    """A run whose devices are started; see `resolve_run`.

    Attributes:
        config: the settings, with the placement that was measured here before if there is one.
        placement: the device and process of each part, with workers.
        hardware: the machine as it was when the placement was decided.
        task: the environment, open; None for classification.
        env: one environment, if environments step on the device.
        code: the user's objects and functions.
        notes: sentences for the user; more may come while the run is assembled.
        expected: the prediction by which the placement was chosen, if it was.
        shared: the learning devices that the members of a population take in turn; empty if each
            member has all devices of the placement.
    """

    config: TrainConfig
    placement: Placement
    hardware: Hardware
    task: Task | None = None
    env: DeviceEnv | None = None
    code: UserCode = NAMED
    notes: list[str] = field(default_factory=list[str])
    expected: Prediction | None = None
    shared: tuple[DeviceName, ...] = ()

    def close(self) -> None:
        """Close the environment."""
        if self.task is not None:
            self.task.close()


def resolve_run(
    config: TrainConfig,
    code: UserCode = NAMED,
    announce: Announce = silent,
    *,
    programs: Programs | None = None,
    checks: bool = True,
    members: bool = False,
) -> ResolvedRun:
    """Decide where a run's parts will be, open its environment and start JAX's devices.

    Args:
        code: the user's objects and functions.
        programs: that other runs of this shape have compiled. A population has placed its members
            before; any other run takes a placement that was measured here before.
        checks: check the environment's first observations, and announce what is found.
        members: the run is a population's, whose members may share several devices: JAX starts all
            of them, and the placement is that of the first member.

    Raises:
        UsageError, FlatoutError: what cannot be done, before anything large is allocated.
    """
    backend.show_virtual_devices(config.run.virtual_devices)
    hardware, expected = inventory(), None
    compiled = config.env.backend_open or config.env.backend_device
    placed = members or (programs is not None and programs.place(compiled))
    if not placed and plannable(config):
        config, expected = _recalled(config, hardware, code, announce)
    refuse_cluster_settings(config.run, planned=not placed and plannable(config))
    if not config.hyper.acts:
        placement, _, notes = _placement(config, hardware, None, None, False)
        _announced(notes, announce)
        return ResolvedRun(config, placement, hardware, code=code, notes=notes, expected=expected)
    patience = config.run.worker_timeout

    def opened(in_info: bool | None) -> Task:
        with making(config.env.env, patience) if checks else nullcontext():
            task = open_environment(config, code, members, hardware, in_info)
        undo.callback(task.close)
        return task

    with undisturbed() if checks else nullcontext(), ExitStack() as undo:
        task = opened(False if checks else None)
        if getattr(config.hyper, "hindsight", 0):
            refuse_without_goals(task, task.first)
        task.refuse_spares()
        env = _device_env(config, task)
        placement, shared, notes = _placement(config, hardware, task, env, members)
        _announced(notes, announce)
        if checks:
            _announced(task.notes, announce)
            if env is None and refuse(task, config.run.seed, patience):
                task = opened(in_info=True)
                refuse(task, config.run.seed, patience)
        undo.pop_all()
    notes = [*notes, *task.notes]
    return ResolvedRun(config, placement, hardware, task, env, code, notes, expected, shared)


def _announced(notes: Sequence[str], announce: Announce) -> None:
    for note in notes:
        announce(note)


def _recalled(
    config: TrainConfig, hardware: Hardware, code: UserCode, announce: Announce
) -> tuple[TrainConfig, Prediction | None]:
    """Return the settings with the placement that was measured here before, and its prediction."""
    found, note = recall(config, hardware, code)
    if note:
        announce(note)
    if found is None:
        return config, None
    # It was measured on a GPU that may not be the freest one now.
    text = str(found.chosen.placement)
    cards = [gpu.index for gpu in hardware.freest()]
    text = on_cards(text, dict(zip(cards_in(text), cards, strict=False)))
    return with_placement(config, parse(text)), found.chosen


def _device_env(config: TrainConfig, task: Task) -> DeviceEnv | None:
    """Return the environment that a device steps, if the settings ask for that.

    Raises:
        UsageError: it has no twin, or the settings contradict each other.
    """
    placed = config.run.placed
    named = placed is not None and placed.steps_on_device
    if not backends(config, task)[1]:
        if named:
            raise UsageError("--env-backend host does not go with sampler=device.")
        return None
    if not named and not config.run.leaves_sampler:
        raise UsageError(
            f"--env-backend {config.env.env_backend} needs sampler=device in --placement "
            f"'{config.run.placement.strip()}'."
        )
    return task.on_device()


def _placement(
    config: TrainConfig, hardware: Hardware, task: Task | None, env: DeviceEnv | None, members: bool
) -> tuple[Placement, tuple[DeviceName, ...], list[str]]:
    """Decide the placement on this machine and start JAX there; return it, the devices that members
    share, and sentences for the user."""
    run, text = config.run, config.run.placement
    images = task is None or has_images(task.obs_spec)
    if env is not None and run.placed is None and hardware.usable_gpus:
        text = "gpu"
    placement, notes = resolve_placement(
        text, hardware, images=images, soft=run.soft_placement, devices=run.devices
    )
    if env is not None and not placement.steps_on_device:
        placement = on_device(placement)
        automatic = config.env.backend_open and task is not None and task.source.has_twin
        twin = f" ({config.env.env} has a proven twin)" if automatic else ""
        notes.append(f"environments on the device{twin}: {placement}")
    shared: tuple[DeviceName, ...] = ()
    if members:
        shared = member_devices(config, placement, hardware)
        backend.start(replace(placement, learn=shared or placement.learn))  # all of them at once
        placement = moved(placement, shared[0]) if shared else placement
    refuse_unavailable(placement)
    refuse_shards(placement, run.shards)
    if config.hyper.only_serial and placement.overlapped:
        raise UsageError(f"{config.algorithm} needs schedule=serial: {config.hyper.only_serial}.")
    placement = with_workers(placement, config.env.envs, hardware.cores)
    if hardware.unused_gpu_warning:
        notes.append(hardware.unused_gpu_warning)
    notes += backend.start(placement)
    starts = getattr(config.hyper, "learning_starts", 0)
    if starts >= run.steps:
        notes.append(
            f"nothing will be learned: learning_starts is {starts:,}, and the run has only "
            f"{run.steps:,} steps"
        )
    return placement, shared, notes
