"""DQN, DDPG, TD3 or SAC of Stable-Baselines3 or SBX, measured: prints one JSON object on stdout.

The flags have Flatout's names and meanings; `--train-freq` counts steps over all environments and
is divided by their number, for the libraries count vector steps. Environments are `make_vec_env`'s,
in this process; `--atari` takes `make_atari_env` with the libraries' own wrappers and four stacked
frames. Times are kept apart:

- ``import_s``: importing the library; everything below starts after it.
- ``startup_s``: making environments and model.
- ``train_s``: all of ``learn()``; ``steps_per_s`` is over it.
- ``window``: steps, updates and seconds from the first rollout at or after `--window-from` to the
  end of ``learn()``: learning has begun by then, and SBX has compiled.

``updates`` is read from the optimiser's own step counter (the critic's, where there is an actor).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

STARTED = time.perf_counter()

PENDULUM: dict[str, Any] = {
    "gamma": 0.98, "buffer_size": 200_000, "learning_starts": 10_000, "action_noise": 0.1,
    "learning_rate": 1e-3, "train_freq": 1, "gradient_steps": 1, "batch_size": 256,
    "hidden": [400, 300],
}  # fmt: skip
ZOO: dict[str, dict[str, Any]] = {
    "cartpole-dqn": {
        "algo": "dqn", "env": "CartPole-v1", "steps": 50_000, "learning_rate": 2.3e-3,
        "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000, "gamma": 0.99,
        "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128,
        "exploration_fraction": 0.16, "exploration_final_eps": 0.04, "hidden": [256, 256],
    },
    "pendulum-ddpg": {"algo": "ddpg", "env": "Pendulum-v1", "steps": 20_000} | PENDULUM,
    "pendulum-td3": {"algo": "td3", "env": "Pendulum-v1", "steps": 20_000} | PENDULUM,
    "pendulum-sac": {
        "algo": "sac", "env": "Pendulum-v1", "steps": 20_000, "learning_rate": 1e-3,
    },
}  # fmt: skip
"""RL Baselines3 Zoo's settings, by task; what is not named is the library's default."""

NUMBERS: dict[str, type] = {
    "learning_rate": float, "buffer_size": int, "learning_starts": int, "batch_size": int,
    "train_freq": int, "gradient_steps": int, "gamma": float, "tau": float, "policy_delay": int,
    "target_update_interval": int, "exploration_fraction": float, "exploration_final_eps": float,
    "action_noise": float,
}  # fmt: skip
"""Hyper-parameters that have a flag; `--hyper` takes any other."""


def layer_widths(text: str) -> list[int]:
    """Return the widths of layers, which are written as in Flatout: 64,64."""
    return [int(word) for word in text.split(",")]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--library", choices=("sb3", "sbx"), default="sb3")
    add("--zoo", choices=tuple(ZOO), help="RL Zoo's settings of a task; other flags override")
    add("--algo", choices=("dqn", "ddpg", "td3", "sac"), default=None)
    add("--env", default=None)
    add("--envs", type=int, default=1)
    add("--steps", type=int, default=None)
    for name, kind in NUMBERS.items():
        add(f"--{name.replace('_', '-')}", type=kind, default=None)
    add("--hidden", type=layer_widths, default=None, help="widths of the hidden layers")
    add("--hyper", type=json.loads, default={}, help="more arguments, as a JSON object")
    add("--atari", action="store_true", help="the libraries' Atari wrappers, 4 stacked frames")
    add("--seed", type=int, default=0)
    add("--window-from", type=int, default=None, help="step from which `window` counts")
    add("--eval-episodes", type=int, default=0, help="greedy episodes after training")
    add("--threads", type=int, default=1, help="PyTorch's threads (0: leave its default)")
    return parser.parse_args()


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for: the task's settings, and over them the flags.

    Raises:
        SystemExit: no algorithm or environment, or steps that the environments do not divide.
    """
    chosen: dict[str, Any] = dict(ZOO[args.zoo]) if args.zoo else {}
    for name in ("algo", "env", "steps", "hidden", *NUMBERS):
        if getattr(args, name) is not None:
            chosen[name] = getattr(args, name)
    chosen |= args.hyper
    if "algo" not in chosen or "env" not in chosen:
        sys.exit("name --algo and --env, or a task with --zoo.")
    chosen.setdefault("steps", 20_000)
    chosen.setdefault("train_freq", 4 if chosen["algo"] == "dqn" else 1)
    if chosen["train_freq"] % args.envs:
        sys.exit(f"--train-freq must be a multiple of --envs, {args.envs}.")
    chosen["train_freq"] //= args.envs
    return chosen


