"""Callbacks: a user's own code at a run's events, and what it sees of the run."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flatout.config.schema import TrainConfig
from flatout.errors import CallbackFailure, FlatoutError, UsageError, one_line, raised_at, short
from flatout.run.progress import Progress, metric
from flatout.types import Episode, Metrics

SAVED = "callbacks"
"""The key of the callbacks' states in a checkpoint's data."""

CALLBACK_SHAPE = (
    "a function callback(progress, metrics), an object of a class of flatout.Callback, or a list "
    "of these"
)


def stops(returned: Any) -> bool:
    """Return whether a callback has returned False, Python's or NumPy's, to stop the run."""
    return isinstance(returned, bool | np.bool_) and not returned


@dataclass(repr=False)
class Run:
    """A run as callbacks see it; the same object in every call.

    Attributes:
        agent: it predicts, evaluates and saves with the newest parameters; None where a run has no
            agent.
        config: the run's settings.
        folder: where the run is kept, or None.
        progress: the run's counters: `steps`, `episodes`, `returns` of the last 100 episodes, ...
        metrics: the newest iteration's, in `on_evaluation` also the evaluation's, by the names of
            docs/metrics.md.
        episode: in `on_episode` the one that ended.
    """

    agent: Any
    config: TrainConfig
    folder: Path | None
    progress: Progress
    _wall: Callable[[], float]
    episode: Episode | None = None
    stopped: bool = False
    _newest: Metrics | None = None
    _episodes: list[Episode] | None = None
    _evaluation: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def metrics(self) -> dict[str, float]:
        values = {} if self._newest is None else self._newest.values
        return {metric(name): value for name, value in values.items()} | self._evaluation

    @property
    def episodes(self) -> list[Episode]:
        """The episodes that ended in the newest iteration, with the scalars of their final
        `info`."""
        if self._episodes is None and self._newest is not None:
            columns = (array.tolist() for array in self._newest.episodes)
            found = [Episode(*one, info={}) for one in zip(*columns, strict=True)]
            for number, info in enumerate(self._newest.infos):
                found[number] = found[number]._replace(info=info or {})
            self._episodes = found
        return self._episodes or []

    @property
    def wall_s(self) -> float:
        """Seconds of the whole run so far, earlier parts of a resumed run counted."""
        return self._wall()

    def log(self, name: str, value: float) -> None:
        """Log one number: rows of metrics hold its mean since the row before.

        Args:
            name: such as ``"my/metric"``.

        Raises:
            UsageError: no number, or a name that cannot be shown.
        """
        try:
            number = float(value) if np.ndim(value) == 0 and not isinstance(value, str) else None
        except (TypeError, ValueError):
            number = None
        if number is None or not isinstance(name, str) or not (name and name.isprintable()):
            raise UsageError(
                f"run.log({short(name)}, {short(value)}): a metric is one number under a name."
            )
        total, count = self.progress.logged.get(name, (0.0, 0.0))
        self.progress.logged[name] = [total + number, count + 1.0]

    def stop(self) -> None:
        """End the run after this iteration. It is saved, and can be resumed."""
        self.stopped = True


class Callback:
    """The base class of callbacks; override the methods that you need.

    A method that returns False stops the run, as `run.stop` does. If a run is killed and resumed,
    the events since its last checkpoint come again. A callback that counts or compares therefore
    returns its data from `state`, so that a resumed run does the same as an uninterrupted one.
    """

    def on_start(self, run: Run) -> Any:
        """Handle the start of training, also after a resume; `restore` was called before."""

    def on_iteration(self, run: Run) -> Any:
        """Handle an iteration: a trajectory was collected and learned from."""

    def on_episode(self, run: Run) -> Any:
        """Handle `run.episode`, which ended in this iteration; called at the iteration's end, once
        for each episode."""

    def on_evaluation(self, run: Run) -> Any:
        """Handle an evaluation of the run (`eval_every`)."""

    def on_checkpoint(self, run: Run) -> Any:
        """Handle a checkpoint that is about to be written; it includes what this call changes. It
        is called before every checkpoint except the one after a failure."""

    def on_end(self, run: Run) -> Any:
        """Handle the end of training, for any reason except a failure."""

    def state(self) -> dict[str, Any]:
        """Return plain JSON data for `restore` in another process; checkpoints save it."""
        return {}

    def restore(self, values: dict[str, Any]) -> None:
        """Restore what `state` returned."""


class _Function(Callback):
    """A callback that is a function ``callback(progress, metrics)``."""

    def __init__(self, function: Callable[[Progress, dict[str, float]], Any]) -> None:
        self._function = function
        self.name = getattr(function, "__qualname__", type(function).__name__)

    def on_iteration(self, run: Run) -> Any:
        return self._function(run.progress, run.metrics)


CallbackLike = Callback | Callable[[Progress, dict[str, float]], Any]
"""A callback in a form that `learn` accepts, or a list of them."""


class Callbacks:
    """All callbacks of a run, in their order.

    Args:
        given: as `CALLBACK_SHAPE` says.

    Raises:
        UsageError: it is something else, or takes other arguments than it is called with.
    """

    def __init__(self, given: CallbackLike | Sequence[CallbackLike]) -> None:
        self._all = [
            _callback(one) for one in (given if isinstance(given, list | tuple) else [given])
        ]
        self._each = [one for one in self._all if type(one).on_episode is not Callback.on_episode]
        self.run: Run | None = None
        self.failed = False  # the run ends by a failure

    @property
    def stopped(self) -> bool:
        """Whether one has ended the run."""
        return self.run is not None and self.run.stopped

    def start(self, run: Run, saved: Any) -> list[str]:
        """Start all callbacks and return notes; `saved` holds their states if the run is resumed.

        A run that has only moved to another placement has begun: its settings alone are new.
        """
        if self.run is not None:
            self.run.config = run.config
            return []
        self.run = run
        notes = self._restore(saved)
        self.state()  # what cannot be saved is told at once
        self.tell("on_start")
        return notes

    def iteration(self, metrics: Metrics) -> None:
        """Call the callbacks for an iteration and for the episodes that ended in it."""
        run = self.run
        assert run is not None
        run._newest, run._episodes = metrics, None
        self.tell("on_iteration")
        for episode in run.episodes if self._each else ():
            run.episode = episode
            self.tell("on_episode", self._each)
        run.episode = None

    def evaluation(self, row: dict[str, float]) -> None:
        """Call the callbacks for an evaluation."""
        assert self.run is not None
        self.run._evaluation = row
        self.tell("on_evaluation")
        self.run._evaluation = {}

    def tell(self, event: str, those: Sequence[Callback] | None = None) -> None:
        """Call one method of every callback.

        Raises:
            CallbackFailure: one raised: which, where, and what.
        """
        run = self.run
        assert run is not None
        for callback in self._all if those is None else those:
            try:
                if stops(getattr(callback, event)(run)):
                    run.stop()
            except (Exception, SystemExit) as error:  # a user's callback may raise anything
                raise _failure(callback, event, error) from error

    def state(self) -> list[list[Any]]:
        """Return the callbacks' names and states for a checkpoint. If the run has failed, states
        that cannot be obtained are left out.

        Raises:
            CallbackFailure: a state is no plain data.
        """
        states: list[list[Any]] = []
        for callback in self._all:
            try:
                values = callback.state()
                if json.loads(json.dumps(values)) != values:
                    raise TypeError("it is not the same after json.loads(json.dumps(...))")
            except (Exception, SystemExit) as error:  # a user's callback may raise anything
                if self.failed:
                    return []
                raise _failure(callback, "state", error) from error
            states.append([_name(callback), values])
        return states

    def _restore(self, saved: Any) -> list[str]:
        if saved is None:
            return []
        names = [_name(callback) for callback in self._all]
        if [name for name, _ in saved] != names:
            were = ", ".join(str(name)[:60] for name, _ in saved) or "none"
            now = ", ".join(names)
            return [f"the callbacks start without saved states: they were {were}, and are {now}"]
        for callback, (_, values) in zip(self._all, saved, strict=True):
            try:
                callback.restore(values)
            except (Exception, SystemExit) as error:  # a user's callback may raise anything
                raise _failure(callback, "restore", error) from error
        return []


def _callback(given: Any) -> Callback:
    if isinstance(given, Callback):
        events = [name for name in vars(Callback) if name.startswith("on_")]
        for name in dir(type(given)):
            if re.match("_?on_", name) and name not in events:
                raise UsageError(
                    f"{type(given).__name__}.{name} would never be called: a callback's events "
                    f"are {', '.join(events)}."
                )
        called = dict.fromkeys(events, ("run",)) | {"state": (), "restore": ("values",)}
        for name, names in called.items():
            refuse_arguments(getattr(given, name), names)
        return given
    if callable(given) and not isinstance(given, type):
        refuse_arguments(given, ("progress", "metrics"))
        return _Function(given)
    what = f"the class {given.__name__}" if isinstance(given, type) else f"{short(given)}"
    raise UsageError(f"callback= takes {CALLBACK_SHAPE}, not {what}.")


def refuse_arguments(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Refuse a user's function that cannot be called with these positional arguments. The call
    itself would raise an error that names a line of Flatout.

    Raises:
        UsageError: it takes others: which, and where it is defined.
    """
    try:  # a decorator's wrapper may take other arguments than the function in it
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # of a function in C
        return
    try:
        signature.bind(*names)
    except TypeError:
        call: Any = function if hasattr(function, "__code__") else type(function).__call__
        code = getattr(call, "__code__", None)  # functools.partial, written in C, has none
        place = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
        name = getattr(function, "__qualname__", type(function).__name__)
        taken = [
            one.replace(annotation=one.empty, default=one.empty)
            for one in signature.parameters.values()
        ]
        raise UsageError(
            f"the callback {name} is called with ({', '.join(names)}), but it takes "
            f"{inspect.Signature(taken)}{place}."
        ) from None


def _name(callback: Callback) -> str:
    return callback.name if isinstance(callback, _Function) else type(callback).__qualname__


def _failure(callback: Callback, event: str, error: BaseException) -> CallbackFailure:
    """Return a sentence about an exception that a callback raised, with the place where it was
    raised."""
    where = "" if isinstance(callback, _Function) else f" in {event}"
    if isinstance(error, FlatoutError):  # a sentence already
        return CallbackFailure(f"the callback {_name(callback)} failed{where}: {one_line(error)}")
    return CallbackFailure(
        f"the callback {_name(callback)} raised {type(error).__name__}{where}: {one_line(error)} "
        f"({raised_at(error)})."
    )
