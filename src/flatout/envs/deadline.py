"""A deadline for a user's code that may block."""

from __future__ import annotations

import faulthandler
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STARTUP_S = 120.0
"""How long imports and the making of environments may take; as long as a step, if that is more."""

CLOSE_S = 10.0
"""How long environments may take to close."""

FATAL_S = 20.0
"""Longest time for which native code may ignore the interrupt of a `deadline`."""


class DeadlineExceeded(BaseException):
    """What `deadline` waited for has not ended in time."""


@contextmanager
def deadline(seconds: float, report: int = 2) -> Iterator[None]:
    """A user's code that may block: it is interrupted in the main thread (others are not watched).

    Where no timer can send a signal (Windows), nothing is watched. Native code that does not come
    back for a signal ends the process after three times as long, `FATAL_S` later at most, where
    faulthandler is on, as the command line turns it on.

    Args:
        report: the descriptor to which faulthandler then writes where the process was.

    Raises:
        DeadlineExceeded: it took longer.
    """
    timers = hasattr(signal, "setitimer")
    if not timers or threading.current_thread() is not threading.main_thread():
        yield
        return
    armed = True

    def late(signum: int, frame: FrameType | None) -> None:
        if armed:
            raise DeadlineExceeded

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
