"""Samples of all threads of a process, and the libraries that it has loaded."""

import _flatout_describe as read
from _flatout_own import LIBRARIES, __builtins__, os, sys  # noqa: F401
from _flatout_timer import scheduled

HERE = os.path.dirname(os.path.abspath(__file__))
CALM = 16  # samples without an import after which the imports are done
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")  # what launchers set
GIVEN = next(filter(str.isdigit, (os.environ.get(name, "") for name in RANKS)), None)
OF_C = sys.version_info < (3, 12)  # calls in C count for the limit, and no fork warns of threads


class Samples:
    """Notes for the probe where its process's threads are."""

    def __init__(self, probe):
        self.probe = probe
        self.calm = 0  # samples without an import
        self.libraries, self.numbers = set(), {}
        self.ran = {}  # seconds that each other thread had run at its last sample

    def note(self, now, dt, main, seconds):
        """Note where every thread is.

        Args:
            now, dt: the time, and the time since the last sample.
            main: the main thread's frame if that is the calling thread; else None.
            seconds: of the main thread (that its sample stands for, of work); None where unknown.

        A sample is [time, seconds that it stands for, thread, stack, compilation, seconds of work
        among these (None where unknown), and for the main thread those of all other threads and,
        if it waits for JAX's device while that learns, code and line of the learning call].
        """
        probe, seen, spent = self.probe, self.probe.seen, self.probe.spent
        elsewhere = None if spent is None else round(spent.by_others(), 5)
        for thread, frame in sys._current_frames().items():
            if thread in probe.own:
                continue
            of_main = thread == probe.main
            if main is not None and of_main:
                frame = main
            frame = outside(frame)
            if frame is None:
                continue
            stack, number, codes = seen.walk(thread, frame)
            deep = 2 * seen.depth > sys.getrecursionlimit() - 100
            if OF_C and deep and of_main and probe.timer.running:
                probe.timer.give_up("it recurses almost to Python's limit")
            lane = seen.lane(thread, of_main)
            if not probe.ready and of_main:
                self.mark_ready(codes)
            t, lasted, more = now, dt, []
            if not of_main:
                more = [self.work_of(thread)]
            elif seconds is not None:
                t, (lasted, worked) = spent.until, seconds
                more = [round(worked, 5), elsewhere]
                if worked < 0.5 * lasted and "jax" in self.libraries:
                    more += seen.learning_in_flight(frame)
            row = [round(t - probe.started, 5), round(lasted, 5), lane, stack, number]
            probe.writer.samples.append(row + more)
        frame = main = None  # no frame of the program outlives the sample

    def meet(self, file):
        """Return whether any thread of the program is in a function of this file."""
        frames = map(outside, sys._current_frames().values())
        return any(frame is not None and frame.f_code.co_filename == file for frame in frames)

    def work_of(self, thread):
        """Return the seconds of another thread's work since its last sample; None if unknown.

        Read from files: the clock of a thread that has just ended must not be asked for.
        """
        number = read.thread_attribute(thread, "_native_id")
        if number is None:
            return None
        ran = scheduled("self/task/%d" % number)[0]
        before, self.ran[thread] = self.ran.get(thread, ran), ran
        return round(max(0.0, ran - before), 5)

    def mark_ready(self, codes):
        """Report, once, that the program's imports are over."""
        files = [self.probe.seen.by_index[code].code.co_filename for code in codes]
        importing = any(file.startswith("<frozen importlib") for file in files)
        self.calm = 0 if importing else self.calm + 1
        if self.calm >= CALM:
            self.probe.ready = self.probe.seen.ready = True
            self.probe.line({"k": "main", **read.main_module()})
            self.report_ready()

    def report_ready(self):
        """Let `explain` know that this process's imports are over."""
        self.probe.writer.append("%d.ready" % os.getpid(), b"")

    def note_libraries(self):
        """Note when the big libraries appear, with their versions; PyTorch's threads; the rank;
        whether the interpreter has a lock."""
        for name in LIBRARIES:
            version = None if name in self.libraries else read.loaded(name, "__version__")
            if version is not None:
                self.libraries.add(name)
                self.probe.line({"k": "library", "name": name, "version": str(version)})
        count = read.built_in("torch", "get_num_threads")
        self.note_number("torch", "threads", None if count is None else count())
        self.note_number("rank", "rank", rank_of_process())
        locks = getattr(sys, "_is_gil_enabled", None)  # from Python 3.13 on
        self.note_number("gil", "on", None if locks is None else locks())

    def note_number(self, kind, name, number):
        """Write a number of the process, if it is known and has changed."""
        if number is not None and number != self.numbers.get(kind):
            self.numbers[kind] = number
            self.probe.line({"k": kind, name: number})


def rank_of_process():
    """Return the number of this process among those that exchange data: by PyTorch, else by what
    the launcher has set before the process began; or None."""
    world = read.loaded("torch.distributed.distributed_c10d", "_world")
    group = None if world is None else read.attribute_of(world, "_default_pg")
    if any(read.name_of(base) == "pybind11_object" for base in read.order_of(type(group))):
        return int(group.rank())  # in C++
    return None if GIVEN is None else int(GIVEN)


def outside(frame):
    """Return the innermost frame that is none of the probe's, which may run in a handler."""
    while frame is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    return frame
