"""Every call of the main thread for some milliseconds, by ``sys.setprofile``."""

from _flatout_describe import built_in, dynamo_used, items_of, line_of, name_of, package_of
from _flatout_locals import local_of
from _flatout_own import CPU, TABLE, __builtins__, sys, time  # noqa: F401
from _flatout_timer import ROOM

CALL, RETURN, C_CALL, C_RETURN = 0, 1, 2, 3
FIRST, EVERY = 0.5, 1.0  # seconds after the imports, and between windows
COST = 0.003  # share of the time that windows may take
WINDOWS = 40
WINDOW_SECONDS = 0.020
WINDOW_EVENTS = 6000
FEW = 8  # items of a list that are looked at
ARRAYS = TABLE["frameworks"] | TABLE["arrays"]


class Windows:
    """Counts the main thread's calls for some milliseconds, now and then."""

    def __init__(self, probe):
        self.probe = probe
        self.open = None  # the window that has not been written yet
        self.number = 0
        self.next = None  # the earliest time of the next one
        self.hooks = []

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
        self.open = Window(self.probe, sys._getframe())  # whose return is the first event
        hook = self.open.hook(time.perf_counter() + WINDOW_SECONDS)
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
        window, line = self.open, self.probe.line
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
            for known in window.returned:
                line({"k": "returns", "c": known.index, "kinds": known.returned})
        except Exception:
            pass


class Window:
    """The calls of one thread for some milliseconds."""

    def __init__(self, probe, frame):
        self.probe, self.closed, self.opened = probe, False, time.monotonic()
        self.events, self.details, self.returned = [], [], []
        self.stack = []
        while (frame := probe.seen.unhidden(frame)) is not None:
            self.stack.append((probe.seen.known(frame).index, frame.f_lasti))
            frame = frame.f_back

    def hook(self, deadline):
        """Return the profile function, which does as little as possible for each event."""
        events, seen, returned = self.events, self.probe.seen, self.returned
        room = sys.getrecursionlimit() // ROOM - len(self.stack)  # calls before it is too deep
        clock, add, codes, hidden = time.perf_counter, events.append, seen.codes, seen.hidden
        inside = None  # the room within a call of which it is noted what it is given

        def note(now, frame, event, arg):
            nonlocal room, inside
            if event == "call":
                room -= 1
                code, back = frame.f_code, seen.unhidden(frame.f_back)
                known = codes.get(id(code)) or seen.code(code, frame)
                add((now, CALL, known.index, back.f_lasti if back is not None else 0))
                if known.kind is not None and inside is None:
                    inside, at = room, len(events) - 1
                    try:
                        self.details.append([at, known.kind] + given_to(known.kind, frame))
                    except Exception:  # of an array whose shape is unknown, say
                        pass
            elif event == "return":
                add((now, RETURN, None, 0))
                if room == inside:
                    inside = None
                room += 1
                known = codes.get(id(frame.f_code)) if type(arg) is tuple else None
                if known is not None and known.returned is None:
                    known.returned = kinds_of(arg)
                    returned.append(known)
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

    def row(self):
        """Return the window as a line of evidence.

        Events are [ns since the last, kind, what, line]: what is a code's or a name's number, and
        line where its caller was.
        """
        seen, names, shown = self.probe.seen, {}, []
        stack = [index for index, _ in reversed(self.stack)]
        events = list(self.events)
        last = events[0][0] if events else 0.0
        for now, kind, what, lasti in events:
            number = line = 0
            if kind in (CALL, C_CALL) and stack:
                line = line_of(seen.by_index[stack[-1]].code, lasti)
            if kind == CALL:
                number = what
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
        """Measure the nanoseconds that an event costs the program, by calling the hook."""
        hook, frame = Window(self.probe, None).hook(float("inf")), sys._getframe()
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


def given_to(kind, frame):
    """Describe the arguments of a relevant call: [class, batch size, gradients on]."""
    owner = local_of(frame, frame.f_code.co_varnames[0])
    batch, grad = None, None
    if kind == "network":
        found = []
        for some in (local_of(frame, name) for name in ("args", "kwargs", "inputs")):
            found += items_of(some) or [some]
        shape = next(filter(lambda one: one is not None, map(shape_of, found)), None)
        if shape is not None:
            batch = int(shape[0]) if len(shape) > 1 else 1
        enabled = built_in("torch", "is_grad_enabled")
        grad = None if enabled is None else bool(enabled())
    return [name_of(type(owner)), batch, grad]


def kinds_of(values):
    """Return a tuple's kinds: o(bservation), n(umber), b(ool), N, B (several of those), ?."""
    return "".join(map(value_kind, values[:6]))


def value_kind(value):
    """Return the kind of one element, for `kinds_of`."""
    name = name_of(type(value))
    if name.endswith("Storage"):  # PyTorch warns when its dtype is read
        return "?"
    shape = shape_of(value)
    dtype = "" if shape is None else str(getattr(value, "dtype", ""))
    scalar, row = dtype and len(shape) == 0, dtype and len(shape) == 1
    inner = set(map(value_kind, items_of(value)[:FEW]))  # of each environment or agent
    kinds = (
        ("b", name in ("bool", "bool_") or (dtype == "bool" and scalar)),
        ("n", name in ("int", "float") or scalar),
        ("B", (dtype == "bool" and row) or inner == {"b"}),
        ("N", row or inner == {"n"}),
        ("o", name in ("list", "tuple", "dict", "OrderedDict") or shape is not None),
    )
    return next((kind for kind, holds in kinds if holds), "?")
