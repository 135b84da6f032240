"""Programs that run in turn: while one runs, the others are held (stopped).

All are started once, so that a minute has many turns even of programs that take long to start; and
they meet the same machine, whose speed changes from minute to minute.
"""

from __future__ import annotations

import math
import mmap
import os
import shlex
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any

import psutil

from flatout_explain import output_file
from flatout_explain.against.rates import course, turn_ratios, units_in_order
from flatout_explain.errors import FlatoutError, one_line
from flatout_explain.program import attach
from flatout_explain.program.evidence import Evidence, Recording, build
from flatout_explain.program.timeline import timeline
from flatout_explain.program.watch import Watch, lengths

CAN_STOP = hasattr(signal, "SIGSTOP")  # Windows cannot stop a process

TURNS = 10
"""Turns in `seconds` of a program."""

LEAST_RATIOS = 4
"""Ratios of speeds in a round, at least, unless time is up."""

TAIL_BYTES = 4096


class Program:
    """A silent, observed program whose speed is counted. Leaving the context ends it.

    Its clock stands still while it is held, so its evidence is as if it had never been held.

    Attributes:
        command: its command line.
        edges: times on its clock, in seconds, at which its turns began and ended.
    """

    def __init__(self, command: Sequence[str], count: str, facts: dict[str, Any]) -> None:
        """Start the program.

        Args:
            count: the function whose calls count (``module:function``); empty for environment and
                optimiser steps.
            facts: the machine's.
        """
        self.command = command
        self.edges: list[float] = []
        self._held_s = 0.0  # for how long it was held
        self._held_since: float | None = None  # when it was held, if it is
        self._outside: dict[int, psutil.Process] = {}  # held processes outside of its group
        with ExitStack() as stack:
            self._folder = stack.enter_context(attach.working_folder())
            output_file.write(self._folder / "count", count)
            with (self._folder / "held").open("w+b") as file:
                file.truncate(mmap.PAGESIZE)
                self._shared = stack.enter_context(mmap.mmap(file.fileno(), mmap.PAGESIZE))
            self._stderr = stack.enter_context(output_file.temporary_file())
            self._child, self._meta = attach.start(command, self._folder, facts, self._stderr)
            self._meta["count"] = count
            stack.callback(self._end)
            self._watching = stack.enter_context(ExitStack())
            self._watch = self._watching.enter_context(
                closing(Watch(self._child, self._folder, self._meta, self.clock))
            )
            self._exit = stack.pop_all()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exception: object) -> None:
        self._exit.close()

    def clock(self) -> float:
        """Return the monotonic time without the seconds for which the program was held."""
        now = time.monotonic() if self._held_since is None else self._held_since
        return now - self._held_s

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._child.poll() is not None  # an interrupt may come before it is watched

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error."""
        return self.ended and self._child.returncode != 0

    def evidence(self) -> Evidence:
        """Return the evidence so far."""
        return self._watch.evidence()

    @property
    def turns_s(self) -> float:
        """Seconds of its turns so far."""
        return self.edges[-1] - self.edges[0]

    def wait_for_imports(self) -> None:
        """Let the program run until its imports are over; then hold it."""
        self._watch.wait_for_imports()
        self._hold()
        self.edges = [self.clock()]

    def turn(self, seconds: float) -> None:
        """Let the program run for some seconds, or to its end; then hold it."""
        if not self.ended:
            self._resume()
            self._watch.run(seconds)
            self._hold()
            self.edges.append(self.clock())

    def finish(self) -> tuple[Recording, Evidence]:
        """Stop the observation, after some last moments in which it runs; the recording, and the
        evidence built from it.

        Raises:
            FailedError: the program has failed.
            FlatoutError: it could not be observed.
        """
        self._resume()
        self._watching.close()
        recording = attach.finish(self._child, self._folder, self._meta, self.clock())
        self._hold()  # the other one is still observed
        if recording[0]["finished"] and (code := self._child.returncode):
            last = self._last_line()
            why = f" ({last})." if last else "."
            code = code if code > 0 else 128 - code
            raise FailedError(f"{shlex.join(self.command)} failed with exit code {code}{why}")
        seen = build(*recording)
        if not seen.processes:
            raise FlatoutError(
                f"{shlex.join(self.command)} cannot be measured: {' '.join(seen.notes)}"
            )
        return recording, seen

    def _hold(self) -> None:
        """Stop all processes of the program, and its clock."""
        if self._held_since is not None or not CAN_STOP:
            return
        self._held_since = time.monotonic()
        self._watch.pause()
        if not self.ended:
            self._signal_group(signal.SIGSTOP)
            with suppress(psutil.Error):
                while self._stop_outside():
                    pass  # what these have started meanwhile

    def _stop_outside(self) -> bool:
        """Stop processes that it started and that left its group; return whether there were new
        ones."""
        found = False
        for process in psutil.Process(self._child.pid).children(recursive=True):
            with suppress(OSError, psutil.Error):
                left = os.getpgid(process.pid) != self._child.pid
                if left and process.pid not in self._outside:
                    self._outside[process.pid] = process
                    process.suspend()
                    found = True
        return found

    def _resume(self) -> None:
        """Let the program's processes and its clock run."""
        if self._held_since is not None:
            self._held_s += time.monotonic() - self._held_since
            self._held_since = None
            self._shared[:8] = round(1e9 * self._held_s).to_bytes(8, "little")
            self._watch.resume()
        outside, self._outside = self._outside, {}
        for process in outside.values():
            with suppress(OSError, psutil.Error):
                process.resume()
        if CAN_STOP and not self.ended:
            self._signal_group(signal.SIGCONT)

    def _end(self) -> None:
        """End the program, and the processes of its group that have outlived it."""
        known = self._child.returncode is not None
        self._resume()
        attach.end(self._child)
        if CAN_STOP and (not known or self._outlived()):
            self._signal_group(signal.SIGKILL)

    def _outlived(self) -> bool:
        """Return whether a process of its group has outlived it. Without any, the group's number
        may be another one's by now."""
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if os.getpgid(process.pid) == self._child.pid:
                    folder = process.environ().get(attach.FOLDER)
                    if folder == str(self._folder):
                        return True
        return False

    def _signal_group(self, number: int) -> None:
        with suppress(OSError):  # there is none any more
            os.killpg(self._child.pid, number)

    def _last_line(self) -> str:
        """Return the last line that the program wrote to standard error."""
        end = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(end - TAIL_BYTES, 0))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return one_line(RuntimeError(lines[-1].strip())).removesuffix(".") if lines else ""


