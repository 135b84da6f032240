"""From settings to the parts of a classification run: a dataset in the place of environments."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.config.placement import Placement
from flatout.config.schema import TrainConfig
from flatout.envs.datasets import Dataset, load_dataset
from flatout.errors import UsageError
from flatout.hardware import backend
from flatout.hardware.inventory import Hardware
from flatout.run.components import Components
from flatout.run.evaluate import Evaluation
from flatout.spans import Spans
from flatout.types import DiscreteSpec, ObservationSpec

if TYPE_CHECKING:
    from flatout.algorithms.base import Algorithm
    from flatout.types import Device

TOGETHER = 10
"""Gradient steps in one dispatch, at most: as often as figures are reported."""

TEST_BATCH = 1000


def steps_together(steps: int, every: int) -> int:
    """U: gradient steps in one dispatch, so that the run and its rows end where they should."""
    fits = range(min(TOGETHER, every), 0, -1)
    return next(u for u in fits if steps % u == 0 and every % u == 0)


def build_classifier(
    config: TrainConfig, dataset: Dataset, horizon: int, placement: Placement
) -> Algorithm:
    """The classifier's pure functions for this dataset."""
    from flatout.algorithms.base import BuildSpec
    from flatout.algorithms.classify import classify
    from flatout.algorithms.registry import shards_of

    spec = BuildSpec(
        config.network, image_spec(dataset), DiscreteSpec(dataset.classes), 1, config.run.steps,
        horizon, shards=shards_of(config, placement), micro_batch=config.run.micro_batch,
    )  # fmt: skip
    return classify(config.hyper, spec)


def image_spec(dataset: Dataset) -> ObservationSpec:
    """One image as networks see it."""
    return ObservationSpec(dataset.train_images.shape[1:], "uint8", dataset.high)


def assemble_classifier(
    config: TrainConfig,
    placement: Placement,
    hardware: Hardware,
    notes: list[str],
    spans: Spans,
    discardable: Callable[[], AbstractContextManager[Any]],
    announce: Callable[[str], None],
) -> Components:
    """Load the data, compile the update and the test, and start to gather batches.

    Raises:
        UsageError, FlatoutError: what cannot be done.
    """
    from flatout.algorithms.base import DATA, INIT, LEARN, raw_key, shapes_of
    from flatout.buffers.make import build_buffer
    from flatout.learner.learner import Learner
    from flatout.learner.memory import Expectation, learned_mb, size_mb
    from flatout.learner.mesh import Mesh
    from flatout.samplers.dataset import DatasetSampler
    from flatout.schedules.serial import SerialSchedule

    if placement.sampler != "inline" or placement.schedule != "serial":
        raise UsageError(
            "classify has no environments: leave sampler= and schedule= out of --placement."
        )
    dataset = load_dataset(config.hyper.data)
    seed, batch = config.run.seed, config.hyper.batch_size
    together = steps_together(config.run.steps, config.run.log_every)
    algorithm = build_classifier(config, dataset, together, placement)
    sampler = DatasetSampler(dataset, together, batch, raw_key(seed, DATA), spans)
    shapes = shapes_of(sampler.gathered(0))
    expectation = Expectation(*learned_mb(algorithm.shapes), 3 * size_mb(shapes))
    expectation.check(placement, hardware)
    buffer = build_buffer(config, None, algorithm, placement, shapes, lambda _: None)
    learning = [backend.device(name) for name in placement.learn]
    mesh = Mesh(learning, config.run.shards, placement.params == "sharded")
    precision = config.run.precision
    learner = Learner(
        algorithm, buffer, mesh, raw_key(seed, INIT), raw_key(seed, LEARN), spans, precision
    )  # fmt: skip
    tester = Tester(algorithm, dataset, mesh.first, precision)
    with spans.span("compile"), ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(learner.compile_update, shapes), pool.submit(tester.compile)]
        program, _ = [job.result() for job in jobs]
    workspace = program.memory_analysis()
    temporary = 0.0 if workspace is None else workspace.temp_size_in_bytes / 2**20
    expectation = replace(expectation, workspace=temporary)
    announce(expectation.check(placement, hardware))
    announce(
        f"{dataset.name}: {len(dataset.train_labels):,} images to learn from, "
        f"{len(dataset.test_labels):,} to test with"
    )
    schedule = SerialSchedule(sampler, [], learner, spans, discardable)
    expected = expectation.by_purpose(placement)
    return Components(placement, hardware, algorithm, schedule, tester, expected, notes)


class Accuracy(Evaluation):
    """Which images of the test set were recognised (1 or 0 each)."""

    def words(self) -> str:
        """The share of them, in a sentence."""
        return f"test accuracy {self.return_mean:.2%} of {len(self.returns):,} images"

    def row(self) -> dict[str, float]:
        """As a row of metrics has it."""
        return {"eval/accuracy": self.return_mean}


class Tester:
    """Recognises the whole test set.

    Args:
        algorithm: whose `act` recognises.
        dataset: the images.
        device: where it runs.
        precision: of products on a GPU, see `RunConfig`.
    """

    def __init__(
        self, algorithm: Algorithm, dataset: Dataset, device: Device, precision: str = "highest"
    ) -> None:
        from flatout.learner.policy import Policy

        self._dataset = dataset
        self._batch = min(TEST_BATCH, len(dataset.test_labels))
        spec = image_spec(dataset)
        self.policy = Policy(algorithm, spec, self._batch, device, precision=precision)

    def compile(self) -> None:
        """Compile recognising."""
        self.policy.compile()

    def run(self, params: Any, version: int) -> Accuracy:
        """Recognise all images with packed parameters."""
        self.policy.publish(params, version, Spans())
        images, labels = self._dataset.test_images, self._dataset.test_labels
        found: list[np.ndarray] = []
        for start in range(0, len(labels), self._batch):
            part = images[start : start + self._batch]
            padded = np.zeros((self._batch, *images.shape[1:]), images.dtype)
            padded[: len(part)] = part
            classes = self.policy.layout.action(self.policy.greedy(padded))
            found.append(classes[: len(part)].copy())
        right = np.concatenate(found) == labels
        return Accuracy(tuple(right.astype(float)), (1,) * len(labels))

    def close(self) -> None:
        """Nothing is open."""
