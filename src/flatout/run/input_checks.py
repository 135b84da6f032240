"""Notes about inputs and actions that no agent can learn from, one of each kind in a run.

The updates of PPO and A2C measure them (`algorithms.common.diagnostics`). `Progress` keeps how long
each has held, so that a resumed run gives a note where an uninterrupted one would.
"""

from __future__ import annotations

from flatout.algorithms.common.diagnostics import CONSTANT
from flatout.run.progress import Progress
from flatout.types import Metrics

CLIPPED = 0.05
"""The share of inputs at the clip from which on there is a note. Of numbers whose distribution does
not change, at most 1 % are 10 deviations from their mean."""

ITERATIONS, STEPS, EPISODES = 3, 2_000, 3
"""How long something has to hold until there is a note. Episodes count for inputs that may change
with each episode alone."""


def check_inputs(progress: Progress, metrics: Metrics) -> list[str]:
    """Return the notes that are due after an iteration, before it is counted.

    Flags of arrays of observations, by path, are replaced in its metrics by their sum,
    ``constant_inputs``.
    """
    values, notes = metrics.values, list[str]()
    flags = {name: values.pop(name) for name in list(values) if name.startswith(CONSTANT)}
    if flags:
        values["constant_inputs"] = sum(flags.values())
    for name, flag in flags.items():
        if flag < 1.0:  # an input that changed once is no constant
            progress.noted[name] = False
        elif _lasts(progress, metrics, name, True, EPISODES):
            path = name.removeprefix(CONSTANT)
            what = f"the input {path}" if path else "the observation"
            steps = progress.steps + metrics.steps
            notes.append(
                f"{what} never changes: it had one value in all {steps:,} steps so far, so nothing "
                "can be learned from it (train/constant_inputs)"
            )
    same = values.get("constant_actions", 0.0) >= 1.0
    if steps := _lasts(progress, metrics, "constant_actions", same):
        notes.append(
            f"all actions are the same: there was one action in each of the last trajectories, "
            f"{steps:,} steps (train/constant_actions); see train/entropy, and for a Box, whether "
            "the actions lie at its bounds"
        )
    share = values.get("clipped_inputs", 0.0)
    if steps := _lasts(progress, metrics, "clipped_inputs", share >= CLIPPED):
        notes.append(
            f"{share:.0%} of normalised inputs lie at the clip, 10 deviations from their mean, "
            f"after {steps:,} steps with at least {CLIPPED:.0%} (train/clipped_inputs): "
            "observations are unlike those before; look for outliers, or for a scale that changes"
        )
    return notes


def _lasts(progress: Progress, metrics: Metrics, name: str, holds: bool, episodes: int = 0) -> int:
    """Count an iteration in which something holds, or begin to count again where it does not.
    Return the steps in which it has held if it has now held long enough for its note, else 0."""
    if not holds:
        progress.lasting.pop(name, None)
        return 0
    if name in progress.noted:
        return 0
    before = progress.lasting.get(name, [0, 0, 0])
    now = [before[0] + 1, before[1] + metrics.steps, before[2] + len(metrics.episodes.env)]
    progress.lasting[name] = now
    if now[0] < ITERATIONS or now[1] < STEPS or now[2] < episodes:
        return 0
    progress.noted[name] = True
    del progress.lasting[name]
    return now[1]
