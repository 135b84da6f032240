"""What a resumed run goes on from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flatout.errors import CheckpointError
from flatout.run.progress import Progress
from flatout.storage import checkpoint
from flatout.storage.run_folder import RunFolder
from flatout.types import Snapshot


def newest(
    folder: RunFolder, steps: int, note: Callable[[str], None]
) -> tuple[Path, Snapshot, Progress] | None:
    """The newest checkpoint, its file, and the run's counters; None if nothing was saved yet.

    Args:
        steps: of the run as it is asked for now.
        note: receives sentences for the user.

    Raises:
        CheckpointError: it is damaged.
    """
    if not folder.has_saved:
        note("nothing was saved yet: the run begins again from its start")
        return None
    path = checkpoint.latest(folder.path)
    step, saved = checkpoint.load(path)
    with checkpoint.reading(path):
        progress = Progress.from_json(saved.data["progress"])
        if progress.steps != step:
            raise CheckpointError(f"its counters are of step {progress.steps:,}.")
    if folder.ended and progress.steps >= steps:
        note(
            f"the run has made all of its {progress.steps:,} steps; to go on, name a larger total: "
            f"--steps {2 * steps}"
        )
    return path, saved, progress
