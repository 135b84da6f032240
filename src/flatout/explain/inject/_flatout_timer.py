"""The kernel's timers: one makes the main thread sample, the other wakes the thread that does so
while the main thread does not answer.

Standard library only, Python 3.8 and later.
"""

import _thread
import signal
import sys
import time

sleep = time.sleep  # what it is before the program may replace it


class Timer:
    """A timer of the kernel that signals the main thread, which samples between two instructions.

    The signal restarts system calls (SA_RESTART), and Python's own waits go on by themselves.
    """

    def __init__(self, number):
        self.number = number
        self.running = False

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
        self.kernel = KernelTimer(self.number)
        self.running = True
        self.every(seconds)

    def every(self, seconds):
        """Signal so often."""
        if self.running:
            self.kernel.set(seconds, seconds)

    def stop(self):
        """End it."""
        if self.running:
            self.running = False
            self.kernel.delete()


class Watch:
    """What the sampling thread waits for: that the main thread has not put it off for a while.

    It waits without asking for the interpreter's lock. A thread that does ask for it is woken in
    vain each time when the main thread lets go of the lock for an instant, as NumPy and PyTorch do
    thousands of times a second: that may last for seconds, and cost the program a tenth of them.

    Made in the thread that is to wait. The signal is blocked there, and never handled.
    """

    def __init__(self, number):
        self.number = number
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])
        self.kernel = KernelTimer(number)
        self.due = float("inf")

    def put_off(self, seconds):
        """Wake the thread after so many seconds from now, unless put off again."""
        self.due = time.monotonic() + seconds
        self.kernel.set(seconds, 0.0)

    def put_off_by_main(self, seconds):
        """The main thread is at work: wake the thread after so many seconds at the earliest."""
        rest = self.due - time.monotonic()
        if rest < 0.0:
            sleep(0.0002)  # it is awake already, and waits for the lock: let it have it
        if rest < seconds:  # at twice that, so that not every call is the kernel's
            self.put_off(2 * seconds)

    def wait(self):
        """Wait for that."""
        signal.sigwait([self.number])

    def end(self):
        """No more is to be waited for."""
        self.kernel.delete()


class KernelTimer:
    """A POSIX timer that signals the thread that it is made in; an `OSError` where there is none.

    Its calls are short, so they keep the interpreter's lock.
    """

    def __init__(self, number):
        import ctypes

        class Event(ctypes.Structure):
            _fields_ = [
                ("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("thread", ctypes.c_int), ("rest", ctypes.c_char * 44),
            ]  # fmt: skip

        self.libc = ctypes.PyDLL(None)
        self.spec = ctypes.c_long * 4
        self.timer = ctypes.c_void_p()
        event = Event(None, number, 4, _thread.get_native_id())  # 4: to one thread
        if self.libc.timer_create(1, ctypes.byref(event), ctypes.byref(self.timer)):
            raise OSError("no timer")

    def set(self, seconds, then):
        """Signal after `seconds`, and every `then` seconds where that is not 0."""
        spec = self.spec(
            int(then), int(then % 1 * 1e9), int(seconds), max(1, int(seconds % 1 * 1e9))
        )
        if self.timer is not None:
            self.libc.timer_settime(self.timer, 0, spec, None)

    def delete(self):
        """End it."""
        timer, self.timer = self.timer, None
        if timer is not None:
            self.libc.timer_delete(timer)


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
