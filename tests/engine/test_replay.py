"""Replay in host memory and replay on a device learn the same bits in all cases."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from flatout.algorithms.base import Algorithm, BuildSpec, shapes_of
from flatout.algorithms.dqn import dqn
from flatout.algorithms.sac import sac
from flatout.config.hyper import DQNConfig, SACConfig
from flatout.config.schema import NetworkConfig
from flatout.engine.learn import Learner
from flatout.engine.mesh import Mesh
from flatout.engine.replay.counters import RingRows
from flatout.engine.replay.device import DeviceReplay
from flatout.engine.replay.host import HostReplay
from flatout.engine.replay.ring import Ring, RingLayout, gather
from flatout.engine.replay.sampling import EPSILON, empty_priorities, leaves, saved
from flatout.randomness import raw_key
from flatout.spans import Spans
from flatout.storage import checkpoint
from flatout.storage.segments import SavedRows, SegmentStore
from flatout.types import ContinuousSpec, DiscreteSpec
from tests import tiny
from tests.conftest import Result
from tests.run.test_resume import assert_same
from tests.worlds import VECTOR, Rates, Store, World, compare, grid, image, plain

LANES, ROWS, TOTAL = 2, 12, 400
NETWORK = NetworkConfig(network="mlp", hidden=(8,))
COMMON = {"batch_size": 8, "train_freq": 4, "learning_starts": 6, "buffer_size": LANES * ROWS}
FIVE = {"gradient_steps": 5}
CASES = {
    "vectors": ("dqn", VECTOR, FIVE | {"n_step": 3, "double": True, "dueling": True}),
    "stacks": ("dqn", image(3), {"gradient_steps": 2, "n_step": 2, "optimizer": "rmsprop"}),
    "actions": ("sac", VECTOR, {"gradient_steps": 2}),
    "priorities": ("dqn", VECTOR, {"prioritized": True, "train_freq": 6, "learning_starts": 16}),
    "several": ("dqn", VECTOR, FIVE | {"prioritized": True}),
}


@functools.cache
def build(case: str) -> Algorithm:
    """Build a small algorithm for `LANES` environments."""
    name, spec, hyper = CASES[case]
    sizes = {"num_envs": LANES, "total_steps": TOTAL}
    if name == "sac":
        box = ContinuousSpec((2,), (-1.0, -1.0), (1.0, 1.0))
        return sac(SACConfig(**COMMON | hyper), BuildSpec(NETWORK, spec, box, **sizes))
    own = {"target_update_interval": 10, "learning_rate": 0.01}
    sizes = BuildSpec(NETWORK, spec, DiscreteSpec(3), **sizes)
    return dqn(DQNConfig(**COMMON | own | hyper), sizes)


class Agent:
    """A learner and a world with trajectories for it, which are always the same.

    Args:
        case: a key of `CASES`.
        kind: where replay is, ``host`` or ``device``.
        chunk: see `HostReplay`.
        number: the number of the CPU device that learns.
    """

    def __init__(self, case: str, kind: str, chunk: int | None, number: int) -> None:
        algorithm, (_, self.spec, _) = build(case), CASES[case]
        needs = algorithm.replay
        assert needs is not None
        self.layout = RingLayout(self.spec, LANES, ROWS, needs.n_step)
        self.gamma = float(algorithm.hp.gamma)
        self.box = 2 if algorithm.name == "sac" else 0
        self.rows = algorithm.horizon
        self.enter()
        shapes = shapes_of(self.world.collect(self.rows))
        cpus, key = jax.devices("cpu"), raw_key(0, 3)
        self.buffer: Any = (
            DeviceReplay(algorithm, self.layout, shapes, key, LANES) if kind == "device"
            else HostReplay(algorithm, self.layout, shapes, key, cpus[0], chunk)
        )  # fmt: skip
        self.learner = Learner(
            algorithm, self.buffer, Mesh([cpus[number]], 1), raw_key(0, 0), raw_key(0, 1), Spans()
        )
        self.learner.compile_update(shapes)
        self.run = self.learner.start()
        self.initial = self.state(), copy.deepcopy(self.saved())

    def enter(self, rates: Rates | None = None) -> None:
        """Start a new world."""
        rates, room = rates or Rates(), LANES * self.rows
        self.world = World(self.spec, LANES, 0, rates, self.box, room)
        self.updates = 0

    def step(self) -> dict[str, float]:
        """Collect a trajectory and learn from it. Return the metrics without ``replay_mb``."""
        self.run, _, metrics = self.learner.learn(self.run, self.world.collect(self.rows))
        del metrics["replay_mb"]
        self.updates += round(metrics["updates"])
        return metrics

    def cut(self, lane: int) -> None:
        """Lose the lane's episode, as if it could not be restored."""
        self.run = self.learner.truncate(self.run, [(lane, *self.world.restart(lane))])

    def state(self) -> list[np.ndarray]:
        """Return the leaves of the learning state."""
        return jax.tree.map(np.array, self.run.learned)

    def saved(self) -> Any:
        """Return what a checkpoint holds of the buffer."""
        return self.buffer.saved(self.run.store, self.run.counts)

    def restore(self, learned: list[np.ndarray], saved: Any) -> None:
        """Continue from a result of `state` and of `saved`."""
        self.run = self.learner.restored(learned, saved)

    def assert_ring_right(self) -> None:
        """Check all transitions of the ring against the world's steps."""
        ring = Ring(*map(np.asarray, self.run.store.ring))
        rows_written = self.run.counts.rows_written
        row, lane = grid(self.layout, rows_written)
        found = gather(np, self.layout, ring, rows_written, row, lane)
        batch = plain(self.layout, found, self.gamma)
        compare(self.world, self.layout, batch, rows_written, row, lane, self.gamma)


