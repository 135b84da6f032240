"""Timers around methods of a library, active only if PHASES names a file."""

import functools

from phases import PATH, phase


def time_method(owner, name, label):
    """Time each call of a method as the phase `label`."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def timed(*args, **kwargs):
        with phase(label):
            return method(*args, **kwargs)

    if PATH:
        setattr(owner, name, timed)
