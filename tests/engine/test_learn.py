"""The learning step is pure, publishes the acting parameters, and flags NaN and infinity."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flatout.algorithms.base import Algorithm, BuildSpec, Counters, State, Updated, shapes_of
from flatout.algorithms.sac import sac
from flatout.algorithms.td3 import td3
from flatout.config.hyper import HYPER
from flatout.config.schema import NetworkConfig
from flatout.engine.buffer import Buffer, OnPolicyBuffer
from flatout.engine.learn import ActorLayout, Learner, make_learn_step, refuse_diverged
from flatout.engine.mesh import Mesh
from flatout.engine.replay.device import DeviceReplay
from flatout.engine.replay.ring import RingLayout
from flatout.engine.schedule import SerialSchedule
from flatout.engine.state import RunState
from flatout.errors import FlatoutError
from flatout.packing import PackedParams
from flatout.randomness import raw_key
from flatout.spans import Spans
from tests.algorithms import test_continuous, test_dqn, test_ppo
from tests.worlds import World

KEY = raw_key(0, 1)
LARGE = (128, 128)  # the shape of an array that is too large to be packed
Step = tuple[Algorithm, Buffer, list[Any]]
"""An algorithm, its buffer, and the inputs of several dispatches."""


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    """Compile these programs for the CPU, even if there is a GPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


# The steps that are tested


def on_policy() -> Step:
    algorithm = test_ppo.agent(n_epochs=2, normalize_observation=True, normalize_reward=True)
    trajectories = [test_ppo.rollout(test_ppo.agent(), seed, 0.3) for seed in range(3)]
    return algorithm, OnPolicyBuffer(algorithm), trajectories


