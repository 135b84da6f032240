"""Checks of the Python interface's arguments: a value of a wrong type is refused by name."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from flatout.config.settings import load_preset
from flatout.errors import UsageError, refuse_empty, short


def path_argument(name: str, value: Any) -> Path:
    """Return a path that was passed as text or as a path object.

    Raises:
        UsageError: the value is not a path, or no file can have this name.
    """
    try:
        path = Path(value)
    except TypeError:
        path = None
    if path is None:
        raise UsageError(f"{name} = {short(value)} is not a path: pass text or a pathlib.Path.")
    refuse_empty(name, value)
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # opening it says so
    except (OSError, ValueError) as error:  # too long, a null character
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{name} = {short(value)} is not a path: {why}.") from None
    return path


def whole_number(name: str, value: Any, rule: Callable[[str, int], object]) -> int:
    """Return a whole number that was passed as Python's, as NumPy's or as a float like 1e6.

    Args:
        rule: the possible numbers (`flatout.config.values.Range`).

    Raises:
        UsageError: the value is not a whole number, or impossible.
    """
    number: Any = value
    if isinstance(value, float | np.floating) and value.is_integer():
        number = int(value)
    if isinstance(value, bool | np.bool_) or not isinstance(number, int | np.integer):
        raise UsageError(f"{name} = {short(value)} is not a whole number.")
    rule(name, int(number))
    return int(number)


def flag(name: str, value: Any) -> bool:
    """Return a value that is True or False.

    Raises:
        UsageError: the value is not a bool, even if Python would treat it as one.
    """
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"{name} = {short(value)} is not True or False.")
    return bool(value)


def text(name: str, value: Any) -> str:
    """Return a value that is text.

    Raises:
        UsageError: the value is not text.
    """
    if not isinstance(value, str):
        raise UsageError(f"{name} = {short(value)} is not text.")
    return value


def one_or_several(value: Any) -> tuple[Any, ...]:
    """Return the values of an iterable as a tuple; text counts as one value."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    return tuple(value) if several else (value,)


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Return one or several texts as a tuple.

    Raises:
        UsageError: a value is not text.
    """
    return tuple(text(name, each) for each in one_or_several(value))


def preset_settings(settings: dict[str, Any], algorithm: str) -> dict[str, Any]:
    """Remove `preset` from `settings`, and return the settings of the preset that it names.

    Raises:
        UsageError: the preset does not exist, or is for another algorithm.
    """
    name = settings.pop("preset", None)
    tuned = {} if name is None else load_preset(text("preset", name))
    if tuned.get("algorithm", algorithm) != algorithm:
        raise UsageError(f"preset {name!r} is for {tuned['algorithm']}.")
    return tuned


@contextmanager
def one_training(lock: Lock, training: bool) -> Iterator[None]:
    """Hold an agent's lock while it is trained, so that it is trained only once at a time.

    Args:
        lock: the agent's lock.
        training: whether the agent belongs to a run that was started in another way.

    Raises:
        UsageError: the agent is training already, for a callback or in another thread; or a
            spawned process imports the script that trains it.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "training started while a spawned process was importing this script: put the calls "
            'under if __name__ == "__main__":'
        )
    if training or not lock.acquire(blocking=False):
        raise UsageError(
            "this agent is training: its callbacks and other threads may use it, not train it."
        )
    try:
        yield
    finally:
        lock.release()
