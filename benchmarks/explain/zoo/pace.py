"""What the scripts of the zoo share: their time budget, their last line, their workers' end."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import threading
import time
from multiprocessing.connection import wait

WARM_UP_S = 2.0


def end_with_parent() -> None:
    """In a worker process: end at once when the parent is gone, so that nothing is left behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Pace:
    """Counts work within a budget of wall time.

    The first seconds do not count towards the rate, so that the rates of two versions compare.
    """

    def __init__(self, seconds: float) -> None:
        """Let the main loop run for `seconds` of wall time from the first `on`."""
        self.seconds = seconds
        self.work = 0
        self._times: list[tuple[float, int]] = []

    @classmethod
    def from_args(cls) -> Pace:
        """The budget that the command line asks for."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--seconds", type=float, default=20.0, help="of the main loop")
        return cls(parser.parse_args().seconds)

    def add(self, work: int = 1) -> None:
        """So many more units of work are done."""
        self.work += work

    def on(self) -> bool:
        """Whether there is time for another turn of the main loop; ask once in each."""
        now = time.perf_counter()
        if len(self._times) < 2:  # the start, then the end of the warm-up
            warm = self._times and now - self._times[0][0] >= min(WARM_UP_S, self.seconds / 4)
            if warm or not self._times:
                self._times.append((now, self.work))
        self._last = now
        return now - self._times[0][0] < self.seconds

    def report(self) -> None:
        """Print the work done after the warm-up, and the seconds that it took."""
        begin, before = self._times[-1]
        if self._last <= begin:  # one turn took all the time
            begin, before = self._times[0]
        print(f"work={self.work - before} seconds={self._last - begin:.3f}", flush=True)
