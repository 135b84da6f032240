"""The machine's cores, memory and GPUs, read without JAX or a context on a GPU."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from dataclasses import dataclass, replace

from flatout.config.placement import (
    CPU,
    DeviceName,
    Placement,
    cards_in,
    names_any_card,
    on_card,
    on_cards,
    parse,
    parse_or_auto,
)
from flatout.config.placement_checks import with_devices
from flatout.errors import UsageError
from flatout.installing import install
from flatout_explain.hardware.cores import usable_cores
from flatout_explain.hardware.machine import cpu_name, memory
from flatout_explain.hardware.nvml import Gpu, visible_gpus
from flatout_explain.hardware.processes import MiB

SIMILAR = 0.95
"""GPUs with at least this share of the most free memory count as equally free."""

ENOUGH = 0.5
"""Share of a GPU's memory that is free where a resumed run stays on that GPU."""

VIRTUAL = "--xla_force_host_platform_device_count"
"""XLA's flag for several CPU devices."""

CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
"""JAX's variable for the same; in lower case, its setting. Both take precedence over the flag."""


@dataclass(frozen=True)
class Hardware:
    """The machine as this process may use it."""

    cpu_name: str  # the processor's name
    cores: int  # cores within affinity and container limits
    memory_total_mb: int  # host memory in MiB within the container's limit
    memory_available_mb: int
    cpu_devices: int = 1  # that JAX will show; more than one are virtual (XLA)
    gpus: tuple[Gpu, ...] = ()  # the visible GPUs
    cuda_plugin: bool = False  # whether JAX's CUDA plugin is installed
    gpu_note: str = ""  # why GPUs could not be listed, or empty
    opened: tuple[int, ...] = ()  # GPUs that JAX has opened here: this process can open no others

    @property
    def usable_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that JAX can use: none without its CUDA plugin."""
        return self.gpus if self.cuda_plugin else ()

    def freest(self) -> list[Gpu]:
        """The GPUs that JAX can use: those with the most free memory first, and of those with about
        as much (`SIMILAR`) the least used first. If JAX runs in this process, the GPUs that it has
        opened come before all others."""
        rest, found = list(self.usable_gpus), list[Gpu]()
        while rest:
            most = max(gpu.memory_free_mb for gpu in rest)
            best = min(
                (gpu for gpu in rest if gpu.memory_free_mb >= SIMILAR * most),
                key=lambda gpu: (gpu.busy or 0, len(gpu.processes), -gpu.memory_free_mb, gpu.index),
            )
            rest.remove(best)
            found.append(best)
        return sorted(found, key=lambda gpu: bool(self.opened) and gpu.index not in self.opened)

    def describe(self) -> str:
        """The devices that a placement may name, in words."""
        cpus = "cpu" if self.cpu_devices == 1 else f"cpu:0 to cpu:{self.cpu_devices - 1}"
        gpus = (f"gpu:{gpu.index} ({gpu.name})" for gpu in self.usable_gpus)
        return ", ".join([f"{cpus} ({self.cores} cores)", *gpus])

    @property
    def unused_gpu_warning(self) -> str:
        """A warning if JAX cannot use the machine's GPUs, or empty."""
        if not self.gpus or self.cuda_plugin:
            return ""
        others = len(self.gpus) - 1
        more = f" and {others} more" if others else ""
        return (
            f"This machine has {self.gpus[0].name}{more}, but JAX has no CUDA plugin here, so "
            f"nothing would ever run on it: {install('cuda12')} (or cuda13)."
        )


def inventory() -> Hardware:
    """Look at this machine now."""
    total, available = memory()
    gpus, note = visible_gpus()
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    return Hardware(
        cpu_name=cpu_name(),
        cores=usable_cores(),
        memory_total_mb=total // MiB,
        memory_available_mb=available // MiB,
        cpu_devices=_cpu_devices(),
        gpus=gpus,
        cuda_plugin=any(importlib.util.find_spec(name) is not None for name in plugins),
        gpu_note=note,
        opened=_opened(),
    )


