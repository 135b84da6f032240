"""Actor processes as their parent sees them: started, told, waited for, restarted, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle
import numpy as np

from flatout.envs.deadline import CLOSE_S
from flatout.errors import EnvironmentFailure, UsageError, one_line
from flatout.output import say
from flatout.samplers.processes import protocol
from flatout.samplers.processes.protocol import Job
from flatout.samplers.processes.shared_memory import Arena, Channel, Closed, Late
from flatout.spans import Work
from flatout.storage.last_words import out_of_memory_kills

PROGRAM = "from flatout.samplers.processes.worker import main; main()"

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""What workers get as 1 where the user did not set it: each has one core."""

STARTUP_S = 120.0
"""How long a worker may take to import, and to make its environments."""

MAX_RESTARTS = 5
"""Of all a run's workers together; a program that fails more often should be looked at."""

GRACE_S = 2.0
"""How long workers have to end, beside what closing their environments takes (`CLOSE_S`)."""


class WorkerLost(Exception):  # noqa: N818 - an event that the run may survive
    """A worker died, raised or stuck.

    Attributes:
        worker: which.
        reason: a clause whose subject is the worker.
        details: the traceback, where there is one.
    """

    def __init__(self, worker: Worker, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.worker, self.reason, self.details = worker, reason, details


class Worker:
    """One actor process and the channel to it.

    Args:
        job: what it steps.
        patience: seconds after which a step that is not done is stuck.
        arena: where the worker counts its steps.
    """

    def __init__(self, job: Job, patience: float, arena: Arena) -> None:
        self.job = job
        self._patience = patience
        self._limit = f"a step within {patience:g} s (--worker-timeout)"
        self._beats = arena["beats"][job.first]
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._lifeline = -1
        self._killed = 0  # out-of-memory kills that the kernel had counted before it started

    def start(self) -> None:
        """Start the process; see `ready`."""
        channel, theirs = Channel.pair()
        ends, lifeline = os.pipe()
        arena = self.job.arena[0]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, str(theirs.fileno()), str(ends)],
                pass_fds=(theirs.fileno(), ends, arena),
                stdin=subprocess.DEVNULL,
                env=_variables(),
            )
        except BaseException:
            channel.close()
            os.close(lifeline)
            raise
        finally:
            theirs.close()
            os.close(ends)
        self._channel, self._lifeline = channel, lifeline
        self._killed = out_of_memory_kills()
        try:
            channel.send_long(as_bytes(self.job))
        except Closed:
            raise self._post_mortem() from None

    def ready(self) -> None:
        """Wait until the worker has made its environments."""
        limit, startup = self._limit, max(STARTUP_S, self._patience)
        self._open().patience(startup)
        self._limit = f"starting within {startup:g} s"
        try:
            self.wait()
        finally:
            self._limit = limit
        self._open().patience(self._patience)

    @property
    def columns(self) -> slice:
        """Its environments among the run's."""
        return slice(self.job.first, self.job.first + self.job.count)

    @property
    def pid(self) -> int | None:
        """Its process, or None where there is none."""
        return None if self._process is None else self._process.pid

    def tell(self, command: int, flag: int, slot: int, number: int, more: Any = None) -> None:
        """Send a command, or raise `WorkerLost`."""
        channel = self._open()
        try:
            channel.send(protocol.COMMAND.pack(command, flag, slot, number))
            if more is not None:
                channel.send_long(cloudpickle.dumps(more))
        except Closed:
            raise self._post_mortem() from None

    def more(self) -> bytes:
        """A further part of the reply, with its length in front."""
        channel = self._open()
        try:
            return channel.receive_long()
        except (Closed, Late):
            raise self._post_mortem() from None

    def wait(self, size: int = 0) -> bytes:
        """Wait until the command is done; returns so many bytes of the reply.

        Raises:
            WorkerLost: it died, raised something, or takes too long.
            UsageError: it cannot do what it was asked, however often it is started.
        """
        channel = self._open()
        try:
            reply = self._first_byte(channel)
            if reply == protocol.DONE:
                return channel.receive(size) if size else b""
            text = channel.receive_long().decode()
            details = channel.receive_long().decode()
        except Late:
            self.kill()
            raise WorkerLost(self, f"did not finish {self._limit} and was killed") from None
        except Closed:
            raise self._post_mortem() from None
        self.kill()
        if reply == protocol.REFUSED:
            raise UsageError(text)
        raise WorkerLost(self, f"failed: {text}", details)

    def _open(self) -> Channel:
        if self._channel is None:
            raise WorkerLost(self, "is gone")
        return self._channel

    def _first_byte(self, channel: Channel) -> bytes:
        """Of a reply, for as long as the worker gets on: some commands take many steps."""
        while True:
            before = self._beats.copy()
            try:
                return channel.receive(1)
            except Late:
                if np.array_equal(self._beats, before):
                    raise

    def kill(self) -> None:
        """End the process at once, and leave nothing of it."""
        self.let_go()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._cut_lifeline()

    def close(self, began: float) -> bool:
        """Let the process close its environments.

        Args:
            began: when all were told to, by `time.monotonic`.

        Returns:
            Whether it did; one that took too long was killed.
        """
        self.let_go()
        closed = True
        if self._process is not None:
            try:
                if not self._ends(began + GRACE_S) and self._beats[0] == protocol.CLOSING:
                    closed = self._ends(began + CLOSE_S + GRACE_S)
            finally:
                self._process.kill()
                self._process.wait()
                self._process = None
        self._cut_lifeline()
        return closed

    def _ends(self, deadline: float) -> bool:
        """Whether the process ends until then."""
        assert self._process is not None
        try:
            self._process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _cut_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def let_go(self) -> None:
        """Close the channel, upon which the process closes its environments and ends."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _post_mortem(self) -> WorkerLost:
        """Why a process whose channel has closed is gone."""
        process = self._process
        assert process is not None
        try:
            code = process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return WorkerLost(self, "closed its channel but went on; it was killed")
        self.kill()
        if code == -signal.SIGKILL and out_of_memory_kills() > self._killed:
            return WorkerLost(self, "was killed by the kernel because memory ran out")
        if code == -signal.SIGKILL:
            return WorkerLost(
                self, "was killed by SIGKILL (as the kernel does when memory runs out)"
            )
        if code < 0:
            return WorkerLost(self, f"died of {signal.Signals(-code).name}")
        return WorkerLost(self, f"ended by itself with exit code {code}")


def as_bytes(job: Job) -> bytes:
    """A job as it travels.

    Raises:
        UsageError: what makes the environment cannot travel.
    """
    try:
        return cloudpickle.dumps(job)
    except Exception as error:  # pickling calls a user's code, which may raise anything
        raise UsageError(
            "what makes the environment cannot travel to another process "
            f"({type(error).__name__}: {one_line(error)}); pass an id, module:factory, or a "
            "function without open files, locks and the like, or use sampler=inline."
        ) from error


def _variables() -> dict[str, str]:
    """The environment variables of a worker."""
    # An empty entry is the working folder, which -P keeps out.
    variables = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    variables |= {name: "1" for name in ONE_THREAD if name not in os.environ}
    return {
        **os.environ,
        **variables,
        "JAX_PLATFORMS": "cpu",
    }  # no device is opened by an environment


class WorkerPool:
    """All workers of a run, and how many restarts they have left.

    Args:
        workers: in the environments' order.
        arena: what they and this process share.
        report: receives a sentence for each worker that was lost.
    """

    def __init__(
        self, workers: Sequence[Worker], arena: Arena, report: Callable[[str], None]
    ) -> None:
        self.workers = list(workers)
        self.arena = arena
        self.local = any(worker.job.local is not None for worker in workers)  # they act, too
        self.restarts = 0
        self._report = report

    def start(self) -> None:
        """Start all processes at once."""
        try:
            with self.fatal():
                for worker in self.workers:
                    worker.start()
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Wait until all have made their environments."""
        with self.fatal():
            for worker in self.workers:
                worker.ready()

    def work(self, workers: Sequence[Worker]) -> dict[str, Work]:
        """What these workers have done so far; one that was started again goes on counting."""
        done: dict[str, Work] = {}
        for worker in workers:
            spent = self.arena[protocol.SPENT][worker.job.first].tolist()
            seconds = {"env": spent[protocol.ENV_S], "act": spent[protocol.ACT_S]}
            name = f"worker {self.workers.index(worker)}"
            done[name] = Work(seconds, int(spent[protocol.TURNS]), spent[protocol.SQUARE])
        return done

    def restart(self, lost: WorkerLost) -> None:
        """Start a lost worker again.

        Raises:
            EnvironmentFailure: it cannot be started, or there were too many restarts already.
        """
        worker = lost.worker
        while True:
            if self.restarts >= MAX_RESTARTS:
                raise self.failure(lost) from None
            self.restarts += 1
            self._report(
                f"worker {self.workers.index(worker)} {lost.reason}; its "
                f"{worker.job.count} environments begin new episodes "
                f"(restart {self.restarts} of at most {MAX_RESTARTS})"
            )
            try:
                worker.start()
                worker.ready()
                return
            except WorkerLost as again:
                lost = again

    @contextmanager
    def fatal(self) -> Iterator[None]:
        """Losing a worker here ends the run."""
        try:
            yield
        except WorkerLost as lost:
            raise self.failure(lost) from None

    def failure(self, lost: WorkerLost) -> EnvironmentFailure:
        """The sentence for a worker that is given up, with its traceback."""
        which = self._which(lost.worker)
        often = f", after {self.restarts} restarts" if self.restarts else ""
        details = f"\n{lost.details.rstrip()}" if lost.details else ""
        return EnvironmentFailure(f"{which} {lost.reason.rstrip('.')}{often}.{details}")

    def _which(self, worker: Worker) -> str:
        number, first = self.workers.index(worker), worker.job.first
        return f"worker {number} (environments {first} to {first + worker.job.count - 1})"

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.let_go()
        began = time.monotonic()
        for worker in self.workers:
            if not worker.close(began):
                say(
                    f"{self._which(worker)} did not close its environments within {CLOSE_S:g} s "
                    "and was killed."
                )
        self.arena.close()
