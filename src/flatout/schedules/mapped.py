"""Members whose environments step on the host: one acting call and one update for all of them.

Trajectories of all members are collected by the thread that asks last. It brings each member's
sampler to where it needs actions, chooses them for all in one call, and goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flatout.algorithms.base import shapes_of
from flatout.config.placement import Placement
from flatout.errors import Interrupt
from flatout.hardware.backend import compiled, product_precision
from flatout.learner.learner import Learner, signature
from flatout.learner.policy import Policy
from flatout.samplers.central import CentralSampler
from flatout.samplers.env_group import Call, Chosen, Turn
from flatout.schedules.meeting import Meeting
from flatout.spans import Spans
from flatout.types import Trajectory


def refusal(placement: Placement, shards: int) -> str:
    """Why members of this placement cannot share calls; empty where they can."""
    reasons = {
        "schedule=serial": placement.schedule == "serial",
        "sampler=inline": placement.sampler == "inline",
        "one learning device": len(placement.learn) == 1,
        "--shards 1": shards == 1,
        "replay=cpu": not placement.replay_on_device,  # else each update would copy all replay
    }
    return ", ".join(need for need, holds in reasons.items() if not holds)


@dataclass(frozen=True)
class Collect:
    """A member asks for a trajectory."""

    sampler: CentralSampler


@dataclass(frozen=True)
class Learn:
    """A member asks for the updates of a dispatch, with these arguments of `Learner.learn`."""

    learner: Learner
    arguments: tuple[Any, ...]


class Mapped(Meeting):
    """Calls for all members at once.

    Args:
        count: how many there are; each leaves when it has ended.
        programs: compiled for so many members, which other groups share.
        compiling: around the compilation of an update, for so many members.
        stop: a signal's number once one has come: no trajectory is begun then.
    """

    group = None
    """Each member keeps checkpoints of its own."""

    def __init__(
        self, count: int, programs: dict[Any, Any] | None = None,
        compiling: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
        stop: Callable[[], int | None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(count)
        self._programs = {} if programs is None else programs
        self._compiling, self._stop = compiling, stop
        self._size = count  # of the programs: members of whom some may have ended
        self._stacks: dict[Any, tuple[tuple[Any, ...], Any]] = {}

    def collect(self, member: int, sampler: CentralSampler) -> Trajectory:
        """One member's trajectory; waits until all others have asked, too."""
        with sampler.spans.span("wait"):
            return self.ask(member, Collect(sampler))

    def learn(self, member: int, learner: Learner, arguments: tuple[Any, ...]) -> Any:
        """What one member's `Learner.learn` returns; waits until all others have asked, too."""
        with learner.spans.span("wait"):
            return self.ask(member, Learn(learner, arguments))

    def _answered(self, asked: dict[int, Any]) -> dict[int, Any]:
        if 2 * len(asked) <= self._size:  # ended ones only cost time
            self._size = len(asked)
        learn = {m: request for m, request in asked.items() if isinstance(request, Learn)}
        collect = {m: request for m, request in asked.items() if isinstance(request, Collect)}
        if (signum := self._stop()) is not None:
            answers: dict[int, Any] = {member: Interrupt(signum) for member in collect}
        else:
            answers = self._collected({m: request.sampler for m, request in collect.items()})
        alike: dict[Any, dict[int, Learn]] = {}
        for member, request in learn.items():
            alike.setdefault(signature(request.arguments), {})[member] = request
        for requests in alike.values():
            answers |= self._learned(requests)
        return answers

    # --- Acting -------------------------------------------------------------------------------

    def _collected(self, samplers: dict[int, CentralSampler]) -> dict[int, Any]:
        """A trajectory of each, or why there is none."""
        turns = {member: sampler.turns() for member, sampler in samplers.items()}
        answers: dict[int, Any] = {}
        chosen: dict[int, Chosen | None] = dict.fromkeys(turns)
        try:
            while chosen:
                asked: dict[int, Turn] = {}
                for member, outputs in chosen.items():
                    try:
                        asked[member] = turns[member].send(outputs)
                    except StopIteration as end:
                        answers[member] = end.value
                    except BaseException as error:  # of this member alone
                        answers[member] = error
                chosen = self._chosen(asked)
        finally:
            for each in turns.values():
                each.close()
        return answers

    def _chosen(self, asked: dict[int, Turn]) -> dict[int, Chosen | None]:
        """What each member's `ActingGroup.act` would have begun to choose."""
        begin = time.perf_counter_ns()
        by_place: dict[int, dict[int, Call]] = {}
        for member, turn in asked.items():
            for group in turn.groups:
                for place, call in group.places(turn.obs, turn.step):
                    by_place.setdefault(place, {})[member] = call
        begun = {place: self._acted(place, calls) for place, calls in by_place.items()}
        rows = {
            (place, member): row
            for place, output in begun.items()
            for member, row in zip(by_place[place], np.asarray(output), strict=False)
        }
        spent = (time.perf_counter_ns() - begin) // max(len(asked), 1)
        return {
            member: Chosen([
                [rows[place, member] for place, _ in group.places(turn.obs, turn.step)]
                for group in turn.groups
            ], spent)
            for member, turn in asked.items()
        }  # fmt: skip

    def _acted(self, place: int, calls: dict[int, Call]) -> jax.Array:
        """Outputs ``[P, words]``, packed as of `Policy.act`, of P members' calls."""
        policy = next(iter(calls.values())).policy
        given = _filled(
            [call.policy.prepared(call.step, call.first) for call in calls.values()], self._size
        )
        params, noise, offsets = zip(*given, strict=True)
        obs = np.stack(_filled([call.obs for call in calls.values()], self._size))
        arguments = (
            self._stacked((place, "params"), params), obs,
            self._stacked((place, "noise"), noise), np.array(offsets, np.int32),
        )  # fmt: skip
        key = "act", signature(arguments)
        if key not in self._programs:
            self._programs[key] = _compiled(jax.vmap(policy.explore), policy, arguments)
        return self._programs[key](*arguments)

    def _stacked(self, name: Any, each: tuple[Any, ...]) -> Any:
        """Pytrees side by side; the same ones are stacked once."""
        before, stacked = self._stacks.get(name, ((), None))
        if len(before) != len(each) or any(a is not b for a, b in zip(before, each, strict=True)):
            stacked = _side_by_side(each)
            self._stacks[name] = each, stacked
        return stacked

    # --- Learning -----------------------------------------------------------------------------

    def _learned(self, requests: dict[int, Learn]) -> dict[int, Any]:
        """What each member's `Learner.learn` returns."""
        spans = [request.learner.spans for request in requests.values()]
        learner = next(iter(requests.values())).learner
        given = _filled([request.arguments for request in requests.values()], self._size)
        key = "learn", signature(given)

        def learn(*each: Any) -> list[Any]:
            found = jax.vmap(learner.learn)(*_side_by_side(each))
            return [jax.tree.map(lambda leaf: leaf[i], found) for i in range(len(each))]  # noqa: B023

        if key not in self._programs:
            with self._compiling(self._size), _divided("compile", spans):
                self._programs[key] = _compiled(learn, learner, given)
        updates = any(request.learner.buffer.updates_due for request in requests.values())
        with _divided("learn" if updates else "replay", spans):
            found = jax.block_until_ready(self._programs[key](*given))
        return dict(zip(requests, found, strict=False))


def _compiled(function: Callable[..., Any], where: Policy | Learner, given: Sequence[Any]) -> Any:
    """Compile a function of such arguments for the device, and with the precision, of another."""
    on = jax.sharding.SingleDeviceSharding(where.device)
    with product_precision(where.device, where.precision):
        program = jax.jit(function, in_shardings=on, out_shardings=on)
        return compiled(program.lower(*map(shapes_of, given)), where.device)


@jax.jit
def _side_by_side(each: tuple[Any, ...]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)


def _filled(each: Sequence[Any], size: int) -> list[Any]:
    """As many as a program takes; the first in the place of those that have ended."""
    return [*each, *[each[0]] * (size - len(each))]


@contextmanager
def _divided(name: str, spans: Sequence[Spans]) -> Iterator[None]:
    """Divide the time of what is done for several members among their spans."""
    begin = time.perf_counter_ns()
    yield
    for each in spans:
        each.add(name, (time.perf_counter_ns() - begin) // len(spans))
