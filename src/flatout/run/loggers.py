"""Where metrics go: JSON lines, TensorBoard, Weights & Biases.

With `--metric-names`, TensorBoard and W&B get the names that other libraries use, for metrics that
mean the same, or the same times a factor. metrics.jsonl keeps Flatout's names.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from flatout.config.schema import TrainConfig
from flatout.errors import UsageError, with_full_stop, writing
from flatout.installing import install
from flatout.output import json_text
from flatout.run.progress import Progress, Track
from flatout.types import Episodes
from flatout_explain.files import nofollow

NAMES: dict[str, dict[str, tuple[str, float]]] = {
    "flatout": {},
    "sb3": {
        "rollout/return_mean_100": ("rollout/ep_rew_mean", 1.0),
        "rollout/length_mean_100": ("rollout/ep_len_mean", 1.0),
        "rollout/episodes": ("time/episodes", 1.0),
        "time/steps_per_s": ("time/fps", 1.0),
        "time/wall_s": ("time/time_elapsed", 1.0),
        "train/policy_loss": ("train/policy_gradient_loss", 1.0),
        "train/entropy": ("train/entropy_loss", -1.0),
        "train/epsilon": ("rollout/exploration_rate", 1.0),
        "eval/return_mean": ("eval/mean_reward", 1.0),
        "eval/length_mean": ("eval/mean_ep_length", 1.0),
    },
    "cleanrl": {
        "rollout/return_mean_100": ("charts/episodic_return", 1.0),
        "rollout/length_mean_100": ("charts/episodic_length", 1.0),
        "time/steps_per_s": ("charts/SPS", 1.0),
        "train/learning_rate": ("charts/learning_rate", 1.0),
        "train/policy_loss": ("losses/policy_loss", 1.0),
        "train/value_loss": ("losses/value_loss", 0.5),
        "train/entropy": ("losses/entropy", 1.0),
        "train/approx_kl": ("losses/approx_kl", 1.0),
        "train/clip_fraction": ("losses/clipfrac", 1.0),
        "train/explained_variance": ("losses/explained_variance", 1.0),
        "train/loss": ("losses/td_loss", 1.0),
        "train/actor_loss": ("losses/actor_loss", 1.0),
        "train/ent_coef": ("losses/alpha", 1.0),
    },
}
"""For each library and each of our metrics: the library's name of it, and the factor of values."""


def renamed(row: dict[str, float], library: str) -> dict[str, float]:
    """Return a row of metrics under a library's names. Metrics that the library does not have keep
    Flatout's names."""
    names = NAMES[library]
    if not names:
        return row
    pairs = ((*names.get(name, (name, 1.0)), value) for name, value in row.items())
    return {name: factor * value for name, factor, value in pairs}


WANDB = "wandb"
"""The key of a run's project and id in Weights & Biases, in a snapshot's data and config.json."""

FLUSH_S = 10.0
"""Seconds after which TensorBoard's events are handed to the system."""

EPISODE_MEANS = ("loss", "actor_loss", "critic_loss", "epsilon", "replay_fill", "replay_mb")
"""The algorithm's and replay's scalars that an episode's row has."""

HIDDEN = ("episode", "env")
"""Fields of an episode's row that TensorBoard does not show."""


class JsonLines:
    """One object a row, ``step`` first. A resumed run cuts off what lies after its checkpoint, at
    `offset` bytes."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        with writing(path):
            self._file = nofollow.open_stream(path, nofollow.APPEND)
            self._begin = min(max(offset, 0), os.fstat(self._file.fileno()).st_size)
            self._file.truncate(self._begin)

    def log(self, rows: Sequence[dict[str, float]], step: int) -> None:
        """Write several rows of one step."""
        lines = "".join(json_text({"step": step} | row) + "\n" for row in rows)
        with writing(self._path):
            self._file.write(lines.encode())
            self._file.flush()  # a program that follows the file sees each row at once

    def sync(self) -> int:
        """Bring every row to disk; returns the file's length in bytes."""
        with writing(self._path):
            self._file.flush()
            nofollow.sync(self._file.fileno())
        return self._file.seek(0, os.SEEK_END)

    def begin_again(self) -> None:
        """Remove the rows of this process."""
        with writing(self._path):
            self._file.truncate(self._begin)

    def close(self) -> None:
        with writing(self._path):
            self._file.close()


