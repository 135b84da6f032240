"""PPO of Stable-Baselines3, SBX or sb3-contrib (its MaskablePPO): prints one JSON object on stdout.

Both libraries get the same policy (separate 64x64 tanh networks for actor and critic), the CPU,
and `make_vec_env`'s in-process environments. Times are kept apart:

- ``import_s``: importing the library; everything below starts after it.
- ``startup_s``: making environments and model.
- ``train_s``: all of ``learn()``; ``steps_per_s`` is over it.
- ``warm_steps_per_s``: without the first rollout and its updates, in which SBX compiles.

``updates`` is read from the optimiser's own step counter. (SBX steps the actor's and the critic's
optimiser for each minibatch; that pair is one update, as SB3's single step for both is.)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

STARTED = time.perf_counter()

ZOO: dict[str, dict[str, Any]] = {
    "cartpole": {
        "env": "CartPole-v1", "envs": 8, "steps": 100_000,
        "hyper": {
            "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
            "ent_coef": 0.0, "learning_rate": "lin_0.001", "clip_range": "lin_0.2",
        },
    },
}  # fmt: skip
"""RL Baselines3 Zoo's tuned settings, by task."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--library", choices=("sb3", "sbx", "maskable"), default="sb3")
    add("--zoo", choices=tuple(ZOO), help="RL Zoo's settings of a task; other flags override")
    add("--env", default=None)
    add("--envs", type=int, default=None)
    add("--steps", type=int, default=None)
    add("--n-steps", type=int, default=None)
    add("--batch-size", type=int, default=None)
    add("--n-epochs", type=int, default=None)
    add("--hyper", type=json.loads, default={}, help="more arguments of PPO, as a JSON object")
    add("--seed", type=int, default=0)
    add("--policy", default="MlpPolicy", help="MultiInputPolicy for Dict observations")
    add("--normalize", action="store_true", help="normalise observations and rewards")
    add("--stop-at-return", type=float, default=None, help="mean of the last 100 episodes")
    add("--eval-episodes", type=int, default=0, help="deterministic episodes after training")
    add("--threads", type=int, default=1, help="PyTorch's threads (0: leave its default)")
    return parser.parse_args()


def schedule(value: Any) -> float | Callable[[float], float]:
    """``lin_X`` as a function of the remaining progress (1 to 0); a number as it is."""
    match = re.fullmatch(r"lin_([0-9.eE+-]+)", value) if isinstance(value, str) else None
    if match is None:
        return float(value)
    start = float(match[1])
    return lambda remaining: start * remaining


def settings(args: argparse.Namespace) -> tuple[str, int, int, dict[str, Any]]:
    """Environment, number of environments, steps and PPO's arguments."""
    zoo = ZOO[args.zoo] if args.zoo else {"hyper": {}}
    hyper: dict[str, Any] = {"n_steps": 2048, "batch_size": 64, "n_epochs": 10} | zoo["hyper"]
    for name in ("n_steps", "batch_size", "n_epochs"):
        if getattr(args, name) is not None:
            hyper[name] = getattr(args, name)
    hyper |= args.hyper
    for name in ("learning_rate", "clip_range"):
        if name in hyper:
            hyper[name] = schedule(hyper[name])
    env = args.env or zoo.get("env", "CartPole-v1")
    envs = args.envs or zoo.get("envs", 1)
    return env, envs, args.steps or zoo.get("steps", 100_000), hyper


class SolvedError(Exception):
    """Raised at a rollout's end: the wanted return is reached, and training stops there."""


