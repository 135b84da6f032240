"""Where metrics go: JSON lines, TensorBoard, Weights & Biases, behind one small protocol."""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from flatout.errors import FlatoutError, UsageError
from flatout.run.progress import Progress
from flatout.storage import nofollow
from flatout.types import Episode

FLUSH_S = 10.0
"""Seconds after which TensorBoard's events are handed to the system."""

EPISODE_MEANS = ("loss", "actor_loss", "critic_loss", "epsilon", "replay_fill", "replay_mb")
"""The algorithm's and replay's scalars that an episode's row has."""


class Logger(Protocol):
    """Receives rows of scalars."""

    def log(self, row: dict[str, float], step: int) -> None:
        """Take one row; `step` counts environment steps."""
        ...

    def close(self) -> None:
        """Write out what is held back."""
        ...


class JsonLines:
    """``metrics.jsonl``: one object a row, ``step`` first.

    Args:
        path: the file.
        offset: bytes to keep; a resumed run cuts off what lies after its checkpoint.

    Raises:
        FlatoutError: the file cannot be written.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        with _writing(path):
            self._file = os.fdopen(nofollow.open_file(path, nofollow.APPEND), "ab")
            self._file.truncate(min(max(offset, 0), os.fstat(self._file.fileno()).st_size))

    def log(self, row: dict[str, float], step: int) -> None:
        """Append one row.

        Raises:
            FlatoutError: the disk is full.
        """
        clean = {name: value if math.isfinite(value) else None for name, value in row.items()}
        line = json.dumps({"step": step} | clean).encode() + b"\n"
        with _writing(self._path):
            self._file.write(line)
            self._file.flush()  # whoever follows the file sees each row at once

    def sync(self) -> int:
        """Bring every row to disk; returns the file's length in bytes."""
        with _writing(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Flush and close."""
        with _writing(self._path):
            self._file.close()


class TensorBoard:
    """TensorBoard events; after a resume, later events of the interrupted run are purged.

    Written here and now: tensorboardX's own `SummaryWriter` sends each event through a queue
    between processes to a thread, which cost more than a millisecond of a busy run.

    Args:
        folder: of the run.
        purge_step: events of this step and later ones, of an earlier file, do not count.

    Raises:
        FlatoutError: the file cannot be written.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        self._event: Any = event_pb2
        self._summary: Any = summary_pb2
        self._folder = folder
        self._flushed = time.monotonic()
        with _writing(folder):
            # Nobody can have put a link in the place of a name that is drawn here.
            suffix = f".{os.getpid()}.{secrets.token_hex(4)}"
            self._writer = EventsWriter(str(folder / "events"), suffix)
        if purge_step is not None:
            started = self._event.SessionLog(status=self._event.SessionLog.START)
            self._write(step=purge_step, file_version="brain.Event:2")
            self._write(step=purge_step, session_log=started)

    def log(self, row: dict[str, float], step: int) -> None:
        """Write one event that holds the whole row.

        Raises:
            FlatoutError: the disk is full.
        """
        value = self._summary.Summary.Value
        values = [value(tag=name, simple_value=number) for name, number in row.items()]
        self._write(step=step, summary=self._summary.Summary(value=values))

    def close(self) -> None:
        """Flush and close."""
        with _writing(self._folder):
            self._writer.close()

    def _write(self, **fields: Any) -> None:
        with _writing(self._folder):
            self._writer.write_event(self._event.Event(wall_time=time.time(), **fields))
            if time.monotonic() - self._flushed > FLUSH_S:
                self._writer.flush()
                self._flushed = time.monotonic()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FlatoutError(f"cannot write {path}: {error.strerror}.") from error


class EpisodeLog:
    """``episodes.jsonl`` and TensorBoard's ``episode/``: a row for every training episode.

    Losses are means over the updates since an episode last ended (with one environment: over the
    episode's own), the rest is of the episode's end.

    Args:
        folder: of the run.
        progress: the run's books, which say where a resumed run's file is cut off.
        board: also gets the rows, or None.
    """

    def __init__(self, folder: Path, progress: Progress, board: TensorBoard | None) -> None:
        self._lines = JsonLines(folder / "episodes.jsonl", progress.episodes_bytes)
        self._board = board

    def log(self, episodes: list[Episode], progress: Progress) -> None:
        """Write the episodes that an iteration ended."""
        means = {name: total / count for name, (total, count) in progress.since_episode.items()}
        progress.since_episode.clear()
        number = progress.episodes - len(episodes)
        for episode in episodes:
            row: dict[str, float] = {
                "return": episode.episode_return, "length": episode.length, "env": episode.env,
                "q_max": episode.q_max,
            }  # fmt: skip
            for name in EPISODE_MEANS:
                if name in means:
                    row[name] = means[name]
            self._lines.log({"episode": number} | row, progress.steps)
            number += 1
            if self._board is not None:
                shown = {f"episode/{name}": value for name, value in row.items() if name != "env"}
                self._board.log(shown, progress.steps)

    def sync(self) -> int:
        """Bring every row to disk; returns the file's length in bytes."""
        return self._lines.sync()

    def close(self) -> None:
        """Flush and close."""
        self._lines.close()


class Wandb:
    """A Weights & Biases run.

    Raises:
        UsageError: the wandb package is not installed.
    """

    def __init__(self, project: str, name: str, config: dict[str, Any]) -> None:
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError:
            raise UsageError("--wandb needs its package: pip install 'flatout[wandb]'.") from None
        self._run = wandb.init(project=project, name=name, config=config, resume="allow")

    def log(self, row: dict[str, float], step: int) -> None:
        """Send one row."""
        self._run.log(row, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
