"""A place of a Ray cluster: a process on one of its machines that trains the command's jobs.

It receives and sends arguments, JSON and bytes only.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatout.errors import UsageError
from flatout.storage import trees
from flatout.sweeps.engine import SHARE, Local
from flatout.sweeps.gathered import METRICS, PIECE, Leaving, Piece, newest, put
from flatout.sweeps.plan import read_job
from flatout.version import __version__
from flatout_explain.files import locks, nofollow

HOME_S, PART = 5.0, 20.0
"""Minimum seconds between two transfers of a running job's checkpoints, and how many seconds more
for each second that a transfer takes, so that transfers take a small share of the time."""

POLL_S, NEW_S = 0.25, 60.0
ROOT = "flatout-ray-"

ChunkOutput = tuple[str, list[Piece]]
"""A place's answer: JSON, and pieces of a folder. The JSON holds events, new lines of metrics,
whether these are the folder's first pieces, and whether the folder is now complete."""


class Place:
    """A training process on a machine of the cluster, and the folders of its jobs.

    Args:
        told: JSON of the command's `sys.path`, the number of trials that share a GPU (0 uses no
            GPU), and the command's version.
    """

    def __init__(self, told: str) -> None:
        path, per, version = json.loads(told)
        if version != __version__:
            raise UsageError(
                f"Flatout {__version__} is installed on {socket.gethostname()} of the Ray cluster, "
                f"and {version} here: install the same."
            )
        sys.path += [entry for entry in path if entry not in sys.path and os.path.isdir(entry)]
        _sweep_up()
        self._root = Path(tempfile.mkdtemp(prefix=ROOT))
        self._lock = locks.Lock(self._root / locks.LOCK)
        self._local = Local(self._lock.fileno(), _card(per))
        self._local.warm(1)
        self._forget("")

    def _forget(self, job: str) -> None:
        self._folder = self._root / (job or "none")
        self._held, self._over = list[Mapping[str, Any]](), False
        self._read = dict[str, int]()  # bytes of metrics that were sent
        self._leaving: Leaving | None = None
        self._sent = frozenset[Path]()  # checkpoints
        self._next = 0.0  # when the next ones may be sent

    def put(self, job: str, piece: Piece) -> None:
        name, offset, data = piece
        put(self._root, (f"{job}/{name}", offset, data))

    def start(self, text: str, *arrived: None) -> ChunkOutput:
        """Start a job after the files that it resumes from have arrived."""
        job = read_job(text)
        self._forget(job.name)
        self._sent = newest(self._folder)
        self._local.start(replace(job, folder=str(self._folder)))
        return self._tell([], [])

    def poll(self) -> ChunkOutput:
        """Return the events since the last call. New checkpoints are sent while the job runs; when
        it has ended, its folder is sent before the last event."""
        events = list[Mapping[str, Any]]()
        if not self._over:
            for event in self._local.poll(POLL_S):
                ends = event.keys() & {"ended", "error", "done"}
                (self._held if ends else events).append(event)
                self._over = self._over or "done" in event
            if self._over:
                self._leaving = Leaving(self._folder, True)
            elif self._leaving is None and time.monotonic() > self._next:
                self._next = time.monotonic() + HOME_S
                if newest(self._folder) - self._sent:
                    self._leaving = Leaving(self._folder, False)
        if (leaving := self._leaving) is None:
            return self._tell(events, [])
        began, first = time.monotonic(), leaving.first
        some, last, whole = leaving.take()
        self._next = max(self._next, time.monotonic() + HOME_S) + PART * (time.monotonic() - began)
        if last:
            self._leaving = None
        if whole:
            self._sent, self._read = leaving.saved, leaving.metrics
        if last and self._over:
            events += self._held
            with suppress(OSError):
                trees.remove_tree(self._folder)
        return self._tell(events, some, first, whole)

    def _tell(
        self, events: list[Mapping[str, Any]], some: list[Piece], first: bool = False,
        whole: bool = False,
    ) -> ChunkOutput:  # fmt: skip
        lines = dict[str, tuple[int, str]]()
        for inside in trees.walk(self._folder) if events and not some else ():
            if inside.name != METRICS:
                continue
            path, depth = self._folder / inside, len(inside.parts)
            with suppress(OSError), nofollow.open_stream(path, depth=depth) as file:
                name, size = str(inside), os.fstat(file.fileno()).st_size
                offset = self._read.get(name, 0)
                offset = 0 if size < offset else offset  # a resumed run has cut it
                file.seek(offset)
                text = file.read(PIECE)
                text = text[: text.rfind(b"\n") + 1]
                lines[name] = offset, text.decode(errors="replace")
                self._read[name] = offset + len(text)
        return json.dumps([events, lines, first, whole]), some

    def stop(self, job: str) -> None:
        self._local.stop(job)

    def close(self) -> None:
        self._local.close()
        with suppress(OSError):
            trees.remove_tree(self._root)
        self._lock.close()


def _card(per: int) -> list[dict[str, str]]:
    """Return the environment variable that limits a process to its share of the GPU's memory."""
    if not per:
        return []
    from flatout.hardware.inventory import inventory

    for gpu in inventory().usable_gpus:
        part = SHARE * min(1.0 / per, gpu.memory_free_mb / gpu.memory_total_mb)
        return [{"XLA_CLIENT_MEM_FRACTION": f"{part:.3f}"}]
    return []


def _sweep_up() -> None:
    """Remove the folders of killed places from this machine."""
    for root in Path(tempfile.gettempdir()).glob(f"{ROOT}*"):
        with suppress(OSError):
            if time.time() - root.stat().st_mtime < NEW_S:  # another place, which is just starting
                continue
            if not locks.in_use(root / locks.LOCK, 2):
                trees.remove_tree(root)
