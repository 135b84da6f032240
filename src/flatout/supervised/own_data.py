"""A user's data for classification: how it is found, and the checks of its arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flatout.config.modules import import_function
from flatout.errors import FlatoutError, UsageError, described, failure

NAMES = ("x", "y", "x_test", "y_test")
"""The arrays of a user's data; the last two may be missing."""

FORM = "(x, y) or (x, y, x_test, y_test), or a dict with these names"


def read_npz(path: Path, where: str) -> dict[str, np.ndarray]:
    """Read those arrays of an .npz file that `NAMES` has; objects in it are never unpickled.

    Raises:
        UsageError: there is no such file, or it cannot be read.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in NAMES if name in arrays.files}
    except FileNotFoundError:
        raise UsageError(f"{where}: there is no such file.") from None
    except Exception as error:  # a damaged file may raise anything
        raise UsageError(
            f"{where} cannot be read as an .npz file of plain arrays: {failure(error)}."
        ) from error


def call(name: str, where: str) -> Any:
    """Import ``module:function``, call it without arguments and return its result.

    Raises:
        UsageError: there is no such function, or it raises.
        EnvironmentFailure: importing its module fails.
    """
    return result_of(import_function(name, where), where)


def result_of(function: Any, where: str) -> Any:
    """Call a user's function that returns data; raises a `UsageError` if it fails."""
    try:
        return function()
    except FlatoutError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise UsageError(
            f"{where}: the function raised {failure(error)}; it is called without arguments."
        ) from error


def checked(given: Any, where: str) -> dict[str, np.ndarray]:
    """Return a user's arrays by name: examples as uint8 or float32, labels as int32.

    Args:
        given: what `FORM` describes.
        where: the name of the data, with which each message begins.

    Raises:
        UsageError: the arrays cannot be learned from; the message names the array and the row.
    """
    arrays = _named(given, where)
    for name in NAMES[:2]:
        if arrays.get(name) is None:
            raise UsageError(f"{where} has no array {name!r}; it needs {FORM}.")
    for name, other in (NAMES[2:], NAMES[:1:-1]):
        if arrays.get(name) is not None and arrays.get(other) is None:
            raise UsageError(f"{where} has {name} without {other}: give both, or neither.")
    found: dict[str, np.ndarray] = {}
    for x, y in (NAMES[:2], NAMES[2:]):
        if arrays.get(x) is not None:
            found[x] = _examples(x, arrays[x], where)
            found[y] = checked_labels(y, arrays[y], x, len(found[x]), where)
    _refuse_gaps(found["y"], where)
    if "x_test" in found:
        _refuse_other_test(found, where)
    return found


def _named(given: Any, where: str) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return {name: given[name] for name in NAMES if name in given}
    if isinstance(given, tuple | list) and len(given) in (2, 4):
        return dict(zip(NAMES, given, strict=False))
    what = f"{len(given)} values" if isinstance(given, tuple | list) else type(given).__name__
    raise UsageError(f"{where} is {what}; it must be {FORM}.")


def _array(name: str, given: Any, where: str, what: str) -> np.ndarray:
    """Return an array of numbers with at least one row; `what` says what it must be."""
    try:
        array = np.asarray(given)
    except Exception:  # rows may differ in length, and a user's object may raise anything
        array = np.asarray(None)
    if array.dtype.kind not in "biuf" or not array.ndim:
        kind = array.dtype if isinstance(given, np.ndarray) else described(given)
        raise UsageError(f"{where}: {name} is {kind}; it must be {what}.")
    if not array.size:
        raise UsageError(f"{where}: {name} is empty (shape {[*array.shape]}).")
    return array


def _examples(name: str, given: Any, where: str) -> np.ndarray:
    x = _array(name, given, where, "an array of numbers with one row for each example")
    if x.dtype == np.uint8:
        return x
    with np.errstate(over="ignore"):  # too large becomes infinity
        x = x.astype(np.float32)
    finite = np.isfinite(x.reshape(len(x), -1)).all(1)
    if not finite.all():
        raise UsageError(
            f"{where}: row {int(finite.argmin())} of {name} holds NaN, infinity or a number that "
            "float32 cannot hold; remove or replace such rows."
        )
    return x


def checked_labels(name: str, given: Any, x: str, rows: int, where: str) -> np.ndarray:
    """Return labels as int32 ``[rows]``.

    Args:
        name, x: of the labels and of their examples, for messages.
        rows: the number of examples.
        where: the name of the data, with which each message begins.

    Raises:
        UsageError: they are not one whole number from 0 on for each example.
    """
    y = _array(name, given, where, "an array of whole numbers, one label for each example")
    if y.ndim != 1:
        one = f"{name}.reshape(-1)" if y.size == len(y) else f"{name}.argmax(1) of one-hot rows"
        raise UsageError(
            f"{where}: {name} has shape {[*y.shape]}; it must have one label for each example, "
            f"shape [{rows}]; use {one}."
        )
    if len(y) != rows:
        raise UsageError(
            f"{where}: {x} has {rows:,} rows, but {name} has {len(y):,} labels; give one label "
            "for each row."
        )
    with np.errstate(invalid="ignore", over="ignore"):  # NaN; float16 holds no 2**31
        whole = (y >= 0) & (y < 2**31) & (y % 1 == 0)
    if not whole.all():
        row = int(whole.argmin())
        raise UsageError(
            f"{where}: {name}[{row}] is {y[row]}; labels are the whole numbers 0 to classes - 1."
        )
    return y.astype(np.int32)


def _refuse_gaps(y: np.ndarray, where: str) -> None:
    """Refuse labels unless they are 0 to classes - 1, at least two, and each occurs."""
    found = np.unique(y)
    wrong = np.flatnonzero(found != np.arange(len(found)))
    if len(wrong):
        missing, label = int(wrong[0]), int(found[wrong[0]])
        raise UsageError(
            f"{where}: y[{int((y == label).argmax())}] is {label}, but no row has the label "
            f"{missing}; number the {len(found):,} classes 0 to {len(found) - 1:,}."
        )
    if len(found) < 2:
        raise UsageError(f"{where}: all {len(y):,} labels in y are 0; give at least two classes.")


def _refuse_other_test(found: dict[str, np.ndarray], where: str) -> None:
    """Refuse test examples of another kind than those to learn from, and labels only they have."""
    x, x_test = found["x"], found["x_test"]
    if x.shape[1:] != x_test.shape[1:]:
        raise UsageError(
            f"{where}: an example has shape {[*x_test.shape[1:]]} in x_test, but "
            f"{[*x.shape[1:]]} in x; give both the same shape."
        )
    if x.dtype != x_test.dtype:
        raise UsageError(
            f"{where}: x_test is {x_test.dtype}, but x is {x.dtype}; give both the same type, "
            "because only uint8 is divided by 255."
        )
    last = int(found["y"].max())
    over = found["y_test"] > last
    if over.any():
        row = int(over.argmax())
        raise UsageError(
            f"{where}: y_test[{row}] is {found['y_test'][row]}, a label that y does not have (its "
            f"labels are 0 to {last}); remove that test row, or add such rows to x and y."
        )
