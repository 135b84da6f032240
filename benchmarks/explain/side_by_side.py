"""Runs two commands at the same time on a core each, and prints the rate of each as a JSON object.

They exchange the two cores every quarter of a second, so that a core which is slow for a while,
because others use the machine, slows both of them. Linux only: all threads are moved.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from one_run import rate_of

TURN_S = 0.25
TIMEOUT_S = 300


class Side:
    """A command in a process group of its own, on one core."""

    def __init__(self, command: Sequence[str], core: int) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open until the rate is read)
        os.sched_setaffinity(0, {core})  # which the child inherits
        self._child = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=self._output, start_new_session=True
        )

    def runs(self) -> bool:
        """Whether it has not ended yet."""
        return self._child.poll() is None

    def threads(self) -> Iterator[int]:
        """The threads of its process and of all descendants.

        The tree is followed because reading all of /proc takes some ms, on one side's core.
        """
        waiting = [self._child.pid]
        while waiting:
            process = Path(f"/proc/{waiting.pop()}/task")
            with suppress(OSError):  # it has ended
                for thread in process.iterdir():
                    yield int(thread.name)
                    waiting += map(int, (thread / "children").read_text().split())

    def rate(self, keys: list[str] | None) -> dict[str, Any]:
        """Its work, and the seconds that this took.

        Args:
            keys: those of work and seconds where the command prints a JSON object.
        """
        if code := self._child.wait():
            sys.exit(f"{self._child.args[-3:]} ended with {code}")
        self._output.seek(0)
        work, seconds = rate_of(self._output.read(), keys)
        if not work or not seconds:
            sys.exit(f"{self._child.args[-3:]} did not print its rate")
        return {"work": work, "seconds": seconds}

    def kill(self) -> None:
        """End what is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)


def exchange(sides: Sequence[Side], cores: Sequence[int]) -> None:
    """Put each side on the core of the same place; first found, then moved, all at once."""
    places = [
        (thread, core)
        for side, core in zip(sides, cores, strict=True)
        for thread in side.threads()
    ]  # fmt: skip
    for thread, core in places:
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(thread, {core})


def main() -> None:
    """Run both commands, and print their rates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--rate", nargs=2, default=None, help="see one_run.py")
    add("--second-first", action="store_true", help="start and move the second one first")
    add("commands", nargs=2, help="both commands, as JSON")
    args = parser.parse_args()
    order = -1 if args.second_first else 1
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("two cores are needed")
    both = [json.loads(words) for words in args.commands][::order]
    sides = [Side(command, core) for command, core in zip(both, cores, strict=True)]
    os.sched_setaffinity(0, set(cores))
    limit = time.monotonic() + TIMEOUT_S
    try:
        while any(side.runs() for side in sides):
            time.sleep(TURN_S)
            cores.reverse()
            exchange(sides, cores)
            if time.monotonic() > limit:
                sys.exit(f"not finished within {TIMEOUT_S} s")
        print(json.dumps({"sides": [side.rate(args.rate) for side in sides[::order]]}))
    finally:
        for side in sides:
            side.kill()


if __name__ == "__main__":
    main()
