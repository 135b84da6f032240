"""What planning has measured on this machine before: files in the user's cache."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from flatout.errors import UsageError
from flatout.hardware.backend import cache_folder
from flatout.planning.machine import SHIPPED, Machine
from flatout.storage import nofollow

MOST_BYTES = 1 << 16


def plans() -> Path:
    """The folder of kept plans."""
    return cache_folder() / "plans"


def machine_file() -> Path:
    """Where the machine's own costs are kept."""
    return plans() / "machine.json"


def this_machine() -> Machine:
    """What was measured of this machine; `SHIPPED` where nothing was."""
    with suppress(OSError, ValueError, RecursionError, UsageError):
        return Machine.from_json(json.loads(nofollow.read(machine_file(), 1, MOST_BYTES)))
    return SHIPPED