class TensorBoard:
    """TensorBoard events; an earlier file's do not count from `purge_step` on, after a resume.

    Written here and now: tensorboardX's own `SummaryWriter` sends each event through a queue
    between processes to a thread, which cost more than a millisecond of a busy run.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        # The package before its modules: it imports them too, and where two members of a
        # population begin at once, each would wait for what the other imports.
        import tensorboardX  # noqa: F401  # isort: split
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.record_writer import RecordWriter

        self._event: Any = event_pb2
        self._summary: Any = summary_pb2
        self._folder = folder
        self._flushed = time.monotonic()
        with writing(folder):
            # Nobody can have put a link in the place of a name that is drawn here.
            now, drawn = time.time_ns(), secrets.token_hex(4)  # files are read in this order
            name = f"events.out.tfevents.{now // 10**9}.{socket.gethostname()}.{now}.{drawn}"
            self._writer = RecordWriter(str(folder / name))
        self._write(time.time(), file_version="brain.Event:2")
        if purge_step is not None:
            started = self._event.SessionLog(status=self._event.SessionLog.START)
            self._write(time.time(), step=purge_step, file_version="brain.Event:2")
            self._write(time.time(), step=purge_step, session_log=started)

    def log(self, values: Iterable[tuple[str, float]], step: int, when: float) -> None:
        """Write one event of a step, at a time since the epoch; a name may come again."""
        value = self._summary.Summary.Value
        summary = [value(tag=name, simple_value=number) for name, number in values]
        self._write(when, step=step, summary=self._summary.Summary(value=summary))

    def close(self) -> None:
        with writing(self._folder):
            try:
                with nofollow.may_not_sync():
                    self._writer.flush()
            finally:
                self._writer.close()

    def _write(self, when: float, **fields: Any) -> None:
        with writing(self._folder):
            event = self._event.Event(wall_time=when, **fields)
            self._writer.write(event.SerializeToString())
            if time.monotonic() - self._flushed > FLUSH_S:
                with nofollow.may_not_sync():
                    self._writer.flush()
                self._flushed = time.monotonic()


def wandb_run(project: str | None, known: Iterable[Any]) -> dict[str, str] | None:
    """Return the project and the id of a run in Weights & Biases, as `RunLogs` has them."""
    if project is None:
        return None
    for before in known:
        if isinstance(before, dict) and before.get("project") == project:
            name = str(before.get("id"))
            if re.fullmatch("[0-9a-f]{16}", name):
                return {"project": project, "id": name}
    return {"project": project, "id": secrets.token_hex(8)}


class WeightsAndBiases:
    """A run in Weights & Biases: the one with this id, which may have rows already.

    Raises:
        UsageError: the package is not installed, or the run cannot begin.
    """

    def __init__(self, run: Mapping[str, str], name: str, config: TrainConfig) -> None:
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError:
            raise UsageError(f"--wandb needs its package: {install('wandb')}.") from None
        try:
            self._run: Any = wandb.init(
                project=run["project"], id=run["id"], name=name, config=config.flat(),
                resume="allow",
            )  # fmt: skip
        except Exception as error:  # no account, no network, ...
            raise UsageError(
                f"--wandb {run['project']}: {with_full_stop(error)} With WANDB_MODE=offline "
                "it needs neither an account nor a network."
            ) from error

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Log a row, unless the run has it: a resumed run makes the last steps again."""
        if step >= self._run.step:
            self._run.log(dict(row), step)

    def close(self) -> None:
        self._run.finish()


