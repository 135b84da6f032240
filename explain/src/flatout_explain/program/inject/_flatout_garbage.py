"""Counts Python's garbage collections and their time, by the interpreter's own callbacks."""

import gc

import _flatout_describe as read
from _flatout_own import __builtins__, sys, time  # noqa: F401
from _flatout_source import is_users

OFTEN = 0.002  # seconds of collecting, after which it is noted where a collection began


class Garbage:
    """The collections of one process.

    PyPy has no such callbacks: then nothing is counted. A program that removes this one from
    `gc.callbacks` ends the counting.
    """

    def __init__(self, probe):
        self.probe = probe
        self.callbacks = getattr(gc, "callbacks", None)
        self.note = self.callback(gc.get_count, gc.get_threshold, gc.isenabled)
        self.clear()

    def clear(self):
        """Forget what was counted: a new process begins."""
        self.times, self.seconds = [0, 0, 0], [0.0, 0.0, 0.0]
        self.asked = 0.0  # seconds of collections that the program called for
        self.owed = 0.0  # seconds of collections whose place is not noted
        self.places = {}  # (code, line) of the program's own -> seconds

    def begin(self):
        """Count from now on; windows and stacks leave this out."""
        if self.callbacks is not None:
            read.COLLECTING.add(self.note.__code__)
            codes = (getattr(one, "__code__", None) for one in (self.note, time.perf_counter))
            self.probe.seen.hidden = {*map(id, filter(None, codes)), *self.probe.seen.hidden}
            if self.note not in self.callbacks:
                self.callbacks.append(self.note)

    def end(self):
        """Count no more."""
        if self.callbacks is not None and self.note in self.callbacks:
            self.callbacks.remove(self.note)

    def callback(self, count, threshold, automatic):
        """Return the function that the interpreter calls before and after each collection."""
        clock, began, calls = time.perf_counter, 0.0, False

        def collected(event, about):
            nonlocal began, calls
            if event == "start":
                # A collection that nobody has called for follows from too many new objects.
                calls = not automatic() or count()[0] <= threshold()[0]
                began = clock()
                return
            if not began:
                return  # it had begun before the counting
            spent, began = clock() - began, 0.0
            generation = about["generation"]
            self.times[generation] += 1
            self.seconds[generation] += spent
            self.asked += spent if calls else 0.0
            self.owed += spent
            if self.owed > OFTEN and sys.getprofile() is None:  # else a window is open
                self.note_place(sys._getframe())

        return collected

    def note_place(self, frame):
        """Note at which line of the program's own collecting took the time."""
        probe, owed, self.owed = self.probe, self.owed, 0.0
        if not probe.turn.acquire(False):  # another thread samples
            return
        try:
            # What is seen for the first time is described later: that makes syntax trees.
            while (frame := probe.seen.unhidden(frame)) is not None:
                if is_users(frame.f_code.co_filename) and frame.f_lineno is not None:
                    place = frame.f_code, frame.f_lineno
                    self.places[place] = self.places.get(place, 0.0) + owed
                    return
                frame = frame.f_back
        except Exception:  # must not reach the program
            pass
        finally:
            probe.turn.release()

    def write(self):
        """Write the counts up to now, as long as they are complete."""
        if self.callbacks is None or self.note not in self.callbacks:
            return
        places, self.places = self.places, {}
        index = self.probe.seen.index_of
        seconds = [round(spent, 6) for spent in self.seconds]
        self.probe.line({
            "k": "garbage", "t": round(time.monotonic() - self.probe.started, 5),
            "times": list(self.times), "seconds": seconds, "asked": round(self.asked, 6),
            "places": [[index(code), line, round(s, 6)] for (code, line), s in places.items()],
        })  # fmt: skip
