"""The chunks of several runs as one program, mapped over an axis of members.

Members ask for chunks from threads of their own; when all that still train have asked, one dispatch
makes all of them. What no member may have of its own is the number of iterations: a loop whose
length differed between members would copy everything that it carries, replay included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flatout.algorithms.base import shapes_of
from flatout.errors import CheckpointError, Interrupt
from flatout.hardware.backend import compiled, product_precision
from flatout.schedules.loop import Loop
from flatout.schedules.meeting import Meeting
from flatout.schedules.members import MEMBERS, Part
from flatout.storage import checkpoint
from flatout.storage.joint import Joint, Saved
from flatout.types import Snapshot


@jax.jit
def _rows(trees: list[Any]) -> Any:
    """The trees as rows of one."""
    return jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *trees)


@dataclass
class Save:
    """A member's state at a boundary, for the checkpoint of all."""

    step: int
    snapshot: Snapshot


@dataclass
class Group:
    """Members of one program, of which some may have ended before, and what is kept of them.

    Attributes:
        names: of all.
        joint: their checkpoints.
        saved: that they go on from.
        each: each member's whole state is kept apart, too, when it ends.
    """

    names: Sequence[str]
    joint: Joint
    saved: Saved | None
    each: bool


@dataclass
class Request:
    """What a member asks for: so many iterations from where it is."""

    loop: Loop
    carry: Any
    count: int