class RunLogs:
    """Everything that a run logs to, from its first iteration to its end.

    Rows are in metrics.jsonl at once. TensorBoard and Weights & Biases cannot take them back: they
    receive them once it is known that the run does not begin again with another placement.

    Args:
        config: the run's settings.
        folder: where it is kept, if it is.
        known: candidates for `wandb`, from where the run was saved before; may be damaged.

    Attributes:
        track: its learning curve.
        wandb: its project and its id in Weights & Biases, if it is logged there. With the same id a
            run goes on there as one run.
        by_episode: whether every training episode gets a row.
    """

    def __init__(self, config: TrainConfig, folder: Path | None, known: Iterable[Any] = ()) -> None:
        self.track = Track()
        self.wandb = wandb_run(config.run.wandb, known)
        self.by_episode = self.opened = False
        self._config, self._folder = config, folder
        self._names = config.run.metric_names
        self._examples = 0 if config.hyper.acts else config.hyper.batch_size  # in a step
        self._rows = self._episodes = self._board = self._wandb = None
        self._held: list[Callable[[], None]] | None = []

    def open(self, progress: Progress, resumes: bool, episodes: bool, stack: ExitStack) -> None:
        """Open the files, unless they are open already.

        Args:
            progress: of the run so far.
            resumes: the folder may hold events that lie after `progress`.
            episodes: whether training episodes get rows, if the run has a folder.
            stack: closes the files.

        Raises:
            UsageError: the wandb package is not installed.
        """
        if self.opened:
            return
        self.opened, folder, run = True, self._folder, self._config.run
        self.by_episode = episodes and folder is not None
        if folder is not None:
            self._rows = JsonLines(folder / "metrics.jsonl", progress.metrics_bytes)
            stack.callback(self._rows.close)
            if run.tensorboard:
                self._board = TensorBoard(folder, progress.steps + 1 if resumes else None)
                stack.callback(self._board.close)
            if self.by_episode:
                self._episodes = JsonLines(folder / "episodes.jsonl", progress.episodes_bytes)
                stack.callback(self._episodes.close)
        if self.wandb is not None:
            name = self._config.env.env if folder is None else folder.name
            self._wandb = WeightsAndBiases(self.wandb, name, self._config)
            stack.callback(self._wandb.close)
        stack.callback(self.release)

    def begin_again(self) -> None:
        """Forget every row of this process; only before `release`."""
        self.track, self._held = Track(), []
        for file in (self._rows, self._episodes):
            if file is not None:
                file.begin_again()

    def release(self) -> None:
        """Show all rows so far, and each later row at once, because the run will not begin
        again."""
        held, self._held = self._held or (), None
        for show in held:
            show()

    def log_row(
        self, progress: Progress, wall_s: float, steps_per_s: float, phases: Mapping[str, float]
    ) -> None:
        """Log the metrics since the last row; docs/metrics.md describes every key.

        Args:
            phases: their shares of the time.
        """
        row = {"time/wall_s": wall_s, "time/steps_per_s": steps_per_s}
        if self._examples:
            row["time/examples_per_s"] = steps_per_s * self._examples
        shares = {f"phase/{name}": share for name, share in phases.items()}
        row |= progress.drain({"step", *row, *shares}) | shares
        self.track.add(progress.steps, row)
        if self._rows is not None:
            self._rows.log([row], progress.steps)
        row = renamed(row, self._names)
        self._show_on_board(row.items(), progress.steps)
        if self._wandb is not None:
            self._show(partial(self._wandb.log, row, progress.steps))

    def log_episodes(self, episodes: Episodes, progress: Progress) -> None:
        """Write the episodes that an iteration ended to ``episodes.jsonl`` and TensorBoard.

        Losses, epsilon and replay are means over the iterations since an episode last ended (with
        one environment: over the episode's own).
        """
        if self._episodes is None:
            return
        sums, rows = progress.since_episode, list[dict[str, float]]()
        means = {name: sums[name][0] / sums[name][1] for name in EPISODE_MEANS if name in sums}
        progress.since_episode.clear()
        first = progress.episodes - len(episodes.env)
        columns = (array.tolist() for array in episodes)
        for number, (env, total, length, q_max) in enumerate(zip(*columns, strict=True), first):
            row: dict[str, float] = {"return": total, "length": length, "env": env}
            if q_max == q_max:  # NaN where the algorithm has none
                row["q_max"] = q_max
            rows.append({"episode": number} | row | means)
        self._episodes.log(rows, progress.steps)
        shown = ((f"episode/{n}", v) for row in rows for n, v in row.items() if n not in HIDDEN)
        self._show_on_board(shown, progress.steps)

    def _show_on_board(self, values: Iterable[tuple[str, float]], step: int) -> None:
        if self._board is not None:
            self._show(partial(self._board.log, list(values), step, time.time()))

    def _show(self, show: Callable[[], None]) -> None:
        if self._held is None:
            show()
        else:
            self._held.append(show)

    def sync(self, progress: Progress) -> None:
        """Bring every row to disk, and keep the files' lengths for a resumed run."""
        if self._rows is not None:
            progress.metrics_bytes = self._rows.sync()
        if self._episodes is not None:
            progress.episodes_bytes = self._episodes.sync()
