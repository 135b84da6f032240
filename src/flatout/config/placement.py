"""A placement: where each component of a run lives, as plain data with a one-line text form.

The text is the value of ``--placement``; `run/` makes the components that a placement describes.

cpu · gpu · cpu+gpu (act on CPU, learn on GPU) · auto
act=cpu learn=gpu:0 replay=cpu sampler=inline schedule=serial memory=0.5
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast, get_args, get_type_hints

from flatout.errors import UsageError, nearest

_SHORT_FORMS = {"cpu": "act=cpu", "gpu": "act=gpu", "cpu+gpu": "act=cpu learn=gpu"}
_ANY_GPU = re.compile(r"(?<=[=,])gpu(?=[,\s]|$)")
_NUMBERED_GPU = re.compile(r"(?<=[=,])gpu:(\d{1,4})(?=[,\s]|$)")
_DEVICE = re.compile(r"(cpu|gpu)(?::(\d{1,4}))?")


@dataclass(frozen=True, order=True)
class DeviceName:
    """A device's kind and its number in this process (after ``CUDA_VISIBLE_DEVICES``)."""

    kind: Literal["cpu", "gpu"]
    index: int = 0

    @property
    def is_gpu(self) -> bool:
        return self.kind == "gpu"

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" and self.index == 0 else f"{self.kind}:{self.index}"


CPU = DeviceName("cpu")


@dataclass(frozen=True)
class Placement:
    """Where acting, learning, replay and the environments live, and how they take turns.

    Attributes:
        act: devices that choose actions.
        learn: devices that learn.
        replay: memory of the replay buffer: the host's (``cpu``), the learning device's
            (``device``), or the same but only if that device is a GPU (``gpu``).
        sampler: environments step in this process (``inline``), in worker processes
            (``processes``), in workers on the machines of a Ray cluster (``cluster``), or in a
            compiled program (``device``).
        workers: number of worker processes and of environments in each, or None.
        inference: actions are chosen in this process (``central``) or in the workers (``local``,
            as always on a cluster).
        groups: number of acting groups of equal size; one call chooses a group's actions. Only runs
            with equal groups are bit-equal, because the size of a matrix product changes its last
            bits. None: one group with ``sampler=inline``, otherwise see `workers.with_workers`.
        schedule: collecting and learning alternate (``serial``), run at the same time
            (``overlapped``), or are one compiled program (``fused``).
        lag: number of versions by which the acting parameters may be behind the newest.
        memory: fraction of each GPU's memory that the run may use; None sets no limit.
        params: parameters are ``replicated`` on each learning device or ``sharded`` over them.
    """

    act: tuple[DeviceName, ...] = (CPU,)
    learn: tuple[DeviceName, ...] = (CPU,)
    replay: Literal["cpu", "gpu", "device"] = "cpu"
    sampler: Literal["inline", "processes", "cluster", "device"] = "inline"
    workers: tuple[int, int] | None = None
    inference: Literal["central", "local"] = "central"
    groups: int | None = None
    schedule: Literal["serial", "overlapped", "fused"] = "serial"
    lag: int = 0
    memory: float | None = None
    params: Literal["replicated", "sharded"] = "replicated"

    @property
    def devices(self) -> tuple[DeviceName, ...]:
        """The devices of the placement without duplicates, CPU devices first."""
        named = {*self.act, *self.learn}
        if self.replay == "gpu" and not any(device.is_gpu for device in named):
            named.add(DeviceName("gpu"))
        return tuple(sorted(named))

    @property
    def gpus(self) -> tuple[DeviceName, ...]:
        """The GPUs of the placement without duplicates, in ascending order."""
        return tuple(device for device in self.devices if device.is_gpu)

    @property
    def replay_on_device(self) -> bool:
        """Whether the replay buffer is in the learning device's memory."""
        return self.replay != "cpu"

    @property
    def inline(self) -> bool:
        """Whether environments step in this process, in Python."""
        return self.sampler == "inline"

    @property
    def in_processes(self) -> bool:
        """Whether environments step in workers, on this machine or on a cluster."""
        return self.sampler == "processes" or self.on_cluster

    @property
    def on_cluster(self) -> bool:
        """Whether environments step in workers on the machines of a Ray cluster."""
        return self.sampler == "cluster"

    @property
    def steps_on_device(self) -> bool:
        """Whether environments step in a compiled program."""
        return self.sampler == "device"

    @property
    def acts_in_workers(self) -> bool:
        """Whether each worker process chooses its own actions."""
        return self.inference == "local"

    @property
    def collects(self) -> str:
        """How trajectories are collected: ``inline``, ``central``, ``local``, ``cluster`` or
        ``device``."""
        return self.inference if self.sampler == "processes" else self.sampler

    @property
    def overlapped(self) -> bool:
        """Whether collecting and learning run at the same time."""
        return self.schedule == "overlapped"

    @property
    def fused(self) -> bool:
        """Whether collecting and learning are one compiled program."""
        return self.schedule == "fused"

    @property
    def params_sharded(self) -> bool:
        """Whether parameters are divided over the learning devices."""
        return self.params == "sharded"

    def __str__(self) -> str:
        """Return the shortest text that `parse` reads back as this placement."""
        pairs = [f"act={_join(self.act)}"]
        if self.learn != self.act:
            pairs.append(f"learn={_join(self.learn)}")
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.name in ("act", "learn") or value == spec.default:
                continue
            if spec.name == "workers":
                value = f"{value[0]}x{value[1]}"
            pairs.append(f"{spec.name}={value}")
        if self.on_cluster:
            pairs.remove("inference=local")
        if self.overlapped and self.lag == 1:  # the default of an overlapped schedule
            pairs.remove("lag=1")
        if self.fused and self.replay == "device":
            pairs.remove("replay=device")
        text = " ".join(pairs)
        return next((word for word, meaning in _SHORT_FORMS.items() if meaning == text), text)


