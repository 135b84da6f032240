"""Sharded updates: results depend on the number of shards, not on the number of devices."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.__main__ import main
from flatout.algorithms.shards import Shards, gradient
from flatout.engine.mesh import Mesh
from flatout.engine.replay.counters import RingRows
from flatout.engine.replay.ring import Ring, RingLayout
from flatout.engine.trajectory import split, split_envs
from flatout.storage import checkpoint
from flatout.types import Finals, ObservationSpec, Trajectory
from tests import tiny
from tests.conftest import Result, furthest, last_saved
from tests.worlds import Rates, Store, World

Cli = Callable[..., Result]
Learned = Callable[..., dict[str, np.ndarray]]

REPLAYED = (
    "--batch-size", 32, "--learning-starts", 64, "--buffer-size", 96, "--steps", 400,
    "--gradient-steps", 1, "--train-freq", 16, "--hidden", 16,
)  # fmt: skip
RUNS: dict[str, tuple[Any, ...]] = {
    "ppo": (
        "ppo", "--env", "Pendulum-v1", "--n-steps", 16, "--batch-size", 32, "--n-epochs", 2,
        "--steps", 256, "--normalize-observation", "--normalize-reward", "--hidden", 16,
    ),
    "a2c": (
        "a2c", "--env", "CartPole-v1", "--steps", 80, "--normalize-advantage", "--hidden", 16,
    ),
    "dqn": ("dqn", "--env", "CartPole-v1", *REPLAYED, "--gradient-steps", 4, "--train-freq", 32),
    "td3": ("td3", "--env", "Pendulum-v1", *REPLAYED),
    "sac": ("sac", "--env", "Pendulum-v1", *REPLAYED),
}  # fmt: skip
"""Short runs of a few updates each, of 16 environments."""
ORDERED = ("--reduce", "ordered")
ONE = (*ORDERED, "--devices", 1)
"""Flags of the run with which the other runs of an algorithm are compared."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return ``trained("ppo", "--devices", 2) -> Path``: the folder of a run in 8 shards.

    Runs with the same flags are trained once for all tests.
    """
    folder, numbers = tmp_path_factory.mktemp("trained"), itertools.count()

    @functools.cache
    def train(name: str, *flags: object) -> Path:
        run = folder / str(next(numbers))
        always = ("--envs", 16, "--shards", 8, "--quiet", "--no-tensorboard", "--run-dir", run)
        assert main(tiny.latest(["train", *map(str, (*RUNS[name], *always, *flags))])) == 0
        return run

    return train


@pytest.fixture
def learned(
    trained: Callable[..., Path], shared_programs: None
) -> Callable[..., dict[str, np.ndarray]]:
    """Return a function from a run's flags to the arrays of its last checkpoint."""
    return lambda *flags: last_saved(trained(*flags))


@pytest.mark.bits
@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("ppo", 2), ("dqn", 8), ("sac", 8)])
def test_shards_learn_the_same_on_any_number_of_devices(
    name: str, count: int, learned: Learned
) -> None:
    """A2C's gradients are summed as PPO's are, and TD3's as SAC's: see the tests below."""
    assert furthest(learned(name, *ONE), learned(name, *ORDERED, "--devices", count)) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_the_fastest_sum_of_shards_differs_only_by_rounding(name: str, learned: Learned) -> None:
    assert furthest(learned(name, *ONE), learned(name, "--devices", 8)) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("ppo", 1), ("dqn", 1), ("td3", 8)])
def test_gradients_of_micro_batches_average_to_the_whole_batch(
    name: str, count: int, learned: Learned
) -> None:
    """On several devices, shards are summed in the fastest order, too."""
    pieces = learned(name, "--micro-batch", 2, "--devices", count)
    assert furthest(learned(name, *ONE), pieces) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_shards_of_a_full_batch_learn_the_same_as_one_shard(name: str, learned: Learned) -> None:
    """Advantages, observations and rewards are normalised over all shards together."""
    full = ("--batch-size", 256) if name == "ppo" else ()
    one, parts = learned(name, *full, "--shards", 1), learned(name, *full, "--devices", 8)
    assert furthest(one, parts) < 2e-5


@pytest.mark.slow
def test_local_sgd_learns_the_same_on_any_number_of_devices(learned: Learned) -> None:
    flags = ("dqn", "--sync", "every:3", "--devices")
    one = learned(*flags, 1)
    assert furthest(one, learned(*flags, 8)) < 2e-5
    assert furthest(one, learned("dqn", *ONE)) > 1e-4  # it differs from averaging each gradient


