"""One program that computes the chunks of several runs, by mapping over an axis of members.

Each member's `FusedSchedule` requests chunks from its own thread. A request waits at a barrier
until all members that still train have made one; then one dispatch computes all chunks. All chunks
have the same number of iterations: if it differed, the loop would copy its whole carry, replay
included, in each iteration.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flatout.algorithms.base import shapes_of
from flatout.engine.loop import Loop, MemberSlice
from flatout.engine.state import RunState
from flatout.errors import CheckpointError, Interrupt
from flatout.hardware.backend import compiled, matmul_precision
from flatout.storage import checkpoint
from flatout.storage.joint import Joint, Saved
from flatout.types import Snapshot


@jax.jit
def _stack(trees: list[Any]) -> Any:
    """Stack trees along a new first axis."""
    return jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *trees)


@dataclass
class Save:
    """A request to save: a member's step and state, for the checkpoint of all members."""

    step: int
    snapshot: Snapshot


@dataclass
class Group:
    """The members of one program and their joint checkpoints.

    Attributes:
        names: the names of all members, also of those that have ended.
        joint: writes the checkpoints.
        saved: the checkpoint from which they resume, if any.
        save_each: whether each member's whole state is also saved separately when it ends.
    """

    names: Sequence[str]
    joint: Joint
    saved: Saved | None
    save_each: bool


@dataclass
class Request:
    """A request for a chunk: `count` iterations from a member's state."""

    loop: Loop
    state: RunState | MemberSlice
    count: int


