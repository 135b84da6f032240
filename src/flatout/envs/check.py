"""Check that an environment can be made and returns what its spaces say; `run.resolve` and
`run.acting` call it before anything is compiled."""

from __future__ import annotations

import faulthandler
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from flatout import tree
from flatout.envs.deadline import STARTUP_S, DeadlineExceeded, UnexpectedAlarm, deadline
from flatout.envs.device.on_host import OneDevice
from flatout.envs.host import UnreadMask
from flatout.envs.mask_places import attribute
from flatout.envs.task import Task
from flatout.errors import EnvironmentFailure, InvalidReturn
from flatout.output import printable
from flatout_explain.files.kernel import PASSES_DESCRIPTORS, close_in_children


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore this process's random numbers and working folder when the context ends.

    An environment that is made only to inspect it may change both.
    """
    states, folder = (random.getstate(), np.random.get_state()), None
    with suppress(OSError):  # the working folder was deleted
        folder = os.getcwd()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if folder is not None:
            with suppress(OSError):
                os.chdir(folder)


def refuse(task: Task, seed: int, patience: float) -> bool:
    """Reset and step an environment once, and refuse it if that hangs or returns invalid values.

    The environment that `open_task` made to inspect its spaces is reset, stepped once, and then
    closed. The run makes its own environments, so that those which remember earlier episodes
    (running means, a curriculum) give the same trajectories as without this check. A user's
    environment object is only reset. If the environment raises an exception, it is ignored here:
    the run will meet it again, report where it was raised, and restart worker processes.

    Args:
        task: as `open_task` returned it; ALE ids and device environments need no check.
        seed: the run's seed; the reset uses the seed of its first episode.
        patience: seconds for the reset and the step together: the run's worker timeout.

    Returns:
        Whether the info of the reset holds a mask that the task does not read: it has to be opened
        again, and checked again.

    Raises:
        InvalidReturn: an observation, a reward, a flag or an info is invalid.
        EnvironmentFailure: the reset and the step took longer than `patience`. Native code that
            cannot be interrupted ends the process instead, see `deadline`.
    """
    env = task.first
    if env is None or isinstance(attribute(env, "unwrapped"), OneDevice):
        return False
    during = "in the environment's first reset or step"
    try:
        with watched(task.name, patience, during, "first reset") as watch:
            try:
                envs = task.inspected(env, seed)
                obs = tree.zeros(task.obs_spec, envs.num_envs)
                rewards = np.zeros(envs.num_envs)
                try:
                    envs.reset_all(obs)
                except UnreadMask:
                    return True
                if not task.single:  # the run uses this same object, which must not be stepped
                    watch.call = "first step"
                    idle = np.stack([task.action_spec.idle()] * envs.num_envs)
                    action = task.first_allowed(idle, obs)
                    envs.step(action, obs, rewards, lambda *end: None)
            except InvalidReturn:
                raise
            except EnvironmentFailure:
                pass  # the run reports it
    finally:
        if not task.single:
            task.close()
    return False


class Watch:
    """The name of the call that is being watched; set it when the next call begins.

    Args:
        call: the name of the first call.

    Attributes:
        on_change: is called with the names of the last call and of the next one, when that begins.
    """

    def __init__(self, call: str) -> None:
        self._call = call
        self.on_change: Callable[[str, str], object] | None = None

    @property
    def call(self) -> str:
        """The name of the call that began last."""
        return self._call

    @call.setter
    def call(self, call: str) -> None:
        last, self._call = self._call, call
        if self.on_change is not None:
            self.on_change(last, call)


@contextmanager
def watched(
    name: str, seconds: float, during: str, call: str,
    setting: str = "worker_timeout (--worker-timeout)",
) -> Iterator[Watch]:  # fmt: skip
    """Watch calls of an environment that may hang, crash in native code or end the process.

    Args:
        name: the environment's name.
        seconds: how long all calls together may take.
        during: when they happen, for the sentence that is printed if the process ends.
        call: the name of the first call, see `Watch`.
        setting: the name of the limit, for messages.

    Raises:
        EnvironmentFailure: the calls took longer than `seconds`, or asked for an alarm. Native code
            that cannot be interrupted ends the process instead, see `deadline`.
    """
    limit = f"within {seconds:g} s; if it needs longer, raise {setting}"
    watch = Watch(call)
    try:
        with _witness(name, during, limit) as report, deadline(seconds, report):
            yield watch
    except DeadlineExceeded as error:
        raise EnvironmentFailure(f"{name} did not finish its {watch.call} {limit}.") from error
    except UnexpectedAlarm as error:
        raise EnvironmentFailure(f"{name}: in its {watch.call} {error}.") from error


@contextmanager
def making(name: str, seconds: float) -> Iterator[None]:
    """Watch the constructor of an environment (see `watched`).

    The limit is `STARTUP_S`, or `seconds` if that is longer.
    """
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
"""A shell script that copies its input to standard error. If it reads ``done``, it exits at once.
If the input ends without ``done``, it prints its second argument if it has read any line, and its
first argument otherwise."""


@contextmanager
def _witness(name: str, during: str, limit: str) -> Iterator[int]:
    """Start a helper process that prints a message if this process ends within the context.

    Native code that crashes or hangs, and ``os._exit``, leave this process no time to report it
    itself. If the process crashes, faulthandler also reports the line of code.

    Args:
        name: the environment's name.
        during: when this is, for the message.
        limit: how long it may take, for the message.

    Yields:
        The file descriptor to which `deadline` writes the stack of the process when it ends it.
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
        with suppress(OSError):  # without a shell, only faulthandler reports
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
            with suppress(OSError), process.stdin as channel:  # the helper may have been killed
                channel.write(b"done\n")
            process.wait()
    finally:
        if not enabled:
            faulthandler.disable()
