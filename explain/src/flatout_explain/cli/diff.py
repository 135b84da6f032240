"""`flatout explain --diff`: what has changed between two saved reports or evidences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flatout_explain import documents, output_file
from flatout_explain.cli.arguments import kind_of
from flatout_explain.cli.parsing import existing
from flatout_explain.cli.saved import OfRun, read_saved
from flatout_explain.errors import FlatoutError, UsageError, with_full_stop
from flatout_explain.output import command_name, json_text

if TYPE_CHECKING:
    from flatout_explain.document import Report


def compare(before: str, after: str, json: str | None, of_run: OfRun) -> None:
    """Print what has changed, and write it to a file if one is named.

    Raises:
        FlatoutError: a file cannot be read, or the files are of different kinds.
    """
    from rich.console import Console

    from flatout_explain.difference import difference, lines
    from flatout_explain.report import show_lines

    found = difference(*(_report_of(existing(file), of_run) for file in (before, after)))
    console = Console()
    for label, rows in lines(found).items():
        show_lines(label, rows, console)
    if json is not None:
        output_file.write(Path(json), json_text(found.as_json(), indent=1) + "\n")


def _report_of(path: Path, of_run: OfRun) -> Report:
    """Read a file of ``--json``, or diagnose one of saved evidence."""
    from flatout_explain import document
    from flatout_explain.program.evidence import MOST_BYTES

    kind = kind_of(path)
    if kind != "evidence":
        what = "a run's folder" if kind == "run" else "a profiler's trace"
        raise UsageError(
            f"--diff compares saved reports, and {path} is {what}: {command_name()} {path} "
            "--json FILE first."
        )
    try:
        values = documents.read_json(path, limit=MOST_BYTES)
    except (OSError, ValueError) as error:
        raise FlatoutError(
            f"{path} is neither a report nor evidence: {with_full_stop(error)}"
        ) from None
    if not isinstance(values, dict):
        raise FlatoutError(f"{path} is neither a report nor evidence of {command_name()}.")
    if "flatout_evidence" not in values and ("schema" in values or "verdict" in values):
        return document.read(values, path)
    diagnosis, _ = read_saved(path, of_run)
    return document.read(diagnosis.as_json(), path)
