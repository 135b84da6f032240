"""A user's arrays: what is read, how they are divided, and each fault in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout import Classifier, EnvironmentFailure, UsageError
from flatout.supervised.datasets import described_spec, load_dataset, own_dataset
from tests.own_networks import ROWS, make

Fault = Callable[[np.ndarray, np.ndarray], Any]


def changed(array: np.ndarray, row: int, value: Any) -> np.ndarray:
    array = array.astype(np.result_type(array, type(value)))
    array[row] = value
    return array


FAULTS: dict[str, tuple[Fault, str]] = {
    "lengths": (lambda x, y: (x, y[:-1]), "x has 90 rows, but y has 89 labels"),
    "NaN": (lambda x, y: (changed(x, 7, np.nan), y), "row 7 of x holds NaN"),
    "infinity": (lambda x, y: (changed(x, 8, -np.inf), y), "row 8 of x holds NaN, infinity"),
    "large": (lambda x, y: (changed(x.astype(float), 9, 1e300), y), "row 9 of x .*float32 cannot"),
    "empty": (lambda x, y: (x[:0], y[:0]), r"x is empty \(shape \[0, 16\]\)"),
    "no numbers": (lambda x, y: (x.astype(str), y), "x is <U.*array of numbers"),
    "ragged": (lambda x, y: ([[1.0], [1.0, 2.0]], [0, 1]), "x is list.*array of numbers"),
    "one-hot": (lambda x, y: (x, np.eye(3)[y]), r"y has shape \[90, 3\].*y.argmax\(1\)"),
    "column": (lambda x, y: (x, y[:, None]), r"y has shape \[90, 1\].*y.reshape\(-1\)"),
    "negative": (lambda x, y: (x, changed(y, 5, -1)), r"y\[5\] is -1; labels are the whole"),
    "fraction": (lambda x, y: (x, changed(y, 4, 0.5)), r"y\[4\] is 0.5; labels are the whole"),
    "NaN label": (lambda x, y: (x, changed(y, 4, np.nan)), r"y\[4\] is nan; labels are"),
    "gap": (lambda x, y: (x, changed(y, 6, 7)), r"y\[6\] is 7, but no row has the label 3"),
    "from one": (lambda x, y: (x, y + 1), "no row has the label 0; number the 3 classes 0 to 2"),
    "words": (lambda x, y: (x, y.astype(str)), "y is <U.*whole numbers, one label"),
    "one class": (lambda x, y: (x, 0 * y), "all 90 labels in y are 0; give at least two"),
    "test shape": (lambda x, y: (x, y, x[:, :4], y), r"shape \[4\] in x_test, but \[16\] in x"),
    "test type": (lambda x, y: (x, y, x.astype(np.uint8), y), "x_test is uint8, but x is float32"),
    "test label": (
        lambda x, y: (x, y, x, changed(y, 2, 3)), r"y_test\[2\] is 3, a label that y does not have"
    ),
    "test NaN": (lambda x, y: (x, y, changed(x, 1, np.nan), y), "row 1 of x_test holds NaN"),
    "test length": (lambda x, y: (x, y, x, y[1:]), "x_test has 90 rows, but y_test has 89"),
    "half a test": (lambda x, y: {"x": x, "y": y, "y_test": y}, "y_test without x_test"),
    "no y": (lambda x, y: {"x": x}, r"has no array 'y'; it needs \(x, y\)"),
    "three": (lambda x, y: (x, y, x), r"is 3 values; it must be \(x, y\)"),
    "other": (lambda x, y: x, r"is ndarray; it must be \(x, y\)"),
    "nothing held out": (lambda x, y: (x[:3], y[:3]), "each class has one example"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named_with_their_row(fault: str) -> None:
    make_wrong, words = FAULTS[fault]
    with pytest.raises(UsageError, match=f"^data.*{words}"):
        Classifier(None, make_wrong(*make()))


def test_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    x, y = make()
    np.savez(tmp_path / "half.npz", x=x, X_test=x)
    np.savez(tmp_path / "objects.npz", x=np.array([{}, {}]), y=y)
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 not a file")
    np.save(tmp_path / "array.npy", x)
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    for name, words in (
        ("half", "has no array 'y'"),
        ("objects", "cannot be read.*allow_pickle=False"),
        ("damaged", "cannot be read as an .npz file"),
        ("array", "cannot be read as an .npz file"),
        ("missing", "there is no such file"),
    ):
        with pytest.raises(UsageError, match=f"^--data .*{name}.npz.*{words}"):
            load_dataset(str(tmp_path / f"{name}.npz"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tests.own_networks:maek", "has no function 'maek'. Did you mean 'make'"),
        ("tests.own_networks:NO_FUNCTION", "has no function 'NO_FUNCTION'"),
        ("tests.no_such_module:make", "there is no module 'tests.no_such_module'"),
        ("tests.own_networks:raising", r"raised KeyError: 'missing' \(.*own_networks.py:"),
        ("tests.own_networks:other_labels", r"y\[0\] is 1, but no row has the label 0"),
        ("digits", "is not a folder, an .npz file or module:function"),
    ],
)
def test_functions_are_refused_in_a_sentence(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"^--data {name}.*{words}"):
        load_dataset(name)


def test_a_module_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_data.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvironmentFailure, match="importing failing_data failed: ZeroDivision"):
        load_dataset("failing_data:make")


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float64", "float16", "bool"])
@pytest.mark.parametrize("shape", [(), (5,), (4, 6), (4, 6, 3), (2, 2, 2, 2)])
def test_examples_of_any_shape_and_type_are_accepted(shape: Any, dtype: str) -> None:
    x = np.ones((20, *shape), dtype)
    data = own_dataset("name", (x, (np.arange(20) % 2).astype(dtype)), "data")
    assert data.train_x.shape == (16, *shape)
    assert data.train_x.dtype == ("uint8" if dtype == "uint8" else "float32")
    assert data.high == (255 if dtype == "uint8" else None)
    assert described_spec(data.description) == (data.example_spec, 2)


def test_a_fifth_of_each_class_is_held_out_in_order() -> None:
    y = np.array([0] * 10 + [1] * 5 + [2])
    data = own_dataset("name", (np.arange(16.0), y), "data")
    assert data.test_x.tolist() == [0, 5, 10]
    assert sorted([*data.train_x, *data.test_x]) == [*range(16)]
    given = own_dataset("name", {"x": y, "y": y, "x_test": y[:1], "y_test": y[:1]}, "data")
    assert (len(given.train_x), len(given.test_x)) == (16, 1)


def test_an_npz_file_is_what_a_function_returns(tmp_path: Path) -> None:
    x, y = make()
    np.savez(tmp_path / "d.npz", x=x, y=y, more=np.zeros(3))
    one, two = load_dataset(str(tmp_path / "d.npz")), load_dataset("tests.own_networks:make")
    assert (one.name, two.name) == ("d.npz", "tests.own_networks:make")
    np.testing.assert_array_equal(one.train_x, two.train_x)
    np.testing.assert_array_equal(one.test_y, two.test_y)
    assert len(one.train_x) + len(one.test_x) == ROWS
