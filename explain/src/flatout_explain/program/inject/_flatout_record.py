"""Lets the program's own profiler record for some seconds, once the program is steady.

That is PyTorch's or JAX's, whichever the program computes with. It is started and stopped by its
built-in functions, so that none of the program's Python code runs; PyTorch's in the main thread, at
a tick, because it records the thread that starts it. Python functions are not recorded: that would
slow the program down several times, and the samples have its lines.

A profiler that the program uses itself is left alone. One that the program starts meanwhile ends
the recording first, as there can be only one: for that, while it lasts, two functions of PyTorch's
profiler or the lock of JAX's have stand-ins.
"""

import warnings
from atexit import register
from gc import get_referrers

from _flatout_describe import attribute_of, loaded
from _flatout_own import __builtins__, _thread, os, read, sys, time  # noqa: F401

IGNORED = [("ignore", None, Warning, None, 0)]
MARK = "flatout explain"  # an event of the trace, at a time that is known
LEVEL, SILENT = "KINETO_LOG_LEVEL", "6"  # PyTorch's profiler writes to stderr otherwise
UNMET = (
    "its main thread could not start it, as happens while a profile or trace function is set, or "
    "during one long call"
)
NEITHER = "it uses neither PyTorch nor JAX"
GUARDED = (
    "_tensor.py", "autograd/", "profiler/", "_dynamo/", "_functorch/", "_inductor/", "fx/",
    "utils/_python_dispatch", "utils/checkpoint",
)  # fmt: skip
"""PyTorch's modules whose functions call, or are called, where a thread's state is restored."""

BACKWARD = ("_tensor.py", "autograd/__init__.py", "autograd/graph.py")
"""Those of the functions that start a backward pass: the state is restored when it returns."""


class Recorder:
    """The recording of one process.

    The file ``record`` of the folder says how many seconds it lasts, and after how many without
    imports and compiling it begins.
    """

    def __init__(self, writer):
        self.seconds, self.steady = map(float, read("%s/record" % writer.folder).split())
        self.writer, self.line, self.pid = writer, writer.line, os.getpid()
        self.profiler = None  # the one that is at work
        self.since = None  # when the program was last not steady
        self.turn = _thread.allocate_lock()  # one thread at a time stops the profiler
        self.until = float("inf")
        self.over = False
        self.why = "no %g s without imports and compiling were seen" % self.steady

    def tick(self, frame, compiling):
        """Begin or end the recording if it is time; return whether that was done.

        Args:
            frame: the main thread's if that is the calling thread; else None.
        """
        now = time.monotonic()
        if self.over:
            return False
        profiler = self.profiler
        if profiler is not None:
            return now >= self.until and profiler.may(frame) and self.finish()
        if compiling or self.since is None:
            self.since = now
        if now - self.since < self.steady:
            return False
        profiler = chosen()
        if profiler is None or not profiler.may(frame):
            self.why = NEITHER if profiler is None else UNMET
            return False
        if profiler.in_use():
            self.give_up("it uses %s's profiler itself" % profiler.of)
        else:
            self.begin(profiler)
        return True

    def due(self):
        """Return whether it waits for a moment at which it can begin or end."""
        steady = self.since is not None and time.monotonic() - self.since >= self.steady
        return self.profiler is not None or (steady and not self.over)

    def begin(self, profiler):
        """Start the profiler."""
        before, warnings.filters = warnings.filters, IGNORED
        try:
            self.writer.append("%d.recording" % self.pid, b"")
            profiler.start(self.give_way)
            self.began = time.monotonic()
            self.until = self.began + self.seconds
            self.profiler = profiler
            register(self.give_way)  # before the libraries' own ends
            profiler.mark(MARK)
        except Exception as error:
            self.give_up("%s's profiler did not start (%s)" % (profiler.of, error))
        finally:
            warnings.filters = before

    def give_way(self):
        """End the recording, because the program starts a profiler itself, ends, or forks."""
        self.finish(wait=True)

    def finish(self, wait=False):
        """Stop the profiler and write the trace, unless another thread does; return whether it was
        done here."""
        if self.profiler is None or not self.turn.acquire(wait):
            return False
        try:
            profiler, self.profiler = self.profiler, None
            if profiler is not None:
                self.stop(profiler)
        finally:
            self.turn.release()
        return profiler is not None

    def stop(self, profiler):
        """Stop the profiler and write the trace."""
        ended = time.monotonic()
        name = "%d%s" % (self.pid, profiler.ending)
        path = "%s/%s" % (self.writer.folder, name)
        before, warnings.filters = warnings.filters, IGNORED
        try:
            data = profiler.stop(path)
            if data is not None and not self.writer.append(name, data):
                raise OSError("its trace cannot be written")
            self.over = True
            self.line({
                "k": "recorded", "of": profiler.of, "path": path, "t": self.began,
                "seconds": ended - self.began,
            })  # fmt: skip
            self.remove_mark()
        except Exception as error:
            self.give_up("%s's profiler did not stop (%s)" % (profiler.of, error))
        finally:
            warnings.filters = before

    def close(self):
        """End the recording with the observation; return whether the profiler no longer runs."""
        if self.profiler is not None:
            self.until = 0.0  # the main thread stops it
            return False
        if not self.over:
            used = loaded("torch", "__version__") or loaded("jax", "__version__")
            self.give_up(self.why if used else NEITHER)
        return True

    def give_up(self, why):
        """Report why there is no recording."""
        self.over = True
        self.line({"k": "recorded", "why": why})
        self.remove_mark()

    def remove_mark(self):
        """Remove the file that says that the recording is going on."""
        try:
            os.unlink("%s/%d.recording" % (self.writer.folder, self.pid))
        except OSError:
            pass


