"""Files of random images and labels, of which only the time to train on them counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_images(folder: Path, images: int = 20_000, tested: int = 1000) -> None:
    """IDX files of random images and labels, those of a test set too."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", images), ("t10k", tested)):
        for what, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            high = 256 if len(shape) > 1 else 10
            numbers = np.array(shape, ">u4").tobytes()
            values = rng.integers(0, high, shape, np.uint8).tobytes()
            head = bytes([0, 0, 8, len(shape)])
            (folder / f"{name}-{what}-ubyte").write_bytes(head + numbers + values)
