"""Environments that a user passes as one vector environment, beside the same ones one by one.

Eight CartPoles take random actions as a run steps them, without acting and learning, in turns: made
one by one, and as a `SyncVectorEnv` in each autoreset mode.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack, closing
from typing import Any

from harness import BenchmarkError, main, parser
from machine import isa_and_commit, machine
from report import RATIO_HEAD, per_round, ratio_row, spread, table, write_section

NAME = "vector_steps"
ENV, ENVS, SECONDS = "CartPole-v1", 8, 2.0


def opened(stack: ExitStack, source: Any) -> Any:
    """Return a function that steps environments for a while, and returns their rate."""
    import numpy as np

    from flatout import tree
    from flatout.config.schema import EnvConfig
    from flatout.envs.task import open_task
    from flatout.envs.vector import RARELY

    task = open_task(EnvConfig(env=ENV, envs=ENVS), source)
    envs = stack.enter_context(closing(task.open(ENVS, 0, reseeding=RARELY)))
    out, rewards = tree.zeros(task.obs_spec, ENVS), np.zeros(ENVS, np.float32)
    actions = task.action_spec.random(np.random.default_rng(0), 100 * ENVS).reshape(100, ENVS)

    def rate() -> float:
        envs.reset_all(out)
        steps, began = 0, time.perf_counter()
        while time.perf_counter() < began + SECONDS:
            for chosen in actions:
                envs.step(chosen, out, rewards, lambda *_: None)
            steps += actions.size
        return steps / (time.perf_counter() - began)

    return rate


def benchmark(args: argparse.Namespace) -> None:
    """Measure all modes and write the section."""
    import gymnasium as gym
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    if args.seeds < 3:
        raise BenchmarkError("--seeds must be at least 3: medians are quoted.")

    def vector(num_envs: int, mode: AutoresetMode) -> Any:
        each = [lambda: gym.make(ENV, disable_env_checker=True)] * num_envs
        return SyncVectorEnv(each, autoreset_mode=mode)

    body, ratios = [], []
    for mode in AutoresetMode:
        with ExitStack() as stack:
            alone = opened(stack, None)
            together = opened(stack, lambda num_envs, mode=mode: vector(num_envs, mode))
            pairs = [(alone(), together()) for _ in range(args.seeds)]
        one, all_ = ([pair[side] for pair in pairs] for side in (0, 1))
        body.append([mode.name, spread(one, 0), spread(all_, 0)])
        ratios.append(ratio_row(f"{mode.name}, vector / one by one", per_round(all_, one)))
    write_section(
        args,
        NAME,
        f"""## A vector environment beside its environments one by one

- Machine: {machine()}. {isa_and_commit()}
- Date: {time.strftime("%Y-%m-%d")}.
- Command: `python benchmarks/vector_steps.py`
- {ENVS} {ENV} in this process, random actions, {SECONDS:g} s a run, {args.seeds} pairs in turns.

{table(["autoreset mode", "one by one, steps/s", "SyncVectorEnv, steps/s"], body)}

{table(RATIO_HEAD, ratios)}
""",
    )


if __name__ == "__main__":
    main(benchmark, parser(__doc__, seeds=5).parse_args())
