"""The files that a run saves in its folder: checkpoints, agents, and at its end a summary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.config.schema import TrainConfig
from flatout.engine.programs import Programs
from flatout.engine.schedule import Schedule
from flatout.output import json_text
from flatout.run.card import leave
from flatout.run.progress import Progress
from flatout.run.resume import Found, newest, nothing_left
from flatout.spans import Spans
from flatout.storage import checkpoint
from flatout.storage.agent_file import BEST, FINAL, save_parameters
from flatout.storage.run_folder import RunFolder
from flatout.storage.segments import SegmentStore
from flatout.types import Snapshot, UserCode
from flatout_explain.files import nofollow


class Saver:
    """Writes a run's state into its folder and reads it; without a folder it does nothing.

    Args:
        config: the run's settings.
        folder: the run's folder; None saves nothing.
        spans: the run's.
        programs: they may make the run one of several members, whose checkpoint is one.
    """

    def __init__(
        self, config: TrainConfig, folder: RunFolder | None, spans: Spans, programs: Programs | None
    ) -> None:
        self._config, self._folder, self._spans = config, folder, spans
        self._store = None if folder is None else SegmentStore(folder.path / checkpoint.REPLAY)
        together = None if programs is None else programs.together
        self._together = None if together is None or together.group is None else together
        self._member = 0 if programs is None else programs.member
        self._saved = -1  # the iteration that the newest checkpoint of this process holds

    def newest(self, note: Callable[[str], None]) -> Found | None:
        """Return the checkpoint that the run resumes from; see `flatout.run.resume.newest`."""
        if self._folder is None:
            return None
        return newest(self._folder, note, self._together, self._member)

    def nothing_left(
        self, progress: Progress, note: Callable[[str], None]
    ) -> dict[str, Any] | None:
        """Return the summary of a run that has nothing left to do; see `flatout.run.resume`.
        Members of one program end together."""
        if self._folder is None or self._together is not None:
            return None
        return nothing_left(self._folder, progress, self._config, note)

    def restore(self, schedule: Schedule, path: Path, saved: Snapshot) -> list[str]:
        """Bring a schedule to a checkpoint's state; returns sentences for the user.

        Raises:
            CheckpointError: it does not fit the run, or is damaged.
        """
        with checkpoint.reading(path):
            notes = schedule.restore(saved)
            if self._folder is not None and path.parent.parent == self._folder.path:
                assert self._store is not None
                self._store.resume(checkpoint.references(path))
                checkpoint.remove_unused(path.parent, self._store)
        return notes

    def save(self, progress: Progress, state: Callable[[], Snapshot], apart: bool = False) -> None:
        """Write a checkpoint unless the newest one is of this iteration. One of several members
        adds its state to the checkpoint of all, or writes a separate one if `apart`."""
        together = None if apart else self._together
        if self._folder is None or (self._saved == progress.iterations and not apart):
            return
        self._folder.check()
        with self._spans.span("checkpoint"):
            snapshot = state()
            if together is not None:
                together.save(self._member, progress.steps, snapshot)
                self._save_final(progress, snapshot)
            else:
                checkpoint.save(
                    self._folder.checkpoints, progress.steps, snapshot,
                    self._config.run.keep_checkpoints, self._store,
                )  # fmt: skip
        self._saved = progress.iterations

    def save_last(self, progress: Progress, state: Callable[[], Snapshot], ended: str) -> None:
        """Write a run's last checkpoint; `ended` is the reason of its end, as in the summary."""
        together, early = self._together, ended not in ("steps", "signal")
        if together is None or not early:
            self.save(progress, state)
        if together is not None and ended != "signal" and (early or together.group.save_each):
            self.save(progress, state, apart=True)

    def save_best(self, progress: Progress, schedule: Schedule) -> None:
        """Write the parameters with the best evaluation so far."""
        if self._folder is None:
            return
        self._folder.check()
        with self._spans.span("checkpoint"):
            save_parameters(
                self._folder.path / BEST, self._config, schedule.learned(optimiser=False),
                progress.best_return, steps=progress.steps,
            )  # fmt: skip

    def save_final(self, progress: Progress, snapshot: Snapshot, ended: str) -> None:
        """Write the final parameters unless a signal ended the run, which can then be resumed."""
        if self._folder is None:
            return
        self._folder.check()
        if ended != "signal":
            with self._spans.span("checkpoint"):
                self._save_final(progress, snapshot)

    def _save_final(self, progress: Progress, snapshot: Snapshot) -> None:
        assert self._folder is not None
        mean = progress.return_mean_100
        save_parameters(
            self._folder.path / FINAL, self._config, snapshot.arrays, mean, steps=progress.steps
        )

    def leave(self, summary: dict[str, Any], code: UserCode) -> None:
        """Write the summary, the model card and the curve."""
        if self._folder is None:
            return
        self._folder.write_json("summary.json", summary)
        leave(self._folder.path, self._config, summary, code)
        if self._spans.trace:
            trace = json_text(self._spans.chrome_trace())
            nofollow.replace(self._folder.path / "trace.json", trace.encode())
