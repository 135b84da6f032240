"""Every call of the main thread for some milliseconds, by ``sys.setprofile``."""

from _flatout_describe import built_in, dynamo_used, line_of, name_of, package_of
from _flatout_locals import local_of
from _flatout_own import CPU, __builtins__, sys, time  # noqa: F401
from _flatout_timer import ROOM

CALL, RETURN, C_CALL, C_RETURN = 0, 1, 2, 3
FIRST, EVERY = 0.5, 1.0  # seconds after the imports, and between windows
COST = 0.003  # share of the time that windows may take
WINDOWS = 40
WINDOW_SECONDS = 0.020
WINDOW_EVENTS = 6000
ARRAYS = ("numpy", "torch", "jax", "jaxlib", "tensorflow")


class Windows:
    """Counts the main thread's calls for some milliseconds, now and then."""

    def __init__(self, probe):
        self.probe = probe
        self.open = None  # the window that has not been written yet
        self.number = 0
        self.next = None  # the earliest time of the next one
        self.hooks = []
        self.given = {}  # id of a code -> (code, kinds that it returned, or None once written)

    def begin(self, now, waits):
        """Begin a window if it is time; in the main thread, of which `waits` is the pace's."""
        if self.open is not None or self.number >= WINDOWS:
            return
        if self.next is None:
            self.next = now + FIRST
        if now < self.next or sys.getprofile() is not None or dynamo_used():
            return
        self.next = now + EVERY * waits * (1 + self.number // 10)
        self.number += 1
        self.open = Window(self.probe, self.given)
        hook = self.open.hook()
        # Python 3.11 makes a frame object before it calls the hook. That may collect garbage, whose
        # callbacks are profiled: the window ends there, and the hook is called once more.
        self.hooks.append(hook)
        sys.setprofile(hook)

    def close(self):
        """End the window that is open, if there is one."""
        if self.open is not None:
            self.open.closed = True

    def end(self):
        """End the window that is open in this thread, and its profile function."""
        if self.hooks and sys.getprofile() is self.hooks[-1]:
            sys.setprofile(None)
            self.close()

    def write(self):
        """Write the window that the main thread has finished."""
        window, seen, line = self.open, self.probe.seen, self.probe.line
        if window is None or (not window.closed and time.monotonic() - window.opened < 30):
            return
        self.open = None
        try:
            began = CPU()
            row = window.row()
            window.events.clear()
            line(row)
            cost = CPU() - began + 1e-9 * row["cost"] * len(row["events"])
            self.next = max(self.next, window.opened + cost / COST)
            for identity, (code, kinds) in list(self.given.items()):
                if kinds is not None and identity in seen.codes:
                    self.given[identity] = (code, None)
                    line({"k": "returns", "c": seen.codes[identity][0], "kinds": kinds})
        except Exception:
            pass


class Window:
    """The calls of one thread for some milliseconds."""

    def __init__(self, probe, given):
        self.probe, self.given = probe, given
        self.events = []
        self.details = []
        self.depth = 0
        self.inside = None
        self.closed = False
        self.opened = time.monotonic()
        self.deadline = time.perf_counter() + WINDOW_SECONDS
        seen = probe.seen
        frame = sys._getframe(1)  # from Windows.begin, whose return is the first event
        self.stack = []
        while (frame := seen.unhidden(frame)) is not None:
            known = seen.codes.get(id(frame.f_code)) or seen.code(frame.f_code, frame)
            self.stack.append((known[0], frame.f_lasti))
            frame = frame.f_back

    def hook(self):
        """The profile function: as little as possible for each event."""
        events, seen, deadline = self.events, self.probe.seen, self.deadline
        room = sys.getrecursionlimit() // ROOM - len(self.stack)  # calls before it is too deep
        clock, add, enter = time.perf_counter, self.events.append, self.enter
        codes, describe, special, given = seen.codes, seen.code, seen.special, self.given
        hidden = seen.hidden

        def note(now, frame, event, arg):
            nonlocal room
            if event == "call":
                room -= 1
                code, back = frame.f_code, seen.unhidden(frame.f_back)
                add((now, CALL, code, back.f_lasti if back is not None else 0))
                if id(code) not in codes:
                    describe(code, frame)
                if id(code) in special:
                    enter(code, special[id(code)], frame)
            elif event == "return":
                add((now, RETURN, None, 0))
                room += 1
                if type(arg) is tuple and id(frame.f_code) not in given:
                    given[id(frame.f_code)] = (frame.f_code, kinds_of(arg))
                if self.inside is frame.f_code:
                    self.depth -= 1
                    if self.depth == 0:
                        self.inside = None
            elif event == "c_call":
                add((now, C_CALL, arg.__name__, frame.f_lasti))
            else:
                add((now, C_RETURN, None, 0))

        def profile(frame, event, arg):
            if self.closed or id(frame.f_code) in hidden:
                return
            now = clock()
            try:
                note(now, frame, event, arg)
            except Exception:  # must not reach the program
                now = float("inf")
            if now > deadline or len(events) >= WINDOW_EVENTS or room < 0:
                sys.setprofile(None)
                self.closed = True

        return profile

    def enter(self, code, kind, frame):
        """An interesting function begins: what it is given, unless inside of another such."""
        if self.inside is code:
            self.depth += 1
        if self.inside is not None:
            return
        self.inside, self.depth = code, 1
        try:
            self.details.append([len(self.events) - 1, kind] + given_to(kind, frame))
        except Exception:
            pass

    def row(self):
        """The window as a line of evidence.

        Events are [ns since the last, kind, what, line]: what is a code's or a name's number, and
        line where its caller was.
        """
        seen, names, shown = self.probe.seen, {}, []
        stack = [seen.by_index[index] for index, _ in reversed(self.stack)]
        events = list(self.events)
        last = events[0][0] if events else 0.0
        for now, kind, what, lasti in events:
            number = line = 0
            if kind in (CALL, C_CALL) and stack:
                line = line_of(stack[-1], lasti)
            if kind == CALL:
                number = (seen.codes.get(id(what)) or seen.code(what, None))[0]
                stack.append(what)
            elif kind == C_CALL:
                number = names.setdefault(what, len(names))
            elif kind == RETURN and stack:
                stack.pop()
            shown.append((int((now - last) * 1e9), kind, number, line))
            last = now
        return {
            "k": "window", "t": self.opened - self.probe.started, "events": shown,
            "names": list(names), "stack": seen.lined(sum(self.stack, ())),
            "details": self.details, "cost": self.cost(),
        }  # fmt: skip

    def cost(self):
        """Nanoseconds that one event costs the program on this machine, by calling the hook."""
        other = Window.__new__(Window)
        other.probe, other.given, other.events, other.details = self.probe, {}, [], []
        other.inside, other.deadline, other.closed, other.stack = None, float("inf"), False, ()
        hook, frame = other.hook(), sys._getframe()
        times = []
        for _ in range(5):  # of which garbage collection may disturb one
            began = CPU()
            for _ in range(100):
                hook(frame, "call", None)  # of a code that is known: this one
                hook(frame, "return", None)
            times.append(CPU() - began)
        return 5e6 * sorted(times)[2]


def kind_of(file, name, owner):
    """Return the kind of a function whose arguments windows note, or None."""
    file = file.replace("\\", "/")
    bases = () if owner is None else owner["bases"]
    in_torch = file.endswith("/torch/nn/modules/module.py")
    in_keras = "/keras/" in file and file.endswith(("layer.py", "base_layer.py"))
    kinds = (
        ("network", in_torch and name in ("_call_impl", "_wrapped_call_impl", "__call__")),
        ("network", in_keras and name == "__call__"),
        ("optimiser", name == "step" and "torch.Optimizer" in bases),
    )
    return next((kind for kind, holds in kinds if holds), None)


def shape_of(value):
    """Return the shape of an array of a known library; None for anything else."""
    if package_of(type(value)) not in ARRAYS:
        return None
    shape = getattr(value, "shape", None)
    return None if shape is None else tuple(shape)


def items_of(value):
    """Return the items of a plain dictionary, list or tuple."""
    if type(value) is dict:
        return list(value.values())
    return list(value) if type(value) in (list, tuple) else []


def given_to(kind, frame):
    """Describe the arguments of a relevant call: [class, batch size, gradients on]."""
    owner = local_of(frame, frame.f_code.co_varnames[0])
    batch, grad = None, None
    if kind == "network":
        found = []
        for some in (local_of(frame, name) for name in ("args", "kwargs", "inputs")):
            found.extend(items_of(some) or [some])
        shape = next(filter(lambda one: one is not None, map(shape_of, found)), None)
        if shape is not None:
            batch = int(shape[0]) if len(shape) > 1 else 1
        enabled = built_in("torch", "is_grad_enabled")
        if enabled is not None:
            grad = bool(enabled())
    return [name_of(type(owner)), batch, grad]


def kinds_of(values):
    """Return a tuple's kinds: o(bservation), n(umber), b(ool), N, B (arrays of those), ?."""
    return "".join(map(value_kind, values[:6]))


def value_kind(value):
    """Return the kind of one element, for `kinds_of`."""
    name = name_of(type(value))
    if name.endswith("Storage"):  # PyTorch warns when its dtype is read
        return "?"
    shape = shape_of(value)
    dtype = "" if shape is None else str(getattr(value, "dtype", ""))
    scalar, row = dtype and len(shape) == 0, dtype and len(shape) == 1
    kinds = (
        ("b", name in ("bool", "bool_") or (dtype == "bool" and scalar)),
        ("n", name in ("int", "float") or scalar),
        ("B", dtype == "bool" and row),
        ("N", row),
        ("o", name in ("list", "tuple", "dict", "OrderedDict") or shape is not None),
    )
    return next((kind for kind, holds in kinds if holds), "?")
