"""Host environments: seeds, episode ends, actions, spaces, sources, replay."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout import PPO
from flatout.config.schema import EnvConfig
from flatout.envs.base import EVALUATION, TRAINING, episode_seed
from flatout.envs.host import HostEnvs
from flatout.envs.make import episode_limit, factory, specs
from flatout.envs.notes import lost_statistics
from flatout.errors import InvalidReturn, UsageError
from flatout.types import ContinuousSpec, DiscreteSpec, ObservationSpec
from tests import bad_envs, tiny
from tests.conftest import Result

ROOT = Path(__file__).parents[2]
Ended = tuple[int, bool, bool, np.ndarray, float, int]
quick = settings(deadline=None, max_examples=25)


class Played:
    """Host environments with the arrays that a sampler would give them."""

    def __init__(self, *envs: gym.Env[Any, Any], seed: int = 0, stream: int = TRAINING) -> None:
        self.obs_spec, self.action_spec = specs(envs[0], "test")
        self.envs = HostEnvs(envs, "test", self.obs_spec, self.action_spec, seed, stream)
        self.obs = np.zeros((len(envs), *self.obs_spec.shape), self.obs_spec.dtype)
        self.rewards = np.zeros(len(envs), np.float32)
        self.ended: list[Ended] = []

    def start(self) -> Played:
        for env in range(self.envs.num_envs):
            self.envs.reset(env, self.obs)
        return self

    def step(self, actions: Any, active: list[int] | None = None) -> None:
        self.envs.step(np.asarray(actions), self.obs, self.rewards, self._end, active)

    def _end(self, env: int, terminated: bool, truncated: bool, final: np.ndarray) -> None:
        episode = self.envs.finished(env)
        assert episode.env == env
        self.ended.append(
            (env, terminated, truncated, final.copy(), episode.episode_return, episode.length)
        )


@quick
@given(
    st.lists(st.floats(-3, 200, width=32), min_size=2, max_size=2),
    st.sampled_from(["int64", "uint8"]),
)
def test_whole_actions_are_the_nearest_and_lie_in_the_box(values: list[float], dtype: str) -> None:
    space = gym.spaces.Box(np.array([0, 2]), np.array([3, 200]), dtype=np.dtype(dtype).type)
    spec = ContinuousSpec((2,), (0.0, 2.0), (3.0, 200.0), dtype)
    action = np.clip(np.float32([values]), *np.float32([space.low, space.high]))
    (given_,) = spec.separate(action)
    assert space.contains(given_)
    assert np.abs(given_.astype(np.float32) - action[0]).max() <= 0.5


@pytest.mark.parametrize(
    ("wrapper", "setting"),
    [(gym.wrappers.NormalizeObservation, "normalize_observation"),
     (gym.wrappers.NormalizeReward, "normalize_reward")],
)  # fmt: skip
def test_statistics_that_no_run_saves_are_named(
    wrapper: Any, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    PPO(lambda: gym.wrappers.TransformReward(wrapper(gym.make("CartPole-v1")), float), envs=3)
    said = capsys.readouterr().err
    assert said.count(f"gymnasium.wrappers.{wrapper.__name__}") == said.count("\n") == 1
    assert f"{setting}=True" in said


def test_statistics_of_vectors_are_named_as_those_of_single_environments() -> None:
    wrapped = gym.wrappers.NormalizeReward(gym.make("CartPole-v1"))
    inner = gym.vector.SyncVectorEnv([lambda: wrapped])
    notes = lost_statistics(gym.wrappers.vector.NormalizeObservation(inner), "poles")
    assert [note.split(", whose")[0] for note in notes] == [
        "poles is wrapped in gymnasium.wrappers.vector.NormalizeObservation",
        "poles is wrapped in gymnasium.wrappers.NormalizeReward",
    ]


def test_bytes_that_are_always_zero_are_divided_by_one() -> None:
    blank = bad_envs.Good()
    blank.observation_space = gym.spaces.Box(0, 0, (3,), np.uint8)
    spec = specs(blank, "blank")[0]
    assert (spec.dtype, spec.high) == ("uint8", 1)


@pytest.mark.parametrize(
    ("space", "first", "later"),
    [
        (gym.spaces.Discrete(5), np.int32(4), np.int32(7)),
        (gym.spaces.Discrete(200, start=-100), np.uint8(99), np.int8(-128)),
        (gym.spaces.MultiDiscrete([5, 5]), np.array([0, 4], np.int32), np.array([1, 9], np.int32)),
    ],
)
def test_a_category_is_checked_in_every_type(space: Any, first: Any, later: Any) -> None:
    env, returned = bad_envs.Good(), [first, first, later]
    env.observation_space = space
    env.reset = lambda **_: (returned.pop(0), {})  # type: ignore[method-assign]
    env.step = lambda _: (returned.pop(0), 0.0, False, False, {})  # type: ignore[method-assign]
    played = Played(env).start()
    played.step([0])
    np.testing.assert_array_equal(played.obs[0], first)
    with pytest.raises(InvalidReturn, match=r"from step 2 of episode 0 with .* which is none of"):
        played.step([0])


def made(name: str, **config: Any) -> gym.Env[Any, Any]:
    """Make one prepared environment."""
    return factory(EnvConfig(env=name, **config))()


# Seeds


def test_seeds_are_distinct_and_31_bits() -> None:
    numbers = itertools.product(range(3), (TRAINING, EVALUATION), range(8), range(40))
    seeds = [episode_seed(*number) for number in numbers]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


@quick
@given(st.integers(0, 2**32 - 1), st.integers(0, 1), st.integers(0, 10**6), st.integers(0, 10**9))
def test_a_seed_is_a_function_of_its_numbers(
    seed: int, stream: int, env: int, episode: int
) -> None:
    one = episode_seed(seed, stream, env, episode)
    assert type(one) is int
    assert one == episode_seed(seed, stream, env, episode)
    assert one != episode_seed(seed, stream, env, episode + 1)


@pytest.mark.parametrize("stream", [TRAINING, EVALUATION])
def test_every_episode_resets_with_its_own_seed(stream: int) -> None:
    envs = [bad_envs.Good(length=2), bad_envs.Good(length=3)]
    played = Played(*envs, seed=7, stream=stream).start()
    for _ in range(6):
        played.step([0, 1])
    for number, (env, episodes) in enumerate(zip(envs, (4, 3), strict=True)):
        assert env.seeds == [episode_seed(7, stream, number, k) for k in range(episodes)]
    assert played.envs.episode == [3, 2]


# Episode ends


@pytest.mark.parametrize(
    ("ends", "flags"),
    [("terminated", (True, False)), ("truncated", (False, True)), ("both", (True, True))],
)
def test_episode_end(ends: str, flags: tuple[bool, bool]) -> None:
    played = Played(bad_envs.Good(length=3, ends=ends), seed=1).start()
    first, total = played.obs.copy(), 0.0
    for t in range(3):
        assert not played.ended
        assert played.envs.lengths == [t]
        played.step([1])
        total += float(played.rewards[0])
    ((env, terminated, truncated, final, episode_return, length),) = played.ended
    assert (env, terminated, truncated, length) == (0, *flags, 3)
    assert type(terminated) is type(truncated) is bool
    assert episode_return == pytest.approx(total)
    assert final[0] == 1.0, "the callback got the final observation"
    assert final[1] == 1.0, "with the last action in it"
    assert played.obs[0, 0] == 0.0, "the next episode's first observation was written"
    assert not np.array_equal(played.obs, first), "and the next episode has another seed"
    assert (played.envs.lengths, played.envs.returns) == ([0], [0.0])
    fresh = Played(bad_envs.Good(), seed=1)
    fresh.envs.reset(0, fresh.obs, episode=1)
    assert np.array_equal(fresh.obs, played.obs)


def test_environments_end_independently() -> None:
    played = Played(bad_envs.Good(length=2), bad_envs.Good(length=5)).start()
    for _ in range(5):
        played.step([0, 0])
    assert [(env, length) for env, *_, length in played.ended] == [(0, 2), (0, 2), (1, 5)]


def test_only_active_environments_step() -> None:
    envs = [bad_envs.Good() for _ in range(3)]
    played = Played(*envs).start()
    before = played.obs.copy()
    played.step([1, 1, 1], active=[2])
    assert [env.step_number for env in envs] == [0, 0, 1]
    assert np.array_equal(played.obs[:2], before[:2])
    assert played.envs.lengths == [0, 0, 1]


# Actions


def test_discrete_actions_start_where_the_space_does() -> None:
    envs = [bad_envs.DiscreteStart() for _ in range(3)]
    Played(*envs).start().step(np.arange(3, dtype=np.int32))
    assert [env.actions for env in envs] == [[5], [6], [7]]
    assert type(envs[0].actions[0]) is int


def test_box_actions_keep_shape_and_type() -> None:
    env = bad_envs.Float64Box()
    inside = np.float32([[0.5, -0.125, 0.25, 2.0]])
    Played(env).start().step(inside)
    assert np.array_equal(env.actions[0], inside.reshape(2, 2))


def test_box_actions_of_a_policy_keep_to_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    settings = tiny.python("ppo", log_std_init=2.0)
    agent = PPO("tests.bad_envs:Float64Box", **settings).learn(128)
    # The environment checked every action. Most draws lie outside its bounds. Some bounds are no
    # float32 numbers: rounded to the nearest float32, they would lie outside too.
    action = agent.predict(np.zeros(4, np.float32), deterministic=False)[0]
    assert (action.shape, action.dtype) == ((2, 2), np.float64)


def test_a_batch_of_actions_is_converted() -> None:
    assert DiscreteSpec(3, 5).separate(np.arange(3, dtype=np.int32)) == [5, 6, 7]
    spec = ContinuousSpec((2, 1), (-1.0, -1.0), (1.0, 1.0), "float64")
    actions = spec.separate(np.float32([[0, 1], [2, 3], [4, 5]]))
    assert [a.tolist() for a in actions] == [[[0], [1]], [[2], [3]], [[4], [5]]]


# Spaces


@pytest.mark.parametrize(
    ("name", "config", "obs_spec", "action_spec"),
    [
        ("CartPole-v1", {}, ObservationSpec((4,), "float32"), DiscreteSpec(2)),
        ("Pendulum-v1", {}, ObservationSpec((3,), "float32"), ContinuousSpec((1,), (-2,), (2,))),
        ("flatout/Snake-v0", {}, ObservationSpec((10, 10, 1), "uint8", 3), DiscreteSpec(4)),
        ("tests.bad_envs:Images", {}, ObservationSpec((48, 48, 3), "uint8", 255), DiscreteSpec(2)),
        ("tests.bad_envs:Images", {"grayscale": True, "frame_stack": 4},
         ObservationSpec((48, 48, 4), "uint8", 255, 4, "first"), DiscreteSpec(2)),
        ("tests.bad_envs:Images", {"frame_stack": 2},
         ObservationSpec((48, 48, 6), "uint8", 255, 2, "first"), DiscreteSpec(2)),
        ("tests.bad_envs:Good", {"frame_stack": 3}, ObservationSpec((12,), "float32"),
         DiscreteSpec(2)),
        ("tests.bad_envs:DiscreteStart", {}, ObservationSpec((4,), "float32"), DiscreteSpec(3, 5)),
        ("tests.bad_envs:Float64Box", {}, ObservationSpec((4,), "float32"),
         ContinuousSpec((2, 2), (-1, -0.3, 0, -3), (1, 0.1, 0.5, 3), "float64")),
    ],
)  # fmt: skip
def test_specs(name: str, config: dict[str, Any], obs_spec: Any, action_spec: Any) -> None:
    env = made(name, **config)
    assert specs(env, name) == (obs_spec, action_spec)
    obs, _ = env.reset(seed=0)
    assert np.shape(obs) == obs_spec.shape
    env.close()


# Sources


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tests.bad_envs:Good", None),
        ("tests.bad_envs:bad-envs/Good-v0", None),
        ("Good", bad_envs.Good),
        ("Good", lambda **kwargs: bad_envs.Good(**kwargs)),
    ],
)
def test_arguments_reach_the_environment(name: str, source: Any) -> None:
    kwargs = {"length": 7, "ends": "truncated", "note": [1, {"deep": True}]}
    env = factory(EnvConfig(env=name, env_kwargs=kwargs), source)()
    assert isinstance(env.unwrapped, bad_envs.Good)
    assert bad_envs.Good.made_with == kwargs


@pytest.mark.parametrize(
    ("name", "limit"),
    [("CartPole-v1", 500), ("tests.bad_envs:bad-envs/Good-v0", 50), ("tests.bad_envs:Good", None)],
)
def test_time_limits(name: str, limit: int | None) -> None:
    assert episode_limit(made(name)) == limit


def test_a_factory_makes_as_many_as_asked() -> None:
    make = factory(EnvConfig(env="Good"), bad_envs.Good)
    assert make().unwrapped is not make().unwrapped


def test_an_environment_object_is_used_once_and_stays_open() -> None:
    env = bad_envs.Good()
    make = factory(EnvConfig(env="Good"), env)
    borrowed = make()
    assert borrowed.unwrapped is env
    borrowed.close()
    assert env.closed == 0
    with pytest.raises(UsageError, match="one environment object cannot serve several"):
        make()


@pytest.mark.parametrize("source", [3, object(), [bad_envs.Good]])
def test_other_sources_are_refused(source: Any) -> None:
    with pytest.raises(UsageError, match=f"not {type(source).__name__}"):
        factory(EnvConfig(env="x"), source)


def test_learning_leaves_a_users_object_open() -> None:
    env = bad_envs.Good()
    agent = PPO(env, **tiny.python("ppo", envs=1)).learn(64)
    agent.evaluate(1)
    agent.learn(32)
    assert env.step_number >= 96
    assert env.closed == 0


# Replay


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "flatout/Snake-v0"])
@quick
@given(seed=st.integers(0, 2**32 - 1), length=st.integers(0, 300))
def test_replay_is_exact(name: str, seed: int, length: int) -> None:
    first = Played(made(name), made(name), seed=seed).start()
    rng = np.random.default_rng(seed)
    taken: list[list[np.ndarray]] = [[], []]
    for _ in range(length):
        if isinstance(first.action_spec, DiscreteSpec):
            actions = rng.integers(0, first.action_spec.n, 2, np.int32)
        else:
            actions = rng.uniform(-2, 2, (2, first.action_spec.size)).astype(np.float32)
        first.ended.clear()
        first.step(actions)
        for env in range(2):
            taken[env].append(actions[env])
        for env, *_ in first.ended:
            taken[env].clear()
    again = Played(made(name), made(name), seed=seed)
    actions = [np.array(some) for some in taken]
    numbers = first.envs.episode
    assert again.envs.replay_all(numbers, numbers, actions, again.obs) == [True, True]
    assert np.array_equal(again.obs, first.obs)
    for what in ("episode", "returns", "lengths", "seeded_episode", "steps_to_replay"):
        assert getattr(again.envs, what) == getattr(first.envs, what)


@pytest.mark.usefixtures("shared_programs")
@pytest.mark.parametrize("name", ["Good", "CrossEpisodeState"])
def test_resume_names_environments_that_do_not_reproduce(
    name: str, flatout: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    flags = (*tiny.flags("ppo", env=f"tests.bad_envs:{name}"), "--steps", 256, "--quiet")
    assert flatout("train", "ppo", *flags, "--run-dir", tmp_path).code == 0
    result = flatout("train", "--resume", tmp_path, "--quiet", "--json", "--steps", "320")
    assert result.code == 0, result.err
    notes = [note for note in json.loads(result.out)["notes"] if "does not reproduce" in note]
    if name == "Good":
        assert not notes
    else:
        assert [note.split(":")[0] for note in notes] == ["environments 0, 1"]
        assert all("restarted" in note for note in notes)
