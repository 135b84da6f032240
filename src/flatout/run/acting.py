"""Acting with an agent's parameters: on one observation, on a batch, in whole episodes."""

from __future__ import annotations

from contextlib import closing
from functools import cached_property
from typing import Any

import numpy as np

from flatout.algorithms.base import ACT, Algorithm, raw_key
from flatout.algorithms.parallel.packing import Bundle
from flatout.algorithms.registry import build_algorithm
from flatout.config.schema import TrainConfig
from flatout.envs.task import Task
from flatout.errors import UsageError
from flatout.hardware import backend
from flatout.hardware.inventory import inventory, resolve_placement
from flatout.learner.policy import Policy
from flatout.run.evaluate import Evaluation, Evaluator
from flatout.run.opening import open_environment
from flatout.spans import Spans
from flatout.storage import checkpoint
from flatout.types import NAMED, UserCode


class Acting:
    """An agent's parameters, and what acts with them, made on first use."""

    def __init__(self, config: TrainConfig, code: UserCode = NAMED) -> None:
        self._config = config
        self._code = code
        self.arrays: dict[str, np.ndarray] | None = None  # the learning state by name
        self._policies: dict[tuple[int, bool], Policy] = {}

    @cached_property
    def task(self) -> Task:
        """The environment's spaces and how to make it, without one that is open."""
        task = open_environment(self._config, self._code)
        task.close()
        placement, _ = resolve_placement(
            self._config.run.placement, inventory(), images=task.obs_spec.is_image, soft=True
        )
        backend.start(placement)
        self._device = backend.device(placement.act[0])
        return task

    def learned(self, arrays: dict[str, np.ndarray]) -> None:
        """Act with other parameters from now on."""
        self.arrays = arrays
        self._policies.clear()

    def policy(self, count: int = 1, deterministic: bool = True) -> Policy:
        """A compiled policy for so many environments; raises as `packed` does."""
        if (count, deterministic) not in self._policies:
            run, spec = self._config.run, self.task.obs_spec
            key = None if deterministic else raw_key(run.seed, ACT)
            policy = Policy(self._algorithm, spec, count, self._device, key, run.precision)
            policy.compile()
            policy.publish(self.packed(), 0, Spans())
            self._policies[(count, deterministic)] = policy
        return self._policies[(count, deterministic)]

    def evaluate(self, episodes: int, seed: int) -> Evaluation:
        """Play greedy episodes in environments of their own."""
        algorithm, precision = self._algorithm, self._config.run.precision
        # Anew: a user's object was opened for its spaces, and cannot be again.
        task = open_environment(self._config, self._code)
        limit = 1 if task.single else 16
        with closing(
            Evaluator(algorithm, task, episodes, seed, self._device, limit, precision)
        ) as evaluator:
            evaluator.policy.compile()
            return evaluator.run(self.packed(), 0)

    @cached_property
    def _algorithm(self) -> Algorithm:
        return build_algorithm(self._config, *self.task.spaces, self._code)

    def packed(self) -> tuple[np.ndarray, ...]:
        """The actor's parameters, bundled; raises as `params` does."""
        return Bundle(self._algorithm.actor_shapes).pack(self.params(), np)

    def params(self) -> Any:
        """What the algorithm's `act` takes.

        Raises:
            UsageError: nothing was learned yet.
            CheckpointError: the parameters do not fit the settings.
        """
        if self.arrays is None:
            raise UsageError("this agent has learned nothing yet: call learn or load.")
        algorithm = self._algorithm
        shapes = algorithm.shapes._replace(opt=())  # a saved agent may have none
        names = checkpoint.leaf_names(shapes, checkpoint.PREFIX)
        state = checkpoint.rebuild(names, shapes, self.arrays)
        return algorithm.actor(state, algorithm.hp)
