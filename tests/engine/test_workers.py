"""Actor processes collect the same trajectories as this process; none hangs or is left over."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import psutil
import pytest

from flatout import EnvironmentFailure, UsageError, tree
from flatout.algorithms.base import RolloutSpec
from flatout.algorithms.registry import build_algorithm
from flatout.config.placement import parse
from flatout.config.settings import resolve
from flatout.config.workers import assign_groups, with_workers
from flatout.engine.finals import truncations
from flatout.engine.make_sampler import ActingPolicies, make_sampler, start_workers
from flatout.engine.workers import pool
from flatout.engine.workers.shared_memory import SharedArrays
from flatout.envs.base import TRAINING, episode_seed
from flatout.envs.task import open_task
from flatout.errors import Interrupt, InvalidReturn
from flatout.frames import most_frames
from flatout.hardware import backend
from flatout.randomness import raw_key
from flatout.spans import ResetTimes, Spans
from flatout.types import Trajectory, UserCode
from tests.fault_envs import (
    DiesInReset,
    Faulty,
    HangingReset,
    InvalidLate,
    LargeInfo,
    Sleepy,
    slow_reset,
)
from tests.kills import wait_for

pytestmark = pytest.mark.usefixtures("small_heap")

PROCESSES = "sampler=processes workers=2x2"
LOCAL = f"{PROCESSES} inference=local"


@contextmanager
def sampler(
    placement: str = PROCESSES,
    source: Any = None,
    algorithm: str = "ppo",
    *,
    inline: bool = False,
    notes: list[str] | None = None,
    timeout: float = 60.0,
    envs: int = 4,
    **settings: Any,
) -> Iterator[Any]:
    """Return a context with a started sampler and untrained parameters; `inline` steps the same
    groups in this process."""
    own = {"n_steps": 16, "batch_size": 16} if algorithm == "ppo" else {}
    own |= {"env": "CartPole-v1", "envs": envs, "worker_timeout": timeout}
    config = resolve(algorithm, own | settings)
    task = open_task(config.env, source)
    pure = build_algorithm(config, *task.spaces)
    where = with_workers(parse(placement), envs, 2)
    frames = most_frames(task.obs_spec) > 1
    acting = ActingPolicies(
        assign_groups(where, envs), pure, task, raw_key(0, 2), backend.device, frames=frames
    )
    params = pure.actor(pure.init(raw_key(0, 0), pure.hp), pure.hp)
    bundle = acting.packing.pack(params, np)
    for policy in acting.policies:
        policy.compile()
        policy.publish(jax.device_put(bundle, policy.device), 0, Spans())
    most = truncations(pure.horizon, task.limit)
    rollout = RolloutSpec(pure.horizon, pure.episodes, most, pure.replay is not None, frames=frames)
    said = [] if notes is None else notes
    local = where.inference == "local"
    pool = None
    if not inline:
        pool = start_workers(
            config, task, acting, rollout, said.append, code=UserCode(env=source), local=local
        )
        if local:
            acting.remote(pool).publish(bundle, 0, Spans())
    try:
        made = make_sampler(config, task, acting, rollout, Spans(), pool)
    except BaseException:
        if pool is not None:
            pool.close()
        raise
    try:
        made.start()
        yield made
    finally:
        made.close()
        task.close()


def copied(trajectory: Trajectory) -> Trajectory:
    return jax.tree.map(np.array, trajectory)


def collected(made: Any, count: int) -> list[Trajectory]:
    found = []
    for _ in range(count):
        found.append(copied(made.collect()[0]))
        made.commit()
    return found


def assert_same(left: list[Trajectory], right: list[Trajectory]) -> None:
    for one, other in zip(left, right, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def faulty(fault: str, at: int, folder: Path | None = None, length: int = 1000) -> Any:
    return functools.partial(Faulty, fault, at, None if folder is None else str(folder), length)


def normalised() -> gym.Env[Any, Any]:
    return gym.wrappers.NormalizeObservation(slow_reset())


def descriptors() -> set[str]:
    """Return this process's open shared memory, sockets and pipes."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return {name for name in found if name.startswith(("socket:", "pipe:", "/memfd:"))}


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Check that every test leaves no process and no descriptor."""
    before, open_before = children(), descriptors()
    yield
    gc.collect()  # a mapping is closed with the last array in it
    assert children() <= before
    assert descriptors() <= open_before


TASKS: list[dict[str, Any]] = [
    {},
    {"env": "Pendulum-v1", "algorithm": "sac", "learning_starts": 8, "train_freq": 32},
    {"env": "flatout/Snake-v0", "algorithm": "dqn", "train_freq": 64, "network": "grid"},
    {"rollout_episodes": 2, "env_kwargs": {"max_episode_steps": 20}, "batch_size": 160},
    {"env": "ALE/Breakout-v5", "algorithm": "dqn", "train_freq": 64, "terminal_on_life_loss": True},
    {"env": "tests.goal_envs:BitFlip", "algorithm": "dqn", "train_freq": 64, "hindsight": 4},
]
SHORT_GAMES: dict[str, Any] = TASKS[4] | {
    "sticky_actions": 0.0, "env_kwargs": {"max_num_frames_per_episode": 72}
}  # fmt: skip
"""Their episodes of 18 steps are replayed from the number of resets, not from all actions."""
SPARE_GAMES = SHORT_GAMES | {"env_kwargs": SHORT_GAMES["env_kwargs"] | {"num_threads": 12}}
"""With this number of threads, games have spares."""


@pytest.mark.bits
@pytest.mark.parametrize(
    ("placement", "settings"),
    [
        pytest.param(PROCESSES, TASKS[0], id="ppo"),
        pytest.param(PROCESSES, TASKS[1], id="sac", marks=pytest.mark.slow),
        pytest.param(PROCESSES, TASKS[2], id="images", marks=pytest.mark.slow),
        pytest.param(PROCESSES, TASKS[3], id="episodes", marks=pytest.mark.slow),
        pytest.param(PROCESSES, TASKS[4], id="atari", marks=pytest.mark.slow),
        pytest.param(PROCESSES, SHORT_GAMES, id="short-games", marks=pytest.mark.slow),
        pytest.param(PROCESSES, SPARE_GAMES, id="spare-games", marks=pytest.mark.slow),
        pytest.param(LOCAL, TASKS[0], id="ppo-local", marks=pytest.mark.slow),
        pytest.param(LOCAL, TASKS[3], id="episodes-local", marks=pytest.mark.slow),
        pytest.param(LOCAL, TASKS[4], id="atari-local", marks=pytest.mark.slow),
        pytest.param(PROCESSES, TASKS[5], id="goals", marks=pytest.mark.slow),
        pytest.param(LOCAL, TASKS[5], id="goals-local", marks=pytest.mark.slow),
    ],
)
def test_processes_and_this_process_collect_the_same(
    placement: str, settings: dict[str, Any]
) -> None:
    """With central and local acting, the same groups give the same bits, also from the other's
    state."""
    with (
        sampler(placement, **settings) as there,
        sampler(placement, inline=True, **settings) as here,
    ):
        for number in range(8):
            if number == 5:
                state, other = here.state(), there.state()
                assert here.restore(other) == []
                assert there.restore(state) == []
            ours, theirs = copied(here.collect()[0]), copied(there.collect()[0])
            assert_same([ours], [theirs])
            assert [e[:3] for e in here.episodes] == [e[:3] for e in there.episodes]
            here.commit()
            there.commit()
            state, other = here.state(), there.state()
            assert state["episode"] == other["episode"]
            tree.map(np.testing.assert_array_equal, state["obs"], other["obs"])


@pytest.mark.parametrize(
    ("placement", "inline"),
    [
        (PROCESSES, True),
        pytest.param(PROCESSES, False, marks=pytest.mark.slow),
        pytest.param(LOCAL, False, marks=pytest.mark.slow),
    ],
)
def test_the_times_of_resets_are_known(placement: str, inline: bool) -> None:
    """The first episodes, which begin before the first step, are not among them."""
    with sampler(placement, slow_reset, inline=inline) as made:
        episodes = 0
        for _ in range(4):
            made.collect()
            made.commit()
            episodes += len(made.episodes)
        resets = ResetTimes()
        for work in made.work().values():
            resets = resets.plus(work.resets)
    assert resets.number == episodes > 0
    assert resets.seconds == resets.waited > 0.002 * episodes
    assert resets.square > 0.002 * resets.seconds


WHOLE = {"rollout_episodes": 2, "env_kwargs": {"max_episode_steps": 20}, "batch_size": 160}


@pytest.mark.bits
@pytest.mark.parametrize(
    ("placement", "inline", "settings"),
    [
        pytest.param(PROCESSES, True, {}, id="inline"),
        pytest.param(PROCESSES, True, WHOLE, id="inline-episodes", marks=pytest.mark.slow),
        pytest.param(PROCESSES, False, WHOLE, id="central-episodes", marks=pytest.mark.slow),
        pytest.param(PROCESSES, False, {}, id="central", marks=pytest.mark.slow),
        pytest.param(LOCAL, False, {}, id="local", marks=pytest.mark.slow),
    ],
)
def test_spares_change_no_trajectory(
    placement: str, inline: bool, settings: dict[str, Any]
) -> None:
    with (
        sampler(placement, slow_reset, inline=inline, spare_envs="all", **settings) as spared,
        sampler(placement, slow_reset, inline=inline, spare_envs="0", **settings) as plain,
    ):
        for number in range(8):
            if number == 5:
                state, other = spared.state(), plain.state()
                assert spared.restore(other) == []
                assert plain.restore(state) == []
            assert_same([copied(spared.collect()[0])], [copied(plain.collect()[0])])
            assert [e[:3] for e in spared.episodes] == [e[:3] for e in plain.episodes]
            spared.commit()
            plain.commit()
        assert (spared.stats()["spare_envs"], plain.stats().get("spare_envs")) == (4, None)
        assert spared.stats()["reset_s"] > 0.0


@pytest.mark.fault
def test_a_lost_worker_is_replaced_by_one_with_spares(tmp_path: Path) -> None:
    with sampler(source=faulty("kill", 7, tmp_path), spare_envs="all") as made:
        collected(made, 3)
        assert made.lost == 2
        assert made.stats()["spare_envs"] == 4


@pytest.mark.fault
def test_a_reset_that_hangs_in_the_background_is_limited_like_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "MAX_RESTARTS", 0)
    source = functools.partial(HangingReset, (episode_seed(0, TRAINING, 1, 2),))
    with (
        sampler(source=source, timeout=1.0, spare_envs="all") as made,
        pytest.raises(EnvironmentFailure, match=r"a step within 1 s \(--worker-timeout\)"),
    ):
        collected(made, 4)


@pytest.mark.slow
@pytest.mark.fault
def test_workers_that_cannot_have_spares_say_so_once() -> None:
    notes: list[str] = []
    with sampler(source=normalised, notes=notes, spare_envs="all") as made:
        collected(made, 1)
    (line,) = notes
    assert "CartPole-v1 has no spare environments" in line
    assert "NormalizeObservation" in line


def test_what_workers_report_with_other_numbers_is_said_once() -> None:
    notes: list[str] = []
    workers = pool.WorkerPool([], SharedArrays({}), notes.append)
    for words in ("a copy takes 1,063 MiB", "a copy takes 998.5 MiB", "a copy has other spaces"):
        workers._report_once(words)
    workers.close()
    assert notes == ["a copy takes 1,063 MiB", "a copy has other spaces"]


@pytest.mark.slow
@pytest.mark.bits
@pytest.mark.parametrize(
    ("placement", "to_inline"),
    [
        (PROCESSES, True), (PROCESSES, False), (LOCAL, True),
    ],
)  # fmt: skip
def test_a_state_moves_between_processes_and_this_process(placement: str, to_inline: bool) -> None:
    with sampler(placement) as first:
        collected(first, 3)
        state = first.state()
        expected = collected(first, 3)
    with sampler(placement, inline=to_inline) as second:
        assert second.restore(state) == []
        assert_same(expected, collected(second, 3))


@pytest.mark.fault
def test_the_state_survives_an_interrupt_at_any_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupting(call: str, before: bool) -> Callable[..., Any]:
        calls, real = 0, getattr(pool.Worker, call)

        def interrupted(worker: Any, *given: Any) -> Any:
            nonlocal calls
            calls += 1
            if before and calls == 2:
                raise Interrupt(2)
            result = real(worker, *given)
            if calls == 2:
                raise Interrupt(2)
            return result

        return interrupted

    with sampler(LOCAL) as made:
        for call, before in itertools.product(("tell", "wait"), (True, False)):
            collected(made, 2)
            known = made.state()
            with monkeypatch.context() as patched:
                patched.setattr(pool.Worker, call, interrupting(call, before))
                with pytest.raises(Interrupt):
                    made.collect()
            state = made.state()
            assert state.keys() == known.keys(), (call, before)
            for name, value in known.items():
                jax.tree.map(np.testing.assert_array_equal, state[name], value)
            assert made.restore(state) == [], (call, before)


def test_uneven_groups_are_complete_and_workers_import_no_learning_libraries() -> None:
    source = faulty("look", 2)  # raises where one was imported
    with sampler("sampler=processes workers=3x2", source, envs=6) as made:
        trajectory = collected(made, 1)[0]
        assert made.lost == 0
    np.testing.assert_array_equal(trajectory.rewards, np.tile(np.arange(1, 17)[:, None], 6))


FAULTS = [
    ("kill", "SIGKILL"),
    ("segfault", "SIGSEGV"),
    ("exit", "exit code 3"),
    ("raise", "the physics exploded"),
    ("sleep", "--worker-timeout"),
    ("spin", "--worker-timeout"),
    ("allocate", "MemoryError"),
    ("close", "worker"),
]
QUICK = {("raise", 7), ("kill", 17), ("sleep", 17)}
"""A fault within a trajectory, and a killed and a hanging worker at a trajectory's first step."""
PLACES = {"kill": (1, 7, 17), "sleep": (7, 17)}
"""The steps of faults that come elsewhere, too: what follows a lost worker is the same for all."""


