"""The entry of the checker: it decides in which process an environment is checked."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from flatout import child
from flatout.config.schema import EnvConfig
from flatout.envs.check import undisturbed, watched
from flatout.envs.checking.findings import Finding, Findings
from flatout.envs.checking.inspection import Request, inspect
from flatout.envs.checking.process import inspect_in_child
from flatout.envs.checking.process_state import ProcessState
from flatout.envs.deadline import CLOSE_S
from flatout.envs.device.base import DeviceEnv
from flatout.envs.source import EnvSource
from flatout.envs.vector_kind import INSPECTED
from flatout.errors import EnvironmentFailure, UsageError
from flatout.storage.trust import import_here
from flatout_explain.files.kernel import PASSES_DESCRIPTORS

STEPS, PATIENCE_S = 1000, 60.0


def check_env(
    env: Any, *, steps: int = STEPS, seed: int = 0, env_kwargs: dict[str, Any] | None = None,
    patience: float = PATIENCE_S,
) -> list[Finding]:  # fmt: skip
    """Check an environment with random steps; nothing is compiled unless it is written in JAX.

    A name or a function is checked in a process of its own, so that an environment which ends its
    process, hangs in native code or forks becomes a finding. An object is checked in this process.

    Args:
        env: an id, ``module:factory``, a function that makes the environment, or an environment
            object, which is reset and stepped but not closed. It may be a vector of environments.
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
    request = requested(env, steps, seed, env_kwargs, patience)
    if isinstance(env, gym.Env | VectorEnv | DeviceEnv) or not PASSES_DESCRIPTORS:
        return inspect_here(request).ordered()
    name = request.config.env
    if request.source is None:
        import_here(name)
    findings = None
    with suppress(UsageError):  # it cannot be pickled
        findings = inspect_in_child(child.as_bytes(request), name, patience)
    if findings is None:
        findings = inspect_here(request)
        findings.add(
            "note", "process",
            "the function or its module cannot travel to another process, so it was checked in "
            "this one.",
        )  # fmt: skip
    return findings.ordered()


def requested(
    env: Any, steps: int, seed: int = 0, env_kwargs: dict[str, Any] | None = None,
    patience: float = PATIENCE_S,
) -> Request:  # fmt: skip
    """Return the request that the arguments of `check_env` make, or raise its `UsageError`."""
    if env is None:
        raise UsageError("name an environment, or pass one: check_env(None) has none.")
    if steps < 1:
        raise UsageError(f"steps = {steps} is impossible: an environment is checked in 1 or more.")
    name, source = (env, None) if isinstance(env, str) else (_name_of(env), env)
    config = EnvConfig(env=name, env_kwargs=env_kwargs or {}, envs=INSPECTED)
    registered = EnvSource.of(config, source).registered
    return Request(config, source, steps, seed, patience, registered)


def inspect_here(request: Request) -> Findings:
    """Check an environment in this process, whose random numbers and working folder are restored.

    A call that takes too long is interrupted. A call that ends this process ends it with a sentence
    on stderr.
    """
    findings, name = Findings(), request.config.env
    during, setting = "while it was checked", "patience (--patience)"
    with undisturbed():
        try:
            with watched(name, request.patience, during, "constructor", setting) as watch:
                state = ProcessState(findings, announces=True)
                inspect(request, findings, watch, state, min(CLOSE_S, request.patience))
        except EnvironmentFailure as error:
            findings.add("error", "returns", str(error))
    return findings


def _name_of(env: Any) -> str:
    """Return the name of an environment object or of a function that makes one, for messages."""
    if isinstance(env, DeviceEnv):
        return env.name
    if isinstance(env, VectorEnv):
        return type(env.unwrapped).__name__
    if isinstance(env, gym.Env):
        return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    function = env.func if isinstance(env, functools.partial) else env
    return getattr(function, "__name__", type(env).__name__)
