"""A classification run: a dataset in the place of environments."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flatout.config.schema import TrainConfig, rows_every
from flatout.envs.datasets import Dataset, load_dataset
from flatout.errors import UsageError
from flatout.learner.programs import Programs
from flatout.run.components import Components, Job, compile_all, learning_mesh
from flatout.run.evaluate import Evaluation
from flatout.spans import Spans
from flatout.types import DiscreteSpec, ObservationSpec

if TYPE_CHECKING:
    from flatout.algorithms.base import Algorithm
    from flatout.config.placement import Placement
    from flatout.learner.memory import Expectation
    from flatout.samplers.dataset import DatasetSampler
    from flatout.types import Device

TOGETHER = 10
"""Gradient steps in one dispatch, at most: as often as figures are reported."""

TEST_BATCH = 1000


def steps_together(steps: int, every: int) -> int:
    """U: gradient steps in one dispatch, so that the run and its rows end where they should."""
    fits = range(min(TOGETHER, every), 0, -1)
    return next(u for u in fits if steps % u == 0 and every % u == 0)


def image_spec(dataset: Dataset) -> ObservationSpec:
    """One image as networks see it."""
    return ObservationSpec(dataset.train_images.shape[1:], "uint8", dataset.high)


class Parts(NamedTuple):
    """A classification run before anything is compiled."""

    dataset: Dataset
    algorithm: Algorithm
    sampler: DatasetSampler
    expectation: Expectation  # of memory


def parts(job: Job) -> Parts:
    """Load the data and build the algorithm.

    Raises:
        UsageError, FlatoutError: what cannot be done.
    """
    from flatout.algorithms.base import DATA, raw_key, shapes_of
    from flatout.learner.memory import Expectation, divided_mb, learned_mb, size_mb
    from flatout.samplers.dataset import DatasetSampler

    config, placement = job.config, job.placement
    if placement.sampler != "inline" or placement.schedule != "serial":
        raise UsageError(
            "classify has no environments: leave sampler= and schedule= out of --placement."
        )
    dataset = load_dataset(config.hyper.data)
    algorithm = build_classifier(config, dataset, placement)
    key = raw_key(config.run.seed, DATA)
    sampler = DatasetSampler(dataset, algorithm.horizon, config.hyper.batch_size, key, job.spans)
    expectation = Expectation(
        *learned_mb(algorithm.shapes), 3 * size_mb(shapes_of(sampler.gathered(0))),
        divided=divided_mb(algorithm.shapes, len(placement.learn)),
    )  # fmt: skip
    return Parts(dataset, algorithm, sampler, expectation)


def build_classifier(
    config: TrainConfig, dataset: Dataset, placement: Placement | None = None
) -> Algorithm:
    """The pure functions of a classification run; `placement` as of `build_algorithm`."""
    from flatout.algorithms.base import BuildSpec
    from flatout.algorithms.classify import classify
    from flatout.algorithms.registry import shards_of

    together = steps_together(config.run.steps, rows_every(config.run.log_every, 0))
    spec = BuildSpec(
        config.network, image_spec(dataset), DiscreteSpec(dataset.classes), 1, config.run.steps,
        together, shards=shards_of(config, placement), micro_batch=config.run.micro_batch,
    )  # fmt: skip
    return classify(config.hyper, spec)


def assemble_classifier(job: Job) -> Components:
    """Load the data, compile the update and the test, and start to gather batches.

    Raises:
        UsageError, FlatoutError: what cannot be done.
    """
    from flatout.algorithms.base import INIT, LEARN, raw_key, shapes_of
    from flatout.buffers.make import build_buffer
    from flatout.learner.learner import Learner
    from flatout.schedules.serial import SerialSchedule

    config, placement, hardware, spans = job.config, job.placement, job.hardware, job.spans
    dataset, algorithm, sampler, expectation = parts(job)
    expectation.check(placement, hardware)
    seed, precision = config.run.seed, config.run.precision
    shapes = shapes_of(sampler.gathered(0))
    buffer = build_buffer(config, None, algorithm, placement, shapes)
    mesh = learning_mesh(config, placement)
    # Without dropout the update draws nothing: another program, of the same shapes.
    programs = job.programs.get(("classify", config.hyper.dropout > 0), Programs)
    learner = Learner(
        algorithm, buffer, mesh, raw_key(seed, INIT), raw_key(seed, LEARN), spans, precision,
        programs,
    )  # fmt: skip
    tester = Tester(algorithm, dataset, mesh.first, precision)
    tests = partial(tester.policy.compile, programs)
    workspace = compile_all(job, partial(learner.compile_update, shapes), [tests])
    expectation = replace(expectation, workspace=workspace)
    job.announce(expectation.check(placement, hardware))
    job.announce(
        f"{dataset.name}: {len(dataset.train_labels):,} images to learn from, "
        f"{len(dataset.test_labels):,} to test with"
    )
    schedule = SerialSchedule(sampler, [], learner, spans, job.discardable)
    expected = expectation.by_purpose(placement)
    return Components(placement, hardware, algorithm, schedule, tester, expected, job.notes)


class Accuracy(Evaluation):
    """Which images of the test set were classified correctly (1 or 0 each)."""

    def words(self) -> str:
        return f"test accuracy {self.return_mean:.2%} of {len(self.returns):,} images"

    def row(self) -> dict[str, float]:
        return {"eval/accuracy": self.return_mean}


class Tester:
    """Classifies the whole test set; see `Evaluator`."""

    def __init__(
        self, algorithm: Algorithm, dataset: Dataset, device: Device, precision: str = "highest"
    ) -> None:
        from flatout.learner.policy import Policy

        self._dataset = dataset
        self._batch = min(TEST_BATCH, len(dataset.test_labels))
        spec = image_spec(dataset)
        self.policy = Policy(algorithm, spec, self._batch, device, precision=precision)

    def run(self, params: Any, version: int) -> Accuracy:
        """Classify all images with packed parameters."""
        self.policy.publish(params, version, Spans())
        images, labels = self._dataset.test_images, self._dataset.test_labels
        predicted: list[np.ndarray] = []
        for start in range(0, len(labels), self._batch):
            batch = images[start : start + self._batch]
            padded = np.zeros((self._batch, *images.shape[1:]), images.dtype)
            padded[: len(batch)] = batch
            classes = self.policy.layout.action(self.policy.greedy(padded))
            predicted.append(classes[: len(batch)].copy())
        correct = np.concatenate(predicted) == labels
        return Accuracy(tuple(correct.astype(float)), (1,) * len(labels))

    def close(self) -> None:
        """Nothing is open."""
