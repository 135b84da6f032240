"""The command line's words as values, by the flags of a dataclass; refusals are sentences.

`flatout_explain` and `flatout` read all their command lines with `read`. argparse formats the help.
"""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from flatout_explain.errors import UsageError, nearest, refuse_empty
from flatout_explain.files.import_path import keep_out

T = TypeVar("T")

HELP = ("-h", "--help", "--help-all")
"""Flags that print the help instead of running a command."""

PATHS = ("FILE", "DIR", "RUN_DIR")
"""Words of the help that stand for a path, which is not empty."""

MOST_SHOWN = 100
"""Characters of a value that a message shows."""


class HelpShown(SystemExit):
    """The help has been printed. Another `SystemExit` comes from the user's code."""


class UnknownFlagError(UsageError):
    """A flag that the command does not have.

    Attributes:
        flag: its name as it was typed, without a value.
    """

    def __init__(self, message: str, flag: str) -> None:
        super().__init__(message)
        self.flag = flag


@dataclass(frozen=True)
class Flag:
    """A flag of a command, or a word that needs none.

    Attributes:
        name: the name of its value; with dashes it is the flag.
        help: sentences about it.
        value: the word that stands for its value in the help; a flag without one is a switch.
        needs: the value that it needs, for the message where none is given.
        count: number of words that it takes, if it is no switch.
        repeat: whether it may be given several times; its value is then a list.
        dashes: whether its value may begin with dashes, as a flag of another program.
        off: whether ``--no-NAME`` exists, too.
        word: whether it is given without a flag.
        group: the heading above it in the help.
        often: whether the short help shows it.
        default: its default, as the help shows it.
        choices: its possible values, if they are few.
    """

    name: str
    help: str = ""
    value: str = ""
    needs: str = "a value"
    count: int = 1
    repeat: bool = False
    dashes: bool = False
    off: bool = False
    word: bool = False
    group: str = "flags"
    often: bool = True
    default: str = ""
    choices: tuple[str, ...] = ()

    @property
    def typed(self) -> str:
        """The flag as it is typed."""
        return option(self.name)


def flag(
    default: Any, help: str, value: str = "", needs: str = "a value", type: Any = str, **how: Any
) -> Any:
    """Return a dataclass's field that is a flag.

    Args:
        default: the field's default.
        help: sentences about the flag.
        value: the word that stands for its value in the help; a flag without one is a switch.
        needs: the value that it needs, for the message where none is given.
        type: a function that converts its text, and raises `ValueError` with the reason.
        how: other attributes of `Flag`.
    """
    about = {"help": help, "value": value, "needs": needs, **how}
    return field(default=default, metadata={"flag": about, "type": type})


def number(text: str) -> float:
    """Return a flag's value as a number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text[:MOST_SHOWN]!r} is not a number") from None


def whole_number(text: str) -> int:
    """Return a flag's value as a whole number."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text[:MOST_SHOWN]!r} is not a whole number") from None


def option(name: str) -> str:
    """Return the flag of a dataclass's field."""
    return f"--{name.strip('_').replace('_', '-')}"


def parse(kind: type[T], prog: str, argv: Sequence[str]) -> T:
    """Return the dataclass `kind`, whose fields are made by `flag`, with what the flags say.

    Its attribute `usage` has the ways to call the command, without its name.

    Raises:
        HelpShown: ``--help`` was among them.
        UsageError: an unknown flag, or a value that it cannot take.
    """
    made: Any = kind  # a dataclass
    flags = own_flags(made)
    if any(word in HELP for word in argv):
        usage = "\n       ".join(f"{prog} {way}" for way in made.usage)
        print(help_text(usage, str(made.__doc__), flags))
        raise HelpShown(0)
    values = dict[str, Any]()
    types = {spec.name: spec.metadata["type"] for spec in fields(made)}
    for name, value in read(flags, prog, argv).items():
        try:
            values[name] = types[name](value) if isinstance(value, str) else value
        except ValueError as error:
            raise UsageError(f"{option(name)}: {error}.") from None
    return made(**values)


def own_flags(kind: Any) -> list[Flag]:
    """Return the flags of a dataclass whose fields are made by `flag`."""
    return [Flag(spec.name, **spec.metadata["flag"]) for spec in fields(kind)]


