"""Why do HalfCheetah's seeds scatter? The share of steps that each agent spends on its back.

Plays greedy episodes with the final parameters of the runs that `mujoco_ppo.py` has left in
benchmarks/runs/mujoco_ppo. The body is on its back while the cosine of its pitch is negative.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness import HERE, BenchmarkError, main, parser
from machine import machine
from report import table, write_section

NAME = "halfcheetah_posture"
RUNS = HERE / "runs" / "mujoco_ppo"
PITCH = 2
"""The index of the body's pitch in the simulator's positions."""


def played(run: Path, episodes: int) -> tuple[float, float]:
    """The mean return of greedy episodes, and the share of steps on the back."""
    import gymnasium as gym
    import numpy as np

    import flatout

    agent = flatout.PPO.load(run)
    env: Any = gym.make("HalfCheetah-v5")
    returns: list[float] = []
    back = steps = 0
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        total, over = 0.0, False
        while not over:
            action, _ = agent.predict(obs, deterministic=True)
            action = np.clip(action, -1.0, 1.0)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
            back += math.cos(env.unwrapped.data.qpos[PITCH]) < 0
            steps += 1
        returns.append(total)
    env.close()
    return statistics.fmean(returns), back / steps


def benchmark(args: argparse.Namespace) -> None:
    """Play with every run there is, and write the section.

    Raises:
        BenchmarkError: there is none.
    """
    runs = sorted(RUNS.glob("halfcheetah-ppo-*"))
    runs = [run for run in runs if (run / "summary.json").exists()]
    if not runs:
        raise BenchmarkError("no finished run: run benchmarks/mujoco_ppo.py first.")
    rows: list[list[str]] = []
    for run in runs:
        mean, back = played(run, args.episodes)
        print(f"{run.name}: {mean:,.0f}, {back:.0%} on its back", flush=True)
        rows.append([run.name.rpartition("-")[2], f"{mean:,.0f}", f"{back:.0%}"])
    versions = ", ".join(f"{name} {version(name)}" for name in ("flatout", "gymnasium", "mujoco"))
    parts = [
        "## How HalfCheetah's agents run",
        f"- Machine: {machine()}.\n- Date: {time.strftime('%Y-%m-%d')}.\n"
        f"- Command: `python benchmarks/halfcheetah_posture.py`\n- Versions: {versions}.",
        f"{args.episodes} greedy episodes with the final parameters of each seed's run. An agent "
        "that learned to run on its back has found another gait than one that runs on its feet.",
        table(["seed", "greedy return", "share of steps on its back"], rows),
    ]
    write_section(args, NAME, "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    options = parser(__doc__, seeds=5)
    options.add_argument("--episodes", type=int, default=5, help="episodes of each agent")
    main(benchmark, options.parse_args())
