"""The labelled examples of a classification run: the bundled digits, IDX files such as MNIST's, or
a user's arrays."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from flatout.config.modules import PASSED
from flatout.errors import UsageError, damage
from flatout.supervised.own_data import call, checked, read_npz
from flatout.types import ObservationSpec

DIGITS = "digits"
TEST_SHARE = 5
"""One example in `TEST_SHARE` of each class is for testing, if the data has no test set."""

MOST_BYTES = 8 << 30  # of one file, unpacked

FILES = {
    "train_images": "train-images-idx3-ubyte", "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte", "test_labels": "t10k-labels-idx1-ubyte",
}  # fmt: skip
WHERE = (
    "MNIST's four files (train-images-idx3-ubyte.gz and so on) are at "
    "https://ossci-datasets.s3.amazonaws.com/mnist/ and in many mirrors; without --data the "
    "bundled 8x8 digits are used"
)


@dataclass(frozen=True)
class Dataset:
    """Examples ``[n, ...]``, uint8 or float32, with labels ``[n]`` int32, for training and testing.

    Attributes:
        name: the dataset's name.
        high: the number by which examples are divided, such as the largest value of a pixel; None
            leaves them as they are.
        classes: the number of different labels.
    """

    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    high: int | None
    classes: int

    @property
    def example_spec(self) -> ObservationSpec:
        """The specification of one example, as an observation."""
        return ObservationSpec(self.train_x.shape[1:], self.train_x.dtype.name, self.high)

    @property
    def description(self) -> str:
        """The name of arrays that were passed in Python, which `described_spec` reads."""
        kind = f"{self.train_x.dtype}{[*self.train_x.shape[1:]]}"
        return f"{kind} in {self.classes} classes {PASSED}"


def described_spec(text: str) -> tuple[ObservationSpec, int] | None:
    """Return the specification of an example and the number of classes of arrays that were passed
    in Python, from their description; None if the text is no such description."""
    found = re.fullmatch(
        rf"(uint8|float32)\[([\d, ]*)\] in (\d+) classes {re.escape(PASSED)}", text
    )
    if found is None:
        return None
    shape = tuple(int(size) for size in found[2].split(",") if size)
    return ObservationSpec(shape, found[1], _high(found[1])), int(found[3])


def load_dataset(data: str | None, passed: Dataset | None = None) -> Dataset:
    """Load the dataset that the setting `data` names, unless it was passed in Python.

    The digits (None) are 1,797 images of 8x8 pixels by Alpaydin and Kaynak (UCI repository, 1998),
    which are also scikit-learn's `load_digits`.

    Raises:
        UsageError: a file or a function is missing or has other contents than expected.
        EnvironmentFailure: importing the user's module fails.
    """
    if passed is not None:
        return passed
    if data is None:
        return _digits()
    path, where = Path(data), f"--data {data}"
    if data.endswith(PASSED):
        raise UsageError(
            f"the data ({data.removesuffix(PASSED).strip()}) was passed in Python and not saved: "
            "pass it again, flatout.Classifier.load(PATH, data=(x, y))."
        )
    if path.is_dir():
        return _idx_files(path, where)
    if path.suffix == ".npz":
        return own_dataset(path.name, read_npz(path, where), where)
    if ":" in data:
        return own_dataset(data, call(data, where), where)
    raise UsageError(f"{where} is not a folder, an .npz file or module:function; {WHERE}.")


def own_dataset(name: str, given: Any, where: str) -> Dataset:
    """Return a user's arrays as a dataset; without test arrays, a fixed fifth is held out.

    Args:
        name: the dataset's name.
        given, where: see `flatout.supervised.own_data.checked`.

    Raises:
        UsageError: the arrays cannot be learned from.
    """
    arrays = checked(given, where)
    x, y = arrays["x"], arrays["y"]
    classes, high = int(y.max()) + 1, _high(x.dtype.name)
    if "x_test" in arrays:
        return Dataset(name, x, y, arrays["x_test"], arrays["y_test"], high, classes)
    test = _held_out(y)
    if not test.any():
        raise UsageError(
            f"{where}: each class has one example, so that none can be held out for testing; give "
            "more examples, or x_test and y_test."
        )
    return Dataset(name, x[~test], y[~test], x[test], y[test], high, classes)


def _high(dtype: str) -> int | None:
    return 255 if dtype == "uint8" else None


def _held_out(labels: np.ndarray) -> np.ndarray:
    """Return the mask ``[n]`` of the test set: every fifth example of each class, from its first
    one. The only example of a class is not in it."""
    test = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        test[rows[::TEST_SHARE]] = len(rows) > 1
    return test


def _idx_files(path: Path, where: str) -> Dataset:
    arrays: dict[str, Any] = {}
    for part, name in FILES.items():
        file = next((f for f in (path / name, path / f"{name}.gz") if f.is_file()), None)
        if file is None:
            raise UsageError(f"{where} has no {name} or {name}.gz; {WHERE}.")
        arrays[part] = read_idx(file, 3 if "images" in part else 1)
    for side in ("train", "test"):
        images, labels = arrays[f"{side}_images"], arrays[f"{side}_labels"]
        if len(images) != len(labels) or not len(images):
            raise UsageError(
                f"{where}: the {side} files have {len(images):,} images but "
                f"{len(labels):,} labels; use files of the same dataset."
            )
    if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
        raise UsageError(f"{where}: training and test images differ in size.")
    return _images(path.name or str(path), high=255, **arrays)


def read_idx(path: Path, dims: int) -> np.ndarray:
    """Read an IDX file of bytes, compressed with gzip (suffix ``.gz``) or not.

    Args:
        path: the file.
        dims: the number of dimensions that its array should have.

    Raises:
        UsageError: it is not such a file, or it is damaged.
    """
    start = 4 + 4 * dims
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(start)
            if head[:4] != bytes([0, 0, 8, dims]):
                raise UsageError(f"{path} is not an IDX file of bytes with {dims} dimensions.")
            if len(head) != start:
                raise UsageError(f"{path} is damaged: it ends within its shape.")
            shape = tuple(int(n) for n in np.frombuffer(head[4:], ">u4"))
            size = math.prod(shape)
            if size > MOST_BYTES:
                raise UsageError(
                    f"{path} has {size >> 20:,} MiB of data, and at most {MOST_BYTES >> 20:,} MiB "
                    "are read."
                )
            raw = file.read(size + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {damage(error)}.") from error
    if len(raw) != size:
        found = f"{len(raw):,}" if len(raw) < size else "more"
        raise UsageError(
            f"{path} is damaged: its shape {list(shape)} has {size:,} bytes, and it has {found}."
        )
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _digits() -> Dataset:
    folder = resources.files("flatout.supervised") / "data"
    with resources.as_file(folder / "digits-images-idx3-ubyte.gz") as file:
        images = read_idx(file, 3)
    with resources.as_file(folder / "digits-labels-idx1-ubyte.gz") as file:
        labels = read_idx(file, 1)
    test = _held_out(labels)
    return _images(DIGITS, images[~test], labels[~test], images[test], labels[test], 16)


def _images(
    name: str, train_images: np.ndarray, train_labels: np.ndarray, test_images: np.ndarray,
    test_labels: np.ndarray, high: int,
) -> Dataset:  # fmt: skip
    return Dataset(
        name, train_images[..., None], train_labels.astype(np.int32), test_images[..., None],
        test_labels.astype(np.int32), high, int(max(train_labels.max(), test_labels.max())) + 1,
    )  # fmt: skip
