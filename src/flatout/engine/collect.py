"""Step 3 of the data flow, inline: this process chooses the actions of all environments, wherever
they step, for the T steps of a trajectory. `SerialSchedule` and `OverlappedSchedule` call it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from flatout import tree
from flatout.algorithms.base import spec_shapes
from flatout.engine.episodes import MAX_REPLAYED_STEPS, ActionLog, EpisodeValues, restart_notes
from flatout.engine.groups import ActingGroup, LostEnv
from flatout.engine.rollout_buffer import RolloutBuffer
from flatout.engine.sampler import Sampler, check_counts
from flatout.errors import CheckpointError
from flatout.spans import Spans, Work
from flatout.storage.checkpoint import refuse_other
from flatout.storage.span_records import MAIN
from flatout.types import Obs, Trajectory


class CentralSampler(Sampler):
    """A sampler that acts for N environments in groups: while one steps, it acts for another.

    Args:
        group_rotation: the groups. Those of one inner sequence act at the same time, each on its
            device; the inner sequences take turns.
        buffers: one for each trajectory in use at the same time. In each, `outputs` is in the
            order of the environments.
        name: the environment's name, for messages.
        episodes: whole episodes per environment and trajectory, which together take at most T
            steps; None for trajectories of exactly T steps.
        spans: records where the time goes.
        life_loss: count a lost life as a terminal step.
    """

    def __init__(
        self,
        group_rotation: Sequence[Sequence[ActingGroup]],
        buffers: Sequence[RolloutBuffer],
        name: str,
        episodes: int | None,
        spans: Spans,
        *,
        life_loss: bool = False,
    ) -> None:
        super().__init__()
        self._group_rotation = [list(groups) for groups in group_rotation]
        every = [group for groups in group_rotation for group in groups]
        self._groups = sorted(every, key=lambda group: group.envs.first)
        calls = 0
        for group in self._groups:
            group.index = calls
            calls += len(group.calls)
        self._buffers = list(buffers)
        self._name = name
        self._horizon = len(buffers[0].rewards)
        self._whole = episodes or 0  # episodes per environment and trajectory
        self.spans = spans
        self._life_loss = life_loss
        self.num_envs = sum(group.envs.num_envs for group in self._groups)
        valued = "q_max" in self._groups[0].policy.layout.fields
        self._values = EpisodeValues(self.num_envs) if valued else None
        self.steps = 0  # steps of each environment since the run's start; they select the noise
        self._slot = self._row = 0  # position of the newest observations
        self.rows = 0  # steps of the last trajectory; below T if all whole episodes ended earlier
        self._starts: list[int] = []
        self._ends: list[tuple[int, int, bool]] = []  # row, environment, whether it was lost
        self._waited: dict[str, int] = {}
        self._log = ActionLog(self.num_envs)
        self._boundary: dict[str, Any] = {}

    def start(self) -> None:
        with self.spans.span("env"):
            for group in self._groups:
                group.envs.reset_all()
                group.begun[:] = True
                group.forget()
        self._buffers[0].begin_episode(0)
        self._mark()

    def begin(self, slot: int, episodes: Sequence[int], steps: int) -> None:
        """Start episode ``episodes[i]`` in environment i, and set the steps since the run's start
        to `steps`. The first observations go to row 0 of the given slot."""
        for group in self._groups:
            group.begun[:] = True
            group.forget()
            for env in range(group.envs.num_envs):
                group.envs.reset(env, episodes[group.envs.first + env], slot)
        self._buffers[slot].begin_episode(0)
        self.steps, self._slot, self._row = steps, slot, 0
        self._mark()

    def collect(
        self, environments: Any = None, params: Any = (), slot: int | None = None
    ) -> tuple[Trajectory, None]:
        """Collect a trajectory into a slot, by default the next one; see `Sampler.collect`."""
        buffer = self._next_buffer(slot)
        self.episodes, self._ends, self.restarted = [], [], []
        for group in self._groups:
            group.begin(self._whole)
            if self._whole:
                self._reset_unfinished(group, buffer)
        clock, spans = time.perf_counter_ns, self.spans
        acting = 0
        try:
            for t in range(self._horizon):
                for groups in self._group_rotation:
                    for group in groups:
                        if group.stepping:
                            self._receive(group, buffer)
                    active = [group for group in groups if group.active != []]
                    if not active:
                        continue
                    begin = clock()
                    self._begin(active, buffer, t)
                    end = clock()
                    acting += end - begin
                    if spans.trace:
                        spans.event("act", begin, end)
                if self._whole and not any(group.stepping for group in self._groups):
                    break
            for group in self._groups:
                if group.stepping:
                    self._receive(group, buffer)
        finally:
            spans.add("act", acting)
            for name, duration in self._waited.items():
                spans.add(name, duration)
            self._waited.clear()
        carries = [carry for group in self._groups for carry in group.first_carry]
        return self._trajectory(buffer)._replace(carry=_joined(carries)), None

    def commit(self, steps: int | None = None) -> None:
        """Accept the last trajectory for learning; see `Sampler.commit`.

        Args:
            steps: the new number of steps since the run's start; None adds this trajectory's steps.
                A worker passes it because another worker's trajectory may have been longer.
        """
        rows = self.rows
        for env, *_ in self.restarted:
            self._log.truncate(env)
        self._log.append(self._actions[:rows].copy(), self._starts)
        if self._values is not None:
            self._values.commit()
        self.steps = self.steps + rows if steps is None else steps
        self._mark()

    @property
    def ends(self) -> list[int]:
        """The rows at which `episodes` ended, in their order."""
        return [row for row, _, lost in self._ends if not lost]

    @property
    def current_episodes(self) -> list[int]:
        """The number of each environment's current episode."""
        return [number for group in self._groups for number in group.envs.counters().episode]

    @property
    def obs_shapes(self) -> Obs:
        return spec_shapes(self._buffers[0].spec)

    @property
    def steps_collected(self) -> int:
        valid = self._buffers[self._slot].valid
        return self.rows * self.num_envs if valid is None else int(valid.sum())

    def work(self) -> dict[str, Work]:
        done: dict[str, Work] = {}
        for group in self._groups:
            for name, work in group.envs.work().items():
                other = done.get(name, Work())  # of another group in the same process
                done[name] = replace(
                    work, resets=work.resets.plus(other.resets), spares=work.spares + other.spares,
                    spare_mb=work.spare_mb + other.spare_mb,
                )  # fmt: skip
        if MAIN in done:
            done[MAIN] = replace(done[MAIN], seconds={"env": self.spans.seconds("env")})
        return done

    def state(self, environments: Any = None) -> dict[str, Any]:
        """Return counters and, for each environment, its episode, the last seeded one, the actions
        to replay, and its observation."""
        obs = self._buffers[0].whole_obs(*self._boundary["obs"])
        return self._boundary | {"actions": self._log.current(), "obs": obs}

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Replay each environment (see `Envs.replay_all`); restart those that do not reproduce.

        Returns:
            A sentence for each reason for which environments were restarted.

        Raises:
            CheckpointError: the state belongs to other environments or is impossible.
        """
        check_counts(state, self.num_envs)
        self._slot = self._row = 0
        buffer = self._buffers[0]
        for path, like in tree.items(spec_shapes(buffer.spec, self.num_envs)):
            saved = state["obs"][path] if path else state["obs"]
            refuse_other(tree.joined("sampler/obs", path), saved, like, "this environment")
        buffer.restore_obs(state["obs"])
        obs, before = tree.take(buffer.obs, 0), buffer.stored(state["obs"])
        self.steps = int(state["steps"])
        if self._values is not None:
            self._values.restore(state["values"])
        self._restore_carry(state.get("carry", []))
        restored: list[np.ndarray] = []
        self.restarted, self.restart_reasons = [], {}
        for group in self._groups:
            envs, columns = group.envs, group.columns
            group.forget()
            seeded, episodes = (
                [int(number) for number in state[name][columns]] for name in ("origin", "episode")
            )
            reproduced = envs.replay_all(seeded, episodes, list(state["actions"][columns]))
            now = envs.counters().episode
            for env in range(envs.num_envs):
                number = envs.first + env
                actions, episode = state["actions"][number], int(state["episode"][number])
                same = reproduced[env] and now[env] == episode
                last, new = tree.take(before, number), tree.take(obs, number)
                if same and all(tree.leaves(tree.map(np.array_equal, new, last))):
                    restored.append(np.asarray(actions))
                    continue
                envs.reset(env, episode + 1)
                buffer.begin_episode(0, number)
                if self._values is not None:
                    self._values.forget(number)
                first = buffer.first_obs(number)
                self.restarted.append((number, tree.map(np.array, last), first))
                group.begun[env] = True
                restored.append(self._log.empty())
                reason = (
                    "does not reproduce from its seed and actions" if actions is not None
                    else f"is not saved (over {MAX_REPLAYED_STEPS} steps, or too many bytes of "
                    "actions, or its process lost)"
                )  # fmt: skip
                self.restart_reasons.setdefault(reason, []).append((number, episode))
        self._log.restore(restored)
        self._mark()
        return restart_notes(self.restart_reasons)

    def close(self) -> None:
        for group in self._groups:
            group.envs.close()

    # --- One step of one group ----------------------------------------------------------------

    def _begin(self, groups: Sequence[ActingGroup], buffer: RolloutBuffer, t: int) -> None:
        """Choose the actions of one round of groups, then begin their steps."""
        chosen = [
            group.act(buffer, t, self.steps + t) for group in groups
        ]  # on all devices at once
        for group, outputs in zip(groups, chosen, strict=True):
            actions = group.write(outputs, buffer, t)
            if group.active is not None:  # idle environments keep their observations
                buffer.hold(t, t + 1, group.columns)
                buffer.advance(t, [group.envs.first + env for env in group.active])
            else:
                buffer.advance(t, group.columns)
            if buffer.valid is not None:
                buffer.valid[t, group.columns] = [episodes > 0 for episodes in group.left]
            group.envs.send(self._slot, t, actions, group.active)
            group.stepping = True

    def _receive(self, group: ActingGroup, buffer: RolloutBuffer) -> None:
        """Wait for a group's step, and record the episodes that ended in it."""
        envs, t, ends = group.envs, group.rows, len(self._ends)
        begin = time.perf_counter_ns()

        def ended(env: int, terminated: bool, truncated: bool, final: Obs) -> None:
            number = envs.first + env
            buffer.begin_episode(t + 1, number)
            self.episodes.append(envs.finished(env))
            self._ends.append((t, number, False))
            if buffer.ended is not None:
                buffer.ended[t, number] = True
            buffer.terminated[t, number] = terminated
            if not terminated or buffer.terminal:  # otherwise nothing is bootstrapped from it
                buffer.truncated[t, number] = True
                buffer.keep_final(t, number, final)
            group.begun[env] = True
            group.left[env] -= 1

        while lost := envs.receive(ended):
            self._recover(group, buffer, lost)
        if self._life_loss and envs.life_lost is not None:
            buffer.terminated[t, group.columns] |= envs.life_lost
            group.begun |= envs.life_lost
        end = time.perf_counter_ns()
        self._waited[envs.span] = self._waited.get(envs.span, 0) + end - begin
        if self.spans.trace:
            self.spans.event(envs.span, begin, end)
        group.stepping = False
        group.rows = t + 1
        if self._whole and len(self._ends) != ends:
            group.active = [env for env, episodes in enumerate(group.left) if episodes > 0]

    def _recover(self, group: ActingGroup, buffer: RolloutBuffer, lost: Sequence[LostEnv]) -> None:
        """Truncate the episodes of lost environments, and act from their new first observations."""
        envs, t = group.envs, group.rows
        self.lost += len(lost)
        for env, last_obs in lost:
            number = envs.first + env
            buffer.begin_episode(t, number)
            if group.active is not None and env not in group.active:  # it was between episodes
                buffer.hold(t, t + 1, number)
                continue
            buffer.advance(t, number)
            if not t:
                self.restarted.append((number, last_obs, buffer.first_obs(number)))
                self._ends.append((-1, number, True))
                continue
            if any(end[:2] == (t - 1, number) for end in self._ends):
                continue  # the step before had ended its episode
            self._ends.append((t - 1, number, True))
            if buffer.ended is not None:
                buffer.ended[t - 1, number] = True
            if not buffer.terminated[t - 1, number]:  # by a lost life
                buffer.truncated[t - 1, number] = True
                buffer.keep_final(t - 1, number, last_obs)
        restarted = [env for env, _ in lost]
        outputs = group.act_again(buffer, t, self.steps + t, restarted)
        envs.repeat_step(group.write(outputs, buffer, t))

    # --- Between trajectories -----------------------------------------------------------------

    def _reset_unfinished(self, group: ActingGroup, buffer: RolloutBuffer) -> None:
        """Reset environments whose episode has begun: a trajectory must hold whole episodes."""
        envs, counters = group.envs, group.envs.counters()
        for env, steps_to_replay in enumerate(counters.steps_to_replay):
            if steps_to_replay:
                number = envs.first + env
                last = buffer.first_obs(number)
                group.begun[env] = True
                envs.reset(env, counters.episode[env] + 1, self._slot)
                buffer.begin_episode(0, number)
                self.restarted.append((number, last, buffer.first_obs(number)))
                self._ends.append((-1, number, True))

    def _restore_carry(self, leaves: Sequence[np.ndarray]) -> None:
        """Set the carries of the groups' policies to saved ones, which are in the environments'
        order; raise a `CheckpointError` if they do not fit."""
        first = self._groups[0]
        expected = jax.tree.leaves(self._carry())
        if not leaves:  # every environment was lost, and begins a new episode
            for group in self._groups:
                group.begun[:] = True
            return
        if len(leaves) != len(expected):
            raise CheckpointError("it was saved with another carry of a recurrent policy.")
        for saved, array in zip(leaves, expected, strict=True):
            refuse_other("sampler/carry", saved, array, "this policy")
        for group in self._groups:
            if group.policy.recurrent:
                form = jax.tree.structure(first.carry()[0])
                group.set_carry([
                    form.unflatten([leaf[columns] for leaf in leaves]) for columns, _ in group.calls
                ])  # fmt: skip

    def _next_buffer(self, slot: int | None) -> RolloutBuffer:
        """Return the next trajectory's arrays, with its first observations in row 0."""
        before = self._buffers[self._slot]
        self._slot = (self._slot + 1) % len(self._buffers) if slot is None else slot
        buffer = self._buffers[self._slot]
        if self._row or buffer is not before:
            buffer.begin_from(before, self._row)
        buffer.start()
        return buffer

    def _trajectory(self, buffer: RolloutBuffer) -> Trajectory:
        rows = max(group.rows for group in self._groups)
        steps_to_replay: list[int] = []
        for group in self._groups:
            if group.rows < rows:  # idle environments keep their observations
                buffer.hold(group.rows, rows, group.columns)
            steps_to_replay += group.envs.counters().steps_to_replay
        first = self._groups[0]
        buffer.check(self._name, first.first - first.columns.start)
        self._row = self.rows = rows
        # The rows from which on actions must be replayed to reach this state.
        self._starts = [max(rows - taken, 0) for taken in steps_to_replay]
        trajectory = buffer.trajectory()
        self._actions = trajectory.actions
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

    def _carry(self) -> Any:
        """Return the carry before the next step of all environments; () without one."""
        return _joined([carry for group in self._groups for carry in group.carry()])

    def _mark(self) -> None:
        """Record the boundary's state, so that an interrupted trajectory can be discarded."""
        counters = [group.envs.counters() for group in self._groups]
        buffer = self._buffers[self._slot]
        self._boundary = {
            "steps": self.steps,
            "episode": [number for one in counters for number in one.episode],
            "origin": [number for one in counters for number in one.seeded_episode],
            "obs": buffer.saved_obs(self._row),
        }
        if self._values is not None:
            self._boundary["values"] = self._values.state()
        if leaves := jax.tree.leaves(self._carry()):
            self._boundary["carry"] = leaves


def _joined(carries: Sequence[Any]) -> Any:
    """Join the carries of consecutive environments; () without any."""
    if not carries:
        return ()
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *carries)
