"""Sample Factory's APPO on CartPole-v1: prints one JSON object on stdout.

Two worker processes (`--workers`) of 16 environments in two halves, rollouts of 32 steps, one
gradient step for every 1,024 steps, one epoch, on the CPU: asynchronous, as Sample Factory is
made to be. Its network is one 64x64 torso for policy and value, without recurrence or running
statistics, which is less arithmetic than two networks. ``window`` counts its own environment
steps and seconds between two of its training iterations, long after start-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from typing import Any

STARTED = time.perf_counter()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--seed", type=int, default=0)
    add("--workers", type=int, default=2)
    add("--envs", type=int, default=16, help="of each worker")
    add("--rollout", type=int, default=32)
    add("--batch", type=int, default=1024)
    add("--steps", type=int, default=400_000)
    add("--window-from", type=int, default=100_000)
    return parser.parse_args()


def make_env(name: str, cfg: object, env_config: object, render_mode: str | None = None) -> Any:
    """What Sample Factory's processes call."""
    import gymnasium

    return gymnasium.make(name)


def main() -> None:
    """Train, then print the figures."""
    args = arguments()
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    register_env("CartPole-v1", make_env)
    folder = tempfile.mkdtemp()
    flags = {
        "algo": "APPO", "env": "CartPole-v1", "experiment": "run", "train_dir": folder,
        "device": "cpu", "seed": args.seed, "num_workers": args.workers,
        "num_envs_per_worker": args.envs, "worker_num_splits": 2, "rollout": args.rollout,
        "batch_size": args.batch, "num_batches_per_epoch": 1, "num_epochs": 1,
        "train_for_env_steps": args.steps, "use_rnn": False, "recurrence": 1,
        "normalize_input": False, "normalize_returns": False, "learning_rate": 3e-4,
        "gamma": 0.99, "gae_lambda": 0.95, "with_vtrace": False, "save_every_sec": 10_000,
        "stats_avg": 100,
    }  # fmt: skip
    argv = [f"--{name}={value}" for name, value in flags.items()]
    argv += ["--encoder_mlp_layers", "64", "64"]

    class Watch(AlgoObserver):
        """Notes steps, updates and time at each training iteration."""

        marks: list[tuple[int, int, float]]

        def __init__(self) -> None:
            self.marks = []

        def on_training_step(self, runner, training_iteration_since_resume):  # type: ignore[no-untyped-def]
            steps = sum(runner.env_steps.values())
            self.marks.append((steps, int(training_iteration_since_resume), time.perf_counter()))

    with contextlib.redirect_stdout(sys.stderr):
        cfg = parse_full_cfg(parse_sf_args(argv)[0], argv)
        cfg, runner = make_runner(cfg)
        watch = Watch()
        runner.register_observer(watch)
        status = runner.init()
        if status == 0:
            status = runner.run()
    if status:
        raise SystemExit(f"Sample Factory ended with {status}")
    inside = [mark for mark in watch.marks if mark[0] >= args.window_from]
    (first, updates, begin), (last, more, end) = inside[0], inside[-1]
    print(json.dumps({
        "steps": last, "updates": more, "wall_s": time.perf_counter() - STARTED,
        "window": {"steps": last - first, "updates": more - updates, "s": end - begin},
        "versions": {
            "python": platform.python_version(), "sample-factory": version("sample-factory"),
            "torch": version("torch"), "gymnasium": version("gymnasium"),
        },
    }))  # fmt: skip


if __name__ == "__main__":
    main()
