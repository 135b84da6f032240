"""Classification: images instead of environments, on one device or several."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.__main__ import main
from flatout.algorithms.base import BuildSpec
from flatout.config.hyper import ClassifyConfig
from flatout.config.schema import NetworkConfig
from flatout.errors import UsageError
from flatout.randomness import DATA, INIT, raw_key
from flatout.spans import Spans
from flatout.storage.checkpoint import named_leaves
from flatout.supervised.classify import classify
from flatout.supervised.datasets import FILES, Dataset, load_dataset, read_idx
from flatout.supervised.parts import steps_together
from flatout.supervised.sampler import DatasetSampler, batches
from flatout.types import DiscreteSpec
from tests import tiny
from tests.conftest import Result, furthest, last_saved

Cli = Callable[..., Result]
TINY = ("--steps", 6, "--batch-size", 64, "--quiet", "--no-tensorboard", "--log-every", 2)


def summary(flatout: Cli, run: Path, *flags: Any) -> dict[str, Any]:
    result = flatout("train", "classify", *flags, "--run-dir", run)
    assert result.code == 0, result.err
    return json.loads((run / "summary.json").read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``trained("--shards", 4) -> Path``: the folder of a tiny run.

    Runs with the same flags are trained once for all tests.
    """
    folder, numbers = tmp_path_factory.mktemp("trained"), itertools.count()

    @functools.cache
    def train(*flags: object) -> Path:
        run = folder / str(next(numbers))
        words = ("train", "classify", *TINY, *flags, "--run-dir", run)
        assert main(tiny.latest([str(word) for word in words])) == 0
        return run

    return train


def write_idx(
    folder: Path, images: np.ndarray, labels: np.ndarray, side: str, packed: bool
) -> None:
    for part, array in ((f"{side}_images", images), (f"{side}_labels", labels)):
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        raw, name = head + array.astype(np.uint8).tobytes(), FILES[part]
        (folder / (f"{name}.gz" if packed else name)).write_bytes(
            gzip.compress(raw) if packed else raw
        )


@pytest.mark.slow
def test_the_digits_are_learned(flatout: Cli, tmp_path: Path) -> None:
    found = summary(flatout, tmp_path / "run", "--steps", 500, "--batch-size", 128, "--quiet")
    assert found["test_accuracy"] >= 0.97
    rows = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(10, 501, 10))
    assert all(row["train/loss"] > 0 and 0 <= row["train/accuracy"] <= 1 for row in rows)
    assert all(row["time/examples_per_s"] > 0 for row in rows)
    assert rows[-1]["eval/accuracy"] == found["test_accuracy"]


FEWER = ("--shards", 4, "--devices", 2)
"""Devices of which each carries several parts."""


ORDERED = ("--reduce", "ordered")


@pytest.mark.bits
@pytest.mark.slow
def test_as_many_parts_learn_the_same_on_any_number_of_devices(
    trained: Callable[..., Path],
) -> None:
    """Bit for bit with ordered sums: the large network has no statistics of its batches."""
    large = ("--size", "large")
    one = last_saved(trained("--shards", 4, *large, *ORDERED))
    assert furthest(one, last_saved(trained(*FEWER, *large, *ORDERED))) == 0.0
    assert furthest(one, last_saved(trained(*FEWER, *large))) < 2e-5


@pytest.mark.bits  # Adam makes steps of what cheap programs round differently
@pytest.mark.slow
def test_batch_normalisation_is_over_all_parts(trained: Callable[..., Path]) -> None:
    """Otherwise four parts would learn something else than the whole batch at once."""
    whole = last_saved(trained())
    for sums in ((), ORDERED):
        assert furthest(whole, last_saved(trained(*FEWER, *sums))) < 2e-5


@pytest.mark.bits  # for the same reason
@pytest.mark.slow
def test_parts_that_agree_now_and_then_are_local_gradient_descent(
    flatout: Cli, tmp_path: Path
) -> None:
    """Against the definition: each part learns twice from its own rows, then all are averaged."""
    flags = (*TINY, "--steps", 4, "--shards", 4, "--devices", 2, "--sync", "every:2")
    summary(flatout, tmp_path / "run", *flags)
    data = load_dataset(None)
    rows = DatasetSampler(data, 4, 64, raw_key(0, DATA), Spans()).gathered(0)
    labels = DiscreteSpec(data.classes)
    alone = classify(
        ClassifyConfig(), BuildSpec(NetworkConfig(), data.example_spec, labels, 1, 4, 2)
    )
    state, update = alone.init(raw_key(0, INIT), alone.hp), jax.jit(alone.update)
    for step in (0, 2):
        learned = []
        for part in range(4):
            own = slice(16 * part, 16 * part + 16)
            mine = batches(
                rows.obs[step : step + 2, own].reshape(32, 8, 8, 1),
                rows.actions[step : step + 2, own].reshape(-1), 2, 16,
            )  # fmt: skip
            learned.append(update(state, mine, jax.random.key(0), alone.hp)[0])
        state = jax.tree.map(
            lambda *own: np.mean(own, 0).astype(own[0].dtype), *jax.device_get(learned)
        )
    wanted = named_leaves(state, "learner")
    found = last_saved(tmp_path / "run")
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, atol=2e-6, err_msg=name)


