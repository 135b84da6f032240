"""A pytest plugin that records what each test costs: `pytest --costs FILE`.

Each test adds one line of JSON to the file: its id, its wall seconds, the CPU seconds of its
process and of the children that it waited for, and how many programs its process compiled.
`tools/suite_costs.py` prints them.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MISS = "/jax/compilation_cache/cache_misses"
"""JAX's event of a program that is not in the compile cache."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="append what each test costs to this file")


def cpu_seconds() -> float:
    """CPU seconds of this process and of the children it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Recorder:
    """Measures each test of one process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._programs = 0
        self._listening = False

    def _listen(self) -> None:
        """Count programs from now on, if a test has imported JAX: most tests do not need it."""
        if not self._listening and "jax" in sys.modules:
            import jax.monitoring

            jax.monitoring.register_event_listener(self._event)
            self._listening = True

    def _event(self, event: str, **_: Any) -> None:
        self._programs += event == MISS

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._listen()
        began, cpu, programs = time.monotonic(), cpu_seconds(), self._programs
        try:
            return (yield)
        finally:
            row = {"test": item.nodeid, "wall": round(time.monotonic() - began, 3),
                   "cpu": round(cpu_seconds() - cpu, 3),
                   "programs": self._programs - programs}  # fmt: skip
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            with open(descriptor, "a") as stream:
                stream.write(json.dumps(row) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.costs:
        config.pluginmanager.register(Recorder(Path(config.option.costs).absolute()))