def read(flags: Sequence[Flag], prog: str, argv: Sequence[str]) -> dict[str, Any]:
    """Return the values that are given, by their names: texts (a tuple of `Flag.count` texts, where
    that is several), True or False of switches, and tuples of those that may be repeated.

    Args:
        flags: the command's.
        prog: the command, for messages.
        argv: the words that follow the command.

    Raises:
        UnknownFlagError: a flag that is not of these.
        UsageError: a flag without its value, a switch with one, a flag that is given twice, or a
            word too many.
    """
    named = {flag.typed: flag for flag in flags if not flag.word}
    off = {f"--no-{name[2:]}": flag for name, flag in named.items() if flag.off}
    places = [flag for flag in flags if flag.word]
    found, rest, switch = dict[str, Any](), list(argv), ""
    while rest:
        word = rest.pop(0)
        typed, separator, text = word.partition("=")
        name = typed.replace("_", "-")
        if not word.startswith("-") or word == "-":
            _place(word, places, found, prog, switch)
            continue
        switch, one = "", named.get(name) or off.get(name)
        if one is None:
            raise UnknownFlagError(_unknown(typed, prog, [*named, *off]), name)
        if not one.value:
            if separator or (name == "--json" and rest and _is_json_file(rest[0])):
                raise UsageError(without_value(name, text or rest[0]))
            found[one.name], switch = name in named, name
            continue
        taken = [text] if separator else []
        while len(taken) < one.count:
            if not rest or (rest[0].startswith("--") and not one.dashes):
                raise UsageError(f"{name} needs {one.needs}.")
            taken.append(rest.pop(0))
        if one.value.startswith(PATHS):
            refuse_empty(name, taken[0])
        value: Any = taken[0] if one.count == 1 else tuple(taken)
        if one.repeat:
            value = (*found.get(one.name, ()), value)
        elif one.name in found:
            raise UsageError(given_twice(typed))
        found[one.name] = value
    return found


def _place(
    word: str, places: Sequence[Flag], found: dict[str, Any], prog: str, switch: str
) -> None:
    """Put a word without a flag into `found`, in the first of `places` that is free.

    Args:
        switch: the switch that is before the word; empty if there is none.
    """
    for place in places:
        if place.repeat:
            found[place.name] = (*found.get(place.name, ()), word)
            return
        if place.name not in found:
            found[place.name] = word
            return
    if switch:
        raise UsageError(without_value(switch, word))
    raise UnknownFlagError(f"{prog} does not know {word[:MOST_SHOWN]!r}.", word)


def _is_json_file(word: str) -> bool:
    """Whether a word behind the switch ``--json`` is meant as its file; a run may be called so."""
    return word.endswith(".json") and not Path(word).is_dir()


def _unknown(typed: str, prog: str, names: Sequence[str]) -> str:
    hint = nearest(typed, get_close_matches(typed, names, n=1, cutoff=0.6))
    return f"{prog} does not know {typed!r}.{hint}"


def without_value(flag: str, value: str) -> str:
    """Return a sentence that says that a flag takes no value, such as the given one."""
    shown = value[:MOST_SHOWN]
    if flag == "--json":
        return f"--json is a flag and takes no file: it prints on stdout (--json > {shown})."
    return f"{flag} is a flag and takes no value such as {shown!r}."


def given_twice(flag: str) -> str:
    """Return a sentence that says that a flag is repeated."""
    return f"{flag} is given more than once; give it once."


def help_text(usage: str, description: str, flags: Sequence[Flag], every: bool = True) -> str:
    """Return the help of a command.

    Args:
        usage: the ways to call it.
        description: sentences about it; the first line is the first of a docstring.
        flags: its flags.
        every: whether to show all flags, instead of those that are used often.
    """
    parser = argparse.ArgumentParser(
        usage=usage, description=inspect.cleandoc(description), add_help=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=28, width=100
        ),
    )  # fmt: skip
    groups = dict[str, Any]()
    for one in flags:
        if not (every or one.often):
            continue
        text = one.help if every else first_sentence(one.help)
        text = f"{text} [{one.default}]" if one.default else text
        text = text.replace("%", "%%")
        group = groups.get(one.group) or parser.add_argument_group(one.group)
        groups[one.group] = group
        if one.word:
            group.add_argument(one.name, metavar=one.value, help=text)
        elif one.value:
            words = one.value.split() if one.count > 1 else [one.value]
            nargs = one.count if one.count > 1 else None
            metavar = tuple(words) if one.count > 1 else words[0]
            group.add_argument(one.typed, dest=one.name, metavar=metavar, nargs=nargs, help=text)
        else:
            group.add_argument(one.typed, dest=one.name, action="store_true", help=text)
    if not every and (hidden := sum(not one.often for one in flags)):
        parser.epilog = f"--help-all shows {hidden} more flags."
    return parser.format_help().rstrip("\n")


def first_sentence(text: str) -> str:
    """Return a text up to the end of its first sentence."""
    first, stop, _ = text.partition(". ")
    return first + stop.rstrip()


def existing(path: str, name: str = "RUN_DIR") -> Path:
    """Return the folder or file that the user named, from which nothing is imported.

    Args:
        name: what gives the path, for the message.

    Raises:
        UsageError: there is none.
    """
    refuse_empty(name, path)
    if not os.path.lexists(path):
        raise UsageError(f"{path} does not exist.")
    keep_out(Path(path))
    return Path(path)