@pytest.mark.slow
def test_padded_episodes_learn_the_same_on_any_number_of_devices(learned: Learned) -> None:
    """Rows that only pad a trajectory do not count, however unevenly shards have them."""
    flags = ("ppo", "--env", "CartPole-v1", "--rollout-episodes", 16, "--batch-size", 64,
             "--steps", 600, "--env-kwargs", "max_episode_steps=40", "--devices")  # fmt: skip
    assert furthest(learned(*flags, 1), learned(*flags, 4)) < 2e-5


PRIORITISED = (
    "dqn", "--prioritized", "--n-step", 3, "--gradient-steps", 1, "--train-freq", 16, *ORDERED,
    "--buffer-size", 256, "--steps", 640, "--checkpoint-every", 320, "--keep-checkpoints", 2,
    "--devices",
)  # fmt: skip
"""Flags with prioritised replay, in which a difference of one bit would change the rows drawn."""
PLACES = {place: ("--placement", f"act=cpu replay={place}") for place in ("cpu", "device")}


@pytest.mark.bits
@pytest.mark.slow
@pytest.mark.parametrize("where", PLACES)
def test_sharded_replay_is_the_same_in_any_memory_on_any_number_of_devices(
    where: str, learned: Learned
) -> None:
    """The bits are equal if each trajectory pays for one update."""
    one = learned(*PRIORITISED, 1, *PLACES["device"])
    assert furthest(one, learned(*PRIORITISED, 4, *PLACES[where])) == 0.0


@pytest.mark.bits
@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "then", "first", "last"), [("device", "cpu", 1, 4), ("cpu", "device", 4, 1)]
)
def test_a_run_resumes_on_another_number_of_devices_with_its_replay_elsewhere(
    where: str, then: str, first: int, last: int, trained: Callable[..., Path], learned: Learned,
    tmp_path: Path,
) -> None:  # fmt: skip
    """It resumes from its first checkpoint, as if it had been killed before the second."""
    whole = learned(*PRIORITISED, last, *PLACES[then])
    run = shutil.copytree(trained(*PRIORITISED, first, *PLACES[where]), tmp_path / "run")
    early, late = checkpoint.checkpoints(run / "checkpoints")
    assert (early.name, late.name) == ("step_000000000320", "step_000000000640")
    shutil.rmtree(late)
    again = ("train", "--resume", run, "--devices", last, "--quiet", *PLACES[then])
    assert main([str(word) for word in again]) == 0
    assert furthest(whole, last_saved(run)) == 0.0


@pytest.mark.slow
def test_replay_and_its_memory_are_divided_over_the_devices(
    trained: Callable[..., Path], shared_programs: None
) -> None:
    """Each device has all parameters and its part of replay, as the expectation says."""
    memory: dict[int, dict[str, Any]] = {}
    for count in (1, 4):
        run = trained(*PRIORITISED, count, *PLACES["device"])
        memory[count] = json.loads((run / "summary.json").read_text())["memory_mb"]
    whole = memory[1]["cpu"]
    assert set(memory[4]) == {"cpu", "cpu:1", "cpu:2", "cpu:3"}
    for device in memory[4].values():
        live = device["live"]
        assert live["replay"] == pytest.approx(whole["live"]["replay"] / 4, abs=0.01)
        assert live["model"] == whole["live"]["model"]
        assert live["optimiser"] == whole["live"]["optimiser"]
        assert 2 * live["model"] == pytest.approx(device["expected"]["model"], abs=0.01)
        assert live["replay"] == pytest.approx(device["expected"]["replay"], rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "remains"), [("ppo", 0.4), ("dqn", 0.4)])
def test_divided_parameters_learn_the_same_in_less_memory(
    name: str, remains: float, trained: Callable[..., Path], shared_programs: None
) -> None:
    flags = (name, "--hidden", "128,128", "--devices", 4)
    whole, divided = trained(*flags), trained(*flags, "--placement", "act=cpu params=sharded")
    assert furthest(last_saved(whole), last_saved(divided)) < 2e-5
    memory: dict[str, float] = {}
    for run in (whole, divided):
        summary = json.loads((run / "summary.json").read_text())
        live = [device["live"] for device in summary["memory_mb"].values()]
        assert len(live) == 4
        memory[run] = max(one["model"] + one["optimiser"] for one in live)
    assert memory[divided] < remains * memory[whole]


