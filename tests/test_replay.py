"""Replay in host memory and in a device's: the same learning to the last bit, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout import checkpoint
from flatout.algorithms.base import Algorithm, ReplayNeeds, raw_key, shapes_of
from flatout.algorithms.dqn import dqn
from flatout.algorithms.sac import sac
from flatout.buffers.device import DeviceReplay
from flatout.buffers.ledger import Ledger
from flatout.buffers.replay import HostReplay
from flatout.buffers.ring import Geometry, gather
from flatout.config import NetworkConfig
from flatout.hyper import DQNConfig, SACConfig
from flatout.learner import Learner
from flatout.segments import SavedRows, SegmentStore
from flatout.spans import Spans
from flatout.types import ContinuousSpec, DiscreteSpec, ObservationSpec, Trajectory
from tests.conftest import Result
from tests.test_resume import assert_same
from tests.test_ring import NEEDS, VECTOR, Rates, World, compare, grid, image, plain

LANES, ROWS, TOTAL = 2, 12, 400
NETWORK = NetworkConfig(network="mlp", hidden=(8,))
COMMON = {"batch_size": 8, "train_freq": 4, "learning_starts": 6, "buffer_size": LANES * ROWS}


def build(name: str = "dqn", spec: ObservationSpec = VECTOR, **hyper: Any) -> Algorithm:
    """A small algorithm for `LANES` environments."""
    sizes = {"num_envs": LANES, "total_steps": TOTAL}
    if name == "sac":
        box = ContinuousSpec((2,), (-1.0, -1.0), (1.0, 1.0))
        return sac(SACConfig(**COMMON | hyper), NETWORK, spec, box, **sizes)
    own = {"target_update_interval": 10, "learning_rate": 0.01}
    return dqn(DQNConfig(**COMMON | own | hyper), NETWORK, spec, DiscreteSpec(3), **sizes)


class Agent:
    """A learner with the trajectories that it is fed: the same ones for the same seed.

    Args:
        algorithm: learns.
        spec: one observation.
        kind: ``host`` or ``device``.
        chunk: see `HostReplay`.
        rates: of ends.
        number: of the CPU device that learns.
        seed: of the trajectories.
    """

    def __init__(
        self, algorithm: Algorithm, spec: ObservationSpec = VECTOR, kind: str = "host",
        chunk: int | None = None, rates: Rates | None = None, number: int = 0, seed: int = 0,
    ) -> None:  # fmt: skip
        needs = algorithm.replay
        assert needs is not None
        self.geometry = Geometry(spec, LANES, ROWS, needs.n_step, needs.gamma)
        box = 2 if algorithm.name == "sac" else 0
        self.world = World(spec, LANES, seed, rates or Rates(), box)
        self.rows = algorithm.horizon
        shapes = shapes_of(World(spec, LANES, 0, Rates(0, 0, 0), box).collect(self.rows))
        cpus, key = jax.devices("cpu"), raw_key(0, 3)
        self.buffer: Any = (
            DeviceReplay(algorithm, self.geometry, shapes, key, LANES) if kind == "device"
            else HostReplay(algorithm, self.geometry, shapes, key, cpus[0], chunk)
        )  # fmt: skip
        self.learner = Learner(
            algorithm, self.buffer, cpus[number], raw_key(0, 0), raw_key(0, 1), Spans()
        )
        self.learner.compile_update(shapes)
        self.learner.start()
        self.updates = 0

    def step(self, trajectory: Trajectory | None = None) -> dict[str, float]:
        """One trajectory and its updates; the metrics, less how much memory is taken."""
        metrics = self.learner.update(trajectory or self.world.collect(self.rows))
        del metrics["replay_mb"]
        self.updates += round(metrics["updates"])
        return metrics

    def cut(self, lane: int) -> None:
        """The lane's episode is lost."""
        self.learner.cut(lane, *self.world.restart(lane))


def assert_equal(one: Agent, other: Agent, steps: int = 40, cuts: tuple[int, ...] = ()) -> None:
    """Two agents learn the same for so many trajectories, to the last bit."""
    before = jax.tree.leaves(one.learner.host_state())
    for number in range(steps):
        if number in cuts:
            one.cut(number % LANES)
            other.cut(number % LANES)
        assert one.step() == other.step(), f"trajectory {number}"
    assert one.updates == other.updates > 0
    states = [jax.tree.leaves(agent.learner.host_state()) for agent in (one, other)]
    assert_same(*states)
    assert any(a.tobytes() != b.tobytes() for a, b in zip(before, states[0], strict=True))


