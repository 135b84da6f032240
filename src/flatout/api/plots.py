"""Learning curves in Python: `flatout.plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flatout.api import Agent
from flatout.errors import UsageError
from flatout.fleet.curves import Picture, Run, View, picture, readable


def plot(
    *runs: str | Path | Agent, by: str = "steps", smooth: float = 0.0, group: Sequence[str] = (),
    out: str | Path | None = None,
) -> Picture:  # fmt: skip
    """The learning curves of run folders, populations' folders and agents.

    Runs that differ in nothing but their seeds make one curve: their mean with its 95 % interval.

    Args:
        by: ``"steps"`` or ``"seconds"``.
        smooth: share of a curve over which each value is averaged with those before it.
        group: settings that tell curves apart, whatever else differs.
        out: an .svg file to write (.png and .pdf need matplotlib).

    Returns:
        The picture: a notebook shows it, `print` gives it in characters, `save` writes it.

    Raises:
        UsageError: there is nothing to plot, or an impossible value.
    """
    if not runs:
        raise UsageError("plot needs at least one run folder or agent: flatout.plot(RUN_DIR).")
    view = View(by, smooth, (group,) if isinstance(group, str) else tuple(group))
    found: list[Run] = []
    for run in runs:
        found += [run.curve()] if isinstance(run, Agent) else readable([Path(run)])
    made = picture(found, view)
    if out is not None:
        made.save(out)
    return made
