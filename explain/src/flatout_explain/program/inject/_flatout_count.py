"""Counts calls, environment steps and optimiser steps, for `explain --against` and `--count`.

This is the one thing for which the probe replaces functions of the program, and only there: each
counting function calls the one in whose place it stands. The report's stacks leave them out.

- ``module:function``: calls of it; ``module:function(argument)``: the sum of that argument. Where
  other modules hold it by name (``from module import function``), it is replaced there, too.
- Environment steps: `step` of Gymnasium's, Gym's and Stable-Baselines3's environments. Only the
  outermost call counts (a wrapper's, a vector environment's), a vector environment's for as many
  steps as it has environments.
- Optimiser steps: `step` of PyTorch's optimisers, by PyTorch's own hook, and `apply` of Keras's
  outside of compiled functions. What JAX compiles cannot be counted.
"""

import types
from functools import update_wrapper
from itertools import count

from _flatout_describe import COUNTED, attribute_of, defined_in, loaded, main_module, stored_in
from _flatout_own import __builtins__, _thread, kept, os, read, stand_still, sys  # noqa: F401

types = kept(types)
CALLS, STEPS, UPDATES = "calls", "environment steps", "optimiser steps"
VECTORS = (
    ("gymnasium.vector.vector_env", "VectorEnv"), ("gym.vector.vector_env", "VectorEnv"),
    ("stable_baselines3.common.vec_env.base_vec_env", "VecEnv"),
)  # fmt: skip
SINGLES = (("gymnasium.core", "Env"), ("gym.core", "Env"))
TORCH = ("torch.optim.optimizer", "Optimizer")
KERAS = ("keras.src.optimizers.base_optimizer", "BaseOptimizer")
EARLY, OFTEN, SELDOM = 3.0, 0.009, 0.5  # seconds: how often new classes are looked for
MANY_ROWS = 100000  # each time that there are as many more, changes are noted half as often
MOST = 1 << 40  # that one call may count for
WRAPPED = 8  # functions around one another
NAMED = 0x08  # of a code's flags: it takes any argument by name


def counter_of(folder):
    """Return the counter that `explain` has asked for in its folder, or None."""
    try:
        target = read("%s/count" % folder).decode()
    except OSError:
        return None
    stand_still("%s/held" % folder)
    return Counter(target)


class Tally:
    """A number that threads may add to at any time."""

    def __init__(self):
        self.bits = {0: count()}  # a bit of the amounts -> how often it was set
        self.one = self.bits[0].__next__  # one call in C: no other thread comes between
        self.inside = set()  # threads in a call that counts
        self.before = 0  # a forked process begins at 0

    def add(self, amount):
        bit, amount = 0, min(amount, MOST)
        while amount > 0:
            if amount & 1:
                next(self.bits[bit] if bit in self.bits else self.bits.setdefault(bit, count()))
            bit, amount = bit + 1, amount >> 1

    def all(self):
        """Return the count up to now, with that of the processes from which this one was forked."""
        return sum(int(repr(times)[6:-1]) << bit for bit, times in list(self.bits.items()))

    def __reduce__(self):  # in another process it begins at 0
        return Tally, ()

    def forked(self):
        self.inside.clear()
        self.before = self.all()


