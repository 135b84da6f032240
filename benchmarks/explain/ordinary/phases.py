"""Wall-clock timers for the phases of a program, active only if PHASES names a file."""

import atexit
import json
import os
import sys
import threading
import time

PATH = os.environ.pop("PHASES", None)  # removed, so that child processes write nothing
WARM_UP = 3.0  # seconds from the first phase that are not counted: compilation, first episodes


class Clock(threading.local):
    """The open phases of one thread, and the seconds of each without those of its inner phases."""

    def __init__(self):
        self.stack, self.seconds, self.start, self.mark = [], {}, None, 0.0
        clocks.append(self.__dict__)

    def charge_innermost(self):
        torch = sys.modules.get("torch")
        if torch and torch.cuda.is_initialized():  # a phase includes what it has launched
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.start = self.start or now + WARM_UP
        if self.stack and now > self.start:
            spent = now - max(self.mark, self.start)
            self.seconds[self.stack[-1]] = self.seconds.get(self.stack[-1], 0.0) + spent
        self.mark = now


class phase:  # noqa: N801 (used as a function)
    """Time the body of a `with` statement as the phase `name`."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        if PATH:
            clock.charge_innermost()
            clock.stack.append(self.name)
        return self

    def __exit__(self, *error):
        if PATH:
            clock.charge_innermost()
            clock.stack.pop()

    def block(self, arrays):
        """Wait for the JAX `arrays`, so that this phase includes their computation."""
        return sys.modules["jax"].block_until_ready(arrays) if PATH else None


clocks = []
clock = Clock()
if PATH:

    @atexit.register
    def write():
        total = {"total": max(0.0, clock.mark - (clock.start or 0.0))}
        other = {f"{k}@thread": v for c in clocks[1:] for k, v in c["seconds"].items()}
        with open(PATH, "w") as file:
            json.dump({**clock.seconds, **other, **total}, file, indent=1)
