"""The properties of a user's vector environment that Gymnasium's `VectorEnv` leaves open: the
number of its environments, how it resets them, and which seeds it takes. `envs.make` and
`envs.task` ask for them."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from flatout import tree
from flatout.envs.envpool import Pool, adapted
from flatout.envs.mask_places import attribute, info_masks, mask_key
from flatout.errors import EnvironmentFailure, UsageError, one_line, raised_at, short
from flatout.types import ActionSpec

COUNTS = ("num_envs", "n_envs")
"""Names of the argument with which a function is asked for a number of environments."""

INSPECTED = 2
"""The most environments of a vector that is made to inspect it: with two, a reset of one of them
shows whether the other one keeps its state."""

ONE_BY_ONE = "pass a function that makes single environments, as many as Flatout asks for"
"""The advice where a vector environment cannot do what single environments can."""

LONGEST_LOOK = 10
"""Idle steps in which an observation should change, so that a reset shows."""

LONGEST_EPISODE = 1000
"""Steps in which an episode should end, so that it shows whether all end at the same time."""

HIDDEN_EPISODES, HIDDEN_STEPS, HIDDEN_S = 24, 200, 2.0
"""The most episodes in which a hidden reset is looked for, the most steps of each, and the seconds
after which the search ends."""

ENOUGH = 8
"""Episodes that have to begin differently, or to go on as only a reset explains it, until a hidden
reset is certain."""


class Borrowed(gym.Wrapper[Any, Any, Any, Any]):
    """A user's environment object, which a run uses but never closes."""

    def close(self) -> None:
        """Do nothing: the user closes the environment."""


class BorrowedVector(VectorWrapper[Any, Any, Any, Any, Any]):
    """A user's vector environment object, which a run uses but never closes."""

    def close(self, **kwargs: Any) -> None:
        """Do nothing: the user closes the environment."""


def size_argument(function: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """Return the name of the argument with which a function takes a number of environments, or an
    empty string: it takes none, or `given` has it already."""
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):  # it is written in C
        return ""
    return next((name for name in COUNTS if name in names and name not in given), "")


def size_of(vector: Any) -> int:
    """Return the number of environments of a vector environment; EnvPool's has it in `config`."""
    config = attribute(vector, "config")
    known = config.get("num_envs") if isinstance(config, Mapping) else None
    return int(known or vector.num_envs)


def spec_of_one(vector: Any) -> Any:
    """Return the attribute `spec` of one of the environments, if a vector environment says it."""
    try:
        return vector.get_attr("spec")[0]
    except (Exception, SystemExit):  # only Gymnasium's own have `get_attr`
        return None


def checked(vector: Any, name: str) -> Any:
    """Return a vector environment whose number, spaces and autoreset mode are known.

    Raises:
        UsageError: one of them is missing.
    """
    vector = adapted(vector, name)
    count = attribute(vector, "num_envs")
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise UsageError(f"{name} has num_envs = {short(count)}, which has to be 1 or more.")
    for space in ("single_observation_space", "single_action_space"):
        if not isinstance(attribute(vector, space), gym.Space):
            raise UsageError(f"{name} has no {space}; set it in its __init__.")
    _ = mode_of(vector, name)
    return vector


def mode_of(vector: Any, name: str) -> AutoresetMode:
    """Return the autoreset mode that a vector environment declares.

    Raises:
        UsageError: it declares none, or as text, which equals no member of the Enum.
    """
    metadata = attribute(vector, "metadata")
    mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    if isinstance(mode, AutoresetMode):
        return mode
    members = "NEXT_STEP, SAME_STEP or DISABLED of gymnasium.vector.AutoresetMode"
    if isinstance(mode, str):
        meant = [one for one in AutoresetMode if mode in (one.value, one.name)]
        right = f"gymnasium.vector.AutoresetMode.{meant[0].name}" if meant else members
        raise UsageError(
            f'{name} has metadata["autoreset_mode"] = {short(mode)}, which is text: set it to '
            f"{right}."
        )
    raise UsageError(
        f"{name} does not say when it resets its environments: set "
        f'metadata["autoreset_mode"] to {members}.'
    )


@dataclass(frozen=True)
class VectorKind:
    """A user's vector environment.

    Attributes:
        count: the number of environments of the one that was inspected.
        sized: whether others can be made with another number.
    """

    count: int
    sized: bool

    def wrong_size(self, name: str, made: int, needed: int) -> str:
        """Return a sentence about a vector with another number of environments than is needed."""
        if self.sized:
            return f"{name} was asked for {needed} environments, and made {made}; correct it."
        return (
            f"{name} has {made} environments where {needed} are needed: pass envs={made} (--envs "
            f"{made}), with sampler=inline and without acting groups, or pass a function that "
            f"takes the number as {COUNTS[0]}."
        )