def chosen():
    """Return the profiler of the library that the program computes with; None without one."""
    if loaded("jax._src.xla_bridge", "_backends") and loaded("jax._src.profiler", "_profile_state"):
        return OfJax()
    return OfTorch() if loaded("torch.autograd.profiler", "ProfilerConfig") else None


class OfTorch:
    """PyTorch's profiler, which records what the thread computes that has started it."""

    of, ending = "PyTorch", ".trace.json"

    def __init__(self):
        self.module = sys.modules["torch.autograd.profiler"].__dict__
        self.native = sys.modules["torch._C._autograd"].__dict__
        folder = os.path.dirname(str(loaded("torch", "__file__")))
        self.guarded, self.backward = (
            tuple("%s/%s" % (folder, part) for part in parts) for parts in (GUARDED, BACKWARD)
        )

    def may(self, frame):
        """Return whether it may be started and stopped here: in the main thread, where no function
        is running that puts the thread's state of profilers back when it ends."""
        if frame is None:
            return False
        while frame is not None and self.has_returned(frame.f_code):
            frame = frame.f_back
        while frame is not None:
            if frame.f_code.co_filename.startswith(self.guarded):
                return False
            frame = frame.f_back
        return True

    def has_returned(self, code):
        """Return whether the innermost function starts a backward pass, which is over."""
        starts = code.co_name in ("backward", "_engine_run_backward")
        return starts and code.co_filename.startswith(self.backward)

    def in_use(self):
        """Return whether one is at work, or prepared."""
        if self.module.get("_is_profiler_enabled") or self.native["_profiler_enabled"]():
            return True
        cls = self.module["profile"]
        profiles = [one for one in get_referrers(cls) if type(one) is cls]
        return any(
            attribute_of(one, "entered") and attribute_of(one, "kineto_results") is None
            and attribute_of(one, "function_events") is None
            for one in profiles
        )  # fmt: skip

    def start(self, yield_to):
        """Start it; `yield_to` is called before the program starts another."""
        state, activity = self.module["ProfilerState"], self.module["ProfilerActivity"]
        activities = {activity.CPU}
        for device, name in (("torch.cuda", "CUDA"), ("torch.xpu", "XPU")):
            if loaded(device, "_initialized") is True and hasattr(activity, name):
                activities.add(getattr(activity, name))
        config = self.config(state.KINETO)
        silent = LEVEL not in os.environ
        if silent:
            os.putenv(LEVEL, SILENT)
        try:
            self.module["_prepare_profiler"](config, activities)
        finally:
            if silent:
                os.unsetenv(LEVEL)
        self.module["_enable_profiler"](config, activities)
        self.main, self.replaced = _thread.get_ident(), {}
        for name in ("_prepare_profiler", "_enable_profiler"):
            self.replaced[name] = self.module[name]
            self.module[name] = self.stand_in(name, yield_to)

    def config(self, state):
        """Return a configuration; how many values it has depends on PyTorch's version."""
        make, options = self.module["ProfilerConfig"], [False] * 5
        more = self.module.get("_ExperimentalConfig")
        for values in ([*options, more and more(), ""], [*options, more and more()], options):
            try:
                return make(state, *values)
            except TypeError:
                pass
        return make(state, *options[:4])

    def stand_in(self, name, yield_to):
        """Return a stand-in for a function of the module, which ends the recording first."""

        def called(*arguments, **named):
            if _thread.get_ident() == self.main:
                yield_to()
            return self.replaced[name](*arguments, **named)

        return called

    def mark(self, name):
        """Return add an event to the trace."""
        handle = self.native["_record_function_with_args_enter"](name)
        self.native["_record_function_with_args_exit"](handle)

    def stop(self, path):
        """Stop it, and write the trace to a file."""
        self.module.update(self.replaced)
        self.module["_disable_profiler"]().save(path)


class OfJax:
    """JAX's profiler."""

    of, ending = "JAX", ".xplane.pb"

    def __init__(self):
        self.module = sys.modules["jax._src.profiler"].__dict__
        self.state = self.module["_profile_state"]
        self.native = self.module.get("_profiler") or self.module["xla_client"].profiler

    def may(self, frame):
        """Return whether none of the profiler's functions is running."""
        return not self.state.lock.locked()

    def in_use(self):
        """Return whether one is at work."""
        names = ("session", "profile_session")  # the second before JAX 0.12
        return any(attribute_of(self.state, name) is not None for name in names)

    def start(self, yield_to):
        """Start it; `yield_to` is called before the program starts another."""
        options = self.native.ProfileOptions()
        options.python_tracer_level = 0
        self.session = self.native.ProfilerSession(options)
        self.lock = self.state.lock
        self.state.lock = Yielding(self.lock, yield_to)

    def mark(self, name):
        """Return add an event to the trace."""
        with self.native.TraceMe(name):
            pass

    def stop(self, path):
        """Stop it; returns the trace."""
        self.state.lock = self.lock
        return self.session.stop()


class Yielding:
    """A lock in the place of the profiler's, which is taken to start a profiler."""

    def __init__(self, lock, yield_to):
        self.lock, self.yield_to = lock, yield_to

    def __enter__(self):
        self.yield_to()
        return self.lock.__enter__()

    def __exit__(self, *error):
        return self.lock.__exit__(*error)

    def locked(self):
        return self.lock.locked()