FIVE = {"train_freq": 4, "gradient_steps": 5}
UNIFORM = {
    "plain": ("dqn", VECTOR, {}),
    "many": ("dqn", VECTOR, FIVE | {"n_step": 3, "double": True, "dueling": True}),
    "stacked": ("dqn", image(3), {"gradient_steps": 2, "n_step": 2, "optimizer": "rmsprop"}),
    "zeros": ("dqn", image(2, "zeros"), {"train_freq": 6, "gradient_steps": 4}),
    "sac": ("sac", VECTOR, {"train_freq": 2, "gradient_steps": 2}),
}


@pytest.mark.parametrize("case", UNIFORM)
def test_where_replay_lives_changes_no_bit(case: str) -> None:
    name, spec, hyper = UNIFORM[case]
    algorithm = build(name, spec, **hyper)
    one, other = Agent(algorithm, spec), Agent(algorithm, spec, "device")
    assert_equal(one, other, cuts=(0, 3, 11, 12))


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_prioritised_too_where_each_trajectory_pays_for_one_update(name: str) -> None:
    hyper = {"prioritized": True, "train_freq": 6, "learning_starts": 16}
    algorithm = build(name, **hyper)
    assert_equal(Agent(algorithm), Agent(algorithm, kind="device"))


@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_dispatching_in_parts_changes_no_bit(chunk: int, prioritised: bool) -> None:
    """Also of trajectories that pay for fewer updates than most do: here 0, 2 and 5."""
    algorithm = build(prioritized=prioritised, **FIVE)
    one, other = Agent(algorithm), Agent(algorithm, chunk=chunk)
    assert_equal(one, other, steps=15)


@pytest.mark.parametrize("number", [0, 1])
def test_truncation_with_every_step_makes_room(number: int) -> None:
    """From none to as many final observations as there are rows, on either kind."""
    algorithm = build(n_step=2)
    one, other = Agent(algorithm), Agent(algorithm, kind="device", number=number)
    for truncated in (0, 0.1, 1, 1, 1, 1, 1, 1, 1, 0.2, 0):
        for agent in (one, other):
            agent.world.rates = Rates(0, truncated, 0)
        assert_equal_step(one, other)
    assert len(one.buffer._ring.finals) == LANES * ROWS
    assert len(other.learner._held.ring.finals) == LANES * ROWS
    assert_rings_right(one, other)


def assert_equal_step(one: Agent, other: Agent) -> None:
    assert one.step() == other.step()
    assert_same(*(jax.tree.leaves(agent.learner.host_state()) for agent in (one, other)))


def assert_rings_right(*agents: Agent) -> None:
    """Both kinds' rings hold what happened."""
    for agent in agents:
        held = agent.learner._held
        ring = held.ring if held else agent.buffer._ring
        head = agent.buffer._ledger.head
        row, lane = grid(agent.geometry, head)
        ring = type(ring)(*map(np.asarray, ring))
        batch = gather(np, agent.geometry, ring, head, row, lane)
        compare(agent.world, agent.geometry, plain(agent.geometry, batch), head, row, lane)


@pytest.mark.parametrize("kind", ["host", "device"])
def test_rings_hold_what_happened(kind: str) -> None:
    agent = Agent(build(spec=image(3), n_step=3), image(3), kind, rates=Rates(0.1, 0.3, 0.2))
    for number in range(30):
        agent.step()
        if number % 7 == 6:
            agent.cut(number % LANES)
        assert_rings_right(agent)