@dataclass(frozen=True)
class Resets:
    """How the environments of a vector environment are reset.

    Attributes:
        mode: what happens by itself at the end of an episode.
        masked: whether ``reset(options={"reset_mask": mask})`` resets only those of the mask.
        seeded: whether each environment has a seed of its own: `reset` takes a list.
        together: whether all of them are reset at the same time, because their episodes end at the
            same time.
    """

    mode: AutoresetMode
    masked: bool
    seeded: bool
    together: bool = False


def resets_of(vector: Any, name: str, actions: ActionSpec) -> Resets:
    """Find out how the environments of a vector environment are reset, by resetting them.

    Gymnasium's own and EnvPool's are known, unless a user's wrapper around them has a `reset` of
    its own. Another one is reset as a whole, and then its first environment alone: the others must
    keep their observations. If first observations are always the same, it is stepped in between.
    One that ignores the mask plays until an episode ends. `hidden_resets` plays a few episodes.

    Raises:
        UsageError: a reset cannot begin the next episode of one environment without the others,
            the autoreset mode does not do that within the step, either, and not all episodes end
            at the same time. Or it resets within the step, and declares another mode.
        EnvironmentFailure: it raised an exception.
    """
    mode, count = mode_of(vector, name), size_of(vector)
    kind = type(_within_wrappers(vector))
    if kind in (SyncVectorEnv, AsyncVectorEnv):
        return Resets(mode, masked=True, seeded=True)
    if kind is Pool:
        return Resets(mode, masked=True, seeded=False)
    seeds = list(range(count))
    try:
        try:
            before, seeded = _copied(vector.reset(seed=seeds)[0]), True
        except Exception:  # the interface of `VectorEnv` has one seed for all
            before, seeded = _copied(vector.reset(seed=0)[0]), False
    except Exception as error:
        raise EnvironmentFailure(
            f"{name} raised {type(error).__name__} in reset: {one_line(error)} "
            f"({raised_at(error)})."
        ) from error
    masked = count == 1 or _resets_alone(vector, before, seeded, actions)
    resets = Resets(mode, masked, seeded and masked)
    if not masked and mode != AutoresetMode.SAME_STEP:
        if not _end_together(vector, actions):
            raise UsageError(
                cannot_reset_alone(name, f", as its autoreset mode {mode.name} requires")
            )
        resets = Resets(mode, masked=False, seeded=False, together=True)
    if hidden_resets(vector, resets) == "certain":
        raise UsageError(
            f"{name} declares AutoresetMode.{mode.name}, but the step that ends an episode returns "
            "the first observation of the next one, as if it had reset by itself in the same step: "
            'return the last observation, or set metadata["autoreset_mode"] to SAME_STEP and add '
            "infos['final_obs']."
        )
    return resets


def _within_wrappers(vector: Any) -> Any:
    """Return what wrappers surround that pass the arguments of `reset` on: Gymnasium's, Flatout's,
    and those of users that do not define it."""
    while isinstance(vector, VectorWrapper) and type(vector).reset.__module__.startswith(
        ("gymnasium.", "flatout.")
    ):
        vector = vector.env
    return vector


def cannot_reset_alone(name: str, when: str = "") -> str:
    """Return a sentence about a vector environment of which one environment alone ends an episode,
    and cannot be reset alone."""
    return (
        f'{name} ignores reset(options={{"reset_mask": ...}}), so that one of its environments '
        f"cannot begin an episode while the others play on{when}: let reset obey it, as "
        "gymnasium.vector.SyncVectorEnv and AsyncVectorEnv do; or reset in the same step "
        f"(AutoresetMode.SAME_STEP); or {ONE_BY_ONE}."
    )


def _end_together(vector: Any, actions: ActionSpec) -> bool:
    """Return whether random actions end the first episodes of all environments in one step."""
    rng, count = np.random.default_rng(0), size_of(vector)
    try:
        vector.reset(seed=0)
        for _ in range(LONGEST_EPISODE):
            _, _, *ends, _ = vector.step(actions.to_env(actions.random(rng, count)))
            ended = np.logical_or(*ends)
            if ended.any():
                return bool(ended.all())
    except Exception:
        pass
    return False


def _resets_alone(vector: Any, before: Any, seeded: bool, actions: ActionSpec) -> bool:
    """Return whether the first of several environments is reset alone; `before` are the
    observations after a reset of all."""
    count = size_of(vector)
    mask = np.arange(count) == 0
    seeds = [count, *[None] * (count - 1)] if seeded else None
    idle = actions.to_env(np.stack([actions.idle()] * count))

    def reset_first() -> Any:
        return _copied(vector.reset(seed=seeds, options={"reset_mask": mask.copy()})[0])

    try:
        after = reset_first()
        if not _same(before, after, ~mask):
            return False
        if not _same(before, after, mask):  # it was reset, and the others were not
            return True
        for _ in range(LONGEST_LOOK):
            obs, _, *ends, _ = vector.step(idle)
            stepped = _copied(obs)
            if not _same(before, stepped, ~mask):
                return _same(stepped, reset_first(), ~mask)
            if np.any(ends):
                break
    except Exception:
        return False
    return True  # observations never change: they do not show what a reset does


