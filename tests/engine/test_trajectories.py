"""The buffer of the last K trajectories gives them as one; PPO learns from it as from any other."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.algorithms.base import shapes_of
from flatout.engine.learn import Learner
from flatout.engine.mesh import Mesh
from flatout.engine.replay.trajectories import TrajectoryReplay
from flatout.engine.trajectory import arrays_of, env_axis, shard_shapes, split
from flatout.errors import CheckpointError
from flatout.randomness import raw_key
from flatout.spans import Spans
from flatout.types import Finals, Trajectory
from tests.algorithms.test_ppo import (
    N,
    agent,
    assert_close,
    largest_change,
    learn,
    plain,
    rollout,
    start,
)
from tests.algorithms.test_ppo import T as STEPS
from tests.worlds import VECTOR, Rates, World, image

ALGORITHM = agent()
PLAIN = ("obs", "actions", "rewards", "terminated", "truncated")


def ingest(buffer: TrajectoryReplay, store: Any, trajectory: Trajectory) -> list[Trajectory]:
    """Ingest a trajectory and return the inputs of the learner's dispatches."""
    due = buffer.ingest(store, (), trajectory)
    assert due.store is store
    return list(due.batches)


def collect(world: World, rows: int, masked: bool) -> Trajectory:
    """Collect a trajectory with outputs of `act`; if `masked`, some steps are not valid."""
    x = world.collect(rows)
    shape = x.rewards.shape
    valid = world.rng.random(shape) < 0.7 if masked else None
    log_prob = world.rng.normal(size=shape).astype(np.float32)
    sample = world.rng.normal(size=(*shape, 2)).astype(np.float32)
    return x._replace(extras={"log_prob": log_prob, "sample": sample}, valid=valid)


def copied(trajectory: Trajectory) -> Trajectory:
    """Return a copy, because the buffer reuses its arrays."""
    return jax.tree.map(np.array, trajectory)


def finals(x: Trajectory) -> dict[int, bytes]:
    """Return the final observations by position, ``step * lanes + lane``."""
    pairs = zip(x.final_index.tolist(), x.final_obs, strict=True)
    return {index: obs.tobytes() for index, obs in pairs if index < x.rewards.size}


def assert_holds(found: Trajectory, kept: list[Trajectory], count: int) -> None:
    """Check that `found` is `kept`, newest first, joined along the environments; while there are
    fewer than `count` trajectories, the rest is masked."""
    rows, num_envs = kept[0].rewards.shape
    total = count * num_envs
    assert found.rewards.shape == found.valid.shape == (rows, total)
    assert found.ended is None
    names: list[Any] = [*PLAIN, *(("extras", name) for name in kept[0].extras)]
    for number, one in enumerate(kept):
        own = slice(number * num_envs, (number + 1) * num_envs)
        for name in names:
            a, b = (
                getattr(x, name) if isinstance(name, str) else x.extras[name[1]]
                for x in (found, one)
            )
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a[:, own], b, err_msg=f"{name} of {number}")
        valid = np.ones((rows, num_envs), np.bool_) if one.valid is None else one.valid
        np.testing.assert_array_equal(found.valid[:, own], valid)
        np.testing.assert_array_equal(found.last_obs[own], one.last_obs)
    assert not found.valid[:, len(kept) * num_envs :].any()
    wanted: dict[int, bytes] = {}
    for number, one in enumerate(kept):
        for index, obs in finals(one).items():
            row, lane = divmod(index, num_envs)
            wanted[row * total + number * num_envs + lane] = obs
    assert finals(found) == wanted
    assert found.final_index.max(initial=0) <= rows * total


