"""Where metrics go: JSON lines, TensorBoard, Weights & Biases, behind one small protocol."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, Protocol

from flatout.errors import FlatoutError, UsageError


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
        try:
            self._file = open(path, "ab")  # noqa: SIM115 - open for the run
            self._file.truncate(min(offset, path.stat().st_size))
        except OSError as error:
            raise FlatoutError(f"cannot write {path}: {error.strerror}.") from error

    def log(self, row: dict[str, float], step: int) -> None:
        """Append one row.

        Raises:
            FlatoutError: the disk is full.
        """
        clean = {name: value if math.isfinite(value) else None for name, value in row.items()}
        self._guard(lambda: self._file.write(json.dumps({"step": step} | clean).encode() + b"\n"))

    def sync(self) -> int:
        """Bring every row to disk; returns the file's length in bytes."""

        def write() -> None:
            self._file.flush()
            os.fsync(self._file.fileno())

        self._guard(write)
        return self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Flush and close."""
        self._guard(self._file.close)

    def _guard(self, write: Any) -> None:
        try:
            write()
        except OSError as error:
            raise FlatoutError(f"cannot write {self._path}: {error.strerror}.") from error


class TensorBoard:
    """TensorBoard events; after a resume, later events of the interrupted run are purged."""

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(
            str(folder), purge_step=purge_step, flush_secs=10, write_to_disk=True
        )

    def log(self, row: dict[str, float], step: int) -> None:
        """Write one event that holds the whole row."""
        from tensorboardX.proto.summary_pb2 import Summary  # type: ignore[attr-defined]

        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
        assert self._writer.file_writer is not None
        self._writer.file_writer.add_summary(Summary(value=values), step)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


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
