"""The files that a run saves in its folder: checkpoints, agents, and at its end a summary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.config.schema import TrainConfig
from flatout.engine.programs import Programs
from flatout.engine.schedule import Schedule
from flatout.errors import CheckpointError
from flatout.output import json_text, shell_word
from flatout.run.card import leave
from flatout.run.progress import Progress
from flatout.run.resume import Found
from flatout.spans import Spans
from flatout.storage import checkpoint
from flatout.storage.agent_file import BEST, FINAL, save_parameters
from flatout.storage.run_folder import GROUPS, POPULATION, RunFolder, final_summary
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
        """Return the checkpoint that the run resumes from; None if nothing was saved yet.

        Args:
            note: receives sentences for the user.

        Raises:
            CheckpointError: it is damaged, or only the whole population can go on.
        """
        folder, together = self._folder, self._together
        if folder is None:
            return None
        found = None if together is None else together.saved(self._member)
        population = folder.path.absolute().parent.parent
        joint = (population / GROUPS).glob("*/checkpoints/*")
        alone = together is None and not checkpoint.checkpoints(folder.checkpoints)
        if alone and (population / POPULATION).exists() and any(joint):
            raise CheckpointError(
                f"{folder.path} is a member of a population, whose checkpoints hold all members; "
                f"resume all of them: flatout train --resume {shell_word(population)}"
            )
        if found is None and not folder.has_saved:
            note("nothing was saved yet: the run starts again from the beginning")
            return None
        path, step, saved = checkpoint.load_latest(folder.path) if found is None else found
        with checkpoint.reading(path):
            progress = Progress.from_json(saved.data["progress"])
            if progress.steps != step:
                raise CheckpointError(f"its counters are of step {progress.steps:,}.")
        return path, saved, progress

    def nothing_left(
        self, progress: Progress, note: Callable[[str], None]
    ) -> dict[str, Any] | None:
        """Return the summary of a run that has ended and has reached all that the settings ask for,
        and say so; None for any other run. Members of one program end together.

        Args:
            progress: of its newest checkpoint.
            note: receives a sentence for the user.
        """
        if self._folder is None or self._together is not None:
            return None
        run, summary = self._config.run, final_summary(self._folder.path)
        why = progress.ended(run.steps, run.stop_at_return)
        if summary is None or not why or summary["steps"] != progress.steps:
            return None
        words = (
            f"the run has made all of its {progress.steps:,} steps; to continue, name a larger "
            f"total: --steps {2 * max(run.steps, progress.steps)}"
        )
        if why == "return":
            words = (
                f"the run ended after {progress.steps:,} steps, when it had reached "
                f"--stop-at-return {run.stop_at_return:g}; to continue, name a larger return"
            )
        note(words)
        return summary

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

    def is_due(self, progress: Progress) -> bool:
        """Return whether the newest checkpoint is of an earlier iteration than this one."""
        return self._folder is not None and self._saved != progress.iterations

    def save(self, progress: Progress, state: Callable[[], Snapshot], apart: bool = False) -> None:
        """Write a checkpoint unless the newest one is of this iteration. One of several members
        adds its state to the checkpoint of all, or writes a separate one if `apart`."""
        together = None if apart else self._together
        if self._folder is None or not (apart or self.is_due(progress)):
            return
        with self._folder.checked(), self._spans.span("checkpoint"):
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
        with self._folder.checked(), self._spans.span("checkpoint"):
            save_parameters(
                self._folder.path / BEST, self._config, schedule.learned(optimiser=False),
                progress.best_return, steps=progress.steps,
            )  # fmt: skip

    def save_final(self, progress: Progress, snapshot: Snapshot, ended: str) -> None:
        """Write the final parameters unless a signal ended the run, which can then be resumed."""
        if self._folder is None:
            return
        with self._folder.checked():
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
        with self._folder.checked():
            self._folder.write_json("summary.json", summary)
            leave(self._folder.path, self._config, summary, code)
        if self._spans.trace:
            trace = json_text(self._spans.chrome_trace())
            nofollow.replace(self._folder.path / "trace.json", trace.encode())
