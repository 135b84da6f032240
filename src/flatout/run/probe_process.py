"""Measuring in a process of its own: what it opens and what goes wrong there ends with it."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

from flatout import child
from flatout.errors import FlatoutError, one_line
from flatout.planning.answer import Answer, Question
from flatout.samplers.processes import protocol
from flatout.samplers.processes.pool import as_bytes
from flatout.storage.kernel import PASSES_DESCRIPTORS, close_in_children
from flatout.types import UserCode


def ask(question: Question, code: UserCode, limit_s: float) -> Answer:
    """Measure and predict in a child process; raises as `call` does."""
    return Answer.from_json(call("flatout.run.planned:as_json", (question, code), limit_s))


def call(function: str, arguments: tuple[Any, ...], limit_s: float) -> Any:
    """What a ``module:function`` returns (JSON) in a child process.

    Raises:
        UsageError: what the user passed cannot travel to another process.
        FlatoutError: it failed there, or took longer than `limit_s`.
    """
    if not PASSES_DESCRIPTORS:
        raise FlatoutError("measuring in a process of its own needs Linux or macOS (or WSL 2)")
    job = protocol.long(as_bytes((function, arguments)))
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(
        child.command("flatout.run.probe_process:main", str(theirs.fileno())),
        pass_fds=(theirs.fileno(),), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        theirs.close()
        try:
            ours.settimeout(limit_s)
            ours.sendall(job)
            reply = json.loads(protocol.receive_long(ours))
        except (BlockingIOError, TimeoutError):
            raise FlatoutError(
                f"measuring did not end within {limit_s:.0f} s (does a step hang?)"
            ) from None
        except (EOFError, OSError, ValueError):
            process.kill()
            code_ = process.wait()
            raise FlatoutError(f"the measuring process ended (exit code {code_})") from None
        finally:
            process.kill()
    if "error" in reply:
        raise FlatoutError(str(reply["error"]))
    return reply["value"]


def main() -> None:
    """The child's entry."""
    protocol.follow_parent()
    end = socket.socket(fileno=int(sys.argv[1]))
    close_in_children(end)
    function, arguments = protocol.receive_object(end)
    module, _, name = function.partition(":")
    try:
        reply = {"value": getattr(importlib.import_module(module), name)(*arguments)}
    except FlatoutError as error:
        reply = {"error": str(error).splitlines()[0]}
    except BaseException as error:  # a user's environment may raise anything
        reply = {"error": f"{type(error).__name__}: {one_line(error)}"}
    with suppress(OSError):
        end.sendall(protocol.long(json.dumps(reply).encode()))
    os._exit(0)  # its own processes end with it
