"""An actor process: steps its environments in memory shared with the parent.

`flatout.samplers.processes.pool` starts it with two descriptors. It imports JAX only if it acts.
Commands come over the inherited channel; observations, rewards and actions are in the arena. It
ends when the parent's end of the channel closes.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.errors import FlatoutError, Interrupt, UsageError, one_line
from flatout.output import guarded
from flatout.samplers.processes import protocol
from flatout.samplers.processes.protocol import Job
from flatout.samplers.processes.shared_memory import Arena, Channel, Closed, long

if TYPE_CHECKING:
    from flatout.envs.base import Envs


class Stepper:
    """Steps the worker's environments with actions from the parent.

    Args:
        envs: steps them.
        arena: shared with the parent.
        first: the number of the first environment.
    """

    def __init__(self, envs: Envs, arena: Arena, first: int) -> None:
        self._envs = envs
        columns = slice(first, first + envs.num_envs)
        self._obs = arena["obs"][:, :, columns]  # [slots, T + 1, E, ...]
        self._rewards = arena["rewards"][:, :, columns]
        self._actions = arena["actions"][columns]
        self._active = arena["active"][columns]
        self._flags = arena["flags"][columns]
        self._finals = arena["finals"][columns]
        self._lengths = arena["lengths"][columns]
        self._counters = arena["counters"][columns]
        self._returns = arena["returns"][columns]

    def step(self, slot: int, t: int, partly: bool) -> None:
        """Step t of a trajectory: from row t to row t + 1."""
        envs, flags = self._envs, self._flags
        active = np.flatnonzero(self._active).tolist() if partly else None
        flags.fill(0)
        out = self._obs[slot, t + 1]
        envs.step(self._actions, out, self._rewards[slot, t], self._end, active)
        if envs.life_lost is not None:
            flags[envs.life_lost] |= protocol.LIFE_LOST
        self._publish(bool(flags.any()))

    def reset(self, slot: int, row: int, episodes: list[int | None]) -> None:
        """Start the given episodes (None: continue the current one)."""
        out = self._obs[slot, row]
        if len({*episodes}) == 1 and episodes[0] is not None:
            self._envs.reset_all(out, episodes[0])  # faster together
        else:
            for env, episode in enumerate(episodes):
                if episode is not None:
                    self._envs.reset(env, out, episode)
        self._publish(True)

    def replay(self, slot: int, episodes: list[int], actions: list[Any]) -> list[bool]:
        """Reproduce environments' states; observations go to row 0."""
        reproduced = self._envs.replay_all(episodes, actions, self._obs[slot, 0])
        self._publish(True)
        return reproduced

    def _end(self, env: int, terminated: bool, truncated: bool, final: np.ndarray) -> None:
        self._flags[env] |= (
            protocol.ENDED | protocol.TERMINATED * terminated | protocol.TRUNCATED * truncated
        )
        self._finals[env] = final
        episode = self._envs.finished(env)
        self._returns[env] = episode.episode_return
        self._lengths[env] = episode.length

    def _publish(self, all_counters: bool) -> None:
        envs = self._envs
        self._counters[:, protocol.SINCE] = envs.since
        if all_counters:
            self._counters[:, protocol.EPISODE] = envs.episode
            self._counters[:, protocol.ORIGIN] = envs.origin


def open_envs(job: Job) -> Envs:
    """The job's environments."""
    from flatout.envs.host import TRAINING
    from flatout.envs.task import open_task

    task = open_task(job.config, job.source)
    return task.open(job.count, job.seed, TRAINING, job.reseed_after, job.first, threads=1)


def serve(channel: Channel) -> None:
    """Receive the job, then execute the parent's commands until its end closes."""
    import cloudpickle  # safe: only the parent holds the channel's other end

    try:
        job: Job = cloudpickle.loads(channel.receive_long())
        arena = Arena(job.arena[1], job.arena[0])
        if job.registered is not None:
            import gymnasium

            gymnasium.registry.setdefault(job.registered.id, job.registered)
        envs, answer = _stepper(job, arena) if job.local is None else _actor(job, arena)
        channel.send(protocol.DONE)
        long_command = threading.Event()
        count = functools.partial(_count, envs, arena["beats"][job.first], long_command)
        threading.Thread(target=count, daemon=True).start()
        try:
            _obey(channel, answer, long_command)
        except Closed:
            long_command.clear()
            arena["beats"][job.first] = protocol.CLOSING
            envs.close()
    except Closed:
        return
    except BaseException as error:  # a user's environment may raise anything
        text = (
            str(error)
            if isinstance(error, FlatoutError)
            else f"{type(error).__name__}: {one_line(error)}"
        )
        channel.send(protocol.REFUSED if isinstance(error, UsageError) else protocol.FAILED)
        channel.send_long(text.encode())
        channel.send_long("".join(traceback.format_exception(error)).encode())