def hidden_resets(vector: Any, resets: Resets) -> Literal["", "possible", "certain"]:
    """Look for resets within the steps that end episodes, which NEXT_STEP and DISABLED exclude.

    An episode is played with random actions, and then again with a reset in place of its last step.
    If both give the same observation, the step has reset the environment, too. In NEXT_STEP one
    more step follows, which is then played as the first one of an episode, although it has to reset
    the environment. The search ends with the first episode that ends otherwise.

    Gymnasium's own wrappers are left out, so that running means and statistics do not change.
    Environments with masks of actions are not played.

    Returns:
        ``"possible"`` if all episodes ended like this, but few of them began differently: in the
        environments' world, the last state may look like the first one.
    """
    if resets.mode == AutoresetMode.SAME_STEP:
        return ""
    while isinstance(vector, VectorWrapper) and type(vector).__module__.startswith(
        ("gymnasium.", "flatout.")
    ):
        vector = vector.env
    starts, played, reacts, deadline = set[bytes](), 0, False, time.monotonic() + HIDDEN_S
    try:
        for seed in range(HIDDEN_EPISODES):
            found = _end_as_reset(vector, resets, seed, deadline)
            if found is None:
                return ""
            starts |= found[0]
            played, reacts = played + found[1], reacts or found[2]
            if reacts and max(len(starts), played) >= ENOUGH:
                return "certain"
    except Exception:  # whatever is wrong shows in training
        return ""
    return "possible" if reacts else ""


def _end_as_reset(
    vector: Any, resets: Resets, seed: int, deadline: float
) -> tuple[set[bytes], int, bool] | None:
    """Compare the first end of an episode with a reset in its place.

    Returns:
        None if they differ, or no episode ends. Otherwise the observations of the reset; 1 if the
        step after the end was played as the first one of an episode, 0 if that is unknown, and if
        it was not, a number that makes all others of no account; and whether a step that ends no
        episode gives something else than a reset.
    """
    count, dead_step = size_of(vector), resets.mode == AutoresetMode.NEXT_STEP
    seeds = [seed * count + env for env in range(count)] if resets.seeded else seed
    actions = batch_space(vector.single_action_space, count)
    actions.seed(seed)
    obs, info = vector.reset(seed=seeds)
    if info_masks(info) or mask_key(vector.single_observation_space):
        return None
    seen, taken, ended = [_copied(obs)], list[Any](), np.zeros(count, np.bool_)
    while not ended.any():
        if len(taken) == HIDDEN_STEPS or time.monotonic() > deadline:
            return None
        taken.append(actions.sample())
        obs, _, *ends, _ = vector.step(taken[-1])
        seen.append(_copied(obs))
        ended = np.logical_or(*ends)
    last, action = len(taken), actions.sample()
    after = _copied(vector.step(action)[0]) if dead_step else None

    def reset_instead(step: int, mask: np.ndarray) -> Any:
        """Return the observations of a reset in place of a step."""
        vector.reset(seed=seeds)
        for chosen in taken[: step - 1]:
            vector.step(chosen)
        options = {"reset_mask": mask.copy()} if resets.masked else None
        return _copied(vector.reset(options=options)[0])

    first, played = reset_instead(last, ended), 0
    if not _same(first, seen[last], ended):
        return None
    if dead_step:
        second = _copied(vector.step(action)[0])
        alike = _same(second, after, ended)
        played = int(not _same(second, first, ended)) if alike else -HIDDEN_EPISODES
    alone = ended.all() or not resets.masked
    mask, step = (ended, last - 1) if alone else (~ended, last)
    reacts = step > 0 and not _same(reset_instead(step, mask), seen[step], mask)
    rows = np.flatnonzero(ended)
    starts = {b"".join(leaf[row].tobytes() for leaf in tree.leaves(first)) for row in rows}
    return starts, played, reacts


def _copied(obs: Any) -> Any:
    """Return a copy of batched observations; tuples and nested dicts become flat dicts."""
    if isinstance(obs, Mapping):
        entries = obs.items()
    elif isinstance(obs, tuple | list):
        entries = enumerate(obs)
    else:
        return np.array(obs)
    found: dict[str, Any] = {}
    for key, inner in entries:
        found |= tree.named(str(key), _copied(inner))
    return found


def _same(one: Any, other: Any, mask: np.ndarray) -> bool:
    """Return whether the observations of the environments of a mask are equal."""
    return all(
        np.array_equal(a[mask], b[mask])
        for a, b in zip(tree.leaves(one), tree.leaves(other), strict=True)
    )
