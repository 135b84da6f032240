"""SIGINT, SIGTERM and SIGHUP: stop where nothing is lost, at once where work may be thrown away."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from flatout.errors import Interrupt

_HANGUP = getattr(signal, "SIGHUP", None)

REPEATED_S, GRACE_S = 0.25, 10.0
"""Seconds after the first signal before a second SIGINT, or SIGTERM, ends the process at once. A
program that wraps another (``timeout``, a launcher) sends a signal to it and again to its group."""


class Interrupts:
    """Turns signals into `Interrupt`, raised only inside `discardable` sections.

    Outside of them (learning, publishing, saving) a signal waits for the next such section. A
    second Ctrl-C ends the process without waiting; what was saved stays saved. In a notebook and at
    Python's prompt, which hold more than this run, it raises KeyboardInterrupt. A second SIGTERM
    does so only when `GRACE_S` seconds have passed, because job managers send several at once. A
    terminal that goes away sends several SIGHUPs, which count as one. A signal that is ignored
    (``nohup``, a shell's background job) stays so. Handlers are installed only in the main thread;
    elsewhere signals are left alone.

    Args:
        leave: called before a second signal ends the process.
    """

    def __init__(self, leave: Callable[[], None] = lambda: None) -> None:
        self.signum: int | None = None
        self._since = 0.0  # when the process was asked to end
        self._leave = leave
        self._inside = 0
        self._undo = ExitStack()
        self.installed = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self.installed = True
            for signum in Interrupt.signals:
                before = signal.getsignal(signum)
                if before not in (signal.SIG_IGN, None):
                    self._undo.callback(signal.signal, signum, before)
                    signal.signal(signum, self._handle)
            self._unraisable = sys.unraisablehook
            self._undo.callback(setattr, sys, "unraisablehook", self._unraisable)
            sys.unraisablehook = self._swallowed
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()
        self.installed = False

    @contextmanager
    def discardable(self) -> Iterator[None]:
        """Allow an interrupt at any bytecode of a section whose work may be thrown away."""
        self._inside += 1
        try:
            self.check()
            yield
        finally:
            self._inside -= 1

    def check(self) -> None:
        """Raise `Interrupt` if a signal has arrived."""
        if self.signum is not None:
            raise Interrupt(self.signum)

    def _swallowed(self, what: sys.UnraisableHookArgs) -> None:
        """Handle an exception that no caller can catch: a signal that arrived during garbage
        collection, for example, is sent again a moment later."""
        error = what.exc_value
        if not isinstance(error, Interrupt):
            self._unraisable(what)
            return
        self.signum = None
        again = threading.Timer(0.01, os.kill, (os.getpid(), error.signum))
        again.daemon = True
        again.start()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        first, now = self.signum is None, time.monotonic()
        if not first and signum == _HANGUP:
            return
        if not first and self.signum != _HANGUP:
            if now - self._since < (REPEATED_S if signum == signal.SIGINT else GRACE_S):
                return
            if signum == signal.SIGINT and hasattr(sys, "ps1"):
                raise KeyboardInterrupt
            self._leave()
            os._exit(128 + signum)
        self.signum, self._since = signum, now
        if first and self._inside:
            raise Interrupt(signum)
