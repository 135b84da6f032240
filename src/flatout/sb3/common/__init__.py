"""The modules of ``stable_baselines3.common`` that scripts import from.

Modules without a counterpart are refused with one sentence when a name is imported from them.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import NoReturn

INSTEAD: dict[str, str] = {
    "torch_layers": "network= takes any Equinox module (examples/6_own_network.py)",
    "policies": "policies are named: MlpPolicy, CnnPolicy, MultiInputPolicy; network= takes one of "
    "your own",
    "distributions": "an algorithm of your own chooses its distribution (docs/own-algorithm.md)",
    "buffers": "replay is configured with buffer_size, n_step, prioritized and hindsight",
    "logger": "learn(run_dir=...) writes metrics.jsonl and TensorBoard's events; a callback has "
    "logger.record(name, number)",
    "results_plotter": "agent.plot(), or flatout report",
    "type_aliases": "leave the import out",
    "base_class": "flatout.Agent is the base of agents",
    "on_policy_algorithm": "an algorithm of your own is one function (docs/own-algorithm.md)",
    "off_policy_algorithm": "an algorithm of your own is one function (docs/own-algorithm.md)",
    "atari_wrappers": "Atari's preprocessing is applied to every Atari id",
    "running_mean_std": "normalize_observation=True keeps the statistics with the agent",
    "her": "hindsight=4 is a setting of DQN, DDPG, TD3, SAC and TQC",
    "save_util": "agent.save(path) and PPO.load(path)",
}


class _Refusing(ModuleType):
    """A module of which every name is refused."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        own = self.__name__.rpartition(".")[2]
        raise ImportError(f"flatout.sb3 has no {name}. Instead: {INSTEAD[own]}.")


for _name in INSTEAD:
    _module = f"{__name__}.{_name}"
    sys.modules[_module] = _Refusing(_module)
