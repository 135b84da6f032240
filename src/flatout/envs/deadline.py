"""A deadline for user code that may block; environments are made, checked and closed under it."""

from __future__ import annotations

import faulthandler
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from flatout.output import say

STARTUP_S = 120.0
"""Seconds that imports and constructors of environments may take. A step's limit replaces it if
that is longer."""

SPARES_TAKE = 2.0
"""Times what its environments took to open that their spares may take, if that is longer than
`STARTUP_S`."""

CLOSE_S = 10.0
"""Seconds that environments may take to close."""

FATAL_S = 20.0
"""Longest time in seconds for which native code may ignore the interrupt of a `deadline`."""


class DeadlineExceeded(BaseException):
    """The exception that `deadline` raises in code that takes too long."""


class UnexpectedAlarm(Exception):  # noqa: N818 - an event in the user's code
    """The exception that `deadline` raises if SIGALRM arrives before its time."""

    def __str__(self) -> str:
        return (
            "SIGALRM arrived, which signal.alarm or signal.setitimer was asked for; Flatout's time "
            "limits use this signal, so limit the time in another way, for example in a thread"
        )


@contextmanager
def deadline(seconds: float, report: int = 2) -> Iterator[None]:
    """Interrupt the code in the context if it takes longer than `seconds`.

    Only the main thread is watched, and only on systems whose timers can send a signal (not on
    Windows); elsewhere the context does nothing. Native code may ignore the signal. If faulthandler
    is enabled, as the command line does, it then ends the process after ``3 * seconds``, or
    `FATAL_S` after the signal if that is sooner.

    Args:
        seconds: the limit.
        report: the file descriptor to which faulthandler writes the stack before it ends the
            process.

    Raises:
        DeadlineExceeded: the code took longer.
        UnexpectedAlarm: the code has asked for an alarm of its own.
    """
    timers = hasattr(signal, "setitimer")
    if not timers or threading.current_thread() is not threading.main_thread():
        yield
        return
    armed, begin = True, time.monotonic()

    def late(signum: int, frame: FrameType | None) -> None:
        if armed:
            early = time.monotonic() < begin + 0.9 * seconds
            raise UnexpectedAlarm if early else DeadlineExceeded

    before = signal.signal(signal.SIGALRM, late)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    fatal = faulthandler.is_enabled()
    if fatal:
        last = seconds + min(2 * seconds, FATAL_S)
        faulthandler.dump_traceback_later(last, exit=True, file=report)
    try:
        try:
            yield
        finally:
            armed = False
    finally:
        if fatal:
            faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)


def close_in_time(
    close: Callable[[], object],
    seconds: float,
    label: str,
    failed: Callable[[BaseException], object],
) -> None:
    """Close a user's environment; if that takes longer than `seconds`, say so and leave it open.

    Args:
        close: closes it.
        seconds: the rest of `CLOSE_S`.
        label: its name, for the message.
        failed: receives an exception of `close`, which must not hide how the run ended.
    """
    try:
        with deadline(max(seconds, 0.1)):
            close()
    except DeadlineExceeded:
        say(f"{label} did not close within {CLOSE_S:g} s and was left open.")
    except (Exception, SystemExit) as error:
        failed(error)
