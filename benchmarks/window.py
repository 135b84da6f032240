"""The part of a run in which it learns, counted the same way on every side.

Replay algorithms fill their memory with random actions before they learn, and compile (where they
compile) around their first updates. So rates are taken over a *window*: from a step at which
learning has begun to the end of training. Flatout's window is read from the rows of its
``metrics.jsonl``; the peers' programs note theirs themselves. Steps and updates of the whole run
and of the window are checked on every side. Beside that: what a saved replay takes on disk.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import MIB, BenchmarkError, Command, Row, require_work
from report import mean_std, spread, table

PHASE = "phase/"


@dataclass(frozen=True)
class Work:
    """What every side of a comparison must do.

    Attributes:
        steps: environment steps in all, over all environments.
        learning_starts: steps before the first update.
        window_from: step at which the window begins; a multiple of `log_every`.
        train_freq: steps, over all environments, that `gradient_steps` updates follow.
        gradient_steps: those updates.
        log_every: steps between Flatout's rows, a multiple of `train_freq`.
    """

    steps: int
    learning_starts: int
    window_from: int
    train_freq: int = 1
    gradient_steps: int = 1
    log_every: int = 128

    def __post_init__(self) -> None:
        """Refuse counts that no side could hit exactly.

        Raises:
            BenchmarkError: names the counts.
        """
        for count in (self.steps, self.learning_starts, self.log_every):
            if count % self.train_freq:
                raise BenchmarkError(f"{count} steps are no multiple of {self.train_freq}.")
        if self.steps % self.log_every or self.window_from % self.log_every:
            raise BenchmarkError(f"steps and window must be multiples of {self.log_every}.")
        if not self.learning_starts < self.window_from < self.steps:
            raise BenchmarkError(f"no window between {self.learning_starts} and {self.steps}.")

    @property
    def updates(self) -> int:
        """Updates of the whole run."""
        return (self.steps - self.learning_starts) // self.train_freq * self.gradient_steps

    def flags(self) -> tuple[str, ...]:
        """The flags that Flatout and the peers' programs share."""
        return (
            "--steps", str(self.steps), "--learning-starts", str(self.learning_starts),
            "--train-freq", str(self.train_freq), "--gradient-steps", str(self.gradient_steps),
        )  # fmt: skip

    def check(self, row: Row) -> None:
        """Refuse a run that did other work, in all or within its window.

        One block of updates may fall on either side of `learning_starts`: libraries differ on
        whether it is learned from at that very step or after it.

        Raises:
            BenchmarkError: what it did and what was asked for.
        """
        require_work(row, self.steps, self.updates, slack=self.gradient_steps)
        window = row["result"].get("window")
        what = f"{row['name']}: {row['side']}, seed {row['seed']}"
        if not window:
            raise BenchmarkError(f"{what}: its result has no window from {self.window_from} on.")
        wanted = self.steps - self.window_from
        if abs(window["steps"] - wanted) > wanted // 20:
            raise BenchmarkError(f"{what}: a window of {window['steps']} steps, not of {wanted}.")
        due = window["steps"] * self.gradient_steps / self.train_freq
        if abs(window["updates"] - due) > self.gradient_steps:
            raise BenchmarkError(
                f"{what}: {window['updates']} updates in a window of {window['steps']} steps; "
                f"{due:.0f} were asked for."
            )
        if not 0 < window["s"] <= row["wall_s"]:
            raise BenchmarkError(
                f"{what}: a window of {window['s']:.1f} s in a process of {row['wall_s']:.1f} s."
            )


def windowed(start: int) -> Callable[[Command, Row], Row]:
    """Adds Flatout's `window` from its rows of metrics: the first at or after `start`, the last.

    Steps, updates and seconds are differences of the two rows; ``phases`` are shares of the
    window's own time by span.
    """

    def finish(train: Command, result: Row) -> Row:
        begin, end = rows_around(train, start)
        seconds = end["time/wall_s"] - begin["time/wall_s"]
        phases = {
            name.removeprefix(PHASE): (
                share * end["time/wall_s"] - begin[name] * begin["time/wall_s"]
            ) / max(seconds, 1e-9)
            for name, share in end.items() if name.startswith(PHASE)
        }  # fmt: skip
        window = {
            "steps": end["step"] - begin["step"],
            "updates": end["train/updates"] - begin["train/updates"],
            "s": seconds, "phases": phases,
        }  # fmt: skip
        return result | {"window": window}

    return finish


