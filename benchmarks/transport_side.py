"""Steps per second of environments that do nothing, in other processes: one side, one JSON object.

``flatout``: W actor processes, each with its share; ``gymnasium``: `AsyncVectorEnv` with shared
memory, one process for each environment, as it is made. Actions are constant and nothing acts or
learns: what is measured is the way of actions there and of observations back.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np

from empty_env import Empty

ROWS = 64
"""Steps of one trajectory's arrays, which are used over and over."""


def measure(step: Callable[[], None], envs: int, seconds: float) -> list[float]:
    """Steps per second in slices of a tenth of the time."""
    for _ in range(200):
        step()
    rates: list[float] = []
    for _ in range(10):
        count, begin = 0, time.perf_counter()
        while (now := time.perf_counter()) - begin < seconds / 10:
            for _ in range(16):
                step()
            count += 16
        rates.append(count * envs / (now - begin))
    return rates


def gymnasium_rates(args: argparse.Namespace) -> list[float]:
    """`AsyncVectorEnv`'s."""
    vector = gym.vector.AsyncVectorEnv(
        [functools.partial(Empty, args.obs)] * args.envs, shared_memory=True
    )
    vector.reset(seed=0)
    actions = np.zeros(args.envs, np.int64)

    def step() -> None:
        vector.step(actions)

    try:
        return measure(step, args.envs, args.seconds)
    finally:
        vector.close()


def flatout_rates(args: argparse.Namespace) -> list[float]:
    """The actor processes'."""
    from flatout.algorithms.base import RolloutSpec
    from flatout.config.placement import CPU
    from flatout.config.settings import resolve
    from flatout.config.workers import GroupSpec
    from flatout.engine.make_sampler import start_workers
    from flatout.engine.workers.groups import WorkerEnvGroup
    from flatout.envs.task import open_task
    from flatout.types import UserCode

    source = functools.partial(Empty, args.obs)
    config = resolve("ppo", {"env": "empty", "envs": args.envs, "n_steps": ROWS})
    task = open_task(config.env, source)
    each = args.envs // args.workers
    share = GroupSpec(
        CPU, tuple((worker * each, each) for worker in range(args.workers)), args.envs
    )
    acting: Any = SimpleNamespace(ordered=[share])  # nothing acts
    pool = start_workers(
        config, task, acting, RolloutSpec(ROWS, None, 1, False), print, code=UserCode(env=source)
    )
    try:
        pool.wait()
        group = WorkerEnvGroup(pool, pool.workers)
        group.reset_all()
        actions = np.zeros(args.envs, np.int32)
        t = 0

        def ended(env: int, terminated: bool, truncated: bool, final: np.ndarray) -> None:
            raise AssertionError("these episodes do not end")

        def step() -> None:
            nonlocal t
            group.send(0, t, actions, None)
            group.receive(ended)
            t = (t + 1) % ROWS

        return measure(step, args.envs, args.seconds)
    finally:
        pool.close()


def main() -> None:
    """Measure one side and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("flatout", "gymnasium"), required=True)
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--obs", choices=("vector", "image"), default="vector")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rates = (flatout_rates if args.side == "flatout" else gymnasium_rates)(args)
    print(json.dumps({**vars(args), "steps_per_s": statistics.median(rates), "slices": rates}))


if __name__ == "__main__":
    main()
