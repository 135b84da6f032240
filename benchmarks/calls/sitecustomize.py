"""Write which files of Flatout have a function that this process calls; `reach.py` reads them.

Python imports a module of this name at its start, in each process that has this folder on its path.
Functions that only an import calls, such as decorators, do not count.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from types import FrameType
from typing import Any

SOURCE = os.environ["FLATOUT_CALLS_OF"]
log = os.open(os.environ["FLATOUT_CALLS_IN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
known = set[str]()


def note(frame: FrameType, event: str, argument: Any) -> None:
    """Write a called function's file, the first time."""
    code = frame.f_code
    path = code.co_filename
    if path in known or not path.startswith(SOURCE) or not code.co_flags & inspect.CO_OPTIMIZED:
        return
    caller = frame.f_back
    while caller is not None:
        if caller.f_code.co_name == "<module>" and caller.f_globals.get("__name__") != "__main__":
            return
        caller = caller.f_back
    known.add(path)
    os.write(log, f"{path}\n".encode())


threading.settrace(note)
sys.settrace(note)