def cards_in(text: str) -> list[int]:
    """Return the GPU numbers in a placement's text, in ascending order without duplicates."""
    return sorted({int(number) for number in _NUMBERED_GPU.findall(text)})


def names_any_card(text: str) -> bool:
    """Return whether a placement's text acts or learns on a GPU without naming its number."""
    words = _SHORT_FORMS.get(text.strip(), text).split()
    return any(part.startswith(("act=", "learn=")) and _ANY_GPU.search(part) for part in words)


def on_card(text: str, card: int) -> str:
    """Return the text in which every GPU without a number has the number `card`."""
    words = _SHORT_FORMS.get(text.strip(), text)
    return " ".join(
        _ANY_GPU.sub(f"gpu:{card}", part) if part.startswith(("act=", "learn=")) else part
        for part in words.split()
    )


def on_cards(text: str, numbers: Mapping[int, int]) -> str:
    """Return the text with the GPU numbers replaced that are keys of `numbers` (old to new)."""
    return _NUMBERED_GPU.sub(lambda match: f"gpu:{numbers.get(int(match[1]), int(match[1]))}", text)


def parse_or_auto(text: str) -> Placement | None:
    """Return the placement that a text describes, or None for ``auto``; raises as `parse`."""
    return None if text.strip() == "auto" else parse(text)


KEYS = tuple(spec.name for spec in fields(Placement))
"""The keys of a placement's text."""
MOST_NAMED = 8
"""Maximum number of devices that a message lists one by one."""


def _join(devices: tuple[DeviceName, ...]) -> str:
    return ",".join(str(device) for device in devices)


def names(devices: Sequence[DeviceName], separator: str = ",") -> str:
    """Join devices for a message; of more than `MOST_NAMED`, list the first two and the last."""
    shown = [str(device) for device in devices]
    if len(shown) > MOST_NAMED:
        shown = [*shown[:2], "...", shown[-1]]
    return separator.join(shown)


