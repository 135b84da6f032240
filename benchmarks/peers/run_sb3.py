"""Train with Stable-Baselines3, sb3-contrib or SBX: prints one JSON object on stdout.

    run_sb3.py stable_baselines3 PPO --env CartPole-v1 --envs 8 --steps 102400 --n-steps 256

Any flag that is not listed in `--help` is an argument of the algorithm, under the library's own
name and with its own meaning (`--train-freq` counts vector steps); ``lin_3e-4`` falls linearly to
zero. Environments are `make_vec_env`'s, in this process. Updates are read from the optimiser's own
counter; `window` counts from the first rollout at or after `--window-from` to the end.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import sys
import time
from typing import Any

from clock import since_start


def arguments() -> tuple[argparse.Namespace, dict[str, Any]]:
    """The command line, and the arguments of the algorithm."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("library", choices=("stable_baselines3", "sb3_contrib", "sbx"))
    add("algorithm", help="the class: PPO, MaskablePPO, DQN, SAC, ...")
    add("--env", required=True)
    add("--envs", type=int, default=1)
    add("--steps", type=int, required=True)
    add("--window-from", type=int, default=0, help="step from which `window` counts")
    add("--seed", type=int, default=0)
    add("--policy", default="MlpPolicy")
    add("--net-arch", default=None, help="widths of the hidden layers: 64,64")
    add("--atari", action="store_true", help="the library's Atari wrappers and 4 stacked frames")
    add("--normalize", action="store_true", help="normalise observations and rewards")
    add("--eval-episodes", type=int, default=0, help="greedy episodes after training")
    args, rest = parser.parse_known_args()
    names, values = rest[::2], rest[1::2]
    if len(names) != len(values) or not all(name.startswith("--") for name in names):
        parser.error(f"expected pairs of --name and value, not {' '.join(rest)}")
    pairs = zip(names, values, strict=True)
    return args, {name[2:].replace("-", "_"): value_of(text) for name, text in pairs}


def value_of(text: str) -> Any:
    """A Python value, ``lin_X`` as a function of the remaining progress (1 to 0), or the text."""
    if text.startswith("lin_"):
        start = float(text.removeprefix("lin_"))
        return lambda remaining: start * remaining
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return text


def main() -> None:
    """Train, perhaps evaluate, and print the figures."""
    args, hyper = arguments()

    import gymnasium
    import numpy as np
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

    library = importlib.import_module(args.library)
    versions = {
        args.library: library.__version__, "torch": torch.__version__,
        "gymnasium": gymnasium.__version__, "numpy": np.__version__,
        "python": sys.version.split()[0],
    }  # fmt: skip
    if args.atari:
        import ale_py

        gymnasium.register_envs(ale_py)
        versions["ale-py"] = ale_py.__version__
    if args.library == "sbx":
        versions["jax"] = importlib.import_module("jax").__version__

    def make(envs: int, seed: int) -> Any:
        if args.atari:
            return VecFrameStack(make_atari_env(args.env, n_envs=envs, seed=seed), 4)
        return make_vec_env(args.env, n_envs=envs, seed=seed)

    class Watch(BaseCallback):
        """Notes when the first update was done and when the window began."""

        first_update_s: float | None = None
        begun: tuple[float, int, int] | None = None

        def _on_rollout_start(self) -> None:
            if self.first_update_s is None and self.model._n_updates > 0:
                self.first_update_s = since_start()
            if self.begun is None and self.model.num_timesteps >= args.window_from:
                self.begun = time.perf_counter(), self.model.num_timesteps, updates_of(self.model)

        def _on_step(self) -> bool:
            return True

    env = make(args.envs, args.seed)
    if args.normalize:
        env = VecNormalize(env, gamma=hyper.get("gamma", 0.99))
    if args.net_arch:
        hyper["policy_kwargs"] = {"net_arch": [int(width) for width in args.net_arch.split(",")]}
    if args.policy == "MultiInputPolicy":
        hyper["policy_kwargs"] = {
            "net_arch": {"pi": [64, 64], "vf": [64, 64]},
            "features_extractor_kwargs": {"cnn_output_dim": 512},
        }
    policy = "CnnPolicy" if args.atari else args.policy
    model = getattr(library, args.algorithm)(policy, env, seed=args.seed, device="cpu", **hyper)
    watch = Watch()
    model.learn(args.steps, callback=watch)
    ended = time.perf_counter()
    begin, steps_before, updates_before = watch.begun or (ended, 0, 0)
    steps, updates = model.num_timesteps, updates_of(model)
    returns = [episode["r"] for episode in model.ep_info_buffer or ()]
    result: dict[str, Any] = {
        "steps": steps, "updates": updates, "samples": updates * model.batch_size,
        "first_update_s": watch.first_update_s or since_start(),
        "window": {
            "steps": steps - steps_before, "updates": updates - updates_before, "s": ended - begin,
        },
        "return_mean_100": float(np.mean(returns)) if returns else None,
        "threads": torch.get_num_threads(), "versions": versions,
    }  # fmt: skip
    if args.eval_episodes:
        test = make(1, args.seed + 10_000)
        if args.normalize:
            test = VecNormalize(test, training=False, norm_reward=False)
            test.obs_rms = env.obs_rms
        mean, std = evaluate_policy(model, test, args.eval_episodes, deterministic=True)
        result |= {"score": float(mean), "score_std": float(std)}
    print(json.dumps(result))


def updates_of(model: Any) -> int:
    """Gradient steps so far, as counted by the optimiser (of the critic, where it has its own)."""
    if hasattr(model.policy, "qf_state"):
        return int(model.policy.qf_state.step)
    if hasattr(model.policy, "actor_state"):
        return int(model.policy.actor_state.step)
    optimizer = getattr(getattr(model, "critic", None), "optimizer", None)
    states = (optimizer or model.policy.optimizer).state.values()
    return int(max((float(state["step"]) for state in states), default=0.0))


if __name__ == "__main__":
    main()