compiled = functools.cache(Agent)


def agent(
    case: str, kind: str = "host", chunk: int | None = None, rates: Rates | None = None
) -> Agent:
    """Return an agent in its initial state. Its programs are compiled once for all tests.

    Agents with replay on a device learn on another CPU device than those with replay on the host.
    """
    found = compiled(case, kind, chunk, int(kind == "device"))
    found.restore(*found.initial)
    found.enter(rates)
    return found


def assert_equal(one: Agent, other: Agent, steps: int = 40, cuts: tuple[int, ...] = ()) -> None:
    """Check that two agents learn the same bits from `steps` trajectories.

    Args:
        cuts: the numbers of trajectories before which an episode is lost.
    """
    before = one.state()
    for number in range(steps):
        if number in cuts:
            one.cut(number % LANES)
            other.cut(number % LANES)
        found, wanted = one.step(), other.step()
        # The metrics of a trajectory that was dispatched in parts are means of means.
        assert found == pytest.approx(wanted, rel=1e-5), f"trajectory {number}"
    assert one.updates - other.updates == 0
    assert_same(one.state(), other.state())
    assert any(a.tobytes() != b.tobytes() for a, b in zip(before, one.state(), strict=True))


@pytest.mark.bits
@pytest.mark.parametrize(
    "case", ["stacks", *(pytest.param(n, marks=pytest.mark.slow) for n in ("vectors", "actions"))]
)
def test_where_replay_lives_changes_no_bit(case: str) -> None:
    """In the case "stacks" the capacity for final observations grows, which needs a new program."""
    rates = None if case == "stacks" else Rates(truncated=0.04)
    one, other = agent(case, rates=rates), agent(case, "device", rates=rates)
    assert_equal(one, other, cuts=(0, 3, 11, 12))


@pytest.mark.slow
@pytest.mark.bits
def test_prioritised_replay_on_a_device_changes_no_bit_with_one_update_per_trajectory() -> None:
    assert_equal(agent("priorities"), agent("priorities", "device"))


@pytest.mark.bits
@pytest.mark.parametrize(
    "case", ["several", pytest.param("vectors", marks=pytest.mark.slow)]
)  # fmt: skip
def test_dispatching_in_parts_changes_no_bit(case: str) -> None:
    """That holds also while trajectories make fewer updates due than later ones: 0, 2, then 5."""
    whole, parts = agent(case), agent(case, chunk=2)
    counts = [round(whole.step()["updates"]) for _ in range(4)]
    assert counts == [0, 2, 5, 5]
    assert_equal(agent(case), parts, steps=15)


@pytest.mark.parametrize("chunk", [None, 2])
def test_each_rows_priority_is_the_size_of_its_last_error(chunk: int | None) -> None:
    """A trajectory has 0, 2 or 5 updates, of which several may draw the same row."""
    one = agent("several", chunk=chunk)
    seen: list[Any] = []
    update = one.buffer.update_priorities

    def look(store: Any, due: Any, feedback: list[Any]) -> Any:
        seen.extend((due.drawn, *map(np.asarray, feedback)))
        return update(store, due, feedback)

    with mock.patch.object(one.buffer, "update_priorities", look):
        for count in (0, 2, 5, 5, 5):
            seen.clear()
            metrics = one.step()
            assert metrics["updates"] == count
            if not count:
                continue
            drawn, *fed_back = seen
            errors = np.concatenate(fed_back)[:count]
            assert errors.mean() == pytest.approx(metrics["td_error"], rel=1e-5)
            row, lane = (each[:count] for each in drawn)
            place = row % one.layout.length * LANES + lane
            last = dict(zip(place.reshape(-1).tolist(), errors.reshape(-1), strict=True))
            own = leaves(one.layout, one.run.store.priorities)
            wanted = [(error + EPSILON) ** 0.6 for error in last.values()]
            np.testing.assert_allclose(own[list(last)], wanted, rtol=1e-5)


