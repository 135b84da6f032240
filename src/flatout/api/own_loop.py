"""Training loops that users write: the engine's pure functions, from the settings of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from flatout.algorithms.own import MakeAlgorithm
from flatout.api import Agent
from flatout.config.aliases import RENAMED
from flatout.config.schema import BEST, REPORT, TrainConfig, affecting
from flatout.engine.loop import Loop
from flatout.engine.own_loop import OwnLoop, own_loop
from flatout.engine.programs import Programs
from flatout.errors import UsageError
from flatout.output import say
from flatout.run.factory import Factory
from flatout.run.job import Job
from flatout.run.resolve import resolve_run, silent

ONLY_OF_RUNS = affecting(BEST, REPORT) | {"stop_at_return", "replan"}
"""Settings that only a whole run uses; a user's loop does this work itself."""


def make(algorithm: MakeAlgorithm | str, env: Any = None, **settings: Any) -> OwnLoop:
    """Return ``init, collect, learn, loop``: an iteration as pure functions of one state.

    The functions are traced by the caller's `jax.jit`, `jax.vmap` or `jax.lax.scan`; nothing is
    logged, saved or evaluated. See `OwnLoop`, and docs/own-loop.md.

    Args:
        algorithm: an algorithm's name, or the user's own algorithm as for `flatout.Agent`.
        env: an environment that steps on a device: an id with a twin in JAX, ``gymnax:NAME``,
            ``module:factory``, or a `flatout.DeviceEnv`.
        settings: any setting of `flatout.PPO` and others that concerns the iteration itself.
            Schedules of hyper-parameters run over `steps`.

    Raises:
        UsageError: unknown or impossible settings, settings that only a run has, an environment
            that steps on the host, or a placement in several programs or on several devices.
    """
    if isinstance(algorithm, type) and issubclass(algorithm, Agent):
        raise UsageError(
            f"algorithm is a name, such as {algorithm.algorithm or 'ppo'!r}, or a function that "
            f"makes a flatout.Algorithm, not the class {algorithm.__name__}."
        )
    agent = Agent(env, algorithm=algorithm, **{"env_backend": "device"} | settings)
    config, code = agent.config, agent._code
    if not config.hyper.acts:
        raise UsageError(f"{config.algorithm} has no environment, so there is nothing to collect.")
    _refuse(config, settings)
    announce = silent if config.run.chosen_here else say
    programs = Programs(several=True)  # no placement that was measured for schedules
    with closing(resolve_run(config, code, announce, programs=programs, checks=False)) as run:
        if announce is silent and run.hardware.unused_gpu_warning:
            say(run.hardware.unused_gpu_warning)
        factory = Factory(Job(run))
        return own_loop(Loop(factory.learner(), factory.device_sampler, Programs()))


def _refuse(config: TrainConfig, settings: Mapping[str, Any]) -> None:
    """Refuse settings with which an iteration is no pure function, and those that would do nothing.

    Raises:
        UsageError: the message names them.
    """
    run, placed = config.run, config.run.placed
    several = {
        "env_backend": not config.env.backend_device,
        "placement": not run.leaves_sampler
        and placed is not None
        and (not placed.fused or len(placed.learn) > 1),
        "devices": (run.devices or 1) > 1,
        "shards": run.shards > 1,
    }
    if wrong := [f"{name}={config.flat()[name]!r}" for name, bad in several.items() if bad]:
        raise UsageError(
            f"flatout.engine.make works in one program on one device, without {', '.join(wrong)}"
            ", which only an agent's learn() takes."
        )
    names = {RENAMED.get(name, name): name for name in settings}
    if "seed" in names:
        raise UsageError("seed is no setting here: the key decides, init(jax.random.key(seed)).")
    if unused := sorted((ONLY_OF_RUNS | {"eval_env"}) & names.keys()):
        given = ", ".join(names[name] for name in unused)
        raise UsageError(
            f"{given} would do nothing: a loop of your own logs, saves, evaluates and stops as you "
            "write it. Leave it out."
        )
