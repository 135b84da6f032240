"""Start JAX on the named devices and no others.

Platforms, visible GPUs and memory limits must be set before JAX's first use.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from flatout.config.placement import DeviceName, Placement
from flatout.errors import FlatoutError, NoRoomError, UsageError
from flatout.hardware.compile_cache import set_up
from flatout.hardware.inventory import CPU_DEVICES, VIRTUAL
from flatout_explain.hardware.nvml import visible_gpus

CUDA_CONTEXT_MB = 600
"""Memory of a CUDA context and its libraries."""


def show_virtual_devices(count: int | None) -> None:
    """Make JAX show `count` CPU devices; call before its first use."""
    if count is None:
        return
    given = os.environ.get("XLA_FLAGS", "").split()
    kept = [flag for flag in given if not flag.startswith(VIRTUAL)]
    os.environ["XLA_FLAGS"] = " ".join([*kept, f"{VIRTUAL}={count}"])
    os.environ.pop(CPU_DEVICES, None)  # JAX would take it instead of the flag
    if "jax" in sys.modules:  # which read that variable when it was imported
        import jax

        with suppress(RuntimeError):  # JAX has opened its devices
            jax.config.update(CPU_DEVICES.lower(), -1)


def start(placement: Placement) -> list[str]:
    """Configure JAX for a placement before its first use; returns notes on ignored settings."""
    gpus = [device.index for device in placement.gpus]
    notes: list[str] = []
    if placement.memory is not None and not gpus:
        notes.append("memory= caps GPUs only, and this placement names none")
    import jax
    from jax._src import xla_bridge

    used = xla_bridge.backends_are_initialized()
    if gpus and not used:
        # Number cards as NVML does, which planned the run.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        # Allocate as needed: a cap is not a reservation.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        if placement.memory is not None:
            os.environ.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)  # setting both is an error
            os.environ["XLA_CLIENT_MEM_FRACTION"] = str(placement.memory)
    if jax.config.values.get("jax_enable_x64"):
        raise UsageError(
            "JAX computes in 64 bits here (JAX_ENABLE_X64), and Flatout in 32: unset that "
            "variable, or set JAX_ENABLE_X64=0."
        )
    if jax.config.values.get("jax_disable_jit"):
        raise UsageError(
            "JAX compiles nothing here (JAX_DISABLE_JIT), and Flatout compiles its programs before "
            "it runs them: unset that variable, or set JAX_DISABLE_JIT=0."
        )
    if used:
        limit = os.environ.get("XLA_CLIENT_MEM_FRACTION")
        if placement.memory is not None and gpus and str(placement.memory) != limit:
            notes.append("memory= has no effect: this program has used JAX before")
        return notes
    if not gpus or not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "cuda,cpu" if gpus else "cpu")
    if gpus:
        jax.config.update("jax_cuda_visible_devices", ",".join(str(index) for index in gpus))
    # A small network's act takes 20 us in the calling thread, three times that in another.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    set_up()
    return notes


def memory_share(placement: Placement) -> tuple[float, str]:
    """The share of a GPU's memory that this process may take, and what says so."""
    if placement.memory is not None:
        return placement.memory, "memory="
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        with suppress(KeyError, ValueError):
            return float(os.environ[name]), name
    return 1.0, ""


def device(name: DeviceName) -> Any:
    """Return JAX's device for a name.

    Raises:
        NoRoomError: the card's memory is in use.
        FlatoutError: JAX did not open it for another reason.
    """
    import jax

    try:
        devices = jax.devices("cuda" if name.is_gpu else "cpu")
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        _refuse_full(name)
        raise FlatoutError(f"JAX cannot open {name}: {reason}. {_EARLIER}") from error
    visible = str(jax.config.values.get("jax_cuda_visible_devices", "all"))
    local = name.index
    if name.is_gpu and visible != "all":  # JAX numbers visible GPUs from 0
        opened = visible.split(",")
        local = opened.index(str(name.index)) if str(name.index) in opened else len(devices)
    if local >= len(devices):
        names = ", ".join(map(str, devices))
        raise FlatoutError(f"JAX opened {names}, not {name}. {_EARLIER}")
    return devices[local]


def _refuse_full(name: DeviceName) -> None:
    """Refuse a GPU without the memory that JAX needs to open it.

    Raises:
        NoRoomError: there is less; it says how much, and which programs hold it.
    """
    gpu = next((gpu for gpu in visible_gpus()[0] if gpu.index == name.index), None)
    if not name.is_gpu or gpu is None or gpu.memory_free_mb >= CUDA_CONTEXT_MB:
        return
    users = ", ".join(f"{one.name} (process {one.pid})" for one in gpu.processes)
    raise NoRoomError(
        f"{name} ({gpu.name}) has {gpu.memory_free_mb:,} of {gpu.memory_total_mb:,} MiB free, and "
        f"JAX itself takes about {CUDA_CONTEXT_MB:,}: end the programs that hold its memory"
        f"{f', {users},' if users else ''} or choose another device with --placement."
    )


_EARLIER = (
    "If this program started JAX before Flatout could name its devices, use Flatout first, or set "
    "XLA_FLAGS and CUDA_VISIBLE_DEVICES before."
)


def shares_memory(device: Any) -> bool:
    """Return whether programs on a device read the host's arrays without a copy to the device."""
    return device.platform == "cpu"


def compiled(lowered: Any, on: Any) -> Any:
    """Compile a program of the loop: for a CPU with the widest vectors that it has.

    XLA keeps to 256 bits, for chips that slow down at 512. Sums of more parts round differently:
    programs whose results are compared are compiled alike.
    """
    import jax

    if on.platform == "cpu":
        with suppress(jax.errors.JaxRuntimeError):  # a version without that option
            return lowered.compile(compiler_options={"xla_cpu_prefer_vector_width": 512})
    return lowered.compile()


def matmul_precision(on: Any, precision: str) -> AbstractContextManager[Any]:
    """Compile products with `RunConfig.precision`; a CPU always computes in full float32.

    A GPU's default keeps 10 bits of each factor's mantissa. Acting on a CPU and learning on a GPU
    would then disagree on an action's probability before the first update.
    """
    import jax

    plain = on.platform == "cpu" or precision == "default"
    return nullcontext() if plain else jax.default_matmul_precision(precision)
