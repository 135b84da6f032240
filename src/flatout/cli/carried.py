"""Settings that a run takes over: the same run's when resumed, another's with ``--from``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.config.hyper import OwnConfig
from flatout.config.placement import cards_in
from flatout.config.schema import TrainConfig
from flatout.errors import UsageError, short
from flatout.output import say

if TYPE_CHECKING:
    from flatout.run.resume import Start

SHOWN = 3
"""Maximum number of differing settings that a message names."""


def on_free_cards(placement: str) -> str:
    """Return an earlier run's placement, on other GPUs if its GPUs are full or missing."""
    if not cards_in(placement):
        return placement
    from flatout.hardware.inventory import inventory, resumed_placement

    text, note = resumed_placement(placement, inventory())
    if note:
        say(note)
    return text


def without_learn(placement: str) -> str:
    """Return a placement's text without its learning devices."""
    return _without(placement, "learn=")


def _without(placement: str, *keys: str) -> str:
    return " ".join(word for word in placement.split() if not word.startswith(keys)) or "auto"


def carried_over(settings: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return another run's settings for a new run, without those that contradict the user's.

    A placement may contradict three other settings: the number of environments, where they step,
    and the number of learning devices.

    Args:
        given: the settings that the user gives.
    """
    if given.get("env", settings["env"]) != settings["env"]:
        settings = settings | {"env_kwargs": {}}  # of another environment
    if "placement" in given:
        where = any(word.startswith("sampler=") for word in str(given["placement"]).split())
        return settings | ({"env_backend": None} if where and "env_backend" not in given else {})
    taken = on_free_cards(str(settings["placement"]))
    if "env_backend" in given:  # which says where environments step
        taken = _without(
            taken, "sampler=", "schedule=", "inference=", "workers=", "groups=", "lag="
        )
    if "envs" in given:
        taken = _without(taken, "workers=", "groups=")
    if "devices" in given:
        taken = without_learn(taken)
    return settings | {"placement": taken}


def start_from(
    folder: Path, config: TrainConfig, given: Collection[str]
) -> tuple[TrainConfig, Start]:
    """Return the settings and the start of a run with ``--from``, before it has a folder.

    Args:
        folder: the other run's folder.
        config: the new run's settings.
        given: the names of those that the user gives.

    Raises:
        UsageError: the other run's parameters do not fit.
        UsageError, FlatoutError: as `assemble` raises them.
        CheckpointError: the other run has no checkpoint, or a damaged one, or a newer one of a
            population.
    """
    from flatout.populations.alone import continues_at
    from flatout.run.resume import begun_from
    from flatout.storage.run_folder import load_config

    continues_at(folder)
    before = load_config(folder, None)  # its code is refused or not already
    started, start = begun_from(folder, before, config, given)
    same = (before.env, before.network, before.hyper) == (config.env, config.network, config.hyper)
    if not same or isinstance(config.hyper, OwnConfig):  # whose code may have changed
        _refuse_misfit(folder, before, config, start)
    return started, start


def _refuse_misfit(folder: Path, before: TrainConfig, config: TrainConfig, start: Start) -> None:
    """Refuse a run whose parameters differ from the other run's in names, shapes or types."""
    import jax

    from flatout.randomness import is_typed_key
    from flatout.run.build import algorithm_of
    from flatout.storage.checkpoint import PREFIX, leaf_names, unmatched

    state = algorithm_of(config).shapes._replace(counters=())
    names, leaves = (jax.tree.leaves(tree) for tree in (leaf_names(state, PREFIX), state))
    saved, misfit = start.state.arrays, ""
    if only := unmatched(names, saved):
        where = "there" if only in saved else "here"
        misfit = f"{only.removeprefix(f'{PREFIX}.')} is only {where}"
    for name, leaf in zip(names, leaves, strict=True):
        array = saved.get(name)
        if misfit or array is None or is_typed_key(leaf):
            continue
        if (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
            misfit = (
                f"{name.removeprefix(f'{PREFIX}.')} is {array.dtype}{[*array.shape]} there, "
                f"{leaf.dtype}{[*leaf.shape]} here"
            )
    if misfit:
        parts = [*vars(before.env), *vars(before.network), *vars(before.hyper)]
        why = differing(before, config, parts) or f"{config.algorithm} has changed"
        raise UsageError(
            f"--from {folder}: its parameters do not fit, because {why} ({misfit}); keep these "
            "settings, or train without --from."
        )


def differing(before: TrainConfig, config: TrainConfig, names: Iterable[str]) -> str:
    """Return a message part that names the settings in which two runs differ; empty if none."""
    there, here = before.flat(), config.flat()
    words = [
        f"{name} is {short(there[name])} there, {short(here[name])} here"
        for name in names
        if there[name] != here[name]
    ]
    more = [f"and {len(words) - SHOWN} more"] if len(words) > SHOWN else []
    return "; ".join([*words[:SHOWN], *more])
