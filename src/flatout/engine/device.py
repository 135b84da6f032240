"""The sampler of device environments: they step in a compiled program, which also acts.

Serial and overlapped schedules collect with it; `FusedSchedule` uses its rollout and checks."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import jax
import numpy as np

from flatout.algorithms.base import spec_shapes
from flatout.engine.finals import sort_finals
from flatout.engine.programs import Programs
from flatout.engine.rollout import Rollout
from flatout.engine.rollout_state import Ends, RolloutState
from flatout.engine.sampler import ENVIRONMENTS, Sampler
from flatout.engine.trajectory import join, join_envs
from flatout.envs.device.check import too_early
from flatout.envs.mask_places import IGNORE
from flatout.envs.masks import STUCK
from flatout.errors import CheckpointError, EnvironmentFailure
from flatout.hardware.backend import compiled, matmul_precision
from flatout.packing import PackedParams
from flatout.spans import Spans
from flatout.storage.checkpoint import leaf_names, named_leaves, rebuild
from flatout.types import Device, Episode, Episodes, Obs, Trajectory


class DeviceSampler(Sampler):
    """A sampler that collects a trajectory in one dispatch. It keeps no environments: their state
    is `RunState.environments`, with a leading axis of shards if there are several.

    Args:
        rollout: the function that it compiles.
        device: the device that runs the program.
        env_keys: raw keys of the environments' random streams, uint32 ``[2]``, or ``[S, 2]`` for S
            shards, each of which has the next N / S environments.
        act_key: raw key of the acting stream.
        spans: records where the time goes.
        precision: precision of matrix products on a GPU, see `RunConfig`.
        programs: compiled programs that runs of this shape share.
    """

    def __init__(
        self, rollout: Rollout, device: Device, env_keys: np.ndarray, act_key: np.ndarray,
        spans: Spans, precision: str = "highest", programs: Programs | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.rollout, self.act_key = rollout, act_key
        self._device, self._env_keys, self._spans = device, env_keys, spans
        self._shards = env_keys.shape[:-1]  # () or (S,)
        self._precision = precision
        self._programs = programs or Programs()
        self._packing = PackedParams(rollout.algorithm.actor_shapes)
        self._steps = 0

    @cached_property
    def shapes(self) -> RolloutState:
        """The shapes of one shard's environments."""
        arguments = self._env_keys.reshape(-1, 2)[0], np.int32(0)
        return self._programs.get(
            "environments", lambda: jax.eval_shape(self.rollout.start, *arguments)
        )

    def compile(self) -> None:
        """Compile before the first trajectory."""

        def make() -> Any:
            on = jax.sharding.SingleDeviceSharding(self._device)
            with matmul_precision(self._device, self._precision):
                program = jax.jit(self._collect, in_shardings=on, out_shardings=on)
                lowered = program.lower(self._packing.shapes, self.all_shapes, self.act_key)
                return compiled(lowered, self._device)

        self._program = self._programs.get(("collect", self._device), make)

    @property
    def all_shapes(self) -> RolloutState:
        """The shapes of the environments of all shards."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*self._shards, *leaf.shape), leaf.dtype), self.shapes
        )

    def _collect(self, params: Any, state: RolloutState, key: Any) -> Any:
        actor = self._packing.unpack(params)
        if not self._shards:
            return self.rollout(actor, state, key)
        return jax.vmap(self.rollout, (None, 0, None))(actor, state, key)

    @property
    def obs_shapes(self) -> Obs:
        return spec_shapes(self.rollout.env.obs_spec)

    @property
    def steps_collected(self) -> int:
        return self._steps

    def start(self) -> RolloutState:
        each = self.rollout.num_envs
        start = jax.vmap(self.rollout.start) if self._shards else self.rollout.start
        first = each * np.arange(math.prod(self._shards), dtype=np.int32).reshape(self._shards)
        with self._spans.span("env"), jax.default_device(self._device):
            return self._programs.get("start", lambda: jax.jit(start))(self._env_keys, first)

    def collect(
        self, environments: Any = None, params: Any = ()
    ) -> tuple[Trajectory, RolloutState]:
        with self._spans.span("publish"):
            params = jax.block_until_ready(jax.device_put(params, self._device))
        with self._spans.span("env"):  # includes acting
            trajectory, ends, environments = self._program(params, environments, self.act_key)
            trajectory, ends = jax.device_get((trajectory, ends))
        if self._shards:
            trajectory, ends = join(trajectory), side_by_side(ends)
        self.check(ends.finite, ends.stuck, ends.early)
        episodes = ended(ends)
        found = infos(ends) or [None] * len(episodes.env)
        rows = zip(*episodes, found, strict=True)
        self.episodes = [Episode(*one) for one in rows]
        valid = trajectory.valid
        self._steps = int(trajectory.rewards.size if valid is None else valid.sum())
        trajectory = trajectory._replace(finals=sort_finals(trajectory.finals))
        return trajectory, environments

    def check(self, finite: np.ndarray, stuck: np.ndarray | None, early: np.ndarray) -> None:
        """Raise `EnvironmentFailure` if an observation or a reward was not finite, a mask allowed
        no action, or an episode was truncated too early; for the arguments see `Ends`."""
        if stuck is not None and stuck[0] >= 0:
            step, env = stuck.tolist()
            raise EnvironmentFailure(
                f"environment {env} ({self.rollout.env.name}) gave {STUCK}, "
                f"in step {step} of this trajectory: correct it, or {IGNORE}."
            )
        if not finite.all():
            raise EnvironmentFailure(
                f"the environment {self.rollout.env.name} returned an observation or a reward "
                "that is NaN or infinite; look at what its step computes."
            )
        if early.any():
            raise EnvironmentFailure(too_early(self.rollout.env, int(early.max())))

    def state(self, environments: Any = None) -> dict[str, Any]:
        found = jax.device_get(environments)
        arrays = named_leaves(found, ENVIRONMENTS)
        return {"arrays": arrays, "obs": found.obs, "actions": []}

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Do nothing: `environments` returns all that was saved."""
        return []

    def environments(self, state: dict[str, Any]) -> RolloutState:
        arrays = state.get("arrays")
        if arrays is None:
            raise CheckpointError(
                "it was saved with environments that step on the host: resume it without "
                "sampler=device."
            )
        shapes = self.all_shapes
        environments = rebuild(leaf_names(shapes, ENVIRONMENTS), shapes, arrays)
        return jax.device_put(environments, self._device)

    def close(self) -> None:
        """Do nothing: device environments hold nothing open."""


