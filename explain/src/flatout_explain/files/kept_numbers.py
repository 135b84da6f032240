"""Numbers that were measured on this machine before: a file in the user's cache."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flatout_explain.files import locks, nofollow
from flatout_explain.files.user_folders import user_folder
from flatout_explain.output_file import LEFT_S

NUMBERS = "numbers.json"
WAIT_S = 5.0
"""Another process that changes a file does so within this time."""
MOST_BYTES = 1 << 16

MOST_NUMBERS = 512
"""Numbers that are kept; the oldest go."""


def plans() -> Path:
    """The folder of kept plans."""
    return user_folder("cache") / "plans"


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
    folder = folder or plans()
    with suppress(OSError), changing(folder):
        others = {name: old for name, old in numbers(folder).items() if name != key}
        newest = dict(list((others | {key: round(value, 3)}).items())[-MOST_NUMBERS:])
        nofollow.replace(folder / NUMBERS, json.dumps(newest).encode())


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Keep other processes from changing kept files between reading and writing one.

    Raises:
        OSError: the folder cannot be written, or another process holds it for too long.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locks.held(folder / locks.LOCK, WAIT_S):
        with nofollow.folder(folder, 0) as opened:
            nofollow.remove_left(None, opened, LEFT_S)
        yield
