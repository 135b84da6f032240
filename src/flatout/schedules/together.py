"""The chunks of several runs as one program, mapped over an axis of members.

Members ask for chunks from threads of their own; when all that still train have asked, one dispatch
makes all of them. What no member may have of its own is the number of iterations: a loop whose
length differed between members would copy everything that it carries, replay included.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from flatout.algorithms.base import shapes_of
from flatout.hardware.backend import product_precision

if TYPE_CHECKING:
    from flatout.schedules.fused import FusedSchedule

MEMBERS = "members"
"""The axis."""


def for_all(flag: jax.Array) -> jax.Array:
    """A flag that is set for all members where it is for one: branches are taken together."""
    return jax.lax.pmax(flag.astype(np.int32), MEMBERS) > 0


@dataclass(frozen=True)
class Part:
    """One member's share of what all carry.

    Attributes:
        whole: what all carry, and `keys` of theirs.
        slot: its place.
        axes: which of it each member has for itself.
    """

    whole: Any
    keys: tuple[Any, ...]
    slot: int
    axes: Any

    def taken(self) -> Any:
        """It alone."""

        def pick(axis: int | None, tree: Any) -> Any:
            return tree if axis is None else jax.tree.map(lambda leaf: leaf[self.slot], tree)

        return jax.tree.map(pick, self.axes, self.whole, is_leaf=lambda axis: axis is None)


@dataclass
class Request:
    """What a member asks for: so many iterations from where it is."""

    schedule: FusedSchedule
    carry: Any
    count: int


class Together:
    """Dispatches for all members at once.

    Args:
        count: how many there are; each leaves when it has ended.
    """

    def __init__(self, count: int) -> None:
        self._live = count
        self._turn = threading.Condition()
        self._asked: dict[int, Request] = {}
        self._answers: dict[int, Any] = {}
        self._programs: dict[int, Any] = {}
        self._keys: tuple[Any, ...] = ()
        self._slots: dict[int, int] = {}
        self._whole: Any = None

    def run(self, member: int, schedule: FusedSchedule, carry: Any, count: int) -> Any:
        """One member's `carry` after a chunk, what it told, and its iterations, at most `count`.

        Waits until all others have asked, too.
        """
        with self._turn:
            self._asked[member] = Request(schedule, carry, count)
            self._try()
            while member not in self._answers:
                self._turn.wait()
            answer = self._answers.pop(member)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def again(self, schedule: FusedSchedule, part: Part, count: int) -> Any:
        """A member's carry after the first `count` iterations of a chunk, made once more."""
        with self._turn:
            whole, _ = self._called(schedule, part.whole, part.keys, count)
        return replace(part, whole=whole).taken()

    def leave(self) -> None:
        """A member has ended; the others go on."""
        with self._turn:
            self._live -= 1
            self._try()

    def _try(self) -> None:
        if not self._asked or len(self._asked) < self._live:
            return
        asked, self._asked = self._asked, {}
        try:
            self._answers |= self._dispatched(asked)
        except BaseException as error:
            self._answers |= dict.fromkeys(asked, error)
        self._turn.notify_all()

    def _dispatched(self, asked: dict[int, Request]) -> dict[int, Any]:
        schedule = next(iter(asked.values())).schedule
        count = min(request.count for request in asked.values())
        axes = schedule.member_axes
        going = all(
            isinstance(r.carry, Part) and r.carry.whole is self._whole for r in asked.values()
        )
        if not going or 2 * len(asked) <= len(self._slots):  # finished ones only cost time
            self._gather(asked, axes)
        whole, told = self._called(schedule, self._whole, self._keys, count)
        told = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :count], told)
        self._whole = whole
        answers: dict[int, Any] = {}
        for member in asked:
            slot = self._slots[member]
            mine = jax.tree.map(lambda leaf: leaf[slot], told)  # noqa: B023
            answers[member] = Part(whole, self._keys, slot, axes), mine, count
        return answers

    def _gather(self, asked: dict[int, Request], axes: Any) -> None:
        """Bring the members that ask side by side."""
        carries = [
            r.carry.taken() if isinstance(r.carry, Part) else r.carry for r in asked.values()
        ]

        def beside(axis: int | None, *trees: Any) -> Any:
            if axis is None:
                return trees[0]
            return jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *trees)

        self._whole = jax.tree.map(beside, axes, *carries, is_leaf=lambda axis: axis is None)
        self._slots = {member: slot for slot, member in enumerate(asked)}
        keys = [request.schedule.keys for request in asked.values()]
        self._keys = jax.tree.map(lambda *each: np.stack(each), *keys)

    def _called(
        self, schedule: FusedSchedule, whole: Any, keys: tuple[Any, ...], count: int
    ) -> Any:
        size = len(keys[0])
        if size not in self._programs:
            self._programs[size] = self._compiled(schedule, whole, keys)
        return self._programs[size](whole, self._room(schedule, size), np.int32(count), *keys)

    def _room(self, schedule: FusedSchedule, size: int) -> Any:
        return jax.tree.map(lambda leaf: np.zeros((size, *leaf.shape), leaf.dtype), schedule.told)

    def _compiled(self, schedule: FusedSchedule, whole: Any, keys: tuple[Any, ...]) -> Any:
        axes = schedule.member_axes
        program = jax.vmap(schedule.made, (axes, 0, None, 0, 0, 0, 0), (axes, 0), axis_name=MEMBERS)
        learner = schedule.learner
        on = jax.sharding.SingleDeviceSharding(learner.device)
        with product_precision(learner.device, learner.precision):
            jitted = jax.jit(program, in_shardings=on, out_shardings=on, donate_argnums=(1,))
            shapes = shapes_of(whole), shapes_of(self._room(schedule, len(keys[0])))
            return jitted.lower(*shapes, np.int32(0), *keys).compile()