def replayed(algorithm: Algorithm, box: int) -> Step:
    needs, rows = algorithm.replay, algorithm.horizon
    assert needs is not None
    world = World(test_dqn.OBS, 2, 0, box=box, room=2 * rows)
    geometry = RingLayout(test_dqn.OBS, 2, needs.buffer_size // 2, needs.n_step)
    trajectories = [world.collect(rows) for _ in range(3)]
    buffer = DeviceReplay(algorithm, geometry, shapes_of(trajectories[0]), raw_key(0, 3), 2 * rows)
    inputs: list[Any] = []
    store, counts = buffer.store(), buffer.counts()
    for trajectory in trajectories:
        due = buffer.ingest(store, counts, trajectory)
        store, inputs = due.store, [*inputs, *jax.tree.map(np.array, list(due.batches))]
    return algorithm, buffer, inputs


REPLAY = {"train_freq": 4, "gradient_steps": 3, "batch_size": 8, "buffer_size": 24}


class Hyper(NamedTuple):
    """The hyper-parameter of `doubling`."""

    scale: Any


def doubling(broken: str = "") -> Step:
    """Return an algorithm that adds the mean of its data to every parameter.

    It acts with an array of the state (``kept``) and one that `actor` computes (``computed``). The
    metric or parameter `broken` becomes NaN if the data are negative.
    """

    def init(key: np.ndarray, hp: Hyper) -> State:
        rng, zero = np.random.default_rng(key), np.zeros((), np.int32)
        shapes = {"kept": LARGE, "source": LARGE, "small": (3,)}
        params = {name: np.float32(rng.normal(size=shape)) for name, shape in shapes.items()}
        return State(params, {"norm": np.zeros((), np.float32)}, Counters(zero, zero.copy()))

    def update(state: State, data: jax.Array, key: jax.Array, hp: Hyper) -> Updated:
        kick, counters = data.mean(), state.counters
        spoilt = jnp.where(kick < 0, jnp.nan, 0.0)
        params = {name: array + kick for name, array in state.params.items()}
        if broken in params:
            params[broken] += spoilt
        counters = Counters(counters.step + data.size, counters.updates + 1)
        said = {"loss": kick + spoilt if broken == "loss" else kick, "updates": jnp.ones(())}
        return State(params, {"norm": jnp.abs(kick)}, counters), said, None

    def actor(state: State, hp: Hyper) -> Any:
        kept, source, small = (state.params[name] for name in ("kept", "source", "small"))
        return {
            "kept": kept, "computed": hp.scale * source, "small": small,
            "step": jnp.asarray(state.counters.step, jnp.float32),
        }  # fmt: skip

    algorithm = Algorithm(
        name="doubling", hp=Hyper(np.asarray(2.0, np.float32)), init=init,
        act=lambda params, obs, carry, noise: (obs, carry, {}), update=update,
        metrics=("loss", "updates"), horizon=1, actor=actor,
    )  # fmt: skip
    data = [np.full(4, value, np.float32) for value in (1, 2, -1)]
    return algorithm, OnPolicyBuffer(algorithm), data


def continuous(name: str) -> Step:
    config = HYPER[name](learning_rate="lin_0.02", learning_starts=0, **REPLAY)
    sizes = {"num_envs": 2, "total_steps": 1000}
    small = BuildSpec(
        NetworkConfig(hidden=(4,)), test_continuous.OBS, test_continuous.ACTIONS, **sizes
    )
    return replayed((sac if name == "sac" else td3)(config, small), 2)


def dqn() -> Step:
    return replayed(test_dqn.agent(prioritized=True, hidden=(160, 160), **REPLAY), 0)


STEPS: dict[str, Callable[[], Step]] = {
    "ppo": on_policy,
    "dqn": dqn,
    "sac": functools.partial(continuous, "sac"),
    "td3": functools.partial(continuous, "td3"),
    "doubling": doubling,
}


@functools.cache
def made(name: str) -> Step:
    """Make one of `STEPS`. It is shared by all tests, which must not change it."""
    return STEPS[name]()


@functools.cache
def compiled(name: str) -> Any:
    """Compile its learning step, once for all tests."""
    algorithm, buffer, _ = made(name)
    return jax.jit(make_learn_step(algorithm, buffer))


EACH = [pytest.param(name, marks=pytest.mark.slow if name == "td3" else ()) for name in STEPS]
"""All steps. TD3 is tested only with the slow tests, because it is much like SAC."""
FEWER = [pytest.param(n, marks=pytest.mark.slow if n in ("td3", "sac") else ()) for n in STEPS]
"""All steps. SAC is also left to the slow tests, where DQN stands for algorithms with replay."""
FEWEST = [
    pytest.param(n, marks=pytest.mark.slow if n in ("td3", "sac", "dqn") else ()) for n in STEPS
]
"""All steps. DQN, too, is left to the slow tests, which compile it as users do."""


def begin(algorithm: Algorithm, buffer: Buffer) -> RunState:
    return RunState(algorithm.init(raw_key(0, 0), algorithm.hp), buffer.store())


def same(one: Any, other: Any) -> bool:
    return bool(eqx.tree_equal(*(jax.tree.map(np.asarray, tree) for tree in (one, other))))


# Pure


@pytest.mark.bits
@pytest.mark.parametrize("name", FEWEST)
def test_the_same_inputs_give_the_same_outputs(name: str) -> None:
    """That holds whatever is computed in between, and for two functions of `make_learn_step`. The
    inputs do not change."""
    algorithm, buffer, inputs = made(name)
    state = begin(algorithm, buffer)
    given = jax.tree.map(np.array, (state, inputs, algorithm.hp))
    step = jax.jit(make_learn_step(algorithm, buffer))
    first = [step(state, data, KEY, algorithm.hp) for data in inputs]
    again = [step(state, data, KEY, algorithm.hp) for data in reversed(inputs)]
    assert same(first, again[::-1])
    other = compiled(name)
    assert same(first, [other(state, data, KEY, algorithm.hp) for data in inputs])
    assert same(given, (state, inputs, algorithm.hp))
    assert step._cache_size() == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", FEWER)
def test_states_keep_their_shapes_so_that_steps_can_be_scanned(name: str) -> None:
    algorithm, buffer, inputs = made(name)
    step, state = make_learn_step(algorithm, buffer), begin(algorithm, buffer)
    hp = algorithm.hp

    @jax.jit
    def scan(state: RunState, inputs: Any) -> Any:
        return jax.lax.scan(lambda state, data: step(state, data, KEY, hp), state, inputs)

    scanned, published = jax.device_get(
        scan(state, jax.tree.map(lambda *leaves: np.stack(leaves), *inputs))
    )
    wanted = state
    for number, data in enumerate(inputs):
        wanted, said = compiled(name)(wanted, data, KEY, hp)
        own = jax.tree.map(lambda leaf: leaf[number], published)  # noqa: B023
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), own, said)
    assert jax.tree.structure(scanned) == jax.tree.structure(state)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), scanned, wanted
    )


# The published parameters


