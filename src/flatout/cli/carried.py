"""Settings that a run takes over: its own when it is resumed, another run's with ``--from``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.config.placement import cards_in
from flatout.output import say


def on_free_cards(placement: str) -> str:
    """An earlier run's placement, on other GPUs where its own are full or not here."""
    if not cards_in(placement):
        return placement
    from flatout.hardware.inventory import inventory, resumed_placement

    text, note = resumed_placement(placement, inventory())
    if note:
        say(note)
    return text


def without_learn(placement: str) -> str:
    """A placement without where to learn."""
    return _without(placement, "learn=")


def _without(placement: str, *keys: str) -> str:
    return " ".join(word for word in placement.split() if not word.startswith(keys)) or "auto"


def carried_over(settings: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Another run's settings, for a new one: without those that contradict what the user gives.

    A placement says how many environments there are, where they step and on how many devices a run
    learns, as settings of their own do.

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
