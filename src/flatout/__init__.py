"""Flatout: deep reinforcement learning with every part on the hardware where it runs fastest.

from flatout import PPO

agent = PPO("CartPole-v1", seed=1).learn(100_000, progress_bar=True)
action = agent.predict(observation, deterministic=True)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    # `python -m flatout` puts the working folder first: in a stranger's run folder a file called
    # numpy.py would be imported. Environments are looked for there when they are named.
    module = sys.orig_argv[sys.orig_argv.index("-m") + 1] if "-m" in sys.orig_argv else ""
    if module.partition(".")[0] == "flatout" and not __file__.startswith(sys.path[0] + "/flatout/"):
        del sys.path[0]
    del module

from flatout.errors import (
    CheckpointError,
    EnvironmentFailure,
    FlatoutError,
    UsageError,
)
from flatout.placement import Placement

if TYPE_CHECKING:
    from flatout.api import A2C, DDPG, DQN, PPO, SAC, TD3, Genetic

__version__ = "0.1.0"

__all__ = [
    "A2C",
    "DDPG",
    "DQN",
    "PPO",
    "SAC",
    "TD3",
    "CheckpointError",
    "EnvironmentFailure",
    "FlatoutError",
    "Genetic",
    "Placement",
    "UsageError",
]


def __getattr__(name: str) -> Any:
    """Load agents on first use: `import flatout` stays quick and JAX unstarted."""
    if name in ("A2C", "DDPG", "DQN", "Genetic", "PPO", "SAC", "TD3"):
        from flatout import api

        return getattr(api, name)
    raise AttributeError(f"module 'flatout' has no attribute {name!r}")
