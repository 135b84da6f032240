"""Flatout: deep reinforcement learning with every part on the hardware where it runs fastest.

from flatout import PPO

agent = PPO("CartPole-v1", seed=1).learn(100_000, progress_bar=True)
action = agent.predict(observation, deterministic=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
