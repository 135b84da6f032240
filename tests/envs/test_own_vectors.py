"""A user's own `VectorEnv`: the steps that its environments play are those that count, in every
autoreset mode, and what cannot work is refused in one sentence."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorWrapper

from flatout import DQN, PPO, Finding, RecordEvery, check_env, tree
from flatout.config.schema import EnvConfig
from flatout.envs import vector_kind
from flatout.envs.base import EVALUATION
from flatout.envs.prepared_vector import PreparedVector
from flatout.envs.task import Task, open_task
from flatout.envs.vector import RARELY
from flatout.errors import (
    CallbackFailure,
    EnvironmentFailure,
    FlatoutError,
    InvalidReturn,
    UsageError,
)
from flatout.frames import frame_spec
from tests import tiny
from tests.conftest import Result
from tests.masked_envs import Picky
from tests.vector_envs import (
    Countdowns,
    Pictures,
    Walks,
    as_vector,
    cartpole,
    cartpoles,
    short_cartpole,
    two_cartpoles,
)

MODES = pytest.mark.parametrize("mode", list(AutoresetMode))


def task_of(source: Any, envs: int = 3, **settings: Any) -> Task:
    return open_task(EnvConfig(env="countdowns", envs=envs, **settings), source)


def played(source: Any, steps: int = 40, envs: int = 3, seed: int = 5) -> list[Any]:
    """Play with a task's environments; return, in order, each episode's environment, length, return
    and last observation, and the observations and rewards of each step."""
    opened = task_of(source, envs).open(envs, seed, reseeding=RARELY)
    out, rewards, log = np.zeros((envs, 2), np.float32), np.zeros(envs), list[Any]()

    def ended(env: int, terminated: bool, truncated: bool, final: Any) -> None:
        log.append((*opened.finished(env)[:3], terminated, truncated, final.tolist()))

    opened.reset_all(out)
    for _ in range(steps):
        opened.step(np.zeros(envs, np.int32), out, rewards, ended)
        log.append((out.tolist(), rewards.tolist()))
    opened.close()
    return log


@MODES
def test_no_step_of_a_reset_counts(mode: AutoresetMode) -> None:
    """Every episode has as many steps as its first observation says, each with one observation."""
    log = played(partial(Countdowns, mode=mode, masked=True, seeded=True))
    ends = [entry for entry in log if len(entry) == 6]
    steps = np.array([entry[0] for entry in log if len(entry) == 2])
    assert len(ends) > 20
    assert {final[0] for *_, final in ends} == {0.0}
    assert sum(length for _, _, length, *_ in ends) <= 3 * 40
    assert steps[:, :, 0].min() >= 1.0, "the state after an end is never acted in"
    falls = steps[:-1, :, 0] - steps[1:, :, 0]  # 1, except where an episode began
    assert ((falls == 1.0) | (steps[:-1, :, 0] == 1.0)).all()


@MODES
def test_episodes_are_the_same_in_every_mode(mode: AutoresetMode) -> None:
    make = partial(Countdowns, masked=True, seeded=True)
    assert played(partial(make, mode=mode)) == played(partial(make, mode="SameStep"))


def test_one_that_ignores_the_mask_may_reset_itself_in_the_same_step() -> None:
    """Its episodes follow each other as it plays them, and each seed gives others."""
    log = played(Countdowns)
    ends = [entry for entry in log if len(entry) == 6]
    assert len(ends) > 20
    assert {final[0] for *_, final in ends} == {0.0}
    assert log == played(Countdowns) != played(Countdowns, seed=6)


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_one_that_ignores_the_mask_is_reset_where_all_episodes_end_as_vector(mode: str) -> None:
    """Its transitions equal those of a vector that resets by the mask. The run ends if an episode
    ends alone after all."""
    make = partial(Countdowns, together=10**6)
    assert played(partial(make, mode=mode)) == played(make)
    assert played(partial(make, mode=mode, fault="view")) == played(make)
    with pytest.raises(EnvironmentFailure, match=r"ignores reset\(.*while the others play on: let"):
        played(partial(Countdowns, mode=mode, together=12))


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_one_that_ignores_the_mask_is_refused_where_it_would_need_it(mode: str) -> None:
    task = task_of(partial(Countdowns, mode=mode))
    with pytest.raises(UsageError, match=r"ignores reset\(.*as gymnasium.vector.SyncVectorEnv"):
        task.open(3, 0, reseeding=RARELY)
    with pytest.raises(UsageError, match="ignores reset"):  # before anything is compiled
        PPO(gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point"))


class WithoutOptions(VectorWrapper[Any, Any, Any, Any, Any]):
    """A wrapper that does not pass on which environments to reset."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.env.reset(seed=seed)


