"""Metrics by which a user sees that an agent cannot learn from its inputs: constant arrays, numbers
far from those before, and actions that are all the same; and the notes that a run makes of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from flatout import tree
from flatout.networks.encoder import CLIP, Encoder
from flatout.types import Metrics, Obs, Trajectory

CONSTANT = "constant/"
"""The beginning of the names of metrics that say whether an array of observations is constant; its
path follows."""


def diagnostic_names(encoder: Encoder, normalised: bool) -> tuple[str, ...]:
    """Return the names of the metrics that `diagnostics` returns."""
    clipped = ("clipped_inputs",) if normalised else ()
    return (*clipped, "constant_actions", *(f"{CONSTANT}{path}" for path in encoder.specs))


def diagnostics(
    encoder: Encoder, trajectory: Trajectory, normalised: Obs | None, weight: jax.Array | None
) -> dict[str, jax.Array]:
    """Return the metrics of a shard's trajectory: whether its actions, and each array of its
    observations, have the same value in all rows; of normalised inputs, the share at the clip.

    Args:
        encoder: how observations become features.
        trajectory: the trajectory.
        normalised: its prepared observations ``[T * N, ...]``; None if they are not normalised.
        weight: ``[T * N]``, 0 for a row of padding, else 1; None if there is no padding.
    """
    found = {"constant_actions": constant(rows(trajectory.actions), weight)}
    # With the observations after the last step, this is also known from one trajectory to the
    # next, and where episodes end with a trajectory.
    obs = dict(tree.items(encoder.split(rows(trajectory.obs))[0]))
    last = dict(tree.items(encoder.split(trajectory.last_obs)[0]))
    for path, leaf in obs.items():
        found[f"{CONSTANT}{path}"] = constant(leaf, weight, last[path])
    if normalised is not None:
        found["clipped_inputs"] = clipped_share(encoder, normalised, weight)
    return found


def clipped_share(encoder: Encoder, x: Obs, weight: jax.Array | None = None) -> jax.Array:
    """Return the share of normalised inputs at the clip, in prepared observations ``[B, ...]``;
    `weight` is that of `diagnostics`."""
    at_clip, count = jnp.zeros(()), jnp.zeros(())
    for path, leaf in tree.items(x):
        if path in encoder.normalised:
            each = (jnp.abs(leaf) >= CLIP).reshape(len(leaf), -1).astype(jnp.float32).sum(-1)
            kept = jnp.ones(len(leaf)) if weight is None else weight
            at_clip, count = at_clip + (each * kept).sum(), count + kept.sum() * leaf[0].size
    return at_clip / jnp.maximum(count, 1.0)


def constant(
    rows: jax.Array, weight: jax.Array | None = None, more: jax.Array | None = None
) -> jax.Array:
    """Return 1 if all rows ``[B, ...]`` are equal, else 0.

    Args:
        weight: ``[B]``, 0 for rows of padding, which may differ; the first row is none. None if
            there is no padding.
        more: further rows, none of which is padding.
    """
    same = (rows == rows[0]).reshape(len(rows), -1).all(-1)
    if weight is not None:
        same |= weight == 0
    found = same.all()
    if more is not None:
        found &= (more == rows[0]).all()
    return found.astype(jnp.float32)


def rows(obs: Obs) -> Obs:
    """Return arrays ``[T, N, ...]`` as rows ``[T * N, ...]``."""
    return tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), obs)


# --- Notes, one of each kind in a run -------------------------------------------------------------

CLIPPED = 0.05
"""The share of inputs at the clip from which on there is a note. Of numbers whose distribution does
not change, at most 1 % are 10 deviations from their mean."""

ITERATIONS, STEPS, EPISODES = 3, 2_000, 3
"""How long something has to hold until there is a note. Episodes count for inputs that may change
with each episode alone."""

Lasting = dict[str, list[int]]
"""Iterations, steps and episodes in which something has held so far, by its name."""


def input_notes(
    metrics: Metrics, steps_before: int, lasting: Lasting, noted: dict[str, bool]
) -> list[str]:
    """Return the notes that are due after an iteration, one of each kind in a run.

    Flags of arrays of observations, by path, are replaced in its metrics by their sum,
    ``constant_inputs``.

    Args:
        metrics: those of the iteration.
        steps_before: the steps of the run before it.
        lasting: counts, which this updates. A checkpoint keeps them, so that a resumed run gives a
            note where an uninterrupted one would.
        noted: whether there was a note about something; False if it can no longer hold.
    """
    values, notes = metrics.values, list[str]()

    def lasts(name: str, holds: bool, episodes: int = 0) -> int:
        """Count an iteration in which something holds, or begin to count again where it does not.
        Return the steps in which it has held if that is long enough for its note, else 0."""
        if not holds:
            lasting.pop(name, None)
            return 0
        if name in noted:
            return 0
        before = lasting.get(name, [0, 0, 0])
        now = [before[0] + 1, before[1] + metrics.steps, before[2] + len(metrics.episodes.env)]
        lasting[name] = now
        if now[0] < ITERATIONS or now[1] < STEPS or now[2] < episodes:
            return 0
        noted[name] = True
        del lasting[name]
        return now[1]

    flags = {name: values.pop(name) for name in list(values) if name.startswith(CONSTANT)}
    if flags:
        values["constant_inputs"] = sum(flags.values())
    for name, flag in flags.items():
        if flag < 1.0:  # an input that changed once is no constant
            noted[name] = False
        elif lasts(name, True, EPISODES):
            path = name.removeprefix(CONSTANT)
            what = f"the input {path}" if path else "the observation"
            steps = steps_before + metrics.steps
            notes.append(
                f"{what} never changes: it had one value in all {steps:,} steps so far, so nothing "
                "can be learned from it (train/constant_inputs)"
            )
    same = values.get("constant_actions", 0.0) >= 1.0
    if steps := lasts("constant_actions", same):
        notes.append(
            f"all actions are the same: there was one action in each of the last trajectories, "
            f"{steps:,} steps (train/constant_actions); see train/entropy, and for a Box, whether "
            "the actions lie at its bounds"
        )
    share = values.get("clipped_inputs", 0.0)
    if steps := lasts("clipped_inputs", share >= CLIPPED):
        notes.append(
            f"{share:.0%} of normalised inputs lie at the clip, 10 deviations from their mean, "
            f"after {steps:,} steps with at least {CLIPPED:.0%} (train/clipped_inputs): "
            "observations are unlike those before; look for outliers, or for a scale that changes"
        )
    return notes
