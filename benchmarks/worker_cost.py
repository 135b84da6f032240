"""The cost of an actor process: seconds until it is ready, and its private memory.

Two processes are started together, several times for each way of acting. With central inference
they import Gymnasium and NumPy; with `inference=local` also JAX and the network, and compile it.
Memory is the unique set size after 250 steps of each environment.
"""

from __future__ import annotations

import argparse
from typing import Any

import psutil

from harness import main, parser
from processes import MIB
from report import measured_here, spread, table, write_section
from samplers import started_sampler

NAME = "worker_cost"
WORKERS, EACH, STEPS = 2, 4, 250
ENVS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {},
    "flatout/Snake-v0": {"network": "onehot"},
    "ALE/Breakout-v5": {"network": "nature"},
}


def measure(env: str, settings: dict[str, Any], inference: str) -> tuple[float, list[float]]:
    """Start actor processes and step; return the seconds until they were ready, and the MiB of
    each."""
    count = WORKERS * EACH
    settings = settings | {
        "env": env, "envs": count, "n_steps": STEPS, "batch_size": STEPS * count,
        "placement": f"sampler=processes workers={WORKERS}x{EACH} inference={inference}",
    }  # fmt: skip
    with started_sampler(settings) as (sampler, ready_s):
        sampler.collect()
        children = psutil.Process().children()
        return ready_s, [child.memory_full_info().uss / MIB for child in children]


def benchmark(args: argparse.Namespace) -> None:
    """Measure both ways of acting in each environment and write the section."""
    body = []
    for env, settings in ENVS.items():
        for inference in ("central", "local"):
            found = [measure(env, settings, inference) for _ in range(args.seeds)]
            sizes = [size for _, each in found for size in each]
            body.append([env, inference, spread([s for s, _ in found], 2), spread(sizes, 0)])
    head = ["environment", "inference", "s until both are ready", "MiB of its own"]
    write_section(args, NAME, f"""## What an actor process costs

{measured_here(args)}
- {WORKERS} processes of {EACH} environments started together, {args.seeds} times; memory is what
  each process holds alone, after {STEPS} steps of its environments.

{table(head, body)}
""")  # fmt: skip


if __name__ == "__main__":
    main(benchmark, parser(__doc__, seeds=5).parse_args())