def main() -> None:
    """Train, perhaps evaluate, and print the figures."""
    args = arguments()
    env_name, n_envs, steps, hyper = settings(args)
    if args.threads:  # before PyTorch starts its pool
        os.environ["OMP_NUM_THREADS"] = str(args.threads)

    import gymnasium
    import numpy as np
    import stable_baselines3
    import torch
    import torch._dynamo  # the first Adam would import it: an import, not start-up
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    versions = {
        "stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__,
        "gymnasium": gymnasium.__version__, "numpy": np.__version__,
        "python": sys.version.split()[0],
    }  # fmt: skip
    if args.library == "sbx":
        import flax.linen
        import jax
        import sbx

        library: Any = sbx.PPO
        tanh: Any = flax.linen.tanh
        versions = {"sbx-rl": sbx.__version__, "jax": jax.__version__} | versions
    else:
        library, tanh = stable_baselines3.PPO, torch.nn.Tanh
    if args.library == "maskable":
        import sb3_contrib

        library = sb3_contrib.MaskablePPO
        versions = {"sb3-contrib": sb3_contrib.__version__} | versions
    if args.threads:
        torch.set_num_threads(args.threads)

    class Watch(BaseCallback):
        """Notes when the first rollout has been learned from and when the return is reached."""

        rollouts = 0
        warm_from: tuple[float, int] | None = None
        solved_at: tuple[float, int] | None = None

        def _on_rollout_start(self) -> None:
            self.rollouts += 1
            if self.rollouts == 2:
                self.warm_from = time.perf_counter(), self.model.num_timesteps

        def _on_rollout_end(self) -> None:
            returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
            wanted = args.stop_at_return
            if wanted is not None and len(returns) >= 100 and np.mean(returns) >= wanted:
                self.solved_at = time.perf_counter(), self.model.num_timesteps
                raise SolvedError

        def _on_step(self) -> bool:
            return True

    imported = time.perf_counter()
    env = make_vec_env(env_name, n_envs=n_envs, seed=args.seed)
    if args.normalize:
        env = VecNormalize(env, gamma=hyper.get("gamma", 0.99))
    network: dict[str, Any] = {
        "net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": tanh,
    }  # fmt: skip
    if args.policy == "MultiInputPolicy":
        network["features_extractor_kwargs"] = {"cnn_output_dim": 512}
    model = library(args.policy, env, seed=args.seed, device="cpu", policy_kwargs=network, **hyper)
    watch = Watch()
    ready = time.perf_counter()
    with contextlib.suppress(SolvedError):
        model.learn(steps, callback=watch)
    trained = time.perf_counter()

    done = model.num_timesteps
    result: dict[str, Any] = {
        "library": args.library, "env": env_name, "envs": n_envs, "seed": args.seed,
        "import_s": imported - STARTED, "startup_s": ready - imported, "train_s": trained - ready,
        "steps": done, "updates": optimizer_steps(model, args.library),
        "episodes": sum(len(each) for each in env.env_method("get_episode_rewards")),
        "return_mean_100": None, "steps_per_s": done / (trained - ready),
        "warm_steps_per_s": None, "stop_at_return": args.stop_at_return,
        "time_to_return_s": None, "steps_to_return": None, "threads": torch.get_num_threads(),
        "versions": versions,
    }  # fmt: skip
    if model.ep_info_buffer:
        result["return_mean_100"] = float(np.mean([each["r"] for each in model.ep_info_buffer]))
    if watch.warm_from is not None:
        at, before = watch.warm_from
        result["warm_steps_per_s"] = (done - before) / (trained - at)
    if watch.solved_at is not None:
        result["time_to_return_s"] = watch.solved_at[0] - imported
        result["steps_to_return"] = watch.solved_at[1]
    if args.eval_episodes:
        test: Any = make_vec_env(env_name, n_envs=1, seed=args.seed + 10_000)
        if args.normalize:
            test = VecNormalize(test, training=False, norm_reward=False)
            test.obs_rms = env.obs_rms
        mean, std = evaluate_policy(model, test, args.eval_episodes, deterministic=True)
        result |= {"eval_return_mean": float(mean), "eval_return_std": float(std)}
    result["wall_s"] = time.perf_counter() - STARTED
    print(json.dumps(result))


def optimizer_steps(model: Any, library: str) -> int:
    """Gradient steps so far, as counted by the optimiser itself."""
    if library == "sbx":
        return int(model.policy.actor_state.step)
    states = model.policy.optimizer.state
    return int(max((float(state["step"]) for state in states.values()), default=0.0))


if __name__ == "__main__":
    main()
