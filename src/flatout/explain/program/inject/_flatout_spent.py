"""How long the main thread worked and slept, and the process's other threads worked, as the kernel
counts it.
"""

from _flatout_own import __builtins__, _thread, read, time  # noqa: F401
from _flatout_timer import scheduled

AWAKE = 0.05  # a thread that sleeps for less than this share of the time does not sleep
MISSED = 4.0  # a look stands for so many times the time since the last one, at most
OWED = 0.15  # seconds of sleep that no look has found: it was none that could be found
PROMPT = 0.001  # a thread that had the lock so soon did not have to wait for it


class Spent:
    """The main thread's time, handed out to the samples of it; made in that thread.

    A sample that it takes itself stands for the time in which it has worked since the last one. It
    takes none while it sleeps: that time goes to the looks of the other thread that find it asleep.
    A look happens at any time, so the share of looks that find it asleep is that of its sleep; each
    stands for the time since the look before, as far as the thread has slept at all.

    Waiting for a core is work, because the thread would go on if it had one. A thread that sleeps
    often waits for a core whenever it is woken: that belongs to what it slept for, in the part of
    the switches in which it had gone to sleep itself.
    """

    def __init__(self, now):
        self.clock = time.pthread_getcpuclockid(_thread.get_ident())
        self.thread = "self/task/%d" % _thread.get_native_id()
        self.since = self.looked = self.told = now
        self.before, self.switches = self.read(), self.read_switches()
        self.done = self.at_look = 0.0  # seconds of work
        self.others = self.read_others()
        self.worked = self.slept = self.idle = 0.0

    def read(self):
        """Seconds that the thread has run up to now, and has waited for a core."""
        return time.clock_gettime(self.clock), scheduled(self.thread)[1]

    def read_switches(self):
        """How often the thread has gone to sleep, and has lost its core."""
        try:
            text = read("/proc/%s/status" % self.thread, 8192)
            words = text[text.index(b"voluntary_ctxt_switches:") :].split()
            return int(words[1]), int(words[3])
        except (OSError, LookupError, ValueError):
            return 0, 0

    def woken(self):
        """The share of its switches since this was last asked in which it had gone to sleep."""
        before, self.switches = self.switches, self.read_switches()
        slept, lost = (now - then for now, then in zip(self.switches, before))
        return slept / (slept + lost) if slept + lost > 0 else 0.0

    def read_others(self):
        """CPU seconds of the process's other threads up to now."""
        return time.process_time() - time.clock_gettime(self.clock)

    def by_others(self):
        """CPU seconds of the process's other threads since this was last asked."""
        before, self.others = self.others, self.read_others()
        return max(0.0, self.others - before)

    def update(self, now):
        """Add what has gone by since the last time."""
        wall, total = now - self.since, self.read()
        ran, waited = (max(after - before, 0.0) for after, before in zip(total, self.before))
        work = min(ran + waited, wall)
        if waited > AWAKE * wall and wall - work > AWAKE * wall:
            work = min(ran + waited * (1.0 - self.woken()), wall)
        self.since, self.before = now, total
        self.done += work
        self.worked += work
        self.slept += wall - work
        if wall > 0.0:
            self.idle += 0.1 * ((wall - work) / wall - self.idle)

    def by_itself(self, now, late):
        """For a sample that the main thread takes, `late` by so many seconds of work, seconds (all,
        of work); and whether it hardly sleeps. What it did since then goes to the next sample."""
        self.update(now)
        awake = self.idle < AWAKE
        rest = self.slept if awake else max(0.0, self.slept - OWED)
        return self.hand_out(max(0.0, self.worked - late), rest), awake

    def hand_out(self, worked, slept):
        """Seconds (all, of work) of the next sample; samples stand for the time one after the
        other."""
        self.worked -= worked
        self.slept -= slept
        self.told += worked + slept
        return worked + slept, worked

    def look(self, now, late):
        """Whether the thread is asleep; None where that cannot be told.

        This look was `late` by so many seconds, in which it waited for the interpreter's lock. Then
        the main thread may have had it, and sleep only because it was taken away.
        """
        self.update(now)
        work = self.done - self.at_look
        self.at_look = self.done
        if work < 0.02 * (now - self.looked):
            return True
        if late > PROMPT:
            return None
        try:
            return read("/proc/%s/stat" % self.thread).rpartition(b")")[2][1:2] in b"SD"
        except OSError:
            return None

    def asleep(self, now):
        """Seconds (all, of work) of a look that has found it asleep."""
        return self.hand_out(0.0, min(MISSED * max(now - self.looked, 0.0), self.slept))
