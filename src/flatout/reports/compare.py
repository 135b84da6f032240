"""Two runs side by side: settings, curves, speed, and where the time went."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flatout.config.schema import REPORT, affecting
from flatout.errors import FlatoutError, UsageError, damage
from flatout.output import printable, text_table
from flatout.reports.curves import curves, of_one_score, read
from flatout.reports.curves import text as curve_text
from flatout.spans import PHASE_WORDS, phase_words
from flatout.storage.run_folder import load_config
from flatout_explain.files import nofollow

SHOWN = affecting(REPORT)
"""Settings that decide what is shown and written, which are not compared."""
FACTS = ("steps", "episodes", "last_eval_return", "best_eval_return", "return_mean_last",
         "test_accuracy", "wall_s", "startup_s", "steps_per_s", "placement", "verdict")  # fmt: skip
"""The entries of two summaries that are compared."""


def compared(a: Path, b: Path) -> dict[str, Any]:
    """Return the differences of two runs, each value as ``[a's, b's]``; ``null`` where unknown.

    Raises:
        UsageError: a folder is no run.
        CheckpointError: its settings are damaged.
    """
    runs = (a, b)
    flat = [load_config(path, None).flat() for path in runs]
    names = [n for n in dict.fromkeys([*flat[0], *flat[1]]) if n not in SHOWN]
    settings = {n: [one.get(n) for one in flat] for n in names if flat[0].get(n) != flat[1].get(n)}
    summaries = [_summary(path) for path in runs]
    facts = {n: [one.get(n) for one in summaries] for n in FACTS}
    times = [_phases(one) for one in summaries]
    steady = all(times)
    if not steady:  # one of them has none: the shares of its whole time
        times = [one.get("phases") for one in summaries]
    phases = {n: [_share(one, n) for one in times] for n in PHASE_WORDS}
    text, at, values, score, lacks = "", None, None, None, ""
    try:
        both = [read(path) for path in runs]
        found = of_one_score(both)
        lacks = _without_evaluations(
            [run.evaluations is not None for run in both],
            [one.get("last_eval_return") is not None for one in summaries],
        )
    except UsageError as error:  # one of them has no curve yet
        found, lacks = [], str(error)
    if found:
        text = curve_text(
            [replace(curves([run])[0], label=n) for n, run in zip("AB", found, strict=True)]
        )
        score = " or ".join(dict.fromkeys(run.value for run in found))
        at = min(run.steps[-1] for run in found)
        values = [
            float(np.interp(at, run.steps, run.returns)) if run.steps[0] <= at else None
            for run in found
        ]
    return {
        "runs": [str(path) for path in runs],
        "settings": json.loads(json.dumps(settings, default=str)),
        "summary": {name: pair for name, pair in facts.items() if pair != [None, None]},
        "steady": steady,
        "phases": {name: pair for name, pair in phases.items() if max(pair) >= 0.005},
        "score": score,
        "note": lacks,
        "at_steps": at,
        "return_at_steps": values,
        "curves": text,
    }


def _without_evaluations(curves_: list[bool], last: list[bool]) -> str:
    """Return a sentence that says which of two runs lacks evaluations, or an empty string.

    Args:
        curves_: whether each run has a curve of evaluations, which are two or more.
        last: whether each run has an evaluation.
    """
    if all(curves_) or (not any(curves_) and all(last)):
        return ""
    advice = "--eval-every STEPS evaluates a run while it trains."
    if not any(last):
        return f"Neither run has an evaluation; {advice}"
    counts = ["one evaluation" if one else "no evaluation" for one in last]
    words = [f"{n} has {count}" for n, count, many in zip("AB", counts, curves_, strict=True)
             if not many]  # fmt: skip
    return f"{' and '.join(words)}; {advice}"


def _summary(path: Path) -> dict[str, Any]:
    """Return a run's summary; an empty one if the run has not ended."""
    try:
        summary = nofollow.read_json(path / "summary.json")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FlatoutError(f"{path / 'summary.json'} cannot be read: {damage(error)}.") from None
    return summary if isinstance(summary, dict) else {}


def _phases(summary: dict[str, Any]) -> Any:
    """The shares on which the run's verdict rests."""
    steady = summary.get("steady")
    return steady.get("phases") if isinstance(steady, dict) else None


def _share(phases: Any, phase: str) -> float:
    share = phases.get(phase) if isinstance(phases, dict) else None
    return float(share) if isinstance(share, int | float) else 0.0


def told(found: dict[str, Any]) -> str:
    """The comparison as text."""
    lines = [f"A  {found['runs'][0]}", f"B  {found['runs'][1]}"]

    def part(
        heading: str, pairs: dict[str, list[Any]], last: Any = lambda a, b: "", shown: Any = _value
    ) -> None:
        table = [[str(n), shown(a), shown(b), last(a, b)] for n, (a, b) in pairs.items()]
        lines.extend(["", *text_table([[heading, "A", "B", ""], *table], (0, 3))])

    if found["settings"]:
        part("SETTINGS", found["settings"], shown=_setting)
    else:
        lines += ["", "SETTINGS  the same"]
    part("RESULTS", found["summary"], _ratio)
    if found["phases"]:
        part("TIME", {
            phase_words(n, 1) if found["steady"] else PHASE_WORDS[n]:
            [f"{share:.1%}" for share in pair] for n, pair in
            sorted(found["phases"].items(), key=lambda item: -max(item[1]))
        })  # fmt: skip
    if found["curves"]:
        a, b = (_at_steps(value) for value in found["return_at_steps"])
        lines += ["", f"CURVES  {found['score']}", found["curves"],
                  f"at {found['at_steps']:,.0f} steps: A {a}, B {b}"]  # fmt: skip
    if found["note"]:
        lines += [*([] if found["curves"] else [""]), found["note"]]
    return printable("\n".join(lines))


def _at_steps(value: float | None) -> str:
    return "has no value yet" if value is None else f"{value:,.2f}"


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if type(value) is int:
        return f"{value:,}"
    if type(value) is float and abs(value) >= 1:
        return f"{value:,.1f}"
    return f"{value:.4g}" if type(value) is float else str(value)


def _setting(value: Any) -> str:
    """Return a setting in full and without separators, so that it can be given to a flag."""
    return "-" if value is None else str(value)


def _ratio(a: Any, b: Any) -> str:
    numbers = all(type(value) in (int, float) and value > 0 for value in (a, b))
    try:
        return f"B is {b / a:.2f}x A" if numbers and a != b else ""
    except OverflowError:  # of whole numbers that no float holds
        return ""
