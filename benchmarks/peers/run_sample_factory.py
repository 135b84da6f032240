"""Train with Sample Factory's APPO: prints one JSON object on stdout.

Worker processes of some environments each, on the CPU. A game (`--env atari_breakout`) has the
settings, network and wrappers of Sample Factory's own Atari example; other environments have one
64x64 torso for policy and value, and one epoch of one batch. Both learn asynchronously, and halves
of a worker's environments take turns, as Sample Factory is made to: the example does neither, and
is slower. There is no recurrence, and no running statistics of observations or returns. Steps are
those that it has learned from: it stops some rollouts after `--steps`. ``window`` lies between two
of its training iterations.
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

from clock import since_start

STARTED = time.perf_counter()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--env", default="CartPole-v1", help="a Gymnasium id, or a game of Sample Factory's")
    add("--seed", type=int, default=0)
    add("--workers", type=int, default=2)
    add("--envs", type=int, default=16, help="of each worker")
    add("--rollout", type=int, default=32)
    add("--batch", type=int, default=1024)
    add("--steps", type=int, default=400_000)
    add("--window-from", type=int, default=100_000)
    return parser.parse_args()


def make_env(name: str, cfg: object, env_config: object, render_mode: str | None = None) -> Any:
    """Make an environment in one of Sample Factory's processes."""
    import gymnasium

    return gymnasium.make(name)


def make_game(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """The same for an Atari game."""
    import ale_py  # noqa: F401  # it registers the games
    from sf_examples.atari.atari_utils import make_atari_env

    return make_atari_env(name, cfg, env_config, render_mode)


def main() -> None:
    """Train, then print the figures."""
    args = arguments()
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner
    from sf_examples.atari.atari_params import atari_override_defaults

    game = args.env.startswith("atari_")
    register_env(args.env, make_game if game else make_env)
    flags = {
        "algo": "APPO", "env": args.env, "experiment": "run", "train_dir": tempfile.mkdtemp(),
        "device": "cpu", "seed": args.seed, "num_workers": args.workers,
        "num_envs_per_worker": args.envs, "worker_num_splits": 2, "rollout": args.rollout,
        "batch_size": args.batch, "train_for_env_steps": args.steps, "save_every_sec": 10_000,
        "summaries_use_frameskip": False, "stats_avg": 100, "normalize_input": False,
        "normalize_returns": False, "async_rl": True,
    }  # fmt: skip
    if not game:
        flags |= {
            "num_batches_per_epoch": 1, "num_epochs": 1, "use_rnn": False, "recurrence": 1,
            "learning_rate": 3e-4, "gamma": 0.99, "gae_lambda": 0.95, "with_vtrace": False,
        }  # fmt: skip
    argv = [f"--{name}={value}" for name, value in flags.items()]
    if not game:
        argv += ["--encoder_mlp_layers", "64", "64"]

    class Watch(AlgoObserver):
        """Notes training iterations and their times."""

        def __init__(self) -> None:
            self.marks: list[tuple[int, float]] = []
            self.first_update_s = 0.0

        def on_training_step(self, runner, training_iteration_since_resume):  # type: ignore[no-untyped-def]
            self.first_update_s = self.first_update_s or since_start()
            self.marks.append((int(training_iteration_since_resume), time.perf_counter()))

    with contextlib.redirect_stdout(sys.stderr):
        settings = parse_sf_args(argv)[0]
        if game:
            atari_override_defaults(args.env, settings)
        cfg, runner = make_runner(parse_full_cfg(settings, argv))
        watch = Watch()
        runner.register_observer(watch)
        status = runner.init()
        if status == 0:
            status = runner.run()
    if status:
        raise SystemExit(f"Sample Factory ended with {status}")
    rollout = args.batch * cfg.num_batches_per_epoch
    each = cfg.num_epochs * cfg.num_batches_per_epoch
    before, begin = next(mark for mark in watch.marks if mark[0] * rollout >= args.window_from)
    count, end = watch.marks[-1]
    print(json.dumps({
        "steps": count * rollout, "updates": count * each, "samples": count * each * args.batch,
        "first_update_s": watch.first_update_s, "wall_s": time.perf_counter() - STARTED,
        "window": {
            "steps": (count - before) * rollout, "updates": (count - before) * each,
            "s": end - begin,
        },
        "versions": {
            "python": platform.python_version(), "sample-factory": version("sample-factory"),
            "torch": version("torch"), "gymnasium": version("gymnasium"),
            **({"ale-py": version("ale-py")} if game else {}),
        },
    }))  # fmt: skip


if __name__ == "__main__":
    main()