class FailedError(FlatoutError):
    """A program has ended with an error."""


def take_turns(programs: Sequence[Program], seconds: float, limit: float) -> None:
    """Let programs that were started run in turn until each has run long enough, or has ended.

    Args:
        seconds: how long each runs after its imports, at least; longer, as `lengths` says, until
            two whole cycles of collecting and learning were seen in each, and there are
            `LEAST_RATIOS` ratios of their speeds. One program alone has a single turn for each
            of these lengths.
        limit: time on the monotonic clock after which no turn begins, unless each has had one.
    """
    order, turn_s = list(programs), seconds / TURNS
    for total in lengths(seconds):
        while (left := total - _least(programs)) > (turn_s / 2 if len(programs) > 1 else 0):
            for program in order:
                program.turn(turn_s if len(programs) > 1 else left)
            order.reverse()
            if time.monotonic() > limit or any(program.failed for program in programs):
                return
        if _enough(programs):
            return


def _least(programs: Sequence[Program]) -> float:
    """Return the shortest time, in seconds, for which a program that still runs has run."""
    return min((program.turns_s for program in programs if not program.ended), default=math.inf)


def _enough(programs: Sequence[Program]) -> bool:
    """Return whether those that still run were seen for long enough."""
    going = [program for program in programs if not program.ended]
    seen = [program.evidence() for program in going]
    lines = [timeline(evidence) for evidence in seen]
    if any(line.part for line in lines):
        return False
    shares = [line.driver.seconds(("eval",), line.begin, line.end) / (line.end - line.begin or 1.0)
              for line in lines if line.driver is not None]  # fmt: skip
    for unit in units_in_order(0.0, *shares) if len(going) > 1 else ():
        courses = [
            course(evidence, line, program.edges, unit)
            for evidence, line, program in zip(seen, lines, going, strict=True)
        ]
        if all(each.done and each.done[-1] > 0 for each in courses):
            return len(turn_ratios(courses[0], courses[1])) >= LEAST_RATIOS
    return True
