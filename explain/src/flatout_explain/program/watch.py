"""Watches a program as it runs: samples the hardware until the program or some time has ended."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout_explain.hardware.monitor import Monitor
from flatout_explain.program.evidence import Evidence, build, rows_of
from flatout_explain.program.timeline import timeline

POLL_S = 0.1
MONITOR_S = 0.5
LONGEST = 4  # observation is extended up to this factor, until enough was seen
IMPORTS_S = 60.0  # observation begins after the imports of all processes, or after this time


def lengths(seconds: float) -> Iterator[float]:
    """Yield how long to observe in all: `seconds`, then more, up to `LONGEST` times as long.

    The caller stops once it has seen enough.
    """
    total = seconds
    while total < LONGEST * seconds:
        yield total
        total += seconds / 2
    yield LONGEST * seconds


class Watch:
    """A program that is watched, until this is closed.

    Args:
        child: the program.
        folder: where its probes write.
        meta: its evidence, which receives the samples.
        clock: of the evidence, in seconds.
        pid: the process whose hardware is sampled, if that is another one.
    """

    def __init__(
        self, child: subprocess.Popen[Any], folder: Path, meta: dict[str, Any],
        clock: Callable[[], float] = time.monotonic, pid: int | None = None,
    ) -> None:  # fmt: skip
        self._child, self._folder, self._meta, self._clock = child, folder, meta, clock
        self._monitor = Monitor(pid or child.pid, MONITOR_S, clock=clock)
        meta["machine"]["cores"] = self._monitor.cores
        self._next = time.monotonic() + MONITOR_S
        self._rest = MONITOR_S  # seconds until the next sample, while the program is stopped
        self._end = threading.Event()
        threading.Thread(target=self._await_end, daemon=True).start()

    def close(self) -> None:
        """Stop the sampling."""
        self._meta["notes"] += self._monitor.notes
        self._monitor.close()

    def _await_end(self) -> None:
        """Wait for the program's end without waking up, which may take a core from it."""
        self._child.wait()
        self._end.set()

    @property
    def ended(self) -> bool:
        """Whether the program has ended."""
        return self._child.poll() is not None

    @property
    def part(self) -> str:
        """Why less than two whole cycles were seen so far; empty if they were, or if the recording
        is damaged."""
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return timeline(self.evidence()).part
        return ""

    def evidence(self) -> Evidence:
        """Return the evidence so far."""
        so_far = self._meta | {"monitor": [], "ended": self._clock(), "finished": False}
        return build(so_far, rows_of(self._folder))

    def wait_for_imports(self) -> None:
        """Wait until all Python processes so far have finished their imports."""
        limit = self._meta["began"] + IMPORTS_S
        while not self.ended and not self._imported() and time.monotonic() < limit:
            self.run(POLL_S)

    def run(self, seconds: float) -> None:
        """Sample the hardware for some seconds, or until the program has ended."""
        limit = time.monotonic() + seconds
        while not self.ended and (now := time.monotonic()) < limit:
            self._end.wait(max(min(self._next, limit) - now, 0.0))
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + MONITOR_S
                self._meta["monitor"].append(self._monitor.sample().as_json())
                self._meta["machine"]["cores"] = self._monitor.cores

    def pause(self) -> None:
        """Count nothing until `resume`, because the program is stopped."""
        self._rest = self._next - time.monotonic()
        self._monitor.pause()

    def resume(self) -> None:
        """Count again, because the program continues."""
        self._next = time.monotonic() + self._rest
        self._monitor.resume()

    def _imported(self) -> bool:
        started = {path.name.partition("-")[0] for path in self._folder.glob("*.jsonl")}
        return bool(started) and started <= {path.stem for path in self._folder.glob("*.ready")}
