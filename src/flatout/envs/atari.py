"""N Atari games that step together in ale-py's C++ threads.

`Task.open` makes them. Samplers and evaluation step them in the same way as `HostEnvs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flatout.config.schema import EnvConfig
from flatout.envs.ale import atari_specs, open_vector, vector_settings, write_frames
from flatout.envs.base import TRAINING
from flatout.envs.cropped import cropped as cropped
from flatout.envs.vector import VectorEnvs
from flatout.errors import EnvironmentFailure
from flatout.types import Episode
from flatout_explain.hardware.cores import usable_cores


class AtariEnvs(VectorEnvs):
    """N games of one id; see `VectorEnvs`. Games that are not active take no-ops.

    A seeded reset makes ale-py load the ROM again, which takes about as long as 250 steps.
    `reseed_after` makes such resets rarer.

    Args:
        config: the id and its settings.
        count: N.
        reseed_after: see `VectorEnvs`. For the other arguments see `Envs`.
        threads: threads in which the games step, unless ``num_threads`` is set in `config`; 0 means
            one per game, but at most one per core.

    Raises:
        UsageError: the game is unknown or a setting is impossible.
    """

    def __init__(
        self,
        config: EnvConfig,
        count: int,
        seed: int,
        stream: int = TRAINING,
        reseed_after: int = 0,
        first: int = 0,
        threads: int = 0,
    ) -> None:
        settings, (obs_spec, actions, _) = vector_settings(config), atari_specs(config)
        threads = settings["num_threads"] or threads or min(count, usable_cores())
        vector = open_vector(settings, count, threads)
        super().__init__(
            vector, config.env, obs_spec, actions, seed, stream, first, reseed_after
        )  # fmt: skip
        self._num_actions = actions.n
        self._lives = np.zeros(count, np.int32)
        self.life_lost = np.zeros(count, np.bool_)

    def finished(self, env: int) -> Episode:
        return super().finished(env)._replace(info={"lives": float(self._lives[env])})

    def close(self) -> None:
        self._vector = None

    def _reset_some(self, mask: np.ndarray, seeds: list[int]) -> tuple[Any, Mapping[str, Any]]:
        return self._vector.reset(seed=np.array(seeds), options={"reset_mask": mask})

    def _choices(self, actions: np.ndarray) -> np.ndarray:
        choices = np.array(actions, np.int32)
        if choices.min() < 0 or choices.max() >= self._num_actions:
            # ale-py's thread would fail, and the step would never return.
            raise EnvironmentFailure(
                f"an action for {self._name} is not one of its {self._num_actions}: "
                f"{choices.tolist()}"
            )
        return choices

    def _write(self, out: np.ndarray, envs: list[int] | None = None) -> None:
        write_frames(self._seen, out, envs)

    def _save_info(self, info: Mapping[str, Any], stepped: bool) -> None:
        if stepped:
            np.less(info["lives"], self._lives, out=self.life_lost)
        self._lives = info["lives"]
