"""Samples the Python program that it is loaded into, and writes what it sees to a folder.

Standard library only, Python 3.8 and later, and nothing of the program is patched (except where
`explain --against` counts, see `_flatout_count`; garbage collections have a callback):

- about every 10 ms of its own work the main thread notes between two of its instructions where it
  is, by a timer of the kernel. A thread that asks for the interpreter's lock instead, as sampling
  threads do, meets a program mostly where it lets go of the lock, and hardly ever in its own
  Python code;
- while the main thread sleeps or is in one long call, and where there is no such timer, a thread
  samples; else it sleeps, for a thread that asks for the lock costs more than it does;
- now and then the main thread's own calls are counted for some milliseconds (``sys.setprofile``).

The probe measures what sampling costs, and samples less often before that exceeds 0.3 % of the
time. It writes one file of JSON lines for each process; `flatout_explain.program.evidence` reads
them.
"""

import atexit

from _flatout_count import counter_of
from _flatout_describe import ended_by
from _flatout_garbage import Garbage
from _flatout_own import CPU, STDLIB, __builtins__, _thread, os, sys, time  # noqa: F401
from _flatout_pace import INTERVAL, Pace, Spent
from _flatout_record import Recorder
from _flatout_sample import OF_C, Samples
from _flatout_seen import Seen
from _flatout_timer import Timer, Watch, keep_signals_out
from _flatout_window import Windows
from _flatout_write import Writer

ARGV = list(map(str, getattr(sys, "orig_argv", None) or [sys.executable or "python"]))
FLUSH = 0.5
PATIENCE = 20  # failed samples
BLOCKED = 0.030  # a main thread that does not sample for this time is blocked
LATE = 1.5
"""While the main thread works, the other thread sleeps for this multiple of its `patience`. That is
longer than the time between two samples, because a woken thread asks for the interpreter's lock."""
LONG = 0.25  # seconds of work in one call, after which the other thread samples it
UNSEEN = 3  # intervals of work that it did not sample itself: something keeps it from that
ENVIRONMENT = type(os.environ).__getitem__.__code__.co_filename
STAND_INS = 50  # unsampled stretches in a row after which the report mentions it


def start(folder, restore):
    """Observe this process from now on; called once, while the interpreter starts.

    Once that ends, `restore` takes what loads the probe into new processes from `os.environ`.
    """
    atexit.register(observe(folder, restore).end)


def observe(folder, restore=None):
    """Observe this process from now on; the probe, whose `finish` ends it."""
    probe = Probe(folder, restore)
    probe.begin()
    if hasattr(os, "register_at_fork"):
        after, forked = probe.after_fork, probe.forked
        os.register_at_fork(before=probe.before_fork, after_in_parent=after, after_in_child=forked)
    return probe


