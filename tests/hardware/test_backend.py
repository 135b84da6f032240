"""Starting JAX."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest

from flatout.config.placement import DeviceName, parse
from flatout.errors import FlatoutError, NoRoomError, UsageError
from flatout.hardware import backend
from flatout_explain.hardware.nvml import Gpu, GpuProcess


def test_64_bit_mode_is_refused_by_the_name_of_its_variable() -> None:
    placement = parse("cpu")
    backend.start(placement)
    jax.config.update("jax_enable_x64", True)
    try:
        with pytest.raises(UsageError, match="JAX_ENABLE_X64"):
            backend.start(placement)
    finally:
        jax.config.update("jax_enable_x64", False)


def test_virtual_devices_take_the_place_of_those_that_a_variable_asks_for() -> None:
    code = (
        "import sys\n"
        "if sys.argv[1:]: import jax\n"
        "from flatout.hardware import backend\n"
        "from flatout.hardware.inventory import inventory\n"
        "backend.show_virtual_devices(3)\n"
        "import jax\n"
        "print(inventory().cpu_devices, len(jax.devices()))"
    )
    for words in ((), ("imported",)):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.split() == ["3", "3"]


def test_a_cap_that_comes_too_late_is_named_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    jax.devices()
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    placement = parse("act=gpu:0 learn=gpu:0 memory=0.5")
    for _ in range(2):
        (note,) = backend.start(placement)
        assert "memory= has no effect" in note


def test_jax_without_compiling_is_refused_by_the_name_of_its_variable() -> None:
    with jax.disable_jit(), pytest.raises(UsageError, match="JAX_DISABLE_JIT=0"):
        backend.start(parse("cpu"))


@pytest.mark.parametrize(
    ("free", "error", "words"),
    [
        (
            100,
            NoRoomError,
            r"^gpu:0 \(H100\) has 100 of 80,000 MiB free, .*, python \(process 7\), or",
        ),
        (70_000, FlatoutError, r"^JAX cannot open gpu:0: no such platform\. If this program"),
    ],
)
def test_a_full_gpu_is_named_with_the_programs_that_hold_it(
    monkeypatch: pytest.MonkeyPatch, free: int, error: type[FlatoutError], words: str
) -> None:
    holder = GpuProcess(7, "python", 79_000)
    card = Gpu(0, "H100", 80_000, free, processes=(holder,))
    monkeypatch.setattr(backend, "visible_gpus", lambda: ((card,), ""))

    def devices(platform: str) -> None:
        raise RuntimeError("no such platform\nand a traceback")

    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(error, match=words):
        backend.device(DeviceName("gpu", 0))
