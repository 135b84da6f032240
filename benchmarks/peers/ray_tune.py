"""The trials of ``sweep.py`` as functions of Ray Tune: Flatout's own Python interface in each."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def trial(config: dict[str, Any]) -> None:
    """Train one seed, and report it."""
    from ray import tune

    from flatout import PPO

    settings = {"envs": 8, "n_steps": 256, "tensorboard": False, "checkpoint_every": 0}
    agent = PPO("CartPole-v1", seed=config["seed"], eval_every=config["steps"],
                env_backend=config["backend"], **settings)  # fmt: skip
    agent.learn(config["steps"], run_dir=Path(config["folder"]) / f"seed={config['seed']}")
    tune.report({"steps": agent.summary["steps"]})


def main() -> None:
    """Run all trials, one on each core at a time."""
    options = argparse.ArgumentParser(description=__doc__)
    for name in ("--trials", "--steps", "--seed"):
        options.add_argument(name, type=int, required=True)
    options.add_argument("--backend", default="host")
    args = options.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray import tune

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as folder:
        space = {
            "seed": tune.grid_search(list(range(args.trials))), "steps": args.steps,
            "backend": args.backend, "folder": f"{folder}/runs",
        }  # fmt: skip
        run = tune.RunConfig(storage_path=f"{folder}/tune", verbose=0)
        tuner = tune.Tuner(tune.with_resources(trial, {"cpu": 1}), param_space=space,
                           run_config=run)  # fmt: skip
        with redirect_stdout(sys.stderr):  # its tables
            found = [one.metrics["steps"] for one in tuner.fit()]
    print(json.dumps({"trials": len(found), "fewest_steps": min(found)}))


if __name__ == "__main__":
    main()