@settings(deadline=None, max_examples=80)
@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.sampled_from([VECTOR, image(2)]),
    st.booleans(), st.integers(0, 99), st.data(),
)  # fmt: skip
def test_it_holds_the_last_trajectories(
    count: int, num_envs: int, rows: int, spec: Any, masked: bool, seed: int, data: st.DataObject
) -> None:
    """That holds while there are fewer than K, when the buffer is full, when the capacity for final
    observations grows, and after the buffer was saved and restored."""
    world = World(spec, num_envs, seed)
    shapes = shapes_of(collect(World(spec, num_envs, 0, Rates(0, 0, 0)), rows, masked))
    buffer = TrajectoryReplay(ALGORITHM, count, shapes)
    store = buffer.store()
    kept: list[Trajectory] = []
    for number in range(1, data.draw(st.integers(1, 9)) + 1):
        world.rates = Rates(0.1, data.draw(st.sampled_from([0, 0.3, 1])), 0.1)
        new = collect(world, rows, masked)
        kept = [copied(new), *kept][:count]
        (found,) = ingest(buffer, store, new)
        assert_holds(found, kept, count)
        assert buffer.stats(store, ())["replay_fill"] == min(number, count) / count
        jax.tree.map(lambda array: array.fill(1), new)  # as the sampler's next trajectory does
        assert_holds(found, kept, count)
        if data.draw(st.integers(0, 3)) == 3:
            arrays, books, source = buffer.saved(store, ())
            assert source is None
            store, _ = buffer.restored({k: v.copy() for k, v in arrays.items()}, books, None)


def test_shards_keep_their_own_trajectories_and_final_observations() -> None:
    world = World(VECTOR, 4, 0, Rates(0.1, 0.4, 0.1))
    shapes = shapes_of(collect(world, 5, False))
    buffer = TrajectoryReplay(ALGORITHM, 3, shapes, shards=2)
    alone = [TrajectoryReplay(ALGORITHM, 3, shard_shapes(shapes, 2)) for _ in range(2)]
    store, stores = buffer.store(), [one.store() for one in alone]
    for _ in range(5):
        new = collect(world, 5, False)
        (found,) = ingest(buffer, store, new)
        assert buffer.inputs(shapes)[0].rewards.shape == found.rewards.shape
        for number, part in enumerate(split(new, 2)):
            (wanted,) = ingest(alone[number], stores[number], part)
            mine = Trajectory(*jax.tree.map(lambda leaf: leaf[number], tuple(found)))  # noqa: B023
            assert finals(mine) == finals(wanted)
            arrays = arrays_of(mine)
            for name, array in arrays_of(wanted).items():
                if env_axis(name) is not None:
                    np.testing.assert_array_equal(arrays[name], array, err_msg=name)
        saved, books, _ = buffer.saved(store, ())
        store, _ = buffer.restored(saved, books, None)
    with pytest.raises(CheckpointError, match="--shards 2"):
        alone[0].restored(saved, books, None)


def test_the_inputs_shapes_and_the_memory_are_known_in_advance() -> None:
    world = World(VECTOR, 2, 0)
    shapes = shapes_of(collect(world, 3, False))
    buffer = TrajectoryReplay(ALGORITHM, 3, shapes)
    store = buffer.store()
    (found,) = ingest(buffer, store, collect(world, 3, False))
    assert [shapes_of(found)] == buffer.inputs(shapes)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(found)) / 2**20
    assert buffer.stats(store, ()) == {"replay_fill": pytest.approx(1 / 3), "replay_mb": size}


@pytest.mark.parametrize("name", ["obs", "log_prob", "valid"])
def test_saved_arrays_that_do_not_fit_are_refused(name: str) -> None:
    shapes = shapes_of(collect(World(VECTOR, 2, 0), 3, False))
    buffer = TrajectoryReplay(ALGORITHM, 3, shapes)
    arrays, books, _ = buffer.saved(buffer.store(), ())
    for wrong in (arrays[name][:, :-1], arrays[name].astype(np.float16)):
        with pytest.raises(CheckpointError, match=name):
            buffer.restored(arrays | {name: wrong}, books, None)


