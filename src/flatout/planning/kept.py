"""Earlier measurements of this machine for planning: a file in the user's cache."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from flatout.planning.machine import SHIPPED, Machine
from flatout.planning.stages import Stages
from flatout_explain.documents import convert
from flatout_explain.files import nofollow
from flatout_explain.files.kept_numbers import MOST_BYTES, changing, plans


def machine_file() -> Path:
    """Where the machine's own costs are kept."""
    return plans() / "machine.json"


def this_machine() -> Machine:
    """Return the measurements of this machine, or `SHIPPED` if there are none."""
    with suppress(OSError, ValueError):
        return convert(nofollow.read_json(machine_file(), 1, MOST_BYTES), Machine)
    return SHIPPED


def keep_machine(stages: Stages, where: str) -> None:
    """Keep what was found of this machine, with what was kept of it before.

    Args:
        stages: what was measured.
        where: the machine, in words.

    Raises:
        OSError: it cannot be written.
    """
    with changing(plans()):
        machine = this_machine().updated(stages, where)
        nofollow.replace(machine_file(), json.dumps(asdict(machine)).encode())
