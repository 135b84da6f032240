"""Hindsight: goals and rewards against a list of all steps; runs, and environments that lack
something."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout import DQN, SAC, FlatoutError
from flatout.config.settings import resolve
from flatout.engine.replay.counters import RingCounters
from flatout.engine.replay.hindsight import EpisodeEnds, Hindsight
from flatout.engine.replay.ring import Ring, RingLayout, gather, ring_shapes
from flatout.errors import CheckpointError
from flatout.run.build import assemble
from flatout.run.resolve import resolve_run
from flatout.spans import Spans
from flatout.types import Finals, ObservationSpec, Trajectory, UserCode
from tests import tiny
from tests.goal_envs import BitFlip, Mixing, OneByOne, Reach, Rewardless
from tests.worlds import NEEDS, grid

NUMBER = ObservationSpec((1,), "float32")
SPEC = {"achieved_goal": NUMBER, "desired_goal": NUMBER, "observation": NUMBER}


@dataclass
class Step:
    """A recorded step: the goals before it, the goal achieved after it, and its episode."""

    achieved: float
    desired: float
    after: float
    reward: float
    episode: int


class World:
    """Random episodes of N environments, each of whose achieved goals is another number; a step
    ends one with the probability `ends`."""

    def __init__(self, num_envs: int, seed: int, ends: float = 0.25) -> None:
        self.rng, self.num_envs, self.made = np.random.default_rng(seed), num_envs, 0
        self.ends = ends
        self.steps: list[list[Step]] = [[] for _ in range(num_envs)]
        self.episode = [0] * num_envs
        self.goals = [(self.new(), self.new()) for _ in range(num_envs)]

    def new(self) -> float:
        self.made += 1
        return float(self.made)

    def begin(self, env: int) -> None:
        self.episode[env] += 1
        self.goals[env] = self.new(), self.new()

    def obs(self, envs: Any = None) -> dict[str, np.ndarray]:
        """Return the observations of all environments ``[N, 1]``."""
        achieved, desired = np.float32(self.goals)[:, None].transpose(2, 0, 1)
        return {"achieved_goal": achieved, "desired_goal": desired, "observation": achieved}

    def one(self, env: int) -> dict[str, np.ndarray]:
        return {name: array[env] for name, array in self.obs().items()}

    def collect(self, rows: int) -> Trajectory:
        """Make `rows` steps and return them as a sampler does that keeps all ends' observations."""
        seen, finals, index = [self.obs()], [], []
        rewards = self.rng.normal(size=(rows, self.num_envs)).astype(np.float32)
        terminated, ended = np.zeros((2, rows, self.num_envs), np.bool_)
        for t in range(rows):
            for env in range(self.num_envs):
                achieved, desired = self.goals[env]
                self.goals[env] = after, desired = self.new(), desired
                reward = float(rewards[t, env])
                self.steps[env].append(Step(achieved, desired, after, reward, self.episode[env]))
                if self.rng.random() < self.ends:
                    ended[t, env], terminated[t, env] = True, self.rng.random() < 0.5
                    finals.append(self.one(env))
                    index.append(t * self.num_envs + env)
                    self.begin(env)
            seen.append(self.obs())
        room = max(2 * self.num_envs, len(index))
        used = {name: np.zeros((room, 1), np.float32) for name in SPEC}
        for number, final in enumerate(finals):
            for name in SPEC:
                used[name][number] = final[name]
        index += [rows * self.num_envs] * (room - len(index))
        return Trajectory(
            obs={name: np.stack([one[name] for one in seen[:-1]]) for name in SPEC},
            actions=np.zeros((rows, self.num_envs), np.int32), rewards=rewards,
            terminated=terminated, truncated=ended, last_obs=seen[-1],
            finals=Finals(used, np.int32(index)), extras={}, ended=ended,
        )  # fmt: skip


