"""Workers on the machines of a Ray cluster, with the interface of `Worker`.

`WorkerPool` and `WorkerActingSampler` command them as they command actor processes. A trajectory is
one request and its answer; large parameters go to each machine once per version, through Ray's
object store. Ray pickles the messages by its own rules.
"""

from __future__ import annotations

import math
import re
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from flatout import child
from flatout.engine.workers.cluster import Cluster
from flatout.engine.workers.pool import GRACE_S, MachineLost, Worker, WorkerLost
from flatout.engine.workers.protocol import LASTING, OUTPUTS, SPENT, SQUARE, Job
from flatout.engine.workers.remote_actor import Answer, Call, written_slot
from flatout.engine.workers.traffic import WAITED_S, Machine, Trip
from flatout.envs.deadline import CLOSE_S
from flatout.errors import UsageError, one_line
from flatout.hardware.facts import Facts
from flatout.version import __version__

ARRIVES_S = 60.0
"""Seconds within which an answer has to arrive once it is complete."""

PING_S, SILENT_S, AGAIN_S = 5.0, 15.0, 1.0
"""Seconds of work after which a machine is asked whether it can be reached, and seconds within
which it has to answer; `AGAIN_S` if another worker's machine was silent there before."""

REFUSALS = {kind.__name__: kind for kind in LASTING}
"""Errors that would occur again after a restart, by the kinds of `Answer`."""


class Request(NamedTuple):
    """A request to a Ray actor.

    Attributes:
        answer: Ray's reference to the answer; None for a call that the next request takes along.
        method: the name of the call.
        slot: the slot into which a trajectory is written.
        began: `time.monotonic` when it was sent.
        params_bytes: of the parameters that the machine fetches for it.
    """

    answer: Any
    method: str
    slot: int = 0
    began: float = 0.0
    params_bytes: int = 0


