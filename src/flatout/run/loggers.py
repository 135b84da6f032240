"""Where metrics go: JSON lines, TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flatout.config.schema import TrainConfig
from flatout.errors import UsageError, one_line, writing
from flatout.installing import install
from flatout.run.curve import Track
from flatout.run.metric_names import renamed
from flatout.run.progress import Progress
from flatout.spans import Spans
from flatout.storage import nofollow
from flatout.types import Episodes

FLUSH_S = 10.0
"""Seconds after which TensorBoard's events are handed to the system."""

EPISODE_MEANS = ("loss", "actor_loss", "critic_loss", "epsilon", "replay_fill", "replay_mb")
"""The algorithm's and replay's scalars that an episode's row has."""

HIDDEN = ("episode", "env")
"""What of an episode's row TensorBoard does not show."""


class JsonLines:
    """One object a row, ``step`` first. A resumed run cuts off what lies after its checkpoint, at
    `offset` bytes."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        with writing(path):
            self._file = nofollow.open_stream(path, nofollow.APPEND)
            self._file.truncate(min(max(offset, 0), os.fstat(self._file.fileno()).st_size))

    def log(self, rows: Sequence[dict[str, float]], step: int) -> None:
        """Write several rows of one step."""
        clean = ({n: v if math.isfinite(v) else None for n, v in row.items()} for row in rows)
        lines = "".join(json.dumps({"step": step} | row) + "\n" for row in clean)
        with writing(self._path):
            self._file.write(lines.encode())
            self._file.flush()  # whoever follows the file sees each row at once

    def sync(self) -> int:
        """Bring every row to disk; returns the file's length in bytes."""
        with writing(self._path):
            self._file.flush()
            nofollow.sync(self._file.fileno())
        return self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        with writing(self._path):
            self._file.close()


