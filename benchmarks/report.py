"""Numbers, tables and the sections of RESULTS.md, each with where its numbers come from."""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness import BenchmarkError, Row
from machine import commit, isa, machine

RATIO_HEAD = ["ratio", "min", "median", "max", "each pair"]
RESULTS = Path(__file__).resolve().parent / "RESULTS.md"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """``median (min-max)`` of the values."""
    low, mid, high = min(values), statistics.median(values), max(values)
    return f"{mid:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def per_round(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """The ratio of each paired run.

    Raises:
        BenchmarkError: fewer than 3 pairs, of which no median should be quoted.
    """
    if len(over) != len(under) or len(over) < 3:
        raise BenchmarkError(f"{len(over)} and {len(under)} runs: at least 3 pairs are needed.")
    return [a / b for a, b in zip(over, under, strict=True)]


def ratio_row(label: str, ratios: Sequence[float]) -> list[str]:
    """A row for `RATIO_HEAD`."""
    cells = [f"{value:.2f}" for value in (min(ratios), statistics.median(ratios), max(ratios))]
    return [label, *cells, ", ".join(f"{value:.2f}" for value in ratios)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def provenance(args: argparse.Namespace, rows: Mapping[str, Sequence[Row]]) -> str:
    """The lines that say where, when, with what and by which command the numbers were made."""
    everything = [row for runs in rows.values() for row in runs]
    days = sorted({row["when"][:10] for row in everything})
    versions: dict[str, dict[str, None]] = {}
    for side, runs in rows.items():
        for row in runs:
            found = row["result"].get("versions") or {}
            words = ", ".join(f"{name} {version}" for name, version in found.items())
            versions.setdefault(words, {})[side] = None
    places = Counter(f"{row['machine']}, {row['isa']}" for row in everything)
    commits = dict.fromkeys(row["commit"] for row in everything)
    lines = [
        "- Machine: " + "; ".join(f"{name} ({n} runs)" for name, n in places.items()) + ".",
        f"- Date: {days[0]}{f' to {days[-1]}' if days[1:] else ''}. Commit: {', '.join(commits)}.",
        f"- Command: `{command_line(args)}`",
        *(
            f"- Versions, {' and '.join(sides)}: {words}."
            for words, sides in versions.items()
            if words
        ),
    ]
    others = [row["other_load"] for row in everything if row["other_load"] is not None]
    if others:
        lines.append(
            f"- Other work on the machine during the runs, in cores: median "
            f"{statistics.median(others):.2f}, at most {max(others):.2f}."
        )
    sources = {row["source"] for row in everything}
    if len(sources) > 1:
        lines.append(f"- **From {len(sources)} different states of Flatout's source.**")
    return "\n".join(lines)


def measured_here(args: argparse.Namespace) -> str:
    """Return the lines that say where, when and by which command numbers were measured just now."""
    today = time.strftime("%Y-%m-%d")
    return (
        f"- Machine: {machine()}, {isa()}.\n- Date: {today}. Commit: {commit()}.\n"
        f"- Command: `{command_line(args)}`"
    )


def with_part(text: str, name: str, body: str) -> str:
    """Return a page with another body between the markers of `name`, or with that part added."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    part = f"{begin}\n{body.strip()}\n{end}"
    if begin not in text:
        return f"{text.rstrip()}\n\n{part}\n"
    return text.split(begin)[0] + part + text.split(end, 1)[1]


def write_section(args: argparse.Namespace, name: str, body: str) -> None:
    """Print a benchmark's section and put it between its markers in RESULTS.md."""
    body = body.replace("|\n- ", "|\n\n- ")  # otherwise the list is a part of the table
    print(body)
    if args.no_write:
        return
    fresh = RESULTS.with_suffix(".tmp")
    fresh.write_text(with_part(RESULTS.read_text(), name, body))
    fresh.replace(RESULTS)


def command_line(args: argparse.Namespace) -> str:
    """The command again from its options, without this machine's paths."""
    program = Path(sys.argv[0]).resolve().relative_to(Path(__file__).resolve().parent)
    words = ["python", f"benchmarks/{program}"]
    hidden = {"fresh", "flatout", "results", "no_write", "timeout", "peers"}
    for action in args._parser._actions:
        value = getattr(args, action.dest, None)
        if action.dest in hidden | {"help"} or value == action.default or value is None:
            continue
        option = action.option_strings[0]
        if isinstance(value, list):
            words += [option, *map(str, value)]
        elif value is True:
            words.append(option)
        else:
            words.append(f"{option}={'PATH' if Path(str(value)).is_absolute() else value}")
    return shlex.join(words)
