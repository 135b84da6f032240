"""The sections of a sweep's file that define configurations, as rows of settings."""

from __future__ import annotations

import itertools
import math
import random
import sys
from typing import Any

from flatout.errors import UsageError

MOST = 100_000
"""Maximum number of trials in a sweep."""


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise UsageError(f"{where} is not a table of settings.")
    return dict(value)


def grid(section: Any, where: str) -> list[dict[str, Any]]:
    """Return every combination of a table of lists; raises `UsageError` if it has another form."""
    table = _table(section, where)
    for key, values in table.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"{where} {key} = {str(values)[:100]}: write a list of its values.")
    refuse_many(math.prod(map(len, table.values())), where)
    return [dict(zip(table, row, strict=True)) for row in itertools.product(*table.values())]


def refuse_many(count: int, where: str) -> None:
    """Refuse a sweep of more than `MOST` trials, before they are made.

    Raises:
        UsageError: there are more than `MOST`.
    """
    if count > MOST:
        raise UsageError(f"{where} names {count:,} trials; a sweep has at most {MOST:,}.")


def listed(section: Any, where: str) -> list[dict[str, Any]]:
    """Return the tables of a list; raises `UsageError` if it has another form."""
    if not isinstance(section, list):
        raise UsageError(f"{where}: write a [[list]] for each configuration.")
    return [_table(row, where) for row in section]


def drawn(section: Any, where: str) -> list[dict[str, Any]]:
    """Draw random rows, equal for equal seeds; raises `UsageError` for an impossible table."""
    table = _table(section, where)
    count, seed = table.pop("count", None), table.pop("seed", 0)
    if type(count) is not int or not 1 <= count <= MOST or type(seed) is not int or not table:
        raise UsageError(f"{where} needs count, how many are drawn, a whole seed, and settings.")
    dice = random.Random(seed)
    return [
        {key: _draw(dice, values, f"{where} {key}") for key, values in table.items()}
        for _ in range(count)
    ]


def limits(values: Any, where: str) -> tuple[Any, Any, bool]:
    """Return the ends of ``{low, high}``, and whether it is ``log``: even over the logarithm.

    Raises:
        UsageError: it is no such table, or has impossible ends.
    """
    given = dict(values) if isinstance(values, dict) else {}
    low, high, log = given.pop("low", None), given.pop("high", None), given.pop("log", False)
    most = sys.float_info.max  # a whole number may be larger
    numbers = all(type(one) in (int, float) and abs(one) <= most for one in (low, high))
    if given or not numbers or not low < high or type(log) is not bool or (log and low <= 0):
        raise UsageError(
            f"{where} = {str(values)[:100]}: write a list to choose from, or "
            "{ low = 1e-5, high = 1e-3, log = true }."
        )
    return low, high, log


def _draw(dice: random.Random, values: Any, where: str) -> Any:
    """Draw from a list or from between the `limits`."""
    if isinstance(values, list) and values:
        return values[int(dice.random() * len(values))]
    low, high, log = limits(values, where)
    if log:
        number = math.exp(math.log(low) + dice.random() * (math.log(high) - math.log(low)))
    else:
        number = low + dice.random() * (high - low)
    if type(low) is int and type(high) is int:
        return min(
            round(number) if log else math.floor(low + dice.random() * (high + 1 - low)), high
        )
    short = float(f"{number:.4g}")
    return short if low <= short <= high else number