class Counter:
    """The counts of one process, and their course over time."""

    def __init__(self, target):
        self.module, _, dotted = target.strip().partition(":")
        dotted, _, self.argument = dotted.rstrip(")").partition("(")
        self.words = dotted.split(".") if dotted else []
        self.missing = "function" if self.words else ""  # what was asked for, and not found
        self.tallies = {name: Tally() for name in (CALLS, STEPS, UPDATES)}
        ours = (called(None, None, None), outermost(None, None, None), summed(None, 0, None), one,
                self.hook(), environments, if_eager, loaded, Tally.add, Counted.__call__,
                Counted.__get__)  # fmt: skip
        self.hidden = {id(one.__code__) for one in ours}
        self.hooked = False
        self.forked()

    def forked(self):
        """Begin anew in a process that was forked."""
        for tally in self.tallies.values():
            tally.forked()
        self.rows, self.last, self.written, self.changes, self.said = [], None, 0, 0, None
        self.began = self.looked = self.unchanged = None

    def look(self, now):
        """Find what is to be counted, and note how much was."""
        if self.began is None:
            self.began = self.looked = now
        often = OFTEN if now - self.began < EARLY else SELDOM
        if now - self.looked >= often or self.last is None:
            self.looked = now
            self.install()
        self.note(now)

    def note(self, now):
        """Note how much was counted, if that has changed, and until when it had not."""
        totals = [tally.all() - tally.before for tally in self.tallies.values()]
        if totals == self.last:
            self.unchanged = round(now, 5)
            return
        self.changes += 1
        if self.changes % (1 << self.written // MANY_ROWS):
            return
        if self.unchanged is not None:
            self.rows.append([self.unchanged] + self.last)
        self.last, self.unchanged = totals, None
        self.written += 1
        self.rows.append([round(now, 5)] + totals)

    def row(self):
        """Return a line of evidence with the counts noted since the last one; None without news."""
        rows, self.rows = self.rows, []
        if not rows and self.missing == self.said:
            return None
        self.said = self.missing
        return {
            "k": "counts", "parent": os.getppid(), "missing": self.missing,
            "units": list(self.tallies), "d": rows,
        }  # fmt: skip

    # --- What is counted ----------------------------------------------------------------------

    def install(self):
        """Install counting functions, as far as the program has come."""
        if self.words:
            self.count_calls()
            return  # nothing else needs to be touched
        for bases, amount in ((VECTORS, environments), (SINGLES, one)):
            for module, name in bases:
                self.count_methods(module, name, "step", STEPS, amount)
        self.count_methods(KERAS[0], KERAS[1], "apply", UPDATES, if_eager)
        if self.hooked or loaded(*TORCH) is None:
            return
        register = loaded(TORCH[0], "register_optimizer_step_post_hook")
        if type(register) is types.FunctionType:
            self.hooked = True
            register(self.hook())
        else:  # before PyTorch 2.1
            self.count_methods(TORCH[0], TORCH[1], "step", UPDATES, one)

    def hook(self):
        """Count an optimiser's step; PyTorch calls it after each one."""
        add = self.tallies[UPDATES].one

        def stepped(optimiser, args, kwargs):
            add()

        return stepped

    def count_methods(self, module, name, method, unit, amount):
        """Count the calls of a method of a class and of the classes that derive from it."""
        base = loaded(module, name)
        if not isinstance(base, type):
            return
        found, tally = [base], self.tallies[unit]
        for cls in found:  # which grows
            found += [one for one in type.__subclasses__(cls) if one not in found]
            function = defined_in(cls).get(method)
            if type(function) is types.FunctionType and id(function) not in COUNTED:
                replace(cls, method, outermost(function, tally, amount), function)

    def count_calls(self):
        """Count the calls of the function that was asked for."""
        owner = self.asked_module()
        for word in self.words[:-1]:
            owner = None if owner is None else found_in(owner, word)
        raw = None if owner is None else found_in(owner, self.words[-1])
        name = self.words[-1]
        if type(raw) is not types.FunctionType and isinstance(raw, type):  # how often it is made
            owner, name = raw, "__init__"
            raw = found_in(owner, name)
        bound = type(raw) in (staticmethod, classmethod)
        function = raw.__func__ if bound else raw
        if not callable(function) or id(function) in COUNTED:
            return
        amount = valued(function, self.argument) if self.argument else one
        self.missing = "argument" if amount is None else ""
        if amount is None:
            return
        kind = called if type(function) is types.FunctionType else Counted
        new = kind(function, self.tallies[CALLS], amount)
        replace(owner, name, type(raw)(new) if bound else new, function, new)
        if type(owner) is types.ModuleType:
            for module in list(sys.modules.values()):
                if type(module) is types.ModuleType:
                    scope = module.__dict__
                    for key in [key for key, one in list(scope.items()) if one is function]:
                        scope[key] = new

    def asked_module(self):
        """Return the module asked for, by its name, or by its file's name if it is the program."""
        module = sys.modules.get(self.module)
        if module is None:
            main = main_module()
            names = (os.path.splitext(os.path.basename(main["file"]))[0], main["name"])
            module = sys.modules.get("__main__") if self.module in names else None
        return module if type(module) is types.ModuleType else None


def found_in(owner, name):
    """Return the stored attribute of a module or a class; None without one."""
    if type(owner) is types.ModuleType:
        return owner.__dict__.get(name)
    return stored_in(owner, name) if isinstance(owner, type) else None


def replace(owner, name, stored, function, new=None):
    """Store a counting function in the place of `function`."""
    new = stored if new is None else new
    COUNTED[id(new)] = (new, function)
    if type(owner) is types.ModuleType:
        owner.__dict__[name] = stored
    else:
        type.__setattr__(owner, name, stored)


def called(function, tally, amount):
    """Return a function that counts each call of another one."""

    def counted(*args, **kwargs):
        amount(tally, args, kwargs)
        return function(*args, **kwargs)

    return counted if function is None else update_wrapper(counted, function)


def outermost(function, tally, amount):
    """Return a method that counts its calls, except those within another counted call."""
    me = _thread.get_ident

    def counted(*args, **kwargs):
        thread, inside = me(), tally.inside
        if thread in inside:
            return function(*args, **kwargs)
        inside.add(thread)
        try:
            given = function(*args, **kwargs)
        finally:
            inside.discard(thread)
        amount(tally, args, kwargs)
        return given

    return counted if function is None else update_wrapper(counted, function)


def one(tally, args, kwargs):
    """Count a call as one."""
    tally.one()


def environments(tally, args, kwargs):
    """Count a vector environment's call once for each of its environments."""
    try:
        number = int(args[0].num_envs)
    except Exception:  # must not reach the program
        number = 1
    tally.add(max(number, 1))


def if_eager(tally, args, kwargs):
    """Count a call if TensorFlow runs it now, and not if it only compiles it."""
    eager = loaded("tensorflow.python.eager.context", "executing_eagerly")
    if eager is not None and eager():
        tally.one()


def valued(function, name):
    """Return a function that counts a call by the value of one of its arguments; None if it has no
    such argument.

    What wraps a function, such as `jax.jit`, passes the arguments on.
    """
    known = False  # whether all of the arguments' names are known
    for _ in range(WRAPPED):
        if type(function) is types.FunctionType:
            code = function.__code__
            positional = code.co_varnames[: code.co_argcount]
            named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if name in named:
                place = positional.index(name) if name in positional else None
                defaults = dict(zip(reversed(positional), reversed(function.__defaults__ or ())))
                default = dict(defaults, **(function.__kwdefaults__ or {})).get(name, 0)
                return summed(name, default, place)
            known = not code.co_flags & NAMED
        function = attribute_of(function, "__wrapped__")
        if function is None:
            break
    return None if known else summed(name, 0, None)


def summed(name, default, place):
    """Return a function that counts a call by the value of the argument with this name, at this
    place where it is not given by its name."""

    def amount(tally, args, kwargs):
        try:
            given = place is not None and place < len(args)
            tally.add(int(args[place] if given else kwargs.get(name, default)))
        except Exception:  # must not reach the program
            pass

    return amount


def same(function):
    """Return the original of a counting function that is read from a pickle."""
    return function


class Counted:
    """A callable that is no function (such as what `jax.jit` returns), and counts its calls."""

    def __init__(self, function, tally, amount):
        self.__dict__.update(__wrapped__=function, _flatout_counts=(tally, amount))

    def __call__(self, *args, **kwargs):
        tally, amount = self._flatout_counts
        amount(tally, args, kwargs)
        return self.__wrapped__(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.__wrapped__, name)

    def __reduce__(self):
        return same, (self.__wrapped__,)

    def __get__(self, owner, kind=None):
        binds = hasattr(type(self.__wrapped__), "__get__")
        return types.MethodType(self, owner) if binds and owner is not None else self