@pytest.mark.fault
@pytest.mark.parametrize(
    ("fault", "words", "at"),
    [
        pytest.param(*one, at, marks=() if (one[0], at) in QUICK else pytest.mark.slow)
        for one in FAULTS
        for at in PLACES.get(one[0], (7,))
    ],
)
def test_a_lost_worker_begins_new_episodes(fault: str, words: str, at: int, tmp_path: Path) -> None:
    notes: list[str] = []
    limit = 3.0 if "timeout" in words else 60.0  # within which other workers have to answer, too
    with sampler(source=faulty(fault, at, tmp_path), notes=notes, timeout=limit) as made:
        before = made.state()["episode"]
        trajectories = collected(made, 2)
        after = made.state()["episode"]
        restarted, lost = made.restarted, made.lost
    assert len(notes) == 1
    assert words in notes[0]
    assert "worker" in notes[0]
    assert ".;" not in notes[0]
    assert lost == 2  # of the worker's two environments
    changed = [env for env in range(4) if before[env] != after[env]]
    assert changed in ([0, 1], [2, 3])
    joined = jax.tree.map(lambda *rows: np.concatenate(rows), *(t.obs for t in trajectories))
    steps = joined[..., 1]  # [2T, N], the number of each observation's step in its episode
    for env in range(4):
        expected = np.arange(32.0)
        if env in changed:  # the lost step is the first of the new episode
            expected = np.concatenate([np.arange(at - 1.0), np.arange(32.0 - at + 1)])
        np.testing.assert_array_equal(steps[:, env], expected)
        cut = np.argwhere(np.concatenate([t.truncated for t in trajectories])[:, env]).ravel()
        if env in changed and at not in (1, 17):
            assert cut.tolist() == [at - 2]
        else:
            assert cut.tolist() == []
    if at == 7:  # the truncated episode bootstraps from its last observation
        first = trajectories[0]
        index = {int(i): obs for i, obs in zip(first.final_index, first.final_obs, strict=True)}
        for env in changed:
            assert index[(at - 2) * 4 + env][1] == at - 1
    if at == 17:
        assert sorted(env for env, _, _ in restarted) == changed
        for env, last, new in restarted:
            assert (last[1], new[1]) == (16, 0)
            assert env in changed