class Probe:
    """One process's sampler."""

    def __init__(self, folder, restore):
        self.folder, self.restore = folder, restore
        self.main = _thread.get_ident()
        self.timer = None
        self.counter = counter_of(folder)
        self.garbage = Garbage(self)
        self.clear()

    def clear(self):
        """Forget what was seen: a new process begins."""
        self.life = self.watch = self.spent = self.recorder = None
        self.done = self.ticking = self.ready = self.forking = False
        self.writer = Writer(self.folder)
        self.line = self.writer.line
        self.seen = Seen(self.line)
        if self.counter is not None:
            self.seen.hidden = self.counter.hidden
        self.garbage.clear()
        self.windows = Windows(self)
        self.samples = Samples(self)
        self.failures = self.stand_ins = 0
        self.own = set()
        self.last = self.flushed = time.monotonic()
        self.woken = 0.0
        self.pace = Pace()
        self.turn = _thread.allocate_lock()  # one thread at a time samples and writes

    # --- The thread's life --------------------------------------------------------------------

    def begin(self):
        """Start sampling; in the main thread."""
        self.started = time.monotonic()
        self.line({
            "k": "process", "pid": os.getpid(), "t": self.started, "argv": ARGV,
            "python": list(sys.version_info[:3]), "stdlib": STDLIB,
        })  # fmt: skip
        self.flush()
        self.garbage.begin()
        if self.writer.is_asked_to("record"):
            self.recorder = Recorder(self.writer)
        if self.timer is None:
            self.timer = Timer(self.by_thread, self.counter is not None)
            self.timer.handle(self.tick)
        self.launch()

    def launch(self):
        """Start the thread, again after a fork; low-level: it is not among the program's own."""
        if self.done or self.forking or self.life is not None:
            return
        self.life = life = _thread.allocate_lock()  # given back by the thread when it ends
        life.acquire()
        if self.timer.number is not None and self.spent is None:
            try:
                self.spent = Spent(time.monotonic())
            except (AttributeError, OSError):
                self.timer.give_up("its work cannot be measured")
        _thread.start_new_thread(self.run, (life,))

    def before_fork(self):
        """End the probe's thread before the program forks."""
        life, watch, self.forking = self.life, self.watch, True
        if self.recorder is not None and _thread.get_ident() == self.main:
            self.recorder.give_way()  # a child that inherits a profiler would never stop it
        if life is not None and _thread.get_ident() not in self.own:
            self.life = None
            if watch is not None:
                watch.put_off(0.0)
            life.acquire(True, 0.2)  # one that is late ends by itself
            for _ in range(2000):
                if not os.access("/proc/self/task/%d" % self.task, os.F_OK):
                    break  # the kernel no longer counts it, either
                time.sleep(0.0001)

    def after_fork(self):
        """Start the thread again in the parent: from Python 3.12 on once `os.fork` has returned,
        which warns of threads after the last such function."""
        self.forking = False
        self.windows.end()
        if self.done:
            return
        if OF_C or sys.getprofile() is not None or sys.gettrace() is not None:
            self.launch()
        else:
            sys.setprofile(self.launcher(sys._getframe(1)))

    def launcher(self, caller):
        """Return a profile function that starts the thread as soon as the function that `caller`
        now calls has returned."""
        instruction = caller.f_lasti

        def profile(frame, event, arg):
            inner = frame
            while inner is not None and inner.f_back is not caller:
                inner = inner.f_back
            if inner is None or caller.f_lasti != instruction:
                sys.setprofile(None)
                self.launch()

        return profile

    def forked(self):
        """Begin again, in a child process."""
        done = self.done
        self.windows.end()
        self.clear()
        self.main = _thread.get_ident()
        self.timer.main = self.main
        self.timer.running = False  # the kernel's is not inherited
        self.timer.renew = self.renew if self.timer.gave_way else None
        if self.counter is not None:
            self.counter.forked()
        if done or self.writer.is_asked_to("stop"):
            self.cease()
        else:
            self.begin()

    def renew(self):
        """Sample by the timer again: a server that forked this process has an event loop, and this
        process has none."""
        self.before_fork()
        self.forking = False
        self.timer.handle(self.tick)
        self.launch()

    def end(self):
        """Write the rest, as the interpreter ends."""
        self.finish(ended_by())

    def finish(self, error=None):
        """End the observation and write the rest; `error` is what ends the program."""
        self.timer.end()
        self.before_fork()
        self.done = True
        self.windows.end()
        self.windows.close()  # nothing is counted after the end
        self.windows.write()
        self.garbage.write()
        self.seen.catch_up()
        self.garbage.end()
        if self.counter is not None:
            self.counter.note(time.monotonic())
        if self.recorder is not None:
            self.recorder.give_way()
            self.recorder.close()
        row = {"k": "end", "t": time.monotonic()}
        if error is not None:
            row["error"] = error
        self.line(row)
        self.flush()
        self.samples.report_ready()  # nobody needs to wait for its imports

    def run(self, life):
        """Sample and write while the main thread does not; the body of the probe's thread."""
        own, self.task = _thread.get_ident(), _thread.get_native_id()
        self.own.add(own)
        watch = None
        try:
            keep_signals_out({self.timer.number})
            if self.spent is not None:
                self.timer.start(INTERVAL, self.spent.clock)
            if self.timer.running:
                try:
                    watch = self.watch = Watch()
                    watch.put_off(BLOCKED)
                except (AttributeError, OSError, ValueError):
                    pass
            self.stand_in(life, watch)
        except Exception as error:
            self.fail(error)
        finally:
            if watch is not None:
                watch.kernel.delete()
                if self.watch is watch:
                    self.watch = None
            self.own.discard(own)
            life.release()

    def fail(self, error):
        """Give up; the program continues."""
        self.done, self.life = True, None
        try:
            self.garbage.end()
            self.timer.stop()
            self.line({"k": "failed", "error": "%s: %s" % (type(error).__name__, error)})
            self.flush()
        except Exception:
            pass

    def stand_in(self, life, watch):
        """Sample for a main thread that sleeps or is blocked, until another thread does."""
        while self.life is life:
            seconds = self.pace.jittered(self.interval())
            patience = self.pace.jittered(self.patience())
            if watch is not None and self.timer.running:
                late = watch.wait()
            else:
                late = 0.0
                keep_signals_out(set())
                time.sleep(patience if self.timer.running else seconds)
            found = False
            if self.life is life and self.turn.acquire(False):  # else the other thread is at it
                try:
                    found = self.look(late)
                    if self.recorder is not None:
                        self.record(None)
                except Exception as error:
                    self.stumble(error)
                finally:
                    self.turn.release()
            if watch is not None:
                watch.put_off(seconds if found else patience)

    def look(self, late):
        """Look at the main thread once; return whether it was asleep, or did not sample itself."""
        now, self.woken = time.monotonic(), CPU()
        blocked = now - self.last > 0.9 * self.patience() or not self.timer.running
        spent = self.spent
        if spent is None or not self.timer.running:
            if blocked:
                self.attempt(None, None)
            return blocked
        state = spent.look(now, late)
        try:
            if state:
                self.attempt(None, spent.found(now, state))
            elif state is None:  # at work in Python, which it samples itself if it can
                blocked = spent.ran > UNSEEN * self.work()
                self.stand_ins += blocked
                if self.stand_ins == STAND_INS and blocked:
                    self.by_thread("its stack is deep, or it has a profile or trace function")
            if blocked and not state and spent.ran + spent.waited > LONG:
                self.attempt(None, spent.hand_out(spent.ran, spent.waited, 0.0))
        finally:
            spent.looked = now
        return blocked or bool(state)

    def attempt(self, frame, seconds):
        """Take a sample that stands for `seconds`, or all since the last; write now and then."""
        now = time.monotonic()
        dt, self.last = now - self.last, now
        self.samples.note(now, dt, frame, seconds)
        if self.counter is not None:
            self.counter.look(now)
        self.pace.note(CPU() - self.woken, self.ready)
        if self.last - self.flushed >= FLUSH:
            self.flushed = self.last
            self.write()

    def stumble(self, error):
        """Note that a sample failed; after too many, give up."""
        self.failures += 1
        if self.failures > PATIENCE:
            self.fail(error)

    def write(self):
        """Write what there is, and look whether enough was seen."""
        self.samples.note_libraries()
        self.windows.write()
        self.garbage.write()
        self.seen.catch_up()
        self.flush()
        stops = self.writer.is_asked_to("stop") and not self.samples.meet(ENVIRONMENT)
        if stops and (self.recorder is None or self.recorder.close()):
            self.flush()
            self.cease()
            self.timer.stop()
        elif not self.timer.handled():
            self.timer.give_up("it has taken the probe's signal")
        self.pace.look(self.ready)
        self.timer.every(self.pace.jittered(self.work()))

    def by_thread(self, why):
        """Note why the second thread samples the main one."""
        self.line({"k": "thread", "why": why})

    def interval(self):
        """Return the seconds between two samples of the main thread."""
        return self.pace.interval(self.recorder is not None and self.recorder.due())

    def work(self):
        """Return the interval in seconds of work, for a clock that stops while waiting for a
        core."""
        return self.interval() / self.pace.waits

    def patience(self):
        """Return the longest time between two looks of the other thread, in seconds."""
        return max(self.pace.crowd * BLOCKED, self.interval())

    def tick(self):
        """Take a sample in the main thread, between two of its instructions; never runs twice."""
        early = time.monotonic() - self.last < 0.3 * INTERVAL
        if self.ticking or self.done or self.life is None or early:
            return ""  # a signal may interrupt its own handler
        if not self.timer.running or not self.turn.acquire(False):  # the other thread is at it
            return ""
        self.ticking, self.woken = True, CPU()
        try:
            self.windows.close()  # no profile function is there: the program has ended it
            seconds, awake = None, True
            if self.spent is not None:
                late = self.timer.kernel.elapsed()  # a long call in C holds up the signal
                seconds, awake = self.spent.by_itself(time.monotonic(), late, self.patience())
            if self.watch is not None and awake:
                self.watch.put_off_by_main(LATE * self.patience())
            if self.timer.blocked():
                self.timer.give_up("the main thread has blocked its signal")
                return ""
            self.stand_ins = 0
            self.attempt(sys._getframe(1), seconds)
            recording = self.recorder is not None and self.record(sys._getframe(1))
            if self.ready and not recording:
                self.windows.begin(self.last, self.pace.waits)
        except Exception as error:  # must not reach the program
            self.stumble(error)
        finally:
            self.ticking = False
            self.turn.release()
        return ""

    def record(self, frame):
        """Start or stop the program's profiler if it is time; return whether it is at work.

        `frame` is the main thread's if that is the calling thread; else None.
        """
        if self.ready and self.recorder.tick(frame, self.main in self.seen.held):
            self.flush()
            self.timer.every(self.work())
            self.last = time.monotonic()  # the time that this took is no sample's
            if self.spent is not None:
                self.spent.by_itself(self.last, 0.0, self.patience())
        return self.recorder.profiler is not None

    def flush(self):
        """Write what has come together; where that fails, observing ends."""
        counts = None if self.counter is None else self.counter.row()
        if counts is not None:
            self.line(counts)
        if not self.writer.flush():
            self.cease()

    def cease(self):
        """Observe no more, neither this process nor those that it starts."""
        self.done, self.life = True, None
        self.garbage.end()
        restore, self.restore = self.restore, None
        if restore is not None:
            try:
                restore(os.environ)
            except Exception:  # of a stand-in of the program's
                pass
