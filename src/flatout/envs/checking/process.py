"""An inspection in a process of its own: one that ends, hangs or loses its channel is a finding.

The child reports each call of the environment before it begins, each finding, and at last that it
is done. If that last message does not come, the check has failed, whatever the exit code.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from typing import IO, Any

import gymnasium as gym
import psutil

from flatout import child
from flatout.envs.check import Watch
from flatout.envs.checking.calls import CLOSING, MODULE
from flatout.envs.checking.findings import Finding, Findings
from flatout.envs.checking.inspection import Request, inspect
from flatout.envs.checking.process_state import FORKED, ProcessState, reopen
from flatout.envs.deadline import CLOSE_S
from flatout.errors import failure, is_library
from flatout_explain import output_file

STARTING_S = 60.0
"""Seconds that the process may take to start and to import Flatout; `patience` begins then."""

COPIES_S = 2.0
"""Seconds that forked copies of a process that is done may take to report themselves."""

POLL_S = 0.05
"""Seconds between two looks at whether the process still runs."""

STACK_S = 2.0
"""Seconds that a process which hangs may take to write its stack; on a busy machine it waits."""

MOST_PROCESSES = 100
"""The most processes of a check: an environment that forks may multiply itself without end."""


def inspect_in_child(job: bytes, name: str, patience: float) -> Findings | None:
    """Check an environment in a child process, which is killed with all that it has started.

    Args:
        job: a pickled `Request`.
        name: the environment's name, for messages.
        patience: seconds that all calls together may take.

    Returns:
        The findings; None if the child cannot import what the job refers to.
    """
    with output_file.temporary_file() as stack:
        written = _beyond_streams(os.dup(stack.fileno()))
        with closing(child.Child(
            f"{__name__}:main", str(written), keeps=[written], errors=None,
            variables=os.environ | {"JAX_PLATFORMS": "cpu"},
        )) as inspecting:  # fmt: skip
            os.close(written)
            inspecting.send(job)
            hearing = _Hearing(inspecting, name, patience)
            hearing.hear()
            if not hearing.done:
                hearing.explain(stack)
            return hearing.findings if hearing.loaded else None


def _beyond_streams(number: int) -> int:
    """Move a descriptor to a number above those of standard streams, which may all be closed."""
    import fcntl  # not on Windows

    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(number)
    return moved


def _members(group: int) -> int:
    """Return how many processes a process group has."""
    count = 0
    for pid in psutil.pids():
        with suppress(OSError):  # it has ended
            count += os.getpgid(pid) == group
    return count


class _Hearing:
    """The messages of a child, which end when it is done or ends, or when its time is over.

    Attributes:
        findings: what it has found.
        done: whether the inspection reached its end.
        loaded: whether the child could import what the job refers to.
    """

    def __init__(self, inspecting: child.Child, name: str, patience: float) -> None:
        self._child, self._process = inspecting, inspecting.process
        self._name, self._patience = name, patience
        self._call, self._since = "", time.monotonic()
        self._until = self._since + STARTING_S
        self._kills = child.out_of_memory_kills()
        self._late, self._counted = False, self._since
        self.findings, self.done, self.loaded = Findings(), False, True
        self._advice = "if it needs longer, raise patience (--patience)"

    def hear(self) -> None:
        """Receive messages until nothing more can come, or the time is over."""
        while time.monotonic() < self._until:
            ended = self._process.poll() is not None  # before its last messages are received
            try:
                for message in self._child.receive(POLL_S):
                    with suppress(ValueError, TypeError, KeyError):  # it may be the environment's
                        self._take(message)
            except EOFError:
                return
            except TimeoutError:
                if ended and not self.done:  # forked copies may keep the channel open
                    return
            if not self.done and self._multiplies():
                self.findings.add(
                    "error", "process",
                    f"{self._name} started more than {MOST_PROCESSES} processes by its {self._call}"
                    ", and was ended: does each of them start further ones?",
                    FORKED,
                )  # fmt: skip
                self.done = True
                return
        self._late = not self.done

    def _multiplies(self) -> bool:
        """Return whether there are too many processes; they are counted every `POLL_S`."""
        now = time.monotonic()
        if now < self._counted + POLL_S:
            return False
        self._counted = now
        return _members(self._process.pid) > MOST_PROCESSES

    def _take(self, message: dict[str, Any]) -> None:
        if "call" in message:
            now = time.monotonic()
            if not self._call:
                self._until = now + self._patience
            self._call, self._since = str(message["call"]), now
            if self._call in CLOSING and self._until > now + CLOSE_S:
                self._until, self._patience = now + CLOSE_S, CLOSE_S
                self._advice = "a run leaves it open then"
        if "finding" in message:
            self.findings.add(*Finding(*message["finding"]), message["path"])
            if message["path"] == FORKED:  # there would be more and more processes
                self.done, self._until = True, time.monotonic()
        if "done" in message:
            self.done, self.loaded = True, message["loaded"]
            self._until = time.monotonic() + COPIES_S

    def explain(self, stack: IO[bytes]) -> None:
        """Add a finding that says why the inspection did not reach its end.

        Args:
            stack: the file into which faulthandler writes.
        """
        call, name, limit = self._call or "start of the process", self._name, self._patience
        if not self._late:
            with suppress(subprocess.TimeoutExpired):  # the channel may close before it ends
                self._process.wait(COPIES_S)
        code, lasted = self._process.poll(), time.monotonic() - self._since
        if self._late:
            self._process.send_signal(signal.SIGUSR1)  # its handler writes the stack
            until = time.monotonic() + STACK_S
            while not _line(stack) and time.monotonic() < until:
                time.sleep(POLL_S)
            text = (
                f"did not finish the {call} within {limit:g} s" if lasted > limit / 2
                else f"did not finish all calls within {limit:g} s; the last was the {call}"
            ) + f"{{at}}; {self._advice}"  # fmt: skip
        elif code is None or code == child.CHANNEL_LOST:
            text = (
                f"closed descriptors in the {call} that it did not open: a program loses its files "
                "and connections by that; close only what the environment has opened"
            )
        elif code >= 0:
            text = (
                f"ended the process with exit code {code} in the {call}{{at}}: a run would end "
                "there without a message; raise an exception instead of calling os._exit"
            )
        elif -code == getattr(signal, "SIGALRM", None):
            text = (
                f"was ended by SIGALRM in the {call}{{at}}, which signal.alarm or signal.setitimer "
                "was asked for: limit the time in another way, for example in a thread"
            )
        elif -code == signal.SIGKILL and child.out_of_memory_kills() > self._kills:
            text = f"was killed by the kernel in the {call}, because memory ran out"
        else:
            text = (
                f"died of {signal.Signals(-code).name} in the {call}{{at}}: native code crashed, "
                "or it was killed"
            )
        text = text.replace("{at}", _line(stack))
        self.findings.add("error", "returns", f"{name} {text}.", "process")


def _line(stack: IO[bytes]) -> str:
    """Return the newest line of the user's code in a stack of faulthandler, in brackets."""
    stack.seek(0)
    text = stack.read(1 << 16).decode(errors="replace")
    for file, line in re.findall(r'File "(.*?)", line (\d+) in ', text):
        if not is_library(file):
            return f" ({file}:{line})"
    return ""


