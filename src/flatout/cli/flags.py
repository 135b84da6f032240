"""Flags of the commands from their dataclasses: hints give the values, texts below fields the help.

`flatout_explain.cli.parsing` splits a command line into texts; this module converts them to values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from flatout.config.settings import parse_kwargs
from flatout.config.values import check, hints
from flatout.errors import UsageError, nearest, refuse_empty
from flatout.output import json_text
from flatout.reports.figure import PICTURES, check_file
from flatout_explain import output_file
from flatout_explain.cli.parsing import (
    HELP,
    Flag,
    HelpShown,
    existing,
    help_text,
    option,
    read,
)

T = TypeVar("T")

WIDE = 40
"""Length of the joined choices from which on the help shows a word instead of them."""

_VALUES: dict[Any, str] = {
    int: "N",
    float: "NUMBER",
    str: "TEXT",
    dict: "KEY=VALUE",
    tuple: "N,N",
}
"""Words that stand for values of these types in the help."""


class Word(str):
    """In an ``Annotated`` hint: a value that is given without a flag, by its name in the help."""


def flags_of(part: type, group: str = "flags", texts: bool = False) -> list[Flag]:
    """Return the flags of a dataclass.

    In the ``Annotated`` hint of a field, a text stands for its value in the help, and a `Word`
    makes it a word without a flag.

    Args:
        part: the class.
        group: the heading above the flags in the help.
        texts: whether to read their help from the class's source.
    """
    annotated, helps = get_type_hints(part, include_extras=True), dict[str, str]()
    if texts:
        from flatout.config.texts import sentences

        helps = sentences(part)
    found = list[Flag]()
    for spec in fields(part):
        kinds, _ = hints(part)[spec.name]
        notes = [
            note for note in getattr(annotated[spec.name], "__metadata__", ())
            if isinstance(note, str)
        ]  # fmt: skip
        value = "" if bool in kinds else notes[0] if notes else _value(kinds)
        needs = f"a file: {option(spec.name)} FILE" if value.startswith("FILE") else "a value"
        word = any(isinstance(note, Word) for note in notes)
        choices = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
        found.append(
            Flag(
                spec.name, helps.get(spec.name, ""), value, needs,
                repeat=any(get_origin(kind) in (tuple, dict) for kind in kinds),
                off=bool in kinds, word=word,
                group="arguments" if word else group, choices=choices,
            )
        )  # fmt: skip
    return found


def _value(kinds: tuple[Any, ...]) -> str:
    """Return the word that stands for a value of these types."""
    for kind in kinds:
        if get_origin(kind) is Literal:
            choices = "|".join(get_args(kind))
            return choices if len(choices) < WIDE else "NAME"
        if (word := _VALUES.get(get_origin(kind) or kind)) is not None:
            return word
    return "VALUE"


def parse(kind: type[T], prog: str, argv: Sequence[str]) -> T:
    """Return a command's dataclass with what the flags say.

    Raises:
        HelpShown: the help was asked for.
        UsageError: an unknown flag, or a value that it cannot take.
    """
    made: Any = kind  # a dataclass
    if any(word in HELP for word in argv):
        show_help(made, prog, flags_of(made, texts=True), every=True)
    asked = made(**valued(made, read(flags_of(made), prog, argv)))
    check(asked, option)
    return asked


def show_help(kind: Any, prog: str, flags: Sequence[Flag], every: bool, text: str = "") -> None:
    """Print the help of a command's dataclass, whose `usage` has the ways to call it.

    Raises:
        HelpShown: always.
    """
    usage = "\n       ".join(f"{prog} {way}".rstrip() for way in kind.usage)
    print(help_text(usage, text or str(kind.__doc__), flags, every))
    raise HelpShown(0)


def valued(part: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return texts as values of a dataclass's fields.

    Raises:
        UsageError: a text that its field cannot take.
    """
    return {name: value_of(part, name, text) for name, text in given.items()}


def value_of(part: type, name: str, given: Any) -> Any:
    """Return a text, or the texts of a flag that is repeated, as the value of a field.

    Raises:
        UsageError: the field cannot take it.
    """
    kinds, _ = hints(part)[name]
    typed = option(name)
    if isinstance(given, bool):
        return given
    if isinstance(given, tuple):
        listed = next(kind for kind in kinds if get_origin(kind) in (tuple, dict))
        if get_origin(listed) is dict:
            return parse_kwargs(given, typed)
        if NoneType in kinds and given == ("None",):
            return None
        kind = get_args(listed)[0]
        return given if kind is str else tuple(_numbers(kind, typed, given))
    if NoneType in kinds and (given == "None" or (given == "none" and str not in kinds)):
        return None
    for kind in kinds:
        if get_origin(kind) is Literal and given in get_args(kind):
            return given
        if kind is str:
            return given
        if kind in (int, float) and (number := _number(kind, given)) is not None:
            return number
    for kind in kinds:
        if get_origin(kind) is Literal:
            choices = get_args(kind)
            hint = nearest(given[:100], choices)
            raise UsageError(f"{typed}: {given[:100]!r} is not one of {', '.join(choices)}.{hint}")
    raise UsageError(f"{typed}: {given[:100]!r} is not {_named(kinds[0])}.")


def _named(kind: Any) -> str:
    return "a whole number" if kind is int else "a number"


def _numbers(kind: Any, typed: str, texts: Iterable[str]) -> Iterable[Any]:
    """Yield the numbers of a list: each text has one or several with commas between them."""
    for text in texts:
        for word in text.removesuffix(",").split(","):
            if not word:
                raise UsageError(f"{typed} {text!r} has an empty place; write a list as 64,64.")
            number = _number(kind, word)
            if number is None:
                raise UsageError(
                    f"{typed}: {word[:100]!r} is not {_named(kind)}; write a list as 64,64."
                )
            yield number


def _number(kind: Any, text: str) -> Any:
    """Return a text as a number of this type, or None; 1e6 is a whole number, too."""
    if kind is int and re.fullmatch(r"[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}", text):
        number = float(text)
        return int(number) if number == int(number) < 2**53 else None
    try:
        return kind(text)
    except ValueError:
        return None


def run_folder(path: str, name: str, holds: str = "a run") -> Path:
    """Return the folder that the user named, from which nothing is imported.

    Args:
        name: what gives the path, for the message.
        holds: what the folder holds, for the message.

    Raises:
        UsageError: there is none, or it is a file.
    """
    folder = existing(path, name)
    if folder.is_file():
        raise UsageError(f"{name} {path} is a file; give the folder of {holds}.")
    return folder


def out_files(files: Sequence[str], *endings: str, own: Collection[str] = ()) -> list[Path]:
    """Return the files of ``--out``.

    Args:
        endings, own: see `check_file`.

    Raises:
        UsageError: a file that cannot be written.
    """
    for file in files:
        refuse_empty("--out", file)
        check_file(Path(file), endings, own, "--out")
    return [Path(file) for file in files]


def write_out(
    files: Iterable[Path], values: Mapping[str, Any], draw: Callable[[Path], None]
) -> None:
    """Write the files of ``--out``: .json holds `values`, and `draw` writes a picture."""
    for file in files:
        if file.suffix == ".json":
            output_file.write(file, json_text(values, indent=2) + "\n")
        elif file.suffix in PICTURES:
            draw(file)
