"""Refuse placements that Flatout cannot run, and learn on a number of devices (for `run/`)."""

from __future__ import annotations

from dataclasses import replace

from flatout.config.placement import DeviceName, Placement, names
from flatout.config.schema import CLUSTER_SETTINGS, RunConfig
from flatout.errors import UsageError


def refuse_unavailable(placement: Placement) -> None:
    """Refuse combinations of values that Flatout cannot run.

    Raises:
        UsageError: the message names the key and a value that is possible.
    """
    if placement.replay == "gpu" and not placement.learn[0].is_gpu:
        raise UsageError(
            f"--placement: replay=gpu needs learn=gpu:0, but learn={names(placement.learn)}; "
            "replay=device keeps it in the learning device's memory, replay=cpu in the host's."
        )
    if placement.fused and placement.params_sharded:
        raise UsageError("--placement: schedule=fused does not support params=sharded.")
    if placement.acts_in_workers and not placement.in_processes:
        raise UsageError("--placement: inference=local needs sampler=processes.")
    if len(placement.act) > 1 and not (placement.in_processes or placement.fused):
        raise UsageError(
            f"--placement: act={names(placement.act)} names {len(placement.act)} devices, but in "
            f"this version one process acts on one; write act={placement.act[0]} or add "
            "sampler=processes."
        )
    if len({device.is_gpu for device in placement.learn}) > 1:
        raise UsageError(
            f"--placement: learn={names(placement.learn)} mixes kinds of devices; one program "
            "learns on GPUs or on CPU devices."
        )


def refuse_cluster_settings(run: RunConfig, planned: bool = False) -> None:
    """Refuse settings of workers on a Ray cluster for a run without such workers.

    Args:
        planned: whether the placement may be chosen while the run goes on: with a cluster's
            address, workers there are then candidates.

    Raises:
        UsageError: the message names the setting.
    """
    if run.placed is not None and run.placed.on_cluster:
        return
    if planned and run.ray_address is not None:
        return
    for name in CLUSTER_SETTINGS:
        if (value := getattr(run, name)) not in (None, False):
            flag = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value[:200]}")
            raise UsageError(
                f"{flag} is for workers on a Ray cluster, and --placement '{run.placement}' has "
                'none: add --placement "sampler=cluster workers=WORKERSxENVIRONMENTS", or leave '
                "it out."
            )


def with_devices(
    placement: Placement, text: str, devices: int | None, gpus: tuple[int, ...]
) -> Placement:
    """Return the placement with ``--devices K``: it learns on K GPUs, or CPU devices without GPUs.

    Args:
        text: the placement's text, which may not name learning devices itself.
        devices: K, or None to return the placement unchanged.
        gpus: numbers of the GPUs to use: K of them, or all if there are fewer.

    Raises:
        UsageError: the text names learning devices, or there are fewer than K GPUs.
    """
    if devices is None:
        return placement
    if "learn=" in text:
        raise UsageError(f"--devices {devices} and --placement '{text}' both say where to learn.")
    if gpus and devices > len(gpus):
        raise UsageError(f"--devices {devices}: this machine has {len(gpus)} usable GPUs.")
    kind, numbers = ("gpu", gpus) if gpus else ("cpu", range(devices))
    learn = tuple(DeviceName(kind, number) for number in numbers)
    return replace(placement, learn=learn)


def refuse_shards(placement: Placement, shards: int) -> None:
    """Refuse learning devices over which the shards do not divide evenly.

    Raises:
        UsageError: the message gives a possible number of shards.
    """
    count = len(placement.learn)
    if placement.params_sharded and count < 2:
        raise UsageError(
            "--placement: params=sharded divides parameters over several learning devices; name "
            "them (learn=gpu:0,gpu:1, or --devices 2) and pass --shards 2."
        )
    if shards % count:
        raise UsageError(
            f"learn={names(placement.learn)} are {count} devices, over which --shards {shards} "
            f"does not divide evenly: pass --shards {count} or a multiple. The number of shards "
            "changes what is learned, so Flatout never chooses it from the devices."
        )