def side_by_side(ends: Ends) -> Ends:
    """Join the ends of S shards, ``[S, ..., T, n]``, along environments: ``[..., T, S * n]``."""

    def joined(leaf: np.ndarray) -> np.ndarray:
        return join_envs(leaf, leaf.ndim - 2)

    info = {name: joined(values) for name, values in ends.info.items()}
    length, total, q_max = map(joined, ends[:3])
    stuck = ends.stuck
    if stuck is not None:  # that of the first shard that has one
        shard = (stuck[..., :1] >= 0).argmax(0)[None]
        stuck = np.take_along_axis(stuck, shard, 0)[0]
    return Ends(length, total, q_max, ends.finite.all(0), stuck, ends.early.max(0), info)


def where_ended(ends: Ends) -> tuple[np.ndarray, ...]:
    """Return the indices of each episode's end. `numpy.nonzero` takes several times as long."""
    return np.unravel_index(np.flatnonzero(ends.length != 0), ends.length.shape)


def ended(ends: Ends) -> Episodes:
    """Return the episodes that ended, from arrays ``[..., T, N]``, in the order of their ends."""
    at = where_ended(ends)
    total = ends.total[at].astype(float)
    valued = ends.q_max.shape == ends.total.shape
    mean = ends.q_max[at].astype(float) if valued else np.full(len(total), np.nan)
    return Episodes(at[-1], total, ends.length[at], mean)


def infos(ends: Ends) -> list[dict[str, float] | None]:
    """Return the final `info` scalars of each episode of `ended`; empty if there are none."""
    at = where_ended(ends)
    columns = (values[at].tolist() for values in ends.info.values())
    return [dict(zip(ends.info, row, strict=True)) for row in zip(*columns, strict=True)]
