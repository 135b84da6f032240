"""The central sampler: its trajectories record every step exactly once, in order, also across their
boundaries. Environments and policy are scripts, whose results a few lines predict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest

from flatout.algorithms.base import RolloutSpec
from flatout.engine import episodes as kept
from flatout.engine.collect import CentralSampler
from flatout.engine.groups import ActingGroup, InlineEnvGroup
from flatout.engine.rollout_buffer import RolloutBuffer
from flatout.envs.base import TRAINING, Ended, Envs
from flatout.errors import CheckpointError
from flatout.frames import put
from flatout.packing import OutputLayout
from flatout.spans import Spans
from flatout.types import Episode, ObservationSpec, Trajectory

SPEC = ObservationSpec((3,), "float32")
T = 5


def length(env: int, episode: int) -> int:
    """Return the number of steps of an episode."""
    return 2 + (3 * env + 2 * episode) % 6


def cut(env: int, episode: int) -> bool:
    """Return whether an episode is truncated, not terminated."""
    return (env + episode) % 2 == 0


def chosen(obs: np.ndarray, step: int) -> int:
    """Return the scripted action for an observation and a step."""
    return (int(obs.sum()) + step) % 7


class Scripted(Envs):
    """Scripted environments. They observe their number, their episode and its step; the reward
    depends on the step and the action.

    Args:
        events: receives ``("step", first environment)`` at each step.
        lengths_of: the episodes' lengths, see `length`.
        shift: added to the episode's number after a replay, so that observations differ.
        lives: whether an environment loses a life with every second step.
    """

    def __init__(
        self, first: int, count: int, events: list[Any],
        lengths_of: Callable[[int, int], int] = length, shift: int = 0, lives: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(count, "script", 0, TRAINING, first)
        self.first, self.events, self.lengths_of, self.shift = first, events, lengths_of, shift
        self.life_lost = np.zeros(count, np.bool_) if lives else None
        self.closed = 0

    def _see(self, env: int, shift: int = 0) -> tuple[int, int, int]:
        return self.first + env, self.episode[env] + shift, self.lengths[env]

    def _observe(self, env: int, shift: int = 0) -> np.ndarray:
        """Return an environment's observation; `shift` is added to the episode's number."""
        return np.array(self._see(env, shift), np.float32)

    def reset(self, env: int, out: np.ndarray, episode: int | None = None) -> None:
        self.episode[env] = self.episode[env] + 1 if episode is None else episode
        self.returns[env], self.lengths[env] = 0.0, 0
        put(out, env, self._observe(env))

    def reset_all(self, out: np.ndarray, episode: int | None = None) -> None:
        for env in range(self.num_envs):
            self.reset(env, out, episode)

    def step(
        self, actions: np.ndarray, out: np.ndarray, rewards: np.ndarray, ended: Ended,
        active: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.events.append(("step", self.first))
        for env in range(self.num_envs) if active is None else active:
            number, episode, at = self._see(env)
            rewards[env] = at + 10 * actions[env]
            self.returns[env] += float(rewards[env])
            self.lengths[env] += 1
            if self.life_lost is not None:
                self.life_lost[env] = at % 2 == 1
            if self.lengths[env] == self.lengths_of(number, episode):
                over = cut(number, episode)
                ended(env, not over, over, self._observe(env))
                self.reset(env, out)
            else:
                put(out, env, self._observe(env))

    def replay_all(
        self, seeded: Sequence[int], episodes: Sequence[int],
        actions: Sequence[np.ndarray | None], out: np.ndarray,
    ) -> list[bool]:  # fmt: skip
        for env, (episode, taken) in enumerate(zip(episodes, actions, strict=True)):
            self.reset(env, out, episode)
            for action in () if taken is None else taken:
                self.returns[env] += self.lengths[env] + 10.0 * float(action)
                self.lengths[env] += 1
            put(out, env, self._observe(env, self.shift))
        return [taken is not None for taken in actions]

    def close(self) -> None:
        self.closed += 1


class Chooser:
    """A policy that acts as `chosen` and returns the sum of each observation; if `valued`, also the
    step, as the largest action value."""

    recurrent = False

    def __init__(self, count: int, events: list[Any], valued: bool) -> None:
        row = {"action": np.int32, "seen": np.float32} | ({"q_max": np.float32} if valued else {})
        self.layout = OutputLayout(
            {name: jax.ShapeDtypeStruct((count,), kind) for name, kind in row.items()}
        )
        self.events, self.valued, self.num_envs = events, valued, count

    def begin(self, obs: np.ndarray, step: int, first: int = 0) -> np.ndarray:
        self.events.append(("act", first, step))
        action = np.array([chosen(one, step) for one in obs], np.int32)
        outputs = [action, obs.sum(-1).astype(np.float32)]
        if self.valued:
            outputs.insert(1, np.full(len(obs), step, np.float32))  # outputs are ordered by name
        return np.concatenate([part.view(np.uint32) for part in outputs])


@dataclass
class Made:
    """A sampler and its parts."""

    sampler: CentralSampler
    envs: list[Scripted]
    events: list[Any] = field(default_factory=list)


def made(
    group_rotation: Sequence[Sequence[int]] = ((2,), (1,)), slots: int = 1,
    whole: int | None = None, valued: bool = False, horizon: int = T, life_loss: bool = False,
    start: bool = True, **settings: Any,
) -> Made:  # fmt: skip
    """Make a sampler; `group_rotation` has the number of environments of each group."""
    sizes = [size for groups in group_rotation for size in groups]
    events: list[Any] = []
    policies = [Chooser(size, events, valued) for size in sizes]
    layouts = [policy.layout for policy in policies]
    spec = RolloutSpec(horizon, whole, 1, replayed=True)
    buffers = [RolloutBuffer(spec, sum(sizes), SPEC, layouts) for _ in range(slots)]
    firsts = np.cumsum([0, *sizes[:-1]]).tolist()
    envs = [Scripted(f, n, events, **settings) for f, n in zip(firsts, sizes, strict=True)]
    groups = [
        ActingGroup(InlineEnvGroup(one, buffers, first), policy)  # type: ignore[arg-type]
        for one, first, policy in zip(envs, firsts, policies, strict=True)
    ]
    taken = iter(groups)
    sampler = CentralSampler(
        [[next(taken) for _ in sizes] for sizes in group_rotation], buffers, "script", whole,
        Spans(), life_loss=life_loss,
    )  # fmt: skip
    if start:
        sampler.start()
    return Made(sampler, envs, events)


def collect(sampler: CentralSampler) -> Trajectory:
    """Collect and commit a trajectory; return a copy."""
    trajectory = jax.tree.map(np.array, sampler.collect()[0])
    sampler.commit()
    return trajectory


@dataclass
class Story:
    """The expected steps of every environment, in order."""

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    finals: dict[tuple[int, int], tuple[int, ...]]
    episodes: list[tuple[int, Episode]]


def story(steps: int, count: int) -> Story:
    obs = np.zeros((steps + 1, count, 3), np.float32)
    actions, rewards = np.zeros((steps, count), np.int32), np.zeros((steps, count), np.float32)
    terminated, truncated = np.zeros((2, steps, count), np.bool_)
    finals: dict[tuple[int, int], tuple[int, ...]] = {}
    episodes: list[tuple[int, Episode]] = []
    for env in range(count):
        episode, at, total, values = 0, 0, 0.0, []
        for step in range(steps):
            obs[step, env] = env, episode, at
            actions[step, env] = chosen(obs[step, env], step)
            rewards[step, env] = at + 10 * actions[step, env]
            total, at = total + float(rewards[step, env]), at + 1
            values.append(step)
            if at == length(env, episode):
                (truncated if cut(env, episode) else terminated)[step, env] = True
                if cut(env, episode):
                    finals[step, env] = (env, episode, at)
                episodes.append((step, Episode(env, total, at, float(np.mean(values)))))
                episode, at, total, values = episode + 1, 0, 0.0, []
        obs[steps, env] = env, episode, at
    return Story(obs, actions, rewards, terminated, truncated, finals, episodes)


GROUPS = [((3,),), ((2,), (1,)), ((1, 1), (1,)), ((1,), (1,), (1,))]


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("group_rotation", GROUPS)
def test_trajectories_record_every_step(group_rotation: Any, slots: int) -> None:
    """For every grouping of the environments, also across the boundaries of trajectories."""
    one, right = made(group_rotation, slots), story(4 * T, 3)
    for number in range(4):
        found, rows = collect(one.sampler), slice(number * T, (number + 1) * T)
        np.testing.assert_array_equal(found.obs, right.obs[rows])
        np.testing.assert_array_equal(found.last_obs, right.obs[rows.stop])
        np.testing.assert_array_equal(found.actions, right.actions[rows])
        np.testing.assert_array_equal(found.extras["seen"], right.obs[rows].sum(-1))
        np.testing.assert_array_equal(found.rewards, right.rewards[rows])
        np.testing.assert_array_equal(found.terminated, right.terminated[rows])
        np.testing.assert_array_equal(found.truncated, right.truncated[rows])
        np.testing.assert_array_equal(found.ended, found.terminated | found.truncated)
        finals = {
            (rows.start + index // 3, index % 3): tuple(obs.astype(int).tolist())
            for index, obs in zip(found.final_index.tolist(), found.final_obs, strict=True)
            if index < 3 * T
        }
        wanted = {at: obs for at, obs in right.finals.items() if rows.start <= at[0] < rows.stop}
        assert finals == wanted
        ended = [e for step, e in right.episodes if rows.start <= step < rows.stop]
        assert {e[:3] for e in one.sampler.episodes} == {e[:3] for e in ended}
        assert one.sampler.steps_collected == 3 * T


def test_a_policy_acts_while_another_group_steps() -> None:
    one = made(((2,), (1,)))
    collect(one.sampler)
    at = {event: place for place, event in enumerate(one.events) if event[0] == "act"}
    steps = {f: [p for p, e in enumerate(one.events) if e == ("step", f)] for f in (0, 2)}
    for t in range(T):
        assert at["act", 0, t] < at["act", 2, t] < steps[0][t]
        if t + 1 < T:
            assert at["act", 2, t] < steps[0][t] < at["act", 0, t + 1] < steps[2][t]


def test_a_trajectory_stays_while_the_next_is_collected() -> None:
    one = made(slots=2)
    first = one.sampler.collect()[0]
    copy = jax.tree.map(np.array, first)
    one.sampler.commit()
    second = one.sampler.collect()[0]
    jax.tree.map(np.testing.assert_array_equal, first, copy)
    np.testing.assert_array_equal(second.obs[0], first.last_obs)


def test_any_number_of_truncated_episodes_keeps_its_final_observations() -> None:
    """Every step ends an episode, and half are truncated: more than there is initially room for."""
    one = made(lengths_of=lambda env, episode: 1)
    found = collect(one.sampler)
    count = int(found.truncated.sum())
    assert count > 3
    assert (found.final_index < 3 * T).sum() == count
    assert len(found.final_obs) == len(found.final_index)
    assert len(found.final_obs) % 3 == 0
    for index, obs in zip(found.final_index, found.final_obs, strict=True):
        if index < 3 * T:
            np.testing.assert_array_equal(obs[:2], found.obs[index // 3, index % 3, :2])
            assert obs[2] == 1


def test_episodes_have_the_mean_of_their_action_values() -> None:
    """Also if an episode extends over several trajectories."""
    one, right = made(valued=True), story(4 * T, 3)
    found: list[Episode] = []
    for _ in range(4):
        collect(one.sampler)
        found += one.sampler.episodes
    assert len(found) > 8
    assert sorted(found) == sorted(episode for _, episode in right.episodes)


def test_a_lost_life_is_a_terminal_if_requested() -> None:
    """The episode and its return continue."""
    plain, lives = (collect(made(lives=True, life_loss=asked).sampler) for asked in (False, True))
    np.testing.assert_array_equal(plain.obs, lives.obs)
    np.testing.assert_array_equal(plain.ended, lives.ended)
    lost = plain.obs[..., 2] % 2 == 1
    np.testing.assert_array_equal(lives.terminated, plain.terminated | lost)
    assert (lives.terminated & ~lives.ended).any()


# --- Boundaries -------------------------------------------------------------------------------


def same(one: CentralSampler, other: CentralSampler, count: int = 3) -> None:
    """Check that both collect the same trajectories, in all valid steps."""

    def rows(trajectory: Trajectory) -> Any:
        counted = trajectory.valid
        if counted is None:
            return trajectory
        steps = (trajectory.obs, trajectory.actions, trajectory.rewards, trajectory.ended)
        return counted, [array[counted] for array in steps]

    for _ in range(count):
        jax.tree.map(np.testing.assert_array_equal, rows(collect(one)), rows(collect(other)))
        assert sorted(one.episodes) == sorted(other.episodes)


@pytest.mark.parametrize("learned", [0, 1, 3])
def test_an_uncommitted_trajectory_is_collected_again(learned: int) -> None:
    """A state is that of the last committed trajectory, even if another was collected since."""
    one = made(valued=True).sampler
    for _ in range(learned):
        collect(one)
    one.collect()  # a signal comes
    state = one.state()
    again, undisturbed = made(valued=True, start=False).sampler, made(valued=True).sampler
    for _ in range(learned):
        collect(undisturbed)
    assert again.restore(state) == []
    assert again.restarted == []
    same(again, undisturbed)


@pytest.mark.parametrize("group_rotation", GROUPS)
def test_a_state_moves_to_other_groups(group_rotation: Any) -> None:
    one = made(((2,), (1,))).sampler
    collect(one)
    other = made(group_rotation, slots=2, start=False).sampler
    assert other.restore(one.state()) == []
    assert other.current_episodes == one.current_episodes
    same(one, other)


def test_an_environment_that_does_not_reproduce_is_restarted_with_a_note() -> None:
    one = made()
    collect(one.sampler)
    state = one.sampler.state()
    other = made(start=False)
    other.envs[1].shift = 9  # of environment 2
    (note,) = other.sampler.restore(state)
    episode = state["episode"][2]
    assert note.startswith(f"environment 2: episode {episode} does not reproduce")
    ((number, last, first),) = other.sampler.restarted
    assert number == 2
    np.testing.assert_array_equal(last, state["obs"][2])
    np.testing.assert_array_equal(first, [2, episode + 1, 0])
    ours, theirs = collect(other.sampler), collect(one.sampler)
    np.testing.assert_array_equal(ours.obs[:, :2], theirs.obs[:, :2])
    np.testing.assert_array_equal(ours.obs[0, 2], first)
    # From here on it can be saved again.
    state = other.sampler.state()
    assert made(start=False).sampler.restore(state) == []


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_REPLAYED_STEPS", 2 * T), ("MAX_REPLAYED_BYTES", 2 * T * 3 * 4)]
)
def test_actions_of_very_long_episodes_are_not_kept(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, limit, value)
    one = made(lengths_of=lambda env, episode: 10**6 if env == 1 else 2)
    for _ in range(4):
        collect(one.sampler)
    state = one.sampler.state()
    assert sum(len(taken) for taken in state["actions"] if taken is not None) <= 4 * T
    (note,) = made(start=False).sampler.restore(state)
    assert note.startswith("environment 1: episode 0 is not saved")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s | {"obs": s["obs"][:2]}, "2 environments, not 3"),
        (lambda s: s | {"episode": s["episode"][:1]}, "1 environments, not 3"),
        (lambda s: s | {"obs": s["obs"][:, :2]}, r"is float32\[3, 2\], .* needs float32\[3, 3\]"),
        (lambda s: s | {"obs": s["obs"].astype(np.uint8)}, "uint8"),
        (lambda s: s | {"steps": -1}, "steps -1 is impossible"),
    ],
)
def test_states_of_something_else_are_refused(change: Any, words: str) -> None:
    one = made().sampler
    collect(one)
    with pytest.raises(CheckpointError, match=words):
        made(start=False).sampler.restore(change(one.state()))


# --- Whole episodes ---------------------------------------------------------------------------


@pytest.mark.parametrize("group_rotation", GROUPS)
@pytest.mark.parametrize("whole", [1, 2])
def test_whole_episodes_begin_and_end_with_the_trajectory(group_rotation: Any, whole: int) -> None:
    one = made(group_rotation, whole=whole, horizon=20)
    for number in range(3):
        found = collect(one.sampler)
        numbers = range(whole * number, whole * (number + 1))
        taken = [sum(length(env, episode) for episode in numbers) for env in range(3)]
        assert one.sampler.steps_collected == sum(taken)
        for env, steps in enumerate(taken):
            np.testing.assert_array_equal(found.valid[:, env], np.arange(20) < steps)
            # An environment that was done earlier waited for the others.
            np.testing.assert_array_equal(found.obs[0, env], [env, numbers[0], 0])
            assert found.ended[steps - 1, env]
            assert found.ended[:, env].sum() == whole
        assert sorted(e[:1] + e[2:3] for e in one.sampler.episodes) == sorted(
            (env, length(env, episode)) for env in range(3) for episode in numbers
        )


def test_whole_episodes_that_are_too_long_are_restarted() -> None:
    one = made(whole=1, lengths_of=lambda env, episode: 2 * T if env == 0 else 2)
    found = collect(one.sampler)
    assert found.valid[:, 0].all()
    assert not found.ended[:, 0].any()
    again = collect(one.sampler)
    ((number, last, first),) = one.sampler.restarted
    assert number == 0
    np.testing.assert_array_equal(last, found.last_obs[0])
    np.testing.assert_array_equal(first, [0, 1, 0])
    np.testing.assert_array_equal(again.obs[0, 0], first)


@pytest.mark.parametrize("learned", [1, 2])
def test_whole_episodes_continue_from_a_state(learned: int) -> None:
    one = made(whole=1, horizon=8).sampler
    for _ in range(learned):
        collect(one)
    other = made(whole=1, horizon=8, start=False).sampler
    assert other.restore(one.state()) == []
    same(one, other)


def test_all_environments_are_closed() -> None:
    one = made(((1, 1), (1,)))
    one.sampler.close()
    assert [envs.closed for envs in one.envs] == [1, 1, 1]
