"""Twins agree with their host environments: single steps, whole games of Snake, start states."""

from __future__ import annotations

import functools
import math
from collections import Counter
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flatout.config.schema import EnvConfig
from flatout.envs.device.base import DeviceEnv, reset_key, step_key
from flatout.envs.device.make import device_env
from flatout.envs.device.snake import below
from flatout.envs.device.twins import TWINS
from flatout.envs.make import episode_limit, factory, specs
from flatout.envs.snake import BODY, EMPTY, Snake

NEAR = 1e-5
reset_keys = jax.jit(jax.vmap(reset_key))
drawn_below = jax.jit(below)
quick = settings(deadline=None, max_examples=200)


def host(name: str, **kwargs: Any) -> gym.Env[Any, Any]:
    return factory(EnvConfig(env=name, env_kwargs=kwargs))()


@functools.cache
def device(name: str, *kwargs: tuple[str, Any]) -> tuple[DeviceEnv, Any, Any]:
    env = device_env(name, dict(kwargs))
    return env, jax.jit(env.reset), jax.jit(env.step)


@functools.cache
def a_key() -> Any:
    """Return a key for environments whose steps are not random."""
    return jax.jit(reset_key)(np.uint32(0))


@functools.cache
def original(name: str, *kwargs: tuple[str, Any]) -> Any:
    env = host(name, **dict(kwargs))
    env.reset(seed=0)
    return env.unwrapped


