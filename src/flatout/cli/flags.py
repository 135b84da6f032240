"""Flags and their values, as all commands take them from the command line."""

from __future__ import annotations

import contextlib
import io
import math
import re
from dataclasses import is_dataclass
from itertools import dropwhile, pairwise, takewhile
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args

from flatout.config.aliases import meant
from flatout.config.values import hints
from flatout.errors import UsageError, refuse_empty
from flatout_explain.cli.parsing import HelpShown, given_twice

T = TypeVar("T")


def parse(default: T, prog: str, argv: list[str]) -> T:
    """The settings with what the flags change; the parser's framed messages become a sentence.

    Raises:
        UsageError: an unknown flag, or a value that it cannot take.
    """
    import tyro

    kinds = _kinds_of(type(default))
    _refuse_repeated(kinds, argv)
    argv = [_whole(argument) for argument in _without_commas(kinds, argv)]
    _refuse_words(kinds, argv)
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            parsed, unknown = tyro.cli(
                type(default), prog=prog, args=argv, default=default, return_unknown_args=True,
                config=(tyro.conf.OmitArgPrefixes,),
            )  # fmt: skip
    except SystemExit as stop:
        if not stop.code:
            raise HelpShown from None
        raise UsageError(
            f"{_sentence(stderr.getvalue())} ({prog} --help lists every setting)."
        ) from None
    if unknown:
        names = [f"--{name.replace('_', '-')}" for name in kinds]
        _refuse_value(kinds, argv, unknown[0])
        hint = meant(unknown[0].partition("=")[0], names, flag=True)
        if "--env" in names and not unknown[0].startswith("-"):
            hint = f" An environment is given as --env {unknown[0]}."
        raise UsageError(f"{prog} does not know {unknown[0]!r}.{hint}")
    return parsed


def _whole(argument: str) -> str:
    """1e6 as 1000000, so that whole numbers may be written so, too."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}", argument):
        number = float(argument)
        if number == int(number) < 2**53:
            return str(int(number))
    return argument


def _kinds_of(settings: Any) -> dict[str, set[Any]]:
    """The types that each setting of a dataclass may have, those of nested parts included; of a
    list, the types of its values and an ellipsis."""
    found = dict[str, set[Any]]()
    for name, (kinds, _) in hints(settings).items():
        if is_dataclass(part := kinds[0]):
            found |= _kinds_of(part)
        else:
            found[name] = {each for kind in kinds for each in get_args(kind) or (kind,)}
    return found


def _without_commas(kinds: dict[str, set[Any]], argv: list[str]) -> list[str]:
    """The arguments with the values of lists as words: ``--hidden 64 64`` for ``64,64``."""
    names = {name for name, each in kinds.items() if ... in each}
    found, listed, named = list[str](), False, ""
    for word in argv:
        flag, separator, text = word.partition("=")
        if flag.startswith("--"):
            listed, named = flag[2:].replace("-", "_") in names, flag
            within = listed and bool(separator)
            found += [flag] if within else [word]
        else:
            text, within = word, listed
            found += [] if within else [word]
        if within:
            parts = text.removesuffix(",").split(",")
            if "" in parts:
                raise UsageError(
                    f"{named} {text!r} has an empty place; write a list as 64,64 or 64 64."
                )
            found += parts
    return found


def _refuse_repeated(kinds: dict[str, set[Any]], argv: list[str]) -> None:
    """Refuse a setting that is given twice: one of its values would be ignored."""
    given = set[str]()
    for word in argv:
        flag = word.partition("=")[0]
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or kinds.get(name, {bool}) == {bool}:
            continue
        if name in given:
            raise UsageError(given_twice(flag))
        given.add(name)


def _refuse_words(kinds: dict[str, set[Any]], argv: list[str]) -> None:
    """Refuse a value that is not the number that its flag needs; the parser's message names
    Python's types instead."""
    wanted, listed, flag = set[Any](), False, ""
    for word in argv:
        if word.startswith("--"):
            flag, separator, word = word.partition("=")
            wanted = kinds.get(flag[2:].replace("-", "_"), set())
            listed = ... in wanted
            wanted = wanted - {...}
            if not wanted & {int, float} or not wanted <= {int, float, NoneType}:
                wanted = set()
            if not separator:
                continue
        if not wanted or word == "-h" or (word == "None" and NoneType in wanted):
            continue
        try:
            float(word) if float in wanted else int(word)
        except ValueError:
            what = "a number" if float in wanted else "a whole number"
            how = "; write a list as 64,64 or 64 64" if listed else ""
            raise UsageError(f"{flag}: {word!r} is not {what}{how}.") from None
        wanted = wanted if listed else set()


