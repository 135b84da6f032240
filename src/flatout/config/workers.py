"""Which actor process steps which environments, and which device acts for them (for `run/`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flatout.config.placement import CPU, DeviceName, Placement
from flatout.errors import UsageError

GROUPS_PER_DEVICE = 2
"""Groups per acting device: one steps while the device computes the actions of the other."""


@dataclass(frozen=True)
class GroupSpec:
    """Environments that step together, and the device that acts for them.

    Attributes:
        device: the device that computes the actions.
        workers: ``(first environment, number of environments)`` of each process that steps some of
            them; with ``sampler=inline`` one pair, for this process.
        batch: the number of environments whose actions are computed in one call.
    """

    device: DeviceName
    workers: tuple[tuple[int, int], ...]
    batch: int

    @property
    def first(self) -> int:
        return self.workers[0][0]

    @property
    def count(self) -> int:
        return sum(count for _, count in self.workers)


def with_workers(placement: Placement, num_envs: int, cores: int) -> Placement:
    """Return the placement with its numbers of workers and groups filled in.

    The default number of workers is the largest divisor of `num_envs` that is at most `cores`. By
    default each acting device has at least two groups, if there are enough workers, so that one
    steps while another's actions are computed; with ``inference=local`` each worker is a group.

    Raises:
        UsageError: workers x environments differ from `num_envs`, or the groups do not fit.
    """
    if placement.groups is not None and num_envs % placement.groups:
        raise UsageError(
            f"--placement: groups={placement.groups} does not divide --envs {num_envs}."
        )
    if not placement.in_processes:
        return placement
    if placement.workers is None:
        most = min(max(cores, 1), num_envs)
        count = next(n for n in range(most, 0, -1) if num_envs % n == 0)
        return with_workers(replace(placement, workers=(count, num_envs // count)), num_envs, cores)
    count, each = placement.workers
    if count * each != num_envs:
        raise UsageError(
            f"--placement: workers={count}x{each} are {count * each} environments, but --envs is "
            f"{num_envs}; leave one of the two out, or make them agree."
        )
    local = placement.inference == "local"
    if placement.groups is None:
        return replace(placement, groups=count if local else _group_count(placement))
    batch = num_envs // placement.groups
    if each % batch and (local or batch % each):
        does = "acts for its" if local else "steps"
        raise UsageError(
            f"--placement: each of groups={placement.groups} has {batch} environments, but with "
            f"workers={count}x{each} each worker {does} {each}, and one number must divide the "
            f"other; write groups={count}, for example."
        )
    return placement


def _group_count(placement: Placement) -> int:
    """Return the number of groups of whole workers: at least two per acting device, if possible."""
    count, _ = placement.workers or (1, 0)
    least = min(count, GROUPS_PER_DEVICE * len(placement.act))
    return next(n for n in range(least, count + 1) if count % n == 0)


def assign_groups(placement: Placement, num_envs: int) -> list[list[GroupSpec]]:
    """Assign the environments to groups. The groups of one inner list act at the same time, each on
    its device; the inner lists take turns.

    With ``sampler=inline`` one group has all environments. With ``inference=local`` each worker has
    a group. Otherwise a group has the environments of one or more whole workers.
    """
    devices, batch = placement.act, num_envs // (placement.groups or 1)
    if placement.workers is None:
        return [[GroupSpec(devices[0], ((0, num_envs),), batch)]]
    workers, each = placement.workers
    slices = [(worker * each, each) for worker in range(workers)]
    if placement.inference == "local":
        return [[GroupSpec(CPU, (one,), batch) for one in slices]]
    # The number of workers per group.
    size = batch // each if batch >= each else workers // _group_count(placement)
    groups = [tuple(slices[at : at + size]) for at in range(0, workers, size)]
    group_rotation: list[list[GroupSpec]] = []
    for number, group in enumerate(groups):
        if number % len(devices) == 0:
            group_rotation.append([])
        group_rotation[-1].append(GroupSpec(devices[number % len(devices)], group, batch))
    return group_rotation
