"""Replay survives kills: DQN, SAC, TQC, hindsight, priorities, Atari (with and without sticky
actions) and Snake resume bit for bit."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

from tests.kills import kill_at_random_times, of_all_cpus

COMMON = ("--no-tensorboard", "--quiet", "--hidden", "16", "--buffer-size", "600",
          "--batch-size", "16", "--seed", "4")  # fmt: skip
VARIANTS = {
    # A ring that wraps several times, n-step returns, evaluations.
    "dqn": ("dqn", "--env", "CartPole-v1", "--envs", "3", "--steps", "5100", "--n-step", "3",
            "--learning-starts", "200", "--target-update-interval", "300", "--checkpoint-every",
            "150", "--log-every", "300", "--eval-every", "1500", "--eval-episodes", "2"),
    "prioritised": ("dqn", "--env", "CartPole-v1", "--envs", "2", "--steps", "4000", "--double",
                    "--dueling", "--prioritized", "--train-freq", "8", "--gradient-steps", "4",
                    "--learning-starts", "200", "--checkpoint-every", "150"),
    "sac": ("sac", "--env", "Pendulum-v1", "--env-kwargs", "max_episode_steps=37", "--steps",
            "1500", "--learning-starts", "50", "--checkpoint-every", "60"),
    "tqc": ("tqc", "--env", "Pendulum-v1", "--env-kwargs", "max_episode_steps=37", "--steps",
            "1200", "--learning-starts", "50", "--checkpoint-every", "60"),
    # A ring that wraps, episodes that are terminated and truncated, n-step returns.
    "hindsight": ("dqn", "--env", "tests.goal_envs:BitFlip", "--envs", "3", "--hindsight", "4",
                  "--steps", "4500", "--n-step", "2", "--learning-starts", "200",
                  "--checkpoint-every", "150"),
    "hindsight, prioritised, two shards": (
        "dqn", "--env", "tests.goal_envs:BitFlip", "--envs", "2", "--hindsight", "4", "--shards",
        "2", "--prioritized", "--steps", "4000", "--n-step", "2", "--train-freq", "8",
        "--gradient-steps", "4", "--learning-starts", "200", "--checkpoint-every", "150"),
    "snake": ("dqn", "--env", "flatout/Snake-v0", "--env-kwargs", "size=5", "--env-kwargs",
              "patience=9", "--envs",
              "2", "--network", "onehot", "--steps", "3600", "--learning-starts", "100",
              "--checkpoint-every", "80", "--placement", "act=cpu replay=device"),
    "atari": ("dqn", "--env", "ALE/Breakout-v5", "--envs", "2", "--steps", "320", "--network",
              "mlp", "--learning-starts", "40", "--train-freq", "8", "--checkpoint-every", "16",
              "--terminal-on-life-loss", "--clip-reward"),
    "short games": ("dqn", "--env", "BreakoutNoFrameskip-v4", "--envs", "2", "--steps", "320",
                    "--env-kwargs", "max_num_frames_per_episode=100", "--network", "mlp",
                    "--learning-starts", "40", "--train-freq", "8", "--checkpoint-every", "16"),
}  # fmt: skip
KILLS = {
    "dqn": 2, "prioritised": 1, "sac": 1, "tqc": 1, "hindsight": 2, "snake": 1, "atari": 1,
    "short games": 1, "hindsight, prioritised, two shards": 1,
}  # fmt: skip
LONGEST = {"atari": 2.5, "short games": 2.5, "snake": 2.0}
"""Seconds that a process trains at most before it is killed, where 0.8 is too little."""


@pytest.mark.slow
@pytest.mark.parametrize("variant", of_all_cpus(VARIANTS, "dqn"))
def test_killed_at_random_times_and_resumed_is_bit_equal(variant: str, tmp_path: Path) -> None:
    """Networks, optimisers, replayed rows, priorities, counters, rows of metrics and episodes."""
    if variant in ("atari", "short games") and importlib.util.find_spec("ale_py") is None:
        pytest.skip("ale-py is not installed")
    dice = random.Random(variant)
    flags = ("train", *VARIANTS[variant], *COMMON)
    kill_at_random_times(flags, KILLS[variant], dice, tmp_path, LONGEST.get(variant, 0.8))
