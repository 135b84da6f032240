"""Training of many agents at once in Python; see docs/populations.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from flatout.api import Agent
from flatout.api.arguments import path_argument, preset_settings, text, whole_number
from flatout.api.load import load_any
from flatout.config.hyper import algorithm_called
from flatout.config.settings import resolve, revise
from flatout.config.values import Range
from flatout.engine.programs import Programs
from flatout.errors import FlatoutError, Interrupt, UsageError, short
from flatout.populations.members import (
    FOLDER,
    Member,
    Strategy,
    held,
    held_unused,
    members,
    save,
)
from flatout.populations.population import Population as Members
from flatout.populations.strategy import choose
from flatout.run.interrupts import Interrupts
from flatout.storage.run_folder import default_folder


class Population:
    """Agents with different seeds and settings, which are trained together.

    Their settings may differ as far as the compiled program stays the same.

    Args:
        algorithm: a class such as `PPO`, or the algorithm's name.
        env: an id or ``"module:factory"``.
        seeds: the number of seeds, from the settings' `seed` on.
        population: lists of values by setting; each combination is a member.
        run_dir: the folder with a run folder for each member; by default a new one in ``runs``.
        strategy: ``together`` (one program), ``spread`` (runs side by side), or ``auto``, which
            measures.
        settings: any setting by its flag's name.

    Attributes:
        summaries: the summary of each member by its name, after `learn`.

    Raises:
        UsageError: unknown or impossible settings, or settings that change the program.
    """

    def __init__(
        self, algorithm: str | type[Agent], env: str | None = None, *, seeds: int | None = None,
        population: Mapping[str, Sequence[Any]] | None = None, run_dir: str | Path | None = None,
        strategy: str = "auto", **settings: Any,
    ) -> None:  # fmt: skip
        if isinstance(algorithm, type) and issubclass(algorithm, Agent):
            algorithm = algorithm.algorithm
        algorithm = algorithm_called(text("algorithm", algorithm))
        tuned = preset_settings(settings, algorithm)
        named = {} if env is None else {"env": env}
        self.config = resolve(algorithm, tuned, named, settings)
        if not self.config.env.env or not self.config.hyper.acts:
            raise UsageError("a population needs an algorithm that acts, and an environment.")
        if seeds is not None:
            seeds = whole_number("seeds", seeds, Range(1))
        folder = default_folder(self.config) if run_dir is None else run_dir
        # An environment may change the working folder.
        self._path = path_argument("run_dir", folder).absolute()
        if seeds is None and (population is None or population == {}):
            raise UsageError(
                "a population needs members: pass seeds=8, say, or population={'gamma': [0.98, "
                "0.99]}."
            )
        self._named = run_dir is not None
        self._flags = seeds, _words(population)
        self._members: list[Member] = members(self.config, *self._flags, self._path)
        self._strategy = text("strategy", strategy)
        self._chosen: Strategy | None = None  # once the folder was written
        self._steps = 0  # that all members were to train for
        self._programs = Programs(several=True)
        self.summaries: dict[str, dict[str, Any]] = {}

    def learn(self, total_timesteps: int | None = None) -> Self:
        """Train all members for this many environment steps each; a second call continues the
        members' runs.

        Raises:
            FlatoutError: a member failed; the others have been trained and saved.
        """
        steps = self.config.run.steps
        if total_timesteps is not None:
            steps = whole_number("total_timesteps", total_timesteps, Range(1))
        steps += self._steps
        changes, resume = {"steps": steps}, self._chosen is not None
        own = held(self._path, resume) if resume or self._named else held_unused(self._path)
        with Interrupts() as interrupts, own as path:
            if path != self._path:  # another was made in the same second
                self._path = path
                self._members = members(self.config, *self._flags, path)
            trained = [Member(one.name, revise(one.config, changes)) for one in self._members]
            if self._chosen is None:
                try:
                    with interrupts.discardable():
                        configs = [one.config for one in trained]
                        chosen = choose(configs, self._strategy, self._programs)
                except Interrupt:
                    raise KeyboardInterrupt from None
            else:
                chosen = self._chosen
            save(self._path, revise(self.config, changes), trained, chosen, again=resume)
            self._chosen = chosen
            self._steps = steps
            made = Members(trained, chosen, resume, interrupts, self._programs)
            made.run()
        self.summaries = {state.member.name: state.summary for state in made.states}
        if interrupts.signum is not None:
            raise KeyboardInterrupt
        if made.defect is not None:
            raise made.defect
        for state in made.states:
            if state.error:
                raise FlatoutError(f"{state.member.name}: {state.error}")
        return self

    def agent(self, name: str) -> Agent:
        """Return one member's agent, loaded from its run folder."""
        return load_any(self._path / FOLDER / text("name", name))[0]


def _words(grid: Any) -> list[str]:
    """Return a grid as the words that the command line takes.

    Raises:
        UsageError: the grid is not a dict of lists.
    """
    if not isinstance(grid, Mapping | None):
        raise UsageError(f"population = {short(grid)} is not a dict of settings and their values.")
    words: list[str] = []
    for key, values in (grid or {}).items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise UsageError(f"population: {key} = {short(values)} is not a list of values.")
        if not (texts := list(map(str, values))):
            raise UsageError(f"population: {key} has no values.")
        words.append(f"{key}={','.join(texts)}")
    return words
