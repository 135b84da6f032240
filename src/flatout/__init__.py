"""Flatout: deep reinforcement learning with every part on the hardware where it runs fastest.

from flatout import PPO

agent = PPO("CartPole-v1", seed=1).learn(100_000, progress_bar=True)
action, _ = agent.predict(observation, deterministic=True)
"""

from __future__ import annotations

import sys

from flatout.version import __version__ as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:  # names are imported on first use, because every command imports this file
    from typing import Any

    from flatout import engine as engine
    from flatout.algorithms.base import Algorithm, BuildSpec, Counters, ReplaySpec, State
    from flatout.api import Agent
    from flatout.api.agents import A2C, DDPG, DQN, PPO, SAC, TD3, TQC, Genetic
    from flatout.api.callbacks import (
        Evaluate,
        RecordEvery,
        SaveEvery,
        StopOnNoImprovement,
        StopOnReward,
        StopOnTime,
    )
    from flatout.api.classifier import Classifier
    from flatout.api.plots import plot, report
    from flatout.api.population import Population
    from flatout.api.translate import linear
    from flatout.config.placement import Placement
    from flatout.envs.checking.check_env import check_env
    from flatout.envs.checking.findings import Finding
    from flatout.envs.device.base import DeviceEnv
    from flatout.envs.device.check import check_device_env
    from flatout.errors import CheckpointError, EnvironmentFailure, FlatoutError, UsageError
    from flatout.run.callbacks import Callback, Run
    from flatout.sb3.common.evaluation import evaluate_policy
    from flatout.spans import phase
    from flatout_explain.program.block import explaining

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    # `python -m flatout` puts the working folder first in `sys.path`: a file numpy.py in a
    # stranger's run folder would be imported. A user's modules there are added when they are named.
    module = sys.orig_argv[sys.orig_argv.index("-m") + 1] if "-m" in sys.orig_argv else ""
    if module.partition(".")[0] == "flatout" and not __file__.startswith(sys.path[0] + "/flatout/"):
        del sys.path[0]
    del module

_ROOMS = (
    "flatout.errors", "flatout.spans", "flatout.config.placement", "flatout_explain.program.block",
    "flatout.run.callbacks", "flatout.envs.device.base", "flatout.envs.checking.check_env",
    "flatout.envs.checking.findings", "flatout.envs.device.check", "flatout.algorithms.base",
    "flatout.api", "flatout.api.agents", "flatout.api.callbacks", "flatout.api.classifier",
    "flatout.api.population", "flatout.api.plots", "flatout.api.translate",
    "flatout.sb3.common.evaluation",
)  # fmt: skip
"""The modules of the public names. Those that import quickly come first."""

__all__ = [
    "A2C", "DDPG", "DQN", "PPO", "SAC", "TD3", "TQC", "Agent", "Algorithm", "BuildSpec", "Callback",
    "CheckpointError", "Classifier", "Counters", "DeviceEnv", "EnvironmentFailure", "Evaluate",
    "Finding", "FlatoutError", "Genetic", "Placement", "Population", "RecordEvery", "ReplaySpec",
    "Run", "SaveEvery", "State", "StopOnNoImprovement", "StopOnReward", "StopOnTime", "UsageError",
    "check_device_env", "check_env", "engine", "evaluate_policy", "explaining", "linear", "phase",
    "plot",
    "report",
]  # fmt: skip


def load_ipython_extension(shell: Any) -> None:
    """Register the magic commands %explain and %%explain (``%load_ext flatout``)."""
    from flatout_explain.notebook import register

    register(shell)


def __dir__() -> list[str]:
    """Return all public names, including those that are not loaded yet."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that `import flatout` is quick and does not import JAX.

    A name of another library raises an `ImportError` with Flatout's name for it.
    """
    from importlib import import_module

    if name == "engine":  # for `flatout.engine.make`
        return import_module("flatout.engine")
    for room in _ROOMS if name in __all__ else ():
        if hasattr(module := import_module(room), name):
            found = globals()[name] = getattr(module, name)  # `phase` may be used in a hot loop
            return found
    if not name.startswith("_"):
        from flatout.config.aliases import IMPORTED

        if name in IMPORTED:  # `from flatout import` does not show an AttributeError's message
            raise ImportError(f"flatout has no {name}. Instead: {IMPORTED[name]}.")
        for right in __all__:
            if right.lower() == name.lower():
                raise ImportError(f"flatout has no {name}. Did you mean {right}?")
    raise AttributeError(f"module 'flatout' has no attribute {name!r}")