def test_a_wrapper_that_loses_the_mask_is_not_taken_for_what_it_wraps() -> None:
    """Each end of an episode would silently reset all environments."""
    with pytest.raises(UsageError, match="ignores reset"):
        played(lambda num_envs: WithoutOptions(cartpoles(num_envs)))
    inner: Any = cartpoles(2)
    spec = task_of(inner, 2).action_spec
    assert vector_kind.resets_of(VectorWrapper(inner), "poles", spec).masked
    within = WithoutOptions(cartpoles(2, "SameStep"))
    assert not vector_kind.resets_of(within, "poles", spec).masked


def test_without_a_seed_for_each_environment_a_resumed_run_begins_new_episodes() -> None:
    """It says so at the start; trajectories of whole episodes are refused, and evaluation is the
    same each time."""
    task = task_of(partial(Countdowns, mode="NextStep", masked=True))
    said: list[str] = []
    task.report = said.append
    envs, out = task.open(3, 0, reseeding=RARELY), np.zeros((3, 2), np.float32)
    assert "takes no seed for each of its environments: a resumed run begins new" in said[0]
    envs.reset_all(out)
    for _ in range(9):
        envs.step(np.zeros(3, np.int32), out, np.zeros(3), lambda *_: None)
    assert envs.steps_to_replay == [0, 0, 0]  # no actions are kept
    episodes = list(envs.episode)
    assert envs.replay_all(episodes, episodes, [np.zeros(0)] * 3, out) == [False] * 3
    for env in range(3):
        envs.reset(env, out, episodes[env] + 1)
    assert out[:, 0].min() >= 2.0
    assert list(envs.episode) == [number + 1 for number in episodes]
    with pytest.raises(UsageError, match="trajectories of whole episodes need"):
        task.open(3, 0)
    evaluation, first = task.open(3, 0, EVALUATION), list[Any]()
    for _ in range(2):
        evaluation.reset_all(out, 0)
        first.append(out.copy())
    np.testing.assert_array_equal(*first)


def test_a_function_is_asked_for_as_many_as_are_needed() -> None:
    asked: list[int] = []

    def make(n_envs: int) -> Any:
        asked.append(n_envs)
        return Countdowns(n_envs)

    task = task_of(make, envs=5)
    assert (task.fixed_size, task.open(4, 0, reseeding=RARELY).num_envs) == (None, 4)
    assert asked == [2, 4]  # two, to inspect them
    with pytest.raises(UsageError, match="was asked for 4 environments, and made 3"):
        task_of(lambda num_envs: Countdowns(3), envs=4).open(4, 0, reseeding=RARELY)


def test_a_number_that_cannot_be_changed_has_to_be_the_settings() -> None:
    with pytest.raises(UsageError, match=r"has 2 environments where 4 are needed: pass envs=2"):
        task_of(two_cartpoles, envs=4).open(4, 0)
    task = task_of(two_cartpoles(), envs=2)
    task.open(2, 0)
    with pytest.raises(UsageError, match="cannot serve several environments"):
        task.open(2, 0, EVALUATION)


def allowed_steps(source: Any, newest: bool = False, **settings: Any) -> list[Any]:
    """Take random allowed steps in 3 environments; return all that was observed, as lists. With
    `newest`, arrays have room for the newest frames of stacks only."""
    task = open_task(EnvConfig(env="prepared", envs=3, **settings), source, None)
    envs, rng, log = task.open(3, 5, reseeding=RARELY), np.random.default_rng(0), list[Any]()
    spec = frame_spec(task.obs_spec) if newest else task.obs_spec
    out, rewards = tree.zeros(spec, 3), np.zeros(3)

    def ended(env: int, terminated: bool, truncated: bool, final: Any) -> None:
        final = None if terminated else tree.map(np.ndarray.tolist, final)  # masks need a reason
        log.append((*envs.finished(env)[:3], terminated, truncated, final))

    envs.reset_all(out)
    for _ in range(40):
        actions = task.first_allowed(task.action_spec.random(rng, 3), out)
        envs.step(actions, out, rewards, ended)
        log.append((tree.map(np.ndarray.tolist, out), rewards.tolist()))
    envs.close()
    return log