@pytest.mark.fault
def test_a_worker_that_dies_between_trajectories_is_replaced() -> None:
    notes: list[str] = []
    before = children()
    with sampler(source=faulty("none", 1), notes=notes) as made:
        collected(made, 1)
        worker = psutil.Process(min(children() - before))
        worker.kill()
        wait_for(lambda: worker.status() == psutil.STATUS_ZOMBIE)
        (trajectory,) = collected(made, 1)
        assert made.lost == 2
    (note,) = notes
    assert "SIGKILL" in note
    assert (trajectory.obs[..., 1] > 0).sum() > 16


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize(("fault", "at"), [("kill", 17), ("sleep", 7)])
def test_a_lost_worker_that_acts_by_itself_collects_its_trajectory_again(
    fault: str, at: int, tmp_path: Path
) -> None:
    notes: list[str] = []
    source = faulty(fault, at, tmp_path)
    with sampler(LOCAL, source, notes=notes, timeout=3.0) as made:
        before = made.state()["episode"]
        first = collected(made, 1)[0]
        restarted = made.restarted
        second = collected(made, 1)[0]
        restarted = restarted + made.restarted
        after = made.state()["episode"]
    assert len(notes) == 1
    changed = [env for env in range(4) if before[env] != after[env]]
    assert changed in ([0, 1], [2, 3])
    for env in range(4):
        anew = env in changed and at > 16
        np.testing.assert_array_equal(first.obs[:, env, 1], np.arange(16))
        np.testing.assert_array_equal(second.obs[:, env, 1], np.arange(16) + 16 * (not anew))
    expected = changed if at > 16 else []  # nothing was committed before the first
    assert sorted(env for env, _, _ in restarted) == expected
    assert all((last[1], new[1]) == (16, 0) for _, last, new in restarted)


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("then", ["commit", "state"])
def test_a_worker_that_acts_by_itself_and_dies_before_it_is_asked_is_replaced(then: str) -> None:
    """The state that is saved then, and the next trajectory, begin the same episodes."""
    notes: list[str] = []
    before = children()
    with sampler(LOCAL, faulty("none", 1), notes=notes) as made:
        made.collect()
        if then == "state":
            made.commit()
        worker = psutil.Process(min(children() - before))
        worker.kill()
        wait_for(lambda: worker.status() == psutil.STATUS_ZOMBIE)
        if then == "commit":
            made.commit()
        state = made.state()
        trajectory = copied(made.collect()[0])
        assert made.lost == 2
        assert len(made.restarted) == 2
        made.restore(state)
        assert_same([trajectory], [made.collect()[0]])
    assert sorted(actions is None for actions in state["actions"]) == [False, False, True, True]
    assert ["SIGKILL" in note for note in notes] == [True]


