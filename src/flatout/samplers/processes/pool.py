"""The worker pool: starts, commands, restarts and ends actor processes."""

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
"""Variables that are 1 in workers unless the user sets them: each worker has one core."""

STARTUP_S = 120.0
"""Limit for a worker's imports and environments."""

MAX_RESTARTS = 5
"""Limit for all of a run's workers together."""

GRACE_S = 2.0
"""Seconds for workers to end, beside closing their environments (`CLOSE_S`)."""


class WorkerLost(Exception):  # noqa: N818 - an event that the run may survive
    """A worker died, raised or got stuck.

    Attributes:
        worker: the worker.
        reason: a clause whose subject is the worker.
        details: the traceback, if any.
    """

    def __init__(self, worker: Worker, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.worker, self.reason, self.details = worker, reason, details


class Worker:
    """One actor process and the channel to it.

    Args:
        job: its environments.
        patience: limit of a step in seconds.
        arena: holds the worker's counters.
    """

    def __init__(self, job: Job, patience: float, arena: Arena) -> None:
        self.job = job
        self._patience = patience
        self._limit = f"a step within {patience:g} s (--worker-timeout)"
        self._beats = arena["beats"][job.first]
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._lifeline = -1
        self._killed = 0  # the kernel's out-of-memory kills at its start

    def start(self) -> None:
        """Start the process; `ready` waits for it."""
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
        """Its environments' columns."""
        return slice(self.job.first, self.job.first + self.job.count)

    @property
    def pid(self) -> int | None:
        """Its process's id, if there is a process."""
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
        """The next length-prefixed part of the reply."""
        channel = self._open()
        try:
            return channel.receive_long()
        except (Closed, Late):
            raise self._post_mortem() from None

    def wait(self, size: int = 0) -> bytes:
        """Wait until the command is done; returns `size` bytes of the reply.

        Raises:
            WorkerLost: it died, raised, or took too long.
            UsageError: the request is invalid; a restart would not help.
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
        """A reply's first byte; waits while the worker makes progress in a long command."""
        while True:
            before = self._beats.copy()
            try:
                return channel.receive(1)
            except Late:
                if np.array_equal(self._beats, before):
                    raise

    def kill(self) -> None:
        """Kill the process and release its resources."""
        self.let_go()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._close_lifeline()

    def close(self, began: float) -> bool:
        """Let the process close its environments; kill it if that takes too long.

        Args:
            began: `time.monotonic` when all processes began to close.

        Returns:
            Whether it closed its environments.
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
        self._close_lifeline()
        return closed

    def _ends(self, deadline: float) -> bool:
        """Whether the process ends before the deadline."""
        assert self._process is not None
        try:
            self._process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def let_go(self) -> None:
        """Close the channel; the process then closes its environments and ends."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _post_mortem(self) -> WorkerLost:
        """Why a process closed its channel."""
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
    """A pickled job; `UsageError` if the environment's source cannot be pickled."""
    try:
        return cloudpickle.dumps(job)
    except Exception as error:  # the user's code may raise anything
        raise UsageError(
            "what makes the environment cannot travel to another process "
            f"({type(error).__name__}: {one_line(error)}); pass an id, module:factory, or a "
            "function without open files, locks and the like, or use sampler=inline."
        ) from error


def _variables() -> dict[str, str]:
    """The environment variables of a worker."""
    # An empty entry is the working folder, which -P excludes.
    variables = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    variables |= {name: "1" for name in ONE_THREAD if name not in os.environ}
    return {
        **os.environ,
        **variables,
        "JAX_PLATFORMS": "cpu",
    }  # no device is opened by an environment


class WorkerPool:
    """All workers of a run.

    Args:
        workers: in the environments' order.
        arena: memory that they share with this process.
        report: receives a sentence for each lost worker.
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
        """The work of these workers so far; a restarted worker continues its counters."""
        done: dict[str, Work] = {}
        for worker in workers:
            spent = self.arena[protocol.SPENT][worker.job.first].tolist()
            seconds = {"env": spent[protocol.ENV_S], "act": spent[protocol.ACT_S]}
            name = f"worker {self.workers.index(worker)}"
            done[name] = Work(seconds, int(spent[protocol.TURNS]), spent[protocol.SQUARE])
        return done

    def restart(self, lost: WorkerLost) -> None:
        """Restart a lost worker; `EnvironmentFailure` after `MAX_RESTARTS`."""
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
            except WorkerLost as failure:
                lost = failure

    @contextmanager
    def fatal(self) -> Iterator[None]:
        """Losing a worker in this context is fatal."""
        try:
            yield
        except WorkerLost as lost:
            raise self.failure(lost) from None

    def failure(self, lost: WorkerLost) -> EnvironmentFailure:
        """The run's error for a lost worker, with its traceback."""
        which = self._which(lost.worker)
        after = f", after {self.restarts} restarts" if self.restarts else ""
        details = f"\n{lost.details.rstrip()}" if lost.details else ""
        return EnvironmentFailure(f"{which} {lost.reason.rstrip('.')}{after}.{details}")

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
