"""Train PPO with RLlib: prints one JSON object on stdout.

    run_rllib.py --env CartPole-v1 --envs 8 --steps 61440          # environments in this process
    run_rllib.py --sleep 0.02 --runners 16 --envs 1 --steps 6400   # in actors of a Ray

Separate 64x64 tanh networks for actor and critic, a learner in this process, and the loss of
Stable-Baselines3's defaults. Ray is started here, with a CPU for each actor. `updates` is read from
the optimiser's own step counter; each takes a minibatch of `--batch-size`.
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
from pathlib import Path
from typing import Any

from clock import since_start

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["PYTHONPATH"] = sys.path[0]  # of Ray's actors


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--env", help="a Gymnasium id")
    add("--sleep", type=float, help="train on one that sleeps in each step: seconds")
    add("--runners", type=int, default=0, help="actors that step environments; 0: this process")
    add("--envs", type=int, default=8, help="in this process, or in each actor")
    add("--n-steps", type=int, default=256)
    add("--batch-size", type=int, default=64)
    add("--n-epochs", type=int, default=10)
    add("--steps", type=int, required=True)
    add("--window-from", type=int, default=0)
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    if (args.env is None) == (args.sleep is None):
        parser.error("either --env or --sleep.")
    return args


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


def build(args: argparse.Namespace) -> Any:
    """PPO on a Ray of this program's own."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    ray.init(
        "local", num_cpus=args.runners + 2, object_store_memory=200_000_000,
        include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False,
    )  # fmt: skip

    def sleeping(_: Any) -> Any:
        from empty_env import Empty

        return Empty(sleep=args.sleep, length=200)

    register_env("sleeping", sleeping)
    return (
        PPOConfig()
        .environment(args.env or "sleeping")
        .env_runners(rollout_fragment_length=args.n_steps, num_env_runners=args.runners,
                     num_envs_per_env_runner=args.envs,
                     create_env_on_local_worker=not args.runners)
        .learners(num_learners=0, num_gpus_per_learner=0)
        .training(train_batch_size_per_learner=args.n_steps * args.envs * max(1, args.runners),
                  minibatch_size=args.batch_size, num_epochs=args.n_epochs, lr=3e-4,
                  lambda_=0.95, clip_param=0.2, vf_loss_coeff=0.5, grad_clip=0.5,
                  use_kl_loss=False)
        .rl_module(model_config=DefaultModelConfig(
            fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False))
        .debugging(seed=args.seed)
        .build_algo()
    )  # fmt: skip


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train for the steps; return the figures."""
    import gymnasium
    import ray
    import torch

    algo = build(args)
    startup_s = since_start()
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
        "startup_s": startup_s, "first_update_s": first_update_s, "flow": {},
        "window": {
            "steps": last - before, "updates": made - updates_before, "s": end - begin,
            "phases": {},
        },
        "versions": {
            "ray": ray.__version__, "torch": torch.__version__,
            "gymnasium": gymnasium.__version__,
        },
    }  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        figures = train(arguments())
    print(json.dumps(figures))
