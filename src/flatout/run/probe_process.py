"""Measuring in a child process, with which its failures and open files end.

A measurement reports each of its stages before the stage begins. The time limit is for one stage,
so that a slow machine may take longer, and a stage that hangs is ended.
"""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Protocol

from flatout import child
from flatout.errors import FlatoutError, one_line
from flatout.output import say
from flatout_explain import output_file
from flatout_explain.files.kernel import PASSES_DESCRIPTORS
from flatout_explain.hardware.others import busiest_others

STARTING_S = 60.0
"""Seconds that a process may take to start and to import: nothing is measured yet."""

ENDING_S = 1.0
"""Seconds that a process whose channel has closed may take to end."""

LOOK_S = 10.0
"""Seconds of a stage after which other programs are named that hold the cores; most take less."""


class Report(Protocol):
    """A function that receives the name of a stage that begins, and the result so far, which is
    used if that stage never ends (as JSON; None if nothing new was found)."""

    def __call__(self, stage: str, so_far: Any = None) -> None: ...


def unheard(stage: str, so_far: Any = None) -> None:
    """Ignore a report."""


class MeasuringError(FlatoutError):
    """An error that ended measuring.

    Attributes:
        slow: whether a stage took too long; otherwise it failed.
        so_far: the result until then; None if there is none.
    """

    def __init__(self, why: str, slow: bool, so_far: Any = None) -> None:
        super().__init__(why)
        self.slow, self.so_far = slow, so_far


def call(
    function: str, arguments: tuple[Any, ...], limit_s: float, total_s: float = math.inf,
    announce: Callable[[str], None] = say,
) -> Any:  # fmt: skip
    """Return the JSON result of a ``module:function`` that runs in a child process.

    Args:
        arguments: its arguments; it gets ``report=``, a `Report`, as well.
        limit_s: seconds that each of its stages may take.
        total_s: seconds that all of them may take.
        announce: receives a sentence if a stage takes long because other programs hold the cores.

    Raises:
        UsageError: what the user passed cannot travel to another process.
        MeasuringError: it failed there, or a stage took too long.
        FlatoutError: it cannot run here.
    """
    if not PASSES_DESCRIPTORS:
        raise FlatoutError("measuring in a process of its own needs Linux or macOS (or WSL 2)")
    job = child.as_bytes((function, arguments))
    began = time.monotonic()
    until = began + total_s
    each, stage, so_far, announced = STARTING_S, "starting a process", None, False
    with (
        output_file.temporary_file() as errors,
        closing(child.Child("flatout.run.probe_process:main", errors=errors)) as process,
    ):
        process.send(job)
        since, reply = time.monotonic(), dict[str, Any]()
        while not reply.keys() & {"value", "error"}:
            left_s = max(min(since + each, until) - time.monotonic(), 1e-3)
            looks = not announced and LOOK_S < left_s < math.inf
            try:
                replies = process.receive(LOOK_S if looks else left_s)
            except TimeoutError:
                held = busiest_others()
                if looks:
                    announced = True
                    if held:
                        announce(
                            "measuring takes long, because other programs hold the cores: "
                            f"{held}; it is given up if {stage} has not ended in "
                            f"{left_s - LOOK_S:.0f} s"
                        )
                    continue
                within = f"{stage} did not end within {each:.0f} s"
                if time.monotonic() >= until:
                    within = f"measuring did not end in all within {total_s:.0f} s (it was {stage})"
                why = f"; other programs hold the cores: {held}" if held else " (does it hang?)"
                why += f"; it was given up {_after(began)}"
                raise MeasuringError(within + why, True, so_far) from None
            except (EOFError, OSError, ValueError):
                how = process.how_it_ended(process.close(ENDING_S))
                why = f"the measuring process {how}; it was {stage}, {_after(began)}"
                raise MeasuringError(why, False, so_far) from None
            for reply in replies:
                if "stage" in reply:
                    since, each, stage = time.monotonic(), limit_s, str(reply["stage"])
                    so_far = reply.get("so_far", so_far)
    if "error" in reply:
        text = f"{str(reply['error']).rstrip('.')} ({_after(began)})"
        raise MeasuringError(text, False, so_far)
    return reply["value"]


def _after(began: float) -> str:
    """Return how many seconds have passed since `began`, as words."""
    return f"after {time.monotonic() - began:.0f} s"


def run(what: str, function: str, arguments: tuple[Any, ...], limit_s: float = math.inf) -> Any:
    """`call` a function that trains; `what` names that in the message of a failure."""
    try:
        return call(function, arguments, limit_s)
    except MeasuringError as error:
        raise FlatoutError(f"{what} failed: {error}") from error


def main() -> None:
    """Run the child process: receive a job, run it, and send its result."""
    parent = child.Parent()
    function, arguments = parent.receive_object()
    parent.follow()
    module, _, name = function.partition(":")

    def report(stage: str, so_far: Any = None) -> None:
        parent.send(stage=stage, **({} if so_far is None else {"so_far": so_far}))

    try:
        value = getattr(importlib.import_module(module), name)(*arguments, report=report)
        parent.send(value=value)
    except FlatoutError as error:
        parent.send(error=str(error).splitlines()[0])
    except BaseException as error:  # a user's environment may raise anything
        parent.send(error=f"{type(error).__name__}: {one_line(error)}")
    os._exit(0)  # its own processes end with it
