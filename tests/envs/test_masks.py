"""Masks of actions as environments give them: read from every source, and refused if malformed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from flatout import UsageError, tree
from flatout.actions import allowed, composite, forbids_all, multi_binary
from flatout.config.schema import EnvConfig
from flatout.envs.base import TRAINING
from flatout.envs.mask_places import MASK, PLAIN
from flatout.envs.masks import MaskError, as_mask
from flatout.envs.spaces import action_spec
from flatout.envs.task import Task, open_task
from flatout.errors import EnvironmentFailure, FlatoutError
from flatout.types import ContinuousSpec, DiscreteSpec
from tests import tiny
from tests.bad_envs import VECTOR
from tests.conftest import Result
from tests.masked_envs import ACTIONS, Contrary, Driving, Observed, Picky, picky_device

ROOT = Path(__file__).parents[2]
KINDS = ("info", "method", "entry", "info and method")


def opened(source: Any, **settings: Any) -> Task:
    task = open_task(EnvConfig(env="masked", **settings), source, None)
    task.close()
    return task


def played(task: Task, steps: int = 60, count: int = 2) -> list[Any]:
    """Take random allowed steps; return all that was observed and each step's rewards."""
    envs, rng = task.open(count, 1, TRAINING), np.random.default_rng(0)
    obs, rewards = tree.zeros(task.obs_spec, count), np.zeros(count)
    found: list[Any] = []
    try:
        envs.reset_all(obs)
        for _ in range(steps):
            actions = task.first_allowed(task.action_spec.random(rng, count), obs)
            envs.step(actions, obs, rewards, lambda *end: None)
            found.append((tree.map(np.array, obs), rewards.copy()))
    finally:
        envs.close()
    return found


