"""Train PPO with RLlib, environments in this process: prints one JSON object on stdout.

Separate 64x64 tanh networks for actor and critic. `updates` is read from the optimiser's own step
counter; each takes a minibatch of `--batch-size`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from clock import since_start
from rllib_ppo import build, report, start_ray, updates, versions


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--env", required=True)
    add("--envs", type=int, default=8)
    add("--n-steps", type=int, default=256)
    add("--batch-size", type=int, default=64)
    add("--n-epochs", type=int, default=10)
    add("--steps", type=int, required=True)
    add("--window-from", type=int, default=0)
    add("--seed", type=int, default=0)
    return parser.parse_args()


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train for the steps; return the figures."""
    ray = start_ray(2)
    algo = build(
        args.env, args, args.envs * args.n_steps, num_env_runners=0,
        num_envs_per_env_runner=args.envs,
    )  # fmt: skip
    marks: list[tuple[int, int, float]] = []
    first_update_s, steps = 0.0, 0
    while steps < args.steps:
        steps = int(algo.train()["num_env_steps_sampled_lifetime"])
        first_update_s = first_update_s or since_start()
        if steps >= args.window_from:
            marks.append((steps, updates(algo), time.perf_counter()))
    (before, updates_before, begin), (last, made, end) = marks[0], marks[-1]
    algo.stop()
    ray.shutdown()
    return {
        "steps": last, "updates": made, "samples": made * args.batch_size,
        "first_update_s": first_update_s,
        "window": {"steps": last - before, "updates": made - updates_before, "s": end - begin},
        "versions": versions(),
    }  # fmt: skip


if __name__ == "__main__":
    report(lambda: train(arguments()))