class TensorBoard:
    """TensorBoard events; an earlier file's do not count from `purge_step` on, after a resume.

    Written here and now: tensorboardX's own `SummaryWriter` sends each event through a queue
    between processes to a thread, which cost more than a millisecond of a busy run.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        self._event: Any = event_pb2
        self._summary: Any = summary_pb2
        self._folder = folder
        self._flushed = time.monotonic()
        with writing(folder):
            # Nobody can have put a link in the place of a name that is drawn here.
            suffix = f".{os.getpid()}.{secrets.token_hex(4)}"
            self._writer = EventsWriter(str(folder / "events"), suffix)
        if purge_step is not None:
            started = self._event.SessionLog(status=self._event.SessionLog.START)
            self._write(step=purge_step, file_version="brain.Event:2")
            self._write(step=purge_step, session_log=started)

    def log(self, values: Iterable[tuple[str, float]], step: int) -> None:
        """Write one event of a step; a name may come again."""
        value = self._summary.Summary.Value
        summary = [value(tag=name, simple_value=number) for name, number in values]
        self._write(step=step, summary=self._summary.Summary(value=summary))

    def close(self) -> None:
        with writing(self._folder):
            self._writer.close()

    def _write(self, **fields: Any) -> None:
        with writing(self._folder):
            self._writer.write_event(self._event.Event(wall_time=time.time(), **fields))
            if time.monotonic() - self._flushed > FLUSH_S:
                self._writer.flush()
                self._flushed = time.monotonic()


def _wandb(project: str, name: str, config: TrainConfig) -> Any:
    try:
        import wandb  # type: ignore[import-not-found]
    except ImportError:
        raise UsageError(f"--wandb needs its package: {install('wandb')}.") from None
    try:
        return wandb.init(project=project, name=name, config=config.flat(), resume="allow")
    except Exception as error:  # no account, no network, ...
        raise UsageError(
            f"--wandb {project}: {one_line(error).rstrip('.')}. With WANDB_MODE=offline it needs "
            "neither an account nor a network."
        ) from error


class RunLogs:
    """Everything that a run logs to.

    Args:
        resumed: whether the run went on from `progress`.
        episodes: whether every training episode gets a row (`by_episode`: in a folder).
        spans: where the time goes.
        stack: closes the files.

    Raises:
        UsageError: the wandb package is not installed.
    """

    def __init__(
        self, config: TrainConfig, folder: Path | None, progress: Progress, resumed: bool,
        episodes: bool, spans: Spans, stack: ExitStack,
    ) -> None:  # fmt: skip
        run = config.run
        self.track = Track()
        self._names, self._spans = run.metric_names, spans
        self._examples = 0 if config.hyper.acts else config.hyper.batch_size  # in a step
        self._rows = self._episodes = self._board = self._wandb = None
        self.by_episode = episodes and folder is not None
        if folder is not None:
            self._rows = JsonLines(folder / "metrics.jsonl", progress.metrics_bytes)
            stack.callback(self._rows.close)
            if run.tensorboard:
                self._board = TensorBoard(folder, progress.steps + 1 if resumed else None)
                stack.callback(self._board.close)
            if self.by_episode:
                self._episodes = JsonLines(folder / "episodes.jsonl", progress.episodes_bytes)
                stack.callback(self._episodes.close)
        if run.wandb:
            name = config.env.env if folder is None else folder.name
            self._wandb = _wandb(run.wandb, name, config)
            stack.callback(self._wandb.finish)

    def log_row(
        self, progress: Progress, wall_s: float, steps_per_s: float, phases: Mapping[str, float]
    ) -> None:
        """Log the metrics since the last row; docs/metrics.md describes every key.

        Args:
            phases: their shares of the time.
        """
        with self._spans.span("log"):
            row = {"time/wall_s": wall_s, "time/steps_per_s": steps_per_s}
            if self._examples:
                row["time/examples_per_s"] = steps_per_s * self._examples
            shares = {f"phase/{name}": share for name, share in phases.items()}
            row |= progress.drain({"step", *row, *shares}) | shares
            self._log(row, progress.steps)

    def _log(self, row: dict[str, float], step: int) -> None:
        """Give one row to each."""
        self.track.add(step, row)
        if self._rows is not None:
            self._rows.log([row], step)
        row = renamed(row, self._names)
        if self._board is not None:
            self._board.log(row.items(), step)
        if self._wandb is not None:
            self._wandb.log(row, step)

    def log_episodes(self, episodes: Episodes, progress: Progress) -> None:
        """Write the episodes that an iteration ended to ``episodes.jsonl`` and TensorBoard.

        Losses are means over the updates since an episode last ended (with one environment: over
        the episode's own), the rest is of the episode's end.
        """
        if self._episodes is not None and len(episodes.env):
            with self._spans.span("log"):
                self._write(self._episodes, episodes, progress)

    def _write(self, file: JsonLines, episodes: Episodes, progress: Progress) -> None:
        sums, rows = progress.since_episode, list[dict[str, float]]()
        means = {name: sums[name][0] / sums[name][1] for name in EPISODE_MEANS if name in sums}
        progress.since_episode.clear()
        first = progress.episodes - len(episodes.env)
        columns = (array.tolist() for array in episodes)
        for number, (env, total, length, q_max) in enumerate(zip(*columns, strict=True), first):
            row: dict[str, float] = {"return": total, "length": length, "env": env, "q_max": q_max}
            rows.append({"episode": number} | row | means)
        file.log(rows, progress.steps)
        if self._board is not None:
            shown = ((f"episode/{n}", v) for row in rows for n, v in row.items() if n not in HIDDEN)
            self._board.log(shown, progress.steps)

    def sync(self, progress: Progress) -> None:
        """Bring every row to disk, and keep the files' lengths for a resumed run."""
        if self._rows is not None:
            progress.metrics_bytes = self._rows.sync()
        if self._episodes is not None:
            progress.episodes_bytes = self._episodes.sync()
