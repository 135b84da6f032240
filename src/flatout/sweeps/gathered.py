"""Transfer of run folders between machines as bytes; they are signed again on arrival."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from flatout.config.settings import resolve
from flatout.errors import CheckpointError, FlatoutError, writing
from flatout.populations.members import FOLDER
from flatout.storage import signing, trees
from flatout.storage.agent_file import AGENT_FILES
from flatout.storage.checkpoint import checkpoints
from flatout.storage.run_folder import POPULATION
from flatout.storage.trust import code_of_run, reaching_of
from flatout.sweeps.engine import Job
from flatout.sweeps.plan import Trial
from flatout_explain.files import nofollow

PIECE = 16 << 20
"""Bytes that are read and sent at a time."""

METRICS = "metrics.jsonl"

ARRIVING = ".arriving"
"""The subfolder of a sweep's folder for job folders that have arrived only in part."""

BEFORE = ".old"
"""The subfolder of `ARRIVING` for the version of a job's folder that is being replaced."""

Piece = tuple[str, int, bytes]
"""A file's name within its folder, the offset of these bytes in the file, and the bytes."""


class Leaving:
    """A folder that is sent, some pieces at a time.

    Args:
        done: whether the job has ended, so that the whole folder is sent. Otherwise what a resumed
            job needs is sent: of checkpoints only the newest.

    Attributes:
        saved: the newest checkpoints in the folder.
        metrics: the number of bytes sent of each file of metrics.
        first: whether nothing has been sent yet.
    """

    def __init__(self, folder: Path, done: bool) -> None:
        self.saved = newest(folder)
        self.metrics, self.first = dict[str, int](), True
        self._pieces = pieces(folder, None if done else self.saved)

    def take(self) -> tuple[list[Piece], bool, bool]:
        """Return the next pieces, whether they are the last, and whether the folder sent is
        complete. It is not if the run has removed a checkpoint meanwhile."""
        some, size, self.first = list[Piece](), 0, False
        for piece in self._pieces:
            some.append(piece)
            size += len(piece[2])
            if PurePosixPath(piece[0]).name == METRICS:
                self.metrics[piece[0]] = piece[1] + len(piece[2])
            if size >= PIECE:
                return some, False, False
        return some, True, all(path.is_dir() for path in self.saved)


def newest(folder: Path) -> frozenset[Path]:
    """Return the newest checkpoint of a run, or of each program of a population."""
    inside = {path.parent.parent for path in trees.walk(folder)}
    found = [checkpoints(folder / path) for path in inside if path.name == "checkpoints"]
    return frozenset(steps[-1] for steps in found if steps)


def pieces(folder: Path, saved: frozenset[Path] | None = None) -> Iterator[Piece]:
    """Yield the files of a folder in pieces, without unfinished files; of checkpoints only `saved`.

    Files that the run removes meanwhile, such as older checkpoints, are left out.
    """
    for inside in trees.walk(folder):
        path, depth = folder / inside, len(inside.parts)
        if saved is not None and path.parent.name.startswith("step_") and path.parent not in saved:
            continue
        with (
            suppress(FileNotFoundError, nofollow.NotOrdinaryError),
            nofollow.open_stream(path, depth=depth) as file,
        ):
            offset = 0
            while (data := file.read(PIECE)) or not offset:
                yield str(inside), offset, data
                offset += len(data) or 1


def put(folder: Path, piece: Piece) -> None:
    """Write a piece that another machine has sent.

    Raises:
        FlatoutError: its name leads out of the folder, or it cannot be written.
    """
    name, offset, data = piece
    parts = PurePosixPath(name).parts
    if not parts or not all(map(nofollow.is_plain_name, parts)):
        raise FlatoutError(f"a worker sent a file of an impossible name: {name[:100]!r}.")
    path = folder.joinpath(*parts)
    with writing(path):
        with nofollow.folder(path.parent, len(parts) - 1, make=True):
            pass
        with nofollow.open_stream(path, nofollow.CHANGE, len(parts)) as file:
            file.truncate(offset)
            file.seek(offset)
            file.write(data)


def settle(arrived: Path, job: Job) -> None:
    """Sign a job's folder that has arrived completely, and replace the folder's earlier version.

    Only jobs that this command has started arrive here. Settings are signed with this user's key
    only if they name the same code and files as their trial.

    Raises:
        FlatoutError: it cannot be written.
    """
    folder = Path(job.folder)
    _sign(arrived, folder, job.trials[0])
    for trial in job.trials if job.population else ():
        _sign(arrived / FOLDER / trial.name, folder / FOLDER / trial.name, trial)
    before = arrived.parent / BEFORE / arrived.name
    with writing(folder):
        _put_back(before, folder)
        with suppress(FileNotFoundError):
            trees.move(folder, before)
        try:
            trees.move(arrived, folder)
        finally:
            with suppress(OSError):
                _put_back(before, folder)
                before.parent.rmdir()


def recover(sweep: Path) -> None:
    """Restore the folders that a killed sweep was replacing, and remove those that had arrived in
    part.

    Args:
        sweep: the sweep's folder.

    Raises:
        OSError: a folder cannot be restored. Nothing is removed then.
    """
    arriving = sweep / ARRIVING
    with (
        suppress(FileNotFoundError, nofollow.NotOrdinaryError),
        nofollow.folder(arriving / BEFORE, 2) as opened,
    ):
        for name in filter(nofollow.is_plain_name, os.listdir(opened.listed)):
            _put_back(arriving / BEFORE / name, sweep / name)
    trees.remove_tree(arriving)


def _put_back(before: Path, folder: Path) -> None:
    """Move a folder back, or remove it if its path is in use again."""
    if os.path.lexists(folder):
        trees.remove_tree(before)
    else:
        with suppress(FileNotFoundError):
            trees.move(before, folder)


def _sign(arrived: Path, folder: Path, trial: Trial) -> None:
    """Sign a run's files again, with their final path."""
    from flatout.storage import checkpoint

    for name, kind in (("config.json", signing.RUN), (POPULATION, signing.RUN),
                       ("summary.json", None)):  # fmt: skip
        with suppress(OSError, ValueError, LookupError, TypeError, FlatoutError):
            values = nofollow.read_json(arrived / name)
            holder = values["settings"] if kind else values
            if "run_dir" in holder:
                holder["run_dir"] = str(
                    folder / FOLDER / trial.name if name == POPULATION else folder
                )
            if kind:
                values = _signed(kind, values, values, trial)
            nofollow.replace(arrived / name, (json.dumps(values, indent=2) + "\n").encode())
    for name in AGENT_FILES:
        with suppress(OSError, ValueError, LookupError, TypeError, FlatoutError):
            arrays, metadata = checkpoint.load_agent(arrived / name)
            metadata["config"]["settings"]["run_dir"] = str(folder)
            metadata = _signed(signing.AGENT, metadata, metadata["config"], trial)
            metadata.pop(signing.SIGNATURE, None)
            checkpoint.save_agent(arrived / name, arrays, metadata)


def _signed(
    kind: str, values: Mapping[str, Any], told: Mapping[str, Any], trial: Trial
) -> dict[str, Any]:
    """Return values with this user's signature.

    Raises:
        CheckpointError: their settings name other code or files than the trial's.
    """
    found = reaching_of(resolve(str(told["algorithm"]), told["settings"]))
    if found != reaching_of(trial.config()):
        raise CheckpointError(f"{trial.name} came back with other settings.")
    code = code_of_run(trial.config())
    rest = {name: value for name, value in values.items() if name != signing.SIGNATURE}
    return signing.signed(kind, rest | {signing.CODE: code})
