"""Step 4 of the data flow, inline: a policy maps observations to actions.

A policy is a compiled `act` with published parameters. Samplers and evaluation call it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout import tree
from flatout.algorithms.base import Algorithm, spec_shapes
from flatout.engine.programs import Programs
from flatout.frames import MAX_AGE, most_frames, stack_frames
from flatout.hardware import backend
from flatout.hardware.backend import compiled, matmul_precision
from flatout.packing import OutputLayout, PackedParams
from flatout.randomness import wrap_key
from flatout.spans import Spans
from flatout.types import Device, Obs, ObservationSpec, ObsSpec

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
        frames: whether it takes the frames of stacks instead of whole observations, see `begin`.

    Attributes:
        version: the version of the published parameters; -1 before any.
        layout: the layout of the packed rows that `act` returns.
        recurrent: whether it has a carry. It stays on the device, one for each first environment.
        shares_memory: whether the device reads observations from host memory; to another one each
            frame is copied once.
        bytes_sent: bytes of observations that were copied to the device.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        obs_spec: ObsSpec,
        num_envs: int,
        device: Device,
        key: np.ndarray | None = None,
        precision: str = "highest",
        frames: bool = False,
    ) -> None:
        self._algorithm = algorithm
        self._spec, self._of_frames = obs_spec, frames and most_frames(obs_spec) > 1
        self._obs = spec_shapes(obs_spec, num_envs)
        self.num_envs = num_envs
        self.shares_memory = backend.shares_memory(device)
        self.bytes_sent = 0
        # First environment's number -> the frames of the newest observations, on the device.
        self._sent: dict[int, Obs] = {}
        self._grown = np.full((num_envs,), MAX_AGE, np.uint8)
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
        carry = algorithm.carry_shapes(num_envs)
        outputs, _ = jax.eval_shape(self._outputs, params, self._obs, carry, draw)
        self.layout = OutputLayout(outputs)
        self._arguments = (params, self._input_shapes(), draws)
        self.recurrent = algorithm.recurrent
        # First environment's number -> the carry after its newest step, and the one before.
        self._carries: dict[int, tuple[Any, Any]] = {}
        self._carry_arguments: tuple[Any, ...] = ()
        if self.recurrent:
            self._carry_arguments = (carry, jax.ShapeDtypeStruct((num_envs,), np.bool_))

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

            which = function.__name__, self.device, self.num_envs, self._of_frames
            return programs.get(which, make)

        if self._key is None:
            self._act = compile_shared(self._greedy, params, obs, *self._carry_arguments)
            return
        self._act = compile_shared(
            self._explore, params, obs, draws, np.int32(0), *self._carry_arguments
        )
        self._draws = compile_shared(self._draw, self._key, np.int32(0), np.int32(0))
        # The offsets are put on the device in advance, because passing a Python number costs time.
        self._offsets = [jax.device_put(np.int32(i), self.device) for i in range(NOISE_BLOCK)]
        if self._of_frames:
            self._grown = jax.device_put(self._grown, self.device)

    def publish(self, packed: tuple[Any, ...], version: int, spans: Spans) -> None:
        """Set the parameters, packed by `PackedParams`. Arrays on the device are not copied."""
        with spans.span("publish"):
            where = {self.device}
            if not all(isinstance(x, jax.Array) and x.devices() == where for x in packed):
                packed = jax.block_until_ready(jax.device_put(packed, self.device))
            self._params = packed
            self.version = version

    def act(
        self, obs: Obs, step: int, first: int = 0, begun: np.ndarray | None = None, **stacks: Any
    ) -> np.ndarray:
        """Act for all environments and wait for the result.

        Args:
            obs: ``[N, ...]`` raw observations.
            step: how many steps each environment has made since the run's start.
            first: the number of the first environment in the run, which selects the noise and the
                carry.
            begun: ``[N]`` bool, the environments whose episodes begin, for a recurrent policy.
            stacks: further arguments of a policy that takes frames, see `begin`.

        Returns:
            One packed row ``[words]`` uint32; `layout` reads it.
        """
        return np.asarray(self.begin(obs, step, first, begun, **stacks))

    def example(self) -> dict[str, Any]:
        """Return arguments for `act`, except the step, to time it with."""
        zeros = jax.tree.map(lambda one: np.zeros(one.shape, one.dtype), self._input_shapes())
        if not self._of_frames:
            return {"obs": zeros}
        return {"obs": zeros[0], "age": zeros[1] + np.uint8(MAX_AGE), "follows": True}

    def begin(
        self, obs: Obs, step: int, first: int = 0, begun: np.ndarray | None = None,
        age: np.ndarray | None = None, follows: bool = False,
    ) -> jax.Array:  # fmt: skip
        """Do the same as `act`, but do not wait for the device.

        If it takes frames, `obs` has for a stack its S frames ``[S, N, H, W, C]``, the newest last,
        and there are two more arguments.

        Args:
            age: uint8 ``[N]``, the steps since the first observations of the episodes.
            follows: whether these observations follow on those of the call before with this
                `first`: then only the newest frames are copied to the device.
        """
        if self._of_frames:
            obs = self._frames(obs, age, first, follows)
        elif not self.shares_memory:
            self.bytes_sent += _size(obs)
        start, block = self._noise.get(first, (-1, None))
        offset = step - start
        if start < 0 or not 0 <= offset < NOISE_BLOCK:
            # Blocks start at multiples of NOISE_BLOCK, also after a resume.
            offset = step % NOISE_BLOCK
            start = step - offset
            block = self._draws(self._key, np.int32(start), np.int32(first))
            self._noise[first] = (start, block)
        if not self.recurrent:
            return self._act(self._params, obs, block, self._offsets[offset])
        return self._stepped(first, begun, self._params, obs, block, self._offsets[offset])

    def _frames(
        self, obs: Obs, age: np.ndarray | None, first: int, follows: bool
    ) -> tuple[Obs, Any]:
        """Return the arguments that `_input_shapes` describes: frames and ages. Unless the device
        shares memory, frames are copied to it, and the ages of full stacks are there."""
        assert age is not None
        if self.shares_memory:
            return obs, age
        ages = age if age.min() < most_frames(self._spec) - 1 else self._grown

        def put(spec: ObservationSpec, frames: Any, before: Any) -> Any:
            new = frames if spec.stack == 1 else frames[-1:] if follows else frames
            self.bytes_sent += _size(new)
            if spec.stack == 1:
                return frames
            sent = [jax.device_put(one, self.device, may_alias=False) for one in new]
            return [*before[1:], *sent][-spec.stack :]

        sent = tree.map(put, self._spec, obs, self._sent.get(first, obs))
        self._sent[first] = sent
        self.bytes_sent += age.nbytes * (ages is age)
        return sent, ages

    def _input_shapes(self) -> Any:
        """Return the shapes of what `act`'s program takes as observations."""
        if not self._of_frames:
            return self._obs

        def frames(spec: ObservationSpec) -> Any:
            if spec.stack == 1:
                return spec_shapes(spec, self.num_envs)
            if self.shares_memory:
                return spec_shapes(spec.frame, spec.stack, self.num_envs)
            return [spec_shapes(spec.frame, self.num_envs)] * spec.stack

        return tree.map(frames, self._spec), jax.ShapeDtypeStruct((self.num_envs,), np.uint8)

    def _stack_observations(self, taken: Any) -> Obs:
        """Return whole observations in a program that takes frames. Pure."""
        if not self._of_frames:
            return taken
        obs, age = taken

        def whole(spec: ObservationSpec, frames: Any) -> jax.Array:
            return frames if spec.stack == 1 else stack_frames(jnp, spec, frames, age)

        # The barrier keeps XLA from fusing the rest differently than with whole observations.
        return jax.lax.optimization_barrier(tree.map(whole, self._spec, obs))

    def greedy(self, obs: Obs, begun: np.ndarray | None = None) -> np.ndarray:
        """Return a packed row as `act` does, for the mode of the action distribution.

        The policy must have been made with ``key=None``."""
        if not self.recurrent:
            return np.asarray(self._act(self._params, obs))
        return np.asarray(self._stepped(0, begun, self._params, obs))

    def carry(self, first: int, begun: np.ndarray) -> Any:
        """Return the carry before the next step, in NumPy arrays ``[N, ...]``.

        Args:
            first: the number of the first environment in the run.
            begun: ``[N]`` bool, the environments whose episodes begin with that step.
        """
        initial = self._algorithm.initial_carry(self.num_envs)
        newest, _ = self._carries.get(first, (initial, initial))
        return jax.tree.map(np.array, self._algorithm.reset_carry(newest, begun))

    def set_carry(self, carry: Any, first: int = 0) -> None:
        """Set the carry before the next step."""
        self._carries[first] = (jax.device_put(carry, self.device),) * 2

    def undo(self, first: int = 0) -> None:
        """Set the carry to the one before the newest step, which will be repeated."""
        if self.recurrent:
            self._carries[first] = (self._carries[first][1],) * 2

    def _stepped(self, first: int, begun: np.ndarray | None, *arguments: Any) -> jax.Array:
        """Act with the carry of a group and keep the new one."""
        if first not in self._carries:
            self.set_carry(self._algorithm.initial_carry(self.num_envs), first)
        carry, _ = self._carries[first]
        mask = np.zeros(self.num_envs, np.bool_) if begun is None else begun
        row, newest = self._act(*arguments, carry, mask)
        self._carries[first] = (newest, carry)
        return row

    def _outputs(
        self, params: Any, obs: Obs, carry: Any, draw: Any
    ) -> tuple[dict[str, jax.Array], Any]:
        actor = self._packing.unpack(params)
        action, carry, extras = self._algorithm.act(actor, obs, carry, draw)
        return {"action": action, **extras}, carry

    def _packed(self, params: Any, obs: Obs, draw: Any, carry: Any, begun: Any) -> Any:
        """Act, and return the packed row; with a carry also the new one."""
        obs = self._stack_observations(obs)
        if not self.recurrent:
            return OutputLayout.pack(self._outputs(params, obs, (), draw)[0])
        carry = self._algorithm.reset_carry(carry, begun)
        outputs, carry = self._outputs(params, obs, carry, draw)
        return OutputLayout.pack(outputs), carry

    def _explore(
        self, params: Any, obs: Obs, draws: Any, offset: jax.Array, carry: Any = (),
        begun: Any = None,
    ) -> Any:  # fmt: skip
        """Act as a pure function of the packed parameters, the observations, a block of noise and
        the step's index in the block; and of the carry and its mask of resets, if there is one."""
        draw = jax.tree.map(
            lambda block: jax.lax.dynamic_index_in_dim(block, offset, keepdims=False), draws
        )
        return self._packed(params, obs, draw, carry, begun)

    def _greedy(self, params: Any, obs: Obs, carry: Any = (), begun: Any = None) -> Any:
        return self._packed(params, obs, None, carry, begun)

    def _draw(self, key: jax.Array, start: jax.Array, first: jax.Array) -> Any:
        """Draw the noise ``[NOISE_BLOCK, N, ...]`` for the steps from `start` on."""
        stream = wrap_key(key)
        envs = first + jnp.arange(self.num_envs)
        steps = start + jnp.arange(NOISE_BLOCK)
        over_envs = jax.vmap(self._algorithm.noise, in_axes=(None, 0, None))
        return jax.vmap(over_envs, in_axes=(None, None, 0))(stream, envs, steps)


def _size(obs: Obs) -> int:
    """Return the bytes of observations."""
    return sum(array.nbytes for array in jax.tree.leaves(obs))
