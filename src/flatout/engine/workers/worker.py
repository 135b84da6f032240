"""An actor process: steps its environments in memory shared with the parent.

`flatout.engine.workers.pool` starts it. It imports JAX only if it acts. Commands come through
the inherited socket; observations, rewards and actions are in shared memory. It ends when the
parent closes its end of the socket.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout import child, frames, tree
from flatout.engine.workers import protocol
from flatout.engine.workers.protocol import Job
from flatout.engine.workers.shared_memory import SharedArrays
from flatout.errors import FlatoutError, one_line, raised_at
from flatout.output import guarded
from flatout.types import Obs
from flatout_explain.files.kernel import close_in_children

if TYPE_CHECKING:
    from flatout.envs.base import Envs


class Stepper:
    """The environments of a worker that receives its actions from the parent.

    Args:
        job: the worker's environments.
        shared_arrays: the memory shared with the parent.
        worker_times: this worker's row of `protocol.SPENT`, to whose entries it adds.
        report: sends a sentence for the user to the parent.
    """

    def __init__(
        self, job: Job, shared_arrays: SharedArrays, worker_times: memoryview[float],
        report: Callable[[str], None],
    ) -> None:  # fmt: skip
        from flatout.envs.base import TRAINING
        from flatout.envs.task import open_task

        task = open_task(job.config, job.code.env, job.info_masks)
        task.report = report
        self.envs = task.open(
            job.count, job.seed, TRAINING, job.reseeding, job.first, threads=1, spares=True
        )
        self._worker_times, self._report = worker_times, report
        # Those of a lost predecessor.
        self._resets = protocol.read_resets(worker_times.tolist())
        protocol.write_resets(worker_times, self._resets, self.envs)
        columns = job.columns
        self._obs = protocol.observations(shared_arrays, columns)
        self._rewards = shared_arrays["rewards"][:, :, columns]
        self._actions = shared_arrays["actions"][columns]
        self._active = shared_arrays["active"][columns]
        self._flags = shared_arrays["flags"][columns]
        self._finals = tree.take(tree.found("finals", shared_arrays.arrays), columns)
        self._lengths = shared_arrays["lengths"][columns]
        self._counters = shared_arrays["counters"][columns]
        self._returns = shared_arrays["returns"][columns]
        self._infos = shared_arrays["infos"][columns]
        self._info_reported = False  # whether the user knows that some scalars do not fit

    def step(self, slot: int, t: int, partly: int) -> None:
        """Make step t, from row t to row t + 1. With `partly`, only active environments step."""
        begin = time.perf_counter()
        envs, flags = self.envs, self._flags
        active = np.flatnonzero(self._active).tolist() if partly else None
        flags.fill(0)
        out = tree.take(self._obs, (slot, t + 1))
        envs.step(self._actions, out, self._rewards[slot, t], self._end, active)
        if envs.life_lost is not None:
            flags[envs.life_lost] |= protocol.LIFE_LOST
        changed = bool(flags.any())
        self._publish(changed)
        if changed:
            protocol.write_resets(self._worker_times, self._resets, envs)
        took, worker_times = time.perf_counter() - begin, self._worker_times
        worker_times[protocol.ENV_S] += took
        worker_times[protocol.TURNS] += 1.0
        worker_times[protocol.SQUARE] += took * took

    def reset(self, slot: int, row: int, episodes: list[int | None]) -> None:
        """Start the given episodes (None keeps the current one); write observations to a row."""
        out = tree.take(self._obs, (slot, row))
        if len({*episodes}) == 1 and episodes[0] is not None:
            self.envs.reset_all(out, episodes[0])  # one call is faster
        else:
            for env, episode in enumerate(episodes):
                if episode is not None:
                    self.envs.reset(env, out, episode)
        self._publish(True)

    def replay(self, seeded: list[int], episodes: list[int], actions: list[Any]) -> list[bool]:
        """Reproduce environments' states; observations go to row 0 of the first slot."""
        reproduced = self.envs.replay_all(seeded, episodes, actions, tree.take(self._obs, (0, 0)))
        self._publish(True)
        return reproduced

    def _end(self, env: int, terminated: bool, truncated: bool, final: Obs) -> None:
        self._flags[env] |= (
            protocol.ENDED | protocol.TERMINATED * terminated | protocol.TRUNCATED * truncated
        )
        frames.put(self._finals, env, final)
        episode = self.envs.finished(env)
        self._returns[env] = episode.episode_return
        self._lengths[env] = episode.length
        left_out = protocol.write_info(self._infos[env], episode.info)
        if left_out and not self._info_reported:
            self._info_reported = True
            names = ", ".join(left_out[:3]) + ", ..." * (len(left_out) > 3)
            self._report(
                f"the final info of an episode is larger than {protocol.INFO_BYTES - 2:,} bytes: "
                f"callbacks and metrics do not see the rest ({names}); shorten its names, or use "
                "inference=local or sampler=inline"
            )

    def _publish(self, all_counters: bool) -> None:
        envs = self.envs
        self._counters[:, protocol.SINCE] = envs.steps_to_replay
        if all_counters:
            self._counters[:, protocol.EPISODE] = envs.episode
            self._counters[:, protocol.ORIGIN] = envs.seeded_episode


