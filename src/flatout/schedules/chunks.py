"""The inputs and outputs of chunks. A chunk consists of the iterations of one dispatch.

`Loop` computes chunks; `FusedSchedule` starts and reads them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from flatout.learner.state import RunState
from flatout.samplers.rollout_state import Ends
from flatout.schedules.members import MemberSlice
from flatout.types import Episodes


class ChunkOutput(NamedTuple):
    """The outputs of a chunk's M iterations, ``[M, ...]`` each: the scalars that `Learner.metrics`
    reads, environment steps, and the ends of episodes."""

    scalars: Any
    steps: Any
    ends: Ends


Iteration = Callable[[RunState, jax.Array, Any, jax.Array, jax.Array], tuple[RunState, ChunkOutput]]
"""One iteration of one shard, pure: ``(state, key, buffer_key, act_key, hp) -> state, outputs``."""

OUTPUT_AXES = ChunkOutput(None, None, 0)  # type: ignore[arg-type]
"""Shard axes of an iteration's outputs: None for those that all shards share, 0 for the others."""


@dataclass
class Chunk:
    """The iterations that one dispatch made, with their outputs on the host.

    Attributes:
        before: the state before the first iteration.
        count: the number of iterations.
        consumed: the number of iterations that the caller of `advance` has received so far.
        episodes: the episodes that ended, in the order of iterations.
        places: the index in `episodes` at which each iteration's episodes begin, ``[count + 1]``.
        infos: the final `info` scalars of these episodes; empty if there are none.
    """

    before: RunState | MemberSlice
    count: int
    output: ChunkOutput
    episodes: Episodes
    places: np.ndarray
    infos: list[dict[str, float] | None]
    consumed: int = 0


class ChunkResult(NamedTuple):
    """The result of one run of the program: the state after the last iteration, the outputs (in a
    buffer that a later chunk overwrites), and the seconds that it took."""

    after: RunState
    out_buffer: ChunkOutput
    took: float


class PrefetchedChunk(NamedTuple):
    """A chunk started in advance. While the host reads, it runs or waits for the previous chunk.

    Attributes:
        after: the state from which it continues, or the chunk that computes this state.
        length: its number of iterations.
        future: its result.
    """

    after: RunState | Future[ChunkResult]
    length: int
    future: Future[ChunkResult]

    @property
    def before(self) -> RunState:
        """The state before its first iteration; waits until this is computed."""
        return self.after.result().after if isinstance(self.after, Future) else self.after
