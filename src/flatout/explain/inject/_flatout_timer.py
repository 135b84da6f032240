"""The kernel timer that makes the main thread sample.

Standard library only, Python 3.8 and later.
"""

import _thread
import signal
import sys


class Timer:
    """A timer of the kernel that signals the main thread, which samples between two instructions.

    The signal restarts system calls (SA_RESTART), and Python's own waits go on by themselves.
    """

    def __init__(self, number):
        self.number = number
        self.running = False
        self.period = None

    def handle(self, function):
        """Install the handler; in the main thread."""
        if self.number is not None:
            signal.signal(self.number, function)
            signal.siginterrupt(self.number, False)

    def handled_by(self, function):
        """Whether the signal is still ours; the program may have taken it since."""
        return self.number is None or signal.getsignal(self.number) == function

    def give_up(self):
        """End it for good: the signal would disturb the program. A thread samples instead."""
        self.stop()
        self.number = None

    def start(self, seconds):
        """Signal so often from now on; in the main thread."""
        if self.running or self.number is None or not sys.platform.startswith("linux"):
            return
        import ctypes

        class Event(ctypes.Structure):
            _fields_ = [
                ("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("thread", ctypes.c_int), ("rest", ctypes.c_char * 44),
            ]  # fmt: skip

        self.libc = ctypes.CDLL(None)
        self.spec = ctypes.c_long * 4
        self.timer = ctypes.c_void_p()
        event = Event(None, self.number, 4, _thread.get_native_id())  # 4: to one thread
        if not self.libc.timer_create(1, ctypes.byref(event), ctypes.byref(self.timer)):
            self.running = True
            self.every(seconds)

    def every(self, seconds):
        """Signal so often."""
        if not self.running or (self.period and abs(seconds - self.period) < 0.2 * self.period):
            return
        self.period = seconds
        whole, nano = int(seconds), int(seconds % 1 * 1e9)
        self.libc.timer_settime(self.timer, 0, self.spec(whole, nano, whole, nano), None)

    def stop(self):
        """End it."""
        if self.running:
            self.running, self.period = False, None
            self.libc.timer_delete(self.timer)


def free_signal():
    """The signal to use, or None where the program has it already.

    SIGURG is ignored by default: a program that resets its handlers, or that is ending, is not
    harmed by one that is still on its way.
    """
    try:
        if signal.getsignal(signal.SIGURG) == signal.SIG_DFL:
            return signal.SIGURG
    except (AttributeError, ValueError, OSError):
        pass
    return None