def max_error(one: Any, other: Any) -> float:
    """Return the largest difference, relative to `other` where that is above 1."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return float((np.abs(one - other) / np.maximum(1.0, np.abs(other))).max())


def numbers(*bounds: float) -> Any:
    exact = [float(np.float32(bound)) for bound in bounds]
    return st.tuples(*(st.floats(-bound, bound, width=32) for bound in exact))


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_has_the_spaces_and_the_limit_of_its_original(name: str) -> None:
    env, twin = host(name), device(name)[0]
    assert specs(env, name) == (twin.obs_spec, twin.action_spec)
    assert episode_limit(env) == twin.limit
    assert twin.name == name


def stepped(name: str, state: Any, action: Any, *kwargs: tuple[str, Any]) -> tuple[Any, Any]:
    """Take one step on the device and on the host; return both results without the state."""
    _, _, step = device(name, *kwargs)
    env = original(name, *kwargs)
    one = np.float32(state)
    discrete = not isinstance(action, list)
    given = np.int32(action) if discrete else np.float32(action)
    _, *ours = jax.device_get(step(one, given, a_key()))
    env.state = np.float64(one)
    env.steps_beyond_terminated = env.last_u = None
    obs, reward, terminated, truncated, _ = env.step(action if discrete else np.float32(action))
    assert not truncated
    assert not bool(ours[3])
    return ours, (obs, reward, terminated)


def agree(ours: Any, theirs: Any, margin: float) -> None:
    obs, reward, terminated, _ = ours
    assert max_error(obs, theirs[0]) <= NEAR
    if margin > NEAR:
        assert bool(terminated) == theirs[2]
        assert max_error(reward, theirs[1]) <= NEAR


@quick
@given(numbers(2.5, 5.0, 0.22, 5.0), st.integers(0, 1), st.booleans())
def test_cartpole(state: tuple[float, ...], action: int, sutton: bool) -> None:
    ours, theirs = stepped("CartPole-v1", state, action, ("sutton_barto_reward", sutton))
    obs = theirs[0]
    margin = min(abs(abs(obs[0]) - 2.4), abs(abs(obs[2]) - 12 * 2 * math.pi / 360))
    agree(ours, theirs, margin)


@quick
@given(numbers(math.pi, math.pi, 2 * math.pi, 4.5 * math.pi), st.integers(0, 2))
def test_acrobot(state: tuple[float, ...], action: int) -> None:
    ours, theirs = stepped("Acrobot-v1", state, action)
    s = original("Acrobot-v1").state
    agree(ours, theirs, abs(-math.cos(s[0]) - math.cos(s[1] + s[0]) - 1.0))


def test_acrobot_where_play_leads() -> None:
    rng, env = np.random.default_rng(0), original("Acrobot-v1")
    fastest = 0.0
    for episode in range(4):
        env.reset(seed=episode)
        for _ in range(500):
            pumps = 1 + int(np.sign(env.state[3 - episode % 2])) * (-1) ** episode
            action = pumps if rng.random() < 0.9 else int(rng.integers(3))
            fastest = max(fastest, abs(env.state[3]))
            ours, theirs = stepped("Acrobot-v1", tuple(env.state), action)
            s = env.state
            agree(ours, theirs, abs(-math.cos(s[0]) - math.cos(s[1] + s[0]) - 1.0))
            if theirs[2]:
                break
    assert fastest > 4.0


@quick
@given(numbers(0.9, 0.07), st.integers(0, 2), st.sampled_from([0.0, 0.03]))
def test_mountain_car(state: tuple[float, ...], action: int, goal: float) -> None:
    place, speed = state[0] - 0.3, state[1]
    ours, theirs = stepped("MountainCar-v0", (place, speed), action, ("goal_velocity", goal))
    agree_on_the_slope(ours, theirs, 0.5, goal, place, (action - 1) * 0.001, speed)


@quick
@given(numbers(0.9, 0.07), st.floats(-1.5, 1.5, width=32), st.sampled_from([0.0, 0.03]))
def test_mountain_car_continuous(state: tuple[float, ...], action: float, goal: float) -> None:
    name, place, speed = "MountainCarContinuous-v0", state[0] - 0.3, state[1]
    ours, theirs = stepped(name, (place, speed), [action], ("goal_velocity", goal))
    push = min(max(action, -1.0), 1.0) * 0.0015
    agree_on_the_slope(ours, theirs, 0.45, goal, place, push, speed)


def agree_on_the_slope(
    ours: Any, theirs: Any, end: float, goal: float, place: float, push: float, speed: float
) -> None:
    speed = np.clip(speed + push - 0.0025 * math.cos(3 * place), -0.07, 0.07)
    assume(abs(place + speed + 1.2) > NEAR)  # at the wall, rounding decides whether the car stops
    obs = theirs[0]
    agree(ours, theirs, min(abs(obs[0] - end), abs(obs[1] - goal)))


@quick
@given(numbers(math.pi, 8.0), st.floats(-2.5, 2.5, width=32), st.sampled_from([10.0, 9.81]))
def test_pendulum(state: tuple[float, ...], action: float, g: float) -> None:
    agree(*stepped("Pendulum-v1", state, [action], ("g", g)), 1.0)


def test_angles_stay_wrapped() -> None:
    _, _, step = device("Pendulum-v1")
    state = np.float32([3.0, 8.0])
    for _ in range(50):
        state = np.asarray(step(state, np.float32([2.0]), a_key())[0])
        assert abs(float(state[0])) <= math.pi + 1e-6


@pytest.mark.parametrize("name", [name for name in TWINS if "Snake" not in name])
def test_episodes_begin_as_on_the_host(name: str) -> None:
    count = 3000
    env, (twin, _, _) = host(name), device(name)
    theirs = np.stack([env.reset(seed=seed)[0] for seed in range(count)])
    keys = reset_keys(np.arange(count, dtype=np.uint32))
    ours = np.asarray(jax.jit(jax.vmap(twin.reset))(keys)[1])
    for dimension in range(ours.shape[1]):
        one, other = np.sort(ours[:, dimension]), np.sort(theirs[:, dimension])
        places = np.concatenate([one, other])
        shares = [np.searchsorted(x, places, "right") / count for x in (one, other)]
        # Kolmogorov-Smirnov test: two samples of one distribution exceed this once in 10,000.
        assert np.abs(shares[0] - shares[1]).max() < 2.2 * math.sqrt(2 / count)


# --- Snake ------------------------------------------------------------------------------------


class Draws:
    """A random generator that makes the host put the fruit where the device put it."""

    def __init__(self, game: Snake) -> None:
        self.game, self.start, self.fruit = game, -1, -1

    def integers(self, n: int) -> int:
        if self.start >= 0:
            start, self.start = self.start, -1
            assert n == self.game.size**2
            return start
        empty = (self.game._board == EMPTY).nonzero()[0]
        assert len(empty) == n
        rank = int(np.searchsorted(empty, self.fruit))
        assert empty[rank] == self.fruit, "the device put its fruit on an empty cell"
        return rank


@functools.cache
def snake(*kwargs: tuple[str, Any]) -> tuple[Any, Any]:
    """Compile ``seed -> state, obs`` and ``state, action, seed, t -> results of step, info``."""
    env = device_env("flatout/Snake-v0", dict(kwargs))
    info = env.info
    assert info is not None

    def play(state: Any, action: Any, seed: Any, t: Any) -> Any:
        after, *rest = env.step(state, action, step_key(seed, t))
        return after, *rest, info(after)

    return jax.jit(lambda seed: env.reset(reset_key(seed))), jax.jit(play)


class Pair:
    """The same game on the host and on the device."""

    def __init__(self, size: int, patience: int, seed: int) -> None:
        kwargs = ("size", size), ("patience", patience)
        begin, self._play = snake(*kwargs)
        self.host, self.seed, self.t = Snake(size, patience), seed, 0
        self.state, obs = jax.device_get(begin(np.uint32(seed)))
        self.draws = Draws(self.host)
        self.draws.start, self.draws.fruit = int(self.state.head), int(self.state.fruit)
        self.host._np_random = self.draws  # type: ignore[assignment]
        assert np.array_equal(self.host.reset()[0], obs)
        assert obs.dtype == np.uint8

    def step(self, action: int) -> tuple[float, bool, bool]:
        given = self.state, np.int32(action), np.uint32(self.seed), np.int32(self.t)
        self.t += 1
        self.state, obs, *rest, info = jax.device_get(self._play(*given))
        self.draws.fruit = int(self.state.fruit)
        theirs = self.host.step(action)
        assert np.array_equal(obs, theirs[0])
        ours = float(rest[0]), bool(rest[1]), bool(rest[2])
        assert ours == theirs[1:4]
        assert {name: value.item() for name, value in info.items()} == theirs[4]
        return ours

    def safe(self) -> list[int]:
        """Return the actions that do not end the game."""
        size, board = self.host.size, self.host._board
        row, column = divmod(self.host._snake[-1], size)
        moves = enumerate([(-1, 0), (1, 0), (0, 1), (0, -1)])
        ahead = [(action, row + dr, column + dc) for action, (dr, dc) in moves]
        return [
            action for action, r, c in ahead
            if 0 <= r < size and 0 <= c < size and board[r * size + c] != BODY
        ]  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([(2, 9), (3, 30), (6, 60), (10, 7)]),  # few, because each is compiled
    st.integers(0, 2**31 - 1),
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
)
def test_snake_agrees_for_random_actions(
    settings: tuple[int, int], seed: int, actions: list[int]
) -> None:
    pair = Pair(*settings, seed)
    for action in actions:
        _, terminated, truncated = pair.step(action)
        if terminated or truncated:
            break


@pytest.mark.parametrize(("size", "patience", "games"), [(2, 9, 30), (3, 30, 30), (6, 60, 15)])
def test_snake_agrees_over_whole_games(size: int, patience: int, games: int) -> None:
    rng, ends = np.random.default_rng(size), Counter[str]()
    for seed in range(games):
        pair = Pair(size, patience, seed)
        terminated = truncated = False
        while not (terminated or truncated):
            safe = pair.safe()
            reckless = not safe or rng.random() < 0.01
            action = int(rng.integers(4)) if reckless else int(rng.choice(safe))
            reward, terminated, truncated = pair.step(action)
        ends["cut" if truncated else "won" if reward else "died"] += 1
    assert ends["died"] or size == 2
    assert ends["cut"] or size < 6
    assert ends["won"] or size > 2


def test_snake_draws_every_cell_equally() -> None:
    env, _, step = device("flatout/Snake-v0", ("size", 4))
    count = 8000
    keys = reset_keys(np.arange(count, dtype=np.uint32))
    games, _ = jax.device_get(jax.jit(jax.vmap(env.reset))(keys))
    pairs = Counter(zip(games.head.tolist(), games.fruit.tolist(), strict=True))
    assert len(pairs) == 16 * 15, "every start with every other cell for the fruit"
    assert max(pairs.values()) < 2.2 * count / len(pairs)
    # A snake of two cells eats, after which 13 cells are empty.
    game = games._replace(
        until=np.int32([1, 2, *[0] * 14]), time=np.int32(0), head=np.int32(1), fruit=np.int32(2),
        length=np.int32(2), hungry=np.int32(0),
    )  # fmt: skip
    after = jax.device_get(jax.jit(jax.vmap(step, (None, None, 0)))(game, np.int32(2), keys)[0])
    fruits = Counter(after.fruit.tolist())
    assert set(fruits) == set(range(3, 16))
    assert max(fruits.values()) < 1.25 * count / 13
    assert min(fruits.values()) > 0.75 * count / 13


@quick
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**16))
def test_a_draw_below_n_is_exact(bits: int, n: int) -> None:
    assert int(drawn_below(np.uint32(bits), np.int32(n))) == bits * n >> 32
