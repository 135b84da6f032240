"""Steps per second of W processes that step one environment each and do nothing else."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from typing import Any

from empty_env import Empty


def step_for(seconds: float, settings: dict[str, float], start: Any, totals: Any) -> None:
    """One process: reports its steps per second, all processes starting together."""
    env = Empty(length=200, **settings)
    env.reset()
    start.wait()
    count, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        _, _, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            env.reset()
        count += 1
    totals.put(count / (now - begin))


def main() -> None:
    """Run them and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--workers", type=int, required=True)
    add("--burn", type=float, default=0.0, help="seconds of computing per step")
    add("--sleep", type=float, default=0.0, help="seconds of waiting per step")
    add("--seconds", type=float, default=6.0)
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    start, totals = context.Barrier(args.workers), context.Queue()
    settings = {"burn": args.burn, "sleep": args.sleep}
    processes = [
        context.Process(target=step_for, args=(args.seconds, settings, start, totals))
        for _ in range(args.workers)
    ]
    for process in processes:
        process.start()
    rates = [totals.get() for _ in processes]
    for process in processes:
        process.join()
    print(json.dumps({**vars(args), "steps_per_s": sum(rates), "each": rates}))


if __name__ == "__main__":
    main()