def main() -> None:
    """Train, perhaps evaluate, and print the figures."""
    args = arguments()
    hyper = settings(args)
    algo, env_name, steps = hyper.pop("algo"), hyper.pop("env"), hyper.pop("steps")
    hidden, noise = hyper.pop("hidden", None), hyper.pop("action_noise", None)
    if args.threads:  # before PyTorch starts its pool
        os.environ["OMP_NUM_THREADS"] = str(args.threads)

    import ale_py
    import gymnasium
    import numpy as np
    import stable_baselines3
    import torch
    import torch._dynamo  # the first Adam would import it: an import, not start-up
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import VecFrameStack

    versions = {
        "stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__,
        "gymnasium": gymnasium.__version__, "numpy": np.__version__,
        "python": sys.version.split()[0],
    }  # fmt: skip
    if args.atari:
        versions["ale-py"] = ale_py.__version__
    package: Any = stable_baselines3
    if args.library == "sbx":
        import jax
        import sbx

        package = sbx
        versions = {"sbx-rl": sbx.__version__, "jax": jax.__version__} | versions
    if args.threads:
        torch.set_num_threads(args.threads)

    class Window(BaseCallback):
        """Notes when the part that is measured begins."""

        begun: tuple[float, int, int] | None = None

        def _on_rollout_start(self) -> None:
            wanted = args.window_from
            if self.begun is None and wanted is not None and self.model.num_timesteps >= wanted:
                done = optimizer_steps(self.model, args.library, algo)
                self.begun = time.perf_counter(), self.model.num_timesteps, done

        def _on_step(self) -> bool:
            return True

    def make(envs: int, seed: int) -> Any:
        """Environments as the library's users make them."""
        if args.atari:
            return VecFrameStack(make_atari_env(env_name, n_envs=envs, seed=seed), 4)
        return make_vec_env(env_name, n_envs=envs, seed=seed)

    imported = time.perf_counter()
    env = make(args.envs, args.seed)
    if noise:
        shape = env.action_space.shape
        hyper["action_noise"] = NormalActionNoise(np.zeros(shape), noise * np.ones(shape))
    if hidden is not None:
        hyper["policy_kwargs"] = {"net_arch": hidden} | hyper.get("policy_kwargs", {})
    if args.library == "sb3":
        hyper["device"] = "cpu"
    policy = "CnnPolicy" if args.atari else "MlpPolicy"
    model = getattr(package, algo.upper())(policy, env, seed=args.seed, **hyper)
    window = Window()
    ready = time.perf_counter()
    model.learn(steps, callback=window)
    trained = time.perf_counter()

    done, updates = model.num_timesteps, optimizer_steps(model, args.library, algo)
    result: dict[str, Any] = {
        "library": args.library, "algo": algo, "env": env_name, "envs": args.envs,
        "seed": args.seed, "import_s": imported - STARTED, "startup_s": ready - imported,
        "train_s": trained - ready, "steps": done, "updates": updates,
        "episodes": sum(len(each) for each in env.env_method("get_episode_rewards")),
        "return_mean_100": None, "steps_per_s": done / (trained - ready), "window": None,
        "threads": torch.get_num_threads(), "versions": versions,
    }  # fmt: skip
    if model.ep_info_buffer:
        result["return_mean_100"] = float(np.mean([each["r"] for each in model.ep_info_buffer]))
    if window.begun is not None:
        at, steps_before, updates_before = window.begun
        result["window"] = {
            "steps": done - steps_before, "updates": updates - updates_before, "s": trained - at,
        }  # fmt: skip
    if args.eval_episodes:
        test = make(1, args.seed + 10_000)
        mean, std = evaluate_policy(model, test, args.eval_episodes, deterministic=True)
        result |= {"eval_mean": float(mean), "eval_std": float(std)}
    result["wall_s"] = time.perf_counter() - STARTED
    print(json.dumps(result))


def optimizer_steps(model: Any, library: str, algo: str) -> int:
    """Gradient steps so far, as counted by the optimiser itself."""
    if library == "sbx":
        return int(model.policy.qf_state.step)
    optimizer = model.policy.optimizer if algo == "dqn" else model.critic.optimizer
    return int(max((float(state["step"]) for state in optimizer.state.values()), default=0.0))


if __name__ == "__main__":
    main()