def parse(text: str) -> Placement:
    """Return the placement that a text describes; ``auto`` must be resolved before.

    Raises:
        UsageError: an unknown word, key, device or value, or values that contradict each other.
    """
    text = text.strip()
    pairs: dict[str, str] = {}
    for part in _SHORT_FORMS.get(text, text).split():
        key, separator, value = part.partition("=")
        if not separator:
            words = [*_SHORT_FORMS, "auto"]
            raise UsageError(
                f"--placement: {part!r} is neither one of the words {', '.join(words)} nor "
                f"KEY=VALUE (for example 'act=cpu learn=gpu:0').{nearest(part, words)}"
            )
        if key not in KEYS:
            raise UsageError(
                f"--placement: unknown key {key!r}; the keys are {', '.join(KEYS)}."
                f"{nearest(key, KEYS)}"
            )
        if key in pairs:
            raise UsageError(f"--placement: {key!r} is given twice.")
        pairs[key] = value
    if not pairs:
        raise UsageError("--placement is empty; give cpu, gpu, cpu+gpu, auto or KEY=VALUE pairs.")
    pairs.setdefault("learn", pairs.get("act", "cpu"))
    placement = Placement(**{key: _parse_value(key, value) for key, value in pairs.items()})
    if placement.on_cluster:
        if pairs.get("inference") == "central":
            raise UsageError(
                "--placement: with sampler=cluster workers act where they step: with "
                "inference=central each step would cross the network twice; leave inference= out."
            )
        placement = replace(placement, inference="local")
    if placement.overlapped and "lag" not in pairs:
        placement = replace(placement, lag=1)
    if placement.overlapped and placement.lag < 1:
        raise UsageError("--placement: schedule=overlapped needs lag of at least 1.")
    if placement.lag and not placement.overlapped:
        raise UsageError(f"--placement: lag={placement.lag} needs schedule=overlapped.")
    if placement.fused:
        placement = _check_fused(placement, pairs)
    if placement.steps_on_device and (placement.groups or 1) > 1:
        raise UsageError("--placement: with sampler=device all environments are one group.")
    if placement.workers and not placement.in_processes:
        raise UsageError(
            f"--placement: workers={pairs['workers']} needs sampler=processes or sampler=cluster."
        )
    return placement


def _check_fused(placement: Placement, given: Mapping[str, str]) -> Placement:
    """Check ``schedule=fused``, which needs everything on the learning devices, and return the
    placement with its replay buffer there."""
    if given.get("sampler") != "device":
        raise UsageError(
            "--placement: schedule=fused is one program, environments included: it needs "
            "sampler=device."
        )
    if placement.act != placement.learn:
        raise UsageError("--placement: schedule=fused acts where it learns; leave learn= out.")
    if given.get("replay", "device") == "cpu":
        raise UsageError("--placement: schedule=fused keeps replay in the device's memory.")
    return replace(placement, replay=given.get("replay", "device"))


def on_device(placement: Placement) -> Placement:
    """Return a placement with the same learning devices and everything in one compiled program."""
    return replace(
        placement, act=placement.learn, sampler="device", schedule="fused", replay="device",
        workers=None, groups=None, inference="central", lag=0,
    )  # fmt: skip


def moved(placement: Placement, device: DeviceName) -> Placement:
    """Return the placement with `device` as its only learning device; acting moves there, too, if
    it was on the learning devices or on the first of them."""
    acts = placement.act in (placement.learn, placement.learn[:1])
    return replace(placement, learn=(device,), act=(device,) if acts else placement.act)


def _parse_value(key: str, text: str) -> Any:
    if key in ("act", "learn"):
        return _parse_devices(key, text)
    if key in ("lag", "groups"):
        least = int(key == "groups")
        if re.fullmatch(r"\d{1,9}", text) and int(text) >= least:
            return int(text)
        raise UsageError(f"--placement: {key}={text} is not a whole number of {least} or more.")
    if key == "workers":
        match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text)
        if match and int(match[1]) and int(match[2]):
            return int(match[1]), int(match[2])
        raise UsageError(
            f"--placement: workers={text} is not WORKERSxENVIRONMENTS, for example workers=8x16."
        )
    if key == "memory":
        with suppress(ValueError):
            if 0.0 < float(text) <= 1.0:
                return float(text)
        raise UsageError(
            f"--placement: memory={text} is not a fraction of the GPU's memory above 0 and up to 1."
        )
    choices = get_args(get_type_hints(Placement)[key])
    if text not in choices:
        raise UsageError(
            f"--placement: {key}={text} is not one of {', '.join(choices)}.{nearest(text, choices)}"
        )
    return text


def _parse_devices(key: str, text: str) -> tuple[DeviceName, ...]:
    devices: list[DeviceName] = []
    for name in text.split(","):
        match = _DEVICE.fullmatch(name)
        if not match:
            raise UsageError(
                f"--placement: {key}={text}: {name!r} is not a device; write cpu, gpu or gpu:1."
            )
        kind = cast(Literal["cpu", "gpu"], match[1])
        device = DeviceName(kind, int(match[2] or 0))
        if device in devices:
            raise UsageError(f"--placement: {key}={text} names {device} twice.")
        devices.append(device)
    return tuple(devices)
