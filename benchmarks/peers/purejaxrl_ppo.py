"""PureJaxRL's own PPO program, measured: prints one JSON object on stdout.

CartPole-v1 with its settings, or MinAtar's Breakout with those of its MinAtar example.

`--purejaxrl` is a checkout of the project; its ``ppo.py`` is imported as it is. Compiling and
running are timed apart. ``updates`` follow from the settings; ``return_mean_100`` is the mean of
the last 100 episodes that ended.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from unittest.mock import MagicMock

UNUSED = ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix")
"""Imported by its wrappers, for environments that are not played here."""

POINTS = 10
"""Of the learning curve."""


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--purejaxrl", type=Path, required=True, help="a checkout")
    add("--env", choices=("CartPole-v1", "Breakout-MinAtar"), default="CartPole-v1")
    add("--steps", type=int, default=500_000)
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    sys.path.insert(0, str(args.purejaxrl / "purejaxrl"))
    absent = [name for name in UNUSED if importlib.util.find_spec(name.partition(".")[0]) is None]
    sys.modules.update({name: MagicMock() for name in absent})
    with contextlib.redirect_stdout(sys.stderr):  # what it imports says what is not there
        import jax
        import numpy as np
        import ppo

    config = {
        "LR": 2.5e-4, "NUM_ENVS": 4, "NUM_STEPS": 128, "TOTAL_TIMESTEPS": args.steps,
        "UPDATE_EPOCHS": 4, "NUM_MINIBATCHES": 4, "GAMMA": 0.99, "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": "tanh", "ENV_NAME": args.env, "ANNEAL_LR": True, "DEBUG": False,
    }  # fmt: skip
    if args.env != "CartPole-v1":
        config |= {"LR": 5e-3, "NUM_ENVS": 64, "NUM_MINIBATCHES": 8}
    size = config["NUM_ENVS"] * config["NUM_STEPS"]
    key = jax.random.PRNGKey(args.seed)
    begin = time.perf_counter()
    program = jax.jit(ppo.make_train(config)).lower(key).compile()
    compiled = time.perf_counter()
    out = jax.block_until_ready(program(key))
    train_s = time.perf_counter() - compiled
    metrics = out["metrics"]
    ended = np.asarray(metrics["returned_episode"])
    returns = np.asarray(metrics["returned_episode_returns"])[ended]
    updates = args.steps // size * config["UPDATE_EPOCHS"] * config["NUM_MINIBATCHES"]
    steps = np.broadcast_to(
        np.arange(1, len(ended.ravel()) // config["NUM_ENVS"] + 1) * config["NUM_ENVS"],
        (config["NUM_ENVS"], len(ended.ravel()) // config["NUM_ENVS"]),
    ).T.reshape(ended.shape)[ended]
    curve = []
    for point in range(1, POINTS + 1):
        so_far = returns[steps <= args.steps * point / POINTS]
        curve.append([args.steps * point // POINTS, float(so_far[-100:].mean()),
                      train_s * point / POINTS])  # fmt: skip
    print(json.dumps({
        "steps": args.steps, "updates": updates, "curve": curve, "compile_s": compiled - begin,
        "train_s": train_s, "steps_per_s": args.steps / train_s,
        "return_mean_100": float(returns[-100:].mean()),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