def test_each_update_of_a_long_trajectory_has_a_batch_of_its_own() -> None:
    """A user's algorithm may choose a longer trajectory than `train_freq` needs. Its last updates
    repeated one batch."""
    algorithm = build("actions")
    needs = algorithm.replay
    assert needs is not None
    rows = 3 * algorithm.horizon
    world = World(VECTOR, LANES, 0, box=2, room=LANES * rows)
    layout = RingLayout(VECTOR, LANES, ROWS, needs.n_step)
    shapes = shapes_of(world.collect(rows))
    buffer = HostReplay(algorithm, layout, shapes, raw_key(0, 3), jax.devices("cpu")[0])
    store, counts, most = buffer.store(), buffer.counts(), 0
    for _ in range(3):
        due = buffer.ingest(store, counts, world.collect(rows))
        store, most = due.store, max(most, due.updates)
        assert not due.updates or len(due.drawn[0]) >= due.updates
    assert most == 3 * needs.gradient_steps


def test_a_compiled_loop_keeps_its_capacity_for_final_observations() -> None:
    """A ring in host memory doubles its capacity, also beyond what suffices. A fused run that began
    with it was given arrays for which its program is not compiled. Of a ring with more final
    observations than fit, as many runs that continue each other leave, the newest rows are kept."""
    algorithm, world = build("priorities"), World(VECTOR, LANES, 0)
    layout = RingLayout(VECTOR, LANES, ROWS, 1)
    host, enough = Store(layout), 5 * LANES
    for _ in range(ROWS):
        host.take(world.collect(1))
    host.ring_counters.final_capacity = 8 * LANES
    arrays, data, rows = host.ring_counters.saved(host.ring)
    arrays |= saved(layout, empty_priorities(layout))
    shapes = shapes_of(world.collect(algorithm.horizon))
    device = DeviceReplay(algorithm, layout, shapes, raw_key(0, 3), enough, 0)
    store, _ = device.restored(arrays, data, rows)
    assert shapes_of(store) == shapes_of(device.store())
    world.rates = Rates(0, 1, 0)
    for _ in range(ROWS):
        host.take(world.collect(1))
    arrays, data, rows = host.ring_counters.saved(host.ring)
    arrays |= saved(layout, empty_priorities(layout))
    store, counts = device.restored(arrays, data, rows)
    assert shapes_of(store) == shapes_of(device.store())
    assert (counts.rows_written, counts.finals) == (4, 4 * LANES)  # with room for one more each
    after, end = RingRows(layout, store.ring, 4).read(0, 4), 2 * ROWS
    for name, array in RingRows(layout, host.ring, end).read(end - 4, end).items():
        if name != "age":
            np.testing.assert_array_equal(after[name], array, err_msg=name)


@pytest.mark.bits
def test_truncation_with_every_step_makes_room() -> None:
    """The array grows from no final observation to one for each row, on a host and on a device."""
    one, other = agent("stacks"), agent("stacks", "device")
    for truncated in (0, 0.1, *[1] * 8, 0.2, 0):
        one.world.rates = other.world.rates = Rates(0, truncated, 0)
        assert one.step() == other.step()
        assert_same(one.state(), other.state())
        one.assert_ring_right()
        other.assert_ring_right()
    assert LANES * ROWS <= len(one.run.store.ring.finals) < 2 * LANES * ROWS
    assert len(one.run.store.ring.finals) == len(other.run.store.ring.finals)


@pytest.mark.parametrize("kind", ["host", "device"])
def test_rings_hold_the_worlds_steps(kind: str) -> None:
    one = agent("stacks", kind, rates=Rates(0.1, 0.3, 0.2))
    for number in range(30):
        one.step()
        if number % 7 == 6:
            one.cut(number % LANES)
        one.assert_ring_right()