@pytest.mark.parametrize("name", EACH)
def test_the_acting_parameters_are_published(name: str) -> None:
    algorithm, buffer, inputs = made(name)
    state, hp, layout = begin(algorithm, buffer), algorithm.hp, ActorLayout(algorithm)
    step, acting, unpack = compiled(name), jax.jit(algorithm.actor), jax.jit(layout.packing.unpack)
    for data in inputs[:2]:
        before, (state, published) = state, step(state, data, KEY, hp)
        bundle = layout.joined(published.arrays, jax.tree.leaves(state.learned))
        found, wanted = unpack(bundle), acting(state.learned, hp)
        assert same(found, wanted)
        assert not same(wanted, acting(before.learned, hp)) or algorithm.replay
        assert [array.shape for array in bundle] == [
            shape.shape for shape in PackedParams(algorithm.actor_shapes).shapes
        ]
    assert not same(wanted, acting(begin(algorithm, buffer).learned, hp))


def test_large_arrays_of_the_state_are_not_copied_and_computed_ones_are_published() -> None:
    algorithm, buffer, inputs = doubling()
    state, layout = begin(algorithm, buffer), ActorLayout(algorithm)
    names = sorted(("kept", "computed"))  # large ones, as a mapping's leaves are ordered
    leaves = jax.tree.leaves(algorithm.shapes)
    assert [None if at is None else leaves[at].shape for at in layout.origin] == [
        None if name == "computed" else LARGE for name in names
    ]
    state, published = jax.jit(make_learn_step(algorithm, buffer))(
        state, inputs[0], KEY, algorithm.hp
    )
    assert [array.shape for array in published.arrays] == [(4,), LARGE]
    np.testing.assert_array_equal(
        published.arrays[1], 2 * np.asarray(state.learned.params["source"])
    )
    joined = layout.joined(published.arrays, jax.tree.leaves(state.learned))
    kept = layout.packing.unpack(joined)["kept"]
    assert kept is state.learned.params["kept"]

    algorithm, buffer, inputs = made("dqn")
    layout = ActorLayout(algorithm)
    _, published = jax.eval_shape(
        make_learn_step(algorithm, buffer), begin(algorithm, buffer), inputs[0], KEY, algorithm.hp
    )
    assert len(layout.origin) == 1  # the hidden layer's kernel, which is the state's
    assert layout.origin[0] is not None
    assert len(published.arrays) == 1


def test_another_hyper_parameter_is_published_by_the_same_program() -> None:
    algorithm, buffer, inputs = made("doubling")
    step, state = jax.jit(make_learn_step(algorithm, buffer)), begin(algorithm, buffer)
    for scale in (2.0, 3.0):
        after, published = step(state, inputs[0], KEY, Hyper(np.float32(scale)))
        wanted = np.float32(scale) * np.asarray(after.learned.params["source"])
        np.testing.assert_array_equal(published.arrays[1], wanted)
    assert step._cache_size() == 1  # type: ignore[attr-defined]


def learner(step: Step) -> Learner:
    algorithm, buffer, inputs = step
    device = jax.devices("cpu")[0]
    one = Learner(algorithm, buffer, Mesh([device], 1), raw_key(0, 0), KEY, Spans())
    one.compile_update(shapes_of(inputs[0]))
    return one


@pytest.mark.parametrize("name", ["ppo", "doubling"])
def test_a_learners_bundle_has_the_acting_parameters_before_and_after_updates(name: str) -> None:
    """`Learner.learn` returns them, and `Learner.publish` packs the same bits."""
    step = algorithm, _, inputs = STEPS[name]()
    one, unpack = learner(step), jax.jit(PackedParams(algorithm.actor_shapes).unpack)
    acting = jax.jit(algorithm.actor)

    def check(state: RunState, packed: tuple[Any, ...]) -> None:
        wanted = acting(one.host_state(state.learned), algorithm.hp)
        assert same(unpack(packed), wanted)

    state = one.start()
    check(state, one.publish(state.learned))
    assert same(list(one.publish_once(state.learned)), list(one.publish(state.learned)))
    for data in inputs[:2]:
        state, packed, _ = one.learn(state, data)
        check(state, packed)
        assert same(list(one.publish(state.learned)), list(packed))
    assert same(list(one.publish(one.put(one.host_state(state.learned)))), list(packed))