class Store:
    """A ring in host memory and its counters."""

    def __init__(self, layout: RingLayout, hindsight: int = 4) -> None:
        self.layout = layout
        self.counts = RingCounters(layout, replace(NEEDS, hindsight=hindsight))
        shapes = ring_shapes(layout, World(layout.num_envs, 0).collect(1), layout.num_envs)
        self.ring: Ring = Ring(*(
            {name: np.zeros(one.shape, one.dtype) for name, one in shape.items()}
            if isinstance(shape, dict) else np.zeros(shape.shape, shape.dtype)
            for shape in shapes
        ))  # fmt: skip

    def take(self, trajectory: Trajectory) -> None:
        self.ring, _ = self.counts.write(self.ring, trajectory)

    def cut(self, world: World, env: int) -> None:
        """Lose an environment's episode, as if it could not be restored."""
        last = world.one(env)
        world.begin(env)
        self.ring = self.counts.truncate(self.ring, env, last, world.one(env))

    def restored(self) -> Store:
        """Return a new store with what a checkpoint holds of this one."""
        arrays, data, rows = self.counts.saved(self.ring)
        other = Store(self.layout)
        other.ring = other.counts.restore(other.ring, arrays, data, rows)
        return other


def reward(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    """Return a number that only these two goals give."""
    return (1000 * achieved + desired)[:, 0].astype(np.float32)


geometries = st.builds(
    RingLayout, st.just(SPEC), st.integers(1, 3), st.integers(3, 12), st.integers(1, 4)
)


@settings(deadline=None, max_examples=60)
@given(geometries, st.integers(0, 2**32 - 1), st.data())
def test_goals_and_rewards_agree_with_the_list_of_steps(
    layout: RingLayout, seed: int, data: st.DataObject
) -> None:
    """The ring wraps around. Trajectories have any length, episodes are lost or as long as the
    ring, and the ring is saved and restored."""
    world = World(layout.num_envs, seed, data.draw(st.sampled_from([0.25, 0.05])))
    store = Store(layout)
    for _ in range(data.draw(st.integers(1, 8))):
        store.take(world.collect(data.draw(st.integers(1, layout.rows))))
        if data.draw(st.booleans()):
            store.cut(world, 0)
        if data.draw(st.booleans()):
            store = store.restored()
        assert_right(world, store)


def assert_right(world: World, store: Store) -> None:
    """Give every stored step every later goal of its episode."""
    layout, counts = store.layout, store.counts
    assert counts.ends is not None
    hindsight = Hindsight(layout, 4, reward, sign=False)
    row, env = grid(layout, counts.rows_written)
    last = counts.ends.last(row, env, counts.rows_written)
    assert (last >= row).all()
    for offset in range(-1, layout.rows):
        later = np.where(offset < 0, -1, row + offset)
        some = later <= last
        found = gather(np, layout, store.ring, counts.rows_written, row[some], env[some])
        own = found.rewards.copy()
        goals = found.frames["desired_goal"].copy()
        found = hindsight.relabel(found, store.ring, row[some], env[some], later[some])
        if offset < 0:
            np.testing.assert_array_equal(found.rewards, own)
            np.testing.assert_array_equal(found.frames["desired_goal"], goals)
            continue
        for i, (r, n, goal) in enumerate(zip(row[some], env[some], later[some], strict=True)):
            steps = world.steps[n]
            assert steps[goal].episode == steps[r].episode
            assert (found.frames["desired_goal"][i] == steps[goal].after).all()
            assert found.frames["achieved_goal"][i][0] == steps[r].achieved
            for k in range(found.steps[i]):
                wanted = 1000 * steps[r + k].after + steps[goal].after
                assert found.rewards[i, k] == np.float32(wanted)
    beyond = [
        n for n, r in zip(env, last + 1, strict=True)
        if r < counts.rows_written and world.steps[n][r].episode == world.steps[n][r - 1].episode
    ]  # fmt: skip
    assert beyond == []  # the last step is the last one of its episode that is stored


@pytest.mark.parametrize("rows", range(1, 12))
def test_an_episode_as_long_as_the_ring_ends_before_the_rows_that_follow_it(rows: int) -> None:
    """The trajectory that ends it begins in any of its rows, or has more rows than the ring."""
    layout = RingLayout(SPEC, 1, 8, 1)
    assert layout.length == 9
    for end in range(7, 12):
        ends, ended = EpisodeEnds(layout), np.arange(24)[:, None] == end
        hindsight = Hindsight(layout, 4, reward, sign=False)
        for first in range(0, 24, rows):
            ends.add(first, ended[first : first + rows])
            written = min(first + rows, 24)
            row = np.arange(max(written - layout.rows, 0), written, dtype=np.int32)
            wanted = np.where((row <= end) & (end < written), end, written - 1)
            env = np.zeros_like(row)
            np.testing.assert_array_equal(ends.last(row, env, written), wanted)
            word = np.full((1, len(row)), 2**32 - 5, np.uint32)
            later = hindsight.draw(ends, written, 0, row[None], env[None], word)
            assert ((later < 0) | ((row <= later) & (later <= wanted))).all()


def test_four_of_five_samples_get_a_later_goal_of_their_episode() -> None:
    layout = RingLayout(SPEC, 2, 20, 1)
    ends, hindsight = EpisodeEnds(layout), Hindsight(layout, 4, reward, sign=False)
    ended = np.zeros((20, 2), np.bool_)
    ended[[6, 13], [0, 1]] = True
    ends.add(0, ended)
    rng = np.random.default_rng(0)
    row, env = rng.integers(0, 20, (50, 8), np.int32), rng.integers(0, 2, (50, 8), np.int32)
    word = rng.integers(0, 2**32, (50, 8), np.uint32)
    later = hindsight.draw(ends, 20, 3, row, env, word)
    assert ((later < 0).reshape(-1, 5).sum(1) == 1).all()
    last = np.where(env == 0, np.where(row <= 6, 6, 19), np.where(row <= 13, 13, 19))
    given = later >= 0
    assert (later[given] >= row[given]).all()
    assert (later <= last)[given].all()
    first = given & (env == 0) & (row == 3)
    assert {*later[first]} <= {3, 4, 5, 6}
    many = hindsight.draw(
        ends, 20, 0, np.full((1, 2000), 3), np.zeros((1, 2000), int),
        rng.integers(0, 2**32, (1, 2000), np.uint32),
    )  # fmt: skip
    counts = np.bincount(many[many >= 0], minlength=7)[3:]
    assert counts.sum() == 1600
    assert (np.abs(counts - 400) < 80).all()
    # What an update draws does not depend on how many are drawn at once.
    parts = [hindsight.draw(ends, 20, 3 + i, *(a[i : i + 1] for a in (row, env, word)))
             for i in range(50)]  # fmt: skip
    np.testing.assert_array_equal(np.concatenate(parts), later)


def test_replay_that_lacks_final_observations_is_refused() -> None:
    world, store = World(1, 0), Store(RingLayout(SPEC, 1, 30, 1), hindsight=0)
    trajectory = world.collect(30)
    assert trajectory.terminated.any()
    truncated = trajectory.truncated & ~trajectory.terminated
    index = np.flatnonzero(truncated)
    finals = trajectory.finals._replace(
        index=np.where(np.isin(trajectory.finals.index, index), trajectory.finals.index, 30)
    )
    store.take(trajectory._replace(truncated=truncated, finals=finals))
    with pytest.raises(CheckpointError, match="stored without --hindsight"):
        store.restored()


# Runs


def vector(num_envs: int) -> SyncVectorEnv:
    mode = AutoresetMode.SAME_STEP
    return SyncVectorEnv([lambda: BitFlip(3)] * num_envs, autoreset_mode=mode)


@pytest.mark.parametrize(
    ("env", "settings", "words"),
    [
        (lambda: OneByOne(3), {}, "compute_reward of .* for 2 pairs of goals.*takes B rewards"),
        (lambda: Mixing(3), {}, "for two pairs of goals, and .* for each pair alone"),
        (lambda: Rewardless(3), {}, "has no method compute_reward"),
        ("CartPole-v1", {}, "needs a Dict observation with achieved_goal and desired_goal"),
        (vector, {}, "vector is a vector environment: "),
        (lambda: BitFlip(3), {"frame_stack": 2}, "--frame-stack 2 stacks them"),
        (lambda: BitFlip(3), {"placement": "act=cpu replay=device"}, "--hindsight 4 needs replay"),
    ],
    ids=["one by one", "mixing", "no rewards", "no goals", "a vector", "stacked", "on a device"],
)
def test_what_hindsight_lacks_is_said_in_one_sentence(
    env: Any, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(FlatoutError, match=words) as refused:
        DQN(env, hindsight=4, **tiny.python("dqn", env_kwargs={}) | settings).learn(64)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_agent_learns_from_hindsight_and_reports_successes(shards: int, tmp_path: Path) -> None:
    agent = DQN(lambda: BitFlip(3), hindsight=4, shards=shards, **tiny.python("dqn"))
    agent.learn(256, run_dir=tmp_path / "run")
    assert agent.summary["updates"] > 0
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert 0 < json.loads(rows[-1])["rollout/success_rate"] <= 1
    assert agent.evaluate(5).success_rate is not None
    assert agent.evaluate(5, env=lambda: Rewardless(3)).success_rate is None


def test_the_observation_after_a_terminated_step_is_kept() -> None:
    """The goal that was achieved last stands in the replay of a run, however it was sampled."""
    flags = tiny.settings("dqn", env="", hindsight=4, steps=512, learning_starts=100_000)
    run = resolve_run(resolve("dqn", flags), UserCode(env=lambda: BitFlip(3)))
    made = assemble(run, Spans(), programs=tiny.programs(("hindsight", "dqn")))
    try:
        made.schedule.start()
        for _ in range(12):
            next(made.schedule.advance(1))
        ring, counts = made.schedule.state.store.ring, made.schedule.state.counts
        row, env = grid(RingLayout(made.schedule.state.counts._layout.spec, 2, 256, 1), 96)
        here = row * 2 + env
        over = ring.terminated[here]
        assert over.any()
        assert ring.truncated[here][over].all()
        last = ring.finals["achieved_goal"][ring.final_id[here[over]]]
        np.testing.assert_array_equal(last, ring.frames["desired_goal"][here[over]])
        assert counts.ends is not None
    finally:
        made.close()


SOLVED: dict[str, Any] = {
    "env_kwargs": {"bits": 10}, "envs": 4, "hidden": (256,), "learning_rate": 1e-3,
    "learning_starts": 500, "batch_size": 128, "train_freq": 8, "gradient_steps": 4, "gamma": 0.98,
    "exploration_fraction": 0.3, "exploration_final_eps": 0.02, "buffer_size": 100_000,
    "target_update_interval": 200, "steps": 12_000,
}  # fmt: skip


@pytest.mark.slow
def test_bits_are_flipped_to_the_goal_with_hindsight_alone() -> None:
    with_goals, without = (
        DQN("tests.goal_envs:BitFlip", hindsight=count, **SOLVED).learn().evaluate(100)
        for count in (4, 0)
    )
    assert with_goals.success_rate > 0.9
    assert without.success_rate < 0.2


@pytest.mark.slow
def test_a_point_is_moved_to_the_goal() -> None:
    agent = SAC(
        Reach, hindsight=4, envs=4, hidden=(64, 64), learning_rate=1e-3, learning_starts=400,
        train_freq=4, gradient_steps=2, gamma=0.95, steps=6000,
    ).learn()  # fmt: skip
    assert agent.evaluate(50).success_rate > 0.9
