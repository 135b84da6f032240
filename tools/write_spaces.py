"""Writes the table of environments and algorithms in docs/environments.md, from the code: which
observations and actions each algorithm takes, and why it refuses others. Run it after a space or an
algorithm has changed: python tools/write_spaces.py"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from flatout.algorithms.base import Algorithm
from flatout.algorithms.registry import build_algorithm
from flatout.config.hyper import HYPER
from flatout.config.schema import EnvConfig, NetworkConfig, RunConfig, TrainConfig
from flatout.envs.spaces import action_spec, observation_spec
from flatout.errors import UsageError
from flatout.types import ActionSpec, ObsSpec

PAGE = Path(__file__).parent.parent / "docs" / "environments.md"
BEGIN, END = "<!-- written by tools/write_spaces.py -->", "<!-- end -->"

spaces = gym.spaces
VECTOR, IMAGE = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Box(0, 255, (36, 36, 3), np.uint8)
OBSERVATIONS: dict[str, gym.Space[Any]] = {
    "Box: numbers": VECTOR,
    "Box: an image": IMAGE,
    "Box: a board of small whole numbers": spaces.Box(0, 3, (6, 6, 1), np.uint8),
    "Discrete": spaces.Discrete(5),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
    "MultiBinary": spaces.MultiBinary(3),
    "Text": spaces.Text(9),
    "Dict or Tuple of these": spaces.Dict({"camera": IMAGE, "state": VECTOR}),
}
BOX, CHOICE = spaces.Box(-1.0, 2.0, (2,), np.float32), spaces.Discrete(3)
ACTIONS: dict[str, gym.Space[Any]] = {
    "Discrete": CHOICE,
    "Box with finite bounds": BOX,
    "Box without bounds": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
    "MultiBinary": spaces.MultiBinary(3),
    "Dict or Tuple of these": spaces.Dict({"move": BOX, "tool": CHOICE}),
}
ENVS = 8
ALGORITHMS = [name for name, hyper in HYPER.items() if hyper.acts]


def built(name: str, observed: gym.Space[Any], acted: gym.Space[Any]) -> Algorithm:
    """The algorithm for an environment with these spaces.

    Raises:
        UsageError: it does not take one of them.
    """
    config = TrainConfig(
        algorithm=name, env=EnvConfig(env="example", envs=ENVS), network=NetworkConfig(),
        run=RunConfig(), hyper=HYPER[name](),
    )  # fmt: skip
    return build_algorithm(config, *specs(observed, acted), 100)


def specs(observed: gym.Space[Any], acted: gym.Space[Any]) -> tuple[ObsSpec, ActionSpec]:
    """The specs of these spaces."""
    return observation_spec(observed, "example"), action_spec(acted, "example")


SIDES = {"observations": OBSERVATIONS, "actions": ACTIONS}


def spaces_of(name: str, side: str, kind: str) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """The observations and actions of an algorithm's cell."""
    if side == "actions":
        return VECTOR, ACTIONS[kind]
    return OBSERVATIONS[kind], BOX if name in ("ddpg", "td3", "sac", "tqc") else CHOICE


def cells() -> dict[tuple[str, str, str], str]:
    """By side, kind of space and algorithm: an empty text, or why the algorithm refuses it."""
    return {
        (side, kind, name): refusal(name, *spaces_of(name, side, kind))
        for name in ALGORITHMS
        for side, kinds in SIDES.items()
        for kind in kinds
    }


def refusal(name: str, observed: gym.Space[Any], acted: gym.Space[Any]) -> str:
    """Why an algorithm refuses these spaces; an empty text if it takes them."""
    try:
        built(name, observed, acted)
    except UsageError as error:
        return str(error).replace(f"{name} ", "It ", 1)
    return ""


def text() -> str:
    """The table."""
    found, reasons = cells(), list[str]()
    lines: list[str] = []
    for side, kinds in SIDES.items():
        lines += [f"| {side} | {' | '.join(ALGORITHMS)} |", "|---|" + "---|" * len(ALGORITHMS)]
        for kind in kinds:
            row: list[str] = []
            for name in ALGORITHMS:
                reason = found[side, kind, name]
                if reason and reason not in reasons:
                    reasons.append(reason)
                row.append(f"no ({reasons.index(reason) + 1})" if reason else "yes")
            lines.append(f"| {kind} | {' | '.join(row)} |")
        lines.append("")
    lines += [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join(lines)


def page() -> str:
    """The page with its tables."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{text()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page())
