"""The Gymnasium environments that have a twin in JAX, and the arguments that a twin takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flatout.errors import short


@dataclass(frozen=True)
class Twin:
    """The twin of a host environment.

    Attributes:
        module, function: the function in `envs.device` that makes it.
        limit: the host environment's time limit in steps, or None.
        arguments: arguments that the host environment and the function both take. Each has a test
            of its value, and words that say which values pass.
    """

    module: str
    function: str
    limit: int | None
    arguments: Mapping[str, tuple[Callable[[Any], bool], str]]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _between(low: int, high: int) -> tuple[Callable[[Any], bool], str]:
    def test(value: Any) -> bool:
        return type(value) is int and low <= value <= high

    return test, f"a whole number from {low} to {high}"


NUMBER = (_number, "a number")
FLAG: tuple[Any, str] = (lambda value: isinstance(value, bool), "true or false")
GOAL = {"goal_velocity": NUMBER}
CARTPOLE: dict[str, tuple[Any, str]] = {"sutton_barto_reward": FLAG}

TWINS: Mapping[str, Twin] = {
    "CartPole-v0": Twin("classic", "cartpole", 200, CARTPOLE),
    "CartPole-v1": Twin("classic", "cartpole", 500, CARTPOLE),
    "Acrobot-v1": Twin("classic", "acrobot", 500, {}),
    "MountainCar-v0": Twin("classic", "mountain_car", 200, GOAL),
    "MountainCarContinuous-v0": Twin("classic", "mountain_car_continuous", 999, GOAL),
    "Pendulum-v1": Twin("classic", "pendulum", 200, {"g": NUMBER}),
    "flatout/Snake-v0": Twin(
        "snake", "snake", None, {"size": _between(2, 255), "patience": _between(1, 2**31 - 1)}
    ),
}

LIMIT = "max_episode_steps"
"""The argument that `gymnasium.make` takes for every id; -1 removes the time limit."""


def refusal(name: str, kwargs: Mapping[str, Any]) -> str:
    """Return a sentence why a twin cannot take these arguments, or an empty string."""
    limits = _between(1, 2**31 - 1)
    known = {**TWINS[name].arguments, LIMIT: (lambda n: n == -1 or limits[0](n), limits[1])}
    for key, value in kwargs.items():
        if key not in known:
            return f"the device environment of {name} takes {', '.join(known)}, not {key!r}."
        test, words = known[key]
        if not test(value):
            return f"the device environment of {name}: {key} = {short(value)} is not {words}."
    return ""
