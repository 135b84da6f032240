"""One run of a comparison in a process of its own: training, then the costs of several devices."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.config.schema import TrainConfig, sync_every
from flatout.run.probe_process import Report

if TYPE_CHECKING:
    from flatout.config.placement import Placement
    from flatout.engine.mesh import Mesh

IN_A_ROW = 50
"""Averages in one program, so that the time to start it is negligible."""

ROUNDS = 9


def measured(config: TrainConfig, report: Report) -> dict[str, Any]:
    """Train, then measure the costs of several devices.

    Returns:
        `summary` (as in summary.json), `examples`, and `costs` as
        `flatout.measurements.scaling.split` takes them.
    """
    from flatout.config.placement import parse
    from flatout.run.job import learning_mesh
    from flatout.run.trainer import Trainer

    report("training")
    trainer = Trainer(config)
    summary = trainer.run()
    assert trainer.final is not None
    floats = averaged(trainer.final.arrays)
    placement = parse(summary["placement"])
    mesh = learning_mesh(config, placement)
    every = sync_every("sync", config.run.sync)
    copies = 1 if every == 1 else 3  # parameters and the optimiser's two moments
    return {
        "summary": summary,
        "examples": examples(config, summary),
        "costs": {
            "average_s": average_s(mesh, config, placement, floats * copies),
            "dispatch_s": dispatch_s(mesh),
            "averages": summary["updates"] / every,
            "dispatches": summary["iterations"],
        },
    }


def averaged(arrays: Mapping[str, np.ndarray]) -> int:
    """Return the number of a run's parameters that learn, whose gradients the shards average.

    Args:
        arrays: a snapshot's.
    """
    from flatout.storage.checkpoint import PREFIX

    params = f"{PREFIX}.params"
    return sum(
        array.size for name, array in arrays.items()
        if name.startswith(params) and array.dtype.kind == "f" and ".target" not in name
    )  # fmt: skip


def examples(config: TrainConfig, summary: dict[str, Any]) -> int:
    """Return the number of rows for which gradients were computed."""
    batch = getattr(config.hyper, "batch_size", None)
    return summary["steps"] if batch is None else summary["updates"] * batch


def average_s(mesh: Mesh, config: TrainConfig, placement: Placement, floats: int) -> float:
    """Return the seconds to average `floats` numbers over the shards, within a program."""
    if mesh.shards == 1:
        return 0.0
    import jax

    from flatout.algorithms.registry import shards_of

    shards = shards_of(config, placement)

    def averaged(x: jax.Array, each: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Each average has to wait for the one before.
        def body(_: Any, x: jax.Array) -> jax.Array:
            return shards.mean(x + each)

        return jax.lax.fori_loop(0, IN_A_ROW, body, x), each

    x, each = np.zeros(floats, np.float32), np.ones((mesh.shards, 1), np.float32)
    return _timed(mesh, averaged, x, each) / IN_A_ROW


def dispatch_s(mesh: Mesh) -> float:
    """Return the seconds to start an empty program and wait for it."""
    each = np.ones((mesh.shards, 1) if mesh.shards > 1 else (1,), np.float32)
    return _timed(mesh, lambda x, each: (x, each), np.zeros(1, np.float32), each)


def _timed(mesh: Mesh, function: Any, x: np.ndarray, each: np.ndarray) -> float:
    """Return the median seconds of a function of a shared array `x` and a divided one, `each`."""
    import jax

    program = mesh.program(function, (None, 0), (None, 0))
    given = mesh.put(x, None), mesh.put(each, 0)
    compiled = program.lower(*given).compile()
    seconds: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        given = jax.block_until_ready(compiled(*given))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[1:]))
