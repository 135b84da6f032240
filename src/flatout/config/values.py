"""The possible values of settings: annotations give their types and, in ``Annotated``, their rules.

`settings.py` converts values to these types, and `schema.py` applies the rules.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from flatout.errors import UsageError, nearest

Rule = Callable[[str, Any], object]
"""A function of a setting's name and value that raises a `UsageError` if it is impossible."""

MAX_WIDTH = 65_536
"""Maximum units of a hidden layer; for more, computing the shapes alone would take minutes."""
MAX_WEIGHTS = 1 << 30
"""Maximum weights between hidden layers: 4 GiB."""

_WORDS: dict[Any, str] = {
    tuple[float, ...]: "a number or a list of numbers",
    tuple[int, ...]: "a list of whole numbers",
    dict[str, Any]: "a table of names and values",
    bool: "true or false", int: "a whole number", float: "a number", str: "text",
}  # fmt: skip


def need(ok: bool, name: str, value: Any, what: str) -> None:
    """Refuse a value unless it is `ok`, with a message of its name and what is possible.

    Raises:
        UsageError: `ok` is False.
    """
    if not ok:
        raise UsageError(f"{name} = {str(value)[:200]} is impossible: {what}.")


@dataclass(frozen=True)
class Range:
    """The rule that a value lies between `low` and `high`; `above` and `below` exclude these."""

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __call__(self, name: str, value: float) -> None:
        ok = self.low < value if self.above else self.low <= value
        ok = ok and (value < self.high if self.below else value <= self.high)
        start = f"be above {self.low} and up" if self.above else f"be in {self.low}"
        what = f"it must {start} to {'below ' if self.below else ''}{self.high}"
        if self.high == math.inf:
            what = f"it must be above {self.low}" if self.above else f"at least {self.low}"
        need(ok, name, value, what)


Count = Annotated[int, Range(1, 2**31 - 1)]
CountOrZero = Annotated[int, Range(0, 2**31 - 1)]
Probability = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(0, above=True)]
NotNegative = Annotated[float, Range(0)]


def check_widths(name: str, widths: tuple[int, ...]) -> None:
    """Check the number of hidden layers, the width of each, and their weights in total."""
    need(len(widths) <= 64, name, f"{len(widths)} layers", "at most 64 layers")
    possible = all(1 <= width <= MAX_WIDTH for width in widths)
    need(possible, name, widths, f"every width must be in 1 to {MAX_WIDTH}")
    weights = sum(rows * columns for rows, columns in itertools.pairwise(widths))
    words = f"its {weights:,} weights exceed {MAX_WEIGHTS:,}"
    need(weights <= MAX_WEIGHTS, name, widths, words)


Widths = Annotated[tuple[int, ...], check_widths]


@functools.cache
def hints(part: type) -> dict[str, tuple[tuple[Any, ...], tuple[Rule, ...]]]:
    """Return the possible types and the rules of each setting of a settings class."""
    annotated = get_type_hints(part, include_extras=True)
    return {spec.name: _split_hint(annotated[spec.name]) for spec in fields(part)}


def _split_hint(hint: Any) -> tuple[tuple[Any, ...], tuple[Rule, ...]]:
    if get_origin(hint) is Annotated:
        kinds, rules = _split_hint(hint.__origin__)
        return kinds, rules + tuple(rule for rule in hint.__metadata__ if callable(rule))
    if get_origin(hint) in (Union, types.UnionType):
        members = [_split_hint(member) for member in get_args(hint)]
        return sum((kinds for kinds, _ in members), ()), sum((rules for _, rules in members), ())
    return (hint,), ()


def convert(part: type, name: str, value: Any) -> Any:
    """Return a value from TOML, JSON or Python in the type of its field.

    Raises:
        UsageError: the value has another type.
    """
    kinds, _ = hints(part)[name]
    if type(None) in kinds and (value is None or value == "none"):  # TOML has no null
        return None
    for kind in kinds:
        with suppress(OverflowError, TypeError, ValueError):
            return _read(kind, value)
    if str(value).lower() in ("lstm", "gru", "rnn", "recurrent"):
        raise UsageError(
            f"{name} = {value!r}: a policy's memory is a setting of its own, with any network: "
            "recurrent = gru or lstm (PPO and A2C)."
        )
    if callable(value) and str in kinds:
        raise UsageError(
            f"{name} is a function, but a schedule is text: lin_0.0003 falls linearly to 0 over "
            "the run, lin_0.0003_0.0001 to 0.0001."
        )
    words, hint = _WORDS.get(kinds[0]), ""
    if words is None:
        choices = get_args(kinds[0])
        words, hint = f"one of {', '.join(choices)}", nearest(str(value)[:200], choices)
    raise UsageError(f"{name} = {repr(value)[:200]} is not {words}.{hint}")


def _read(kind: Any, value: Any) -> Any:
    """Return a value as type `kind` if that loses nothing, and raise some exception otherwise."""
    if get_origin(kind) is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        if isinstance(value, str):  # 64,64 as on the command line
            items = [float(word) for word in value.strip("[]() ").split(",")]
        return tuple(_read(get_args(kind)[0], item) for item in items)
    if get_origin(kind) is dict and isinstance(value, Mapping):
        return dict(value)
    if kind is int and hasattr(value, "__index__") and not isinstance(value, bool):
        return operator.index(value)
    if kind in (int, float) and hasattr(value, "__float__") and not isinstance(value, bool | str):
        number = float(value)
        if kind is float:
            return number
        if number == int(value):
            return int(value)
    if get_origin(kind) is Literal and (value if type(value) is not int else str(value)) in (
        get_args(kind)
    ):
        return str(value)  # 0 as on the command line
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str | Path):
        return str(value)
    raise TypeError


def check(part: Any, named: Callable[[str], str] = str) -> None:
    """Refuse values that the rules of their fields forbid, and numbers that are not finite.

    Args:
        part: the settings.
        named: gives the name of a field in messages.

    Raises:
        UsageError: the first impossible value.
    """
    for name, (_, rules) in hints(type(part)).items():
        value = getattr(part, name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float):
                need(math.isfinite(number), named(name), value, "it must be a finite number")
        for rule in rules if value is not None else ():
            rule(named(name), value)