def test_the_reward_normaliser_forgets_the_return_of_an_episode_that_was_cut() -> None:
    """No trajectory shows such an end: an environment was restarted between two of them."""
    algorithm, buffer, (data, *_) = on_policy()
    one = Learner(algorithm, buffer, Mesh(jax.devices("cpu")[:1], 1), raw_key(0, 0), KEY, Spans())
    state, obs = one.start(), data.last_obs[0]
    learned = one.host_state(state.learned)
    returns = 1 + np.arange(len(learned.counters.returns), dtype=np.float32)
    learned = learned._replace(counters=learned.counters._replace(returns=returns))
    state = one.truncate(state._replace(learned=one.put(learned)), [(1, obs, obs)])
    returns[1] = 0
    np.testing.assert_array_equal(one.host_state(state.learned).counters.returns, returns)


# Numbers that are not finite


@pytest.mark.parametrize("broken", ["loss", "small", "source"])
def test_numbers_that_are_not_finite_are_flagged(broken: str) -> None:
    """They are in a metric, in a small array, or in a large one, of which only a computed array is
    published."""
    whole = algorithm, buffer, (good, _, bad) = doubling(broken)
    step, state = jax.jit(make_learn_step(algorithm, buffer)), begin(algorithm, buffer)
    for data, finite in ((good, 1.0), (bad, 0.0)):
        _, published = step(state, data, KEY, algorithm.hp)
        assert published.scalars.shape == (len(buffer.metrics) + 1,)
        assert published.scalars.dtype == np.float32
        assert np.asarray(published.scalars)[-1] == finite
    one = learner(whole)
    state, _, metrics = one.learn(one.start(), good)
    assert metrics == {"loss": 1.0, "updates": 1.0}
    with pytest.raises(FlatoutError, match=f"learning diverged: .*{broken}.* became NaN"):
        one.learn(state, bad)


@pytest.mark.parametrize("name", ["params", "opt"])
def test_a_state_that_is_not_finite_is_not_saved(name: str) -> None:
    """No metric shows it: a large array of the state, or one that does not act."""
    algorithm, buffer, _ = doubling()
    one = Learner(algorithm, buffer, Mesh(jax.devices("cpu")[:1], 1), raw_key(0, 0), KEY, Spans())
    nothing: Any = None  # samples
    flow = SerialSchedule(nothing, [], one, Spans(), nullcontext)
    flow._state = one.start()
    learned = one.host_state(flow._state.learned)
    spoilt = jax.tree.map(lambda leaf: np.full_like(leaf, np.inf), getattr(learned, name))
    flow._state = flow._state._replace(learned=one.put(learned._replace(**{name: spoilt})))
    with pytest.raises(FlatoutError, match=rf"learning diverged: .*{name}.* became NaN"):
        flow.snapshot()


def test_a_state_of_other_types_than_float32_is_looked_at() -> None:
    keys, counts = jax.random.key(0), np.ones(3, np.uint8)
    refuse_diverged({"keys": keys, "counts": counts, "half": jnp.ones(3, jnp.bfloat16)})
    with pytest.raises(FlatoutError, match=r"diverged: .*half.* became"):
        refuse_diverged({"keys": keys, "half": jnp.full(3, jnp.nan, jnp.bfloat16)})


@pytest.mark.parametrize(
    ("leaf", "cause", "other"),
    [("state.params.obs_moments.var", "observations are too large", "learning rate"),
     ("state.params.reward_moments.mean", "rewards are too large", "learning rate"),
     ("state.params.networks.head", "lower the learning rate", "too large")],
)  # fmt: skip
def test_statistics_that_are_not_finite_have_another_cause(
    leaf: str, cause: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, buffer, (_, _, bad) = doubling("small")
    one = learner((algorithm, buffer, (bad, bad, bad)))
    monkeypatch.setattr("flatout.engine.learn._not_finite", lambda state: [leaf])
    with pytest.raises(FlatoutError, match=cause) as raised:
        one.learn(one.start(), bad)
    assert other not in str(raised.value)


@pytest.mark.parametrize("name", EACH[:4])
def test_rewards_that_are_not_finite_are_flagged(name: str) -> None:
    algorithm, buffer, inputs = made(name)
    step, state = compiled(name), begin(algorithm, buffer)

    def spoilt(data: Any) -> Any:
        if name == "ppo":
            return data._replace(rewards=np.full_like(data.rewards, np.nan))
        return data._replace(
            piece=data.piece._replace(rewards=np.full_like(data.piece.rewards, np.nan))
        )

    good, bad = (
        np.asarray(step(state, data, KEY, algorithm.hp)[1].scalars)
        for data in (inputs[0], spoilt(inputs[0]))
    )
    assert (good[-1], bad[-1]) == (1.0, 0.0)
