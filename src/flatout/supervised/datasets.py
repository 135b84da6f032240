"""The labelled images of a classification run: the bundled digits, or IDX files such as MNIST's."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from flatout.errors import UsageError
from flatout.types import ObservationSpec

DIGITS = "digits"
TEST_SHARE = 5
"""One image in `TEST_SHARE` of each class of the digits is for testing."""

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
    """Images ``[n, H, W, 1]`` uint8 with labels ``[n]`` int32, for training and for testing.

    Attributes:
        name: the dataset's name.
        high: the largest value of a pixel.
        classes: the number of different labels.
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    high: int
    classes: int

    @property
    def image_spec(self) -> ObservationSpec:
        """The specification of one image, as an observation."""
        return ObservationSpec(self.train_images.shape[1:], "uint8", self.high)


def load_dataset(folder: str | None) -> Dataset:
    """Load the images of a folder with MNIST's four IDX files, or the bundled digits (None).

    The digits are 1,797 images of 8x8 pixels by Alpaydin and Kaynak (UCI repository, 1998), which
    are also scikit-learn's `load_digits`. Their test set is every fifth image of each class.

    Raises:
        UsageError: a file is missing or has other contents than expected.
    """
    if folder is None:
        return _digits()
    path = Path(folder)
    if not path.is_dir():
        raise UsageError(f"--data {folder} is not a folder; {WHERE}.")
    arrays: dict[str, Any] = {}
    for part, name in FILES.items():
        file = next((f for f in (path / name, path / f"{name}.gz") if f.is_file()), None)
        if file is None:
            raise UsageError(f"--data {folder} has no {name} or {name}.gz; {WHERE}.")
        arrays[part] = read_idx(file, 3 if "images" in part else 1)
    for side in ("train", "test"):
        images, labels = arrays[f"{side}_images"], arrays[f"{side}_labels"]
        if len(images) != len(labels) or not len(images):
            raise UsageError(
                f"--data {folder}: the {side} files have {len(images):,} images but "
                f"{len(labels):,} labels; use files of the same dataset."
            )
    if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
        raise UsageError(f"--data {folder}: training and test images differ in size.")
    return _dataset(path.name or folder, high=255, **arrays)


def read_idx(path: Path, dims: int) -> np.ndarray:
    """Read an IDX file of bytes, compressed with gzip (suffix ``.gz``) or not.

    Args:
        path: the file.
        dims: the number of dimensions that its array should have.

    Raises:
        UsageError: it is not such a file, or it is damaged.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    if raw[:4] != bytes([0, 0, 8, dims]):
        raise UsageError(f"{path} is not an IDX file of bytes with {dims} dimensions.")
    start = 4 + 4 * dims
    shape = tuple(int(n) for n in np.frombuffer(raw[4:start], ">u4"))
    if len(shape) != dims or len(raw) - start != math.prod(shape):
        raise UsageError(
            f"{path} is damaged: its {len(raw):,} bytes do not fit the shape {list(shape)}."
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _digits() -> Dataset:
    folder = resources.files("flatout.supervised") / "data"
    with resources.as_file(folder / "digits-images-idx3-ubyte.gz") as file:
        images = read_idx(file, 3)
    with resources.as_file(folder / "digits-labels-idx1-ubyte.gz") as file:
        labels = read_idx(file, 1)
    test = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        test[np.flatnonzero(labels == label)[::TEST_SHARE]] = True
    return _dataset(DIGITS, images[~test], labels[~test], images[test], labels[test], 16)


def _dataset(
    name: str, train_images: np.ndarray, train_labels: np.ndarray, test_images: np.ndarray,
    test_labels: np.ndarray, high: int,
) -> Dataset:  # fmt: skip
    return Dataset(
        name, train_images[..., None], train_labels.astype(np.int32), test_images[..., None],
        test_labels.astype(np.int32), high, int(max(train_labels.max(), test_labels.max())) + 1,
    )  # fmt: skip