def _refuse_value(kinds: dict[str, set[Any]], argv: list[str], value: str) -> None:
    """Refuse a value behind a flag that takes none."""
    given = [flag for flag, word in pairwise(argv) if word == value]
    given += [word.removesuffix(f"={value}") for word in argv if word.endswith(f"={value}")]
    for flag in given:
        name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
        if flag.startswith("--") and kinds.get(name) == {bool}:
            raise UsageError(without_value(flag, value))


def without_value(flag: str, value: str) -> str:
    """A sentence that says that a flag takes no value, such as the given one."""
    if flag == "--json":
        return f"--json is a flag and takes no file: it prints on stdout (--json > {value[:100]})."
    return f"{flag} is a flag and takes no value such as {value[:100]!r}."


def _sentence(box: str) -> str:
    """The sentence inside the parser's framed message: what stands below the title, to the rule."""
    lines = [line.strip(" │╭╰╮╯─-") for line in box.splitlines()[1:]]
    message = " ".join(takewhile(bool, dropwhile(lambda line: not line, lines)))
    if missing := re.match(r"Missing value for argument '(--[^']+)'", message):
        return f"{missing[1]} needs a value"
    return message.rstrip(".")


def take_all(
    argv: list[str], flag: str, each: float = math.inf, needs: str = "a value", flags: bool = False
) -> tuple[list[str], list[str]]:
    """All values of a flag, which takes `each` of them each time, and the arguments without it.

    Args:
        needs: what a value is, for the message where there is none.
        flags: whether a value may be a flag itself, of another program.
    """
    values, rest, room = list[str](), list[str](), 0.0
    for argument in [*argv, "--"]:  # which ends what a flag takes
        name, separator, text = argument.partition("=")
        value = argument != "--" if flags else not argument.startswith("--")
        if room == 1 and not value:
            raise UsageError(f"{flag} needs {needs}.")
        if name.replace("_", "-") == flag:
            room = each - bool(separator)
            values += [text] if separator else []
        elif room and value:
            room -= 1
            values.append(argument)
        else:
            room = 0
            rest.append(argument)
    return values, rest[:-1]


def take(argv: list[str], flag: str, needs: str = "a value") -> tuple[str | None, list[str]]:
    """The value of a flag, and the arguments without it.

    Raises:
        UsageError: the flag without a value, or more than once.
    """
    values, rest = take_all(argv, flag, 1, needs)
    if len(values) > 1:
        raise UsageError(given_twice(flag))
    return values[0] if values else None, rest


def take_file(argv: list[str], flag: str) -> tuple[str | None, list[str]]:
    """`take` for a flag whose value is a file, and not empty."""
    file, rest = take(argv, flag, f"a file: {flag} FILE")
    refuse_empty(flag, file)
    return file, rest


def take_switch(argv: list[str], flag: str) -> tuple[bool, list[str]]:
    """Whether a flag that takes no value is given, and the arguments without it.

    Raises:
        UsageError: the flag with a value, or ``--json`` with a file behind it.
    """
    for word, following in pairwise([*argv, ""]):
        name, separator, text = word.partition("=")
        if name == flag and separator:
            raise UsageError(without_value(flag, text))
        file = word == flag == "--json" and following.endswith(".json")
        if file and not Path(following).is_dir():  # a run may be called so
            raise UsageError(without_value(flag, following))
    return flag in argv, [word for word in argv if word != flag]


def refuse_json(argv: list[str], why: str) -> None:
    """Refuse ``--json`` where a command prints none, with a sentence that says what it prints."""
    if any(word.partition("=")[0] == "--json" for word in argv):
        raise UsageError(why)
