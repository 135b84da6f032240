"""Measuring in a process of its own: what it opens and what goes wrong there ends with it.

What is measured reports each of its stages before that begins. The time limit is for one stage: a
slow machine takes longer as long as it gets on, and a stage that hangs is ended.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from flatout import child
from flatout.engine.workers import protocol
from flatout.errors import FlatoutError, one_line
from flatout.output import say
from flatout_explain.files.kernel import PASSES_DESCRIPTORS, close_in_children
from flatout_explain.hardware.others import busiest_others

STARTING_S = 60.0
"""Seconds that a process may take to start and to import: nothing is measured yet."""

LOOK_S = 10.0
"""Seconds of a stage after which other programs are named that hold the cores; most take less."""


class Report(Protocol):
    """Hears of a stage that begins, and of what would be the result if that one never ended (as
    JSON; None where nothing new was found)."""

    def __call__(self, stage: str, so_far: Any = None) -> None: ...


def unheard(stage: str, so_far: Any = None) -> None:
    """Report to nobody."""


class MeasuringError(FlatoutError):
    """Measuring ended before its end.

    Attributes:
        slow: a stage took too long; otherwise the measuring failed.
        so_far: what had been found by then; None if that is nothing.
    """

    def __init__(self, why: str, slow: bool, so_far: Any = None) -> None:
        super().__init__(why)
        self.slow, self.so_far = slow, so_far


def call(
    function: str, arguments: tuple[Any, ...], limit_s: float, total_s: float = math.inf,
    announce: Callable[[str], None] = say,
) -> Any:  # fmt: skip
    """What a ``module:function`` returns (JSON) in a child process.

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
    job = protocol.long(child.as_bytes((function, arguments)))
    ours, theirs = socket.socketpair()
    until = time.monotonic() + total_s
    each, stage, so_far, announced = STARTING_S, "starting a process", None, False
    with ours, theirs, subprocess.Popen(
        child.command("flatout.run.probe_process:main", str(theirs.fileno())),
        pass_fds=(theirs.fileno(),), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        theirs.close()
        try:
            ours.settimeout(min(each, total_s))
            ours.sendall(job)
            while True:
                wait_s = min(each, max(until - time.monotonic(), 1e-3))
                if not announced and wait_s > LOOK_S and not _answers(ours, LOOK_S):
                    wait_s -= LOOK_S
                    if held := busiest_others():
                        announced = True
                        announce(
                            f"measuring takes long, because other programs hold the cores: {held}; "
                            f"it is given up if {stage} has not ended in {wait_s:.0f} s"
                        )
                ours.settimeout(wait_s)
                reply = json.loads(protocol.receive_long(ours))
                if "stage" not in reply:
                    break
                each, stage = limit_s, str(reply["stage"])
                so_far = reply.get("so_far", so_far)
        except (BlockingIOError, TimeoutError):
            within = f"{stage} did not end within {each:.0f} s"
            if time.monotonic() >= until:
                within = f"measuring did not end in all within {total_s:.0f} s (it was {stage})"
            held = busiest_others()
            why = f"; other programs hold the cores: {held}" if held else " (does it hang?)"
            raise MeasuringError(within + why, True, so_far) from None
        except (EOFError, OSError, ValueError):
            process.kill()
            code_ = process.wait()
            raise MeasuringError(
                f"the measuring process ended (exit code {code_}) while {stage}", False, so_far
            ) from None
        finally:
            process.kill()
    if "error" in reply:
        raise MeasuringError(str(reply["error"]), False, so_far)
    return reply["value"]


def _answers(end: socket.socket, within_s: float) -> bool:
    """Return whether something can be read from a socket in time; nothing is consumed."""
    end.settimeout(within_s)
    try:
        end.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, TimeoutError):
        return False
    return True


def main() -> None:
    """The child's entry."""
    child.follow_parent()
    end = socket.socket(fileno=int(sys.argv[1]))
    close_in_children(end)
    function, arguments = protocol.receive_object(end)
    module, _, name = function.partition(":")
    one_at_a_time = threading.Lock()  # threads may report, too

    def send(**message: Any) -> None:
        with one_at_a_time, suppress(OSError):
            end.sendall(protocol.long(json.dumps(message).encode()))

    def report(stage: str, so_far: Any = None) -> None:
        send(stage=stage, **({} if so_far is None else {"so_far": so_far}))

    try:
        value = getattr(importlib.import_module(module), name)(*arguments, report=report)
        send(value=value)
    except FlatoutError as error:
        send(error=str(error).splitlines()[0])
    except BaseException as error:  # a user's environment may raise anything
        send(error=f"{type(error).__name__}: {one_line(error)}")
    os._exit(0)  # its own processes end with it
