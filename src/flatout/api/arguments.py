"""Arguments of the Python interface: values of a wrong type are refused by the argument's name."""

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
    """A path that was passed as text or as an object of a path.

    Raises:
        UsageError: it is something else, or no file can have this name.
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
    """A whole number, also one of NumPy's or a float without a fraction.

    Args:
        rule: refuses impossible numbers (`flatout.config.values.Range`).

    Raises:
        UsageError: it is something else.
    """
    number: Any = value
    if isinstance(value, float | np.floating) and value.is_integer():
        number = int(value)
    if isinstance(value, bool | np.bool_) or not isinstance(number, int | np.integer):
        raise UsageError(f"{name} = {short(value)} is not a whole number.")
    rule(name, int(number))
    return int(number)


def flag(name: str, value: Any) -> bool:
    """True or False.

    Raises:
        UsageError: it is something else, which Python would take for one of them.
    """
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"{name} = {short(value)} is not True or False.")
    return bool(value)


def text(name: str, value: Any) -> str:
    """A text.

    Raises:
        UsageError: it is something else.
    """
    if not isinstance(value, str):
        raise UsageError(f"{name} = {short(value)} is not text.")
    return value


def one_or_several(value: Any) -> tuple[Any, ...]:
    """The values of a list or another iterable; text is one value."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    return tuple(value) if several else (value,)


def texts(name: str, value: Any) -> tuple[str, ...]:
    """One text or several.

    Raises:
        UsageError: it is something else.
    """
    return tuple(text(name, each) for each in one_or_several(value))


def preset_settings(settings: dict[str, Any], algorithm: str) -> dict[str, Any]:
    """The settings of the preset that is named among `settings`, where it is removed.

    Raises:
        UsageError: there is no such preset, or it is for another algorithm.
    """
    name = settings.pop("preset", None)
    tuned = {} if name is None else load_preset(text("preset", name))
    if tuned.get("algorithm", algorithm) != algorithm:
        raise UsageError(f"preset {name!r} is for {tuned['algorithm']}.")
    return tuned


@contextmanager
def one_training(lock: Lock, training: bool) -> Iterator[None]:
    """Let an agent be trained once at a time, and only by a program that runs.

    Args:
        lock: the agent's, which is held meanwhile.
        training: whether it follows a run that began elsewhere.

    Raises:
        UsageError: it is training already, in a callback or in another thread; or a spawned process
            imports the script that trains it.
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
