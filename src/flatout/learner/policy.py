"""Step 4 of the data flow, inline: a policy maps observations to actions.

A policy is a compiled `act` with published parameters. Samplers and evaluation call it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import Algorithm, spec_shapes, wrap_key
from flatout.algorithms.parallel.packing import OutputLayout, PackedParams
from flatout.hardware.backend import compiled, matmul_precision
from flatout.learner.programs import Programs
from flatout.spans import Spans
from flatout.types import Device, Obs, ObsSpec

NOISE_BLOCK = 128
"""Steps whose noise is drawn in one dispatch. It does not change the draws, which are a pure
function of (seed, environment, step)."""


class Policy:
    """A compiled `act` for a batch of N observations on one device, with its parameters.

    Args:
        algorithm: the algorithm, which has `act`.
        obs_spec: one observation.
        num_envs: N, the batch size.
        device: the acting device.
        key: raw key data (uint32 ``[2]``) of the acting stream; None acts greedily, without noise.
        precision: the precision of matrix products on a GPU, see `RunConfig`.

    Attributes:
        version: the version of the published parameters; -1 before any.
        layout: the layout of the packed rows that `act` returns.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        obs_spec: ObsSpec,
        num_envs: int,
        device: Device,
        key: np.ndarray | None = None,
        precision: str = "highest",
    ) -> None:
        self._algorithm = algorithm
        self._obs = spec_shapes(obs_spec, num_envs)
        self.num_envs = num_envs
        self._key = key
        self.precision = precision
        self.device = device
        self._packing = PackedParams(algorithm.actor_shapes)
        # First environment's number -> (first step of the current block of noise, the block).
        self._noise: dict[int, tuple[int, Any]] = {}
        self._params: tuple[jax.Array, ...] = ()
        self.version = -1
        zero = np.int32(0)
        # Only the noise of one environment and one step is traced, because tracing a block is slow.
        noise = None
        if key is not None:
            noise = jax.eval_shape(lambda raw, i: algorithm.noise(wrap_key(raw), i, i), key, zero)

        def noise_shapes(*size: int) -> Any:
            return jax.tree.map(lambda s: jax.ShapeDtypeStruct((*size, *s.shape), s.dtype), noise)

        draw, draws = noise_shapes(num_envs), noise_shapes(NOISE_BLOCK, num_envs)
        params = self._packing.shapes
        outputs = jax.eval_shape(self._outputs, params, self._obs, draw)
        self.layout = OutputLayout(outputs)
        self._arguments = (params, self._obs, draws)

    def compile(self, programs: Programs | None = None) -> None:
        """Compile the programs. Must be called before the first step.

        Args:
            programs: the programs that runs of this shape share.
        """
        programs = programs or Programs()
        sharding = jax.sharding.SingleDeviceSharding(self.device)
        params, obs, draws = self._arguments

        def compile_shared(function: Any, *arguments: Any) -> Any:
            def make() -> Any:
                program = jax.jit(function, in_shardings=sharding, out_shardings=sharding)
                if function == self._draw:  # it has no matrix products
                    return program.lower(*arguments).compile()
                with matmul_precision(self.device, self.precision):
                    return compiled(program.lower(*arguments), self.device)

            return programs.get((function.__name__, self.device, self.num_envs), make)

        if self._key is None:
            self._act = compile_shared(self._greedy, params, obs)
            return
        self._act = compile_shared(self._explore, params, obs, draws, np.int32(0))
        self._draws = compile_shared(self._draw, self._key, np.int32(0), np.int32(0))
        # The offsets are put on the device in advance, because passing a Python number costs time.
        self._offsets = [jax.device_put(np.int32(i), self.device) for i in range(NOISE_BLOCK)]

    def publish(self, packed: tuple[Any, ...], version: int, spans: Spans) -> None:
        """Set the parameters, packed by `PackedParams`. Arrays on the device are not copied."""
        with spans.span("publish"):
            where = {self.device}
            if not all(isinstance(x, jax.Array) and x.devices() == where for x in packed):
                packed = jax.block_until_ready(jax.device_put(packed, self.device))
            self._params = packed
            self.version = version

    def act(self, obs: Obs, step: int, first: int = 0) -> np.ndarray:
        """Act for all environments and wait for the result.

        Args:
            obs: ``[N, ...]`` raw observations.
            step: how many steps each environment has made since the run's start.
            first: the number of the first environment in the run, which selects the noise.

        Returns:
            One packed row ``[words]`` uint32; `layout` reads it.
        """
        return np.asarray(self.begin(obs, step, first))

    def begin(self, obs: Obs, step: int, first: int = 0) -> jax.Array:
        """Do the same as `act`, but do not wait for the device."""
        start, block = self._noise.get(first, (-1, None))
        offset = step - start
        if start < 0 or not 0 <= offset < NOISE_BLOCK:
            # Blocks start at multiples of NOISE_BLOCK, also after a resume.
            offset = step % NOISE_BLOCK
            start = step - offset
            block = self._draws(self._key, np.int32(start), np.int32(first))
            self._noise[first] = (start, block)
        return self._act(self._params, obs, block, self._offsets[offset])

    def greedy(self, obs: Obs) -> np.ndarray:
        """Return a packed row as `act` does, for the mode of the action distribution.

        The policy must have been made with ``key=None``."""
        return np.asarray(self._act(self._params, obs))

    def _outputs(self, params: Any, obs: Obs, draw: Any) -> dict[str, jax.Array]:
        actor = self._packing.unpack(params)
        action, _, extras = self._algorithm.act(actor, obs, (), draw)
        return {"action": action, **extras}

    def _explore(self, params: Any, obs: Obs, draws: Any, offset: jax.Array) -> jax.Array:
        """Act as a pure function of the packed parameters, the observations, a block of noise and
        the step's index in the block."""
        draw = jax.tree.map(
            lambda block: jax.lax.dynamic_index_in_dim(block, offset, keepdims=False), draws
        )
        return OutputLayout.pack(self._outputs(params, obs, draw))

    def _greedy(self, params: Any, obs: Obs) -> jax.Array:
        return OutputLayout.pack(self._outputs(params, obs, None))

    def _draw(self, key: jax.Array, start: jax.Array, first: jax.Array) -> Any:
        """Draw the noise ``[NOISE_BLOCK, N, ...]`` for the steps from `start` on."""
        stream = wrap_key(key)
        envs = first + jnp.arange(self.num_envs)
        steps = start + jnp.arange(NOISE_BLOCK)
        over_envs = jax.vmap(self._algorithm.noise, in_axes=(None, 0, None))
        return jax.vmap(over_envs, in_axes=(None, None, 0))(stream, envs, steps)