@pytest.mark.fault
@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_starts_is_replaced(tmp_path: Path) -> None:
    notes: list[str] = []
    source = functools.partial(DiesInReset, str(tmp_path))
    with sampler(LOCAL, source, notes=notes) as made:
        collected(made, 1)
        assert made.lost == 0  # no episode had begun
    assert ["SIGKILL" in note for note in notes] == [True]


@pytest.mark.fault
@pytest.mark.parametrize(
    ("placement", "restarts"),
    [(PROCESSES, 2), pytest.param(LOCAL, 1, marks=pytest.mark.slow)],
)
def test_a_worker_that_always_fails_ends_the_run_with_its_traceback(
    placement: str, restarts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MAX_RESTARTS", restarts)
    notes: list[str] = []
    with (
        pytest.raises(EnvironmentFailure, match="the physics exploded") as failure,
        sampler(placement, faulty("raise", 3), notes=notes) as made,
    ):
        collected(made, 2)
    assert "fault_envs.py" in str(failure.value)
    assert f"{restarts} restarts" in str(failure.value)
    assert len(notes) == restarts


def test_a_trajectory_may_take_longer_than_a_step() -> None:
    """--worker-timeout limits a step, not the whole trajectory of a worker that acts itself."""
    notes: list[str] = []
    source, alone = functools.partial(Sleepy, 0.2), "sampler=processes workers=1x1 inference=local"
    with sampler(alone, source, notes=notes, timeout=2.5, envs=1) as made:  # 16 steps: 3.2 s
        first = collected(made, 1)[0]
        state = made.state()
        made.restore(state)  # this replays the same steps
        np.testing.assert_array_equal(made.collect()[0].obs[0], first.last_obs)
    assert not notes


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("then", [PROCESSES, LOCAL])
def test_the_state_of_a_worker_that_is_not_restarted_has_no_actions(
    then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MAX_RESTARTS", 0)
    with sampler(LOCAL, faulty("raise", 20, tmp_path)) as made:
        first = collected(made, 1)[0]
        with pytest.raises(EnvironmentFailure, match="exploded"):
            made.collect()
        state = made.state()
    lost = [env for env in range(4) if state["actions"][env] is None]
    assert lost in ([0, 1], [2, 3])
    np.testing.assert_array_equal(state["obs"], first.last_obs)
    assert state["steps"] == 16
    with sampler(then, faulty("none", 1)) as made:
        notes = made.restore(state)
        assert [env for env, _, _ in made.restarted] == lost
        assert len(notes) == 1
        assert notes[0].startswith(f"environments {lost[0]}, {lost[1]}: ")
        trajectory = made.collect()[0]
    np.testing.assert_array_equal(
        trajectory.obs[0, :, 1], [0 if env in lost else 16 for env in range(4)]
    )


@pytest.mark.fault
@pytest.mark.slow
def test_the_state_survives_invalid_values_in_several_workers() -> None:
    """The first worker's ends the trajectory; the second one's comes while the state is read."""
    late = tuple(episode_seed(0, TRAINING, env, 0) for env in (2, 3))
    with sampler(LOCAL, functools.partial(InvalidLate, late)) as made:
        begun = made.state()
        with pytest.raises(InvalidReturn, match="environment 0 "):
            made.collect()
        state = made.state()
        assert state["actions"] == [None] * 4
        np.testing.assert_array_equal(state["obs"], begun["obs"])
        with pytest.raises(InvalidReturn, match="environment 2 "):  # it is not lost
            made.collect()


def test_numbers_of_a_final_info_that_do_not_fit_are_reported_once() -> None:
    notes: list[str] = []
    with sampler(source=LargeInfo, notes=notes) as made:
        collected(made, 2)
        infos = [episode.info for episode in made.episodes]
    assert infos
    assert all(info["is_success"] == 1.0 and 1 < len(info) < 41 for info in infos)
    (note,) = notes
    assert "callbacks and metrics do not see the rest (reward/" in note


@pytest.mark.parametrize("then", [PROCESSES, pytest.param(LOCAL, marks=pytest.mark.slow)])
def test_restarted_environments_have_their_numbers_in_the_run(then: str) -> None:
    with sampler(then, faulty("none", 1)) as made:
        collected(made, 1)
        state = made.state()
        state["actions"][1] = state["actions"][3] = None
        (note,) = made.restore(state)
        assert [env for env, _, _ in made.restarted] == [1, 3]
    assert note.startswith("environments 1, 3: ")


def test_a_factory_that_cannot_be_pickled_is_refused_in_a_sentence() -> None:
    lock = threading.Lock()

    def make(**settings: Any) -> Any:
        lock.locked()
        return Faulty("none", 1)

    with pytest.raises(UsageError, match="cannot travel to another process"), sampler(source=make):
        pass


@pytest.mark.fault
def test_an_environment_that_cannot_be_made_is_a_failure_at_once() -> None:
    parent = os.getpid()

    def only_here(**kwargs: Any) -> Faulty:
        if os.getpid() != parent:
            raise RuntimeError("no licence")
        return Faulty("none", 0)

    with pytest.raises(EnvironmentFailure, match="no licence"), sampler(source=only_here):
        pass


def test_one_environment_object_is_refused() -> None:
    env = Faulty("none", 0)
    with pytest.raises(UsageError, match="several processes"), sampler(source=env):
        pass


@pytest.mark.fault
def test_workers_that_hang_are_gone_soon_after_the_end() -> None:
    begin = time.monotonic()
    with sampler(source=faulty("spin", 3), timeout=600.0) as made:
        for group in made._groups:
            group.envs.send(0, 0, np.zeros(2, np.int32), None)
        time.sleep(0.2)
    assert time.monotonic() - begin < 30
