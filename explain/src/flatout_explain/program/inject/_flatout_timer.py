"""The kernel's timers: one makes the main thread sample, the other wakes the thread that does so
while the main thread sleeps.
"""

from functools import partial, reduce, wraps
from itertools import accumulate, chain, repeat, starmap
from operator import and_, contains, floordiv, is_

from _flatout_own import __builtins__, _thread, ctypes, os, read, signal, sys, time  # noqa: F401

REAL_TIME = 1  # the machine's monotonic clock
TO_PROCESS, TO_THREAD = 0, 4  # to whom a timer sends its signal
CLOCK_KIND, USER_TIME = 3, 1  # bits of a processor clock's number; of them, time in the program

FORWARDED = sys.version_info >= (3, 13)  # another thread's signal reaches the main thread
TOOLS = 6  # of `sys.monitoring`; two more are those of profile and trace functions
ROOM = 3  # a stack is too deep from a third of Python's limit on: calls in C count there, too
FAULTS = {signal.SIGSEGV, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
EVENTS = "its event loop is notified of every signal"
UNUSED = getattr(signal, "SIGRTMAX", 69) - 5  # one of those that have no meaning


class Timer:
    """Makes the main thread sample between two instructions, by its own processor clock.

    That clock stands still while the thread sleeps: no call of the program's is interrupted, and
    none that writes returns early (`uninterrupting`). From Python 3.13 on the sampling thread gets
    the signal. Before, a signal of another thread reaches the main thread only when that takes
    Python's lock, so the main thread gets the signal itself. It is sent to the process:
    where the main thread has blocked it, the sampling thread gets it, and none is left for the
    program to wait for (`signal.sigwait`).
    """

    def __init__(self, say, held=False):
        self.held = held  # whether `explain` stops the program from time to time
        self.running = False
        self.number = self.handler = self.stand_in = None
        self.renew = None  # called where a forked child ends the event loop that it has inherited
        self.gave_way = False  # whether it was given up for an event loop
        self.main = _thread.get_ident()
        self.say = say  # takes the reason why there is no timer

    def handle(self, function):
        """Call `function`, which returns an empty text, from now on; in the main thread."""
        try:
            self.number = free_number(signal.SIGURG if self.held else signal.SIGCONT)
            self.handler = guarded(function)
            signal.signal(self.number, self.handler)
            signal.siginterrupt(self.number, False)
            if self.stand_in is None:
                self.give_way_to_event_loops()
        except Exception as error:
            self.give_up(str(error))

    def give_way_to_event_loops(self):
        """End the timer before the program has Python write its signals to a descriptor.

        An event loop that handles signals has each one written there. Ours would wake it up each
        time, and would fill the descriptor's buffer, so that its own are lost. Afterwards even the
        first of ours would be written: `signal.set_wakeup_fd` gets a stand-in.
        """
        original = signal.set_wakeup_fd
        descriptor = original(-1)
        if descriptor != -1:  # in a program that runs already
            original(descriptor, warn_on_full_buffer=False)
            raise OSError(EVENTS)

        @wraps(original)
        def set_wakeup_fd(fd, *arguments, **named):
            if fd != -1 and self.number is not None and _thread.get_ident() == self.main:
                try:
                    self.give_up(EVENTS)
                except Exception:  # must not reach the program
                    pass
            before = original(fd, *arguments, **named)
            if fd == -1 and self.renew is not None and _thread.get_ident() == self.main:
                renew, self.renew = self.renew, None
                try:
                    renew()
                except Exception:  # must not reach the program
                    pass
            return before

        self.stand_in = set_wakeup_fd
        replace_in_signal(original, set_wakeup_fd)

    def handled(self):
        """Return whether the number is still ours; the program may have taken it since."""
        return self.number is None or signal.getsignal(self.number) == self.handler

    def give_up(self, why):
        """End the timer, because it would disturb the program. A thread samples instead."""
        self.stop()
        if self.number is not None and _thread.get_ident() == self.main and self.handled():
            signal.signal(self.number, signal.SIG_DFL)  # which drops one that is on its way
        self.number, self.gave_way = None, why == EVENTS
        self.say(why)

    def start(self, seconds, clock):
        """Sample every `seconds` of a clock of work from now on; in the sampling thread."""
        if self.number is None or (self.running and not FORWARDED):
            return
        self.stop()
        try:
            whom = TO_THREAD if FORWARDED else TO_PROCESS
            self.kernel = KernelTimer(self.number, uninterrupting(clock), whom)
            self.running = True
        except Exception as error:
            self.give_up("no timer on its processor clock: %s" % error)
        self.every(seconds)

    def blocked(self):
        """Return whether this thread has blocked its signal."""
        return self.number in signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def every(self, seconds):
        """Sample every `seconds`."""
        if self.running:
            self.kernel.set(seconds, seconds)

    def stop(self):
        """End it."""
        if self.running:
            self.running = False
            self.kernel.delete()

    def end(self):
        """End the timer as the interpreter ends, in the main thread: a late signal does nothing."""
        self.stop()
        replace_in_signal(self.stand_in, signal.set_wakeup_fd)
        if self.number is not None and self.handled():
            signal.signal(self.number, signal.SIG_DFL)


def uninterrupting(clock):
    """Return a clock of the thread's work whose timer never sends its signal within a system call.

    A signal within a large write makes that return early, with a part written. On x86 Linux sends
    the signals of processor clocks between two system calls (5.9 and later). Elsewhere it may send
    them at any tick of the clock: the thread's time outside of the kernel has its ticks there.
    """
    system = os.uname()
    release = system.release.replace("-", ".").split(".")
    known = system.machine == "x86_64" and all(map(str.isdigit, release[:2]))
    if FORWARDED or (known and tuple(map(int, release[:2])) >= (5, 9)):
        return clock
    return (clock & ~CLOCK_KIND) | USER_TIME


def replace_in_signal(old, new):
    """Replace `set_wakeup_fd` in the program's modules, where it is `old`."""
    for name in ("_signal", "signal"):
        module = sys.modules.get(name)
        if old is not None and getattr(module, "set_wakeup_fd", None) is old:
            module.set_wakeup_fd = new


def scheduled(thread):
    """Return the seconds for which a thread has run and waited for a core; zeros if unknown."""
    try:
        ran, waited = read("/proc/%s/schedstat" % thread).split()[:2]
        return 1e-9 * int(ran), 1e-9 * int(waited)
    except (OSError, ValueError):
        return 0.0, 0.0


def keep_signals_out(ours):
    """Block all signals but `ours` and those of faults, in the sampling thread: a signal that the
    program blocks and waits for must not be delivered here."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - FAULTS - ours)


def guarded(function):
    """Return a handler that calls `function` only if no profile function, no trace function and no
    tool of `sys.monitoring` would see the call, and if the stack leaves room for it: a
    RecursionError would reach the program.

    Only built-in functions may decide that: any function in Python, this one too, would be seen,
    and may be one call too many. Before Python 3.12 their calls count, too: with fewer than five
    left the error does reach the program.
    """

    def asked(function):
        return starmap(function, repeat(()))

    observers = [sys.getprofile, sys.gettrace]
    if hasattr(sys, "monitoring"):
        observers += [partial(sys.monitoring.get_tool, number) for number in range(TOOLS)]
    unseen = [map(is_, asked(one), repeat(None)) for one in observers]
    limit = map(floordiv, asked(sys.getrecursionlimit), repeat(ROOM))
    steps = map(partial(repeat, "f_back"), limit)
    start = map(repeat, asked(sys._getframe), repeat(1))
    stack = map(accumulate, map(chain, start, steps), repeat(getattr))  # with None at its end
    suited = reduce(partial(map, and_), [map(contains, stack, repeat(None)), *unseen])
    either = (partial(str), partial(function))
    calls = map(partial.__call__, map(either.__getitem__, suited))

    class Handler:
        __format__ = staticmethod(partial(next, calls))

    return partial("{0}".format, Handler())  # and not what the handler is given


class Watch:
    """Wakes the sampling thread once the main thread has not put it off for a while.

    It waits without asking for the interpreter's lock. A thread that does ask for it is woken in
    vain each time when the main thread lets go of the lock for an instant, as NumPy and PyTorch do
    thousands of times a second: that may last for seconds, and cost the program a tenth of them.

    Made in the thread that is to wait. Its signal is blocked there, and never handled.
    """

    def __init__(self):
        self.number = UNUSED
        self.kernel = KernelTimer(self.number)
        self.due = float("inf")

    def put_off(self, seconds):
        """Wake the thread `seconds` from now, unless put off again."""
        self.due = time.monotonic() + seconds
        self.kernel.set(seconds, 0.0)

    def put_off_by_main(self, seconds):
        """Wake the sampling thread after `seconds`, because the main thread is at work."""
        if self.due < time.monotonic():
            time.sleep(0.0002)  # it is awake already, and waits for the lock: let it have it
        self.put_off(seconds)

    def wait(self):
        """Wait; return the seconds for which this thread waited for the interpreter's lock."""
        before = scheduled("thread-self")[1]
        signal.sigwait([self.number])
        return time.monotonic() - self.due - (scheduled("thread-self")[1] - before)


class KernelTimer:
    """A POSIX timer of the thread that it is made in; an exception where there is none.

    Its calls are short, so they keep the interpreter's lock.
    """

    def __init__(self, number, clock=REAL_TIME, whom=TO_THREAD):
        class Event(ctypes.Structure):
            _fields_ = (("value", ctypes.c_void_p), ("signal", ctypes.c_int),
                        ("notify", ctypes.c_int), ("thread", ctypes.c_int),
                        ("rest", ctypes.c_char * 44))  # fmt: skip

        self.libc = ctypes.PyDLL(None)
        if not hasattr(self.libc, "timer_create"):  # before glibc 2.34
            self.libc = ctypes.PyDLL("librt.so.1")
        self.spec = ctypes.c_long * 4
        self.period = 0.0
        self.timer = ctypes.c_void_p()
        event = Event(number, number, whom, _thread.get_native_id() if whom == TO_THREAD else 0)
        if self.libc.timer_create(clock, ctypes.byref(event), ctypes.byref(self.timer)):
            raise OSError("the kernel makes none")

    def set(self, seconds, then):
        """Go off after `seconds`, and every `then` seconds where that is not 0."""
        spec = self.spec(
            int(then), int(then % 1 * 1e9), int(seconds), max(1, int(seconds % 1 * 1e9))
        )
        self.period = then
        if self.timer is not None:
            self.libc.timer_settime(self.timer, 0, spec, None)

    def elapsed(self):
        """Return the seconds on the timer's clock since it last went off."""
        spec = self.spec()
        if self.timer is None or self.libc.timer_gettime(self.timer, spec):
            return 0.0
        return min(max(self.period - spec[2] - 1e-9 * spec[3], 0.0), self.period)

    def delete(self):
        """End it."""
        timer, self.timer = self.timer, None
        if timer is not None:
            self.libc.timer_delete(timer)


def free_number(number):
    """Return the signal to send; raise an `OSError` if the program uses it, or without timers.

    It does nothing to a process without a handler: a program that resets its handlers, or that is
    ending, is not harmed by one that is still on its way. SIGCONT is one that programs hardly ever
    use. It would let a stopped program go on.
    """
    if ctypes is None or not sys.platform.startswith("linux"):
        raise OSError("only Linux has one, and Python's ctypes makes it")
    if signal.getsignal(number) != signal.SIG_DFL:
        raise OSError("the program has signal %d" % number)
    return number
