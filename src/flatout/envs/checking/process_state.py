"""Changes of the process that an environment's calls cause: copies, closed streams, and alarms."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any

from flatout.envs.checking.findings import Findings
from flatout.output import say

STREAMS = ("standard input", "standard output", "standard error")

FORKED = "fork"
"""The path of the finding that a call forks the process."""

ALARM = getattr(signal, "SIGALRM", None)
"""The signal of alarms; None on Windows."""


class ProcessState:
    """A record of this process's identity, standard streams and alarm, to which later states are
    compared.

    Args:
        findings: receives what has changed.
        announces: whether a forked copy prints the finding, because nobody reads its findings.
    """

    def __init__(self, findings: Findings, announces: bool) -> None:
        self._findings, self._announces = findings, announces
        self._pid = os.getpid()
        self._streams = [identity(number) for number in range(len(STREAMS))]
        self._alarm = _alarm()

    def examine(self, call: str) -> None:
        """Report what a call has changed. A forked copy of this process ends here."""
        if os.getpid() != self._pid:
            text = (
                f"the {call} forked this process and returned in the copy, too, which would go on "
                "like a second program: end the copy with os._exit where it was forked, or use "
                "multiprocessing or subprocess."
            )
            self._findings.add("error", "process", text, FORKED)
            if self._announces:
                say(text)
            os._exit(1)
        for number, name in enumerate(STREAMS):
            if identity(number) != self._streams[number]:
                self._findings.add(
                    "error", "process",
                    f"the {call} closed or replaced {name} (descriptor {number}), which the "
                    "program that uses the environment needs: leave it open.",
                    name,
                )  # fmt: skip
                self._streams[number] = reopen(number)
        if _alarm() != self._alarm:
            self._find_alarm(call)

    def _find_alarm(self, call: str) -> None:
        assert ALARM is not None
        ends = signal.getsignal(ALARM) == signal.SIG_DFL
        self._findings.add(
            "error" if ends else "warning", "process",
            f"the {call} uses SIGALRM (signal.alarm, signal.setitimer or signal.signal): it "
            + ("ends the program" if ends else "interrupts the program wherever it is then")
            + ", and Flatout's own time limits use it: limit the time in another way, for example "
            "in a thread.",
            "alarm",
        )  # fmt: skip
        if self._alarm[1] == 0:  # no time limit of Flatout is running
            signal.setitimer(signal.ITIMER_REAL, 0)
            with suppress(TypeError, ValueError):
                signal.signal(ALARM, self._alarm[0])
        self._alarm = _alarm()


def identity(number: int) -> tuple[int, int] | None:
    """Return which file a descriptor leads to; None if it is closed."""
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def reopen(number: int) -> tuple[int, int] | None:
    """Let a closed descriptor lead to /dev/null, so that no other file gets its number."""
    if identity(number) is None:
        with suppress(OSError):
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    return identity(number)


def _alarm() -> tuple[Any, float]:
    """Return the handler of SIGALRM, and the interval of its timer; -1 if that sends one signal
    only, as ``signal.alarm`` asks for."""
    if ALARM is None:
        return None, 0.0
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    return signal.getsignal(ALARM), interval or -float(left > 0)
