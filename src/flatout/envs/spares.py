"""Spare environments: while an environment plays an episode, its spare is reset for the next one.

`HostEnvs` uses them, in the main process and in actor processes. Resets run in threads of their
own; environments are stepped in the thread that made them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import psutil

from flatout.envs.deadline import DeadlineExceeded, deadline
from flatout.envs.make import close_quietly
from flatout.envs.mask_places import attribute
from flatout.errors import Interrupt, one_line
from flatout_explain.hardware.machine import memory
from flatout_explain.hardware.processes import MiB

Reset = Callable[[Any, int], Any]
"""Resets an environment with a seed, and returns what it returned."""

STATEFUL = (
    gym.wrappers.NormalizeObservation,
    gym.wrappers.NormalizeReward,
    gym.wrappers.RecordVideo,
)
"""Gymnasium's wrappers whose state changes from episode to episode, or that write numbered
files."""

TRIED = 2
"""Spares that are reset when they are opened. The first may load what the others share."""

LEAVE_FREE = 0.1
"""Share of the available memory that spare environments leave free."""

SWITCH_S = 1e-4
"""Seconds after which a thread that computes in Python lets another one run, while there are
spares. With Python's 5 ms a step that sleeps or waits is resumed that much later."""

COMPUTES = 0.5
"""Share of a core from which a reset counts as one that computes."""

MOST_NEEDED = 64
"""The most resets in a row that must not be slowed down before one more runs at the same time."""

MORE, FEWER = 0.1, 0.3
"""One more reset runs at the same time if a reset gets at most `MORE` less of a core than one alone
did, one fewer if it gets over `FEWER` less."""


class ShortSwitches:
    """The process's switch interval, which is `SWITCH_S` at most while any of its spares are reset
    in the background."""

    _lock = threading.Lock()
    _users = 0
    _before = 0.0  # the interval without spares

    @classmethod
    def begin(cls) -> None:
        """Shorten the interval for one more user."""
        with cls._lock:
            if not cls._users:
                cls._before = sys.getswitchinterval()
                sys.setswitchinterval(min(cls._before, SWITCH_S))
            cls._users += 1

    @classmethod
    def end(cls) -> None:
        """Restore the interval if no user is left."""
        with cls._lock:
            cls._users -= 1
            if not cls._users:
                sys.setswitchinterval(cls._before)


@dataclass
class ResetJob:
    """The reset of one spare environment for one episode.

    Attributes:
        env: the spare environment.
        episode, seed: the episode that begins, and its seed.
        result: what the reset returned.
        error: what it raised, or None.
        seconds: how long it took; `core` is the share of a core that it used meanwhile.
    """

    env: gym.Env[Any, Any]
    episode: int
    seed: int
    result: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    core: float = 0.0

    def run(self, reset: Reset) -> None:
        """Reset the environment."""
        began, busy = time.perf_counter(), time.thread_time()
        try:
            self.result = reset(self.env, self.seed)
        except BaseException as error:  # a user's environment may raise anything
            self.error = error
        self.seconds = time.perf_counter() - began
        self.core = (time.thread_time() - busy) / max(self.seconds, 1e-9)


@dataclass(eq=False)
class Spare:
    """One spare environment: its newest job, and the next one if the newest came too late."""

    job: ResetJob
    state: str = "idle"  # then "queued", "running" and "ready"
    next: ResetJob | None = None