class Together(Meeting):
    """Dispatches for all members at once.

    Args:
        count: how many there are; each leaves when it has ended.
        programs: compiled for so many members, which other groups share.
        compiling: around each compilation, for so many members.
        stop: a signal's number once one has come: all members end at the same boundary.
        group: keeps them in one checkpoint. They are then in lockstep, and places in the program
            change only with a checkpoint, so that a resumed group computes the same bits.
    """

    def __init__(
        self, count: int, programs: dict[int, Any] | None = None,
        compiling: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
        stop: Callable[[], int | None] = lambda: None, group: Group | None = None,
    ) -> None:  # fmt: skip
        super().__init__(count)
        self._compiling, self._stop = compiling, stop
        self.group, self._whole_group = group, True
        self._failed: dict[str, str] = {}
        self._programs = {} if programs is None else programs
        self._keys: tuple[Any, ...] = ()
        self._slots: dict[int, int] = {}
        self._size = 0  # slots, of which some may be of members that have ended
        self._whole: Any = None
        if group is not None:
            self._place(range(len(group.names)))
            if (saved := group.saved) is not None:
                self._failed, self._size = dict(saved.failed), saved.size
                places = {name: number for number, name in enumerate(group.names)}
                self._slots = {places[name]: slot for name, slot in saved.slots.items()}

    def run(self, member: int, loop: Loop, carry: Any, count: int) -> Any:
        """One member's `Part` before a chunk and after, what it told, and its iterations, at most
        `count`. That before may be made `again`, which a carry of its own could not.

        Waits until all others have asked, too.
        """
        return self.ask(member, Request(loop, carry, count))

    def save(self, member: int, step: int, snapshot: Snapshot) -> None:
        """Write the checkpoint of all once every member has come with its state.

        Raises:
            FlatoutError: it cannot be written.
        """
        self.ask(member, Save(step, snapshot))

    def saved(self, member: int) -> tuple[Path, int, Snapshot] | None:
        """What a member goes on from, its file and step."""
        saved = None if self.group is None else self.group.saved
        if self.group is None or saved is None:
            return None
        with checkpoint.reading(saved.path):
            return saved.path, saved.step, saved.of(self.group.names[member])

    def again(self, loop: Loop, part: Part, count: int) -> Any:
        """A member's carry after the first `count` iterations of a chunk, made once more."""
        with self._turn:
            whole, _ = self._called(loop, part.whole, part.keys, count)
        return replace(part, whole=whole).taken()

    def _left(self, member: int, error: str, lost: bool) -> None:
        self._whole_group &= not lost  # else there is no checkpoint of all any more
        if error and self.group is not None:
            self._failed[self.group.names[member]] = error

    def _answered(self, asked: dict[int, Request | Save]) -> dict[int, Any]:
        saves = {m: r for m, r in asked.items() if isinstance(r, Save)}
        if not saves:
            return self._dispatched({m: r for m, r in asked.items() if isinstance(r, Request)})
        if len(saves) == len(asked):
            self._write(saves)
        return dict.fromkeys(saves)  # nobody else has asked, of members in lockstep

    def _place(self, members: Iterable[int]) -> None:
        """Give each of these members a slot."""
        self._slots = {member: slot for slot, member in enumerate(sorted(members))}
        self._size, self._whole = len(self._slots), None

    def _write(self, saves: dict[int, Save]) -> None:
        group = self.group
        if group is None or not self._whole_group:
            return
        if 2 * len(saves) <= self._size:  # ended ones only cost time
            self._place(saves)
        each = {group.names[member]: saves[member].snapshot for member in sorted(saves)}
        slots = {group.names[member]: slot for member, slot in self._slots.items()}
        step = next(iter(saves.values())).step
        group.joint.save(step, each, slots, self._size, self._failed)

    def _dispatched(self, asked: dict[int, Request]) -> dict[int, Any]:
        if (signum := self._stop()) is not None:
            return {member: Interrupt(signum) for member in asked}
        loop = next(iter(asked.values())).loop
        count = min(request.count for request in asked.values())
        axes = loop.member_axes
        going = all(
            isinstance(r.carry, Part) and r.carry.whole is self._whole for r in asked.values()
        )
        if not going or (self.group is None and 2 * len(asked) <= self._size):
            if self.group is None:
                self._place(asked)
            self._gather(asked, axes)
        before = self._whole
        whole, told = self._called(loop, before, self._keys, count)
        told = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :count], told)
        self._whole = whole
        answers: dict[int, Any] = {}
        for member in asked:
            slot = self._slots[member]
            mine = jax.tree.map(lambda leaf: leaf[slot], told)  # noqa: B023
            parts = (Part(one, self._keys, slot, axes) for one in (before, whole))
            answers[member] = *parts, mine, count
        return answers

    def _gather(self, asked: dict[int, Request], axes: Any) -> None:
        """Bring the members that ask side by side; any of them fills the slots of others."""
        found = {
            self._slots[member]: (r.carry.taken() if isinstance(r.carry, Part) else r.carry,
                                  r.loop.keys)
            for member, r in asked.items()
        }  # fmt: skip
        fill = next(iter(found.values()))
        carries, keys = zip(*(found.get(slot, fill) for slot in range(self._size)), strict=True)

        def beside(axis: int | None, *trees: Any) -> Any:
            if axis is None:
                for tree in trees[1:]:
                    if not all(jax.tree.leaves(jax.tree.map(np.array_equal, trees[0], tree))):
                        raise CheckpointError(
                            "the members' checkpoints are of different steps, which one program "
                            "cannot go on from: resume each member alone (--resume MEMBER_DIR)."
                        )
                return trees[0]
            return _rows(list(trees))

        self._whole = jax.tree.map(beside, axes, *carries, is_leaf=lambda axis: axis is None)
        self._keys = jax.tree.map(lambda *each: np.stack(each), *keys)

    def _called(self, loop: Loop, whole: Any, keys: tuple[Any, ...], count: int) -> Any:
        size = len(keys[0])
        if size not in self._programs:
            with self._compiling(size):
                self._programs[size] = self._compiled(loop, whole, keys)
        return self._programs[size](whole, self._room(loop, size), np.int32(count), *keys)

    def _room(self, loop: Loop, size: int) -> Any:
        return jax.tree.map(lambda leaf: np.zeros((size, *leaf.shape), leaf.dtype), loop.told)

    def _compiled(self, loop: Loop, whole: Any, keys: tuple[Any, ...]) -> Any:
        axes = loop.member_axes
        program = jax.vmap(loop.made, (axes, 0, None, 0, 0, 0, 0), (axes, 0), axis_name=MEMBERS)
        learner = loop.learner
        on = jax.sharding.SingleDeviceSharding(learner.device)
        with product_precision(learner.device, learner.precision):
            jitted = jax.jit(program, in_shardings=on, out_shardings=on, donate_argnums=(1,))
            shapes = shapes_of(whole), shapes_of(self._room(loop, len(keys[0])))
            return compiled(jitted.lower(*shapes, np.int32(0), *keys), learner.device)