def test_many_restarts_copy_a_ring_on_devices_once() -> None:
    """A start with another run's replay truncates every environment's episode. The ring, which may
    be most of a device's memory, was copied from and to the device for each of them."""
    shards, lanes = 2, 2 * 8
    algorithm, world = build("stacks"), World(CASES["stacks"][1], lanes, 0, Rates(0.1, 0.1, 0.1))
    layout = RingLayout(world.spec, lanes, ROWS, 2)
    host = Store(layout)
    for _ in range(ROWS + 3):
        host.take(world.collect(1))
    arrays, data, rows = host.ring_counters.saved(host.ring)
    layout = replace(layout, num_envs=lanes // shards)
    shapes = shapes_of(World(world.spec, lanes // shards, 0).collect(1))
    keys = np.stack([raw_key(0, 3), raw_key(1, 3)])
    buffer = DeviceReplay(algorithm, layout, shapes, keys, lanes)
    mesh = Mesh(jax.devices("cpu")[:shards], shards)
    learner = Learner(algorithm, buffer, mesh, raw_key(0, 0), raw_key(0, 1), Spans())
    learned = learner.host_state(learner.start().learned)
    saved = arrays, data | {"shards": shards}, rows
    one, other = (learner.restored(learned, saved) for _ in range(2))
    before = one.counts.finals
    restarts = [(lane, *world.restart(lane)) for lane in range(lanes)]
    with (
        mock.patch.object(mesh, "put", wraps=mesh.put) as put,
        mock.patch.object(buffer, "_join_ring", wraps=buffer._join_ring) as join,
    ):
        one = learner.truncate(one, restarts)
        assert learner.truncate(one, []) is one
        assert (join.call_count, put.call_count) == (1, 1)
        for restart in restarts:
            other = learner.truncate(other, [restart])
        assert (join.call_count, put.call_count) == (1 + lanes, 1 + lanes)
    assert before < one.counts.finals == other.counts.finals
    rings = [[np.array(leaf) for leaf in state.store.ring] for state in (one, other)]
    assert_same(rings[0], rings[1])


@pytest.mark.bits
@pytest.mark.parametrize("case", ["stacks", pytest.param("priorities", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kinds", [("host", "device"), ("device", "host")])
@pytest.mark.parametrize("steps", [pytest.param(0, marks=pytest.mark.slow), 1, 9])
def test_a_saved_and_restored_buffer_continues_with_the_same_bits(
    case: str, kinds: tuple[str, str], steps: int, tmp_path: Path
) -> None:
    """It is saved in files, before the ring is full and after, and restored as the other kind."""
    rates = Rates(0.05, 0.3, 0.1)
    one, other = (agent(case, kind, rates=rates) for kind in kinds)
    for _ in range(steps):
        one.step()
        other.world.collect(other.rows)
    arrays, data, rows = one.saved()
    assert rows is not None
    saved = SavedRows(tmp_path, SegmentStore(tmp_path).save(rows), rows.stored)
    arrays = {name: array.copy() for name, array in arrays.items()}
    other.restore(one.state(), (arrays, data, saved))
    other.updates = one.updates
    assert_equal(one, other, steps=12, cuts=(0, 5))
    one.assert_ring_right()
    other.assert_ring_right()


def test_the_fill_and_the_memory_are_reported() -> None:
    for kind in ("host", "device"):
        one = agent("stacks", kind)
        fill = [one.step()["replay_fill"] for _ in range(8)]
        assert fill == [min(2 * n, ROWS) / ROWS for n in range(1, 9)]
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(one.run.store.ring))
        assert one.buffer.stats(one.run.store, one.run.counts)["replay_mb"] == size / 2**20 > 0


@pytest.mark.parametrize(
    ("kind", "case", "each"), [("host", "several", 5), ("device", "stacks", 2)]
)
def test_the_updates_that_are_due_are_made(kind: str, case: str, each: int) -> None:
    one = agent(case, kind)
    made = [round(one.step()["updates"]) for _ in range(12)]
    assert np.cumsum(made).tolist() == [max(4 * n - 6, 0) * each // 4 for n in range(1, 13)]
    state: Any = one.learner.host_state(one.run.learned)
    assert (state.counters.updates, state.counters.step) == (sum(made), 48)


RUN = (
    "train", "dqn", *tiny.flags("dqn"), "--steps", 640, "--checkpoint-every", 0,
    "--no-tensorboard", "--quiet",
)  # fmt: skip
"""More steps than the buffer holds."""


@pytest.mark.slow
@pytest.mark.bits
def test_a_run_learns_the_same_with_replay_on_the_device(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    found: list[Any] = []
    for number, placement in enumerate(("cpu", "act=cpu replay=device")):
        run = tmp_path / str(number)
        result = flatout(*RUN, "--placement", placement, "--run-dir", run)
        assert result.code == 0, result.err
        found.append(checkpoint.load_agent(run / "params.safetensors")[0])
    assert_same(found[0], found[1])