@dataclass
class Spares:
    """The spare environments of N environments, and the threads that reset them.

    As many resets run at the same time as do not slow each other down: all of them if a reset
    sleeps or waits for another process; one if it is computed in Python, whose threads take turns.

    Args:
        reset: resets an environment.

    Attributes:
        core: the share of a core that a reset took while nothing else happened.
        mb: memory that one spare takes, in MiB.
    """

    reset: Reset
    core: float = 0.0
    mb: float = 0.0
    _spares: list[Spare] = field(default_factory=list[Spare])
    _queue: deque[Spare] = field(default_factory=deque[Spare])
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _running: int = 0
    _threads: int = 0
    _limit: int = 1
    _good: int = 0  # resets in a row that were not slowed down
    _needed: int = 1  # of these before one more runs at the same time
    _closed: bool = False

    def __len__(self) -> int:
        return len(self._spares)

    def add(self, env: gym.Env[Any, Any]) -> None:
        """Add the spare of the next environment."""
        self._spares.append(Spare(ResetJob(env, -1, 0)))

    def try_one(self, number: int, episode: int, seed: int) -> ResetJob:
        """Reset a spare for an episode in a thread, wait for it, and return its job."""
        spare = self._spares[number]
        spare.job = job = ResetJob(spare.job.env, episode, seed)
        thread = threading.Thread(target=job.run, args=(self.reset,), name="resets", daemon=True)
        thread.start()
        thread.join()
        spare.state, self.core = "ready", job.core
        return job

    def start(self) -> None:
        """Begin to reset spares when they are requested."""
        self._limit = len(self) if self.core < COMPUTES else 1
        ShortSwitches.begin()

    def give_back(self, number: int, env: gym.Env[Any, Any]) -> None:
        """Make `env` the spare of environment `number`, with which it has changed places."""
        spare = self._spares[number]
        with self._changed:
            spare.job, spare.state = ResetJob(env, -1, 0), "idle"

    def request(self, number: int, episode: int, seed: int) -> None:
        """Reset the spare of environment `number` for an episode."""
        spare = self._spares[number]
        with self._changed:
            if self._closed:
                return
            job = ResetJob(spare.job.env, episode, seed)
            known = (spare.job.episode, spare.job.seed) == (episode, seed)
            if spare.state == "running":
                spare.next = None if known else job
                return
            if spare.state == "ready" and known:
                return
            spare.job = job
            if spare.state != "queued":
                self._enqueue(spare)

    def take(self, number: int, episode: int) -> ResetJob | None:
        """Return the reset of a spare for an episode, and wait for its end if it has begun. None
        means that the caller has to reset the environment itself. If the caller plays the
        spare, it must call `give_back`."""
        spare = self._spares[number]
        with self._changed:
            if spare.job.episode != episode or spare.state == "idle":
                return None
            if spare.state == "queued":  # faster here than behind others
                self._queue.remove(spare)
                spare.state = "idle"
                return None
            while spare.state == "running":
                self._changed.wait()
            if spare.job.episode != episode:  # not while this thread waited, but to be sure
                return None
            spare.state = "idle"
            return spare.job

    def stop(self) -> None:
        """Begin no more resets."""
        with self._changed:
            if not self._closed:
                ShortSwitches.end()
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()

    def idle_first(self) -> list[int]:
        """Return the numbers of the spares, those that are being reset last."""
        with self._changed:
            return sorted(range(len(self)), key=lambda n: self._spares[n].state == "running")

    def release(self, number: int, end: float) -> gym.Env[Any, Any] | None:
        """Return a spare to close after `stop`; None if its reset runs at `end`, a reading of
        `time.monotonic`, or a tenth of a second from now, whichever is later."""
        end = max(end, time.monotonic() + 0.1)
        spare = self._spares[number]
        with self._changed:
            ended = self._changed.wait_for(lambda: spare.state != "running", end - time.monotonic())
            return spare.job.env if ended else None

    # --- Inside -------------------------------------------------------------------------------

    def _enqueue(self, spare: Spare) -> None:
        spare.state = "queued"
        self._queue.append(spare)
        if self._threads == self._running and self._threads < self._limit:
            self._threads += 1
            threading.Thread(target=self._work, name="resets", daemon=True).start()
        else:
            self._changed.notify_all()

    def _work(self) -> None:
        """Reset spares until `stop`."""
        while True:
            with self._changed:
                while not self._closed and (not self._queue or self._running >= self._limit):
                    self._changed.wait()
                if self._closed:
                    return
                spare = self._queue.popleft()
                spare.state = "running"
                self._running += 1
                if self._queue and self._threads == self._running < self._limit:
                    self._threads += 1
                    threading.Thread(target=self._work, name="resets", daemon=True).start()
            spare.job.run(self.reset)
            with self._changed:
                self._running -= 1
                self._adapt(spare.job.core)
                spare.state = "ready"
                if spare.next is not None:
                    spare.job, spare.next = spare.next, None
                    if not self._closed:
                        self._enqueue(spare)
                self._changed.notify_all()

    def _adapt(self, core: float) -> None:
        """Change how many resets run at the same time, after one that got this share of a core.
        Each time that one more was too many, it takes twice as many resets to try again."""
        lost = self.core - core
        if lost > FEWER and self._limit > 1:
            self._limit -= 1
            self._needed, self._good = min(2 * self._needed, MOST_NEEDED), 0
        elif lost <= MORE:
            self._good += 1
            if self._good >= self._needed:
                self._limit, self._good = min(self._limit + 1, len(self)), 0


