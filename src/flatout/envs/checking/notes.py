"""The checker's notes: what Flatout would do with an environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np

from flatout import tree
from flatout.actions import choices
from flatout.config.actions import UNSCALED, refuse_actions, unsuited_range
from flatout.config.hyper import HYPER
from flatout.config.schema import EnvConfig, NetworkConfig
from flatout.config.torso import torso_kind
from flatout.envs.checking.findings import Findings
from flatout.envs.checking.trials import Trial
from flatout.envs.device.make import has_twin
from flatout.envs.make import episode_limit
from flatout.envs.mask_places import visible_masks
from flatout.errors import UsageError
from flatout.types import ActionSpec, ObservationSpec, mask_path

SLOW_S = 5e-4
"""Seconds of a step from which on actor processes may gain more than they cost."""


MANY_OUTPUTS = 100_000
"""Values of all choices of an action from which on a policy is very large."""


def action_warnings(spec: ActionSpec) -> Iterator[str]:
    """Yield sentences about actions that algorithms take, but learn badly with."""
    if why := unsuited_range(spec):
        yield f"{why}. This concerns {', '.join(UNSCALED)}; ddpg, td3 and sac scale theirs."
    if (count := sum(choices(spec))) > MANY_OUTPUTS:
        yield (
            f"{spec.kind} actions have {count:,} values, and a policy has an output for each: it "
            "needs much memory, and learns slowly. Use fewer values or components."
        )


def acting_algorithms(spec: ActionSpec) -> list[str]:
    """Return the names of the built-in algorithms that can choose such actions."""
    fitting: list[str] = []
    for algorithm in (name for name, hyper in HYPER.items() if hyper.acts):
        with suppress(UsageError):
            refuse_actions(algorithm, spec)
            fitting.append(algorithm)
    return fitting


def notes(
    config: EnvConfig, env: gym.Env[Any, Any], trial: Trial, single: bool, findings: Findings
) -> Iterator[tuple[str, str]]:
    """Yield what Flatout would do with the environment: topics and sentences."""
    spec, actions = trial.task.obs_spec, trial.task.action_spec
    for path, leaf in tree.items(spec):
        yield "encoder", f"observation{f' {path!r}' if path else ''}: {_described(leaf)}."
    if mask_path(spec):
        places = [*visible_masks(env), *(["its infos"] if trial.in_info else [])]
        yield "mask", f"actions are masked, by {' and '.join(places)}; masks are obeyed."
    yield "actions", f"{actions.kind} actions: {', '.join(acting_algorithms(actions))}."
    yield "episodes", _episodes(episode_limit(env), [length for length, *_ in trial.lengths])
    same = not findings.has("determinism", "shared")
    yield "resume", (
        "the same seeds and actions repeat an episode: a resumed run continues exactly."
        if same else "a resumed run begins new episodes, because these do not repeat."
    )  # fmt: skip
    step_s = float(np.median(trial.tap.step_s))
    yield (
        "speed",
        (
            f"{1 / max(step_s, 1e-9):,.0f} steps/s in one process, without learning: "
            + (
                "actor processes may be faster (placement auto measures that)."
                if step_s > SLOW_S and not single
                else "it steps in the training process (sampler=inline)."
            )
        ),
    )
    if single:
        yield "samplers", "an environment object steps alone, inline; pass a function for more."
    elif has_twin(config.env, config.env_kwargs):
        yield "samplers", "it has a twin in JAX: --env-backend device steps it with learning."


def _episodes(limit: int | None, lengths: list[int]) -> str:
    """Return a sentence about the lengths of random episodes."""
    some = f"{len(lengths)} ended, after {sum(lengths) / max(len(lengths), 1):.0f} steps on average"
    limited = f"a time limit of {limit:,} steps" if limit else "no time limit"
    return f"{limited}; of the episodes of random play {some if lengths else 'none ended'}."


def _described(leaf: ObservationSpec) -> str:
    """Return what the encoder makes of an array, as a phrase."""
    shape = "x".join(map(str, leaf.shape)) or "one number"
    if leaf.mask:
        return f"{shape}, the mask of allowed actions"
    if leaf.categories:
        numbers = f"{sum(leaf.categories):,} one-hot numbers"
        return numbers if not leaf.shape else f"{len(leaf.categories)} categories, {numbers}"
    if leaf.text:
        return f"a text, counted into {shape} numbers by its words"
    if leaf.is_image:
        kind = torso_kind(leaf, NetworkConfig())
        first = ", transposed from channels first" if leaf.channels_first else ""
        return f"an image {shape}{first}, read by network = {kind}"
    return f"{shape} {leaf.dtype}, dense layers"