@pytest.mark.parametrize("prioritised", [False, True])
@pytest.mark.parametrize("kinds", [("host", "host"), ("host", "device"), ("device", "host")])
@pytest.mark.parametrize("steps", [1, 9, 17])
def test_a_saved_buffer_goes_on_as_if_nothing_had_been(
    kinds: tuple[str, str], prioritised: bool, steps: int, tmp_path: Path
) -> None:
    """Through files, before the ring is full and after; also into the other kind."""
    spec = image(3)
    algorithm = build(spec=spec, prioritized=prioritised, train_freq=6, learning_starts=0)
    rates = Rates(0.05, 0.3, 0.1)
    one, other = (Agent(algorithm, spec, kind, rates=rates) for kind in kinds)
    for _ in range(steps):
        one.step()
    store = SegmentStore(tmp_path)
    arrays, data, rows = one.learner.buffer_state()
    assert rows is not None
    saved = SavedRows(tmp_path, store.save(rows), rows.stored)
    arrays = {name: array.copy() for name, array in arrays.items()}
    other.learner.restore(one.learner.host_state(), arrays, data, saved)
    other.world = World(spec, LANES, 0, rates)
    for _ in range(steps):
        other.world.collect(other.rows)
    assert_rings_right(one, other)
    assert_equal(one, other, steps=12, cuts=(0, 5))


def test_what_is_kept_is_said() -> None:
    algorithm = build(spec=image(3))
    for kind in ("host", "device"):
        agent = Agent(algorithm, image(3), kind)
        fill = [agent.step()["replay_fill"] for _ in range(8)]
        assert fill == [min(2 * n, ROWS) / ROWS for n in range(1, 9)]
        mb = agent.buffer.memory_mb()
        assert mb[kind == "device"] == agent.buffer.facts()["replay_mb"] > 0
        assert mb[kind == "host"] == 0


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 5), st.integers(1, 9), st.integers(1, 7), st.integers(0, 60), st.integers(1, 30)
)
def test_updates_are_those_that_the_steps_have_paid_for(
    lanes: int, train_freq: int, gradient_steps: int, learning_starts: int, rounds: int
) -> None:
    """K updates for every M steps after the first ones, remainders carried over."""
    needs = ReplayNeeds(
        **vars(NEEDS) | {
            "train_freq": train_freq, "gradient_steps": gradient_steps,
            "learning_starts": learning_starts,
        }
    )  # fmt: skip
    rows = needs.horizon(lanes)
    assert rows * lanes >= train_freq > (rows - 1) * lanes
    ledger = Ledger(Geometry(VECTOR, lanes, max(rows, 4), 1, 0.9), needs)
    world, total, steps = World(VECTOR, lanes, 0), 0, 0
    for _ in range(rounds):
        ledger.take(world.collect(rows))
        steps += rows * lanes
        total += ledger.due
        assert 0 <= ledger.due <= needs.most(lanes)
        assert total == ledger.made
        assert total == max(steps - learning_starts, 0) * gradient_steps // train_freq


@pytest.mark.parametrize("kind", ["host", "device"])
def test_the_updates_that_are_due_are_made(kind: str) -> None:
    agent = Agent(build(train_freq=3, gradient_steps=2, learning_starts=5), kind=kind)
    made = [round(agent.step()["updates"]) for _ in range(12)]
    assert np.cumsum(made).tolist() == [max(4 * n - 5, 0) * 2 // 3 for n in range(1, 13)]
    state: Any = agent.learner.host_state()
    assert (state.updates, state.step) == (sum(made), 48)


def test_beta_moves_over_the_run() -> None:
    ledger = Ledger(Geometry(VECTOR, 2, 4, 1, 0.9), NEEDS)
    world, seen = World(VECTOR, 2, 0), [ledger.beta]
    for _ in range(300):
        ledger.take(world.collect(2))
        seen.append(ledger.beta)
    assert seen[:3] == pytest.approx([0.4, 0.4 + 0.6 * 0.004, 0.4 + 0.6 * 0.008])
    assert seen[250:] == [1.0] * 51


RUN = (
    "train", "dqn", "--env", "CartPole-v1", "--envs", 2, "--steps", 600, "--learning-starts", 100,
    "--buffer-size", 300, "--batch-size", 16, "--hidden", 16, "--gradient-steps", 2,
    "--checkpoint-every", 0, "--no-tensorboard", "--quiet",
)  # fmt: skip


def test_a_run_learns_the_same_with_replay_on_the_device(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    found = []
    for number, placement in enumerate(
        ("cpu", "act=cpu replay=device", "learn=cpu:1 replay=device")
    ):
        run = tmp_path / str(number)
        result = flatout(*RUN, "--placement", placement, "--run-dir", run)
        assert result.code == 0, result.err
        found.append(checkpoint.load_agent(run / "params.safetensors")[0])
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])
