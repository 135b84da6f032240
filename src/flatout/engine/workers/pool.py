"""The worker pool: it starts, commands, restarts and ends actor processes for the samplers."""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import numpy as np

from flatout import child
from flatout.engine.workers import protocol
from flatout.engine.workers.protocol import Job
from flatout.engine.workers.shared_memory import SharedArrays
from flatout.envs.deadline import CLOSE_S, SPARES_TAKE, STARTUP_S
from flatout.errors import EnvironmentFailure, one_line
from flatout.output import say
from flatout.spans import Work
from flatout_explain.files.kernel import close_in_children

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Environment variables that are 1 in workers unless the user sets them: a worker has one core."""

MAX_RESTARTS = 5
"""The most restarts in a run, summed over all workers of this machine."""

RESTARTS_PER_WORKER, WINDOW_S = 3, 600.0
"""The most restarts of workers on a cluster within `WINDOW_S` seconds, per worker: a machine is
lost with all its workers, and a long run on machines that may be taken away loses some every hour.
"""

NUMBER = re.compile(r"\d[\d,.]*")
"""A number in a sentence for the user; workers may report the same thing with other numbers."""

SEND_S = STARTUP_S
"""Seconds within which a worker has to receive more of its job or of a command."""

GRACE_S = 2.0
"""Seconds for workers to end, in addition to those for closing environments (`CLOSE_S`)."""


class PoolWorker(Protocol):
    """A worker of the pool: a `Worker`, or one on another machine. Its methods are those of
    `Worker`."""

    job: Job
    report: Callable[[str], None]

    def start(self) -> None: ...
    def send_job(self) -> None: ...
    def ready(self) -> None: ...
    def tell(self, method: str, *arguments: Any) -> None: ...
    def wait(self) -> Any: ...
    def drain_replies(self) -> None: ...
    def request_end(self) -> None: ...
    def close(self, began: float) -> bool: ...


class WorkerLost(Exception):  # noqa: N818 - an event that the run may survive
    """A worker died, raised an error or took too long.

    Attributes:
        worker: the worker.
        reason: the rest of a sentence whose subject is the worker, without a full stop.
        details: the traceback, if any.
    """

    def __init__(self, worker: PoolWorker, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.worker, self.reason, self.details = worker, reason.rstrip("."), details


class MachineLost(WorkerLost):
    """A worker was lost with its machine, or was killed; its environments are not the reason."""


class WorkerTraceback(Exception):  # noqa: N818 - the cause of a failure, not a failure
    """The traceback, as text, of an error raised in a worker."""


class Worker:
    """One actor process and the socket to it.

    Args:
        job: the worker's environments.
        patience: the time limit of a step, in seconds.
        shared_arrays: shared memory, which contains the worker's progress counters.
    """

    def __init__(self, job: Job, patience: float, shared_arrays: SharedArrays) -> None:
        self.job = job
        self._patience = patience
        self._heartbeats = shared_arrays["beats"][job.columns.start]
        self.report: Callable[[str], None] = say  # receives sentences for the user
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = 0  # the kernel's out-of-memory kills at its start

    def start(self) -> None:
        """Start the process, or raise `WorkerLost`; `send_job` comes next."""
        try:
            self._end, theirs = socket.socketpair()
            with theirs, ExitStack() as undo:
                undo.callback(self._end.close)
                self._process = subprocess.Popen(
                    child.command("flatout.engine.workers.worker:main", str(theirs.fileno())),
                    pass_fds=(theirs.fileno(), self.job.shared_arrays[0]),
                    stdin=subprocess.PIPE,  # its end of file ends even a worker whose step hangs
                    env=_variables(),
                )
                undo.pop_all()
        except OSError as error:  # too many open files or processes, or no memory
            raise WorkerLost(
                self, f"cannot be started ({one_line(error)}): use fewer workers, or see ulimit -a"
            ) from error
        close_in_children(self._end, self._process.stdin)
        self._killed = child.out_of_memory_kills()

    def send_job(self) -> None:
        """Send the job, or raise `WorkerLost`; `ready` waits until the worker can step."""
        self._limit_time(socket.SO_SNDTIMEO, SEND_S)
        job = child.as_bytes(self.job)
        self._send(protocol.LENGTH.pack(len(job)))
        self._send(job)

    def ready(self) -> None:
        """Wait until the worker has made its environments; for errors see `wait`."""
        spares = SPARES_TAKE * self.job.config.spares
        startup = max(STARTUP_S, self._patience) * (1 + spares)
        self._allow(startup, f"starting within {startup:g} s")
        self.wait()
        self._allow(self._patience, f"a step within {self._patience:g} s (--worker-timeout)")

    def _allow(self, seconds: float, limit: str) -> None:
        """Limit the seconds that `wait` waits; `limit` describes the limit in its error."""
        self._limit_time(socket.SO_RCVTIMEO, seconds)
        self._limit = limit

    def _limit_time(self, option: int, seconds: float) -> None:
        """Limit the seconds in which the socket sends or receives nothing."""
        whole = int(seconds)
        limit = struct.pack("ll", whole, max(int((seconds - whole) * 1e6), int(not whole)))
        # The kernel's timeout on the socket saves a call of poll for each reply.
        self._end.setsockopt(socket.SOL_SOCKET, option, limit)

    def step(self, slot: int, t: int, partly: bool) -> None:
        """Begin step t, with `partly` only of active environments, or raise `WorkerLost`."""
        self._send(protocol.COMMAND.pack(0, partly, slot, t))

    def tell(self, method: str, *arguments: Any) -> None:
        """Begin a call of a method of the `Stepper` or `LocalActor`, or raise `WorkerLost`."""
        call = pickle.dumps((method, arguments))
        self._send(protocol.COMMAND.pack(len(call), 0, 0, 0) + call)

    def _send(self, data: bytes) -> None:
        try:
            self._end.sendall(data)
        except BlockingIOError:
            self.kill()
            reason = f"did not receive its job or a command within {SEND_S:g} s and was killed"
            raise WorkerLost(self, reason) from None
        except OSError:
            raise self._post_mortem() from None

    def wait(self) -> Any:
        """Wait until the step or call is done; return the call's result.

        Raises:
            WorkerLost: the worker died, raised an error, or took too long.
            UsageError: the request is invalid.
            InvalidReturn: an environment returned an invalid value.
        """
        try:
            reply = self._first_byte()
            while reply == protocol.NOTE:
                self.report(protocol.receive_object(self._end))
                reply = self._first_byte()
            if reply == protocol.DONE:
                return None
            more = protocol.receive_object(self._end)
        except BlockingIOError:
            self.kill()
            raise WorkerLost(self, f"did not finish {self._limit} and was killed") from None
        except (EOFError, OSError):
            raise self._post_mortem() from None
        if reply == protocol.RESULT:
            return more
        self.kill()
        text, details, lasting = more
        if reply == protocol.REFUSED:
            raise lasting(text)
        raise WorkerLost(self, f"failed: {text}", details)

    def drain_replies(self) -> None:
        """Wait until a `LocalActor` has executed all commands, and discard its replies.

        An interrupt may have come at any point between a command and its reply, so the number of
        outstanding replies is unknown. The reply to a random mark is the last one.

        Raises:
            WorkerLost: see `wait`.
        """
        mark = os.urandom(8)
        self.tell("mark", mark)
        while self.wait() != mark:
            pass

    def _first_byte(self) -> bytearray:
        """Receive a reply's first byte; wait as long as the worker reports progress."""
        while True:
            before = self._heartbeats.copy()
            try:
                return protocol.receive(self._end, 1)
            except BlockingIOError:
                if np.array_equal(self._heartbeats, before):
                    raise

    def request_end(self) -> None:
        """Close the socket, at which the process closes its environments and ends."""
        if self._process is not None:
            self._end.close()

    def kill(self) -> None:
        """Kill the process and release its resources."""
        self.request_end()
        process, self._process = self._process, None
        if process is not None:
            with process:  # waits until it has ended
                process.kill()

    def close(self, began: float) -> bool:
        """Let the process close its environments; kill it if that takes too long.

        Args:
            began: `time.monotonic` when all processes were asked to end.

        Returns:
            False if the process was closing its environments and did not finish in time, else True.
        """
        try:
            return (
                self._ends_before(began + GRACE_S)
                or self._heartbeats[0] != protocol.CLOSING
                or self._ends_before(began + CLOSE_S + GRACE_S)
            )
        finally:
            self.kill()

    def _ends_before(self, deadline: float) -> bool:
        """Wait for the process until the deadline; return whether it has ended."""
        try:
            if self._process is not None:
                self._process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _post_mortem(self) -> WorkerLost:
        """Return why a process closed its end of the socket, and kill it if it still runs."""
        if self._process is None:
            return WorkerLost(self, "is gone")
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return WorkerLost(self, "closed its channel but kept running; it was killed")
        finally:
            self.kill()
        if code == -signal.SIGKILL and child.out_of_memory_kills() > self._killed:
            return WorkerLost(self, "was killed by the kernel because memory ran out")
        if code == -signal.SIGKILL:
            return MachineLost(
                self, "was killed by SIGKILL (as the kernel does when memory runs out)"
            )
        if code < 0:
            return WorkerLost(self, f"died of {signal.Signals(-code).name}")
        return WorkerLost(self, f"ended by itself with exit code {code}")


