"""Reads a program's command line: what `env` sets before it, Python's flags, and its script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

WITH_NEXT = ("-u", "--unset", "-C", "--chdir")
"""Options of `env` whose argument is the next word."""


def env_words(command: Sequence[str]) -> int:
    """Return how many words `env` takes at the beginning of a command line, before the program."""
    at, end = 1, len(command)
    if not command or Path(command[0]).name != "env":
        return 0
    while at < end and re.match(r"-|\w+=", command[at]):
        at += 2 if command[at] in WITH_NEXT else 1
    return min(at, end)


def assignments(command: Sequence[str]) -> dict[str, str]:
    """Return the variables that `env` sets at the beginning of a command line."""
    words = (word.partition("=") for word in command[1 : env_words(command)])
    return {name: value for name, equals, value in words if equals and not name.startswith("-")}


def blocking_flags(command: Sequence[str]) -> list[str]:
    """Return the flags of a Python command line that keep the probe out: -I, -E, -S."""
    return flags_and_script(command)[0]


def flags_and_script(command: Sequence[str]) -> tuple[list[str], str]:
    """Return the flags of a Python command line that keep the probe out, and the file of its
    program; an empty text without one."""
    if "python" not in Path(command[0]).name and "pypy" not in Path(command[0]).name:
        return [], ""
    flags, _, script = _parts(command)
    return flags, script


def is_inline(command: Sequence[str]) -> bool:
    """Return whether Python's command line holds the program itself: ``python -c CODE``."""
    return _parts(command)[1] == "c"


def _parts(command: Sequence[str]) -> tuple[list[str], str, str]:
    """Return the flags that keep the probe out, ``c`` or ``m`` where one of these takes the rest,
    and the file of the program."""
    flags: list[str] = []
    words = iter(command[1:])
    for word in words:
        if word == "--check-hash-based-pycs":
            next(words, None)
        elif match := re.fullmatch(r"-(?=.)([^-cmWX]*)([cmWX]|$)(.*)", word):
            letters, taker, argument = match.groups()
            flags += [f"-{letter}" for letter in letters if letter in "IES"]
            if taker in ("c", "m"):  # the program follows
                return flags, taker, ""
            if taker and not argument:  # it is the next word
                next(words, None)
        elif not re.match("--.", word):
            return flags, "", "" if word == "-" else word
    return flags, "", ""
