"""Where a run continues: a member's own checkpoint may be older than its population's."""

from __future__ import annotations

from pathlib import Path

from flatout.errors import CheckpointError
from flatout.output import shell_word
from flatout.run.resume import newest_step
from flatout.storage import checkpoint
from flatout.storage.run_folder import GROUPS, POPULATION
from flatout_explain.files import nofollow


def continues_at(folder: Path) -> int:
    """Return the step of a run folder's newest checkpoint; 0 where there is none.

    Members that are trained in one program share their checkpoints. Each writes one of its own when
    the population ends, which is old once the population has continued.

    Raises:
        CheckpointError: a newer checkpoint of all members holds the state of this one, too, whose
            later steps would be lost.
    """
    own, population = newest_step(folder), folder.absolute().parent.parent
    if not own or not (population / POPULATION).exists():
        return own
    for group in (population / GROUPS).glob("*"):
        for path in checkpoint.checkpoints(group / "checkpoints"):
            step = int(path.name.removeprefix("step_"))
            if step > own and folder.absolute().name in _members(path):
                raise CheckpointError(
                    f"{folder} is a member of a population: its own checkpoint is of step "
                    f"{own:,}, and one of all members is of step {step:,}; resume all of them, "
                    f"until they end: flatout train --resume {shell_word(population)}"
                )
    return own


def _members(path: Path) -> list[str]:
    """Return the members whose state a checkpoint holds."""
    try:
        with checkpoint.reading(path):
            data = nofollow.read_json(path / checkpoint.DATA, 3, checkpoint.MOST_JSON)
            return [str(name) for name in data["data"]["members"]]
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {error.strerror}.") from error