def serve(end: socket.socket) -> None:
    """Receive the job, then execute the parent's commands until its end closes."""
    try:
        job: Job = protocol.receive_object(end)
        shared_arrays = SharedArrays(job.shared_arrays[1], job.shared_arrays[0])
        close_in_children(end, shared_arrays.descriptor)
        if job.registered is not None:
            import gymnasium

            gymnasium.registry.setdefault(job.registered.id, job.registered)
        # Accessing an item of a memoryview costs half as much as one of an array.
        times: Any = shared_arrays[protocol.SPENT][job.columns.start]
        worker_times = memoryview(times).cast("B").cast("d")

        def send_note(sentence: str) -> None:
            end.sendall(protocol.NOTE + protocol.long(pickle.dumps(sentence)))

        if job.local is None:
            actor: Any = Stepper(job, shared_arrays, worker_times, send_note)
        else:
            from flatout.engine.workers.actor import LocalActor

            actor = LocalActor(job, shared_arrays, worker_times, send_note)
        heartbeats, long_command = shared_arrays["beats"][job.columns.start], threading.Event()
        count = functools.partial(_count, actor.envs, heartbeats, long_command)
        threading.Thread(target=count, daemon=True).start()
        _execute_commands(end, actor, long_command)
        heartbeats[:] = protocol.CLOSING
        actor.envs.close()
    except BaseException as error:  # the user's environment may raise anything
        text = (
            str(error)
            if isinstance(error, FlatoutError)
            else f"{type(error).__name__}: {one_line(error)} ({raised_at(error)})"
        )
        lasting = next((kind for kind in protocol.LASTING if isinstance(error, kind)), None)
        reply = protocol.FAILED if lasting is None else protocol.REFUSED
        cause = "".join(traceback.format_exception(error.__cause__ or error))
        report = pickle.dumps((text, cause, lasting))
        with contextlib.suppress(OSError):  # the parent may be gone
            end.sendall(reply + protocol.long(report))


def _execute_commands(end: socket.socket, actor: Any, long_command: threading.Event) -> None:
    """Execute the parent's commands until its end closes."""
    reply = protocol.DONE
    while True:
        try:
            end.sendall(reply)
            command = protocol.receive(end, protocol.COMMAND.size)
            size, partly, slot, t = protocol.COMMAND.unpack(command)
            call = protocol.receive(end, size) if size else b""
        except (EOFError, OSError):
            return
        if call:
            long_command.set()
            name, arguments = pickle.loads(call)
            result = pickle.dumps(getattr(actor, name)(*arguments))
            reply = protocol.RESULT + protocol.long(result)
            long_command.clear()
        else:
            actor.step(slot, t, partly)
            reply = protocol.DONE


def _count(envs: Envs, heartbeats: np.ndarray, long_command: threading.Event) -> None:
    """Report the progress of long commands every `BEAT_S` seconds."""
    while True:
        long_command.wait()
        heartbeats[:] = sum(envs.lengths), sum(envs.episode)
        time.sleep(protocol.BEAT_S)


def main() -> None:
    """Run an actor process; its argument is the socket's descriptor."""
    child.follow_parent()
    os.dup2(2, 1)  # environments print to stderr, not to the run's stdout
    with guarded():  # errors of printing must not affect the run
        serve(socket.socket(fileno=int(sys.argv[1])))