@pytest.mark.parametrize("counts", [(ACTIONS,), (3, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_masks_are_read_wherever_they_are(kind: str, counts: tuple[int, ...]) -> None:
    """`Picky` raises at a forbidden action; the first source is the reference."""
    task = opened(lambda: Picky(kind, counts))
    assert isinstance(task.obs_spec, dict)
    assert [*task.obs_spec] == [MASK, PLAIN]
    assert task.obs_spec[MASK].mask
    assert task.obs_spec[MASK].shape == (sum(counts),)
    seen, expected = played(task), played(opened(lambda: Picky(counts=counts)))
    for (obs, rewards), (other, same) in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(rewards, same)
        for path in obs:
            np.testing.assert_array_equal(obs[path], other[path])


def test_the_run_gets_an_environment_that_was_never_reset() -> None:
    """A reset shows whether infos hold masks; it is another environment's."""
    made: list[Picky] = []

    def make() -> Picky:
        made.append(Picky())
        return made[-1]

    task = open_task(EnvConfig(env="masked"), make, None)
    assert [env.episodes for env in made] == [1, 0]
    task.close()
    made.clear()
    open_task(EnvConfig(env="masked"), make, in_info=True).close()  # as in a worker
    assert [env.episodes for env in made] == [0]


def test_masks_stay_outside_of_frame_stacks() -> None:
    task = opened(lambda: Picky("entry"), frame_stack=3)
    assert isinstance(task.obs_spec, dict)
    assert {path: spec.shape for path, spec in task.obs_spec.items()} == {MASK: (5,), PLAIN: (12,)}
    assert len(played(task)) == 60


FAULTS = {
    "short": r"a mask of shape \[4\], but the Discrete actions need 5 entries, one for each value",
    "half": "of type float.*; its entries have to be 0 or 1",
    "seven": "its entries have to be 0 or 1",
    "text": "a mask of shape",
    "none": "a mask that allows no action",
    "missing": "no mask",
}


@pytest.mark.parametrize(
    ("broken", "kind"),
    [each for each in product(FAULTS, KINDS) if each != ("missing", "entry")],
)  # without the entry, the space and the observation differ
def test_a_malformed_mask_is_refused_with_its_step(broken: str, kind: str) -> None:
    task = opened(lambda: Picky(kind, broken=broken))
    with pytest.raises(EnvironmentFailure, match=FAULTS[broken]) as refused:
        played(task)
    words = str(refused.value)
    assert words.startswith("environment 0 (masked) gave ")
    assert "in step 3 of episode 0: correct it, or pass --ignore-action-masks" in words


@pytest.mark.parametrize("kind", ["info", "method", "entry"])
def test_a_reset_without_an_allowed_action_is_refused(kind: str) -> None:
    with pytest.raises(EnvironmentFailure, match="allows no action, in the reset of episode 0"):
        played(opened(lambda: Picky(kind, broken="none", at=0)))


def test_a_mask_that_no_reset_showed_is_refused() -> None:
    with pytest.raises(EnvironmentFailure, match="none after its first reset, in step 3"):
        played(opened(lambda: Picky("info", broken="late")))


def test_two_masks_that_differ_are_refused() -> None:
    with pytest.raises(EnvironmentFailure, match=r"masks that differ: .* at entry 2, in step 3"):
        played(opened(Contrary))


def test_a_finished_game_needs_no_mask() -> None:
    """In PettingZoo's games nothing is allowed after the last move."""

    class Finished(Picky):
        def step(self, action: Any) -> Any:
            obs, reward, _, _, info = super().step(action)
            if over := self.time >= 5:
                obs["action_mask"][:] = 0
            return obs, reward, over, False, info

    assert len(played(opened(lambda: Finished("entry")))) == 60


def test_boxes_of_actions_have_no_masks() -> None:
    with pytest.raises(UsageError, match="these are Box"):
        opened(lambda: Driving(kind="method"))


BOX = ContinuousSpec((2,), (-1.0, -1.0), (1.0, 1.0))
SPECS = {
    "Discrete": DiscreteSpec(3),
    "MultiDiscrete": action_spec(spaces.MultiDiscrete([3, 2]), ""),
    "MultiBinary": multi_binary((2, 2)),
    "Dict": composite(("a", "b"), [BOX, composite(None, [DiscreteSpec(3), DiscreteSpec(2)])]),
}


@pytest.mark.parametrize("kind", SPECS)
def test_forbidden_choices_become_allowed_ones(kind: str) -> None:
    spec, rng = SPECS[kind], np.random.default_rng(0)
    size = {"Discrete": 3, "MultiDiscrete": 5, "MultiBinary": 8, "Dict": 5}[kind]
    masks = rng.random((200, size)) < 0.5
    masks = masks[~forbids_all(np, spec, masks)]
    assert 20 < len(masks) < 200
    drawn = spec.random(rng, len(masks))
    chosen = allowed(np, spec, masks, drawn)
    assert chosen.shape == drawn.shape
    counts = [3] if kind == "Discrete" else [2] * 4 if kind == "MultiBinary" else [3, 2]
    picks = chosen.reshape(len(masks), -1)[:, -len(counts) :].astype(int)
    starts = np.cumsum([0, *counts[:-1]])
    assert np.take_along_axis(masks, starts + picks, 1).all()
    np.testing.assert_array_equal(allowed(np, spec, np.ones_like(masks), drawn), drawn)


def test_masks_of_components_may_be_a_tuple() -> None:
    spec = SPECS["MultiDiscrete"]
    parts = np.array([1, 0, 1], np.int8), np.array([True, False])
    np.testing.assert_array_equal(as_mask(parts, spec), [1, 0, 1, 1, 0])
    with pytest.raises(MaskError, match="which is no array"):
        as_mask((np.zeros(3), 2), spec)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("MultiDiscrete", ([1, 0], [1, 0, 1]), r"parts of 2, 3 entries, but .* need 3, 2"),
        ("MultiDiscrete", ([1, 0, 1], [1], [0]), "parts of 3, 1, 1 entries"),
        ("MultiBinary", np.eye(2, 4), "is not one row for each component"),
    ],
)
def test_masks_of_components_are_in_their_order(kind: str, value: Any, words: str) -> None:
    """They have as many entries in all, so that their order alone shows that they are wrong."""
    with pytest.raises(MaskError, match=words):
        as_mask(value, SPECS[kind])


def test_rows_of_components_are_a_mask() -> None:
    rows = np.eye(4, 2, dtype=np.int8)
    np.testing.assert_array_equal(as_mask(rows, SPECS["MultiBinary"]), rows.ravel())


class Raises(Picky):
    """An environment whose masks cannot be looked up."""

    @property
    def action_masks(self) -> Any:
        raise self.error

    @action_masks.setter
    def action_masks(self, given: Any) -> None:
        pass

    error: Exception = RuntimeError("not yet")


class Forgets(Raises):
    """An environment whose property raises what a missing attribute raises."""

    error = AttributeError("no attribute '_allowed'")


class Holds(Picky):
    """An environment with its mask in an attribute, which is no method."""

    action_masks = np.ones(ACTIONS, np.int8)


class Nests(Picky):
    """An environment whose mask is not among the outermost entries, or has no other next to it."""

    def __init__(self, place: str) -> None:
        super().__init__("entry")
        self.place, inner = place, self.observation_space
        assert isinstance(inner, spaces.Dict)
        space: dict[str, spaces.Space[Any]] = {
            "Dict": spaces.Dict({"player": inner}), "Tuple": spaces.Tuple([VECTOR, inner]),
            "alone": spaces.Dict({"action_mask": inner["action_mask"]}), "info": VECTOR,
        }  # fmt: skip
        self.observation_space = space[place]

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        obs, _ = super()._seen()
        seen, mask = obs["observation"], obs["action_mask"]
        nested = {
            "Dict": {"player": obs}, "Tuple": (seen, obs), "alone": {"action_mask": mask},
            "info": seen,
        }  # fmt: skip
        return nested[self.place], {"player": obs} if self.place == "info" else {}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Raises, r"Raises\.action_masks raised RuntimeError: not yet; correct it, or pass"),
        (Forgets, "Forgets.action_masks raised AttributeError: no attribute '_allowed'"),
        (Holds, r"Holds\.action_masks is array.*, and no method"),
        (lambda: Nests("Dict"), "at 'player/action_mask', where it would not be obeyed"),
        (lambda: Nests("Tuple"), "at '1/action_mask', where"),
        (lambda: Nests("alone"), "at 'action_mask', without another entry next to it, where"),
        (lambda: Nests("info"), r"gave info\['player'\]\['action_mask'\], and masks are read from"),
    ],
)  # fmt: skip
def test_a_mask_that_would_not_be_obeyed_is_refused(make: Any, words: str) -> None:
    with pytest.raises(FlatoutError, match=words):
        played(opened(make))
    with pytest.raises(EnvironmentFailure, match=r"action \d is forbidden"):
        played(opened(make, ignore_action_masks=True))