@MODES
@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (partial(Picky, "info"), {}),
        (partial(Picky, "entry", (3, 2)), {"frame_stack": 3}),
        (Pictures, {"grayscale": True, "resize": 16, "frame_stack": 3}),
        (Pictures, {"frame_stack": 2, "newest": True}),
    ],
    ids=["info", "entry and stack", "pictures", "newest frames"],
)
def test_observations_are_prepared_as_those_of_single_environments(
    make: Any, settings: Any, mode: AutoresetMode
) -> None:
    """With the masks that infos or observations hold, and stacks that begin with each episode."""
    expected = allowed_steps(make, **settings)
    assert sum(len(entry) == 6 for entry in expected) > 6
    given = allowed_steps(lambda num_envs: as_vector(make, mode, num_envs), **settings)
    for one, other in zip(given, expected, strict=True):
        assert one == other


@MODES
def test_a_prepared_episode_is_replayed_while_others_wait(mode: AutoresetMode) -> None:
    """`Picky` refuses forbidden actions, also of environments that wait for their turn."""

    def make(num_envs: int) -> Any:
        return as_vector(partial(Picky, "info"), mode, num_envs)

    task = open_task(EnvConfig(env="prepared", envs=3, frame_stack=2), make, None)
    envs, again = (task.open(3, 5, reseeding=RARELY) for _ in range(2))
    out, seen = tree.zeros(task.obs_spec, 3), tree.zeros(task.obs_spec, 3)
    envs.reset_all(out)
    rng, taken = np.random.default_rng(0), list[np.ndarray]()
    for step in range(17):
        if step == 14:
            envs.reset(1, out)
        taken.append(task.first_allowed(task.action_spec.random(rng, 3), out))
        envs.step(taken[-1], out, np.zeros(3), lambda *_: None)
    left = [np.array(taken)[17 - steps :, env] for env, steps in enumerate(envs.steps_to_replay)]
    assert [*map(len, left)] == [5, 3, 5]
    assert again.replay_all(envs.seeded_episode, envs.episode, left, seen) == [True] * 3
    for path, array in tree.items(out):
        np.testing.assert_array_equal(dict(tree.items(seen))[path], array)


@pytest.mark.parametrize("kind", ["info", "method", "entry"])
def test_masks_of_a_bare_sync_vector_are_those_of_its_environments(kind: str) -> None:
    def make(num_envs: int) -> Any:
        return gym.vector.SyncVectorEnv([partial(Picky, kind)] * num_envs)

    assert allowed_steps(make) == allowed_steps(partial(Picky, kind))
    assert faults(make(2)) == []


def test_a_mask_that_nothing_would_obey_is_refused() -> None:
    make = partial(Picky, "method")
    with pytest.raises(UsageError, match=r"has a method action_masks, .*give infos"):
        allowed_steps(lambda num_envs: as_vector(make, AutoresetMode.NEXT_STEP, num_envs))
    words = r"gave a mask of shape \[4\].*, for its environment 0 in step: correct it"
    make = partial(Picky, "info", broken="short")
    with pytest.raises(InvalidReturn, match=words):
        allowed_steps(lambda num_envs: as_vector(make, AutoresetMode.NEXT_STEP, num_envs))
    make = partial(Picky, "info", broken="none")
    with pytest.raises(InvalidReturn, match=r"allows no action, in step 3 of episode 0: correct"):
        allowed_steps(lambda num_envs: as_vector(make, AutoresetMode.NEXT_STEP, num_envs))


