"""What a resumed run goes on from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flatout.errors import CheckpointError
from flatout.run.progress import Progress
from flatout.schedules.together import Together
from flatout.storage import checkpoint
from flatout.storage.run_folder import GROUPS, POPULATION, RunFolder
from flatout.types import Snapshot


def newest(
    folder: RunFolder, steps: int, note: Callable[[str], None], together: Together | None = None,
    member: int = 0,
) -> tuple[Path, Snapshot, Progress] | None:  # fmt: skip
    """The newest checkpoint, its file, and the run's counters; None if nothing was saved yet.

    Args:
        steps: of the run as it is asked for now.
        note: receives sentences for the user.
        together, member: the run is this member of several, whose checkpoint may be one.

    Raises:
        CheckpointError: it is damaged, or only the whole population can go on.
    """
    found = None if together is None else together.saved(member)
    population = folder.path.absolute().parent.parent
    if found is None and together is None and not checkpoint.checkpoints(folder.checkpoints) and (
        (population / POPULATION).exists() and any((population / GROUPS).glob("*/checkpoints/*"))
    ):  # fmt: skip
        raise CheckpointError(
            f"{folder.path} is a member of a population, whose checkpoints hold all members; go on "
            f"with all of them: flatout train --resume {population}"
        )
    if found is None and not folder.has_saved:
        note("nothing was saved yet: the run begins again from its start")
        return None
    if found is None:
        path = checkpoint.latest(folder.path)
        found = path, *checkpoint.load(path)
    path, step, saved = found
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
