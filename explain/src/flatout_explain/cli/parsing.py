"""Flags of a dataclass, parsed by argparse, whose refusals become sentences.

Its attribute `usage` has the ways to call the command, without its name.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from flatout_explain.errors import UsageError, nearest, refuse_empty
from flatout_explain.files.import_path import keep_out

T = TypeVar("T")


class HelpShown(SystemExit):
    """The parser has printed the help. Another `SystemExit` comes from the user's code."""


def flag(
    default: Any, help: str, value: str = "", needs: str = "a value", dashes: bool = False,
    **how: Any,
) -> Any:  # fmt: skip
    """Return a dataclass's field that is a flag.

    Args:
        default: the field's default.
        help: sentences about the flag.
        value: what stands for its value in the help; a flag without one is a switch.
        needs: what its value is, for the message where none is given.
        dashes: whether its value may be a flag itself, of another program.
        how: arguments of `argparse.ArgumentParser.add_argument`, as ``type``.
    """
    about = {"help": help, "value": value, "needs": needs, "dashes": dashes, "how": how}
    return field(default=default, metadata=about)


def number(text: str) -> float:
    """Return a flag's value as a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def whole_number(text: str) -> int:
    """Return a flag's value as a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def parse(kind: type[T], prog: str, argv: Sequence[str]) -> T:
    """Return the dataclass `kind` with what the flags say.

    Raises:
        HelpShown: ``--help`` was among them.
        UsageError: an unknown flag, or a value that it cannot take.
    """
    made: Any = kind  # a dataclass
    parser = _parser(made, prog)
    joined = _with_values(made, argv)
    words = [re.sub(r"^--[^=\s]+", lambda name: name[0].replace("_", "-"), word) for word in joined]
    _refuse_repeated(made, words)
    found, unknown = parser.parse_known_args(words)
    if unknown:
        names = [option(spec.name) for spec in fields(made) if spec.name != "path"]
        name = unknown[0].partition("=")[0]
        hint = nearest(name, get_close_matches(name, names, n=1, cutoff=0.6))
        raise UsageError(f"{prog} does not know {unknown[0]!r}.{hint}")
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(found).items()
    }
    return made(**values)


def option(name: str) -> str:
    """Return the flag of a dataclass's field."""
    return f"--{name.strip('_').replace('_', '-')}"


class _Parser(argparse.ArgumentParser):
    needs: dict[str, str]

    def error(self, message: str) -> NoReturn:
        named = re.match(r"argument (--[\w-]+): (.*)", message, re.DOTALL)
        if named and named[2].startswith("expected "):
            raise UsageError(f"{named[1]} needs {self.needs[named[1]]}.")
        if named and (given := re.match(r"ignored explicit argument (.*)", named[2])):
            raise UsageError(f"{named[1]} is a flag and takes no value such as {given[1][:100]}.")
        if named:
            raise UsageError(f"{named[1]}: {named[2]}.")
        raise UsageError(f"{message} ({self.prog} --help lists every flag).")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise HelpShown(status)


def _parser(kind: Any, prog: str) -> _Parser:
    usage = "\n       ".join(f"{prog} {way}" for way in kind.usage)
    parser = _Parser(prog, usage, description=kind.__doc__, allow_abbrev=False)
    parser.needs = {}
    for spec in fields(kind):
        about = spec.metadata
        how = {
            "help": about["help"].replace("%", "%%"),
            "default": argparse.SUPPRESS,
            **about["how"],
        }
        if spec.name == "path":
            parser.add_argument("path", nargs="?", metavar=about["value"], **how)
            continue
        parser.needs[option(spec.name)] = about["needs"]
        if about["value"]:
            how.setdefault("metavar", about["value"])
        else:
            how["action"] = "store_true"
        parser.add_argument(option(spec.name), dest=spec.name, **how)
    return parser


def _with_values(kind: Any, argv: Sequence[str]) -> list[str]:
    """Return the arguments in which a flag whose value may be a flag is one word with its value:
    argparse would take the value for a flag of this command."""
    names = [option(spec.name) for spec in fields(kind) if spec.metadata["dashes"]]
    words = list[str]()
    for word in argv:
        if words and words[-1].replace("_", "-") in names:
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def _refuse_repeated(kind: Any, argv: Sequence[str]) -> None:
    """Refuse a flag that is given twice: one of its values would be ignored."""
    once = {
        option(spec.name) for spec in fields(kind)
        if spec.metadata["value"] and spec.metadata["how"].get("action") is None
    }  # fmt: skip
    given = set[str]()
    for word in argv:
        name = word.partition("=")[0]
        if name in given:
            raise UsageError(given_twice(name))
        if name in once:
            given.add(name)


def given_twice(flag: str) -> str:
    """Return a sentence that says that a flag is repeated."""
    return f"{flag} is given more than once; give it once."


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
