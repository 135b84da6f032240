"""The sampler whose environments step in a compiled program, where acting happens, too."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from flatout.algorithms.parallel.packing import Bundle
from flatout.errors import CheckpointError, EnvironmentFailure
from flatout.hardware.backend import product_precision
from flatout.samplers.base import Sampler
from flatout.samplers.rollout import Ends, Rollout, RolloutState
from flatout.spans import Spans
from flatout.storage.checkpoint import leaf_names, named_leaves, rebuild
from flatout.types import Device, Episode, Episodes, Trajectory

ARRAYS = "environments/"
"""Prefix of its arrays in its state."""


class DeviceSampler(Sampler):
    """Collects a trajectory in one dispatch, with the parameters that were last published.

    Args:
        rollout: the program.
        device: where it runs.
        env_key, act_key: raw keys of the environments' and of the acting stream.
        spans: where the time goes.
        precision: of products on a GPU, see `RunConfig`.

    Attributes:
        rolling: the environments' state at the last committed trajectory's end.
    """

    def __init__(
        self, rollout: Rollout, device: Device, env_key: np.ndarray, act_key: np.ndarray,
        spans: Spans, precision: str = "highest",
    ) -> None:  # fmt: skip
        super().__init__()
        self.rollout, self.act_key = rollout, act_key
        self._device, self._env_key, self._spans = device, env_key, spans
        self._precision = precision
        self._bundle = Bundle(rollout.algorithm.actor_shapes)
        self.shapes = jax.eval_shape(rollout.start, env_key, np.int32(0))
        self.rolling: RolloutState | None = None
        self._next: RolloutState | None = None
        self._steps = 0
        self._params: tuple[jax.Array, ...] = ()

    def compile(self) -> Any:
        """Compile before the first trajectory."""
        on = jax.sharding.SingleDeviceSharding(self._device)
        with product_precision(self._device, self._precision):
            program = jax.jit(self._collect, in_shardings=on, out_shardings=on)
            lowered = program.lower(self._bundle.shapes, self.shapes, self.act_key)
            self._program = lowered.compile()

    def _collect(self, params: Any, state: RolloutState, key: Any) -> Any:
        return self.rollout(self._bundle.unpack(params), state, key)

    def publish(self, bundle: tuple[Any, ...], version: int, spans: Spans) -> None:
        """Set the parameters, as `Policy.publish`."""
        with spans.span("publish"):
            self._params = jax.block_until_ready(jax.device_put(bundle, self._device))

    @property
    def steps_collected(self) -> int:
        return self._steps

    def start(self) -> None:
        with self._spans.span("env"), jax.default_device(self._device):
            self.rolling = jax.jit(self.rollout.start)(self._env_key, np.int32(0))

    def collect(self) -> Trajectory:
        with self._spans.span("env"):  # acting, too
            found = self._program(self._params, self.rolling, self.act_key)
            trajectory, ends, self._next = found
            trajectory, ends = jax.device_get((trajectory, ends))
        self.check(bool(ends.finite))
        episodes = ended(ends)
        self.episodes = [Episode(*one) for one in zip(*episodes, strict=True)]
        valid = trajectory.valid
        self._steps = int(trajectory.rewards.size if valid is None else valid.sum())
        order = np.argsort(trajectory.final_index, kind="stable")  # as they were truncated
        return trajectory._replace(
            final_obs=trajectory.final_obs[order], final_index=trajectory.final_index[order]
        )

    def check(self, finite: bool) -> None:
        """Refuse what no environment may return.

        Raises:
            EnvironmentFailure: an observation or a reward is not finite.
        """
        if not finite:
            raise EnvironmentFailure(
                f"the environment {self.rollout.env.name} returned an observation or a reward "
                "that is NaN or infinite; look at what its step computes."
            )

    def commit(self) -> None:
        self.rolling = self._next

    def state(self) -> dict[str, Any]:
        assert self.rolling is not None
        arrays = named_leaves(jax.device_get(self.rolling), ARRAYS)
        return {"arrays": arrays, "obs": np.asarray(self.rolling.obs), "actions": []}

    def restore(self, state: dict[str, Any]) -> list[str]:
        arrays = state["arrays"]
        if not any(name.startswith(ARRAYS) for name in arrays):
            raise CheckpointError(
                "it was saved with environments that step on the host: resume it with "
                "--env-backend host."
            )
        rolling = rebuild(leaf_names(self.shapes, ARRAYS), self.shapes, arrays)
        self.rolling = jax.device_put(rolling, self._device)
        return []

    def close(self) -> None:
        """Nothing is open."""


def ended(ends: Ends) -> Episodes:
    """The episodes that ended, from arrays ``[..., T, N]``, in the order of their ends."""
    at = np.nonzero(ends.length)
    total = ends.total[at].astype(float)
    valued = ends.q_max.shape == ends.total.shape
    mean = ends.q_max[at].astype(float) if valued else np.full(len(total), np.nan)
    return Episodes(at[-1], total, ends.length[at], mean)
