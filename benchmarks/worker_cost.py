"""What an actor process costs: seconds until it is ready, and memory of its own.

Two processes are started together, several times for each way of acting. With central inference
they import Gymnasium and NumPy; with `inference=local` also JAX and the network, and compile it.
Memory is what each holds alone (unique set size), after a thousand steps.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import psutil

from harness import MIB, main, parser
from machine import machine
from report import spread, table, write_section

NAME = "worker_cost"
WORKERS, EACH = 2, 4
ENVS = {
    "CartPole-v1": {},
    "flatout/Snake-v0": {"network": "onehot"},
    "ALE/Breakout-v5": {"network": "nature"},
}


def measure(env: str, settings: dict[str, Any], inference: str) -> dict[str, list[float]]:
    """Start a worker pool, step, look at it, end it: seconds, and MiB of each process."""
    from flatout.algorithms.base import RolloutSpec
    from flatout.algorithms.registry import build_algorithm
    from flatout.config.placement import CPU, parse
    from flatout.config.settings import resolve
    from flatout.config.workers import assign_groups
    from flatout.engine.buffer import OnPolicyBuffer
    from flatout.engine.learn import Learner
    from flatout.engine.make_sampler import ActingPolicies, make_sampler, start_workers
    from flatout.engine.mesh import Mesh
    from flatout.envs.task import open_task
    from flatout.hardware import backend
    from flatout.randomness import ACT, INIT, LEARN, raw_key
    from flatout.spans import Spans

    count = WORKERS * EACH
    config = resolve("ppo", {"env": env, "envs": count, "n_steps": 1000 // EACH, **settings,
                             "batch_size": 1000 // EACH * count})  # fmt: skip
    task = open_task(config.env, None)
    placement = parse(f"sampler=processes workers={WORKERS}x{EACH} inference={inference}")
    backend.start(placement)
    algorithm = build_algorithm(config, *task.spaces)
    acting = ActingPolicies(
        assign_groups(placement, count), algorithm, task, raw_key(0, ACT), backend.device
    )
    rollout = RolloutSpec(algorithm.horizon, None, 1, False)
    spans = Spans()
    for policy in acting.policies:
        policy.compile()
    begin = time.perf_counter()
    pool = start_workers(config, task, acting, rollout, print, local=inference == "local")
    sampler = make_sampler(config, task, acting, rollout, spans, pool)  # waits for all of them
    ready = time.perf_counter() - begin
    learner = Learner(
        algorithm,
        OnPolicyBuffer(algorithm),
        Mesh([backend.device(CPU)], 1),
        raw_key(0, INIT),
        raw_key(0, LEARN),
        spans,
    )
    params = learner.publish(learner.start().learned)
    for publisher in [acting.remote(pool)] if pool.local else acting.policies:
        publisher.publish(params, 0, spans)
    sampler.start()
    sampler.collect()
    children = psutil.Process().children()
    sizes = [child.memory_full_info().uss / MIB for child in children if child.is_running()]
    sampler.close()
    pool.close()
    task.close()
    return {"ready_s": [ready], "uss_mb": sizes}


def benchmark(args: argparse.Namespace) -> None:
    """Measure every way and write the section."""
    body = []
    for env, settings in ENVS.items():
        for inference in ("central", "local"):
            found = [measure(env, settings, inference) for _ in range(args.seeds)]
            ready = [one["ready_s"][0] for one in found]
            sizes = [size for one in found for size in one["uss_mb"]]
            body.append([env, inference, spread(ready, 2), spread(sizes, 0)])
    head = ["environment", "inference", "s until both are ready", "MiB of its own"]
    write_section(args, NAME, f"""## What an actor process costs

- Machine: {machine()}.
- Date: {time.strftime("%Y-%m-%d")}.
- Command: `python benchmarks/worker_cost.py`
- {WORKERS} processes of {EACH} environments started together, {args.seeds} times; memory is what
  each process holds alone, after 250 steps of its environments.

{table(head, body)}
""")  # fmt: skip


if __name__ == "__main__":
    main(benchmark, parser(__doc__, seeds=5).parse_args())