def _obey(channel: Channel, answer: Answer, long_command: threading.Event) -> None:
    """Execute the parent's commands until `Closed`."""
    import cloudpickle

    while True:
        command, flag, slot, number = protocol.COMMAND.unpack(
            channel.receive(protocol.COMMAND.size)
        )
        more = cloudpickle.loads(channel.receive_long()) if command in protocol.WITH_MORE else None
        if command != protocol.STEP:
            long_command.set()
        for message in answer(command, flag, slot, number, more):
            channel.send(message)
        long_command.clear()


def _count(envs: Envs, beats: np.ndarray, long_command: threading.Event) -> None:
    """Report the progress of long commands a few times a second."""
    while True:
        long_command.wait()
        beats[:] = sum(envs.lengths), sum(envs.episode)
        time.sleep(protocol.BEAT_S)


def _spent(job: Job, arena: Arena) -> memoryview[float]:
    """This worker's times in the arena; a view's items cost half of an array's."""
    return memoryview(arena[protocol.SPENT][job.first]).cast("B").cast("d")


Answer = Callable[[int, int, int, int, Any], Iterable[bytes]]
"""``(command, flag, slot, number, more)`` to the reply's messages."""


def _stepper(job: Job, arena: Arena) -> tuple[Envs, Answer]:
    envs = open_envs(job)
    stepper = Stepper(envs, arena, job.first)
    spent = _spent(job, arena)
    clock = time.perf_counter

    def answer(command: int, flag: int, slot: int, number: int, more: Any) -> Iterable[bytes]:
        if command == protocol.STEP:
            begin = clock()
            stepper.step(slot, number, bool(flag))
            took = clock() - begin
            spent[protocol.ENV_S] += took
            spent[protocol.TURNS] += 1.0
            spent[protocol.SQUARE] += took * took
        elif command == protocol.RESET:
            stepper.reset(slot, number, more)
        elif command == protocol.REPLAY:
            return (protocol.DONE + bytes(stepper.replay(slot, *more)),)
        return (protocol.DONE,)

    return envs, answer


def _actor(job: Job, arena: Arena) -> tuple[Envs, Answer]:
    import cloudpickle

    from flatout.samplers.processes.actor import LocalActor

    actor = LocalActor(job, arena)
    spent = _spent(job, arena)
    before = spent.tolist()  # times of a lost process

    def answer(command: int, flag: int, slot: int, number: int, more: Any) -> Iterable[bytes]:
        if command == protocol.COLLECT:
            begin = time.perf_counter()
            message, finals = actor.collect(slot, number)
            took = time.perf_counter() - begin
            spent[protocol.ENV_S] = before[protocol.ENV_S] + actor.spans.seconds("env")
            spent[protocol.ACT_S] = before[protocol.ACT_S] + actor.spans.seconds("act")
            spent[protocol.TURNS] += 1.0
            spent[protocol.SQUARE] += took * took
            return (protocol.DONE, long(message), long(finals))
        if command == protocol.START:
            actor.start(slot, more, number)
        elif command == protocol.COMMIT:
            actor.commit(number)
        elif command == protocol.STATE:
            return (protocol.DONE, long(cloudpickle.dumps(actor.state())))
        elif command == protocol.RESTORE:
            return (protocol.DONE, long(cloudpickle.dumps(actor.restore(more))))
        return (protocol.DONE,)

    return actor.envs, answer


def main() -> None:
    """The process's entry."""
    for number in Interrupt.signals:  # the parent handles them
        signal.signal(number, signal.SIG_IGN)
    descriptor, lifeline = int(sys.argv[1]), int(sys.argv[2])

    def watch() -> None:
        os.read(lifeline, 1)  # returns when the parent is gone, even if a step hangs
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    os.dup2(2, 1)  # an environment's output is not the run's
    with guarded():  # errors of printing must not affect the run
        serve(Channel(socket.socket(fileno=descriptor)))
