"""The entry of the checker: the faults of an environment, and what Flatout would do with it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from flatout import tree
from flatout.config.actions import refuse_actions
from flatout.config.hyper import HYPER
from flatout.config.schema import EnvConfig, NetworkConfig
from flatout.config.torso import torso_kind
from flatout.envs.check import undisturbed, watched
from flatout.envs.checking.findings import Finding, Findings
from flatout.envs.checking.trials import Trial, Trials
from flatout.envs.device.base import DeviceEnv
from flatout.envs.device.make import has_twin
from flatout.envs.device.on_host import OneDevice
from flatout.envs.make import Factory, close_quietly, episode_limit, specs, unprepared
from flatout.envs.mask_places import attribute, visible_masks
from flatout.errors import FlatoutError, UsageError
from flatout.types import ObservationSpec, mask_path

STEPS, PATIENCE_S = 1000, 60.0

SLOW_S = 5e-4
"""Seconds of a step from which on actor processes may gain more than they cost."""


def check_env(
    env: Any, *, steps: int = STEPS, seed: int = 0, env_kwargs: dict[str, Any] | None = None,
    patience: float = PATIENCE_S,
) -> list[Finding]:  # fmt: skip
    """Check an environment with random steps; nothing is compiled unless it is written in JAX.

    Args:
        env: an id, ``module:factory``, a function that makes the environment, or an environment
            object, which is reset and stepped but not closed.
        steps: the most steps; a slow environment makes fewer within a few seconds.
        seed: the seed of episodes and actions.
        env_kwargs: arguments for the environment.
        patience: seconds that all calls together may take.

    Returns:
        What was found: errors first, then warnings, then notes. Nothing is wrong if no finding is
        an error.

    Raises:
        UsageError: there is no environment, or no step.
    """
    if env is None:
        raise UsageError("name an environment, or pass one: check_env(None) has none.")
    if steps < 1:
        raise UsageError(f"steps = {steps} is impossible: an environment is checked in 1 or more.")
    name, source = (env, None) if isinstance(env, str) else (_name_of(env), env)
    config = EnvConfig(env=name, env_kwargs=env_kwargs or {})
    findings = Findings()
    with undisturbed():
        try:
            during, setting = "while it was checked", "patience (--patience)"
            with watched(name, patience, during, "constructor", setting) as watch:
                trials = Trials(config, findings, watch, steps, seed)
                _check(config, source, trials, findings)
        except FlatoutError as error:
            findings.add("error", "returns", str(error))
    order = ("error", "warning", "note")
    return sorted(findings.found, key=lambda finding: order.index(finding.kind))


def _name_of(env: Any) -> str:
    """Return the name of an environment object or of a function that makes one, for messages."""
    if isinstance(env, DeviceEnv):
        return env.name
    if isinstance(env, gym.Env):
        return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    function = env.func if isinstance(env, functools.partial) else env
    return getattr(function, "__name__", type(env).__name__)


def _check(config: EnvConfig, source: Any, trials: Trials, findings: Findings) -> None:
    make = unprepared(config, source)
    env = make()
    single = isinstance(source, gym.Env)
    try:
        _try(config, env, trials, findings, None if single else make)
    except BaseException:  # an interrupt, or a call that took too long
        if not single:
            close_quietly(env)
        raise
    if not single:
        trials.close(env)


def _try(
    config: EnvConfig, env: gym.Env[Any, Any], trials: Trials, findings: Findings,
    make: Factory | None,
) -> None:  # fmt: skip
    """Try an environment; `make` makes others, unless there is only this one."""
    inner = attribute(env, "unwrapped")
    if isinstance(inner, OneDevice):
        from flatout.envs.device.check import check_device_env

        for problem in check_device_env(inner.device):
            findings.add("error", "device", problem, problem)
    try:
        specs(env, config.env)
    except UsageError as error:
        findings.add("error", "space", str(error))
        return
    trial = trials.first(env)
    if trial is None:
        return
    copies = [] if make is None else _copies(make, env, findings)
    trials.repeat(trial, copies)
    trials.try_resets(env)
    for copy in copies:
        trials.close(copy)
    for topic, text in _notes(config, env, trial, make is None, findings):
        findings.add("note", topic, text, text)
    if not trial.lengths and episode_limit(env) is None:
        findings.add(
            "warning", "truncation",
            f"no episode ended within {len(trial.tap.seen) - 1:,} random steps, and there is no "
            "time limit: wrap it in gymnasium.wrappers.TimeLimit.",
        )  # fmt: skip


def _copies(make: Factory, env: gym.Env[Any, Any], findings: Findings) -> list[gym.Env[Any, Any]]:
    """Make two further environments; none if the function gives the same object again."""
    copies = [make(), make()]
    objects = [attribute(one, "unwrapped") or one for one in (env, *copies)]
    if len({id(one) for one in objects}) < len(objects):
        findings.add(
            "error", "shared",
            "the function made the same environment object twice: it has to make a new one at each "
            "call.",
        )  # fmt: skip
        return []
    for space in ("observation_space", "action_space"):
        if any(getattr(one, space) != getattr(env, space) for one in copies):
            findings.add(
                "error", "space",
                f"two environments have a different {space}: all copies need the same spaces.",
            )  # fmt: skip
            for copy in copies:
                close_quietly(copy)
            return []
    return copies


def _notes(
    config: EnvConfig, env: gym.Env[Any, Any], trial: Trial, single: bool, findings: Findings
) -> Iterator[tuple[str, str]]:
    """Yield what Flatout would do with the environment: topics and sentences."""
    spec, actions = trial.task.obs_spec, trial.task.action_spec
    for path, leaf in tree.items(spec):
        yield "encoder", f"observation{f' {path!r}' if path else ''}: {_described(leaf)}."
    fitting: list[str] = []
    for algorithm in (name for name, hyper in HYPER.items() if hyper.acts):
        try:
            refuse_actions(algorithm, actions)
            fitting.append(algorithm)
        except UsageError:
            pass
    if mask_path(spec):
        places = [*visible_masks(env), *(["its infos"] if trial.in_info else [])]
        yield "mask", f"actions are masked, by {' and '.join(places)}; masks are obeyed."
    yield "actions", f"{actions.kind} actions: {', '.join(fitting)}."
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
