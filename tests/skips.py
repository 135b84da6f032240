"""A pytest plugin that fails a run in CI in which a test was skipped that is expected to run.

A test that needs a package or a tool skips without it, and nobody reads 5,000 dots: `EXPECTED` has
every reason for which tests of a tier may skip, and how many. With CI=true any other skip, or one
more for a reason, fails the run and is named.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any

import pytest

EXPECTED: dict[str, int] = {
    # with Python 3.11
    "could not import 'envelope'": 1,  # jax-envelope needs Python 3.12
    "could not import 'envpool'": 1,
    # by machine
    "no PyTorch: run python tools/frameworks.py": 20,  # without a network or a wheel
    "there is no compiler for a library to preload": 20,
    "no Python 3\\.\\d+ on this machine": 60,
    "no browser here": 2,
    "needs network namespaces and /dev/net/tun": 1,
    "this container may not mount a small file system": 2,
    "mounting a small file system needs root": 2,
    "this user may write everywhere": 1,
}
"""How many tests may skip, at most, for a reason that begins with a regular expression."""


def surplus(reasons: Counter[str]) -> dict[str, int]:
    """Return the reasons for which more tests were skipped than expected, and how many did.

    Args:
        reasons: how many tests were skipped for each reason.
    """
    allowed, found = Counter[str](), dict[str, int]()
    for reason, count in reasons.items():
        rule = next((rule for rule in EXPECTED if re.match(rule, reason)), None)
        if rule is None:
            found[reason] = count
            continue
        allowed[rule] += count
        if allowed[rule] > EXPECTED[rule]:
            found[reason] = count
    return found


class Skips:
    """Collects why tests and files of tests are skipped, in the process that reports them."""

    def __init__(self) -> None:
        self._reasons = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._count(report)

    def _count(self, report: Any) -> None:
        where = report.longrepr  # the file, the line and the reason
        reason = where[2] if isinstance(where, (tuple, list)) else str(where)
        self._reasons[reason.removeprefix("Skipped: ")] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if surplus(self._reasons) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason, count in surplus(self._reasons).items():
            terminalreporter.write_line(
                f"{count} skipped: {reason}. CI must run every test; tests/skips.py lists the "
                "exceptions.",
                red=True,
            )


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI") == "true" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skips())
