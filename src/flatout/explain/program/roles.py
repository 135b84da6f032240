"""The roles of networks: acting, learning and evaluating.

A network's value decides: whether it gets to an environment's step or to an update first, or to
neither. So do the loops around its call.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from flatout.explain.program import tags
from flatout.explain.program.flow import Site
from flatout.explain.program.survey import LEARN, STEP, Loop, Place, Survey


class Roles:
    """The roles of a process's networks, and its loops that evaluate."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self._generated: dict[tuple[tuple[Site, ...], bool | None], bool] = {}
        self._evaluations = self._find_evaluations()

    def evaluates(self, place: Place) -> bool:
        """Return whether a place is in a loop that evaluates."""
        return any(loop in self._evaluations for loop, _ in self.survey.loops(place.program))

    def role(self, place: Place, grad: bool | None = None) -> str:
        """Return whether a network acts, learns or evaluates. A compiled function without gradients
        may also be ``other``: it is a network only if it uses what an update has made. `grad` says
        whether the value has gradients, if that is known."""
        program = place.program
        steps, learns = self.survey.around(program)
        grad = self.survey.gradients(place) if grad is None else grad
        if place.tag == "compiled":
            if program and self.survey.unpacks_step(program[0]):
                return STEP
            first = self.survey.leads_to(program, STEP, LEARN)
            if first == STEP and steps:
                return "act"
            begin = self.survey.values.start(program)
            if begin is None:
                return "act" if self.survey.steps() else "other"
            if begin[0] not in self.survey.learned or first == LEARN:
                return "other"
            grad = False
        if (program, grad) not in self._generated:
            self._generated[program, grad] = self._generates(program, grad)
        if (steps and not learns) or self._generated[program, grad]:
            return "act"
        first = self.survey.leads_to(program, STEP, LEARN)
        if first is not None:
            return "act" if first == STEP else "learn"
        if grad or self.survey.values.start(program) is None:
            if steps or learns:
                return "learn" if learns else "act"
            return self._unfollowed(place, grad)
        return self._without_update()

    def awaited(self, place: Place) -> str:
        """Return the phase of the work that a place waits for, where no call is known to have
        started it."""
        program = place.program
        begin = self.survey.values.start(program)
        steps, learns = self.survey.around(program)
        goal = self.survey.leads_to(program, STEP, LEARN)
        if steps and (goal == STEP or not learns):
            return "act"
        if goal == LEARN or (
            begin is not None and begin[0] in self.survey.learned | self.survey.nodes[LEARN]
        ):
            return "learn"
        if learns or (begin is None and self.survey.learns()):
            return "learn"
        return self.role(Place(place.frames, place.leaf, program, "compiled"))

    def _unfollowed(self, place: Place, grad: bool | None) -> str:
        """Return the role of a network whose value cannot be followed."""
        predicts = any(self.survey.tag(code) == "predict" for code, _ in place.frames)
        if grad is None and not predicts:
            grad = bool(place.program) and bool(self.survey.lines[LEARN].get(place.program[0][0]))
            grad = grad or not self.survey.steps()
        if grad and self.survey.learns():
            return "learn"
        return "act" if self.survey.steps() else self._without_update()

    def _without_update(self) -> str:
        """Return the role of a network whose result feeds no update."""
        return "eval" if self.survey.learns() else "act"

    def _generates(self, program: Sequence[Site], grad: bool | None) -> bool:
        """Return whether a loop that neither learns nor steps passes each value of a line to the
        call that makes the next one, as text is generated. With gradients a recurrent network
        learns in the same way, unless the next value is drawn at random."""
        for loop, at in self.survey.loops(program):
            if self.survey.does(loop, LEARN) or self.survey.does(loop, STEP):
                return False
            node = self.survey.values.node(program[at])
            if node is None:
                continue
            given = {name for call in self.survey.values.statement(node).calls for name in call[1:]}
            _, reached = self.survey.values.leads_to(program[at:], {})
            statements = [self.survey.values.statement(one) for one in reached if one[0] == loop[0]]
            inside = [one for one in statements if loop[1] <= one.first <= loop[2]]
            words = {call[0].rpartition(".")[2] for one in inside for call in one.calls}
            if any(name in given for one in inside for name in one.made):
                return grad is False or not words.isdisjoint(tags.SAMPLES)
        return False

    def _find_evaluations(self) -> set[Loop]:
        """Loops whose results no update uses: those that step environments, next to others that
        collect; and those that call networks and neither step nor learn."""
        learns = self.survey.learns() or any(code.learns for code in self.survey.process.codes)
        if not learns:
            return set()
        found, feeding = set[Loop](), set[Loop]()
        stacks = [
            self.survey.outside(place.program) for place in self.survey.places if place.tag == STEP
        ]
        stacks += [
            [(node[0], self.survey.values.statement(node).first)]
            for node in self.survey.nodes[STEP]
        ]  # too short to be sampled
        for program in stacks:
            loops = [loop for loop, _ in self.survey.loops(program)]
            free = list(itertools.takewhile(lambda loop: not self.survey.does(loop, LEARN), loops))
            if (loops and not free) or self.survey.leads_to(program, LEARN) is not None:
                feeding.update(loops)
            else:
                found.update(free)
        found = found - feeding if feeding else set()
        for place in self.survey.places:
            if place.tag not in ("network", "compiled") or self.role(place) != "eval":
                continue
            for loop, _ in self.survey.loops(place.program):
                if self.survey.does(loop, LEARN) or self.survey.does(loop, STEP):
                    break
                found.add(loop)
        return found
