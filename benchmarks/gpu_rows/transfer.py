"""Facts about a card on which planning rests: transfers by size and direction, dispatch, and
publication of parameters."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from gpu_rows.base import Bench, Figures, Row

SIZES = (4, 4 << 10, 256 << 10, 4 << 20, 64 << 20, 512 << 20)
HIDDEN = (64, 256, 1024)


def median_s(call: Callable[[], Any], seconds: float) -> float:
    """Seconds of one call, the median of at least 5."""
    call()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 5:
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def transfers(bench: Bench) -> list[Figures]:
    """Host to device, device to host, within the device."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    device = bench.device()
    copy = jax.jit(lambda x: x + 1)
    lines = []
    for size in SIZES[: bench.size(len(SIZES), 4)]:
        host = np.random.default_rng(0).random(size // 4, np.float32)
        there = jax.device_put(host, device)
        calls = {
            "to the device": lambda: jax.block_until_ready(jax.device_put(host, device)),  # noqa: B023
            # An array keeps what was fetched: each turn fetches a new one.
            "to the host": lambda: np.asarray(jnp.add(there, 0)),  # noqa: B023
            "within it (read and written)": lambda: jax.block_until_ready(copy(there)),  # noqa: B023
        }
        for direction, call in calls.items():
            taken = median_s(call, bench.size(1, 0) * 0.2)
            moved = 2 * size if direction.startswith("within") else size
            lines.append({
                "what": direction, "bytes": size, "µs": taken * 1e6, "GB/s": moved / taken / 1e9,
            })  # fmt: skip
    return lines


def dispatch(bench: Bench) -> list[Figures]:
    """An empty program, waited for and not; parameters handed to acting on the CPU."""
    import jax
    import numpy as np

    from flatout.packing import PackedParams

    device = bench.device()
    one = jax.device_put(np.float32(0), device)
    empty = jax.jit(lambda x: x)
    add = jax.jit(lambda x: x + 1)
    fetched = jax.jit(lambda x: x * 2)
    calls: dict[str, Callable[[], Any]] = {
        "an empty program, waited for": lambda: jax.block_until_ready(empty(one)),
        "an addition, waited for": lambda: jax.block_until_ready(add(one)),
        "an addition, not waited for": lambda: add(one),
        "an addition, its number fetched": lambda: np.asarray(fetched(one)),
    }
    lines = [
        {"what": name, "µs": 1e6 * median_s(call, bench.size(1, 0) * 0.2)}
        for name, call in calls.items()
    ]
    jax.block_until_ready(add(one))
    host = jax.devices("cpu")[0]
    for width in HIDDEN:
        shapes = [
            jax.ShapeDtypeStruct(s, np.float32) for s in ((4, width), (width, width), (width,))
        ]
        bundle = PackedParams(shapes)
        made = bundle.pack([np.zeros(s.shape, np.float32) for s in shapes], np)
        there = jax.device_put(made, device)
        change = jax.jit(lambda arrays: jax.tree.map(lambda x: x + 1, arrays))

        def publish() -> Any:
            return jax.block_until_ready(jax.device_put(change(there), host))  # noqa: B023

        lines.append({
            "what": f"parameters of {width}x{width} published to the CPU",
            "bytes": 4 * bundle.count, "µs": 1e6 * median_s(publish, bench.size(1, 0) * 0.2),
        })  # fmt: skip
    return lines


ROWS = [Row("transfer/bytes", transfers, free_mb=4_000), Row("transfer/dispatch", dispatch)]
