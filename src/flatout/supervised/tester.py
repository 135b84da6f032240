"""The evaluation of a classification run, in place of episodes: accuracy on the test set."""

from __future__ import annotations

from typing import Any

import numpy as np

from flatout.algorithms.base import Algorithm
from flatout.engine.act import Policy
from flatout.evaluation import Evaluation
from flatout.spans import Spans
from flatout.supervised.datasets import Dataset
from flatout.types import Device

TEST_BATCH = 1000


class Accuracy(Evaluation):
    """The result of a test: 1 for each example that was classified correctly, else 0."""

    def words(self) -> str:
        return f"test accuracy {self.return_mean:.2%} of {len(self.returns):,} examples"

    def row(self) -> dict[str, float]:
        return {"eval/accuracy": self.return_mean}


class Tester:
    """The counterpart of `flatout.run.evaluate.Evaluator`, which classifies the whole test set."""

    def __init__(
        self, algorithm: Algorithm, dataset: Dataset, device: Device, precision: str = "highest"
    ) -> None:
        self._dataset = dataset
        self._batch = min(TEST_BATCH, len(dataset.test_y))
        spec = dataset.example_spec
        self.policy = Policy(algorithm, spec, self._batch, device, precision=precision)

    def run(self, params: Any, version: int) -> Accuracy:
        """Classify all test examples with packed parameters (see `PackedParams`)."""
        self.policy.publish(params, version, Spans())
        examples, labels = self._dataset.test_x, self._dataset.test_y
        predicted: list[np.ndarray] = []
        for start in range(0, len(labels), self._batch):
            batch = examples[start : start + self._batch]
            padded = np.zeros((self._batch, *examples.shape[1:]), examples.dtype)
            padded[: len(batch)] = batch
            classes = self.policy.layout.action(self.policy.greedy(padded))
            predicted.append(classes[: len(batch)].copy())
        correct = np.concatenate(predicted) == labels
        return Accuracy(tuple(correct.astype(float)), (1,) * len(labels))

    def close(self) -> None:
        """Do nothing, because nothing is open."""
