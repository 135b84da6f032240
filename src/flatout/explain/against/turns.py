"""Programs that run in turn: one of them runs for a second while the others are held.

All are started once, so that a minute holds many turns of programs that take seconds to start; and
they meet the same machine, whose speed changes from minute to minute.
"""

from __future__ import annotations

import mmap
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import psutil

from flatout.errors import FlatoutError, one_line
from flatout.explain.program import attach
from flatout.explain.program.evidence import Evidence, Recording, build
from flatout.explain.program.watch import watch

HOLDS = hasattr(signal, "SIGSTOP")  # Windows cannot

TURNS = 10
"""Turns of each program, at least."""

TAIL_BYTES = 4096


class Program:
    """A program that runs in silence, observed, while its speed is counted; ended on leaving.

    Its clock stands still while it is held: its evidence is that of a program that never was.

    Attributes:
        command: its command line.
        edges: times on its clock, in seconds, at which its turns began and ended.
    """

    def __init__(self, command: Sequence[str], count: str, facts: dict[str, Any]) -> None:
        """Start it.

        Args:
            count: the function whose calls count (``module:function``); empty for environment and
                optimiser steps.
            facts: the machine's.
        """
        self.command = command
        self.edges: list[float] = []
        self._held_s = 0.0
        self._since: float | None = None  # when it was held, if it is
        self._strays: list[psutil.Process] = []
        with ExitStack() as stack:
            self._folder = stack.enter_context(attach.working_folder())
            (self._folder / "count").write_text(count)
            with (self._folder / "held").open("w+b") as file:
                file.truncate(mmap.PAGESIZE)
                self._told = stack.enter_context(mmap.mmap(file.fileno(), mmap.PAGESIZE))
            self._stderr = stack.enter_context(tempfile.TemporaryFile())
            self._child, self._meta = attach.start(command, self._folder, facts, self._stderr)
            stack.callback(self._end)
            self._watching = stack.enter_context(ExitStack())
            self._watch = self._watching.enter_context(
                watch(self._child, self._folder, self._meta, self.clock)
            )
            self._left = stack.pop_all()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exception: object) -> None:
        self._left.close()

    def clock(self) -> float:
        """Seconds on the monotonic clock, less those for which the program was held."""
        return (time.monotonic() if self._since is None else self._since) - self._held_s

    @property
    def over(self) -> bool:
        """Whether it has ended by itself."""
        return self._watch.over

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error."""
        return self.over and self._child.returncode != 0

    @property
    def part(self) -> str:
        """Why less than two whole cycles were seen so far; empty if they were."""
        return self._watch.part

    @property
    def ran(self) -> float:
        """Seconds of its turns so far."""
        return self.edges[-1] - self.edges[0]

    def imports(self) -> None:
        """Let it run until its imports are over; then hold it."""
        self._watch.imports()
        self._hold()
        self.edges = [self.clock()]

    def turn(self, seconds: float) -> None:
        """Let it run for some seconds, or to its end; then hold it."""
        if not self.over:
            self._watch.sample()  # which begins anew: it used nothing while it was held
            self._go()
            self._watch.run(seconds)
            self._hold()
            self.edges.append(self.clock())

    def finish(self) -> Recording:
        """Stop the observation, after some last moments in which it runs.

        Raises:
            FailedError: the program has failed.
        """
        self._watching.close()
        self._go()
        recording = attach.finish(self._child, self._folder, self._meta, self.clock())
        self._hold()  # the other one is still observed
        if recording[0]["finished"] and (code := self._child.returncode):
            last = self._last_line()
            why = f" ({last})." if last else "."
            code = code if code > 0 else 128 - code
            raise FailedError(f"{shlex.join(self.command)} failed with exit code {code}{why}")
        return recording

    def _hold(self) -> None:
        """Stop all of its processes."""
        if not HOLDS or self.over or self._since is not None:
            return
        with suppress(OSError):
            os.killpg(self._child.pid, signal.SIGSTOP)
        self._since = time.monotonic()
        with suppress(psutil.Error):
            for process in psutil.Process(self._child.pid).children(recursive=True):
                with suppress(OSError, psutil.Error):
                    if os.getpgid(process.pid) != self._child.pid:
                        process.suspend()
                        self._strays.append(process)

    def _go(self) -> None:
        """Let them go on."""
        if self._since is None:
            return
        self._held_s += time.monotonic() - self._since
        self._since = None
        self._told[:8] = round(1e9 * self._held_s).to_bytes(8, "little")
        strays, self._strays = self._strays, []
        for process in strays:
            with suppress(OSError, psutil.Error):
                process.resume()
        with suppress(OSError):
            os.killpg(self._child.pid, signal.SIGCONT)

    def _end(self) -> None:
        self._go()
        attach.end(self._child)

    def _last_line(self) -> str:
        """The last line that it wrote to its standard error."""
        end = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(end - TAIL_BYTES, 0))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return one_line(RuntimeError(lines[-1].strip())).removesuffix(".") if lines else ""


class FailedError(FlatoutError):
    """A program has ended with an error."""


def take_turns(programs: Sequence[Program], seconds: float, limit: float) -> None:
    """Let programs that were started run in turn until each has run long enough, or has ended.

    Args:
        seconds: how long each runs after its imports; up to `attach.LONGEST` times as long until
            two whole cycles of collecting and learning were seen in each.
        limit: time on the monotonic clock after which no turn begins, unless each has had one.
    """
    longest, order = attach.LONGEST * seconds, list(programs)
    enough = seconds
    while not all(program.over for program in programs):
        if any(program.failed for program in programs):
            return
        for program in order:
            program.turn(seconds / TURNS)
        order.reverse()
        ran = max((program.ran for program in programs if not program.over), default=longest)
        if ran >= longest or time.monotonic() > limit:
            return
        if ran >= enough:
            if not any(program.part for program in programs):
                return
            enough += seconds / 2


def evidence_of(program: Program) -> tuple[Recording, Evidence]:
    """Stop observing a program; its recording, and the evidence built from it.

    Raises:
        FlatoutError: the program has failed, or could not be observed.
    """
    recording = program.finish()
    seen = build(*recording)
    if not seen.processes:
        raise FlatoutError(
            f"{shlex.join(program.command)} cannot be measured: {' '.join(seen.notes)}"
        )
    return recording, seen
