"""The sampler that steps its environments in this process."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from flatout.buffers.rollout import RolloutBuffer
from flatout.envs.host import HostEnvs
from flatout.errors import CheckpointError
from flatout.params import Policy
from flatout.spans import Spans
from flatout.types import Episode, ObservationSpec, Trajectory

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
    """

    def __init__(
        self,
        envs: HostEnvs,
        policy: Policy,
        obs_spec: ObservationSpec,
        horizon: int,
        episodes: int | None,
        chunks: int,
        spans: Spans,
    ) -> None:
        self._envs = envs
        self._policy = policy
        self._horizon = horizon
        self._per_trajectory = episodes
        self._spans = spans
        self._buffer = RolloutBuffer(
            horizon, envs.num_envs, obs_spec, policy.layout, episodes is not None, chunks
        )
        self.episodes: list[Episode] = []
        self.steps = 0  # of each environment, since the run's start: what noise is folded with
        self._last_row = 0
        self._collected: tuple[int, list[int]] = (0, [])
        self._log = ActionLog(envs.num_envs)
        self._boundary: dict[str, Any] = {}

    def start(self) -> None:
        """Reset every environment."""
        with self._spans.span("env"):
            for env in range(self._envs.num_envs):
                self._envs.reset(env, self._buffer.obs[0])
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
        starts = [0] * count  # row at which each environment's current episode began

        def ended(env: int, terminated: bool, truncated: bool, final: np.ndarray) -> None:
            self.episodes.append(envs.finished(env))
            starts[env] = t + 1
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
        if wanted:  # every environment waits at the start of an episode
            starts = [t] * count
        self._collected = (t, starts)
        return buffer.trajectory()

    def commit(self) -> None:
        """Make the last trajectory part of the past; until then `state` is the one before it."""
        rows, starts = self._collected
        outputs = self._policy.layout.read(self._buffer.outputs[:rows])
        self._log.append(outputs["action"].copy(), starts)
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
        for name in ("actions", "episode", "obs"):
            if len(state[name]) != self._envs.num_envs:
                raise CheckpointError(
                    f"it was saved with {len(state[name])} environments, not {self._envs.num_envs}."
                )
        envs, obs = self._envs, self._buffer.obs[0]
        self.steps = int(state["steps"])
        self._buffer.chunks = int(state["chunks"])
        self._last_row = 0
        restored: list[np.ndarray] = []
        for env in range(envs.num_envs):
            actions = state["actions"][env]
            episode = int(state["episode"][env])
            known = actions is not None
            same = known and envs.replay(env, episode, actions, obs)
            same = same and np.array_equal(obs[env], state["obs"][env])
            if same:
                restored.append(np.asarray(actions))
                continue
            envs.reset(env, obs, episode + 1)
            restored.append(self._log.empty())
            reason = (
                "does not reproduce from its seed and actions" if known
                else f"was longer than {MAX_REPLAYED_STEPS} steps"
            )  # fmt: skip
            notes.append(f"environment {env}: episode {episode} {reason}; it was restarted")
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
            "obs": self._buffer.obs[self._last_row].copy(),
        }


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
            starts: for each environment the row at which its current episode began, 0 where it
                began before this trajectory.
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