def test_a_mask_for_each_component_of_all_environments_is_refused() -> None:
    """The first array of a tuple would be taken for the mask of the first environment."""
    vector = Countdowns(2, masked=True, seeded=True)
    vector.single_action_space = gym.spaces.MultiDiscrete([2, 2])
    wrapped = PreparedVector(vector, EnvConfig(env="countdowns"), True)
    masks = np.ones((2, 2), np.int8)
    vector.reset = lambda **_: (vector.obs, {"action_mask": (masks, masks)})  # type: ignore[method-assign]
    with pytest.raises(InvalidReturn, match=r"as a tuple of arrays .* a row for each environment"):
        wrapped.reset()


FAULTS = {
    "no mode": r"does not say when it resets its environments: set metadata\[",
    "size": r"returned rewards of shape \(2,\) .*each of its num_envs = 3 environments",
    "rows": r"returned observations of shape \(2, 2\)",
    "flags": "returned terminations .* which are not True or False",
    "large": r"environment 1 .* returned reward -1e\+300 from step, which float32 cannot hold",
    "no finals": "says that it resets in the same step .* no 'final_obs'",
    "no final row": r"says that it resets in the same step .* its infos\['_final_obs'\] is False",
    "final size": r"final_obs.\] of shape \(1,\) for an environment, whose .* have \(2,\)",
    "mask": r"gave info\['action_mask'\] in step, but none after its first reset: correct it, or",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_one_sentence(fault: str) -> None:
    with pytest.raises(FlatoutError, match=FAULTS[fault]) as caught:
        played(partial(Countdowns, fault=fault))
    assert "\n" not in str(caught.value)


def test_a_reset_that_is_not_declared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first end of an episode, if the start of training has seen none."""
    monkeypatch.setattr(vector_kind, "HIDDEN_STEPS", 1)
    make = partial(Countdowns, mode="NextStep", masked=True, seeded=True, fault="hidden")
    with pytest.raises(InvalidReturn, match=r"declares AutoresetMode\.NEXT_STEP, but its"):
        played(make)


HIDDEN = r"declares AutoresetMode\.{}, but the step that ends an episode returns the first obs"
UNDECLARED = [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]


@pytest.mark.parametrize("mode", UNDECLARED)
@pytest.mark.parametrize("kind", ["starts", "wrapped", "one", "together", "one seed", "corridor"])
def test_training_refuses_resets_that_are_hidden(mode: AutoresetMode, kind: str) -> None:
    """Before anything is compiled. That all episodes begin in the same state shows only in
    NEXT_STEP, whose step after an end is played."""
    make: Any = partial(Countdowns, 3, mode, fault="silent", masked=True)
    if kind == "together":
        make = partial(Countdowns, 3, mode, fault="silent", together=10**6)
    elif kind != "one seed":
        named = kind if kind == "corridor" else "starts"
        make = partial(Walks, 1 if kind == "one" else 3, mode, named, hidden=True)
    vector = make()
    if kind == "wrapped":
        vector = gym.wrappers.vector.RecordEpisodeStatistics(vector)
    if kind == "corridor" and mode == AutoresetMode.DISABLED:
        PPO(vector, n_steps=32, batch_size=32)
        assert "warning: the last observation of each episode" in faults(vector)[0]
        return
    with pytest.raises(UsageError, match=HIDDEN.format(mode.name)) as caught:
        PPO(vector, n_steps=32, batch_size=32)
    assert "\n" not in str(caught.value)
    assert re.match(f"error: .*{HIDDEN.format(mode.name)}", faults(make())[0])
    if kind == "wrapped":
        assert not vector.return_queue, "its statistics are those of training alone"


@pytest.mark.parametrize("mode", UNDECLARED)
@pytest.mark.parametrize("kind", Walks.WORLDS)
@pytest.mark.parametrize("envs", [1, 4])
def test_ends_that_look_like_beginnings_are_not_refused(
    mode: AutoresetMode, kind: str, envs: int
) -> None:
    task_of(partial(Walks, mode=mode, kind=kind), envs).open(envs, 0, reseeding=RARELY)


def test_an_array_that_is_returned_again_and_again_is_copied() -> None:
    for how in ({}, {"mode": "NextStep", "masked": True}, {"masked": True, "seeded": True}):
        make = partial(Countdowns, **how)
        assert played(partial(make, fault="view")) == played(make)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resize": 32}, "--grayscale and --resize need image observations"),
        ({"spare_envs": "all"}, "--spare-envs all is for single environments"),
    ],
)
def test_settings_for_single_environments_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        task_of(Countdowns, **settings).refuse_spares()


def faults(env: Any, steps: int = 60) -> list[str]:
    found: list[Finding] = check_env(env, steps=steps)
    return [str(finding) for finding in found if finding.kind != "note"]


@MODES
def test_the_check_finds_nothing_wrong_with_good_ones(mode: AutoresetMode) -> None:
    assert faults(Countdowns(mode=mode, masked=True, seeded=True)) == []
    assert faults(cartpoles(3, mode.value), 120) == []
    assert faults(Countdowns()) == []
    assert faults(Countdowns(mode=mode, together=10**6)) == []
    assert faults(as_vector(partial(Picky, "info"), mode, 3)) == []


def test_the_check_says_what_a_run_makes_of_it() -> None:
    found = {one.topic: one.text for one in check_env(Countdowns(), steps=60)}
    assert "3 environments; it resets by itself in the step that ends" in found["reset"]
    assert "a resumed run begins new episodes" in found["resume"]


CHECKED = {
    "size": "error: .*rewards of shape", "no finals": "error: .*no 'final_obs'",
    "view": "warning: its arrays of observations change after", "one": "error: .*one array in mem",
    "pending": "error: the first step after an end and a reset by the mask is another one",
    "silent": r"error: .* declares AutoresetMode\.NEXT_STEP, but the step that ends .* first obs",
}  # fmt: skip


@pytest.mark.parametrize("fault", CHECKED)
def test_the_check_names_each_fault(fault: str) -> None:
    mode = "NextStep" if fault in ("pending", "silent") else "SameStep"
    (found, *others) = faults(Countdowns(3, mode, masked=True, seeded=True, fault=fault))
    assert not others
    assert re.match(CHECKED[fault], found)


def test_the_check_finds_a_mask_that_is_ignored() -> None:
    assert "ignores reset" in faults(Countdowns(mode="Disabled"))[0]


def test_single_environments_with_a_number_as_an_argument_are_made_as_before() -> None:
    assert task_of(cartpole).vector is None


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "mode",
    [*AutoresetMode, "object", "function", pytest.param("processes", marks=pytest.mark.slow)],
)
def test_training_in_a_vector_learns_what_single_environments_do(
    algorithm: str, mode: Any, shared_programs: Any
) -> None:
    """To the bit, in every mode; an object is left open, and says how many environments it has."""
    settings = tiny.python(algorithm)
    if mode == "processes":
        settings["placement"] = "sampler=processes workers=1x2"
    kind = {"ppo": PPO, "dqn": DQN}[algorithm]
    alone = kind("CartPole-v1", **settings).learn(128)
    source: Any = cartpoles
    if isinstance(mode, AutoresetMode):
        del settings["envs"]
        source = as_vector(cartpole, mode, 2)
    elif mode == "object":
        source = cartpoles(2)  # its environments are stepped one by one
        del settings["envs"]
    together = kind(source, **settings).learn(128)
    assert source is cartpoles or not source.closed
    assert together.config.env.envs == 2
    for name, array in learned(alone).items():
        np.testing.assert_array_equal(learned(together)[name], array, err_msg=name)


def test_an_object_is_evaluated_in_another_environment(shared_programs: Any) -> None:
    settings = tiny.python("ppo", eval_every=64, eval_episodes=2)
    del settings["envs"]
    agent = PPO(cartpoles(2), eval_env="CartPole-v1", **settings).learn(64)
    assert agent.summary["last_eval_return"] == agent.evaluate(2, env="CartPole-v1").return_mean
    with pytest.raises(UsageError, match="for evaluation another one as eval_env="):
        PPO(cartpoles(2), **settings).learn(64)
    with pytest.raises(UsageError, match="Acrobot-v1 has other spaces than SyncVectorEnv"):
        PPO(cartpoles(2), eval_env="Acrobot-v1", **settings).learn(64)


def test_a_loaded_agent_takes_an_environment_for_evaluation(
    shared_programs: Any, tmp_path: Path
) -> None:
    settings = tiny.python("ppo", eval_every=64, eval_episodes=2)
    del settings["envs"]
    file = PPO(cartpoles(2), eval_env="CartPole-v1", **settings).learn(64).save(tmp_path / "agent")
    with pytest.raises(UsageError, match="for evaluation another one as eval_env="):
        PPO.load(file, env=cartpoles(2)).learn(64)
    agent = PPO.load(file, env=cartpoles(2), eval_env="CartPole-v1").learn(64)
    played = agent.evaluate(2, env="CartPole-v1", seed=agent.summary["seed"])
    assert agent.summary["last_eval_return"] == played.return_mean


def test_an_environment_is_not_reset_after_its_last_evaluation_episode_was_cut(
    monkeypatch: pytest.MonkeyPatch, shared_programs: Any
) -> None:
    """One that resets within the step may be unable to reset one environment alone."""
    agent = PPO(Countdowns, **tiny.python("ppo")).learn(64)
    monkeypatch.setattr("flatout.run.evaluate.MAX_EPISODE_STEPS", 1)
    assert agent.evaluate(2).lengths == (1, 1)


def test_videos_are_of_a_single_environment(tmp_path: Path, shared_programs: Any) -> None:
    """A run that cannot make its videos says so before its first step."""
    agent = PPO(cartpoles, **tiny.python("ppo"))
    with pytest.raises(
        CallbackFailure, match=r"on_start: .* is a vector .*RecordEvery\(64, env=ID\)"
    ):
        agent.learn(128, RecordEvery(64, tmp_path))
    assert not agent.summary
    record = RecordEvery(64, tmp_path, env=short_cartpole)
    PPO(cartpoles(2), **tiny.python("ppo")).learn(128, record)
    assert {one.name for one in tmp_path.iterdir()} == {
        "video_000000000064.gif", "video_000000000128.gif",
    }  # fmt: skip
    assert agent.learn(64).record(tmp_path / "a.gif", env=short_cartpole("rgb_array")) == 3.0
    with pytest.raises(UsageError, match="Acrobot-v1 has other spaces than"):
        agent.record(tmp_path / "b.gif", env="Acrobot-v1")
    with pytest.raises(UsageError, match=r"of which no pictures are made: .*\(load the agent with"):
        agent.record(tmp_path / "c.gif")


def test_the_end_of_a_vectors_run_names_no_pictures(
    flatout: Callable[..., Result], tmp_path: Path, shared_programs: Any
) -> None:
    run = tmp_path / "run"
    words = tiny.flags("ppo", env="tests.vector_envs:cartpoles")
    ended = flatout("train", "ppo", *words, "--steps", 64, "--run-dir", run)
    assert ended.code == 0, ended.err
    assert f"flatout eval {run}\n" in ended.out
    assert "--show" not in ended.out


def test_the_command_says_how_a_vectors_agent_is_shown(
    flatout: Callable[..., Result], tmp_path: Path, shared_programs: Any
) -> None:
    runs = {"named": cartpoles, "passed": cartpoles(2)}
    for name, env in runs.items():
        settings = tiny.python("ppo") if name == "named" else tiny.python("ppo", envs=2)
        PPO(env, **settings).learn(64, run_dir=tmp_path / name)
    named, passed, video = tmp_path / "named", tmp_path / "passed", tmp_path / "a.gif"
    for flags in (["--show"], ["--out", str(video)]):
        again = shlex.join(["flatout", "eval", str(named), *flags, "--env", "ID"])
        assert flatout("eval", named, *flags).message.endswith(f"with the same spaces: {again}.")
        assert "--env ID or --env module:factory." in flatout("eval", passed, *flags).message
    assert flatout("eval", named, "--episodes", 2).code == 0
    for run in (named, passed):
        shown = flatout("eval", run, "--out", video, "--env", "tests.vector_envs:short_cartpole")
        assert shown.code == 0, shown.err
        assert video.stat().st_size
        video.unlink()


def learned(agent: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in agent._acting.arrays.items()}


def test_an_environment_may_be_called_like_a_policy() -> None:
    class SharedPolicy(Countdowns):
        pass

    assert PPO(SharedPolicy(2), n_steps=32, batch_size=32).config.env.envs == 2
