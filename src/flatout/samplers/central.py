"""The sampler that acts in this process for all environments, wherever they step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from flatout.buffers.rollout import RolloutBuffer
from flatout.errors import CheckpointError, EnvironmentFailure
from flatout.learner.policy import Policy
from flatout.samplers.base import Restart, check_counts
from flatout.samplers.env_group import EnvGroup, LostEnv
from flatout.samplers.episodes import MAX_REPLAYED_STEPS, ActionLog, EpisodeValues
from flatout.spans import Spans, Work
from flatout.types import Episode, Trajectory


class ActingGroup:
    """Environments whose actions are chosen in one call.

    Args:
        environments: the environments.
        policy: acts for them.
        first: the number of the first environment in the run, from which noise is drawn, where
            the environments' own number says only where they lie in the arrays.

    Attributes:
        columns: the environments among the run's.
        index: its place among the groups, in the order of their environments.
        active: those that play on in this trajectory, by their numbers within the group; None is
            all of them.
        left: episodes that each still plays in this trajectory.
        rows: steps of this trajectory that are done.
        stepping: a step was begun and not yet waited for.
    """

    def __init__(self, envs: EnvGroup, policy: Policy, first: int | None = None) -> None:
        self.envs, self.policy = envs, policy
        self.first = envs.first if first is None else first
        self.columns = slice(envs.first, envs.first + envs.num_envs)
        self.index = 0
        self.begin(0)

    def begin(self, episodes: int) -> None:
        """A trajectory begins, of so many whole episodes (0: of a number of steps)."""
        self.active: list[int] | None = None
        self.left = [episodes] * self.envs.num_envs
        self.rows = 0
        self.stepping = False


class CentralSampler:
    """Acts for N environments in groups: while one group steps, another's actions are chosen.

    Args:
        rounds: the groups, by the order in which they take turns. Those of one round act at the
            same time, each on its device.
        buffers: the arrays of trajectories, one for each that is in use at the same time; their
            outputs are by group in the environments' order.
        horizon: T, steps per environment and trajectory (the most, with `episodes`).
        episodes: whole episodes per environment and trajectory, or None for exactly T steps.
        spans: where the time goes.
        life_loss: a lost life counts as a terminal.
    """

    def __init__(
        self,
        rounds: Sequence[Sequence[ActingGroup]],
        buffers: Sequence[RolloutBuffer],
        horizon: int,
        episodes: int | None,
        spans: Spans,
        *,
        life_loss: bool = False,
    ) -> None:
        self._rounds = [list(groups) for groups in rounds]
        every = [group for groups in rounds for group in groups]
        self._groups = sorted(every, key=lambda group: group.envs.first)
        for index, group in enumerate(self._groups):
            group.index = index
        self._buffers = list(buffers)
        self._horizon = horizon
        self._wanted = episodes or 0
        self._spans = spans
        self._life_loss = life_loss
        self.num_envs = sum(group.envs.num_envs for group in self._groups)
        valued = "q_max" in self._groups[0].policy.layout.fields
        self._values = EpisodeValues(self.num_envs) if valued else None
        self.episodes: list[Episode] = []
        self.restarted: list[Restart] = []
        self.lost = 0
        self.steps = 0  # of each environment, since the run's start: what noise is folded with
        self._slot = self._row = 0  # where the newest observations lie
        self._rows = 0  # of the last trajectory
        self._starts: list[int] = []
        self._ends: list[tuple[int, int, bool]] = []  # row, environment, whether it was lost
        self._waited: dict[str, int] = {}
        self._log = ActionLog(self.num_envs)
        self._boundary: dict[str, Any] = {}

    def start(self) -> None:
        """Reset every environment."""
        with self._spans.span("env"):
            for group in self._groups:
                group.envs.reset_all()
        self._mark()

    def begin(self, slot: int, episodes: Sequence[int], steps: int) -> None:
        """Start the given episodes, `steps` after the run's start; the next trajectory goes into
        that slot."""
        for group in self._groups:
            for env in range(group.envs.num_envs):
                group.envs.reset(env, episodes[group.envs.first + env], slot)
        self.steps, self._slot, self._row = steps, slot, 0
        self._mark()

    def collect(self, slot: int | None = None) -> Trajectory:
        """Collect one trajectory with the policies' parameters.

        Args:
            slot: where to, by default the next one.

        Raises:
            EnvironmentFailure: an environment raised or returned nonsense.
        """
        buffer = self._next_buffer(slot)
        self.episodes, self._ends, self.restarted = [], [], []
        for group in self._groups:
            group.begin(self._wanted)
            if self._wanted:
                self._reset_unfinished(group, buffer)
        clock, spans = time.perf_counter_ns, self._spans
        acting = 0
        try:
            for t in range(self._horizon):
                for groups in self._rounds:
                    for group in groups:
                        if group.stepping:
                            self._receive(group, buffer)
                    begin = clock()
                    self._act(groups, buffer, t)
                    end = clock()
                    acting += end - begin
                    if spans.trace:
                        spans.event("act", begin, end)
                if self._wanted and not any(group.stepping for group in self._groups):
                    break
            for group in self._groups:
                if group.stepping:
                    self._receive(group, buffer)
        finally:
            spans.add("act", acting)
            for name, duration in self._waited.items():
                spans.add(name, duration)
            self._waited.clear()
        return self._trajectory(buffer)

    def commit(self, steps: int | None = None) -> None:
        """Make the last trajectory part of the past; until then `state` is the one before it.

        Args:
            steps: of each environment since the run's start, where others' trajectories were
                longer than these.
        """
        rows = self._rows
        for env, *_ in self.restarted:
            self._log.truncate(env)
        actions = self._buffers[self._slot].read()["action"][:rows]
        self._log.append(actions.copy(), self._starts)
        if self._values is not None:
            self._values.commit()
        self.steps = self.steps + rows if steps is None else steps
        self._mark()

    @property
    def rows(self) -> int:
        """Steps of the last trajectory (fewer than T where all whole episodes ended before)."""
        return self._rows

    @property
    def ends(self) -> list[int]:
        """The rows at which `episodes` ended."""
        return [row for row, _, lost in self._ends if not lost]

    @property
    def begun(self) -> list[int]:
        """The numbers of the environments' episodes now."""
        return [number for group in self._groups for number in group.envs.counters().episode]

    @property
    def steps_collected(self) -> int:
        """Environment steps in the last trajectory, summed over environments."""
        valid = self._buffers[self._slot].valid
        return self._rows * self.num_envs if valid is None else int(valid.sum())

    def work(self) -> dict[str, Work]:
        """See `Sampler.work`."""
        return {n: w for group in self._groups for n, w in group.envs.work().items()}

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
            if len(state[name]) != self.num_envs:
                raise CheckpointError(
                    f"it was saved with {len(state[name])} environments, not {self.num_envs}."
                )
        check_counts(state, self._horizon)
        self._slot = self._row = 0
        obs = self._buffers[0].obs[0]
        if state["obs"].shape != obs.shape or state["obs"].dtype != obs.dtype:
            raise CheckpointError(
                f"its observations are {state['obs'].dtype}{list(state['obs'].shape)}, not "
                f"{obs.dtype}{list(obs.shape)}."
            )
        self.steps = int(state["steps"])
        self._make_room(int(state["chunks"]))
        if self._values is not None:
            self._values.restore(state["values"])
        restored: list[np.ndarray] = []
        self.restarted = []
        for group in self._groups:
            envs, columns = group.envs, group.columns
            origins = [int(number) for number in state["origin"][columns]]
            reproduced = envs.replay_all(origins, list(state["actions"][columns]))
            found = envs.counters().episode
            for env in range(envs.num_envs):
                number = envs.first + env
                actions, episode = state["actions"][number], int(state["episode"][number])
                same = reproduced[env] and found[env] == episode
                if same and np.array_equal(obs[number], state["obs"][number]):
                    restored.append(np.asarray(actions))
                    continue
                envs.reset(env, episode + 1)
                if self._values is not None:
                    self._values.forget(number)
                self.restarted.append((number, np.array(state["obs"][number]), obs[number].copy()))
                restored.append(self._log.empty())
                reason = (
                    "does not reproduce from its seed and actions" if actions is not None
                    else f"is not saved (over {MAX_REPLAYED_STEPS} steps, or its process lost)"
                )  # fmt: skip
                notes.append(f"environment {number}: episode {episode} {reason}; it was restarted")
        self._log.restore(restored)
        self._mark()
        return notes

    def close(self) -> None:
        """Close the environments."""
        for group in self._groups:
            group.envs.close()

    # --- One step of one group ----------------------------------------------------------------

    def _act(self, groups: Sequence[ActingGroup], buffer: RolloutBuffer, t: int) -> None:
        """Choose a round's actions and begin its steps."""
        obs, step = buffer.obs[t], self.steps + t
        chosen = [
            (group, group.policy.begin(obs[group.columns], step, group.first))
            for group in groups
            if group.active != []
        ]
        for group, outputs in chosen:
            row = np.asarray(outputs)  # waits for the device
            buffer.outputs[group.index][t] = row
            if group.active is not None:  # the others' observations stay what they are
                buffer.obs[t + 1, group.columns] = obs[group.columns]
            if buffer.valid is not None:
                buffer.valid[t, group.columns] = [episodes > 0 for episodes in group.left]
            group.envs.send(self._slot, t, group.policy.layout.action(row), group.active)
            group.stepping = True

    def _receive(self, group: ActingGroup, buffer: RolloutBuffer) -> None:
        """Wait for a group's step."""
        envs, t, known = group.envs, group.rows, len(self._ends)
        begin = time.perf_counter_ns()

        def ended(env: int, terminated: bool, truncated: bool, final: np.ndarray) -> None:
            number = envs.first + env
            self.episodes.append(envs.finished(env))
            self._ends.append((t, number, False))
            if buffer.ended is not None:
                buffer.ended[t, number] = True
            buffer.terminated[t, number] = terminated
            if not terminated:  # both at once: nothing to bootstrap from
                buffer.truncated[t, number] = truncated
                buffer.keep_final(t, number, final)
            group.left[env] -= 1

        while lost := envs.receive(ended):
            self._recover(group, buffer, lost)
        if self._life_loss and envs.life_lost is not None:
            buffer.terminated[t, group.columns] |= envs.life_lost
        end = time.perf_counter_ns()
        self._waited[envs.span] = self._waited.get(envs.span, 0) + end - begin
        if self._spans.trace:
            self._spans.event(envs.span, begin, end)
        group.stepping = False
        group.rows = t + 1
        if self._wanted and len(self._ends) != known:
            group.active = [env for env, episodes in enumerate(group.left) if episodes > 0]

    def _recover(self, group: ActingGroup, buffer: RolloutBuffer, lost: Sequence[LostEnv]) -> None:
        """Cut what lost environments did before, and act from where they are now."""
        envs, t = group.envs, group.rows
        self.lost += len(lost)
        for env, last_obs in lost:
            number = envs.first + env
            if group.active is not None and env not in group.active:  # it was between episodes
                buffer.obs[t + 1, number] = buffer.obs[t, number]
                continue
            if not t:
                self.restarted.append((number, last_obs, buffer.obs[0, number].copy()))
                self._ends.append((-1, number, True))
                continue
            over = buffer.terminated[t - 1, number] or buffer.truncated[t - 1, number]
            if buffer.ended is not None:
                if buffer.ended[t - 1, number]:
                    continue
                buffer.ended[t - 1, number] = True
            if not over:
                buffer.truncated[t - 1, number] = True
                buffer.keep_final(t - 1, number, last_obs)
                self._ends.append((t - 1, number, True))
        row = group.policy.act(buffer.obs[t, group.columns], self.steps + t, group.first)
        buffer.outputs[group.index][t] = row
        envs.again(group.policy.layout.action(row))

    # --- Between trajectories -----------------------------------------------------------------

    def _reset_unfinished(self, group: ActingGroup, buffer: RolloutBuffer) -> None:
        """Whole episodes begin with the trajectory: those that the last one left are cut."""
        envs, counters = group.envs, group.envs.counters()
        for env, since in enumerate(counters.since):
            if since:
                number = envs.first + env
                last = buffer.obs[0, number].copy()
                envs.reset(env, counters.episode[env] + 1, self._slot)
                self.restarted.append((number, last, buffer.obs[0, number].copy()))

    def _next_buffer(self, slot: int | None) -> RolloutBuffer:
        """The next trajectory's arrays, its first observations in them."""
        before = self._buffers[self._slot]
        self._slot = (self._slot + 1) % len(self._buffers) if slot is None else slot
        buffer = self._buffers[self._slot]
        if self._row or buffer is not before:
            buffer.obs[0] = before.obs[self._row]
        buffer.start()
        return buffer

    def _trajectory(self, buffer: RolloutBuffer) -> Trajectory:
        rows = max(group.rows for group in self._groups)
        since: list[int] = []
        for group in self._groups:
            if group.rows < rows:  # their last observations stay what they are
                buffer.obs[rows, group.columns] = buffer.obs[group.rows, group.columns]
            since += group.envs.counters().since
        buffer.check(self._blame)
        self._row = self._rows = rows
        # Rows at which what must be replayed to come here begins.
        self._starts = [max(rows - taken, 0) for taken in since]
        trajectory = buffer.trajectory()
        self._make_room(buffer.chunks)
        if self._values is not None:
            means = self._values.collect(
                trajectory.extras["q_max"][:rows], [(row, env) for row, env, _ in self._ends]
            )
            means = [mean for mean, end in zip(means, self._ends, strict=True) if not end[2]]
            self.episodes = [
                episode._replace(q_max=mean)
                for episode, mean in zip(self.episodes, means, strict=True)
            ]
        return trajectory

    def _make_room(self, chunks: int) -> None:
        for buffer in self._buffers:
            buffer.chunks = chunks

    def _blame(self, step: int, env: int, what: str) -> EnvironmentFailure:
        group = next(g for g in self._groups if g.columns.start <= env < g.columns.stop)
        return group.envs.blame(step, env, what)

    def _mark(self) -> None:
        """Note the boundary, so that an interrupted trajectory can be discarded."""
        counters = [group.envs.counters() for group in self._groups]
        buffer = self._buffers[self._slot]
        self._boundary = {
            "steps": self.steps,
            "chunks": buffer.chunks,
            "episode": [number for one in counters for number in one.episode],
            "origin": [number for one in counters for number in one.origin],
            "obs": buffer.obs[self._row].copy(),
        }
        if self._values is not None:
            self._boundary["values"] = self._values.state()
