"""A worker's side of a Ray cluster: a Ray actor, in front of an actor process on its machine.

`flatout.engine.workers.remote` makes it. The actor process shares memory with this one, as it would
with the run's process; what the run would read there travels in the answers.
"""

from __future__ import annotations

import pickle
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from flatout.engine.workers.link import LinkEnd
from flatout.engine.workers.pool import MachineLost, Worker, WorkerLost
from flatout.engine.workers.protocol import LASTING, OUTPUTS, PARAMS, SPENT, Job
from flatout.engine.workers.shared_memory import Fields, SharedArrays
from flatout.errors import FlatoutError, UsageError, one_line
from flatout.hardware.facts import Facts, facts_here

Call = tuple[int, str, tuple[Any, ...]]
"""A call of a `LocalActor`: its number, the method, the arguments."""


def written_slot(method: str, arguments: tuple[Any, ...]) -> int | None:
    """Return the slot into which a method of a `LocalActor` writes; None if it writes nothing."""
    if method == "restore":  # the restored observations
        return 0
    return arguments[0] if method in ("begin", "collect") else None


class Answer(NamedTuple):
    """The answer of a `RemoteActor` to a request.

    Attributes:
        kind: ``result``; ``lost``, if the worker can be restarted; ``machine``, if it was lost for
            a reason that is not its environments'; or the name of an error that would occur again.
        value: the last call's result, or a sentence.
        details: a traceback, if any.
        arrays: the arrays of the trajectory that was collected, ``[T, E, ...]``, by name.
        times: the worker's row of `SPENT`.
        seconds: how long the machine worked on the request.
        notes: sentences of the worker for the user.
        began: when the machine began to work on the request, by its own clock.
    """

    kind: str
    value: Any = None
    details: str = ""
    arrays: dict[str, np.ndarray] = {}  # noqa: RUF012 - never changed
    times: np.ndarray | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    began: float = 0.0


class RemoteActor(LinkEnd):
    """The environments of one worker, on a machine of a Ray cluster.

    Args:
        job: the pickled `Job` of the run, whose shared memory is not used.
        patience: the time limit of a step, in seconds.
        times: the worker's times so far, a row of `SPENT`.
    """

    def __init__(self, job: bytes, patience: float, times: np.ndarray) -> None:
        self._job, self._patience, self._times = job, patience, times
        self._executed = -1  # the number of the last call
        self._worker: Worker | None = None
        self._notes = list[str]()

    def place(self, packages: Sequence[str]) -> tuple[str, str, Facts]:
        """Return the number of this node, this machine's name, and the facts on which results
        depend."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        return node, socket.gethostname(), facts_here(packages)

    def start(self) -> Answer:
        """Start the actor process; wait until it has made its environments."""
        try:
            job: Job = pickle.loads(self._job)
        except Exception as error:  # of the user's modules
            return _refusal(UsageError(
                f"the environment cannot be imported on {socket.gethostname()} of the Ray cluster "
                f"({type(error).__name__}: {one_line(error)}); install it there, or send its "
                "folder with --ray-working-dir."
            ))  # fmt: skip
        fields = own_fields(job)
        self._slots = [
            name for name in fields if name not in ("beats", SPENT) and not name.startswith(PARAMS)
        ]
        try:
            self._arrays = arrays = SharedArrays(fields)
            arrays[SPENT][0] = self._times
            self._worker = Worker(
                replace(job, column=0, shared_arrays=(arrays.descriptor, fields)),
                self._patience, arrays,
            )  # fmt: skip
            self._worker.report = self._notes.append
            self._worker.start()
            self._worker.send_job()
            self._worker.ready()
        except WorkerLost as lost:
            return _loss(lost)
        except FlatoutError as error:
            return _refusal(error)
        return Answer("result", notes=self._new_notes())

    def call(self, calls: Sequence[Call], params: Sequence[np.ndarray] | None) -> Answer:
        """Call methods of the `LocalActor` one after another; return the last one's result.

        Args:
            calls: in the order of their numbers. Those that were executed before are left out.
            params: parameters that the actor process reads from now on; None keeps the last ones.
        """
        worker, began = self._worker, time.monotonic()
        assert worker is not None
        for index, array in enumerate(params or ()):
            self._arrays[f"{PARAMS}{index}"][...] = array
        value, method, arguments = None, "", ()
        try:
            for number, method, arguments in calls:
                if number > self._executed:
                    worker.tell(method, *arguments)
                    value = worker.wait()
                    self._executed = number
        except WorkerLost as lost:
            return _loss(lost)
        except FlatoutError as error:
            return _refusal(error)
        arrays, times = self._collected(method, arguments), self._spent()
        return Answer(
            "result", value, "", arrays, times, time.monotonic() - began, self._new_notes(), began
        )

    def close(self) -> bool:
        """End the actor process; return False if its environments did not close in time."""
        worker = self._worker
        if worker is None:
            return True
        worker.request_end()
        return worker.close(time.monotonic())

    def _collected(self, method: str, arguments: tuple[Any, ...]) -> dict[str, np.ndarray]:
        if (slot := written_slot(method, arguments)) is None:
            return {}
        return {name: self._arrays[name][slot] for name in self._slots}

    def _new_notes(self) -> tuple[str, ...]:
        notes, self._notes = tuple(self._notes), list[str]()
        assert self._worker is not None
        self._worker.report = self._notes.append
        return notes

    def _spent(self) -> np.ndarray:
        return self._arrays[SPENT][0].copy()


def own_fields(job: Job) -> Fields:
    """Return the shared arrays of a run for the environments of one worker only."""
    fields: Fields = {}
    mine = range(job.first, job.first + job.count)
    for name, (shape, dtype) in job.shared_arrays[1].items():
        if name.startswith(PARAMS):
            fields[name] = shape, dtype
        elif name.startswith(OUTPUTS):  # of one call of the policy
            if int(name.partition("/")[2]) in mine:
                fields[name] = shape, dtype
        elif name in ("beats", SPENT):
            fields[name] = (1, *shape[1:]), dtype
        else:  # [slots, T, N, ...]
            fields[name] = (*shape[:2], job.count, *shape[3:]), dtype
    return fields


def _loss(lost: WorkerLost) -> Answer:
    if missing := re.search(r"ModuleNotFoundError: (No module named '[\w.]+')", lost.reason):
        return _refusal(UsageError(
            f"the environment's code does not find a module on {socket.gethostname()} of the Ray "
            f"cluster ({missing[1]}): install it there, or send its folder with --ray-working-dir."
        ))  # fmt: skip
    kind = "machine" if isinstance(lost, MachineLost) else "lost"
    return Answer(kind, f"{lost.reason} (on {socket.gethostname()})", lost.details)


def _refusal(error: FlatoutError) -> Answer:
    if "there is no module" in str(error):
        error = UsageError(
            f"on {socket.gethostname()} of the Ray cluster, {str(error).rstrip('.')}: install it "
            "there, or send its folder with --ray-working-dir."
        )
    kind = next((kind for kind in LASTING if isinstance(error, kind)), UsageError)
    return Answer(kind.__name__, str(error))
