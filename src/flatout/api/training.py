"""One call of `learn`: a run that starts or continues, and its results for the agent."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from flatout.api.history import History, goal_reached
from flatout.config.schema import TrainConfig
from flatout.output import say
from flatout.run.acting import Acting
from flatout.run.notebook import display_of
from flatout.run.progress import Display
from flatout.run.trainer import Trainer
from flatout.storage.checkpoint import PREFIX
from flatout.storage.run_folder import RunFolder
from flatout.types import UserCode


class Trainable(Protocol):
    """The parts of an agent that `train` uses."""

    summary: dict[str, Any]
    _acting: Acting
    _history: History
    _code: UserCode
    _run: tuple[Trainer, bool] | None

    @property
    def config(self) -> TrainConfig: ...


def train(
    agent: Trainable, total: int | None, callback: Any, shows: bool, path: Path | None,
    reset: bool | None,
) -> int | None:  # fmt: skip
    """Train the agent, and set its parameters, history and summary to those of the run.

    Args:
        total, callback: see `Agent.learn`.
        reset: see `reset_argument`.
        shows: whether to show the live display.
        path: the run folder, if one is written.

    Returns:
        The signal that stopped the run, if any.

    Raises:
        FlatoutError: the run failed; the agent keeps what it had learned before the failure.
    """
    acting, history = agent._acting, agent._history
    plan = partial(history.next_run, agent.config, acting.arrays, total, path, reset)
    config, start, resume = plan()
    new_run = not resume and (start is None or not start.continues)
    with ExitStack() as stack:
        folder = None
        if path is not None:
            folder = RunFolder(path, resume, python=type(agent).__name__)
            stack.enter_context(closing(folder))
        if resume:  # as the folder is now that no other process can change it
            config, start, _ = plan()
        display = display_of(config) if shows else Display()
        notes = () if start is None else start.notes
        for note in () if shows else notes:  # a display shows them itself
            say(note)
        trainer = Trainer(
            config, code=agent._code, folder=folder, resume=resume, start=start,
            callback=callback, agent=agent, acting=acting, display=display,
        )  # fmt: skip
        agent._run = trainer, new_run
        try:
            # A run that is stopped before its start has none.
            agent.summary = trainer.run() or agent.summary
        finally:
            agent._run = None
            if trainer.final is not None:
                arrays = trainer.final.arrays.items()
                acting.learned({n: np.array(a) for n, a in arrays if n.startswith(PREFIX)})
                where = None if folder is None else folder.path
                history.keep(trainer.resolved, trainer.final, where, new_run)
    goal = config.run.stop_at_return
    if trainer.final is None and trainer.interrupted is None and goal is not None and not shows:
        say(goal_reached(agent.summary["steps"], goal))  # the folder's run has ended
    if trainer.final is not None:
        settings = config.flat() | {"placement": agent.summary["placement"]}
        history.draw(trainer.points, settings)
    return trainer.interrupts.signum
