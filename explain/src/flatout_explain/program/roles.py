"""The roles of networks: acting, learning and evaluating.

A network's value decides: whether it gets to an environment's step or to an update first, or to
neither. So do the loops around its call.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

from flatout_explain.program import tags
from flatout_explain.program.flow import Node, Site
from flatout_explain.program.survey import LEARN, STEP, Loop, Place, Survey


class Roles:
    """The roles of a process's networks, and its loops that evaluate."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self._generated: dict[tuple[tuple[Site, ...], bool | None], bool] = {}
        self._evaluations = self._find_evaluations()

    def evaluates(self, place: Place) -> bool:
        """Return whether a place is in a loop that evaluates."""
        loops = (loop for loop, _ in self.survey.loops(place.program))
        return any(not self._evaluations.isdisjoint((loop, (*loop[:3], ()))) for loop in loops)

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
            return LEARN if learns else self._unfollowed(place, grad)
        return self._without_update()

    def awaited(self, place: Place) -> str:
        """Return the phase of the work that a place waits for, where no call is known to have
        started it."""
        survey, program = self.survey, place.program
        begin = survey.values.start(program)
        steps, learns = survey.around(program)
        goal = survey.leads_to(program, STEP, LEARN)
        if steps and (goal == STEP or not learns):
            return "act"
        updates = survey.learned | survey.nodes[LEARN]
        updated = survey.learns() if begin is None else begin[0] in updates
        if goal == LEARN or learns or updated:
            return LEARN
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
            calls = self.survey.values.statement(node).calls
            given = {name for call in calls for name in call[1:]}
            # Also objects whose methods make an argument, as in `net(board.planes())`.
            given |= {call[0].rpartition(".")[0] for call in calls if "" not in call[1:]}
            given -= {""}
            _, reached = self.survey.values.leads_to(program[at:], {})
            statements = [self.survey.values.statement(one) for one in reached if one[0] == loop[0]]
            inside = [one for one in statements if loop[1] <= one.first <= loop[2]]
            words = {call[0].rpartition(".")[2] for one in inside for call in one.calls}
            if any(name in given for one in inside for name in one.made):
                return grad is False or not words.isdisjoint(tags.SAMPLES)
        return False

    def _find_evaluations(self) -> set[Loop]:
        """Return loops whose results no update uses: those that step environments, next to others
        that collect or, if they keep nothing, in one that learns; and those that call networks and
        neither step nor learn."""
        survey = self.survey
        stdlib = survey.process.stdlib
        codes = (code for code in survey.process.codes if tags.is_program(code, stdlib))
        if not (survey.learns() or any(code.learns for code in codes)):
            return self._only_played()
        found, within, feeding = set[Loop](), set[Loop](), set[Loop]()
        for program in self._stepping():
            loops = [loop for loop, _ in survey.loops(program)]
            free = list(itertools.takewhile(lambda loop: not survey.does(loop, LEARN), loops))
            goal, reached = survey.values.leads_to(program, {LEARN: survey.nodes[LEARN]})
            if (loops and not free) or goal is not None:
                feeding.update(loops)
                continue
            found.update(free)
            if len(free) < len(loops) and not any(map(survey.values.keeps, reached)):
                within.update(free)
        found = (found if feeding else within) - feeding
        anywhere = {loop[:3] for loop in feeding}, {loop[:3] for loop in feeding if not loop[3]}
        found = {loop for loop in found if loop[:3] not in anywhere[bool(loop[3])]}
        for place in survey.places:
            if place.tag not in ("network", "compiled") or self.role(place) != "eval":
                continue
            for loop, _ in survey.loops(place.program):
                if survey.does(loop, LEARN) or survey.does(loop, STEP):
                    break
                found.add(loop)
        return found

    def _stepping(self) -> list[Sequence[Site]]:
        """Return the stacks whose innermost line steps an environment."""
        survey, values = self.survey, self.survey.values
        seen = {tuple(survey.outside(place.program)): None
                for place in survey.places if place.tag == STEP}  # fmt: skip
        sampled = {values.node(program[0]) for program in seen if program}
        short = [((node[0], values.statement(node).first),)
                 for node in survey.nodes[STEP] - sampled]  # fmt: skip
        return [*seen, *short]  # the latter are too short to be sampled, for unknown callers

    def _only_played(self) -> set[Loop]:
        """Return the loops of a program without gradients that evaluate: what another loop in the
        same one steps decides their actions and its own, and what they step none of its."""
        survey, values = self.survey, self.survey.values
        around = defaultdict[Node, set[Loop]](set)
        reached = defaultdict[Node, set[Node]](set)
        stacks = [(program, begin[0]) for program in self._stepping()
                  if (begin := values.start(program)) is not None]  # fmt: skip
        for program, node in stacks:
            around[node].update(loop for loop, _ in survey.loops(program))
        for program, node in stacks:
            for other in around:
                if values.leads_to(program, {STEP: {other}})[0] is not None:
                    reached[node].add(other)
        found = set[Loop]()
        for program, node in stacks:
            loops = [loop for loop, _ in survey.loops(program)]
            for other in around:
                own = [loop for loop in loops if loop not in around[other]]
                decides = {node, other} <= reached[other] and other not in reached[node]
                if decides and len(own) < len(loops):
                    found.update(own)
        return found
