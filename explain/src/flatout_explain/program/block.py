"""Explains a part of the running program: the block of ``with flatout.explaining():``."""

from __future__ import annotations

import inspect
import io
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from flatout_explain import output_file
from flatout_explain.errors import UsageError, damage
from flatout_explain.output import command_name, json_text, say

if TYPE_CHECKING:
    from flatout_explain.diagnosis import Diagnosis


WIDTH = 100  # columns of a report as text


class Explanation:
    """The report of a block; empty until the block has ended.

    Attributes:
        diagnosis: the findings, the shares of the time and the use of the hardware, or None.
    """

    diagnosis: Diagnosis | None = None

    @property
    def verdict(self) -> str | None:
        """The first finding's name, such as ``env-bound``; None without a diagnosis."""
        return None if self.diagnosis is None else self.diagnosis.verdict

    def save(self, path: str | Path) -> None:
        """Write the report as a page (``.html``) or as data (``.json``).

        Raises:
            UsageError: another kind of file, or nothing has been explained.
        """
        path = Path(path)
        if path.suffix not in (".html", ".json"):
            raise UsageError(f"{path.name}: a report is an .html or a .json file.")
        if self.diagnosis is None:
            raise UsageError(f"{path.name} cannot be written: no block has been explained yet.")
        if path.suffix == ".html":
            output_file.write(path, self._page())
        else:
            output_file.write(path, json_text(self.diagnosis.as_json(), indent=1) + "\n")

    def __repr__(self) -> str:
        """Return the report as text."""
        if self.diagnosis is None:
            return "nothing has been explained yet"
        from rich.console import Console

        from flatout_explain.report import show

        file = io.StringIO()
        show(self.diagnosis, Console(file=file, width=WIDTH, force_terminal=False))
        return file.getvalue().rstrip()

    def _repr_html_(self) -> str | None:
        """Return the report as a page within a notebook, whose own style it does not change."""
        if self.diagnosis is None:
            return None
        return (
            f'<iframe srcdoc="{escape(self._page())}" sandbox="" title="{command_name()}" '
            'style="width: 100%; height: 40rem; border: 0"></iframe>'
        )

    def _page(self) -> str:
        from flatout_explain import html

        assert self.diagnosis is not None
        return html.page(self.diagnosis)


@contextmanager
def explaining(*, show: bool = True, subject: str = "") -> Iterator[Explanation]:
    """Explain why the hardware is idle while a block of this program runs.

    The main thread, the other threads and the Python processes that the block starts are observed
    as `flatout explain -- python script.py` observes a whole program. The report is printed when
    the block ends, also if it ends with an exception. In a program that runs under `flatout
    explain`, or within another such block, it does nothing but say so.

    Args:
        show: whether to print the report on standard output.
        subject: what the report says is explained; by default the block's file and line.

    Yields:
        The explanation, which has a diagnosis once the block has ended.

    Raises:
        UsageError: entered outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("explaining() observes the main thread: enter it there.")
    explanation = Explanation()
    if "FLATOUT_EXPLAIN" in os.environ:
        say("explaining() does nothing here, because this program is being explained already.")
        yield explanation
        return
    from flatout_explain.program.attach import begun, machine, working_folder

    meta = begun([subject or _place(inspect.currentframe())], machine())
    with working_folder() as folder:
        try:
            with _children_observed(folder), _observed(folder, meta):
                yield explanation
        finally:
            _explain(folder, meta, explanation, show)


@contextmanager
def _children_observed(folder: Path) -> Iterator[None]:
    """Let Python processes that this one starts load the probe."""
    from flatout_explain.program.attach import variables

    added = variables(folder)
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _observed(folder: Path, meta: dict[str, Any]) -> Iterator[None]:
    """Sample this process and its hardware, and put what is seen into the folder and `meta`."""
    from flatout_explain.hardware.monitor import Monitor, Recorder, Sampler
    from flatout_explain.program.attach import probe_module
    from flatout_explain.program.watch import MONITOR_S

    monitor = Monitor(os.getpid(), MONITOR_S, clock=time.monotonic)
    recorder, sampler = Recorder(), Sampler(monitor)
    meta["began"] = time.monotonic()
    sampler.add(recorder)
    probe = probe_module("_flatout_probe").observe(str(folder))
    probe.own.add(sampler.ident)
    try:
        yield
    finally:
        meta["ended"] = time.monotonic()
        probe.finish()
        sampler.remove(recorder)
        sampler.close()
        meta["monitor"] = [sample.as_json() for sample in recorder.samples]
        meta["machine"]["cores"] = monitor.cores
        meta["notes"] += monitor.notes


def _explain(folder: Path, meta: dict[str, Any], explanation: Explanation, show: bool) -> None:
    """Diagnose what was seen; if that is impossible, say so in one sentence."""
    from rich.console import Console

    from flatout_explain.program.attach import last_lines
    from flatout_explain.program.diagnose import diagnose
    from flatout_explain.program.evidence import build
    from flatout_explain.report import show as print_report

    try:
        rows = last_lines(folder, running=len(list(folder.glob("*.jsonl"))) > 1)
        explanation.diagnosis = diagnose(build(meta | {"finished": True}, rows))
        explanation.diagnosis.check()
    except (
        ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError,
    ) as error:  # fmt: skip
        say(f"this block cannot be explained: what was recorded is damaged ({damage(error)}).")
        return
    if show:
        print_report(explanation.diagnosis, Console())


def _place(frame: FrameType | None) -> str:
    """Return file and line of the block: the first frame outside of this module and
    `contextlib`."""
    while frame is not None and frame.f_globals.get("__name__") in (__name__, "contextlib"):
        frame = frame.f_back
    if frame is None:
        return "a block"
    return f"the block at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
