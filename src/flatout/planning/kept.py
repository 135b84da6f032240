"""What planning has measured on this machine before: files in the user's cache."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path

from flatout.errors import UsageError
from flatout.hardware.compile_cache import cache_folder
from flatout.planning.machine import SHIPPED, Machine
from flatout.storage import nofollow

NUMBERS = "numbers.json"
MOST_BYTES = 1 << 16

MOST_NUMBERS = 512
"""Numbers that are kept; the oldest go."""


def plans() -> Path:
    """The folder of kept plans."""
    return cache_folder() / "plans"


def machine_file() -> Path:
    """Where the machine's own costs are kept."""
    return plans() / "machine.json"


def this_machine() -> Machine:
    """What was measured of this machine; `SHIPPED` where nothing was."""
    with suppress(OSError, ValueError, UsageError):
        return Machine.from_json(nofollow.read_json(machine_file(), 1, MOST_BYTES))
    return SHIPPED


def numbers(folder: Path | None = None) -> dict[str, float]:
    """Seconds and rates of earlier runs on this machine, by key; what cannot be read is ignored.

    Args:
        folder: where they are kept; by default `plans`.
    """
    with suppress(OSError, ValueError, AttributeError, TypeError):
        read = nofollow.read_json((folder or plans()) / NUMBERS, 1, MOST_BYTES)
        kept = {str(key): float(value) for key, value in read.items()}
        return {key: value for key, value in kept.items() if 0.0 <= value < math.inf}
    return {}


def keep_number(key: str, value: float, folder: Path | None = None) -> None:
    """Keep one of `numbers`; a folder that cannot be written is no reason to fail."""
    others = {name: old for name, old in numbers(folder).items() if name != key}
    newest = dict(list((others | {key: round(value, 3)}).items())[-MOST_NUMBERS:])
    folder = folder or plans()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        nofollow.replace(folder / NUMBERS, json.dumps(newest).encode())
