"""Ids of Atari games, looked up before an environment is made: the game, the frame skip and the
sticky actions that each id stands for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatout.config.schema import EnvConfig
from flatout.errors import UsageError, nearest
from flatout_explain.installing import pip

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

PREFIX = "ALE/"
SUFFIX = "-v5"
WRAPPER_SKIP = 4
"""Frames per step for ids that ale-py registers without a frame skip (``NoFrameskip``). Programs
that use these ids skip frames in a wrapper, as Stable-Baselines3's `AtariWrapper` does, which skips
4 frames by default."""

_ENTRY_POINT = "ale_py.env:AtariEnv"
_STICKY = {"0": "0.25", "4": "0"}
"""Probability of sticky actions of the older ids, by version, as text for a flag."""
_OLD = re.compile(r"\w+-v[04]")
_FAMILY = re.compile(r"(?:ALE/)?(\w+?)(-ram)?-?(NoFrameskip|Deterministic)?-v(\d+)")
"""Matches ids of Atari games, also those that ale-py no longer registers. The groups are the game,
RAM observations, the kind of frame skip and the version."""


@dataclass(frozen=True)
class AtariId:
    """A game and the settings with which ale-py registers it under an id.

    Attributes:
        rom: the ROM's name (``ms_pacman``).
        frame_skip: frames per step, or a pair ``(low, high)`` if the number is drawn from low to
            high - 1 at each step.
        sticky_actions: the probability that a frame repeats the previous frame's action.
    """

    rom: str
    frame_skip: int | tuple[int, int]
    sticky_actions: float


def load() -> Any:
    """Import the module `ale_py`, without its banner. The import registers its ids.

    Raises:
        UsageError: ale-py is not installed.
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
    """Return whether an id names a game of the Arcade Learning Environment.

    The answer is True for every id with the prefix ``ALE/``, and for the older ids
    (``Breakout-v4``) that ale-py registers. ale-py is imported only for an id of the older form
    that is not registered yet. If ale-py is not installed, ids with ``NoFrameskip`` still count.
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
    """Return the game and the settings of an id.

    Raises:
        UsageError: ale-py registers no such id, or is not installed.
    """
    load()
    if name not in _games():
        hint = suggestion(name) or f" An id looks like {PREFIX}Breakout-v5."
        raise UsageError(f"unknown environment {name!r}.{hint}")
    kwargs = _registry()[name].kwargs
    skip: Any = kwargs["frameskip"]
    if skip == 1:
        skip = WRAPPER_SKIP
    return AtariId(kwargs["game"], skip, float(kwargs["repeat_action_probability"]))


def frame_skip(config: EnvConfig) -> int | tuple[int, int]:
    """Return the frames per step: the flag's value, else that of the id (see `AtariId`)."""
    return atari_id(config.env).frame_skip if config.frame_skip is None else config.frame_skip


def sticky_actions(config: EnvConfig) -> float:
    """Return the probability of sticky actions: the flag's value, else that of the id."""
    if config.sticky_actions is not None:
        return config.sticky_actions
    return atari_id(config.env).sticky_actions


def equivalent(name: str) -> str | None:
    """Suggest the id and the flags that come closest to an id that ale-py does not register.

    Returns:
        A sentence with a leading space, or None if the id names no known game or ale-py is missing.
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
    """Suggest the registered ids that are closest to an unknown id.

    With the prefix ``ALE/`` only Atari ids are compared, otherwise the newest version of each id:
    Gymnasium deprecates the older ones.

    Returns:
        A sentence with a leading space, or an empty string if no id is close.
    """
    if found := equivalent(name):
        return found
    games = _games()  # this call registers ale-py's ids
    names = games if name.startswith(PREFIX) else _newest(_registry())
    same_base = [other for other in names if _base_name(other) == _base_name(name)]
    if closest := difflib.get_close_matches(name, same_base, cutoff=0.0):
        return f" Did you mean {' or '.join(map(repr, closest))}?"
    return nearest(name, names)


def _newest(registry: Mapping[str, EnvSpec]) -> list[str]:
    """Return the ids without those of which there is a newer version."""
    newest: dict[tuple[str | None, str], str] = {}
    for name, spec in sorted(registry.items(), key=lambda item: item[1].version or 0):
        newest[spec.namespace, spec.name] = name
    return list(newest.values())


def _base_name(name: str) -> str:
    """Return an id without its namespace and version, in lower case."""
    return re.sub(r"-?v\d+$", "", name.rpartition("/")[2].lower())


def _games() -> list[str]:
    """Return the ids that ale-py registers; an empty list if it is not installed."""
    try:
        load()
    except UsageError:
        return []
    return [name for name, spec in _registry().items() if spec.entry_point == _ENTRY_POINT]


def _registry() -> Mapping[str, EnvSpec]:
    import gymnasium  # here, because it takes a third of a second and `flatout explain` needs none

    return gymnasium.registry
