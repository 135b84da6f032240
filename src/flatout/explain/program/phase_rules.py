"""The rules that give a place its phase, in order (`RULES`).

What the code is decides first (`flatout.explain.program.tags`). Then its context: a function that
takes gradients and steps no environment is learning; a call of a network or a distribution acts or
learns by its place in the loop around it, by its batch and by whether gradients are on. The English
words in functions' names come last: what they alone decide is unsure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flatout.explain.program import tags
from flatout.explain.program.survey import Place, Site, Survey, chains

Neighbours = Mapping[int, Mapping[int, Mapping[str, float]]]
"""Seconds by function, line and phase, of lines whose phase other rules have decided."""

NEIGHBOUR = 8  # maximum distance in lines to the neighbour of an undecided line


def by_evaluation(survey: Survey, place: Place, near: Neighbours) -> str | None:
    """All time in a function that evaluates is evaluation."""
    if place.tag in ("import", "io", "ipc"):
        return None
    return "eval" if any(code in survey.evaluations for code, _ in place.program) else None


def by_code(survey: Survey, place: Place, near: Neighbours) -> str | None:
    """The kind of code decides."""
    return None if place.tag == "network" else place.tag


def in_compiled(survey: Survey, place: Place, near: Neighbours) -> str | None:
    """Time in a library below a line that calls a compiled function belongs to that call."""
    if place.tag is not None or not place.program or place.frames[0] == place.program[0]:
        return None
    found = survey.made(place)
    if found is None or found[0] != place.program[0]:
        return None
    return "learn" if found[1].learns else network_role(survey, place.program)


def in_learning(survey: Survey, place: Place, near: Neighbours) -> str | None:
    """In a function that learns and never steps everything is learning, except choosing and
    gathering batches, and writing."""
    position = survey.learning(place)
    if position is None:
        return None
    for code, _ in place.program:
        if code == place.frames[position][0]:
            break
        if (phase := tags.by_words(survey.process.codes[code])) in ("replay", "input", "io"):
            return phase
    gathers = tags.is_gather(place.leaf, survey.process.codes[place.frames[0][0]])
    gathers = gathers and survey.any_draws
    replays = survey.drawn(place) or gathers
    return "replay" if place.tag is None and replays else "learn"


def in_writing(survey: Survey, place: Place, near: Neighbours) -> str | None:
    """In a function that writes to files, and neither learns nor steps nor calls a network, all is
    preparing what is written."""
    if place.tag is not None:
        return None
    for code, _ in place.program:
        if code in survey.roots:
            return None
        if survey.only_writes(code):
            return "io"
    return None


def by_network(survey: Survey, place: Place, near: Neighbours) -> str | None:
    """Calls of networks and distributions act or learn."""
    return network_role(survey, place.program) if place.tag == "network" else None


def by_drawing(survey: Survey, place: Place, near: Neighbours) -> str | None:
    """Functions that draw rows choose batches; functions that only copy move parameters."""
    for code, _ in place.program[:3]:
        if code in survey.roots or code in survey.learns or code in survey.steps:
            break
        if code in survey.draws and code not in survey.calls:
            phase = tags.by_words(survey.process.codes[code])
            return phase or ("replay" if survey.steps else "input")
        if survey.moving[code] > 0 and code not in survey.calls and survey.learns:
            return "transfer"
    draws = survey.drawn(place)
    gathers = tags.is_gather(place.leaf, survey.process.codes[place.frames[0][0]])
    if not survey.any_draws or not (draws or gathers):
        return None
    neighbour = by_neighbour(survey, place, near)
    if survey.steps:
        return "replay" if neighbour in ("learn", "replay") else None
    return "input" if draws and neighbour == "learn" else None


def by_name(survey: Survey, place: Place, near: Neighbours) -> str | None:
    """The names of functions, except of roots."""
    for code, _ in place.program:
        if code in survey.steps or code in survey.roots:
            return None
        if (phase := tags.by_words(survey.process.codes[code])) is not None:
            return phase
    return None


def by_neighbour(survey: Survey, place: Place, near: Neighbours) -> str | None:
    """The phase of the nearest decided line of the same function."""
    for code, line in place.program:
        decided = near.get(code)
        if not decided:
            continue
        nearest = min(decided, key=lambda other: (abs(other - line), other > line))
        if abs(nearest - line) <= NEIGHBOUR:
            return max(decided[nearest], key=lambda phase: decided[nearest][phase])
    return None


Rule = Callable[[Survey, Place, Neighbours], str | None]

RULES: tuple[Rule, ...] = (
    by_evaluation, by_code, in_compiled, in_learning, in_writing, by_network, by_drawing, by_name,
    by_neighbour,
)  # fmt: skip
"""How a place's phase is decided: the first rule that gives one."""


def network_role(survey: Survey, program: Sequence[Site]) -> str:
    """Whether a network call outside of a learning function acts or learns."""
    for site in program:
        if (phase := survey.by_loop(site)) is not None:
            return phase
    for chain in chains(program):
        code = chain[0][0]
        if chain[0] != program[0] and code in survey.steps and code in survey.learns:
            break  # the loop around everything tells nothing about one of its calls
        if chain in survey.networks:
            return role(survey, *survey.networks[chain])
    for code, _ in program:
        if code in survey.steps and code in survey.learns:
            break
        if (phase := tags.by_words(survey.process.codes[code])) in ("act", "learn"):
            return phase
    return "act" if survey.steps else "learn"


def role(survey: Survey, batch: int, grad: bool | None) -> str:
    """Whether a network call acts or learns, by its batch and whether gradients are on."""
    largest = max((size for size, learns in survey.networks.values() if learns), default=0)
    if grad is False:
        return "learn" if 1 < batch == largest else "act"
    return "act" if batch < largest or (batch <= 1 and not survey.learns) else "learn"