class FusedPopulation:
    """A barrier that dispatches the chunks of all members at once, and owns their state. Requests
    are answered in the thread that makes the last one.

    Args:
        count: the number of members; each must call `leave` when it has ended.
        programs: compiled programs by size (the length of the axis of members); other groups share
            them.
        compiling: makes a context for the compilation of the program of a size.
        stop: returns the number of a signal that was received, else None. All members then end at
            the same boundary.
        group: if given, all members are saved in one checkpoint. They are then in lockstep, and
            member indices change only with a checkpoint, so that a resumed group computes the same
            bits.

    Attributes:
        compile_ns: nanoseconds of compiling so far, for which all members have waited.
    """

    def __init__(
        self, count: int, programs: dict[int, Any] | None = None,
        compiling: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
        stop: Callable[[], int | None] = lambda: None, group: Group | None = None,
    ) -> None:  # fmt: skip
        self._live = count  # members that have not ended
        self.compile_ns = 0
        self._condition = threading.Condition()
        self._requests: dict[int, Any] = {}
        self._answers: dict[int, Any] = {}
        self._compiling, self._stop = compiling, stop
        self.group, self._can_save = group, True
        self._failed: dict[str, str] = {}
        self._programs = {} if programs is None else programs
        self._keys: tuple[Any, ...] = ()
        self._member_indices: dict[int, int] = {}
        self._size = 0  # the length of the axis of members; ended members may still be on it
        self._state: Any = None  # the `RunState` of all members
        if group is not None:
            self._assign_indices(range(len(group.names)))
            if (saved := group.saved) is not None:
                self._failed, self._size = dict(saved.failed), saved.size
                numbers = {name: number for number, name in enumerate(group.names)}
                self._member_indices = {
                    numbers[name]: member_index for name, member_index in saved.slots.items()
                }

    def run(self, member: int, loop: Loop, state: Any, count: int) -> Any:
        """Compute a chunk for one member; first wait until all other members have made a request.

        Returns:
            The member's `MemberSlice` before the chunk and after it, the chunk's outputs, and its
            number of iterations, at most `count`. `rerun` can repeat iterations from the first.
        """
        return self._ask(member, Request(loop, state, count))

    def save(self, member: int, step: int, snapshot: Snapshot) -> None:
        """Write the checkpoint of all members, once every member has called this with its state.

        Raises:
            FlatoutError: the checkpoint cannot be written.
        """
        self._ask(member, Save(step, snapshot))

    def saved(self, member: int) -> tuple[Path, int, Snapshot] | None:
        """Return the path, step and state from which a member resumes; None for a new start."""
        saved = None if self.group is None else self.group.saved
        if self.group is None or saved is None:
            return None
        with checkpoint.reading(saved.path):
            return saved.path, saved.step, saved.of(self.group.names[member])

    def rerun(self, loop: Loop, before: MemberSlice, count: int) -> Any:
        """Compute the first `count` iterations of a chunk again, and return a member's state after
        them; `before` is the member's slice before the chunk."""
        with self._condition:
            state, _ = self._call(loop, before.whole, before.keys, count)
        return replace(before, whole=state).extract()

    def leave(self, member: int, error: str = "", lost: bool = False) -> None:
        """Remove a member that has ended; the others continue.

        Args:
            error: why it failed; empty if it did not.
            lost: whether its state cannot be saved.
        """
        with self._condition:
            self._live -= 1
            self._can_save &= not lost  # a checkpoint needs the states of all members
            if error and self.group is not None:
                self._failed[self.group.names[member]] = error
            self._answer_if_complete()

    def _ask(self, member: int, request: Any) -> Any:
        """Return the answer to a member's request; if it is an exception, raise it."""
        with self._condition:
            self._requests[member] = request
            self._answer_if_complete()
            while member not in self._answers:
                self._condition.wait()
            answer = self._answers.pop(member)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _answer_if_complete(self) -> None:
        if not self._requests or len(self._requests) < self._live:
            return
        asked, self._requests = self._requests, {}
        try:
            answers = self._answer(asked)
            self._requests |= {m: r for m, r in asked.items() if m not in answers}
        except BaseException as error:
            answers = dict.fromkeys(asked, error)
        self._answers |= answers
        self._condition.notify_all()

    def _answer(self, asked: dict[int, Request | Save]) -> dict[int, Any]:
        """Return answers to members' requests; a member without an answer keeps waiting."""
        saves = {m: r for m, r in asked.items() if isinstance(r, Save)}
        if not saves:
            return self._dispatch({m: r for m, r in asked.items() if isinstance(r, Request)})
        if len(saves) == len(asked):
            self._write(saves)
        return dict.fromkeys(saves)  # in lockstep all members save at once

    def _assign_indices(self, members: Iterable[int]) -> None:
        """Give each of these members an index on the axis of members, in their order."""
        self._member_indices = {
            member: member_index for member_index, member in enumerate(sorted(members))
        }
        self._size, self._state = len(self._member_indices), None

    def _write(self, saves: dict[int, Save]) -> None:
        group = self.group
        if group is None or not self._can_save:
            return
        if 2 * len(saves) <= self._size:  # computing ended members only costs time
            self._assign_indices(saves)
        each = {group.names[member]: saves[member].snapshot for member in sorted(saves)}
        slots = {
            group.names[member]: member_index
            for member, member_index in self._member_indices.items()
        }
        step = next(iter(saves.values())).step
        group.joint.save(step, each, slots, self._size, self._failed)

    def _dispatch(self, asked: dict[int, Request]) -> dict[int, Any]:
        if (signum := self._stop()) is not None:
            return {member: Interrupt(signum) for member in asked}
        loop = next(iter(asked.values())).loop
        count = min(request.count for request in asked.values())
        axes = loop.member_axes
        unchanged = all(
            isinstance(r.state, MemberSlice) and r.state.whole is self._state
            for r in asked.values()
        )
        if not unchanged or (self.group is None and 2 * len(asked) <= self._size):
            if self.group is None:
                self._assign_indices(asked)
            self._gather(asked, axes)
        before = self._state
        after, output = self._call(loop, before, self._keys, count)
        output = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :count], output)
        self._state = after
        answers: dict[int, Any] = {}
        for member in asked:
            member_index = self._member_indices[member]
            mine = jax.tree.map(lambda leaf: leaf[member_index], output)  # noqa: B023
            parts = (MemberSlice(one, self._keys, member_index, axes) for one in (before, after))
            answers[member] = *parts, mine, count
        return answers

    def _gather(self, asked: dict[int, Request], axes: Any) -> None:
        """Stack the states of the requesting members, each at its member index. The other indices
        get a copy of one of them."""
        found = {
            self._member_indices[member]: (
                r.state.extract() if isinstance(r.state, MemberSlice) else r.state, r.loop.keys
            )
            for member, r in asked.items()
        }  # fmt: skip
        fill = next(iter(found.values()))
        states, keys = zip(
            *(found.get(member_index, fill) for member_index in range(self._size)), strict=True
        )

        def stack_axis(axis: int | None, *trees: Any) -> Any:
            if axis is None:
                for tree in trees[1:]:
                    if not all(jax.tree.leaves(jax.tree.map(np.array_equal, trees[0], tree))):
                        raise CheckpointError(
                            "the members' checkpoints are from different steps, so one program "
                            "cannot resume them: resume each member alone (--resume MEMBER_DIR)."
                        )
                return trees[0]
            return _stack(list(trees))

        self._state = jax.tree.map(stack_axis, axes, *states, is_leaf=lambda axis: axis is None)
        self._keys = jax.tree.map(lambda *each: np.stack(each), *keys)

    def _call(self, loop: Loop, whole: Any, keys: tuple[Any, ...], count: int) -> Any:
        size = len(keys[0])
        if size not in self._programs:
            begin = time.perf_counter_ns()
            with self._compiling(size):
                self._programs[size] = self._compile(loop, whole, keys)
            self.compile_ns += time.perf_counter_ns() - begin
        return self._programs[size](whole, self._empty_output(loop, size), np.int32(count), *keys)

    def _empty_output(self, loop: Loop, size: int) -> Any:
        return jax.tree.map(lambda leaf: np.zeros((size, *leaf.shape), leaf.dtype), loop.output)

    def _compile(self, loop: Loop, whole: Any, keys: tuple[Any, ...]) -> Any:
        axes = loop.member_axes
        program = jax.vmap(loop.iterate, (axes, 0, None, 0, 0, 0, 0), (axes, 0))
        learner = loop.learner
        on = jax.sharding.SingleDeviceSharding(learner.device)
        with matmul_precision(learner.device, learner.precision):
            jitted = jax.jit(program, in_shardings=on, out_shardings=on, donate_argnums=(1,))
            shapes = shapes_of(whole), shapes_of(self._empty_output(loop, len(keys[0])))
            return compiled(jitted.lower(*shapes, np.int32(0), *keys), learner.device)
