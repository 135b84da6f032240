"""Runs without spans.jsonl, of earlier versions: what their summaries and metrics say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatout.spans import NAMES
from flatout.storage.span_records import SPANS, WAIT_LEARNER, Totals


def from_summary(
    summary: Mapping[str, Any] | None, row: Mapping[str, Any] | None
) -> tuple[Totals, list[tuple[str, float]], str] | None:
    """Sums from shares of the main process's wall time.

    Args:
        summary: the run's summary.json, or None.
        row: the last row of its metrics, or None.

    Returns:
        The sums, (what, seconds) left out, and a note; None where neither says enough.
    """
    try:
        if summary is not None and summary.get("iterations"):
            phases = {name: float(share) for name, share in summary["phases"].items()}
            wall, startup = float(summary["wall_s"]), float(summary["startup_s"])
            rate, source = float(summary["steps_per_s"]), summary
            compile_s = min(float(summary["compile_s"]), startup)  # some said more
            counts = (summary["steps"], summary["updates"], summary["iterations"])
        elif row is not None and row.get("time/iterations"):
            names = [name for name in NAMES if f"phase/{name}" in row]
            phases = {name: float(row[f"phase/{name}"]) for name in (*names, "other")}
            wall, rate, source = float(row["time/wall_s"]), float(row["time/steps_per_s"]), {}
            startup = max(wall - float(row["step"]) / max(rate, 1e-9), 0.0)
            compile_s = min(phases["compile"] * wall, startup)
            counts = (row["step"], row["train/updates"], row["time/iterations"])
        else:
            return None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    seconds = max(wall - startup, 1e-6)
    main = {name: share * wall for name, share in phases.items() if name != "compile"}
    main["other"] = max(main.get("other", 0.0) - max(startup - compile_s, 0.0), 0.0)
    flow = source.get("flow") or {}
    learner: dict[str, float] | None = None
    if "sampler_wait_s" in flow:
        waited = min(float(flow["sampler_wait_s"]), main.get("wait", 0.0))
        main["wait"] = main.get("wait", 0.0) - waited
        main[WAIT_LEARNER] = waited
        busy = max(seconds - float(flow.get("learner_wait_s", 0.0)), 0.0)
        learner = {"learn": busy, "other": seconds - busy}
    # A resumed run counts its earlier parts, of which the shares know nothing.
    part = min(rate * seconds / max(float(counts[0]), 1.0), 1.0)
    steps, updates, iterations = (round(float(count) * part) for count in counts)
    totals = Totals(seconds, steps, updates, max(iterations, 1), main, learner)
    apart = [("start-up", max(startup - compile_s, 0.0)), ("compiling", compile_s)]
    note = (
        f"There is no {SPANS}: shares are those of the main process over the whole run, its first "
        "iteration and its end included."
    )
    return totals, apart, note