def test_two_masks_in_an_observation_have_to_agree() -> None:
    class Twice(Picky):
        def __init__(self) -> None:
            super().__init__("entry")
            assert isinstance(self.observation_space, spaces.Dict)
            inner = dict(self.observation_space.spaces)
            self.observation_space = spaces.Dict(inner | {"action_masks": inner["action_mask"]})

        def _seen(self) -> tuple[Any, dict[str, Any]]:
            obs, info = super()._seen()
            return obs | {"action_masks": 1 - obs["action_mask"]}, info

    with pytest.raises(EnvironmentFailure, match=r"differ: .*'action_mask'\] and .*'action_masks'"):
        played(opened(Twice))


# --- Device environments ----------------------------------------------------------------------


def test_a_device_environment_says_which_entry_is_its_mask() -> None:
    task = opened(picky_device)
    assert isinstance(task.obs_spec, dict)
    assert task.obs_spec[MASK].mask
    assert task.device is not None
    assert len(played(task)) == 60
    without = opened(picky_device, ignore_action_masks=True)
    assert not isinstance(without.obs_spec, dict)
    assert without.device is not None


def test_a_device_environment_with_a_mask_of_another_size_is_refused() -> None:
    whole = picky_device()
    assert isinstance(whole.obs_spec, dict)
    other = replace(whole, action_spec=DiscreteSpec(ACTIONS - 1))
    with pytest.raises(UsageError, match=r"'action_mask' of shape \[5\].* with 4 numbers"):
        opened(lambda: other)
    assert opened(lambda: other, ignore_action_masks=True).device is not None


def test_a_device_environment_stepped_on_the_host_names_its_empty_mask() -> None:
    words = r"environment 0 \(masked\) gave a mask that allows no action, in step 4 of episode 0"
    with pytest.raises(EnvironmentFailure, match=words):
        played(opened(lambda: picky_device(stuck=4)))


def test_a_stacked_device_environment_is_masked_on_the_host() -> None:
    task = opened(picky_device, frame_stack=2)
    assert task.device is None
    assert isinstance(task.obs_spec, dict)
    assert task.obs_spec[PLAIN].shape == (8,)
    assert len(played(task)) == 60


# --- Ignoring them ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_masks_are_ignored_if_asked(kind: str) -> None:
    task = opened(lambda: Picky(kind), ignore_action_masks=True)
    assert not isinstance(task.obs_spec, dict)
    with pytest.raises(EnvironmentFailure, match=r"action \d is forbidden"):
        played(task)


def test_a_dict_of_several_observations_keeps_them_without_its_mask() -> None:
    task = opened(Observed, ignore_action_masks=True)
    assert isinstance(task.obs_spec, dict)
    assert [*task.obs_spec] == ["goal", "observation"]


def test_the_flag_is_part_of_a_run(
    flatout: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    flags = tiny.flags("ppo", env="tests.masked_envs:Observed")
    run = tmp_path / "run"
    train = ("train", "ppo", *flags, "--steps", 128, "--quiet", "--run-dir", run)
    assert flatout(*train, "--ignore-action-masks").code == 0
    changed = flatout("train", "--resume", run, "--no-ignore-action-masks", "--steps", 192)
    assert changed.code == 2
    assert "ignore_action_masks" in changed.message
    assert flatout("train", "--resume", run, "--steps", 192, "--quiet").code == 0