def rows_around(train: Command, start: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first row of a run's metrics at or after step `start`, and the last row.

    Raises:
        BenchmarkError: the run has no two such rows.
    """
    assert train.run_dir is not None
    text = (train.run_dir / "metrics.jsonl").read_text()
    rows = [row for row in map(json.loads, text.splitlines()) if row["step"] >= start]
    if len(rows) < 2:
        raise BenchmarkError(f"{train.run_dir.name}: no two rows of metrics from step {start} on.")
    return rows[0], rows[-1]


def folder_mb(folder: Path) -> float:
    """MiB of a folder's files, as the disk holds them; 0 where there is no folder.

    A file with several names counts once.
    """
    if not folder.is_dir():
        return 0.0
    blocks = {
        (stat.st_dev, stat.st_ino): stat.st_blocks
        for stat in (path.lstat() for path in folder.rglob("*") if not path.is_dir())
    }
    return sum(blocks.values()) * 512 / MIB


def drop_replay(train: Command) -> None:
    """Remove the replay memory that a run saved, which takes gigabytes and is not read again."""
    assert train.run_dir is not None
    shutil.rmtree(train.run_dir / "replay", ignore_errors=True)


def figures(rows: Sequence[Row], key: str) -> list[float]:
    """One figure of each run's own result.

    Raises:
        BenchmarkError: a run lacks it.
    """
    values = [row["result"].get(key) for row in rows]
    if None in values:
        raise BenchmarkError(f"{rows[0]['name']}: a run of {rows[0]['side']} has no {key}.")
    return values


def rates(rows: Sequence[Row], key: str = "steps") -> list[float]:
    """Steps (or updates) per second of each run's window."""
    return [row["result"]["window"][key] / row["result"]["window"]["s"] for row in rows]


def shares(rows: Sequence[Row], phase: str) -> list[float]:
    """Share of each of Flatout's windows that one span took."""
    return [row["result"]["window"]["phases"][phase] for row in rows]


SPEED_HEAD = [
    "side", "steps/s while learning", "updates/s", "steps/s, whole process", "whole process, s",
    "CPU s", "peak RSS, MiB", "last 100 returns", "updates",
]  # fmt: skip


def speed_row(label: str, rows: Sequence[Row]) -> list[str]:
    """One side's row for `SPEED_HEAD`."""
    means = [row["result"].get("return_mean_100") for row in rows]
    updates = sorted({row["result"]["updates"] for row in rows})
    return [
        label, spread(rates(rows), 0), spread(rates(rows, "updates"), 1),
        spread([row["result"]["steps"] / row["wall_s"] for row in rows], 0),
        spread([row["wall_s"] for row in rows], 1),
        f"{statistics.median(row['cpu_s'] for row in rows):.1f}",
        f"{statistics.median(row['max_rss_mb'] for row in rows):.0f}",
        "-" if None in means else mean_std(means),
        ", ".join(f"{count:,}" for count in updates),
    ]  # fmt: skip


def phase_table(rows: dict[str, Sequence[Row]]) -> str:
    """Where the windows of Flatout's sides went: the median share of each span."""
    spans = list(next(iter(rows.values()))[0]["result"]["window"]["phases"])
    median = {
        side: {span: statistics.median(shares(runs, span)) for span in spans}
        for side, runs in rows.items()
    }
    shown = [span for span in spans if any(median[side][span] >= 0.001 for side in rows)]
    body = [[side, *(f"{median[side][span]:.1%}" for span in shown)] for side in rows]
    return table(["Flatout's time while learning", *shown], body)
