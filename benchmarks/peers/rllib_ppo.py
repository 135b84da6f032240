"""PPO of RLlib with one environment in each env runner: prints one JSON object on stdout.

Separate 64x64 tanh networks for actor and critic, and a learner in this process. Ray is started
here, with a CPU for each env runner. The window begins after `--warm` iterations; `updates` is read
from the optimiser's own step counter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["PYTHONPATH"] = sys.path[0]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--runners", type=int, default=16)
    add("--sleep", type=float, default=0.02, help="seconds of each environment step")
    add("--n-steps", type=int, default=50)
    add("--batch-size", type=int, default=200)
    add("--n-epochs", type=int, default=4)
    add("--iterations", type=int, default=8)
    add("--warm", type=int, default=2)
    add("--seed", type=int, default=0)
    return parser.parse_args()


def updates(algo: Any) -> int:
    """Steps that the optimiser has made."""
    state = algo.learner_group.get_state(components="learner")
    found: list[int] = []

    def search(node: Any) -> None:
        if isinstance(node, dict):
            for name, value in node.items():
                if name == "step":
                    found.append(int(value))
                else:
                    search(value)

    search(state)
    return max(found, default=-1)


def start_ray(cpus: int) -> Any:
    """Start a Ray of this program's own, and return the module."""
    import ray

    ray.init(
        "local", num_cpus=cpus, object_store_memory=200_000_000, include_dashboard=False,
        logging_level=logging.ERROR, log_to_driver=False,
    )  # fmt: skip
    return ray


def build(env: str, args: argparse.Namespace, rollout: int, **env_runners: Any) -> Any:
    """PPO with a learner in this process, for rollouts of `rollout` steps."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    return (
        PPOConfig()
        .environment(env)
        .env_runners(rollout_fragment_length=args.n_steps, **env_runners)
        .learners(num_learners=0, num_gpus_per_learner=0)
        .training(train_batch_size_per_learner=rollout, minibatch_size=args.batch_size,
                  num_epochs=args.n_epochs, lr=3e-4)
        .rl_module(model_config=DefaultModelConfig(
            fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False))
        .debugging(seed=args.seed)
        .build_algo()
    )  # fmt: skip


def versions() -> dict[str, str]:
    """The versions of RLlib and of what it computes with."""
    import gymnasium
    import ray
    import torch

    return {
        "ray": ray.__version__, "torch": torch.__version__, "gymnasium": gymnasium.__version__,
    }  # fmt: skip


def report(train: Callable[[], dict[str, Any]]) -> None:
    """Train, and print the result and nothing else on stdout."""
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        result = train()
    print(json.dumps(result))


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train for the iterations; return the result."""
    import gymnasium
    import ray.rllib.algorithms.ppo  # the largest part of what is imported
    from ray.tune.registry import register_env

    import_s = time.perf_counter() - STARTED
    start_ray(args.runners + 1)

    def make(_: Any) -> gymnasium.Env[Any, Any]:
        from empty_env import Empty

        return Empty(sleep=args.sleep, length=200)

    register_env("empty", make)
    algo = build(
        "empty", args, args.runners * args.n_steps, num_env_runners=args.runners,
        num_envs_per_env_runner=1, create_env_on_local_worker=False,
    )  # fmt: skip
    startup_s = time.perf_counter() - STARTED
    steps, times, made = 0, [], []
    for _ in range(args.iterations):
        result = algo.train()
        times.append(time.perf_counter())
        steps = int(result["num_env_steps_sampled_lifetime"])
        made.append((steps, updates(algo)))
    first, last = args.warm - 1, args.iterations - 1
    window = {
        "s": times[last] - times[first], "steps": made[last][0] - made[first][0],
        "updates": made[last][1] - made[first][1], "phases": {},
    }  # fmt: skip
    algo.stop()
    ray.shutdown()
    return {
        "steps": steps, "updates": made[last][1], "window": window, "import_s": import_s,
        "startup_s": startup_s, "flow": {}, "versions": versions(),
        "wall_s": time.perf_counter() - STARTED,
    }  # fmt: skip


if __name__ == "__main__":
    report(lambda: train(arguments()))
