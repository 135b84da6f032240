"""Ids of Atari games: the game, the frame skip and the sticky actions that each of them means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatout.config.schema import EnvConfig
from flatout.errors import UsageError, nearest
from flatout.installing import pip

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

PREFIX = "ALE/"
SUFFIX = "-v5"
WRAPPER_SKIP = 4
"""Frames per step of ids that ale-py registers without a skip (``NoFrameskip``). Programs that use
them skip frames in a wrapper, as Stable-Baselines3's `AtariWrapper` does: 4 frames by default."""

_ENTRY_POINT = "ale_py.env:AtariEnv"
_STICKY = {"0": "0.25", "4": "0"}
"""The older ids' probabilities of sticky actions, by version."""
_OLD = re.compile(r"\w+-v[04]")
_FAMILY = re.compile(r"(?:ALE/)?(\w+?)(-ram)?-?(NoFrameskip|Deterministic)?-v(\d+)")
"""Also the ids that ale-py no longer registers: the game, RAM, the skip, the version."""


@dataclass(frozen=True)
class AtariId:
    """A game as ale-py registers it under an id.

    Attributes:
        rom: the ROM's name (``ms_pacman``).
        frame_skip: frames per step, or the range ``(low, high)`` that the number is drawn from at
            each step, without `high`.
        sticky_actions: the probability that a frame repeats the previous frame's action.
    """

    rom: str
    frame_skip: int | tuple[int, int]
    sticky_actions: float


def load() -> Any:
    """The module `ale_py`, without its banner. Importing it registers its ids.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import ale_py
        import ale_py.roms
        import ale_py.vector_env
    except ImportError:
        raise UsageError(f"ALE environments need ale-py: {pip('ale-py')}.") from None
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return ale_py


def is_atari(name: str) -> bool:
    """Whether an id means the Arcade Learning Environment.

    True for every id with the prefix ``ALE/``, and for the older ids (``Breakout-v4``) that ale-py
    registers. It is imported only for an id of that form that nothing else has registered.
    """
    if name.startswith(PREFIX):
        return True
    if not _OLD.fullmatch(name):
        return False
    registry = _registry()
    if name not in registry:
        try:
            load()
        except UsageError:
            return "NoFrameskip" in name
    return name in registry and registry[name].entry_point == _ENTRY_POINT


def atari_id(name: str) -> AtariId:
    """The game and settings of an id.

    Raises:
        UsageError: ale-py registers no such id, or is not installed.
    """
    load()
    if name not in _games():
        hint = suggestion(name) or f" An id looks like {PREFIX}Breakout-v5."
        raise UsageError(f"unknown environment {name!r}:{hint}")
    kwargs = _registry()[name].kwargs
    skip: Any = kwargs["frameskip"]
    if skip == 1:
        skip = WRAPPER_SKIP
    return AtariId(kwargs["game"], skip, float(kwargs["repeat_action_probability"]))


def frame_skip(config: EnvConfig) -> int | tuple[int, int]:
    """Frames per step: the flag's value, or that of the id; a range is drawn from at each step."""
    return atari_id(config.env).frame_skip if config.frame_skip is None else config.frame_skip


def sticky_actions(config: EnvConfig) -> float:
    """The probability of sticky actions: the flag's value, or that of the id."""
    if config.sticky_actions is not None:
        return config.sticky_actions
    return atari_id(config.env).sticky_actions


def equivalent(name: str) -> str | None:
    """The id and flags that come closest to an id of a known game that ale-py does not register.

    Returns:
        A sentence with a leading space, or None where the id names no game or ale-py is missing.
    """
    found = _FAMILY.fullmatch(name)
    if found is None:
        return None
    game, ram, kind, version = found.groups()
    served = f"{PREFIX}{game}{SUFFIX}"
    if served not in _games():
        return None
    flags = f"--env {served}"
    if version in _STICKY:  # drawn skips are 3 frames on average
        skip = 3 if kind is None or (kind, game) == ("Deterministic", "SpaceInvaders") else 4
        flags += f" --frame-skip {skip} --sticky-actions {_STICKY[version]}"
    if ram is None:
        return f" Use {flags}."
    return (
        f" Flatout's Atari environments observe the screen: use {flags}; for the RAM pass --env "
        f"module:function, which returns gymnasium.make({served!r}, obs_type='ram')."
    )


def suggestion(name: str) -> str:
    """A sentence for an id that nothing has registered, with a leading space: what comes closest to
    it of all ids or, with the prefix ``ALE/``, of ALE's. Empty where nothing is close."""
    if found := equivalent(name):
        return found
    games = _games()  # it registers them
    names = games if name.startswith(PREFIX) else list(_registry())
    alike = [other for other in names if _bare(other) == _bare(name)]
    if closest := difflib.get_close_matches(name, alike, cutoff=0.0):
        return f" Did you mean {' or '.join(map(repr, closest))}?"
    return nearest(name, names)


def _bare(name: str) -> str:
    """An id without its namespace and version, in lower case."""
    return re.sub(r"-?v\d+$", "", name.rpartition("/")[2].lower())


def _games() -> list[str]:
    """The ids that ale-py registers; none where it is not installed."""
    try:
        load()
    except UsageError:
        return []
    return [name for name, spec in _registry().items() if spec.entry_point == _ENTRY_POINT]


def _registry() -> Mapping[str, EnvSpec]:
    import gymnasium  # a third of a second, which `flatout explain` can do without

    return gymnasium.registry