def _cause(lost: WorkerLost) -> WorkerTraceback | None:
    """Return the traceback of a lost worker as a cause, which the run folder's error file shows."""
    return WorkerTraceback(f"\n{lost.details}") if lost.details else None


def _variables() -> dict[str, str]:
    """Return the environment variables of a worker."""
    variables = {name: "1" for name in ONE_THREAD if name not in os.environ}
    variables["JAX_PLATFORMS"] = "cpu"  # environments must not open a GPU
    return os.environ | variables


class WorkerPool:
    """All workers of a run.

    Args:
        workers: the workers, in the environments' order.
        shared_arrays: the memory that they share with this process.
        report: receives a sentence about each lost worker.
        cluster: the Ray cluster of remote workers (`flatout.engine.workers.cluster.Cluster`), which
            is closed with the pool; None if all workers are processes of this machine.
    """

    def __init__(
        self, workers: Sequence[PoolWorker], shared_arrays: SharedArrays,
        report: Callable[[str], None], cluster: Any = None,
    ) -> None:  # fmt: skip
        self.workers = list(workers)
        self.shared_arrays = shared_arrays
        self.local = any(worker.job.local is not None for worker in workers)  # they also act
        self.restarts = 0
        self._report, self._cluster = report, cluster
        self._failures = 0  # restarts of workers whose environments failed
        self._losses: list[float] = []  # when workers were restarted that were lost with a machine
        self._reported: set[str] = set()
        for worker in self.workers:
            worker.report = self._report_once

    def start(self) -> None:
        """Start all processes at once."""
        try:
            with self.fatal():
                for worker in self.workers:
                    worker.start()
                for worker in self.workers:  # a large job waits until the process reads it
                    worker.send_job()
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Wait until all workers have made their environments."""
        with self.fatal():
            for worker in self.workers:
                try:
                    worker.ready()
                except MachineLost as lost:
                    self.restart(lost, playing=False)

    def ask(self, method: str, arguments: Mapping[Any, tuple[Any, ...]]) -> list[Any]:
        """Call a method of several workers at once; return the results in the order of `arguments`.
        Raise `EnvironmentFailure` if a worker is lost."""
        with self.fatal():
            for worker, given in arguments.items():
                worker.tell(method, *given)
            return [worker.wait() for worker in arguments]

    def work(self, workers: Sequence[PoolWorker]) -> dict[str, Work]:
        """Return the work of these workers so far, and that of a cluster's machines; a restart
        continues a worker's counters."""
        done: dict[str, Work] = {}
        for worker in workers:
            worker_times = self.shared_arrays[protocol.SPENT][worker.job.first].tolist()
            seconds = {"env": worker_times[protocol.ENV_S], "act": worker_times[protocol.ACT_S]}
            name = f"worker {self.workers.index(worker)}"
            spares, spare_mb = worker_times[protocol.SPARES :]
            done[name] = Work(
                seconds, int(worker_times[protocol.TURNS]), worker_times[protocol.SQUARE],
                protocol.read_resets(worker_times), int(spares), spare_mb,
            )  # fmt: skip
        return done if self._cluster is None else done | self._cluster.traffic.work()

    def end_round(self) -> None:
        """Note that all workers have collected one trajectory of the run."""
        if self._cluster is not None:
            self._cluster.traffic.end_round()

    def traffic(self) -> dict[str, float]:
        """Return the bytes and times of trajectories from other machines, for `flow`."""
        return {} if self._cluster is None else self._cluster.traffic.figures()

    def restart(self, lost: WorkerLost, playing: bool = True) -> None:
        """Restart a lost worker, or raise `EnvironmentFailure` after too many restarts.

        Args:
            playing: whether its environments were in episodes, which end with it. They were not
                before the first step, or while a state was restored.
        """
        worker, count = lost.worker, lost.worker.job.count
        then = f"its {count} environments begin new episodes"
        if not playing:
            then = "it is started again"
        elif count == 1:
            then = "its environment begins a new episode"
        while True:
            done, allowed = self._restarts_of(lost)
            if done >= allowed:
                raise self.failure(lost) from _cause(lost)
            self.restarts += 1
            if isinstance(lost, MachineLost):
                self._losses.append(time.monotonic())
            else:
                self._failures += 1
            self._report(
                f"worker {self.workers.index(worker)} {lost.reason}; {then} "
                f"(restart {done + 1} of at most {allowed})"
            )
            try:
                worker.start()
                worker.send_job()
                worker.ready()
                return
            except WorkerLost as failure:
                lost = failure

    def _restarts_of(self, lost: WorkerLost) -> tuple[int, int]:
        """Return how many restarts there were for such a reason, and the most that are allowed. Of
        lost machines of a cluster, those that are long past do not count, and none counts as a
        failure of environments."""
        if self._cluster is None:
            return self.restarts, MAX_RESTARTS
        if not isinstance(lost, MachineLost):
            return self._failures, MAX_RESTARTS
        now = time.monotonic()
        self._losses = [loss for loss in self._losses if now - loss < WINDOW_S]
        return len(self._losses), max(MAX_RESTARTS, RESTARTS_PER_WORKER * len(self.workers))

    @contextmanager
    def fatal(self) -> Iterator[None]:
        """Return a context in which losing a worker raises `EnvironmentFailure`."""
        try:
            yield
        except WorkerLost as lost:
            raise self.failure(lost) from _cause(lost)

    def failure(self, lost: WorkerLost) -> EnvironmentFailure:
        """Return the run's error for a lost worker."""
        which = self._name(lost.worker)
        after = f", after {self.restarts} restarts" if self.restarts else ""
        return EnvironmentFailure(f"{which} {lost.reason}{after}.")

    def _report_once(self, sentence: str) -> None:
        """Report a worker's sentence, unless another worker has sent the same one before, or one
        that differs in its numbers alone."""
        if (words := NUMBER.sub("", sentence)) not in self._reported:
            self._reported.add(words)
            self._report(sentence)

    def _name(self, worker: PoolWorker) -> str:
        number, first = self.workers.index(worker), worker.job.first
        return f"worker {number} (environments {first} to {first + worker.job.count - 1})"

    def close(self) -> None:
        """End all processes, and close the shared memory."""
        for worker in self.workers:
            worker.request_end()
        began = time.monotonic()
        for worker in self.workers:
            if not worker.close(began):
                say(
                    f"{self._name(worker)} did not close its environments within {CLOSE_S:g} s "
                    "and was killed."
                )
        if self._cluster is not None:
            self._cluster.close()
        self.shared_arrays.close()
