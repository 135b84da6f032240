"""The parts of a classification run: data, algorithm, sampler and learner.

`flatout.run.build` makes them from the settings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flatout.algorithms.base import Algorithm, BuildSpec, shapes_of
from flatout.algorithms.registry import shards_of
from flatout.config.hyper import BUILT_IN
from flatout.config.modules import import_function
from flatout.config.placement import Placement
from flatout.config.schema import TrainConfig, rows_every
from flatout.engine.learn import Learner
from flatout.engine.make_buffer import build_buffer
from flatout.engine.memory import Expectation, divided_mb, learned_mb, size_mb
from flatout.engine.mesh import Mesh
from flatout.engine.programs import Programs
from flatout.errors import UsageError
from flatout.randomness import DATA, INIT, LEARN, raw_key
from flatout.spans import Spans
from flatout.supervised.classify import classify
from flatout.supervised.datasets import Dataset, load_dataset
from flatout.supervised.sampler import DatasetSampler
from flatout.types import NAMED, DiscreteSpec, ObservationSpec, Trajectory, UserCode

TOGETHER = 10
"""The most gradient steps in one dispatch of the learner."""


def steps_together(steps: int, every: int) -> int:
    """Return U, the gradient steps in one dispatch.

    U divides the run's steps and those between rows of metrics (`every`), so that each row and the
    end are reached exactly. The first dispatch of a run that continues ends at a multiple of U.
    """
    shared = math.gcd(steps, every)
    return next(u for u in range(TOGETHER, 0, -1) if shared % u == 0)


@dataclass(frozen=True)
class Parts:
    """The parts of a classification run before anything is compiled.

    Attributes:
        expectation: the expected use of memory.
        shapes: the shapes of the trajectories that the sampler returns.
        first: the shapes of the first one, if they are others.
    """

    dataset: Dataset
    algorithm: Algorithm
    sampler: DatasetSampler
    expectation: Expectation
    shapes: Trajectory
    first: Trajectory | None

    def learner(
        self, config: TrainConfig, placement: Placement, mesh: Mesh, spans: Spans,
        programs: Programs,
    ) -> Learner:  # fmt: skip
        """Return the learner, not yet compiled."""
        buffer = build_buffer(config, None, self.algorithm, placement, self.shapes)
        seed = config.run.seed
        return Learner(
            self.algorithm, buffer, mesh, raw_key(seed, INIT), raw_key(seed, LEARN), spans,
            config.run.precision, programs,
        )  # fmt: skip


def make_parts(
    config: TrainConfig, placement: Placement, spans: Spans, code: UserCode = NAMED,
    made: int = 0,
) -> Parts:  # fmt: skip
    """Load the data and build the algorithm.

    Args:
        code: the user's dataset, in place of environments, and the network that a Python program
            passed.
        made: gradient steps of the run so far.

    Raises:
        UsageError: the placement, the data or the network do not fit.
        FlatoutError: memory does not suffice for a layer.
    """
    if not placement.inline or placement.overlapped:
        raise UsageError(
            "classify has no environments: leave sampler= and schedule= out of --placement."
        )
    dataset = load_dataset(config.hyper.data, code.env)
    algorithm = build_classifier(config, dataset.example_spec, dataset.classes, code, placement)
    key = raw_key(config.run.seed, DATA)
    sampler = DatasetSampler(dataset, algorithm.horizon, config.hyper.batch_size, key, spans)
    shapes = shapes_of(sampler.gathered(0))
    first = shapes_of(sampler.gathered(made)) if made % algorithm.horizon else None
    expectation = Expectation(
        *learned_mb(algorithm.shapes), 3 * size_mb(shapes),
        divided=divided_mb(algorithm.shapes, len(placement.learn)),
    )  # fmt: skip
    return Parts(dataset, algorithm, sampler, expectation, shapes, first)


def build_classifier(
    config: TrainConfig, example_spec: ObservationSpec, classes: int, code: UserCode = NAMED,
    placement: Placement | None = None,
) -> Algorithm:  # fmt: skip
    """Build the pure functions of a classification run; `placement` as in `build_algorithm`."""
    network, name = code.network, config.hyper.network
    if network is None and name != BUILT_IN:
        network = import_function(name, f"--network {name}")
    together = steps_together(config.run.steps, rows_every(config.run.log_every, 0))
    spec = BuildSpec(
        config.network, example_spec, DiscreteSpec(classes), 1, config.run.steps, together,
        network, shards_of(config, placement), config.run.micro_batch,
    )  # fmt: skip
    return classify(config.hyper, spec)
