"""Training loops that users write: the engine's pure functions, from the settings of an agent."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from flatout.algorithms.own import MakeAlgorithm
from flatout.api import Agent
from flatout.engine.loop import Loop
from flatout.engine.own_loop import OwnLoop, own_loop
from flatout.engine.programs import Programs
from flatout.errors import UsageError
from flatout.output import say
from flatout.run.factory import Factory
from flatout.run.job import Job
from flatout.run.resolve import resolve_run


def make(algorithm: MakeAlgorithm | str, env: Any = None, **settings: Any) -> OwnLoop:
    """Return ``init, collect, learn, loop``: an iteration as pure functions of one state.

    The functions are traced by the caller's `jax.jit`, `jax.vmap` or `jax.lax.scan`; nothing is
    logged, saved or evaluated. See docs/own-loop.md.

    Args:
        algorithm: an algorithm's name, or one of the user's own as of `flatout.Agent`.
        env: an environment that steps on a device: an id with a twin in JAX, ``gymnax:NAME``,
            ``module:factory``, or a `flatout.DeviceEnv`.
        settings: any setting of `flatout.PPO` and others. Schedules of hyper-parameters run over
            `steps`; settings of logging, saving and evaluation do nothing here.

    Raises:
        UsageError: unknown or impossible settings, an environment that steps on the host, or a
            placement on several devices.
    """
    agent = Agent(env, algorithm=algorithm, **{"env_backend": "device"} | settings)
    config, code = agent.config, agent._code
    if not config.hyper.acts:
        raise UsageError(f"{config.algorithm} has no environment, so there is nothing to collect.")
    programs = Programs(several=True)  # no placement that was measured for schedules
    with closing(resolve_run(config, code, say, programs=programs, checks=False)) as run:
        placement = run.placement
        if not placement.fused or len(placement.learn) > 1 or config.run.shards > 1:
            raise UsageError(
                f"flatout.engine.make works in one program on one device, not with '{placement}' "
                f"and shards={config.run.shards}: leave out env_backend, placement, devices and "
                "shards, or name one device (placement='cpu')."
            )
        factory = Factory(Job(run))
        return own_loop(Loop(factory.learner(), factory.device_sampler, Programs()))
