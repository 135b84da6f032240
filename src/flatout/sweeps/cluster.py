"""The engine of a Ray cluster: jobs run on its machines, run folders come back to this one.

Messages consist of arguments, JSON and bytes. Ray pickles these, and the name of the class `Place`,
by its own rules: with the workers of a run on a cluster the one exception to the rule that nothing
from a network is unpickled.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.errors import FlatoutError, writing
from flatout.hardware.ray_cluster import refuse_silent
from flatout.output import shell_word
from flatout.storage import trees
from flatout.storage.run_folder import POPULATION, mark_own
from flatout.sweeps.engine import LOST
from flatout.sweeps.gathered import ARRIVING, pieces, put, recover, settle
from flatout.sweeps.place import Place
from flatout.sweeps.plan import Job
from flatout.version import __version__

CLOSE_S = 5.0


@dataclass
class Seat:
    """The command's handle of a `Place`.

    Attributes:
        ref: the reference to its next answer.
        job: the job that it trains.
        told: whether it has answered since this job was sent.
    """

    actor: Any
    ref: Any = None
    job: Job | None = None
    told: bool = False


class Cluster:
    """Runs jobs on a cluster; see `flatout.sweeps.engine.Engine`.

    Args:
        ray: the module that `connect` returns.
        folder: the sweep's folder.
        per: the number of trials that share a GPU; 0 uses no GPU.
    """

    def __init__(self, ray: Any, folder: Path, per: int) -> None:
        self._ray, self._arriving, self._per = ray, folder / ARRIVING, per
        self._seats, self._events = list[Seat](), list[Mapping[str, Any]]()
        self._address, self._gone = ray.get_runtime_context().gcs_address, False
        part = {"num_gpus": 1.0 / per} if per else {"num_gpus": 0}
        self._place = ray.remote(num_cpus=1, max_restarts=0, **part)(Place)

    def warm(self, count: int) -> None:
        """Start up to `count` places, which import libraries before their first job."""
        while len(self._seats) < count:
            self._seats.append(self._seat())

    def _seat(self) -> Seat:
        path = [entry or os.getcwd() for entry in sys.path]
        return Seat(self._place.remote(json.dumps([path, self._per, __version__])))

    def start(self, job: Job) -> None:
        seat = next((seat for seat in self._seats if seat.job is None), None)
        if seat is None:
            self._seats.append(seat := self._seat())
        seat.job, seat.told, folder = job, False, Path(job.folder)
        begun = (folder / (POPULATION if job.population else "config.json")).exists()
        sent = [seat.actor.put.remote(job.name, one) for one in (pieces(folder) if begun else ())]
        seat.ref = seat.actor.start.remote(job.as_json().decode(), *sent)

    def poll(self, timeout_s: float) -> list[Mapping[str, Any]]:
        events, self._events = self._events, []
        seats = {seat.ref: seat for seat in self._seats if seat.job is not None}
        if not seats:
            time.sleep(0 if events else timeout_s)
            return events
        self._ray.wait(list(seats), num_returns=1, timeout=0 if events else timeout_s)
        ready, _ = self._ray.wait(list(seats), num_returns=len(seats), timeout=0)
        return events + [event for ref in ready for event in self._hear(seats[ref])]

    def _hear(self, seat: Seat) -> Iterator[Mapping[str, Any]]:
        """Yield the events in a place's answer, after its files are written."""
        job = seat.job
        assert job is not None
        arriving = self._arriving / job.name
        try:
            text, some = self._ray.get(seat.ref)
            events, lines, first, whole = json.loads(text)
            if first:
                with writing(arriving):
                    trees.remove_tree(arriving, 2)
            for piece in some:
                put(arriving, piece)
            for name, (offset, rows) in lines.items():
                put(Path(job.folder), (name, offset, rows.encode()))
                lines_of = Path(job.folder, name).parent  # the run itself may never come home
                mark_own(lines_of, len(Path(name).parts))
            if whole:
                settle(arriving, job)
        except (self._ray.exceptions.RayError, FlatoutError) as error:
            yield from self._lost(seat, job, error)
            return
        over = bool(events and "done" in events[-1])
        seat.ref = None if over else seat.actor.poll.remote()
        seat.job, seat.told = None if over else job, True
        yield from events

    def _lost(self, seat: Seat, job: Job, error: Exception) -> Iterator[Mapping[str, Any]]:
        """Remove a place that was lost, and yield the failures of its trials.

        Raises:
            FlatoutError: the whole cluster was lost.
        """
        try:  # before Ray finds out, which ends this process without a message
            refuse_silent(self._address)
        except FlatoutError:
            self._gone = True
            raise FlatoutError(
                f"the Ray cluster at {self._address} was lost. The results that had "
                "arrived are saved; resume with: flatout sweep --resume "
                f"{shell_word(self._arriving.parent)}"
            ) from None
        self._remove(seat)
        with suppress(OSError):
            trees.remove_tree(self._arriving / job.name, 2)
        why, kind = self._why(error)
        for trial in job.trials:
            yield {"trial": trial.name, "error": why, "kind": kind}
        yield {"done": job.name}

    def _why(self, error: Exception) -> tuple[str, str]:
        """Return the error of a lost trial as a sentence, and the kind of failure."""
        known, text = self._ray.exceptions, str(error).strip()
        if isinstance(error, FlatoutError):
            return str(error), "free"
        if "ModuleNotFoundError" in text and "flatout" in text:
            return "Flatout is not installed on a machine of the Ray cluster.", "usage"
        if isinstance(error, known.OutOfMemoryError):
            return "its Ray worker was killed because its machine's memory ran out.", "room"
        if "creation task" in text or isinstance(error, known.RayTaskError):
            kind = "usage" if "UsageError" in text else "died"
            return f"its Ray worker failed: {text.rpartition('Error: ')[2][:300]}", kind
        return "its Ray worker died: it was killed, or its machine was lost.", LOST

    def _remove(self, seat: Seat) -> None:
        self._seats.remove(seat)
        with suppress(Exception):
            self._ray.kill(seat.actor)

    def stop(self, job: str) -> None:
        for seat in [one for one in self._seats if one.job is not None and one.job.name == job]:
            assert seat.job is not None
            if seat.told:
                seat.actor.stop.remote(job)
                continue
            self._remove(seat)  # it has not begun: the cluster may have no room for it
            self._events += [{"trial": one.name, "ended": "signal"} for one in seat.job.trials]
            self._events.append({"done": job})

    def close(self) -> None:
        with suppress(OSError):
            recover(self._arriving.parent)
        if self._gone:
            return
        ended = [seat.actor.close.remote() for seat in self._seats]
        with suppress(Exception):  # those that are gone, or wait for a machine
            self._ray.wait(ended, num_returns=len(ended), timeout=CLOSE_S)
        for seat in list(self._seats):
            self._remove(seat)
        self._ray.shutdown()
