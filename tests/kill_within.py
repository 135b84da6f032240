"""A run of the command that kills itself with SIGKILL at a chosen place of its own code.

    python -m tests.kill_within PLACE COUNT train ...

`save`: before the COUNT-th call that brings something to disk or renames it (`fsync`, `rename`,
`replace`), so between any two steps of writing a checkpoint. `evaluate`: before an evaluation's
COUNT-th choice of actions.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def fatal(counted: list[int], at: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose call number `at` is never made; several share their count."""

    def call(*args: Any, **kwargs: Any) -> Any:
        counted.append(1)
        if len(counted) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    return call


def main() -> int:
    """Run the command."""
    from flatout.__main__ import main as flatout

    place, at, argv = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    counted: list[int] = []
    if place == "save":
        for name in ("fsync", "rename", "replace"):
            setattr(os, name, fatal(counted, at, getattr(os, name)))
    elif place == "evaluate":
        from flatout.engine.act import Policy

        Policy.greedy = fatal(counted, at, Policy.greedy)
    else:
        sys.exit(f"{place} is neither save nor evaluate.")
    return flatout(argv)


if __name__ == "__main__":
    sys.exit(main())
