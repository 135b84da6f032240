"""An actor process: steps its share of the environments in memory that it shares with the parent.

Started by `flatout.samplers.crew` with two descriptors. It imports no JAX. Commands come over
the channel that it inherits; observations, rewards and actions lie in the arena. It ends when the
parent's end of the channel closes, however the parent ended.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.errors import FlatoutError, one_line
from flatout.samplers.shared_memory import Arena, Channel, Closed, Fields

if TYPE_CHECKING:
    from flatout.config import EnvConfig
    from flatout.envs.base import Envs

COMMAND = struct.Struct("<BBiq")
"""Which command, a flag, a slot, a number."""

STEP, RESET, REPLAY = range(3)
DONE, FAILED = b"d", b"f"
"""Replies: it is done; it failed, with a sentence and a traceback, and the process ends."""

SINCE, EPISODE, ORIGIN = range(3)
"""What lies where in an environment's books."""

TERMINATED, TRUNCATED, LIFE_LOST, ENDED = 1, 2, 4, 8
"""Bits of an environment's flags after a step."""


@dataclass(frozen=True)
class Job:
    """What a worker steps, as it travels to it.

    Attributes:
        registered: a Gymnasium spec that the parent's program registered, or None.
        config: the environment and its preparation.
        source: a function that makes one environment, instead of the configured id.
        first: the number of its first environment.
        count: E, how many it steps.
        seed: the run's seed.
        reseed_after: see `AtariEnvs`.
        arena: the shared memory's descriptor and fields.
    """

    registered: Any
    config: EnvConfig
    source: Any
    first: int
    count: int
    seed: int
    reseed_after: int
    arena: tuple[int, Fields]


class Actor:
    """The worker's environments and its part of the arena.

    Args:
        envs: steps them.
        arena: shared with the parent.
        first: the number of the first of them.
    """

    def __init__(self, envs: Envs, arena: Arena, first: int) -> None:
        self._envs = envs
        lanes = slice(first, first + envs.num_envs)
        self._obs = arena["obs"][:, :, lanes]  # [slots, T + 1, E, ...]
        self._rewards = arena["rewards"][:, :, lanes]
        self._actions = arena["actions"][lanes]
        self._active = arena["active"][lanes]
        self._flags = arena["flags"][lanes]
        self._finals = arena["finals"][lanes]
        self._ended = arena["ended"][lanes]
        self._books = arena["books"][lanes]
        self._returns = arena["returns"][lanes]

    def step(self, slot: int, t: int, partly: bool) -> None:
        """Step t of a trajectory: from row t to row t + 1."""
        envs, flags = self._envs, self._flags
        active = np.flatnonzero(self._active).tolist() if partly else None
        flags.fill(0)
        out = self._obs[slot, t + 1]
        envs.step(self._actions, out, self._rewards[slot, t], self._end, active)
        if envs.life_lost is not None:
            flags[envs.life_lost] |= LIFE_LOST
        self._publish(bool(flags.any()))

    def reset(self, slot: int, row: int, episodes: list[int | None]) -> None:
        """Start the given episodes (None: the current one goes on)."""
        out = self._obs[slot, row]
        if len({*episodes}) == 1 and episodes[0] is not None:
            self._envs.reset_all(out, episodes[0])  # together where that is faster
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
        self._flags[env] |= ENDED | TERMINATED * terminated | TRUNCATED * truncated
        self._finals[env] = final
        episode = self._envs.finished(env)
        self._returns[env] = episode.episode_return
        self._ended[env] = episode.length

    def _publish(self, all_books: bool) -> None:
        envs = self._envs
        self._books[:, SINCE] = envs.since
        if all_books:
            self._books[:, EPISODE] = envs.episode
            self._books[:, ORIGIN] = envs.origin


def open_envs(job: Job) -> Envs:
    """The job's environments."""
    import gymnasium

    from flatout.envs.host import TRAINING
    from flatout.envs.task import open_task

    if job.registered is not None:
        gymnasium.registry.setdefault(job.registered.id, job.registered)
    task = open_task(job.config, job.source)
    return task.open(job.count, job.seed, TRAINING, job.reseed_after, job.first, threads=1)


def serve(channel: Channel) -> None:
    """Take the job, then do what the parent says until its end closes."""
    import cloudpickle  # from the parent, over a channel that it alone holds

    actor: Actor | None = None
    while True:
        try:
            if actor is None:
                job = cloudpickle.loads(channel.receive_long())
                assert isinstance(job, Job)
                actor = Actor(open_envs(job), Arena(job.arena[1], job.arena[0]), job.first)
                channel.send(DONE)
            command, flag, slot, number = COMMAND.unpack(channel.receive(COMMAND.size))
            if command == STEP:
                actor.step(slot, number, bool(flag))
                channel.send(DONE)
            elif command == RESET:
                actor.reset(slot, number, cloudpickle.loads(channel.receive_long()))
                channel.send(DONE)
            elif command == REPLAY:
                reproduced = actor.replay(slot, *cloudpickle.loads(channel.receive_long()))
                channel.send(DONE + bytes(reproduced))
        except Closed:
            return
        except BaseException as error:  # whatever a user's environment raises
            own = isinstance(error, FlatoutError)
            text = str(error) if own else f"{type(error).__name__}: {one_line(error)}"
            channel.send(FAILED)
            channel.send_long(text.encode())
            channel.send_long("".join(traceback.format_exception(error)).encode())
            return


def main() -> None:
    """The process's entry."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    descriptor, lifeline = int(sys.argv[1]), int(sys.argv[2])

    def watch() -> None:
        os.read(lifeline, 1)  # returns when the parent is gone, also while a step hangs
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    os.dup2(2, 1)  # what an environment prints is not the run's output
    serve(Channel(socket.socket(fileno=descriptor)))