class NoSpares(Exception):  # noqa: N818 - the run continues without them
    """The reason why environments cannot have spares, as the rest of a sentence."""


def open_spares(
    originals: list[gym.Env[Any, Any]],
    make: Callable[[], gym.Env[Any, Any]],
    reset: Reset,
    seed_of: Callable[[int, int], int],
    total: int,
    seconds: float,
) -> Spares:
    """Open a spare for each environment, and measure what a spare costs. Native code that ignores
    the end of the time limit ends the process, see `deadline`.

    Args:
        originals: the environments.
        make: makes one more and checks it.
        reset: resets an environment.
        seed_of: the seed of an environment's episode, by their numbers.
        total: the environments of the whole run. Other processes open spares of theirs at the same
            time, and are taken to have opened as large a part of them.
        seconds: the time limit for opening all spares.

    Raises:
        NoSpares: a second copy cannot be opened, or they take too much memory.
    """
    for env in originals[:1]:
        if kept := keeps_state(env):
            raise NoSpares(kept)
    spares, made = Spares(reset), list[gym.Env[Any, Any]]()
    try:
        with deadline(seconds):
            for number in range(len(originals)):
                before = _resident()
                made.append(make())
                spares.add(made[-1])
                if len({id(attribute(e, "unwrapped") or e) for e in (*originals, *made)}) < len(
                    originals
                ) + len(made):
                    made.pop()
                    raise NoSpares("a second copy is the same object as the first")
                if number < TRIED:
                    _try(spares, number, seed_of(number, 1))
                    spares.mb = max(_resident() - before, 0) / MiB
                    left = len(originals) - number - 1
                    _check_memory(spares.mb, round(left * total / len(originals)))
    except DeadlineExceeded:
        _close(made)
        raise NoSpares(f"second copies were not opened within {seconds:.0f} s") from None
    except (Interrupt, KeyboardInterrupt):
        _close(made)
        raise
    except NoSpares:
        _close(made)
        raise
    except BaseException as error:  # a user's environment may raise anything
        _close(made)
        raise NoSpares(f"a second copy cannot be opened ({one_line(error)})") from error
    spares.start()
    return spares


def keeps_state(env: gym.Env[Any, Any]) -> str:
    """Return why two copies of an environment would not act as one, if that is visible, or an empty
    text."""
    if attribute(env, "render_mode") == "human":
        return "render_mode is human, and a second copy would open a second window"
    while isinstance(env, gym.Wrapper):
        if isinstance(env, STATEFUL):
            name = type(env).__name__
            return f"gymnasium.wrappers.{name} keeps state that two copies would not share"
        env = env.env
    return ""


def _try(spares: Spares, number: int, seed: int) -> None:
    """Reset a spare for the first time, to see whether that is possible in another thread."""
    job = spares.try_one(number, 1, seed)
    if job.error is None or isinstance(job.error, MemoryError):
        return
    try:
        spares.reset(job.env, seed)
    except (Interrupt, KeyboardInterrupt, DeadlineExceeded):
        raise
    except BaseException:  # it also fails here: the run meets it when this episode is to begin
        return
    raise NoSpares(bound_to_thread(job.error))


def without_spares(name: str, reason: str) -> str:
    """Return the sentence for the user about environments that have no spares."""
    return f"{name} has no spare environments, so steps wait for resets: {reason}."


def bound_to_thread(error: BaseException) -> str:
    """Return why there are no spares after an exception in another thread alone."""
    return (
        "it raises an exception if another thread than the stepping one resets it "
        f"({type(error).__name__}: {one_line(error)})"
    )


def _check_memory(each: float, more: int) -> None:
    available = memory()[1] / MiB
    if each * more > (1.0 - LEAVE_FREE) * available:
        raise NoSpares(
            f"a second copy takes about {each:,.0f} MiB, {more} more would take "
            f"{each * more:,.0f}, and {available:,.0f} MiB are available"
        )


def _resident() -> int:
    """Return the resident bytes of this process and of the processes that it started."""
    own = psutil.Process()
    total = own.memory_info().rss
    for child in own.children(recursive=True):
        with suppress(psutil.Error):
            total += child.memory_info().rss
    return total


def _close(envs: list[gym.Env[Any, Any]]) -> None:
    for env in envs:
        close_quietly(env)
