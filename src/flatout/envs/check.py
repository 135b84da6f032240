"""Check that an environment can be made, and returns what its spaces say, before anything is
compiled."""

from __future__ import annotations

import faulthandler
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from flatout.envs.base import TRAINING
from flatout.envs.deadline import STARTUP_S, DeadlineExceeded, deadline
from flatout.envs.device.on_host import OneDevice
from flatout.envs.masks import attribute
from flatout.envs.task import Task
from flatout.errors import EnvironmentFailure, InvalidReturn
from flatout.output import printable
from flatout.storage.kernel import PASSES_DESCRIPTORS, close_in_children
from flatout.types import ActionSpec, DiscreteSpec


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


def refuse(task: Task, seed: int, patience: float) -> None:
    """Refuse an environment whose first reset or step does not end, or whose observations are not
    what its observation space says.

    The environment that was made to look at its spaces is reset and stepped once, and then closed:
    the run makes its own, so that environments that remember earlier episodes (running means, a
    curriculum) give the same trajectories as without this check. A user's environment object is
    only reset. An exception of the environment is left to the run, which says where it was raised,
    and starts worker processes again.

    Args:
        task: as it was opened; ALE ids and device environments need no check.
        seed: the run's; the reset has the seed of its first episode.
        patience: seconds for the reset and the step, the limit of a worker's step.

    Raises:
        InvalidReturn: an observation, a reward, a flag or an info is refused.
        EnvironmentFailure: it took longer than `patience`. Native code that cannot be interrupted
            ends the process instead, see `deadline`.
        UsageError: it masks its actions.
    """
    env = task.first
    if env is None or isinstance(attribute(env, "unwrapped"), OneDevice):
        return
    envs = task.host([env], seed, TRAINING)
    obs = np.zeros((1, *task.obs_spec.shape), task.obs_spec.dtype)
    rewards = np.zeros(1)
    during = "in the environment's first reset or step"
    try:
        with watched(task.name, patience, during, "first reset") as watch:
            try:
                envs.reset_all(obs)
                if not task.single:  # the run continues with the user's object
                    watch.call = "first step"
                    envs.step(_action(task.action_spec), obs, rewards, lambda *end: None)
            except InvalidReturn:
                raise
            except EnvironmentFailure:
                pass
    finally:
        if not task.single:
            task.close()


@dataclass
class Watch:
    """The call of an environment that is being watched."""

    call: str


@contextmanager
def watched(name: str, seconds: float, during: str, call: str) -> Iterator[Watch]:
    """Watch calls of an environment that may hang, crash natively or end the process.

    Args:
        name: the environment.
        seconds: how long the calls may take, the limit of a worker's step.
        during: when this is, for the sentence that is printed if the process ends.
        call: the first of them.

    Raises:
        EnvironmentFailure: they took longer. Native code that cannot be interrupted ends the
            process instead, see `deadline`.
    """
    limit = f"within {seconds:g} s; if it needs longer, raise worker_timeout (--worker-timeout)"
    watch = Watch(call)
    try:
        with _witness(name, during, limit) as report, deadline(seconds, report):
            yield watch
    except DeadlineExceeded as error:
        raise EnvironmentFailure(f"{name} did not finish its {watch.call} {limit}.") from error


@contextmanager
def making(name: str, seconds: float) -> Iterator[None]:
    """`watched`, around the making of an environment, which may take `STARTUP_S` or longer."""
    limit = max(STARTUP_S, seconds)
    with watched(name or "the environment", limit, "while it was made", "constructor"):
        yield


WITNESS = r"""
why=$1
while IFS= read -r line; do
    [ "$line" = done ] && exit
    printf '%s\n' "$line" >&2
    why=$2
done
printf '%s\n' "$why" >&2
"""
"""A shell script that passes on what it reads, until it reads ``done``, and otherwise prints its
first argument, or its second if it has read anything."""


@contextmanager
def _witness(name: str, during: str, limit: str) -> Iterator[int]:
    """Let another process say what happened if this process ends within the context: native code
    that crashes or hangs, and ``os._exit``, leave it no time to say it itself. If the process
    crashes, faulthandler reports the line.

    Args:
        name, during: the environment, and what it does, for a sentence.
        limit: how long it may take.

    Yields:
        The descriptor to which `deadline` writes where a process was that it ends.
    """
    ended = f"flatout: {name}: the process ended {during}"
    words = (
        f"{ended}: native code crashed, code called os._exit, or the process was killed.",
        f"{ended}, which ignored an interrupt: it did not finish {limit}.",
    )
    enabled = faulthandler.is_enabled()
    if not enabled:
        faulthandler.enable(file=2, all_threads=False)
    process = None
    if PASSES_DESCRIPTORS:
        with suppress(OSError):  # there is no shell: only faulthandler reports
            process = subprocess.Popen(
                ["/bin/sh", "-c", WITNESS, "sh", *map(printable, words)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
    try:
        if process is None or process.stdin is None:
            yield 2
            return
        close_in_children(process.stdin)
        try:
            yield process.stdin.fileno()
        finally:
            with suppress(OSError), process.stdin as channel:  # it was killed
                channel.write(b"done\n")
            process.wait()
    finally:
        if not enabled:
            faulthandler.disable()


def _action(spec: ActionSpec) -> np.ndarray:
    """The first action, or the one nearest to 0, as a batch of one."""
    if isinstance(spec, DiscreteSpec):
        return np.zeros(1, np.int32)
    return np.clip(0.0, spec.low, spec.high)[None]
