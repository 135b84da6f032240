"""Tracing of users' functions to see whether they are pure: environments in JAX and algorithms."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Trace, Tracer


def traced(function: Callable[..., Any], *given: Any) -> tuple[tuple[str, list[bytes]], bool]:
    """Trace a function; return its program (text and constants), and whether a traced value
    outlived the call.

    A traced value that outlives the call keeps its whole trace alive. So if a weak reference to the
    trace is dead, no value was kept. If the trace is alive, which has other causes, too, the heap
    is searched once for values that refer to it. (`jax.checking_leaks` also searches the heap for
    the holders of each value, repeatedly, which takes minutes in a large program.)
    """
    traces: list[weakref.ref[Any]] = []

    def watched(*arguments: Any) -> Any:  # a new function each time, so JAX has no cached trace
        traces.append(weakref.ref(jax.tree.leaves(arguments)[0]._trace))
        return function(*arguments)

    closed = jax.make_jaxpr(watched)(*given)
    program = re.sub(r"0x[0-9a-f]+", "", str(closed.jaxpr))  # addresses of functions differ
    arrays = [np.asarray(const).tobytes() for const in closed.consts]
    del closed
    if any(trace() is not None for trace in traces):
        gc.collect()  # frees values that only a reference cycle holds: these count as not kept
    return (program, arrays), any(_has_live_values(trace()) for trace in traces)


def _has_live_values(trace: Any) -> bool:
    """Return whether a value of a trace, or of a trace within it, is alive. A live trace
    alone does not show that: JAX's caches hold traces, too."""
    if trace is None:
        return False
    holders = gc.get_referrers(trace)
    return any(
        isinstance(holder, Tracer) or (isinstance(holder, Trace) and _has_live_values(holder))
        for holder in holders
    )
