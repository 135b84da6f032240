"""Nested observations: what does not fit its space is one sentence that names the path."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from flatout import PPO, EnvironmentFailure, UsageError, tree
from flatout.config.schema import EnvConfig
from flatout.envs.check import refuse
from flatout.envs.task import Task, open_task
from flatout.envs.vector import VectorEnvs
from flatout.types import ObservationSpec
from tests import tiny
from tests.nested_envs import Spaces, Walk, walk

BOX = spaces.Box(-1, 1, (2,), np.float32)
DEEP = spaces.Dict({
    "a": BOX,
    "b": spaces.Dict({
        "c": spaces.Discrete(3, start=1),
        "d": spaces.Tuple((spaces.Dict({"e": BOX}), spaces.MultiBinary(2))),
    }),
})  # fmt: skip
PATHS = ["a", "b/c", "b/d/0/e", "b/d/1"]


def task(space: spaces.Space[Any], change: Any = lambda obs, _: obs, stack: int = 1) -> Task:
    """Open an environment called Odd; see `Spaces`."""
    config = EnvConfig(env="Odd", frame_stack=stack)
    return open_task(config, lambda: Spaces(space, change))


def replaced(path: str, value: Any) -> Callable[[Any], Any]:
    """Return a function that replaces the entry at a path of an observation of `DEEP`."""

    def change(obs: Any, keys: tuple[str, ...] = tuple(path.split("/"))) -> Any:
        if not keys:
            return value(obs) if callable(value) else value
        first, *others = keys
        if isinstance(obs, tuple):
            parts = enumerate(obs)
            return tuple(change(p, tuple(others)) if i == int(first) else p for i, p in parts)
        return {**obs, first: change(obs.get(first), tuple(others))}

    return change


def without(path: str, key: str) -> Callable[[Any], Any]:
    return replaced(path, lambda part: {k: v for k, v in part.items() if k != key})


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "missing": (lambda obs: {"b": obs["b"]}, "no entry 'a'"),
    "missing within": (without("b/d/0", "e"), "no entry 'b/d/0/e'"),
    "short tuple": (replaced("b/d", lambda parts: parts[:1]), "no entry 'b/d/1'"),
    "long tuple": (replaced("b/d", lambda parts: (*parts, 0)), "an unexpected entry 'b/d/2'"),
    "extra": (replaced("b/z", 0), "an unexpected entry 'b/z'"),
    "no key": (lambda obs: {**obs, 3: 0}, "an unexpected entry '3'"),
    "shape": (replaced("b/d/0/e", np.zeros(3)), "'b/d/0/e' .*shape \\(3,\\)"),
    "ragged": (replaced("a", [[1], [1, 2]]), "'a' .*type list"),
    "text": (replaced("a", "words"), "'a' .*type str"),
    "nothing": (replaced("b", None), "type NoneType at 'b' instead of a dict or tuple with c, d"),
    "array": (lambda obs: np.zeros(9), "type ndarray instead of a dict or tuple with a, b"),
    "category": (replaced("b/c", 0), "'b/c' .*0, which is none of 1 to 3"),
    "fraction": (replaced("b/c", 1.5), "'b/c' .*1.5, which is none of 1 to 3"),
    "size 1": (replaced("b/c", np.array([1])), "'b/c' .*shape \\(1,\\)"),
}  # fmt: skip


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("when", ["reset", "step"])
@pytest.mark.parametrize("name", WRONG)
def test_an_observation_that_does_not_fit_is_refused_by_its_path(
    name: str, when: str, stack: int
) -> None:
    change, words = WRONG[name]
    bad = task(DEEP, lambda obs, step: obs if when == "step" and not step else change(obs), stack)
    with pytest.raises(EnvironmentFailure, match=rf"Odd.*{words}") as failed:
        refuse(bad, 0, 60)
    assert "\n" not in str(failed.value)
    if stack == 1:
        assert f"from {when}" in str(failed.value)


@pytest.mark.parametrize("stack", [1, 3])
def test_other_containers_and_types_that_hold_the_same_are_taken(stack: int) -> None:
    def change(obs: Any, step: int) -> Any:
        within = [{"e": obs["b"]["d"][0]["e"].astype(np.float64)}, [True, False]]
        return {"b": {"d": within, "c": 2.0}, "a": obs["a"].tolist()}

    with_lists = task(DEEP, change, stack)
    refuse(with_lists, 0, 60)
    assert list(with_lists.obs_spec) == PATHS


def test_copies_with_other_spaces_are_refused_by_the_path() -> None:
    sizes = iter((2, 2, 3))

    def make() -> Spaces:
        return Spaces(spaces.Dict({"a": BOX, "b": spaces.MultiBinary(next(sizes))}))

    with pytest.raises(UsageError, match=r"different observation spaces \(at 'b'\)"):
        open_task(EnvConfig(env="Odd"), make).open(3, 0)


@pytest.mark.parametrize("bad_step", [0, 5])
def test_nan_is_refused_by_its_path(bad_step: int) -> None:
    nan = replaced("b/d/0/e", np.full(2, np.nan, np.float32))
    make = lambda: Spaces(DEEP, lambda obs, step: nan(obs) if step >= bad_step else obs)  # noqa: E731
    agent = PPO(make, **tiny.python("ppo"))
    when = "from reset" if not bad_step else f"at step {bad_step - 1} of"
    with pytest.raises(EnvironmentFailure, match=rf"NaN or infinity in 'b/d/0/e' {when}"):
        agent.learn(64)


@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Dict({}), "a Dict space without entries"),
        (spaces.Dict({"a": spaces.Tuple(())}), "a Tuple space without entries at 'a'"),
        (spaces.Dict({"a": spaces.Box(-1, 1, (3, 0))}), r"shape \(3, 0\) at 'a', which is empty"),
        (spaces.Dict({1: BOX}), "the key 1; keys have to be texts without slashes"),  # type: ignore[dict-item]
        (spaces.Dict({"a": spaces.Dict({"b/c": BOX})}), r"the key 'b/c' at 'a'"),
        (spaces.Dict({"": BOX}), "the key ''"),
        (spaces.Dict({"\ud800": BOX}), r"the key '\\ud800'; .* in valid Unicode"),
        (spaces.Dict({"a": spaces.Sequence(BOX)}), "a Sequence space at 'a'; .* in a wrapper"),
        (spaces.Tuple((spaces.Graph(BOX, None),)), "a Graph space at '0'; .* in a wrapper"),
        (spaces.Dict({"a": spaces.Discrete(2**40)}), "'a' of 1,099,511,627,776 values"),
        (spaces.Discrete(2, start=2**40), "begins at 1099511627776"),
    ],
)  # fmt: skip
def test_spaces_that_cannot_be_learned_from_are_refused(space: Any, words: str, stack: int) -> None:
    with pytest.raises(UsageError, match=rf"Odd observes .*{words}"):
        task(space, stack=stack)


def test_specs_and_observations_of_all_spaces() -> None:
    found = open_task(EnvConfig(env="walk"), walk)
    assert found.obs_spec == {
        "camera": ObservationSpec((6, 6, 1), "uint8", 3),
        "pair/0": ObservationSpec((2,), "int32", categories=(3, 2), starts=(-1, 5)),
        "pair/1": ObservationSpec((3,), "uint8", 1),
        "state/direction": ObservationSpec((), "int32", categories=(4,), starts=(1,)),
        "state/place": ObservationSpec((2,), "float32"),
    }
    assert list(found.obs_spec) == sorted(found.obs_spec)
    obs, env = tree.zeros(found.obs_spec, 1), Walk()
    envs = found.host([env], 0, 0)
    envs.reset_all(obs)
    for _ in range(10):
        envs.step(np.array([1]), obs, np.zeros(1), lambda *end: None)
        given = env._observe()
        np.testing.assert_array_equal(obs["camera"][0], given["camera"])
        np.testing.assert_array_equal(obs["pair/0"][0], given["pair"][0])
        np.testing.assert_array_equal(obs["pair/1"][0], given["pair"][1])
        np.testing.assert_array_equal(obs["state/direction"][0], given["state"]["direction"])
        place = given["state"]["place"].astype(np.float32)
        np.testing.assert_array_equal(obs["state/place"][0], place)


def test_frames_of_each_entry_are_stacked() -> None:
    """Pictures along their channels, other boxes to vectors, categories with an axis of frames."""
    found = open_task(EnvConfig(env="walk", frame_stack=3), walk)
    assert isinstance(found.obs_spec, dict)
    shapes = {path: spec.shape for path, spec in found.obs_spec.items()}
    assert shapes == {
        "camera": (6, 6, 3), "pair/0": (3, 2), "pair/1": (9,), "state/direction": (3,),
        "state/place": (6,),
    }  # fmt: skip
    stacks = {path: spec.stack for path, spec in found.obs_spec.items()}
    assert stacks == {path: 3 if path == "camera" else 1 for path in stacks}
    obs, envs = tree.zeros(found.obs_spec, 1), found.open(1, 0)
    envs.reset_all(obs)
    seen = [tree.map(np.copy, obs)]
    for _ in range(3):
        envs.step(np.array([0]), obs, np.zeros(1), lambda *end: None)
        seen.append(tree.map(np.copy, obs))
    for path, part in {"state/place": 2, "pair/1": 3}.items():
        frames = [one[path][0].reshape(3, part) for one in seen]
        np.testing.assert_array_equal(frames[0], frames[0][[0, 0, 0]])  # padded with the first
        np.testing.assert_array_equal(frames[3][:2], frames[2][1:])
    np.testing.assert_array_equal(seen[3]["camera"][..., :2], seen[2]["camera"][..., 1:])
    np.testing.assert_array_equal(seen[3]["state/direction"][0, 1:], [1, 1])


@pytest.mark.parametrize("stack", [1, 2])
def test_images_that_are_converted_are_noted(stack: int) -> None:
    first = spaces.Box(0, 255, (3, 20, 24), np.uint8)
    floats = spaces.Box(0, 255, (16, 16, 1), np.float32)
    found = task(spaces.Dict({"camera": first, "depth": floats, "vector": BOX}), stack=stack)
    assert found.notes == (
        "Odd observes images with the channels first at 'camera' (3x20x24), which are transposed",
        "Odd observes images of floats at 'depth' (16x16x1), which are divided by 255",
    )
    alone = task(first)
    assert alone.notes == (
        "Odd observes images with the channels first (3x20x24), which are transposed",
    )
    assert task(spaces.Box(0, 255, (20, 24, 3), np.uint8)).notes == ()


def note_end(log: list[Any], env: int, terminated: bool, truncated: bool, final: Any) -> None:
    log.append((env, terminated, truncated, tree.map(np.copy, final)))


@pytest.mark.parametrize("mode", AutoresetMode)
def test_vector_environments_give_the_same_nested_observations(mode: AutoresetMode) -> None:
    found = open_task(EnvConfig(env="walk"), walk)
    given: Any = "walk", found.obs_spec, found.action_spec, 7
    runs: list[list[Any]] = []
    for envs in (
        VectorEnvs(SyncVectorEnv([walk] * 3, autoreset_mode=mode), *given), found.open(3, 7),
    ):  # fmt: skip
        obs, log, rng = tree.zeros(found.obs_spec, 3), list[Any](), np.random.default_rng(0)
        envs.reset_all(obs)
        for _ in range(20):
            actions = rng.integers(0, 4, 3).astype(np.int32)
            envs.step(actions, obs, np.zeros(3), partial(note_end, log))
            log.append(tree.map(np.copy, obs))
        envs.close()
        runs.append(log)
    assert len(runs[0]) > 26  # with the episodes' ends
    assert str(runs[0]) == str(runs[1])
