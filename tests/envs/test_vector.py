"""Gymnasium's vector environments give the same steps as single environments, in every autoreset
mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from flatout import tree
from flatout.envs.base import Envs
from flatout.envs.host import HostEnvs
from flatout.envs.make import specs
from flatout.envs.vector import Reseeding, VectorEnvs
from flatout.errors import EnvironmentFailure, InvalidReturn
from flatout.types import ContinuousSpec, DiscreteSpec
from tests.dict_envs import Halves

COUNT = 3


class Walk(gym.Env[np.ndarray, Any]):
    """A random walk whose observations depend on its seed and all actions; long episodes are
    truncated."""

    def __init__(self, box: bool = False, fails: bool = False) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(3, start=1)
        if box:
            self.action_space = gym.spaces.Box(0.5, 2.0, (1,), np.float32)
        self.fails = fails

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, Any]:
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.normal(size=2), 0
        return self.place.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        if self.fails and self.steps == 3:
            raise RuntimeError("the walker fell")
        self.steps += 1
        self.place += self.np_random.normal(size=2) * np.ravel(action)[0]
        over = bool(self.np_random.random() < 0.15) and not self.fails
        info = {"steps": self.steps} if over or self.steps > 7 else {}
        return self.place.copy(), float(self.place[0]), over, self.steps > 7, info


VECTORS: dict[str, Any] = {
    f"SyncVectorEnv {mode.name}": partial(SyncVectorEnv, autoreset_mode=mode)
    for mode in AutoresetMode
}
EACH_IN_THIS_PROCESS = pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS)
VECTORS = VECTORS | {"AsyncVectorEnv": partial(AsyncVectorEnv, context="spawn")}


def opened(vector: Any, seed: int = 0, box: bool = False) -> Iterator[Envs]:
    """Yield the same environments, stepped together and then one by one."""
    obs_spec, action_spec = specs(Walk(box), "Walk")
    given: Any = "Walk", obs_spec, action_spec, seed
    yield VectorEnvs(vector([partial(Walk, box)] * COUNT), *given)
    yield HostEnvs([Walk(box) for _ in range(COUNT)], *given)


def note_end(envs: Envs, into: list[Any], env: int, *end: Any) -> None:
    terminated, truncated, final = end
    into.append((env, terminated, truncated, final.tolist(), envs.finished(env)))


def same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert str(a) == str(b)


@pytest.mark.parametrize("box", [False, True])
@EACH_IN_THIS_PROCESS
def test_steps_and_episodes_are_those_of_single_environments(vector: Any, box: bool) -> None:
    runs: list[list[Any]] = []
    for envs in opened(vector, box=box):
        rng, log = np.random.default_rng(0), list[Any]()
        out, rewards = np.zeros((COUNT, 2), np.float32), np.zeros(COUNT, np.float32)
        envs.reset_all(out)
        for _ in range(40):
            actions = rng.integers(0, 3, COUNT).astype(np.int32)
            if box:
                actions = rng.uniform(0.5, 2.0, (COUNT, 1)).astype(np.float32)
            envs.step(actions, out, rewards, partial(note_end, envs, log))
            log.append((out.tolist(), rewards.tolist(), list(envs.episode), list(envs.lengths)))
        envs.close()
        runs.append(log)
    same(*runs)
    assert sum(len(entry) == 5 for entry in runs[0]) > 10


@EACH_IN_THIS_PROCESS
def test_environments_wait_between_episodes_while_others_play_on(vector: Any) -> None:
    """This is how trajectories of whole episodes step: two episodes of each, then the next two."""
    runs: list[list[Any]] = []
    for envs in opened(vector, seed=5):
        rng, log = np.random.default_rng(1), list[Any]()
        out, rewards = np.zeros((COUNT, 2), np.float32), np.zeros(COUNT, np.float32)
        envs.reset_all(out)
        for _ in range(3):
            left = [2] * COUNT
            ended: list[Any] = []
            while active := [env for env in range(COUNT) if left[env]]:
                ended.clear()
                actions = rng.integers(0, 3, COUNT).astype(np.int32)
                envs.step(actions, out, rewards, partial(note_end, envs, ended), active)
                log += ended
                log.append((out[active].tolist(), rewards[active].tolist()))
                for env, *_ in ended:
                    left[env] -= 1
        envs.close()
        runs.append(log)
    same(*runs)


@pytest.mark.parametrize(
    "vector",
    [
        pytest.param(vector, marks=pytest.mark.slow if name == "AsyncVectorEnv" else (), id=name)
        for name, vector in VECTORS.items()
    ],
)
def test_episodes_are_replayed_from_their_actions(vector: Any) -> None:
    """One of the three environments cannot be replayed, because its actions are unknown."""
    before, _ = opened(vector, seed=9)
    out, rewards = np.zeros((COUNT, 2), np.float32), np.zeros(COUNT, np.float32)
    before.reset_all(out)
    taken: list[list[np.ndarray]] = [[] for _ in range(COUNT)]

    def ended(env: int, *_: Any) -> None:
        taken[env].clear()

    for t in range(30):
        actions = ((t + np.arange(COUNT)) % 3).astype(np.int32)
        for env, action in enumerate(actions):
            taken[env].append(action)
        before.step(actions, out, rewards, ended)
    seeded_episode = list(before.seeded_episode)
    assert list(before.steps_to_replay) == [len(some) for some in taken]
    before.close()
    after, _ = opened(vector, seed=9)
    again = np.zeros((COUNT, 2), np.float32)
    known = [np.array(some, np.int32) for some in taken]
    found = after.replay_all(seeded_episode, seeded_episode, [known[0], None, known[2]], again)
    assert found == [True, False, True]
    np.testing.assert_array_equal(again[[0, 2]], out[[0, 2]])
    assert [after.episode[env] for env in (0, 2)] == [seeded_episode[0], seeded_episode[2]]
    after.close()


def test_a_vector_of_which_no_actions_are_known_begins_new_episodes() -> None:
    """None of its episodes may be known, for example if the process was lost that played them."""
    together, one_by_one = opened(SyncVectorEnv, seed=9)
    for envs in (together, one_by_one):
        out = np.zeros((COUNT, 2), np.float32)
        assert envs.replay_all([3] * COUNT, [3] * COUNT, [None] * COUNT, out) == [False] * COUNT
        for env in range(COUNT):
            envs.reset(env, out, 4)
        assert list(envs.episode) == [4] * COUNT
        assert out.all()
        envs.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_an_episode_that_ends_early_goes_on_with_the_same_random_numbers(
    mode: AutoresetMode,
) -> None:
    """As Atari games do, for which a seeded reset is expensive; replay begins at the seeded one."""
    obs_spec, action_spec = specs(Walk(), "Walk")

    def opened() -> VectorEnvs:
        vector: VectorEnv[Any, Any, Any] = SyncVectorEnv([Walk], autoreset_mode=mode)
        return VectorEnvs(vector, "Walk", obs_spec, action_spec, 3, reseeding=Reseeding(steps=40))

    first, out, rewards = opened(), np.zeros((1, 2), np.float32), np.zeros(1, np.float32)
    first.reset_all(out)
    actions = np.zeros((30, 1), np.int32)
    for action in actions:
        first.step(action, out, rewards, lambda *_: None)
    assert first.episode[0] > first.seeded_episode[0] == 0
    assert first.steps_to_replay == [30]
    again, seen = opened(), np.zeros((1, 2), np.float32)
    assert again.replay_all([0], first.episode, [actions[:, 0]], seen) == [True]
    np.testing.assert_array_equal(seen, out)
    assert again.episode == first.episode


def test_an_exception_and_a_wrong_shape_name_the_environment() -> None:
    obs_spec, action_spec = specs(Walk(), "Walk")
    out, rewards = np.zeros((1, 2), np.float32), np.zeros(1, np.float32)
    vector: VectorEnv[Any, Any, Any] = SyncVectorEnv([partial(Walk, fails=True)])
    envs = VectorEnvs(vector, "Walk", obs_spec, action_spec, 1)
    envs.reset_all(out)
    for _ in range(3):
        envs.step(np.zeros(1, np.int32), out, rewards, lambda *_: None)
    with pytest.raises(EnvironmentFailure, match=r"\(Walk\) raised RuntimeError in step: the walk"):
        envs.step(np.zeros(1, np.int32), out, rewards, lambda *_: None)
    other = VectorEnvs(vector, "Walk", replace(obs_spec, shape=(3,)), action_spec, 1)
    with pytest.raises(InvalidReturn, match=r"observations of shape \(1, 2\)"):
        other.reset_all(np.zeros((1, 3), np.float32))


def test_idle_actions_lie_in_the_action_space() -> None:
    assert DiscreteSpec(3, start=1).idle() == 0  # the first action: algorithms count from 0
    box = ContinuousSpec((2,), (-1.0, 0.5), (1.0, 2.0))
    np.testing.assert_array_equal(box.idle(), np.float32([0.0, 0.5]))


class Words(Halves):
    """Its observation is a text, or has one."""

    def __init__(self, alone: bool) -> None:
        super().__init__()
        text = gym.spaces.Text(40)
        self.alone, self.observation_space = alone, text if alone else gym.spaces.Tuple((text,))

    def observe(self, vector: np.ndarray) -> Any:
        text = " ".join(f"word{value:.1f}" for value in vector)
        return text if self.alone else (text,)


@pytest.mark.parametrize("make", [Halves, partial(Words, True), partial(Words, False)])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_other_observations_are_those_of_the_environments_one_by_one(
    mode: AutoresetMode, make: Any
) -> None:
    spec, action = specs(make(), "halves")
    vector = SyncVectorEnv([make] * 3, autoreset_mode=mode)
    each: list[Any] = [
        VectorEnvs(vector, "halves", spec, action, seed=0),
        HostEnvs([make() for _ in range(3)], "halves", spec, action, seed=0),
    ]
    drawn = np.random.default_rng(0).integers(0, 4, (30, 3)).astype(np.int32)
    seen: list[list[Any]] = []
    for envs in each:
        out, rewards, record = tree.zeros(spec, 3), np.zeros(3), list[Any]()

        def ended(env: int, *how: Any, kept: list[Any] = record) -> None:
            kept.append((env, *how[:2], *map(np.array, tree.leaves(how[2]))))

        envs.reset_all(out)
        for actions in drawn:
            envs.step(actions, out, rewards, ended)
            record.append([*map(np.array, tree.leaves(out)), rewards.copy()])
        seen.append(record)
    assert any(isinstance(one, tuple) for one in seen[0])
    for one, other in zip(*seen, strict=True):
        for left, right in zip(one, other, strict=True):
            np.testing.assert_allclose(left, right)
