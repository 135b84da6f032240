"""Whether an environment returns what its spaces say, before anything is compiled."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from flatout.envs.base import TRAINING
from flatout.envs.deadline import DeadlineExceeded, deadline
from flatout.envs.device.on_host import OneDevice
from flatout.envs.task import Task
from flatout.errors import EnvironmentFailure, InvalidReturn
from flatout.types import ActionSpec, DiscreteSpec

LOOK_S = 5.0
"""Seconds after which looking at an environment is given up."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Undo what environments that are made only to be looked at do to this process: they may draw
    from its random numbers and change its working folder."""
    states, folder = (random.getstate(), np.random.get_state()), None
    with suppress(OSError):  # it was deleted
        folder = os.getcwd()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if folder is not None:
            with suppress(OSError):
                os.chdir(folder)


def refuse(task: Task, seed: int) -> None:
    """Refuse an environment whose observations are not what its observation space says.

    The environment that was made to look at its spaces is reset and stepped once, and then closed:
    the run makes its own, so that environments that remember earlier episodes (running means, a
    curriculum) give the same trajectories as without this check. A user's environment object is
    only reset. What an environment raises is left to the run, which says where it was raised, and
    for worker processes starts them again; so is one that takes longer than `LOOK_S`.

    Args:
        task: as it was opened; ALE ids and device environments need no check.
        seed: the run's; the reset has the seed of its first episode.

    Raises:
        InvalidReturn: an observation, a reward, a flag or an info is refused.
        UsageError: it masks its actions.
    """
    env = task.first
    if env is None or isinstance(env.unwrapped, OneDevice):
        return
    envs = task.host([env], seed, TRAINING)
    obs = np.zeros((1, *task.obs_spec.shape), task.obs_spec.dtype)
    rewards = np.zeros(1)
    try:
        if task.single:  # which the run goes on with: it is not interrupted
            envs.reset_all(obs)
            return
        with suppress(DeadlineExceeded), deadline(LOOK_S, fatal=False):
            envs.reset_all(obs)
            envs.step(_action(task.action_spec), obs, rewards, lambda *end: None)
    except EnvironmentFailure as error:
        if isinstance(error, InvalidReturn):
            raise
    finally:
        if not task.single:
            task.close()


def _action(spec: ActionSpec) -> np.ndarray:
    """The first action, or the one nearest to 0, as a batch of one."""
    if isinstance(spec, DiscreteSpec):
        return np.zeros(1, np.int32)
    return np.clip(0.0, spec.low, spec.high)[None]
