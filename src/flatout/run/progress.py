"""The counters of a run, its learning curve so far, and what shows them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, get_args

import msgspec
import numpy as np
from msgspec import Meta

from flatout.errors import CallbackFailure
from flatout.run.curve import VALUES, Points
from flatout.run.metric_rows import ROWS
from flatout.types import Metrics
from flatout_explain.documents import convert

Count = Annotated[int, Meta(ge=0, lt=2**53)]

WINDOW = 100
"""Episodes over which training returns are averaged."""


@dataclass
class Progress:
    """The counters of a run, which a checkpoint saves next to the schedule's state."""

    steps: Count = 0  # since the run's start, as the next three
    updates: Count = 0
    episodes: Count = 0
    iterations: Count = 0
    # Of the last 100 episodes.
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))
    # Seconds that earlier parts of a resumed run took.
    wall_s: Annotated[float, Meta(ge=0.0, lt=1e12)] = 0.0
    # Threshold -> [steps, seconds] once the mean of 100 returns reached it.
    reached: dict[str, list[float]] = field(default_factory=dict)
    best_return: float | None = None  # highest mean evaluation return
    evaluated: float | None = None  # mean return of the newest evaluation
    last_eval: dict[str, float] | None = None  # the newest evaluation's row, until it is logged
    next_log: Count = 0  # the step at which it is due, as the next two
    next_checkpoint: Count = 0
    next_eval: Count = 0
    metrics_bytes: Count = 0  # the length of metrics.jsonl
    episodes_bytes: Count = 0  # the length of episodes.jsonl
    # Sum and number of each of the algorithm's scalars since the last row.
    pending: dict[str, list[float]] = field(default_factory=dict)
    pending_count: Count = 0  # iterations since the last row
    since_episode: dict[str, list[float]] = field(default_factory=dict)  # since an episode ended
    # Sum and number of what callbacks logged since the last row.
    logged: dict[str, list[float]] = field(default_factory=dict)
    # `is_success` of the last 100 episodes whose final `info` had one.
    successes: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    # `lasting` and `noted` of `algorithms.common.diagnostics.input_notes`.
    lasting: dict[str, list[int]] = field(default_factory=dict)
    noted: dict[str, bool] = field(default_factory=dict)

    @property
    def return_mean_100(self) -> float | None:
        """Mean raw return of the last 100 training episodes, once 100 have ended."""
        return float(np.mean(self.returns)) if len(self.returns) == WINDOW else None

    @property
    def return_mean_last(self) -> float | None:
        """Mean raw return of the last episodes, 100 at most; None before one has ended."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    @property
    def counts(self) -> tuple[int, int, int]:
        """Steps, updates and iterations."""
        return self.steps, self.updates, self.iterations

    def add(self, metrics: Metrics, by_episode: bool) -> None:
        """Count one iteration; `by_episode` also keeps sums between the ends of episodes."""
        self.steps += metrics.steps
        self.updates += metrics.updates
        self.iterations += 1
        self.episodes += len(metrics.episodes.env)
        self.returns.extend(metrics.episodes.episode_return.tolist())
        self.lengths.extend(metrics.episodes.length.tolist())
        for info in metrics.infos:
            if info and "is_success" in info:
                self.successes.append(float(info["is_success"]))
        for sums in (self.pending, self.since_episode) if by_episode else (self.pending,):
            for name, value in metrics.values.items():
                total, count = sums.get(name, (0.0, 0.0))
                sums[name] = [total + value, count + 1.0]
        self.pending_count += 1

    def note_reached(self, goals: Sequence[float], wall_s: float) -> None:
        """Record when the mean of 100 returns first reaches each goal."""
        mean = self.return_mean_100 if goals else None
        for goal in goals:
            if mean is not None and mean >= goal:
                self.reached.setdefault(str(goal), [self.steps, wall_s])

    def after(self, every: int) -> int:
        """Return the next multiple of `every` steps."""
        return (self.steps // every + 1) * every

    def ended(self, steps: int, goal: float | None) -> str:
        """Return why a run of `steps` steps, or until a mean return of `goal`, has ended; an empty
        string if it has not."""
        if self.steps >= steps:
            return "steps"
        mean = None if goal is None else self.return_mean_100
        return "return" if goal is not None and mean is not None and mean >= goal else ""

    def due(self, steps: int, evaluates: bool) -> tuple[int, int]:
        """Return the step of the next event (a row of metrics, a checkpoint, an evaluation or the
        end of a run of `steps`), and the step of the next event that reads the learned state, which
        a row of metrics does not."""
        times = [steps, self.next_checkpoint or steps]
        times += [self.next_eval] if evaluates else []
        return max(min(*times, self.next_log), self.steps + 1), max(min(times), self.steps + 1)

    def means(self) -> dict[str, float]:
        """Return the mean of each of the algorithm's scalars since the last row."""
        return {name: total / count for name, (total, count) in self.pending.items()}

    def drain(self, taken: Collection[str] = ()) -> dict[str, float]:
        """Return the values of these counters for a row of metrics, and begin the next row.

        Args:
            taken: names of what else the row has.

        Raises:
            CallbackFailure: a callback logged under a name that is taken.
        """
        row: dict[str, float] = {
            "time/iterations": self.iterations,
            "rollout/episodes": self.episodes,
            "train/updates": self.updates,
        }
        if self.returns:
            row["rollout/return_mean_100"] = float(np.mean(self.returns))
            row["rollout/return_min_100"] = float(np.min(self.returns))
            row["rollout/return_max_100"] = float(np.max(self.returns))
            row["rollout/length_mean_100"] = float(np.mean(self.lengths))
        if self.successes:
            row["rollout/success_rate"] = float(np.mean(self.successes))
        row |= {metric(name): mean for name, mean in self.means().items()}
        row |= self.last_eval or {}
        logged = {name: total / count for name, (total, count) in self.logged.items()}
        self.logged = {}
        if clash := sorted(logged.keys() & {*row, *taken}):
            raise CallbackFailure(
                f"a callback logged {clash[0]!r}, which is a metric of Flatout's own: choose "
                "another name."
            )
        self.pending, self.pending_count, self.last_eval = {}, 0, None
        return row | logged

    def to_json(self) -> dict[str, Any]:
        """Return the counters as JSON-compatible values."""
        return msgspec.to_builtins(self, enc_hook=_plain)

    @staticmethod
    def from_json(values: Any) -> Progress:
        """Return the counters that `to_json` wrote.

        Raises:
            ValueError: the values are damaged.
        """
        progress = convert(values, Progress, _newest)
        if missing := [spec.name for spec in fields(Progress) if spec.name not in values]:
            raise ValueError(f"{missing[0]} is missing")
        return progress


