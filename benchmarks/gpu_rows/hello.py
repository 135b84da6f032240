"""What a placement promises of a card: only named ones are opened, and memory caps hold."""

from __future__ import annotations

from gpu_rows.base import Bench, Figures, Row, holder, share, usage
from harness import BenchmarkError

TRAINED = (
    "--env", "CartPole-v1", "--envs", "16", "--n-steps", "128", "--batch-size", "512",
    "--hidden", "256,256",
)  # fmt: skip
STEP_MB = 512
LEFT_MB = (8_000, 100)
"""Memory that another program leaves: enough for a run, and not enough for a context."""


def free_mb() -> list[int]:
    """MiB free on each card, by NVML."""
    from flatout.hardware.inventory import inventory

    return [gpu.memory_free_mb for gpu in inventory().gpus]


def cards(bench: Bench) -> list[Figures]:
    """NVML and JAX see the same cards."""
    import jax

    from flatout.config.placement import CPU, DeviceName, Placement
    from flatout.hardware import backend
    from flatout.hardware.inventory import inventory

    gpus = inventory().gpus
    if bench.dry:
        backend.start(Placement())
    else:
        names = tuple(DeviceName("gpu", gpu.index) for gpu in gpus)
        backend.start(Placement(act=(CPU,), learn=names))
    seen = [] if bench.dry else jax.devices("cuda")
    if len(seen) != len(gpus):
        raise BenchmarkError(f"NVML sees {len(gpus)} cards, JAX {len(seen)}: {seen}")
    for gpu, device in zip(gpus, seen, strict=True):
        if device.device_kind not in gpu.name:
            raise BenchmarkError(
                f"gpu:{gpu.index} is {gpu.name} to NVML, {device.device_kind} to JAX"
            )
    known = ", ".join(gpu.name for gpu in gpus) or "none"
    return [{"question": "cards that NVML and JAX both see", "answer": known}]


def memory(bench: Bench) -> list[Figures]:
    """Free before, with a context, during a run and after it; and a CPU run opens nothing."""
    before = free_mb()
    bench.train("ppo", *TRAINED, "--steps", bench.size(40_000, 4_096), placement="cpu", name="cpu")
    on_cpu = usage(bench.folder / "cpu")
    if on_cpu["gpu_mb"]:
        raise BenchmarkError(f"a run on the CPU held {on_cpu['gpu_mb']} MiB of a card")
    bench.train("ppo", *TRAINED, "--steps", bench.size(80_000, 4_096), placement="gpu", name="gpu")
    on_gpu = usage(bench.folder / "gpu")
    after_run = free_mb()
    bench.device().memory_stats()  # opens the context in this process
    context = free_mb()
    lines = [
        ("MiB free before anything", before), ("after a run had ended", after_run),
        ("with an empty context open", context),
        ("MiB that a CPU run held on a card", on_cpu["gpu_mb"] or 0),
        ("MiB that a GPU run held (most)", on_gpu["gpu_mb"]),
        ("share of time with a kernel running, GPU run", share(on_gpu["gpu"])),
    ]  # fmt: skip
    return [{"question": name, "answer": value} for name, value in lines]


def cap(bench: Bench) -> list[Figures]:
    """`memory=0.3` holds: allocations end there."""
    import jax
    import numpy as np

    from flatout.config.placement import parse
    from flatout.hardware import backend
    from flatout.hardware.inventory import inventory

    if bench.dry:
        notes = backend.start(parse("act=cpu memory=0.3"))
        return [{"question": "memory=0.3 without a GPU", "answer": "; ".join(notes)}]
    total = inventory().gpus[0].memory_total_mb
    backend.start(parse("act=gpu memory=0.3"))
    device = jax.devices("cuda")[0]
    held = []
    try:
        while len(held) * STEP_MB < total:
            block = jax.device_put(np.zeros((STEP_MB, 1 << 18), np.float32), device)
            held.append(jax.block_until_ready(block))
    except (RuntimeError, ValueError) as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
    got = len(held) * STEP_MB / total
    if got > 0.31:
        raise BenchmarkError(f"memory=0.3 of {total} MiB let {got:.2f} of it be allocated")
    return [{"question": "memory=0.3: share of the card that could be allocated", "answer": got}]


def beside(bench: Bench) -> list[Figures]:
    """A run beside another holder of the card's memory: it fits, or it says so in a sentence."""
    lines: list[Figures] = []
    for left in LEFT_MB:
        with holder(bench, left):
            words = bench.train_words(
                "ppo", *TRAINED, "--steps", bench.size(20_000, 4_096), placement="gpu",
                name=f"left-{left}",
            )  # fmt: skip
            done = bench.flatout(*words, check=False)
        if done.returncode and "Traceback" in done.stderr:
            raise BenchmarkError(done.stderr)
        said = done.stderr.strip().splitlines()[-1] if done.returncode else "trained"
        if done.returncode and left == LEFT_MB[0]:
            raise BenchmarkError(f"{left} MiB were left, but: {said}")
        lines.append({"question": f"a run with {left:,} MiB left by another", "answer": said})
    return lines


ROWS = [
    Row("hello/cards", cards),
    Row("hello/memory", memory),
    Row("hello/cap", cap),
    Row("hello/beside", beside, limit_s=150),
]
