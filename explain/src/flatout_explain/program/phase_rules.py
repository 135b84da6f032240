"""The rules that give a place its phase, in order (`RULES`).

What the code is decides first (`flatout_explain.program.tags`). Then where its value goes: to an
environment's step, to an update, to neither. All else is the program's own code.
"""

from __future__ import annotations

from collections.abc import Callable

from flatout_explain.program import tags
from flatout_explain.program.roles import Roles
from flatout_explain.program.survey import LEARN, MESSAGE, NETWORK, STEP, WRITE, Place

UNDECIDED = (None, "network", "compiled", "document", "draw", "parameters")


def by_evaluation(roles: Roles, place: Place) -> str | None:
    """Return ``eval`` for all time in a loop that evaluates."""
    if place.tag in ("import", "io", "ipc"):
        return None
    return "eval" if roles.evaluates(place) else None


def by_code(roles: Roles, place: Place) -> str | None:
    """Return the phase by the kind of code."""
    return None if place.tag in UNDECIDED else place.tag


def in_library(roles: Roles, place: Place) -> str | None:
    """Return the phase of a call that is compiled, or learns, for a library's time below it."""
    survey, program = roles.survey, place.program
    if place.tag is not None or not program or place.frames[0] == program[0]:
        return None
    found = survey.made(place)
    if found is None or found[0] != program[0]:
        return LEARN if survey.values.node(program[0]) in survey.nodes[LEARN] else None
    if found[1].learns:
        return LEARN
    return by_network(roles, Place(place.frames, place.leaf, program, "compiled"))


def by_network(roles: Roles, place: Place) -> str | None:
    """Return the role of a call of a network, a distribution or a compiled function."""
    if place.tag not in ("network", "compiled"):
        return None
    role = roles.role(place)
    return None if role == "other" else role


def by_parameters(roles: Roles, place: Place) -> str | None:
    """Return the phase of the loop around for listing and setting a network's parameters."""
    if place.tag != "parameters":
        return None
    steps, learns = roles.survey.around(place.program)
    acts = (steps and not learns) or (roles.survey.steps() and not roles.survey.learns())
    return "act" if acts else LEARN


def by_document(roles: Roles, place: Place) -> str | None:
    """Return the phase of pickling and JSON by where the data go or come from: a pipe or a file."""
    survey = roles.survey
    if place.tag != "document":
        return None
    found = survey.leads_to(place.program, MESSAGE, WRITE)
    begin = survey.values.start(place.program)
    if found is None and begin is not None and begin[0] in survey.received:
        return MESSAGE
    return found or "other"


def by_gradients(roles: Roles, place: Place) -> str | None:
    """Return ``learn`` for operations on gradients and on a network's parameters, and the role of
    operations that PyTorch follows for gradients."""
    survey = roles.survey
    if not place.program:
        return None
    values = survey.process.values.get(place.program[0])
    begin = survey.values.start(place.program[:1])
    used = survey.values.statement(begin[0]).used if begin is not None else frozenset()
    if any(name.endswith(".grad") for name in used) and "torch" in survey.process.libraries:
        return LEARN
    if values is not None and values.parameter and survey.learns():
        return LEARN
    if values is not None and values.grad and tags.is_c(place.leaf):
        return roles.role(place, grad=True)
    return None


def by_drawing(roles: Roles, place: Place) -> str | None:
    """Return ``replay`` or ``input`` for drawing, gathering and storing rows for learning."""
    survey = roles.survey
    begin = survey.values.start(place.program)
    if begin is None or begin[0] not in survey.drawn:
        return None
    return "replay" if survey.steps() else "input"


def by_reward(roles: Roles, place: Place) -> str | None:
    """Return ``learn`` for what is computed from a reward, and decides later actions, in a program
    without gradients."""
    survey = roles.survey
    begin = survey.values.start(place.program)
    if begin is None or begin[0] not in survey.rewarded or survey.fetches(place):
        return None
    return LEARN if survey.leads_to(place.program, STEP) == STEP else None


def by_update(roles: Roles, place: Place) -> str | None:
    """Return ``learn`` for what is computed between an update and the next one from what the first
    has made, such as an optimiser."""
    survey = roles.survey
    begin = survey.values.start(place.program)
    if begin is None or begin[0] not in survey.updated:
        return None
    if not survey.turns_with(place.program, LEARN):
        return None
    return LEARN if survey.leads_to(place.program, STEP, NETWORK, LEARN) == LEARN else None


def by_goal(roles: Roles, place: Place) -> str | None:
    """Return the phase of what is computed on the way to an action or an update.

    Making a network's input belongs to what the network is for. To an action leads what uses an
    observation, or is in a function that itself calls the network or the environment. To an update
    leads what uses a network's output, once for each update. What generators yield to a network is
    input, if there is no environment.
    """
    survey, program = roles.survey, place.program
    begin = survey.values.start(program)
    goal = survey.leads_to(program, STEP, LEARN)
    if begin is None or goal is None or (goal == STEP and not survey.around(program)[0]):
        return None
    inside = tags.is_jax(survey.process.codes[place.frames[0][0]])
    converts = place.leaf.word in tags.CONVERSIONS and tags.is_c(place.leaf) and not inside
    if goal == LEARN:
        if not survey.steps() and any(survey.process.codes[code].yields for code, _ in program):
            return "input"
        once = begin[0] in survey.computed and survey.turns_with(program, NETWORK, LEARN)
        return LEARN if converts or once else None
    if converts:
        return "act"
    near = {node[0] for node in survey.nodes[STEP] | survey.nodes[NETWORK]}
    first = survey.leads_to(program, STEP, NETWORK, LEARN)
    chooses = begin[0][0] in near or begin[0] in survey.observed
    return "act" if first != LEARN and chooses else None


Rule = Callable[[Roles, Place], str | None]

RULES: tuple[Rule, ...] = (
    by_evaluation, by_code, in_library, by_network, by_parameters, by_gradients,
    by_drawing, by_document, by_reward, by_update, by_goal,
)  # fmt: skip
"""How a place's phase is decided: the first rule that gives one."""