# --- The pieces ---------------------------------------------------------------------------------


def test_each_device_holds_only_its_shards() -> None:
    """Arrays of the shards are divided over the devices; shared arrays are on every device."""
    mesh = Mesh(jax.devices("cpu")[:4], 8)
    arrays = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)
    placed = mesh.put({"own": arrays, "all": arrays}, {"own": 0, "all": None})
    for number, shard in enumerate(placed["own"].addressable_shards):
        np.testing.assert_array_equal(shard.data, arrays[2 * number : 2 * number + 2])
        assert shard.data.nbytes == arrays.nbytes // 4
    assert all(shard.data.nbytes == arrays.nbytes for shard in placed["all"].addressable_shards)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("own", [False, True], ids=["shared parameters", "parameters of a shard"])
def test_the_mean_over_shards_is_that_over_all_rows(devices: int, own: bool) -> None:
    """This holds with and without one batch per device; arrays of rows are split again."""
    shards = Shards(4)
    mesh = Mesh(jax.devices()[:devices], 4)
    seen = []

    def loss(weight: jax.Array, rows: Any) -> tuple[jax.Array, Any]:
        x, y, _ = rows
        seen.append(len(x))
        error = x @ weight - y
        return jnp.square(error).mean(), ({"size": jnp.abs(error).mean()}, error)

    averaged = gradient(loss, 20, shards=shards)

    def part(state: Any, held: Any, weight: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        grad, means, error = averaged(weight, (x, y, jnp.ones(len(x))))
        return state, held, means["loss"], means["size"], grad, error

    rng = np.random.default_rng(0)
    weight, x, y = (rng.normal(size=shape) for shape in ((3,), (4, 5, 3), (4, 5)))
    weights = np.broadcast_to(weight, (4, 3)) if own else weight
    axes, out = (None, None, 0 if own else None, 0, 0), (None,) * 5 + (0,)
    given = mesh.put((np.zeros(()), np.zeros(()), weights, x, y), axes)
    _, _, value, size, grad, error = mesh.program(part, axes, out)(*given)
    assert (max(seen) == 5) == own, "the rows of a device's shards are one batch"
    wanted = x @ weight - y
    np.testing.assert_allclose(value, np.square(wanted).mean(), rtol=1e-5)
    np.testing.assert_allclose(size, np.abs(wanted).mean(), rtol=1e-5)
    np.testing.assert_allclose(grad, 2 * np.einsum("snd,sn->d", x, wanted) / 20, rtol=1e-4)
    np.testing.assert_allclose(error, wanted, rtol=1e-4, atol=1e-5)


# Divided parameters are not summed in order.
@pytest.mark.parametrize(("divided", "ordered"), [(False, False), (True, False), (False, True)])
def test_an_average_of_many_arrays_is_that_of_each(divided: bool, ordered: bool) -> None:
    """Arrays cross the devices in one vector, but each is averaged by itself."""
    mesh = Mesh(jax.devices("cpu")[:4], 8, divided)
    shards = Shards(8, every=2, ordered=ordered, mapped=not divided)
    rng = np.random.default_rng(0)
    own = {
        "scalar": rng.normal(size=8), "matrix": rng.normal(size=(8, 3, 5)),
        "wide": rng.normal(size=(8, 200, 200)), "half": rng.normal(size=(8, 7)),
    }  # fmt: skip
    own = {name: array.astype(np.float32) for name, array in own.items()}
    own["half"] = jnp.asarray(own["half"], jnp.bfloat16)
    counted = np.arange(8, dtype=np.int32)

    def run(state: Any, held: Any, tree: Any, counted: Any) -> tuple[Any, ...]:
        settled = shards.sync_now({**tree, "count": counted})
        said = shards.mean(tree), shards.sum(counted), settled
        return state, held, said, settled.pop("count")

    program = mesh.program(run, (None, None, 0, 0), (None, None, None, 0))
    given = mesh.put((np.zeros(()), np.zeros(()), own, counted), (None, None, 0, 0))
    _, _, (means, total, settled), count = jax.device_get(program(*given))
    assert total == 28
    np.testing.assert_array_equal(count, counted)  # numbers of updates are not averaged
    for name, array in own.items():
        assert means[name].dtype == settled[name].dtype == array.dtype
        expected = np.asarray(array, np.float64).mean(0)
        for found in (means, settled):
            np.testing.assert_allclose(
                found[name].astype(np.float64), expected, atol=4e-3 if name == "half" else 1e-6
            )


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_trajectory_is_split_by_environment(data: st.DataObject) -> None:
    steps, own, parts = data.draw(st.tuples(*(st.integers(1, 4),) * 3))
    envs = own * parts
    cuts = data.draw(st.sets(st.integers(0, steps * envs - 1), max_size=8))
    index = np.full(envs * 8, steps * envs, np.int32)
    index[: len(cuts)] = sorted(cuts)
    flat = np.arange(steps * envs).reshape(steps, envs)
    whole = Trajectory(
        obs=flat, actions=flat, rewards=flat, terminated=flat, truncated=flat,
        last_obs=np.arange(envs), finals=Finals(index.copy(), index), extras={"log": flat},
    )  # fmt: skip
    for number, part in enumerate(split(whole, parts)):
        lanes = slice(number * own, (number + 1) * own)
        np.testing.assert_array_equal(part.rewards, flat[:, lanes])
        np.testing.assert_array_equal(part.extras["log"], flat[:, lanes])
        np.testing.assert_array_equal(part.last_obs, np.arange(envs)[lanes])
        used = part.final_index < steps * own
        # Each final observation here is its index in the whole trajectory.
        np.testing.assert_array_equal(
            part.rewards.reshape(-1)[part.final_index[used]], part.final_obs[used]
        )
        assert set(part.final_obs[used]) == {cut for cut in cuts if cut % envs // own == number}


def test_rows_of_shards_are_those_of_one_ring() -> None:
    """Rows ``[S, L * n, ...]`` in NumPy, on one device or two are read like ``[L * N, ...]``."""
    shards, envs, rows = 4, 2, 9
    whole = RingLayout(ObservationSpec((3,), "float32"), shards * envs, rows, 1)
    one = dataclasses.replace(whole, num_envs=envs)
    world, store = World(whole.spec, whole.num_envs, 1, Rates(0.2, 0.3, 0)), Store(whole)
    for length in (3, 5, 4, 2, 6):
        store.take(world.collect(length))

    def part(array: np.ndarray) -> np.ndarray:
        parts = split_envs(array.reshape(whole.length, whole.num_envs, *array.shape[1:]), shards)
        return parts.reshape(shards, -1, *array.shape[1:])

    finals = np.broadcast_to(store.ring.finals, (shards, *store.ring.finals.shape))
    parted = Ring(*map(part, store.ring[:-1]), finals)
    devices = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), ("devices",))
    over = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("devices"))
    plain = RingRows(whole, store.ring, store.ring_counters.rows_written)
    first, end = plain.stored
    for ring in (parted, jax.device_put(parted), jax.device_put(parted, over)):
        read = RingRows(one, ring, store.ring_counters.rows_written)
        assert read.stored == (first, end)
        for start, stop in ((first, end), (first + 2, first + 3), (end - 4, end)):
            for name, array in plain.read(start, stop).items():
                np.testing.assert_array_equal(read.read(start, stop)[name], array)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--envs", 6, "--shards", 4), "must divide envs = 6"),
        (("--envs", 6, "--shards", 3), "must divide batch_size = 64"),
        (("--envs", 4, "--devices", 2), "pass --shards 2 or a multiple"),
        (("--envs", 8, "--shards", 8, "--devices", 3), "pass --shards 3 or a multiple"),
        (("--envs", 8, "--devices", 2, "--placement", "act=cpu learn=cpu"), "both say where"),
        (("--envs", 16, "--shards", 16, "--devices", 16), "cpu:8"),
        (("--placement", "act=cpu params=sharded"), "several learning devices"),
        (("--micro-batch", 7), "divisor such as 4"),
        (("--micro-batch", 8, "--replay-trajectories", 2), "replay_trajectories"),
        (("--sync", "sometimes"), "every-step nor every:K"),
        (("--envs", 8, "--shards", 2, "--sync", "every:4", "--target-kl", 0.1), "target_kl"),
        (("--envs", 2, "--shards", 2, "--sync", "every:4", "--batch-size", 2), "learn apart"),
        (("--rollout-episodes", 1, "--batch-size", 1), "at least 2 transitions"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    flags: tuple[Any, ...], words: str, flatout: Cli, tmp_path: Path
) -> None:
    result = flatout("train", "ppo", "--env", "CartPole-v1", *flags, "--run-dir", tmp_path / "r")
    assert result.code == 2
    assert words in result.message