@pytest.mark.slow
def test_gradients_in_pieces_take_less_memory_and_are_the_same(
    flatout: Cli, tmp_path: Path
) -> None:
    flags = (*TINY, "--batch-size", 512, "--size", "large", "--dropout", 0)
    one = summary(flatout, tmp_path / "whole", *flags)
    several = summary(flatout, tmp_path / "pieces", *flags, "--micro-batch", 32)
    assert furthest(last_saved(tmp_path / "whole"), last_saved(tmp_path / "pieces")) < 2e-5
    assert several["memory_expected_mb"]["cpu"] < 0.6 * one["memory_expected_mb"]["cpu"]


@pytest.mark.bits
@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(
    trained: Callable[..., Path], flatout: Cli, tmp_path: Path
) -> None:
    summary(flatout, tmp_path / "whole", *TINY, "--steps", 12)
    parts = shutil.copytree(trained(), tmp_path / "parts")
    again = flatout("train", "--resume", parts, "--steps", 12, "--quiet")
    assert again.code == 0, again.err
    assert furthest(last_saved(tmp_path / "whole"), last_saved(parts)) == 0.0


# --- Data ---------------------------------------------------------------------------------------


def test_the_digits_are_divided_by_class_and_never_mixed() -> None:
    digits = load_dataset(None)
    assert (len(digits.train_y), len(digits.test_y)) == (1433, 364)
    assert digits.classes == 10
    assert digits.high == 16
    assert digits.train_x.max() == 16
    shares = np.bincount(digits.test_y) / np.bincount(
        np.concatenate([digits.train_y, digits.test_y])
    )
    assert ((shares > 0.19) & (shares < 0.21)).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 50))
def test_every_image_comes_once_an_epoch_wherever_a_run_begins(
    size: int, steps: int, batch: int
) -> None:
    labels = np.arange(size, dtype=np.int32)
    images = labels.astype(np.uint8).reshape(-1, 1, 1, 1)
    data = Dataset("numbers", images, labels, images, labels, 255, size)

    def sampler() -> DatasetSampler:
        return DatasetSampler(data, steps, batch, raw_key(0, 4), Spans())

    one = sampler()
    pieces = [one.gathered(k * steps) for k in range(6)]
    seen = np.concatenate([piece.actions.reshape(-1) for piece in pieces])
    for start in range(0, len(seen) // size * size, size):
        assert sorted(seen[start : start + size]) == list(range(size))
    assert all((piece.obs[..., 0, 0, 0] == piece.actions).all() for piece in pieces)
    for number in (5, 2, 4):
        np.testing.assert_array_equal(sampler().gathered(number * steps).actions,
                                      pieces[number].actions)  # fmt: skip
        rest = sampler().gathered((number + 1) * steps - 1).actions  # elsewhere: up to a multiple
        np.testing.assert_array_equal(rest, pieces[number].actions[-1:])


@pytest.mark.parametrize("packed", [False, True])
def test_mnists_files_are_read(packed: bool, flatout: Cli, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for side, count in (("train", 40), ("test", 12)):
        images = rng.integers(0, 256, (count, 12, 12))
        write_idx(tmp_path, images, np.arange(count) % 3, side, packed)
    data = load_dataset(str(tmp_path))
    assert data.train_x.shape == (40, 12, 12, 1)
    assert data.classes == 3
    assert data.high == 255
    found = summary(flatout, tmp_path / "run", *TINY, "--batch-size", 8, "--data", tmp_path)
    assert found["env"] == data.name == tmp_path.name
    assert 0 <= found["test_accuracy"] <= 1


def test_what_is_no_data_is_refused(flatout: Cli, tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none", "is not a folder"), (tmp_path, "has no train-images")):
        refused = flatout("train", "classify", "--data", path, "--run-dir", tmp_path / "r")
        assert refused.code == 2
        assert words in refused.message
        assert "https://" in refused.message
    cut = tmp_path / "cut-idx3-ubyte"
    cut.write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 9]))
    with pytest.raises(UsageError, match="is damaged"):
        read_idx(cut, 3)
    with pytest.raises(UsageError, match="not an IDX file"):
        read_idx(cut, 1)


def test_a_compressed_file_is_unpacked_no_further_than_its_shape(tmp_path: Path) -> None:
    packed = gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 4]) + bytes(1 << 24), 1)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(packed)
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="has 4 bytes, and it has more"):
            read_idx(path, 1)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
    path.write_bytes(packed[:10] + b"\xff" * 50)
    with pytest.raises(UsageError, match="cannot be read"):
        read_idx(path, 1)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--env", "CartPole-v1"), "--env is for runs with an environment; classify has none"),
        (("--env-kwargs", "a=1"), "classify has none"),
        (("--placement", "schedule=overlapped"), "has no environments"),
        (("--shards", 3), "must divide batch_size"),
        (("--dropout", 1), "0 to below 1"),
    ],
)
def test_what_a_classifier_has_not_is_refused(
    flags: tuple[Any, ...], words: str, flatout: Cli, tmp_path: Path
) -> None:
    refused = flatout("train", "classify", *flags, "--run-dir", tmp_path / "r")
    assert refused.code == 2
    assert words in refused.message


def test_a_classifier_plays_no_episodes(flatout: Cli, tmp_path: Path) -> None:
    summary(flatout, tmp_path / "run", *TINY)
    refused = flatout("eval", tmp_path / "run")
    assert refused.code == 2
    assert "test_accuracy" in refused.message


@given(st.integers(1, 5000), st.integers(1, 500))
def test_dispatches_end_where_rows_and_the_run_do(steps: int, every: int) -> None:
    together = steps_together(steps, every)
    assert 1 <= together <= 10
    assert steps % together == 0
    assert every % together == 0