class RemoteWorker:
    """A worker that acts and steps on a machine of a cluster; see `Worker` for the methods.

    If Ray chooses this machine, or finds no room in time, it is an actor process of this machine,
    which shares the run's memory; the Ray actor then only occupies its CPU.

    Attributes:
        lost: why `place` found no machine, although there was one; None if it did.
        machine: that `place` found; None before.
        report: receives sentences for the user.
    """

    def __init__(self, job: Job, cluster: Cluster) -> None:
        self.job, self._cluster, self._ray = job, cluster, cluster.ray
        self.report = cluster.report
        self._local: Worker | None = None
        self._forget()

    def _forget(self) -> None:
        self._actor: Any = None
        self.lost: MachineLost | None = None
        self.machine: Machine | None = None
        # When a worker here began to collect, and its `SQUARE` before.
        self._collecting: tuple[float, float] | None = None
        # Answers of an earlier actor are never read, because their references are dropped here.
        self._outstanding: deque[Request] = deque()
        self._deferred: list[Call] = []
        self._calls, self._version, self._node = 0, -1, ""

    # --- Start --------------------------------------------------------------------------------

    def start(self) -> None:
        """Ask Ray for a machine; `ready` waits until the worker can step."""
        self._forget()
        self._local = None
        self._times = self._cluster.shared_arrays[SPENT][self.job.first].copy()
        self._actor = self._cluster.actor(child.as_bytes(self.job), self._times)
        self._placed = self._actor.place.remote(self._cluster.packages)
        self._cluster.placing(self)

    def place(self, deadline: float) -> tuple[str, str, Facts] | None:
        """Wait for a machine until the deadline; return its node, its name and facts, or None."""
        try:
            done, _ = self._ray.wait([self._placed], timeout=max(deadline - time.monotonic(), 0.1))
            if not done:
                return None
            node, machine, facts = self._ray.get(self._placed)
        except self._ray.exceptions.RayError as error:
            self.lost = self._lost(error)
            return None
        self._node, here = node, node == self._cluster.node
        self.machine = self._cluster.traffic.machine(node, machine, here)
        if here:
            self._share_memory()
        return node, machine, facts

    def step_here(self) -> None:
        """Give up looking for a machine: the worker is an actor process of this one."""
        self._drop_actor()
        self.machine = self._cluster.traffic.machine(
            self._cluster.node, socket.gethostname(), here=True
        )
        self._share_memory()

    def payload(self, size: int) -> None:
        """Receive an array of `size` bytes from the machine."""
        self._ray.get(self._actor.payload.remote(size), timeout=SILENT_S)

    def _share_memory(self) -> None:
        self._local = Worker(self.job, self._cluster.patience, self._cluster.shared_arrays)
        self._local.report = self.report

    def begin(self) -> None:
        """Start the actor process, on the machine that `place` found."""
        if self._local is not None:
            with self._as_mine():
                self._local.start()
                self._local.send_job()
        else:
            self._outstanding.append(Request(self._actor.start.remote(), "start"))

    def ready(self) -> None:
        """Wait until the worker has made its environments; for errors see `wait`."""
        self._cluster.place()
        if self.lost is not None:
            raise self.lost
        if self._local is not None:
            with self._as_mine():
                self._local.ready()
        else:
            self.wait()

    def send_job(self) -> None:
        """Do nothing: Ray has the job, and an actor process of this machine gets it in `begin`."""

    # --- Calls --------------------------------------------------------------------------------

    def tell(self, method: str, *arguments: Any) -> None:
        """Begin a call of a method of the `LocalActor`, or raise `WorkerLost`."""
        if self._local is not None:
            square = float(self._cluster.shared_arrays[SPENT][self.job.first, SQUARE])
            self._collecting = (time.monotonic(), square) if method == "collect" else None
            with self._as_mine():
                self._local.tell(method, *arguments)
            return
        if self._actor is None:
            raise WorkerLost(self, "is gone")
        self._calls += 1
        calls = [*self._deferred, (self._calls, method, arguments)]
        if method == "commit":  # it has no result: the next call takes it along
            self._deferred = calls
            self._outstanding.append(Request(None, method))
            return
        params = None
        if method == "collect" and arguments[1] != self._version:
            self._version = arguments[1]
            try:
                params = self._cluster.params(self._version)
            except self._ray.exceptions.RayError as error:
                raise self._lost(error) from None
        slot = written_slot(method, arguments) or 0
        began = time.monotonic()
        answer = self._actor.call.remote(calls, params)
        sent = 0 if params is None else self._cluster.params_bytes
        self._outstanding.append(Request(answer, method, slot, began, sent))
        self._deferred = []

    def wait(self) -> Any:
        """Wait for the oldest call; return its result. For errors see `Worker.wait`."""
        if self._local is not None:
            return self._wait_here(self._local)
        request, asked = self._outstanding[0], time.monotonic()
        if request.answer is None:
            self._outstanding.popleft()
            return None
        answer = self._answer(request.answer)
        self._outstanding.popleft()
        if answer.kind == "result":
            self._take(answer, request, asked)
            return answer.value
        self.kill()
        if answer.kind in REFUSALS:
            raise REFUSALS[answer.kind](answer.value)
        kind = MachineLost if answer.kind == "machine" else WorkerLost
        raise kind(self, answer.value, answer.details)

    def _wait_here(self, local: Worker) -> Any:
        """Wait for a worker of this machine, and count the time of its trajectory."""
        asked = time.monotonic()
        with self._as_mine():
            value = local.wait()
        begun, self._collecting = self._collecting, None
        if begun is not None and self.machine is not None:
            sent, before = begun
            now, square = time.monotonic(), self._cluster.shared_arrays[SPENT][:, SQUARE]
            ended = sent + math.sqrt(max(float(square[self.job.first]) - before, 0.0))
            trip = Trip(sent, sent, min(ended, now), now, now - asked > WAITED_S)
            self._cluster.traffic.trajectory(self.machine, trip, 0, 0)
        return value

    def drain_replies(self) -> None:
        """Wait for the answers to all calls, and discard them; see `Worker.drain_replies`."""
        if self._local is not None:
            with self._as_mine():
                self._local.drain_replies()
            return
        while self._outstanding:
            if (asked := self._outstanding[0].answer) is not None:
                self._answer(asked)
            self._outstanding.popleft()

    def _answer(self, asked: Any) -> Answer:
        """Wait for an answer as long as the machine can be reached."""
        ray, cluster = self._ray, self._cluster
        try:
            while not ray.wait([asked], timeout=PING_S)[0]:
                # The actor process has time limits of its own, which its machine watches.
                ping = self._actor.ping.remote()
                limit = AGAIN_S if cluster.avoids(self._node) else SILENT_S
                if len(ray.wait([ping, asked], timeout=limit)[0]) == 0:
                    self.kill()
                    cluster.avoid(self._node)
                    raise MachineLost(
                        self, f"cannot be reached: its machine was silent for {limit:g} s"
                    )
            return ray.get(asked, timeout=ARRIVES_S)
        except ray.exceptions.RayError as error:
            lost = self._lost(error)
            self.kill()
            raise lost from None

    def _take(self, answer: Answer, request: Request, asked: float) -> None:
        """Copy an answer's arrays to those of the run, and count them; report its notes. `asked` is
        when the run began to wait for it."""
        arrived = time.monotonic()
        for note in answer.notes:
            self.report(note)
        arrays, columns = self._cluster.shared_arrays, self.job.columns
        for name, array in answer.arrays.items():
            target = arrays[name][request.slot]
            if not name.startswith(OUTPUTS):  # those of a call have no other environments
                target = target[:, columns]
            target[...] = array
        if request.method == "collect" and self.machine is not None:
            trip = Trip(
                request.began, answer.began, answer.began + answer.seconds, arrived,
                arrived - asked > WAITED_S,
            )  # fmt: skip
            self._cluster.traffic.trajectory(
                self.machine, trip, answer.value[0] * self.job.count,
                sum(array.nbytes for array in answer.arrays.values()), request.params_bytes,
            )  # fmt: skip
        if answer.times is not None:
            arrays[SPENT][self.job.first] = answer.times

    # --- Ends ---------------------------------------------------------------------------------

    def request_end(self) -> None:
        """Let the actor process close its environments and end."""
        if self._local is not None:
            self._local.request_end()
        elif self._actor is not None:
            self._closing = None
            with suppress(Exception):  # Ray itself may be gone
                self._closing = self._actor.close.remote()

    def close(self, began: float) -> bool:
        """Wait until the environments are closed, then end the worker; see `Worker.close`."""
        try:
            if self._local is not None:
                return self._local.close(began)
            if self._actor is None:
                return True
            left = began + GRACE_S + CLOSE_S - time.monotonic()
            with suppress(Exception):  # it is gone already, or it still works on a request
                if self._ray.wait([self._closing], timeout=max(left, 0.1))[0]:
                    return self._ray.get(self._closing, timeout=ARRIVES_S)
            return True
        finally:
            self.kill()

    def kill(self) -> None:
        """End the worker and its actor process."""
        if self._local is not None:
            self._local.kill()
        self._drop_actor()

    def _drop_actor(self) -> None:
        actor, self._actor = self._actor, None
        self._outstanding.clear()
        if actor is not None:
            with suppress(Exception):  # Ray itself may be gone
                self._ray.kill(actor)

    def _lost(self, error: Exception) -> MachineLost:
        """Return why a Ray actor has no answer.

        Raises:
            UsageError: a restart would fail, too.
        """
        known, text = self._ray.exceptions, one_line(error)
        self._cluster.refuse_lost()
        if missing := re.search(r"No module named '(([\w]+)[\w.]*)'", str(error)):
            what = f"the package {missing[2]} is not installed"
            if missing[2] == "flatout":
                what = f"Flatout {__version__} is not installed"
            raise UsageError(f"{what} on a machine of the Ray cluster: install it there.") from None
        if isinstance(error, known.ObjectStoreFullError):
            raise UsageError(
                "a worker's trajectory, or the parameters, do not fit the object store of a "
                "machine: use more workers with fewer environments, a lower --n-steps, or a larger "
                "store."
            ) from None
        if isinstance(error, known.OutOfMemoryError):
            return MachineLost(self, "was killed by Ray because its machine's memory ran out")
        if isinstance(error, known.GetTimeoutError):
            return MachineLost(self, f"sent an answer that did not arrive within {ARRIVES_S:g} s")
        if isinstance(error, known.RayTaskError):
            return MachineLost(self, f"failed: {text.rpartition('Error: ')[2][:300]}", str(error))
        if isinstance(error, known.RuntimeEnvSetupError):
            raise UsageError(f"Ray cannot prepare a machine: {text[:300]}.") from None
        return MachineLost(self, "was lost: its process was killed, or its machine is gone")

    @contextmanager
    def _as_mine(self) -> Iterator[None]:
        """Return a context in which a loss of the actor process here is one of this worker."""
        try:
            yield
        except WorkerLost as lost:
            raise type(lost)(self, lost.reason, lost.details) from lost.__cause__
