"""How often the main thread is sampled, and for how long each of its samples stands: how long it
worked and slept, as the kernel counts it. Sampling may take 0.3 % of the time.
"""

from _flatout_own import __builtins__, _thread, os, read, time  # noqa: F401
from _flatout_timer import scheduled

INTERVAL = 0.010
COST = 0.003  # share of the time that sampling may take
DENSE = 150  # samples of the main thread after which they are taken half as often
HALVED = 2  # how many times that happens
RISE = 1.1  # maximum growth of the usual cost of a sample, from one sample to the next

AWAKE = 0.05  # a thread that sleeps for less than this share of the time does not sleep
STOPPED = 0.02  # a thread that stops for less than this share of the time has not waited for a core
MISSED = 20.0
"""Longest time, in intervals between looks, that is attributed to one look which finds the thread
waiting for a core. Such looks are rare, because the looking thread has to wait for a core, too."""
OWED = 8.0
"""Intervals between looks. A longer sleep that no look has found is one that no look could find."""
UNFOUND = 1.0  # seconds of waiting for a core that no look has found: none could find it
PROMPT = 0.001  # a thread that had the lock so soon did not have to wait for it


def usual_cost(before, cost):
    """Update the usual cost of a sample in seconds, after one that took `cost`.

    A sample that describes a new place takes long, but only once. It must not make the following
    samples rare.
    """
    return min(0.9 * before + 0.1 * cost, RISE * before + 1e-5)


class Pace:
    """The interval between samples, from what they cost and how many processes share the cores."""

    def __init__(self):
        self.used = INTERVAL * COST  # seconds that a sample usually takes
        self.taken = 0  # samples after the imports
        self.waits = 1.0  # how many times as long as it runs the main thread is ready to run
        self.crowd = 1.0  # how many times more rarely it is sampled for that reason
        self.delayed = None  # when the kernel's count was last read, and the count
        self.seed = os.getpid()

    def note(self, cost, ready):
        """Note that a sample took `cost` seconds; `ready`: after the imports."""
        self.taken += ready
        self.used = usual_cost(self.used, cost)

    def look(self, ready):
        """Measure how long the main thread was ready to run and had no core.

        All of these processes are sampled, and the share of the cores that each has is smaller.
        Waking a thread to sample it takes a core from another one.
        """
        now, delay = time.monotonic(), scheduled("self")[1]
        if self.delayed is not None and now > self.delayed[0]:
            share = (delay - self.delayed[1]) / (now - self.delayed[0])
            self.waits = 1.0 / (1.0 - min(max(share, 0.0), 0.8))
            self.crowd = self.waits**2 if ready else self.waits
        self.delayed = (now, delay)

    def interval(self, due):
        """Return the seconds between two samples: more if they are expensive, or already many.

        Args:
            due: whether the recorder waits for a sample, at which it can begin or end.
        """
        shortest = INTERVAL if due else INTERVAL * 2 ** min(self.taken // DENSE, HALVED)
        return (1.0 if due else self.crowd) * max(shortest, min(0.2, self.used / COST))

    def jittered(self, seconds):
        """Vary a time by up to a quarter, so that samples do not keep step with a loop."""
        self.seed = (1103515245 * self.seed + 12345) & 0x7FFFFFFF
        return seconds * (0.75 + 0.5 * self.seed / 2147483648.0)


class Spent:
    """The main thread's time, handed out to the samples of it; made in that thread.

    A sample that it takes itself stands for the time in which it has run since the last one. It
    takes none while it sleeps, or waits for a core: that time goes to the looks of the other thread
    that find it so. A look happens at any time, so the share of looks that find it asleep is that
    of its sleep; each stands for the time since the look before, as far as the thread has slept at
    all.

    Waiting for a core is work: the thread would go on if it had one.
    """

    def __init__(self, now):
        self.clock = time.pthread_getcpuclockid(_thread.get_ident())
        self.thread = "self/task/%d" % _thread.get_native_id()
        self.since = self.looked = self.until = now  # `until`: the end of the last sample
        ran = time.clock_gettime(self.clock)
        self.before = self.at_look = ran, scheduled(self.thread)[1]
        self.others = self.read_others()
        self.ran = self.waited = self.slept = self.idle = 0.0  # not handed out yet

    def read(self, now):
        """Return seconds that the thread has run up to now, and has waited for a core.

        Where it has run all the time the second number is the last one: the file would be most of
        what a sample costs, as little of that is in the processor's caches.
        """
        ran, waited = time.clock_gettime(self.clock), self.before[1]
        if now - self.since - (ran - self.before[0]) > STOPPED * (now - self.since):
            waited = scheduled(self.thread)[1]
        return ran, waited

    def read_others(self):
        """Return the CPU seconds of the process's other threads up to now."""
        return time.process_time() - time.clock_gettime(self.clock)

    def by_others(self):
        """Return the CPU seconds of the process's other threads since the last call."""
        before, self.others = self.others, self.read_others()
        return max(0.0, self.others - before)

    def update(self, now):
        """Return add what has gone by since the last time."""
        wall, total = now - self.since, self.read(now)
        ran, waited = (max(after - before, 0.0) for after, before in zip(total, self.before))
        ran = min(ran, wall)
        waited = min(waited, wall - ran)
        self.since, self.before = now, total
        self.ran += ran
        self.waited += waited
        self.slept += wall - ran - waited
        if wall > 0.0:
            self.idle += 0.1 * ((wall - ran) / wall - self.idle)

    def by_itself(self, now, late, interval):
        """Return seconds (all, of work) for a sample that the main thread takes itself, and whether
        the thread hardly ever stops. Its last `late` seconds of work count for the next sample;
        looks are `interval` seconds apart."""
        self.update(now)
        awake = self.idle < AWAKE
        waited = self.waited if awake else max(0.0, self.waited - UNFOUND)
        slept = self.slept if awake else max(0.0, self.slept - OWED * interval)
        return self.hand_out(max(0.0, self.ran - late), waited, slept), awake

    def hand_out(self, ran, waited, slept):
        """Return seconds (all, of work) of the next sample; samples stand for the time one after
        the other."""
        self.ran -= ran
        self.waited -= waited
        self.slept -= slept
        self.until += ran + waited + slept
        return ran + waited + slept, ran + waited

    def look(self, now, late):
        """Return whether the thread is ``asleep`` or ``waits`` for a core; an empty text if it
        runs, and None where that is unknown.

        This look waited `late` seconds for the interpreter's lock. Then the main thread may have
        had the lock, and sleep only because it was taken away.
        """
        self.update(now)
        gap = now - self.looked
        ran, waited = (after - before for after, before in zip(self.before, self.at_look))
        self.at_look = self.before
        if ran < 0.02 * gap:
            return "waits" if waited > 0.5 * gap else "asleep"
        if late > PROMPT:
            return None
        try:
            began = time.clock_gettime(self.clock)
            state = read("/proc/%s/stat" % self.thread).rpartition(b")")[2][1:2]
            if state in b"SD":
                return "asleep"
            return "waits" if time.clock_gettime(self.clock) == began else ""
        except OSError:
            return None

    def found(self, now, state):
        """Return seconds (all, of work) of a look that has found it in this state."""
        gap = max(now - self.looked, 0.0)
        if state == "waits":
            return self.hand_out(0.0, min(MISSED * gap, self.waited), 0.0)
        return self.hand_out(0.0, 0.0, min(gap, self.slept))
