"""Flatout: deep reinforcement learning with every part on the hardware where it runs fastest.

from flatout import PPO

agent = PPO("CartPole-v1", seed=1).learn(100_000, progress_bar=True)
action = agent.predict(observation, deterministic=True)
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # nothing is imported before it is used: the command begins by this file
    from typing import Any

    from flatout.api import A2C, DDPG, DQN, PPO, SAC, TD3, Genetic
    from flatout.errors import CheckpointError, EnvironmentFailure, FlatoutError, UsageError
    from flatout.placement import Placement

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
    """Load what is named on first use: `import flatout` stays quick and JAX unstarted."""
    if name == "Placement":
        from flatout.placement import Placement

        return Placement
    if name in __all__:
        from flatout import api, errors

        return getattr(errors if hasattr(errors, name) else api, name)
    raise AttributeError(f"module 'flatout' has no attribute {name!r}")
