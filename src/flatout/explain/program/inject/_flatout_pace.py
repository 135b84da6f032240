"""How often the main thread is sampled: sampling may take 0.3 % of the time."""

from _flatout_own import __builtins__, os, time  # noqa: F401
from _flatout_timer import scheduled

INTERVAL = 0.010
COST = 0.003  # share of the time that sampling may take
DENSE = 150  # samples of the main thread after which they are taken half as often
HALVED = 2  # how many times that happens
RISE = 1.1  # maximum growth of the usual cost of a sample, from one sample to the next


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
