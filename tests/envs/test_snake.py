"""Snake agrees with an independent slow reference and follows each of its rules."""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flatout.envs.snake import Snake

HEAD, FRUIT, BODY = 1, 2, 3
MOVES = [(-1, 0), (1, 0), (0, 1), (0, -1)]
OPPOSITE = [1, 0, 3, 2]

NOTHING = {"score": 0, "is_success": False}
Result = tuple[Any, ...]  # the values that `reset` or `step` returned
seeds = st.integers(0, 2**32 - 1)
# Without a deadline, because time depends on the machine.
property_test = settings(deadline=None, max_examples=200)


class ReferenceSnake:
    """An implementation of the rules that is as plain as possible: a list of cells, head first."""

    def __init__(self, size: int, patience: int) -> None:
        self.size, self.patience = size, patience
        self.rng = np.random.default_rng()
        self.cells: list[tuple[int, int]] = []
        self.fruit: tuple[int, int] | None = None

    def _new_fruit(self) -> None:
        every = [(row, column) for row in range(self.size) for column in range(self.size)]
        free = [cell for cell in every if cell not in self.cells]
        self.fruit = free[self.rng.integers(len(free))] if free else None

    def reset(self, seed: int | None = None) -> np.ndarray:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        place = int(self.rng.integers(self.size**2))
        self.cells = [(place // self.size, place % self.size)]
        self.hungry = 0
        self._new_fruit()
        return self.board()

    def ahead(self, action: int) -> tuple[int, int]:
        return (self.cells[0][0] + MOVES[action][0], self.cells[0][1] + MOVES[action][1])

    def is_fatal(self, action: int) -> bool:
        row, column = self.ahead(action)
        inside = 0 <= row < self.size and 0 <= column < self.size
        return not inside or (row, column) in self.cells[1:]

    def step(self, action: int) -> Result:
        reward, terminated, ahead = 0.0, False, self.ahead(action)
        if self.is_fatal(action):
            terminated = True
        elif ahead == self.fruit:
            self.cells = [ahead, *self.cells]
            self._new_fruit()
            reward, terminated, self.hungry = 1.0, self.fruit is None, 0
        else:
            self.cells = [ahead, *self.cells[:-1]]
            self.hungry += 1
        truncated = not terminated and self.hungry == self.patience
        won = self.fruit is None
        info = {"score": len(self.cells) - 1, "is_success": won}
        return self.board(), reward, terminated, truncated, info

    def board(self) -> np.ndarray:
        board = np.zeros((self.size, self.size, 1), np.uint8)
        for cell in self.cells:
            board[cell] = BODY
        board[self.cells[0]] = HEAD
        if self.fruit is not None:
            board[self.fruit] = FRUIT
        return board

    def skilful_action(self) -> int:
        """Return the move that comes closest to the fruit among those that are not fatal."""

        def badness(action: int) -> tuple[bool, int]:
            row, column = self.ahead(action)
            assert self.fruit is not None
            return self.is_fatal(action), abs(row - self.fruit[0]) + abs(column - self.fruit[1])

        return min(range(4), key=badness)


def assert_same(actual: Result, expected: Result) -> None:
    """Assert that two results of `reset` or `step` are equal, in values and in types."""
    assert actual[0].dtype == np.uint8
    np.testing.assert_array_equal(actual[0], expected[0], strict=True)
    assert actual[1:] == expected[1:]
    assert [type(item) for item in actual[1:]] == [type(item) for item in expected[1:]]


def start(size: int, seed: int, **arguments: Any) -> tuple[Snake, ReferenceSnake]:
    """Reset both games with the same seed and return them."""
    env = Snake(size=size, **arguments)
    reference = ReferenceSnake(size, arguments.get("patience", 100))
    assert_same(env.reset(seed=seed), (reference.reset(seed), NOTHING))
    return env, reference


def episode(
    env: Snake, reference: ReferenceSnake, skill: float = 1.0, seed: int = 0
) -> Iterator[tuple[int, Result]]:
    """Play both games to the end of the episode; yield (action, result) for each step.

    Actions are skilful with probability `skill`, else uniform. With uniform actions the snake
    hardly ever grows.
    """
    choices = random.Random(seed)
    done = False
    while not done:
        action = choices.randrange(4)
        if choices.random() < skill:
            action = reference.skilful_action()
        result = env.step(action)
        assert_same(result, reference.step(action))
        yield action, result
        done = result[2] or result[3]


@property_test
@given(
    size=st.integers(2, 7),
    patience=st.integers(1, 40),
    seed=seeds,
    skill=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    steps=st.lists(st.integers(0, 200), min_size=1, max_size=4),
)
def test_random_episodes_follow_the_rules(
    size: int, patience: int, seed: int, skill: float, steps: list[int]
) -> None:
    env, reference = start(size, seed, patience=patience)
    for longest in steps:  # some episodes are left unfinished, which a reset must not remember
        hungry = 0
        for _, result in itertools.islice(episode(env, reference, skill, seed), longest):
            # `episode` has compared the step with the reference. The board is always valid:
            board, reward, terminated, truncated, info = result
            won = info["score"] == size * size - 1
            counts = np.bincount(board.ravel(), minlength=4).tolist()
            assert counts == [size * size - info["score"] - 2 + won, 1, 1 - won, info["score"]]
            # Patience counts from the reset or the last fruit:
            hungry = 0 if reward else hungry + 1
            assert truncated == (hungry == patience and not terminated)
        # Without a seed, the new episode continues the random numbers.
        assert_same(env.reset(), (reference.reset(), NOTHING))


def test_such_episodes_reach_every_ending() -> None:
    """The comparison above is worth something only if its games are won, lost and truncated."""
    endings, scores = set(), []
    for size, skill, seed in itertools.product((2, 6), (0.5, 1.0), range(40)):
        *_, (_, last) = episode(*start(size, seed, patience=10), skill, seed)
        endings.add(last[1:4])
        scores.append(last[4]["score"])
    assert endings == {(1.0, True, False), (0.0, True, False), (0.0, False, True)}
    assert max(scores) >= 10


@property_test
@given(size=st.integers(2, 8), seed=seeds, actions=st.lists(st.integers(0, 3), max_size=60))
def test_same_seed_and_actions_give_the_same_episode(
    size: int, seed: int, actions: list[int]
) -> None:
    def record(env: Snake) -> list[Result]:
        results: list[Result] = [env.reset(seed=seed)]
        for action in actions:
            results.append(env.step(action))
            if results[-1][2] or results[-1][3]:
                results.append(env.reset())
        return results

    env = Snake(size=size, patience=20)
    first, again, other = record(env), record(env), record(Snake(size=size, patience=20))
    for one, two, three in zip(first, again, other, strict=True):
        assert_same(two, one)
        assert_same(three, one)


def test_a_deep_copy_plays_independently() -> None:
    env, reference = start(5, seed=4)
    twin = copy.deepcopy(env)
    for action, result in episode(env, reference):
        assert_same(twin.step(action), result)
    assert len(reference.cells) > 3


def test_all_starts_are_equally_likely() -> None:
    env = Snake(size=3)
    env.reset(seed=0)
    boards = Counter(env.reset()[0].tobytes() for _ in range(7200))
    assert len(boards) == 9 * 8
    # The expected count of each is 100, with a standard deviation of 10.
    assert 60 < min(boards.values()) <= max(boards.values()) < 140


@pytest.mark.parametrize("size", [2, 4, 6])
@pytest.mark.parametrize("seed", range(5))
def test_a_hamiltonian_cycle_wins_with_a_full_board(size: int, seed: int) -> None:
    # The cycle runs up the first column, then down through the others, row by row to and fro.
    cycle = [(row, 0) for row in reversed(range(size))]
    for row in range(size):
        cycle += [(row, column) for column in range(1, size)][:: 1 if row % 2 == 0 else -1]
    following = dict(zip(cycle, cycle[1:] + cycle[:1], strict=True))

    env = Snake(size=size, patience=size * size, render_mode="rgb_array")
    board, _ = env.reset(seed=seed)
    total, terminated = 0.0, False
    while not terminated:
        row, column, _ = np.argwhere(board == HEAD)[0].tolist()
        to_row, to_column = following[row, column]
        action = MOVES.index((to_row - row, to_column - column))
        board, reward, terminated, truncated, info = env.step(action)
        total += reward
        assert (truncated, info) == (False, {"score": total, "is_success": terminated})
    assert total == size * size - 1
    assert sorted(board.ravel()) == [HEAD] + [BODY] * (size * size - 1)
    assert isinstance(env.render(), np.ndarray)  # without a fruit to draw


@property_test
@given(size=st.integers(3, 8), seed=seeds)
def test_turning_back_kills_a_snake_of_two_cells_but_not_of_one(size: int, seed: int) -> None:
    env, reference = start(size, seed)
    action, result = next(episode(env, reference))
    assume(not result[1])
    assert not env.step(OPPOSITE[action])[2]

    env, reference = start(size, seed)
    action, result = next(step for step in episode(env, reference) if step[1][1])
    after, *rest = env.step(OPPOSITE[action])
    assert rest == [0.0, True, False, {"score": 1, "is_success": False}]
    np.testing.assert_array_equal(after, result[0])


def test_moving_into_the_cell_that_the_tail_is_leaving_kills() -> None:
    bites = 0
    for seed in range(60):
        env, reference = start(5, seed)
        for _, (board, _, terminated, _, info) in episode(env, reference, 0.9, seed):
            onto_tail = [a for a in range(4) if reference.ahead(a) == reference.cells[-1]]
            if onto_tail and info["score"] >= 2 and not terminated:
                after, *rest = env.step(onto_tail[0])
                assert rest == [0.0, True, False, info]
                np.testing.assert_array_equal(after, board)
                bites += 1
                break
    assert bites >= 10


def test_gymnasium_checker_finds_nothing() -> None:
    # With a spec, the checker also makes and renders every declared render mode.
    spec = EnvSpec(id="SnakeUnderTest-v0", entry_point="flatout.envs.snake:Snake")
    check_env(gymnasium.make(spec).unwrapped)


def test_spaces() -> None:
    assert Snake().action_space == gymnasium.spaces.Discrete(4)
    assert Snake().observation_space == gymnasium.spaces.Box(0, 3, (10, 10, 1), np.uint8)


@pytest.mark.parametrize("size", [2, 5, 10])
def test_ansi_shows_the_board_and_the_score(size: int) -> None:
    env, reference = start(size, seed=1, render_mode="ansi")
    for _, result in episode(env, reference):
        top, *rows, bottom, score = str(env.render()).splitlines()
        bar = "─" * (2 * size + 1)
        assert (top, bottom) == (f"┌{bar}┐", f"└{bar}┘")
        symbols = np.array(list("·@*o"))[result[0][:, :, 0]]
        assert rows == [f"│ {' '.join(row)} │" for row in symbols]
        assert score == f"score {result[-1]['score']}"
    assert len(reference.cells) > 1


@pytest.mark.parametrize("size", [2, 5, 10])
def test_picture_shows_every_kind_of_cell_in_its_own_colour(size: int) -> None:
    env, reference = start(size, seed=1, render_mode="rgb_array")
    for _, result in episode(env, reference):
        board, picture = result[0][:, :, 0], env.render()
        assert isinstance(picture, np.ndarray)
        assert (picture.shape, picture.dtype) == ((32 * size + 32, 32 * size + 32, 3), np.uint8)
        for wall in (picture[:16], picture[-16:], picture[:, :16], picture[:, -16:]):
            assert (wall == picture[0, 0]).all()
        centres = picture[32::32, 32::32].astype(int)
        for one, other in itertools.combinations(range(4), 2):
            here, there = centres[board == one], centres[board == other]
            assert (np.abs(here[:, None] - there[None]).sum(-1) > 60).all()
    assert len(reference.cells) > 1


def test_render_without_a_mode_warns_and_before_reset_fails() -> None:
    with pytest.warns(UserWarning, match="render_mode"):
        assert start(size=4, seed=0)[0].render() is None
    with pytest.raises(ResetNeeded, match="reset"):
        Snake(render_mode="ansi").render()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 1}, "size must be an integer of at least 2, not 1"),
        ({"size": 4.5}, "size must be an integer of at least 2, not 4.5"),
        ({"patience": 0}, "patience must be an integer of at least 1, not 0"),
        ({"render_mode": "human"}, "render_mode must be None, 'ansi' or 'rgb_array', not 'human'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Snake(**arguments)


@pytest.mark.parametrize("action", [-1, 4, 1.0, "up", None, np.array([1]), np.int64(7)])
def test_bad_action_is_refused_and_changes_nothing(action: Any) -> None:
    env, reference = start(size=4, seed=0)
    with pytest.raises(ValueError, match="action must be the integer 0, 1, 2 or 3"):
        env.step(action)
    assert_same(env.step(0), reference.step(0))


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8, np.array])
def test_any_integer_type_is_an_action(kind: Any) -> None:
    for action in range(4):
        env, reference = start(size=4, seed=0)
        assert_same(env.step(kind(action)), reference.step(action))


def test_step_needs_a_running_episode() -> None:
    env = Snake(size=3, patience=1)
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(0)
    endings = set()
    for seed in range(20):
        env.reset(seed=seed)
        _, reward, terminated, truncated, _ = env.step(0)
        if not reward:
            endings.add((terminated, truncated))
            with pytest.raises(ResetNeeded, match="reset"):
                env.step(0)
    assert endings == {(True, False), (False, True)}
