"""Traces in XLA's own format (``*.xplane.pb``), as JAX and TensorFlow write them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flatout.explain.trace.chrome import TENSORFLOW, add
from flatout.explain.trace.collecting import NONE, Collected
from flatout.explain.trace.events import Trace


def read(path: Path) -> Trace:
    """Read a file.

    Raises:
        ValueError: it is damaged.
    """
    from jax.profiler import ProfileData

    collected = Collected(unit=1e-9)
    try:
        with _silenced():
            data = ProfileData.from_file(str(path))
    except Exception as error:  # the binding's own kinds of errors
        raise ValueError(f"not a readable XPlane file ({error})") from None
    for plane in data.planes:
        if not plane.name.startswith(("/device:", "/host:CPU")):
            continue
        for line in plane.lines:
            for event in line.events:
                correlation = NONE
                for key, value in event.stats:
                    if key == "correlation_id":
                        correlation = int(value)
                begin = float(event.start_ns)
                end = begin + float(event.duration_ns)
                add(collected, plane.name, line.name, event.name, begin, end, correlation)
    return collected.trace("TensorFlow" if TENSORFLOW in collected.names else "JAX")


@contextmanager
def _silenced() -> Iterator[None]:
    """Drop what native code writes to standard error: the parser's log of a damaged file."""
    try:
        before = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nothing)
