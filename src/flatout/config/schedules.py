"""Settings that change during a run or are learned: their text forms and possible values.

`schema.py` checks them, and `algorithms/` reads the numbers behind the texts.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Annotated, Any

from flatout.config.values import Rule, hints, need
from flatout.errors import UsageError

_LINEAR = re.compile(r"lin_([^_]+)(?:_([^_]+))?")


def linear(name: str, value: float | str) -> tuple[float, float]:
    """Return a schedule's values at the start and at the end of the run.

    ``lin_START`` ends at 0, ``lin_START_END`` at END; a number stays the same.

    Raises:
        UsageError: `value` has none of these forms; the message says that setting `name` is wrong.
    """
    match = _LINEAR.fullmatch(str(value))
    start, end = (match[1], match[2] or 0.0) if match else (value, value)
    try:
        return float(start), float(end)
    except ValueError:
        raise UsageError(
            f"{name} = {str(value)[:200]!r} is neither a number nor a linear schedule such as "
            "lin_0.001 (to 0) or lin_0.001_0.0001."
        ) from None


def entropy_coefficient(name: str, value: float | str) -> tuple[float, bool]:
    """Return SAC's entropy weight at the start (``auto`` starts at 1), and whether it is learned.

    Raises:
        UsageError: neither a number of at least 0, nor ``auto``, nor ``auto_START`` above 0.
    """
    text = str(value)
    learned = text == "auto" or text.startswith("auto_")
    try:
        start = 1.0 if text == "auto" else float(text.removeprefix("auto_"))
    except ValueError:
        start = math.nan
    if not math.isfinite(start) or start < 0 or (learned and not start):
        raise UsageError(
            f"{name} = {text[:200]!r} is neither a number of 0 or more nor auto or auto_START "
            "with a start above 0."
        )
    return start, learned


def check_schedule(name: str, value: float | str, positive: bool = True) -> None:
    """Check that a schedule is finite and nowhere negative, and starts above 0 if `positive`."""
    start, end = linear(name, value)
    ok = 0 <= start < math.inf and 0 <= end < math.inf and (start > 0 or not positive)
    need(ok, name, value, "it must be above 0" if positive else "it must not be negative")


def real_values(part: Any) -> dict[str, float | tuple[float, float] | None]:
    """Return every real-valued setting of a settings object by its name: a number, the start and
    the end of a schedule, or None."""
    values: dict[str, float | tuple[float, float] | None] = {}
    for name, (kinds, rules) in hints(type(part)).items():
        if float not in kinds:
            continue
        value = getattr(part, name)
        if entropy_coefficient in rules:
            value, _ = entropy_coefficient(name, value)
        elif str in kinds:
            value = linear(name, value)
        values[name] = value
    return values


def check_float32(part: Any) -> None:
    """Refuse real-valued settings that do not fit into float32, the type that programs compute in.

    Raises:
        UsageError: the first impossible value.
    """
    for name, value in real_values(part).items():
        if value is None:
            continue
        numbers = value if isinstance(value, tuple) else (value,)
        stored = [_as_float32(number) for number in numbers]
        ok = all(map(math.isfinite, stored))
        ok = ok and (stored[0] != 0.0 or _may_be_zero(hints(type(part))[name][1]))
        need(ok, name, getattr(part, name), "float32 cannot hold it")


def _as_float32(number: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.inf


def _may_be_zero(rules: tuple[Rule, ...]) -> bool:
    try:
        for rule in rules:
            rule("", 0.0)
    except UsageError:
        return False
    return True


Schedule = Annotated[float | str, check_schedule]
"""A number above 0, or the text of a schedule that starts above 0 and changes linearly."""
