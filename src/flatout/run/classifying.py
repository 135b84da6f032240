"""Acting with a classifier's parameters: an example takes the place of an observation, and a label
that of an action."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NoReturn

from flatout.algorithms.base import Algorithm
from flatout.config.schema import TrainConfig
from flatout.envs.task import Task
from flatout.errors import UsageError
from flatout.run.acting import Acting
from flatout.supervised.datasets import Dataset
from flatout.supervised.parts import build_classifier
from flatout.supervised.tester import Tester
from flatout.types import DiscreteSpec, ObservationSpec, UserCode


class ClassifierActing(Acting):
    """A classifier's parameters, and what classifies with them, made on first use.

    Args:
        spec: one example.
        classes: the number of labels.
    """

    def __init__(
        self, config: TrainConfig, code: UserCode, spec: ObservationSpec, classes: int
    ) -> None:
        super().__init__(config, code)
        self._spec, self._classes = spec, classes

    @cached_property
    def _opened(self) -> Task:
        return Task(self._config.env, _refuse, self._spec, DiscreteSpec(self._classes), None)

    @cached_property
    def _algorithm(self) -> Algorithm:
        return build_classifier(self._config, self._spec, self._classes, self._code)

    def accuracy(self, dataset: Dataset) -> float:
        """Return the fraction of the dataset's test set that is classified correctly."""
        _ = self.task  # starts JAX
        tester = Tester(self._algorithm, dataset, self._device, self._config.run.precision)
        tester.policy.compile()
        return tester.run(self.packed(), 0).return_mean


def _refuse(**_: Any) -> NoReturn:
    raise UsageError("a classifier has no environment, so that it plays no episodes.")
