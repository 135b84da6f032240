"""The sampler that steps its environments in this process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.buffers.rollout import RolloutBuffer
from flatout.errors import CheckpointError
from flatout.params import Policy
from flatout.spans import Spans
from flatout.types import Episode, ObservationSpec, Trajectory

if TYPE_CHECKING:
    from flatout.envs.base import Envs

MAX_REPLAYED_STEPS = 200_000
"""Episodes longer than this restart on resume instead of being replayed."""


class InlineSampler:
    """Acts for N environments and steps them, one after the other.

    Args:
        envs: the environments.
        policy: acts for all of them in one compiled call.
        obs_spec: one observation.
        horizon: T, steps per environment and trajectory (the most, with `episodes`).
        episodes: whole episodes per environment and trajectory, or None for exactly T steps.
        chunks: room for final observations, in units of N.
        spans: where the time goes.
        replayed: trajectories say which steps ended an episode.
        life_loss: a lost life counts as a terminal.
        sign: learn from the sign of rewards.
    """

    def __init__(
        self,
        envs: Envs,
        policy: Policy,
        obs_spec: ObservationSpec,
        horizon: int,
        episodes: int | None,
        chunks: int,
        spans: Spans,
        *,
        replayed: bool = False,
        life_loss: bool = False,
        sign: bool = False,
    ) -> None:
        self._envs = envs
        self._policy = policy
        self._horizon = horizon
        self._per_trajectory = episodes
        self._spans = spans
        self._life_loss = life_loss
        self._buffer = RolloutBuffer(
            horizon, envs.num_envs, obs_spec, policy.layout, episodes is not None, chunks,
            replayed, sign,
        )  # fmt: skip
        self._values = EpisodeValues(envs.num_envs) if "q_max" in policy.layout.fields else None
        self.episodes: list[Episode] = []
        self.restarted: list[tuple[int, np.ndarray, np.ndarray]] = []
        """Of the last `restore`: environment, the observation that was lost, the new one."""
        self.steps = 0  # of each environment, since the run's start: what noise is folded with
        self._last_row = 0
        self._collected: tuple[int, list[int]] = (0, [])
        self._log = ActionLog(envs.num_envs)
        self._boundary: dict[str, Any] = {}

    def start(self) -> None:
        """Reset every environment."""
        with self._spans.span("env"):
            self._envs.reset_all(self._buffer.obs[0])
        self._mark()

    def collect(self) -> Trajectory:
        """Collect one trajectory with the policy's parameters.

        Raises:
            EnvironmentFailure: an environment raised or returned nonsense.
        """
        buffer, policy, envs = self._buffer, self._policy, self._envs
        if self._last_row:
            buffer.obs[0] = buffer.obs[self._last_row]
        buffer.start()
        self.episodes = []
        clock, spans, layout = time.perf_counter_ns, self._spans, policy.layout
        acting = stepping = 0
        t = 0
        count = envs.num_envs
        wanted, left = self._per_trajectory, [self._per_trajectory or 0] * count
        active: list[int] | None = None  # those that play on, where not all do
        playing, known = np.ones(count, np.bool_), 0
        ends: list[tuple[int, int]] = []

        def ended(env: int, terminated: bool, truncated: bool, final: np.ndarray) -> None:
            self.episodes.append(envs.finished(env))
            ends.append((t, env))
            if buffer.ended is not None:
                buffer.ended[t, env] = True
            buffer.terminated[t, env] = terminated
            if not terminated:  # both at once: nothing to bootstrap from
                buffer.truncated[t, env] = truncated
                buffer.keep_final(t, env, final)
            left[env] -= 1

        try:
            while t < self._horizon:
                begin = clock()
                row = policy.act(buffer.obs[t], self.steps + t)
                buffer.outputs[t] = row
                middle = clock()
                if active is not None:  # the others' observations stay what they are
                    buffer.obs[t + 1] = buffer.obs[t]
                if buffer.valid is not None:
                    buffer.valid[t] = playing
                envs.step(layout.action(row), buffer.obs[t + 1], buffer.rewards[t], ended, active)
                if self._life_loss and envs.life_lost is not None:
                    buffer.terminated[t] |= envs.life_lost
                end = clock()
                acting += middle - begin
                stepping += end - middle
                if spans.trace:
                    spans.event("act", begin, middle)
                    spans.event("env", middle, end)
                t += 1
                if wanted and len(self.episodes) != known:
                    known = len(self.episodes)
                    active = [env for env in range(count) if left[env] > 0]
                    playing = np.array(left) > 0
                    if not active:
                        break
        finally:
            spans.add("act", acting)
            spans.add("env", stepping)
        buffer.check(envs.blame)
        self._last_row = t
        # Rows at which what must be replayed to come here begins.
        starts = [max(t - since, 0) for since in envs.since]
        self._collected = (t, starts)
        if self._values is not None:
            rows = layout.read(buffer.outputs[:t])["q_max"]
            means = self._values.collect(rows, ends)
            self.episodes = [
                episode._replace(q_max=mean)
                for episode, mean in zip(self.episodes, means, strict=True)
            ]
        return buffer.trajectory()

    def commit(self) -> None:
        """Make the last trajectory part of the past; until then `state` is the one before it."""
        rows, starts = self._collected
        outputs = self._policy.layout.read(self._buffer.outputs[:rows])
        self._log.append(outputs["action"].copy(), starts)
        if self._values is not None:
            self._values.commit()
        self._last_row = rows
        self.steps += rows
        self._mark()

    @property
    def steps_collected(self) -> int:
        """Environment steps in the last trajectory, summed over environments."""
        valid = self._buffer.valid
        rows = self._collected[0]
        return rows * self._envs.num_envs if valid is None else int(valid.sum())

    def state(self) -> dict[str, Any]:
        """Counters, each environment's episode, its actions since, and its observation."""
        return self._boundary | {"actions": self._log.current()}

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Replay every environment's current episode.

        Returns:
            Sentences about environments that did not reproduce and were restarted.
        """
        notes: list[str] = []
        for name in ("actions", "episode", "origin", "obs"):
            if len(state[name]) != self._envs.num_envs:
                raise CheckpointError(
                    f"it was saved with {len(state[name])} environments, not {self._envs.num_envs}."
                )
        envs, obs = self._envs, self._buffer.obs[0]
        self.steps = int(state["steps"])
        self._buffer.chunks = int(state["chunks"])
        self._last_row = 0
        if self._values is not None:
            self._values.restore(state["values"])
        restored: list[np.ndarray] = []
        episodes = [int(number) for number in state["episode"]]
        origins = [int(number) for number in state["origin"]]
        reproduced = envs.replay_all(origins, list(state["actions"]), obs)
        self.restarted = []
        for env in range(envs.num_envs):
            actions = state["actions"][env]
            same = reproduced[env] and envs.episode[env] == episodes[env]
            if same and np.array_equal(obs[env], state["obs"][env]):
                restored.append(np.asarray(actions))
                continue
            envs.reset(env, obs, episodes[env] + 1)
            if self._values is not None:
                self._values.forget(env)
            self.restarted.append((env, np.array(state["obs"][env]), obs[env].copy()))
            restored.append(self._log.empty())
            reason = (
                "does not reproduce from its seed and actions" if actions is not None
                else f"was longer than {MAX_REPLAYED_STEPS} steps"
            )  # fmt: skip
            notes.append(f"environment {env}: episode {episodes[env]} {reason}; it was restarted")
        self._log.restore(restored)
        self._mark()
        return notes

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _mark(self) -> None:
        """Note the boundary, so that an interrupted trajectory can be discarded."""
        self._boundary = {
            "steps": self.steps,
            "chunks": self._buffer.chunks,
            "episode": list(self._envs.episode),
            "origin": list(self._envs.origin),
            "obs": self._buffer.obs[self._last_row].copy(),
        }
        if self._values is not None:
            self._boundary["values"] = self._values.state()


class EpisodeValues:
    """Means over episodes of the largest action value at each acting step."""

    def __init__(self, num_envs: int) -> None:
        self._sums = np.zeros((num_envs, 2))  # of values, and how many
        self._next = self._sums

    def collect(self, rows: np.ndarray, ends: list[tuple[int, int]]) -> list[float]:
        """Add a trajectory's values.

        Args:
            rows: ``[T, N]``, NaN where the network did not run.
            ends: row and environment of each episode's end, in order.

        Returns:
            The mean of each ended episode, NaN where the network never ran.
        """
        seen = ~np.isnan(rows)
        parts = np.stack([np.where(seen, rows, 0.0), seen], -1)
        means, self._next = [], self._sums.copy()
        if not ends:
            self._next += parts.sum(0)
            return means
        start = [0] * rows.shape[1]
        for row, env in ends:
            total, count = self._next[env] + parts[start[env] : row + 1, env].sum(0)
            means.append(float(total / count) if count else float("nan"))
            self._next[env], start[env] = 0.0, row + 1
        for env, row in enumerate(start):
            self._next[env] += parts[row:, env].sum(0)
        return means

    def commit(self) -> None:
        """Make the last trajectory part of the past."""
        self._sums = self._next

    def forget(self, env: int) -> None:
        """An environment began anew."""
        self._sums[env] = 0.0

    def state(self) -> list[list[float]]:
        """JSON-compatible sums and counts."""
        return self._sums.tolist()

    def restore(self, state: list[list[float]]) -> None:
        """Take over such a state."""
        self._sums = np.array(state, np.float64).reshape(self._sums.shape)


class ActionLog:
    """The actions of every environment's current episode, kept as whole trajectories' blocks."""

    def __init__(self, num_envs: int) -> None:
        self._blocks: list[np.ndarray] = []  # each [t, N, ...]
        self._first = 0  # row number of the first block's first row
        self._next = 0
        self._starts = [0] * num_envs

    def append(self, actions: np.ndarray, starts: list[int]) -> None:
        """Add a trajectory's actions ``[t, N, ...]``.

        Args:
            actions: as the policy gave them.
            starts: for each environment the row from which on its actions are needed, 0 where that
                lies before this trajectory.
        """
        for env, start in enumerate(starts):
            if start:
                self._starts[env] = self._next + start
        self._blocks.append(actions)
        self._next += len(actions)
        oldest = max(min(self._starts), self._next - MAX_REPLAYED_STEPS)
        while self._blocks and self._first + len(self._blocks[0]) <= oldest:
            self._first += len(self._blocks.pop(0))

    def current(self) -> list[np.ndarray | None]:
        """Each environment's actions since its episode began; None where no longer kept."""
        if not self._blocks:
            return [self.empty() for _ in self._starts]
        rows = np.concatenate(self._blocks)
        return [
            None if start < self._first else rows[start - self._first :, env]
            for env, start in enumerate(self._starts)
        ]

    def empty(self) -> np.ndarray:
        """No actions."""
        return self._blocks[0][:0, 0] if self._blocks else np.zeros((0,), np.int32)

    def restore(self, actions: list[np.ndarray]) -> None:
        """Take over each environment's actions since its episode began."""
        longest = max(len(one) for one in actions)
        self._first, self._next = 0, longest
        self._starts = [longest - len(one) for one in actions]
        self._blocks = []
        if longest:
            shape = next(one.shape[1:] for one in actions if len(one))
            block = np.zeros((longest, len(actions), *shape), next(
                one.dtype for one in actions if len(one)
            ))  # fmt: skip
            for env, one in enumerate(actions):
                if len(one):
                    block[longest - len(one) :, env] = one
            self._blocks.append(block)