def _plain(value: Any) -> Any:
    """A deque as a list, a number of NumPy's as Python's."""
    return list(value) if isinstance(value, deque) else value.item()


def _newest(kind: Any, values: Any) -> deque[Any]:
    """The deque of a list of numbers."""
    (number,) = get_args(kind)
    return deque(map(number, values), maxlen=WINDOW)


def metric(name: str) -> str:
    """Return the name of a learner's or a schedule's value in a row of metrics."""
    return name if "/" in name else f"train/{name}"


class Track:
    """A run's points while it lives: all of them, or evenly spread ones of many."""

    def __init__(self) -> None:
        self._kept: list[tuple[float, float, float]] = []
        self._seen, self._every = 0, 1

    def add(self, step: int, row: Mapping[str, float]) -> None:
        """Keep one row of metrics."""
        value = next((row[name] for name in VALUES if name in row), None)
        if value is None:
            return
        self._seen += 1
        if self._seen % self._every == 0:
            self._kept.append((step, row["time/wall_s"], value))
        if len(self._kept) > 2 * ROWS:
            self._kept, self._every = self._kept[1::2], 2 * self._every

    @property
    def points(self) -> Points:
        """See `Points`."""
        steps, seconds, values = np.array(self._kept, float).reshape(-1, 3).T
        return steps, seconds, values


class Display:
    """The display of a running run; this base class shows nothing."""

    shows = False  # whether it shows anything
    lost = ""  # why nothing is seen of it any more

    def note(self, text: str) -> None:
        """Say one sentence."""

    def update(self, progress: Progress, row: dict[str, float], wall_s: float) -> None:
        """Update the display after an iteration. This is called often and draws seldom."""

    def load(self, steps_per_s: float, machine: str) -> None:
        """Show the speed and the machine's load; called about once a second."""

    def close(self) -> None:
        """Release the terminal."""