def replayed(count: int, trajectories: list[Trajectory]) -> Trajectory:
    """Return the learner's input after these trajectories, from a buffer of `count`."""
    buffer = TrajectoryReplay(ALGORITHM, count, shapes_of(trajectories[0]))
    store = buffer.store()
    for one in trajectories:
        (found,) = ingest(buffer, store, one)
    return copied(found)


HYPER = {"n_epochs": 2, "ent_coef": 0.01}


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_first_trajectory_is_learned_from_as_without_replay(count: int) -> None:
    """Missing trajectories are masked: they change neither the update nor its averages."""
    usual = agent(**HYPER)
    many = agent(replay_trajectories=3, batch_size=count * STEPS * N, **HYPER)
    state, x = start(usual), rollout(usual, off_policy=0.3)
    wanted, metrics = learn(usual, state, x)
    own, same = learn(many, state, replayed(count, [x]))
    assert largest_change(plain(state), plain(wanted)) > 1e-3
    assert_close(own, wanted)
    assert same == pytest.approx(metrics, rel=1e-4, abs=1e-5)


def test_a_full_buffer_is_learned_from_as_one_trajectory_of_more_environments() -> None:
    """Only the newest trajectory's steps are counted as new."""
    usual = agent(batch_size=3 * STEPS * N, **HYPER)
    many = agent(replay_trajectories=3, batch_size=3 * STEPS * N, **HYPER)
    parts = [rollout(usual, seed, off_policy=0.3) for seed in range(4)]
    kept = parts[:0:-1]
    whole = Trajectory(
        **{name: np.concatenate([getattr(x, name) for x in kept], 1) for name in PLAIN},
        last_obs=np.concatenate([x.last_obs for x in kept]),
        finals=Finals(
            np.stack([x.finals.obs[0] for x in kept]),
            np.asarray([4 * 3 * N + number * N + 1 for number in range(3)], np.int32),
        ),
        extras={"log_prob": np.concatenate([x.extras["log_prob"] for x in kept], 1)},
    )
    state = start(usual)
    wanted, metrics = learn(usual, state, whole)
    own, same = learn(many, state, replayed(3, parts))
    assert_close(plain(own), plain(wanted))
    assert same == pytest.approx(metrics, rel=1e-4, abs=1e-5)
    assert (own.counters.step, wanted.counters.step) == (STEPS * N, 3 * STEPS * N)


def test_old_trajectories_keep_the_probabilities_of_the_policy_that_acted() -> None:
    """After the policy has changed, the ratios of an old trajectory are relative to that policy."""
    many = agent(replay_trajectories=2, batch_size=2 * STEPS * N, n_epochs=1)
    state, x = start(many), rollout(many)
    moved, first = learn(many, state, replayed(2, [x]))
    _, again = learn(many, moved, replayed(2, [x, x]))
    assert first["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert again["approx_kl"] > 1e-4


def test_a_restored_learner_continues_with_the_same_numbers() -> None:
    many = agent(replay_trajectories=3, batch_size=STEPS * N)
    parts = [rollout(many, seed, off_policy=0.1) for seed in range(5)]
    learners: list[Learner] = []
    for _ in range(2):
        buffer = TrajectoryReplay(many, 3, shapes_of(parts[0]))
        device = jax.devices("cpu")[0]
        learner = Learner(many, buffer, Mesh([device], 1), raw_key(0, 0), raw_key(0, 1), Spans())
        learners.append(learner)
    one, other = learners
    state = one.start()
    for x in parts[:2]:
        state, _, _ = one.learn(state, x)
    saved = one.buffer.saved(state.store, state.counts)
    again = other.restored(jax.tree.map(np.array, one.host_state(state.learned)), saved)
    for x in parts[2:]:
        state, _, metrics = one.learn(state, x)
        again, _, same = other.learn(again, x)
        assert metrics == same
    assert_close(one.host_state(state.learned), other.host_state(again.learned), atol=0.0)