def resolve_placement(
    text: str,
    hardware: Hardware,
    *,
    images: bool = False,
    soft: bool = False,
    devices: int | None = None,
) -> tuple[Placement, list[str]]:
    """Parse a placement and check it against this machine; also gives notes for the user.

    ``auto``: image observations act and learn on a GPU if JAX can use one; everything else runs on
    the CPU, where small networks are faster. A GPU without a number is the freest one
    (`Hardware.freest`) that the text does not name.

    Args:
        images: whether observations are images.
        soft: replace missing devices by available ones.
        devices: number of devices to learn on: the freest GPUs, in the machine's order.

    Raises:
        UsageError: a named device is missing and `soft` is off.
    """
    notes: list[str] = []
    original = text
    if parse_or_auto(text) is None:
        word = "gpu" if images and hardware.usable_gpus else "cpu"
        reason = "image observations and a GPU" if word == "gpu" else (
            "no GPU that JAX can use" if images else "vector observations: small networks are "
            "faster there"
        )  # fmt: skip
        notes.append(f"placement auto: {word} ({reason})")
        text = word
    cards, asked, chosen = hardware.freest(), text, list[Gpu]()
    if cards and names_any_card(text):
        taken = cards_in(text)
        chosen = [next((gpu for gpu in cards if gpu.index not in taken), cards[0])]
        text = on_card(text, chosen[0].index)
    if devices is not None:
        chosen = list(dict.fromkeys([*chosen, *cards[:devices]]))
    learn = tuple(sorted(gpu.index for gpu in cards[:devices]))
    placement = with_devices(parse(text), original, devices, learn)
    if chosen and len(cards) > 1:
        notes.append(_choice(chosen, len(cards)))
    available = {DeviceName("cpu", index) for index in range(hardware.cpu_devices)}
    available |= {DeviceName("gpu", gpu.index) for gpu in hardware.usable_gpus}
    missing = [device for device in placement.devices if device not in available]
    if missing:
        names = ", ".join(str(device) for device in missing)
        if not soft:
            hint = hardware.unused_gpu_warning or hardware.gpu_note
            raise UsageError(
                f"placement {asked!r} needs {names}, which is not here; this machine has "
                f"{hardware.describe()}. Name one of those, or pass --soft-placement to run on "
                f"what is there.{' ' + hint if hint else ''}"
            )
        placement = _soften(placement, available, [gpu.index for gpu in cards])
        notes.append(f"soft placement: {names} is not here; running on {placement} instead")
    return placement, notes


def _choice(chosen: list[Gpu], count: int) -> str:
    """The GPUs that were chosen among `count`, and why, in a line."""
    words = ", ".join(
        f"gpu:{gpu.index} ({gpu.memory_free_mb:,} of {gpu.memory_total_mb:,} MiB free"
        + (")" if gpu.busy is None else f", {gpu.busy} % busy)")
        for gpu in sorted(chosen, key=lambda gpu: gpu.index)
    )
    return f"{words}: the freest of {count} GPUs"


def resumed_placement(text: str, hardware: Hardware) -> tuple[str, str]:
    """The placement of a run that resumes, and a sentence where its GPUs are others than before.

    Its GPUs stay as they were if this process can open all of them, and if they have `ENOUGH` of
    their memory free; otherwise it takes as many of the freest.
    """
    before, cards = cards_in(text), {gpu.index: gpu for gpu in hardware.usable_gpus}
    enough = {
        number for number, gpu in cards.items()
        if gpu.memory_free_mb >= ENOUGH * gpu.memory_total_mb
        and (not hardware.opened or number in hardware.opened)
    }  # fmt: skip
    free = [number for number in before if number in enough]
    chosen = hardware.freest()[: len(before)]
    numbers = sorted(gpu.index for gpu in chosen)
    if free == before or len(chosen) < len(before) or numbers == before:
        return text, ""
    why = ", ".join(f"gpu:{number}" for number in before if number not in free)
    note = f"{_choice(chosen, len(cards))}; the run was on {why} before, which is full or not here"
    return on_cards(text, dict(zip(before, numbers, strict=True))), note


def _soften(placement: Placement, available: set[DeviceName], cards: list[int]) -> Placement:
    """Replace each missing device by the first of its kind, or by the CPU.

    Args:
        cards: the numbers of the GPUs, the freest first.
    """
    first = {"cpu": 0, "gpu": cards[0] if cards else 0}

    def substitute(devices: tuple[DeviceName, ...]) -> tuple[DeviceName, ...]:
        options = ((device, DeviceName(device.kind, first[device.kind]), CPU) for device in devices)
        chosen = (next(one for one in some if one in available) for some in options)
        return tuple(dict.fromkeys(chosen))

    has_gpu = any(device.is_gpu for device in available)
    return replace(
        placement,
        act=substitute(placement.act),
        learn=substitute(placement.learn),
        replay=placement.replay if has_gpu else "cpu",
        memory=placement.memory if has_gpu else None,
    )


def _cpu_devices() -> int:
    """The number of CPU devices that JAX shows: its own setting, else the last of XLA's flags."""
    given = os.environ.get(CPU_DEVICES, "")
    if "jax" in sys.modules:  # which read the variable when it was imported
        import jax

        given = str(jax.config.values.get(CPU_DEVICES.lower(), ""))
    flags = re.findall(rf"{VIRTUAL}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    count = given if given.isdecimal() else (flags or ["1"])[-1]
    return max(int(count), 1)


def _opened() -> tuple[int, ...]:
    """The GPUs to which JAX is limited in this process; empty if it is not, or not started yet."""
    if "jax" not in sys.modules:
        return ()
    import jax
    from jax._src import xla_bridge

    visible = str(jax.config.values.get("jax_cuda_visible_devices", "all"))
    if visible == "all" or not xla_bridge.backends_are_initialized():
        return ()
    return tuple(int(number) for number in visible.split(",") if number.isdecimal())