def main() -> None:
    """The child's entry."""
    channel = child.Parent(forks=True)
    reopen(2)
    os.dup2(2, 1)
    stack = int(sys.argv[1])
    faulthandler.enable(stack, all_threads=False)
    faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
    job = channel.receive()
    channel.follow()

    findings = Findings(lambda one, path: channel.send(finding=one, path=path))
    watch = Watch(MODULE)
    watch.on_change = lambda last, call: channel.send(call=call)
    channel.send(call=MODULE)
    state = ProcessState(findings, announces=False)
    request: Request | None = None
    loaded = True
    try:
        request = pickle.loads(job)
        assert request is not None
        # Where the parent is killed while native code hangs, nothing else would end this process.
        faulthandler.dump_traceback_later(request.patience + STARTING_S, exit=True, file=stack)
        if request.registered is not None:
            gym.registry.setdefault(request.registered.id, request.registered)
        state.examine(MODULE)
        inspect(request, findings, watch, state, close_limit=None)
    except BaseException as error:  # a user's environment may raise anything
        # A module that cannot be imported may be known to the parent only, as that of a test.
        loaded = request is not None or not isinstance(error, ImportError | AttributeError)
        if loaded:
            findings.add("error", "returns", f"the {watch.call} raised {failure(error)}.")
    state.examine(watch.call)
    channel.send(done=True, loaded=loaded)
    os._exit(0)  # threads and exit handlers of the environment do not delay it
