"""Networks, distributions of actions, and noise."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.random import threefry_2x32

from flatout.algorithms.base import Algorithm, BuildSpec
from flatout.algorithms.common.distributions import distribution
from flatout.algorithms.ppo import ppo
from flatout.algorithms.sac import sac
from flatout.config.hyper import PPOConfig, SACConfig
from flatout.config.schema import NetworkConfig
from flatout.engine.act import NOISE_BLOCK, Policy
from flatout.errors import UsageError
from flatout.networks import torsos as nets
from flatout.networks.boards import Centred, Compass, Grid, WideGrid
from flatout.networks.convolution import (
    convolve,
    convolve_squares,
    convolve_tiles,
    square_for,
    tiles_for,
)
from flatout.networks.encoder import Encoder
from flatout.networks.layers import MLP, FanIn, Linear, orthogonal
from flatout.networks.torsos import NatureCNN, make_torso
from flatout.packing import PackedParams
from flatout.randomness import hashes, raw_key, uniforms, wrap_key
from flatout.spans import Spans
from flatout.types import ActionSpec, ContinuousSpec, DiscreteSpec, ObservationSpec

VECTOR = ObservationSpec((4,), "float32")
PIXELS = ObservationSpec((84, 84, 4), "uint8", 255)
BOARD = ObservationSpec((6, 5, 1), "uint8", 3)
BOX = ContinuousSpec((2,), (-1.0, -2.0), (1.0, 2.0))
property_test = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    """Run on a CPU: the tolerances are those of its float32 arithmetic."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def agent(
    obs: ObservationSpec = VECTOR,
    action: ActionSpec = DiscreteSpec(3),  # noqa: B008 - a frozen value
    hyper: PPOConfig = PPOConfig(),  # noqa: B008
    custom: Any = None,
    **config: Any,
) -> Algorithm:
    return ppo(hyper, BuildSpec(NetworkConfig(**config), obs, action, 2, 64, 8, custom))


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@property_test
@given(seeds, st.integers(1, 40), st.integers(1, 40), st.floats(0.01, 2))
def test_orthogonal_matrices_are_orthogonal(
    seed: int, rows: int, columns: int, gain: float
) -> None:
    w = orthogonal(np.random.default_rng(seed), (rows, columns), gain).astype(np.float64)
    assert w.shape == (rows, columns)
    product = w.T @ w if rows >= columns else w @ w.T
    np.testing.assert_allclose(product, gain**2 * np.eye(min(rows, columns)), atol=1e-5)


def test_fresh_networks_have_the_papers_gains_and_zero_biases() -> None:
    algorithm = agent(hidden=(32, 16))
    networks = algorithm.init(raw_key(0, 0), algorithm.hp).params.networks
    torsos = (*networks.actor.torso.layers, *networks.critic.torso.layers)
    gains = [math.sqrt(2)] * 4 + [0.01, 1.0]
    for layer, gain in zip(
        (*torsos, networks.actor.head, networks.critic.head), gains, strict=True
    ):
        singular = np.linalg.svd(layer.weight, compute_uv=False)
        np.testing.assert_allclose(singular, gain, rtol=1e-5)
        assert not layer.bias.any()


@pytest.mark.parametrize(
    "obs", [VECTOR, {"a": VECTOR, "b": VECTOR}], ids=["one array", "several arrays"]
)
def test_a_critic_may_have_other_widths_than_the_actor(obs: Any) -> None:
    def widths(torso: Any) -> list[int]:
        layers = torso.layers if hasattr(torso, "layers") else torso.dense.layers
        return [layer.weight.shape[0] for layer in layers]

    wide = agent(obs, hyper=PPOConfig(critic_hidden=(24,)), hidden=(32, 16))
    networks = wide.init(raw_key(0, 0), wide.hp).params.networks
    assert (widths(networks.actor.torso), widths(networks.critic.torso)) == ([32, 16], [24])
    assert networks.actor.head.weight.shape[1] == 16
    assert networks.critic.head.weight.shape == (1, 24)

    spec = BuildSpec(NetworkConfig(hidden=(32, 16)), obs, BOX, 2, 64)
    wide = sac(SACConfig(critic_hidden=()), spec)
    params = wide.init(raw_key(0, 0), wide.hp).params
    assert widths(params.actor) == [32, 16]
    assert [widths(critic) for critic in params.critics] == [[], []]


def test_critic_hidden_is_refused_where_a_critic_has_no_layers_of_its_own() -> None:
    hyper = PPOConfig(critic_hidden=(8,))
    with pytest.raises(UsageError, match=r"critic_hidden = \(8,\).*share.*network = mlp"):
        agent(PIXELS, hyper=hyper)
    with pytest.raises(UsageError, match=r"critic_hidden.*the network that was given"):
        agent(hyper=hyper, custom=lambda key, shape: eqx.nn.Identity())


def test_networks_are_drawn_from_the_key_alone() -> None:
    first, again, other = (
        agent().init(raw_key(seed, 0), agent().hp).params.networks for seed in (1, 1, 2)
    )
    assert eqx.tree_equal(first, again)
    assert not np.array_equal(first.actor.head.weight, other.actor.head.weight)


@property_test
@given(seeds, st.integers(1, 60), st.integers(1, 60))
def test_fan_in_draws_fill_the_bounds_of_pytorchs_layers(seed: int, rows: int, out: int) -> None:
    def layers() -> tuple[Any, ...]:
        draw = FanIn(np.random.default_rng(seed))
        return Linear(draw, rows, out, 1.0), nets.Conv(draw, rows, out, 3, 2)

    for layer, again, inputs in zip(layers(), layers(), (rows, 9 * rows), strict=True):
        assert eqx.tree_equal(layer, again)  # drawn by NumPy, from the generator alone
        assert layer.weight.size == inputs * out
        numbers = np.concatenate([layer.weight.ravel(), layer.bias])
        bound = 1 / math.sqrt(inputs)
        assert np.abs(numbers).max() <= np.float32(bound)
        assert abs(numbers.mean()) <= 5 * bound / math.sqrt(3 * len(numbers))  # standard errors
        away = (numbers.astype(np.float64) ** 2).mean() - bound**2 / 3
        assert abs(away) <= 5 * bound**2 * math.sqrt(4 / 45 / len(numbers))
    assert not Linear(FanIn(None), rows, out, 1.0).weight.any()


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize(
    ("shape", "size", "stride"),
    [
        ((2, 13, 16, 3), 8, 4), ((2, 9, 6, 2), 4, 2), ((7, 10, 1), 3, 2), ((2, 2, 5, 5, 4), 3, 1),
        ((1, 5, 7, 2), 5, 3), ((6, 6, 1), 2, 4),
    ],
)  # fmt: skip
def test_convolutions_and_their_gradients_match_xlas(
    shape: tuple[int, ...], size: int, stride: int, padding: str
) -> None:
    x = rng().normal(size=shape).astype(np.float32)
    weight = rng().normal(size=(size, size, shape[-1], 6)).astype(np.float32)

    def wanted(x: jax.Array, weight: jax.Array) -> jax.Array:
        flat, dims = x.reshape(-1, *shape[-3:]), ("NHWC", "HWIO", "NHWC")
        steps = (stride, stride)
        out = jax.lax.conv_general_dilated(flat, weight, steps, padding, dimension_numbers=dims)
        return out.reshape(*shape[:-3], *out.shape[1:])

    @jax.jit
    def both(*where: jax.Array) -> Any:
        out, pull = jax.vjp(lambda *w: convolve(*w, stride, padding), *where)
        other, push = jax.vjp(wanted, *where)
        return (out, pull(jnp.sin(out))), (other, push(jnp.sin(out)))

    assert_close = functools.partial(np.testing.assert_allclose, atol=2e-3, rtol=1e-4)
    jax.tree.map(assert_close, *both(x, weight))


@pytest.mark.parametrize(
    ("size", "m", "rows", "columns"), [(2, 3, 7, 4), (2, 6, 6, 6), (3, 2, 5, 3), (3, 5, 5, 5)]
)
def test_tiles_with_fewer_products_give_the_same_convolution(
    size: int, m: int, rows: int, columns: int
) -> None:
    """Tiles divide some of these images and not others; the tolerance is that of float32."""
    x = rng().normal(size=(3, rows + size - 1, columns + size - 1, 5)).astype(np.float32)
    weight = rng().normal(size=(size, size, 5, 4)).astype(np.float32)

    @jax.jit
    def both(x: jax.Array, weight: jax.Array) -> Any:
        out, pull = jax.vjp(lambda *w: convolve_tiles(*w, m), x, weight)
        plain, other = jax.vjp(lambda *w: convolve(*w, 1, "VALID"), x, weight)
        return (out, pull(jnp.sin(out))), (plain, other(jnp.sin(out)))

    assert_close = functools.partial(np.testing.assert_allclose, atol=3e-3)
    jax.tree.map(assert_close, *both(x, weight))


def test_tiles_are_used_where_they_save_half() -> None:
    assert tiles_for(500, 5, 5, 3, 100, 200) == 5
    assert tiles_for(4, 5, 5, 3, 100, 200) is None  # transforming the weights costs too much
    assert tiles_for(500, 7, 7, 3, 64, 64) is None
    assert tiles_for(500, 5, 5, 3, 1, 200) is None


@pytest.mark.parametrize(
    ("shape", "size", "side"), [((2, 12, 12, 1), 5, 4), ((3, 9, 7, 3), 3, 2), ((1, 5, 6, 2), 5, 4)]
)
def test_squares_of_pixels_give_the_same_convolution(
    shape: tuple[int, ...], size: int, side: int
) -> None:
    """Squares divide some of these images and not others."""
    x = rng().normal(size=shape).astype(np.float32)
    weight = rng().normal(size=(size, size, shape[-1], 4)).astype(np.float32)
    dims = ("NHWC", "HWIO", "NHWC")

    def wanted(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, weight, (1, 1), "VALID", dimension_numbers=dims)

    @jax.jit
    def both(x: jax.Array, weight: jax.Array) -> Any:
        out, pull = jax.vjp(lambda *w: convolve_squares(*w, side), x, weight)
        plain, other = jax.vjp(wanted, x, weight)
        return (out, pull(jnp.sin(plain))), (plain, other(jnp.sin(plain)))

    found, plain = map(jax.tree.leaves, both(x, weight))
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max(), rtol=0)


def test_squares_are_used_for_few_outputs() -> None:
    assert square_for(28, 28, 5, 6) == 4  # the classifiers' layers
    assert square_for(14, 14, 5, 12) == 2
    assert square_for(14, 14, 3, 24) == 2
    for rows, size, outputs in ((7, 3, 64), (10, 3, 32), (20, 2, 32), (6, 3, 200)):
        assert square_for(rows, rows, size, outputs) == 1


def test_padded_nature_keeps_the_borders() -> None:
    valid, same = (NatureCNN(None, (84, 84, 4), padding) for padding in ("VALID", "SAME"))
    assert valid.dense.weight.shape == (512, 7 * 7 * 64)
    assert same.dense.weight.shape == (512, 11 * 11 * 64)
    for shape in ((1, 1, 3), (10, 35, 1)):  # too small for nature
        torso = make_torso(FanIn(rng()), shape, 255, "nature_same", NetworkConfig())
        assert jax.eval_shape(torso, jax.ShapeDtypeStruct(shape, np.float32)).shape == (512,)


class Scaled(MLP):
    """A user's torso, which divides each observation by its norm."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return super().__call__(x / jnp.linalg.norm(x))


def scaled(key: jax.Array, shape: tuple[int, ...]) -> MLP:
    return Scaled(FanIn(rng()), 6, (5,), "tanh")


SMALL = NetworkConfig(hidden=(5,), activation="relu")


@pytest.mark.parametrize(
    ("torso", "shape"),
    [
        (MLP(FanIn(rng()), 24, (5, 4), "tanh", 3), (4, 3, 2)),
        (MLP(FanIn(rng()), 6, (), "tanh"), (6,)),
        (Grid(FanIn(rng()), (4, 3, 2), 2, SMALL), (4, 3, 2)),
        (nets.OneHot(FanIn(rng()), (4, 3, 2), 2, SMALL), (4, 3, 2)),
        (Centred(FanIn(rng()), (4, 3, 1), 3, SMALL), (4, 3, 1)),
        (WideGrid(FanIn(rng()), (6, 7, 1)), (6, 7, 1)),
        (NatureCNN(FanIn(rng()), (36, 40, 1)), (36, 40, 1)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_torsos_see_each_observation_of_a_batch_alone(torso: Any, shape: tuple[int, ...]) -> None:
    x = rng().integers(0, 3, (7, *shape)).astype(np.float32) / 2
    both = jax.jit(lambda x, one: (torso(x), torso(one)))
    own, alone = jax.device_get(both(x, x[3]))
    assert own.shape[0] == 7
    np.testing.assert_allclose(own[3], alone, atol=1e-5)


def test_a_users_torso_maps_one_observation() -> None:
    encoder = Encoder(ObservationSpec((6,), "float32"), NetworkConfig(), scaled)
    torso, x = encoder.build(None), rng().standard_normal((7, 6)).astype(np.float32)
    own, alone = jax.jit(lambda x: (encoder.features(torso, x), torso(x[3])))(x)
    np.testing.assert_allclose(own[3], alone, atol=1e-5)


@functools.cache
def measured(action: ActionSpec) -> Any:
    """Return a compiled ``(x, extra, sample) -> log_prob, entropy, mode, action``."""
    dist = distribution(action)

    def measure(x: jax.Array, extra: jax.Array, sample: jax.Array) -> Any:
        return (
            dist.log_prob(x, extra, sample), dist.entropy(x, extra), dist.sample(x, extra, None),
            dist.to_environment(10 * sample),
        )  # fmt: skip

    return jax.jit(measure)


@property_test
@given(seeds, st.floats(0.1, 20))
def test_categorical_is_the_softmax(seed: int, scale: float) -> None:
    generator = np.random.default_rng(seed)
    logits = (scale * generator.normal(size=(4, 5))).astype(np.float32)
    drawn = generator.integers(0, 5, 4).astype(np.int32)
    log_p = scipy.special.log_softmax(logits.astype(np.float64), axis=-1)
    extra = np.zeros(0, np.float32)
    log_prob, entropy, mode, _ = measured(DiscreteSpec(5))(logits, extra, drawn)
    np.testing.assert_allclose(log_prob, log_p[np.arange(4), drawn], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(entropy, scipy.stats.entropy(np.exp(log_p), axis=-1), atol=1e-5)
    assert np.array_equal(mode, logits.argmax(-1))


@property_test
@given(seeds)
def test_the_gaussian_matches_scipys(seed: int) -> None:
    generator = np.random.default_rng(seed)
    mean, sample = generator.normal(size=(2, 4, 2)).astype(np.float32)
    log_std = generator.uniform(-2, 1, 2).astype(np.float32)
    normal = scipy.stats.norm(mean.astype(np.float64), np.exp(log_std.astype(np.float64)))
    log_prob, entropy, mode, action = measured(BOX)(mean, log_std, sample)
    np.testing.assert_allclose(log_prob, normal.logpdf(sample).sum(-1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(entropy, normal.entropy().sum(-1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mode, mean)
    np.testing.assert_array_equal(action, np.clip(10 * sample, BOX.low, BOX.high))


def draws(algorithm: Algorithm, envs: int, steps: int) -> np.ndarray:
    """Return noise ``[steps, envs, ...]``, drawn as one block."""
    over_envs = jax.vmap(algorithm.noise, (None, 0, None))
    block = jax.vmap(over_envs, (None, None, 0))
    return np.asarray(jax.jit(block)(wrap_key(raw_key(3, 2)), np.arange(envs), np.arange(steps)))


def sampled(action: ActionSpec, x: np.ndarray, extra: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return the sample that a distribution draws with this noise."""
    return np.asarray(jax.jit(distribution(action).sample)(x, extra, noise))


def test_sampled_actions_follow_the_softmax() -> None:
    noise = draws(agent(action=DiscreteSpec(4)), envs=4, steps=5_000).reshape(-1, 4)
    logits = np.float32([0.5, -1.0, 2.0, 0.0])
    drawn = sampled(DiscreteSpec(4), logits, np.zeros(0, np.float32), noise)
    observed = np.bincount(drawn, minlength=4)
    expected = scipy.special.softmax(logits.astype(np.float64)) * len(noise)
    assert scipy.stats.chisquare(observed, expected).pvalue > 1e-3


def test_gaussian_noise_is_standard_normal_and_scaled_by_the_deviation() -> None:
    noise = draws(agent(action=BOX), envs=4, steps=1_000).reshape(-1, 2)
    assert scipy.stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    log_std = np.log(np.float32([0.5, 3.0]))
    sample = sampled(BOX, np.ones((len(noise), 2), np.float32), log_std, noise)
    np.testing.assert_allclose(sample, 1 + noise * [0.5, 3.0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("action", [DiscreteSpec(3), BOX])
def test_noise_is_a_function_of_key_environment_and_step(action: ActionSpec) -> None:
    algorithm = agent(action=action)
    block = draws(algorithm, envs=3, steps=7)
    key, alone = wrap_key(raw_key(3, 2)), jax.jit(algorithm.noise)
    for env, step in ((0, 0), (2, 0), (0, 6), (1, 4)):
        # The hash is exact; a logarithm's last bit may depend on how it was compiled.
        np.testing.assert_allclose(alone(key, env, step), block[step, env], rtol=1e-5)
    assert np.array_equal(draws(algorithm, envs=2, steps=5), block[:5, :2])
    assert len(np.unique(block.reshape(21, -1), axis=0)) == 21  # no number is used twice
    other = alone(wrap_key(raw_key(4, 2)), 0, 0)
    assert not np.array_equal(other, block[0, 0])


def test_numbers_are_the_same_alone_and_in_a_block_and_never_0_or_1() -> None:
    def one(key: Any, env: Any, step: Any) -> jax.Array:
        return uniforms(key, env, step, 5)

    key, alone = wrap_key(raw_key(3, 2)), jax.jit(one)
    over = jax.vmap(jax.vmap(one, (None, 0, None)), (None, None, 0))
    block = np.asarray(jax.jit(over)(key, np.arange(3), np.arange(7)))
    assert ((block > 0) & (block < 1)).all()
    for env, step in ((0, 0), (2, 0), (0, 6), (1, 4)):
        assert np.array_equal(alone(key, env, step), block[step, env])


libraries = jax.jit(threefry_2x32)


@property_test
@given(st.lists(seeds, min_size=2, max_size=2), st.lists(seeds, min_size=8, max_size=8))
def test_hashes_are_those_of_the_librarys_generator(key: list[int], counters: list[int]) -> None:
    words, first = np.array(key, np.uint32), np.array(counters, np.uint32)
    second = first[::-1].copy()
    ours = np.concatenate(hashes(words, first, second))
    assert np.array_equal(ours, libraries(words, np.concatenate([first, second])))


def test_acting_does_not_depend_on_which_steps_came_before() -> None:
    algorithm = agent()
    params = algorithm.actor(algorithm.init(raw_key(0, 0), algorithm.hp), algorithm.hp)
    obs = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)

    def policy() -> Policy:
        one = Policy(algorithm, VECTOR, 2, jax.devices("cpu")[0], raw_key(0, 2))
        one.compile()
        one.publish(PackedParams(params).pack(params, np), 0, Spans())
        return one

    steps = range(NOISE_BLOCK + 3)
    once, later = policy(), policy()
    rows = [once.act(obs, step) for step in steps]
    for step in (5, 7, NOISE_BLOCK + 2, 0):  # as if resumed here
        assert np.array_equal(later.act(obs, step), rows[step])
    assert {int(once.layout.action(row)[0]) for row in rows} == {0, 1, 2}  # so it explores


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (VECTOR, MLP),
        (ObservationSpec((36, 36, 1), "uint8", 255), NatureCNN),
        (ObservationSpec((35, 36, 1), "uint8", 255), MLP),
        (BOARD, Grid),
        (ObservationSpec((10, 10, 3), "float32"), MLP),
    ],
)
def test_auto_chooses_by_the_observation(spec: ObservationSpec, kind: type) -> None:
    torso = Encoder(spec, NetworkConfig(hidden=(16,)), None).build(rng())
    assert isinstance(torso, kind)
    out = jax.eval_shape(torso, jax.ShapeDtypeStruct(spec.shape, jnp.float32))
    assert out.shape == ((512,) if kind is NatureCNN else (16,))


def test_images_that_are_too_small_for_nature_are_refused_with_the_least_size() -> None:
    config = NetworkConfig(network="nature")
    for rows, columns in ((35, 84), (84, 35), (6, 6), (1, 1)):
        with pytest.raises(UsageError, match=rf"36x36, not {rows}x{columns}"):
            Encoder(ObservationSpec((rows, columns, 3), "uint8", 255), config, None).build(None)


@pytest.mark.parametrize(
    ("network", "spec", "said"),
    [
        ("grid", VECTOR, r"grid needs image observations.*\[4\]"),
        ("grid", PIXELS, "0 to at most 31.* 255"),
        ("onehot", PIXELS, "onehot needs whole-number.* 255"),
        (
            "centred",
            ObservationSpec((6, 6, 2), "uint8", 3),
            "one board of cells 0.* 2 of cells 0 to 3",
        ),
        (
            "centred",
            ObservationSpec((6, 6, 1), "uint8", 1),
            "one board of cells 0.* 1 of cells 0 to 1",
        ),
        ("compass", ObservationSpec((6, 6, 1), "uint8", 1), "compass needs one board of cells 0"),
        ("nature_same", VECTOR, r"nature_same needs image observations.*\[4\]"),
        ("grid", ObservationSpec((6, 6, 1), "float32"), "0 to at most 31.* None"),
    ],
)
def test_torsos_that_do_not_fit_are_refused(network: Any, spec: ObservationSpec, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        agent(spec, network=network)


@functools.cache
def centred(rows: int, columns: int, high: int) -> tuple[Centred, Any]:
    """Return a torso, and the same compiled for one board."""
    config = NetworkConfig(hidden=(7,), activation="tanh")
    torso = Centred(FanIn(np.random.default_rng(0)), (rows, columns, 1), high, config)
    return torso, jax.jit(lambda board: torso(board))


@property_test
@given(st.sampled_from([(1, 1, 2), (1, 6, 5), (5, 2, 3), (6, 5, 4)]), seeds)  # each is compiled
def test_a_centred_board_is_the_board_seen_from_its_head(
    sizes: tuple[int, int, int], seed: int
) -> None:
    rows, columns, high = sizes
    dice = np.random.default_rng(seed)
    cells = dice.choice([0, *range(2, high + 1)], (rows, columns))
    head = int(dice.integers(rows)), int(dice.integers(columns))
    cells[head] = 1
    seen: list[int] = []  # the cell at each distance from the head; high + 1 outside the board
    for down in range(1 - rows, rows):
        for right in range(1 - columns, columns):
            at = head[0] + down, head[1] + right
            inside = 0 <= at[0] < rows and 0 <= at[1] < columns
            seen.append(int(cells[at]) if inside else high + 1)
    planes = np.equal.outer(seen, np.arange(2, high + 2)).astype(np.float32).reshape(-1)
    torso, see = centred(*sizes)
    board = (cells[..., None] / high).astype(np.float32)
    (layer,) = torso.dense.layers
    wanted = np.tanh(layer.weight @ planes + layer.bias)
    np.testing.assert_allclose(see(board[None])[0], wanted, atol=1e-5)


@functools.cache
def compass(rows: int, columns: int) -> Any:
    """Return a compiled ``board -> [8, 3]``, the input of a compass's dense layers."""
    config = NetworkConfig(network="compass", hidden=())
    torso = Compass(FanIn(np.random.default_rng(0)), (rows, columns, 1), 3, config)
    see = jax.jit(lambda board: torso(board).reshape(8, 3))
    return lambda cells: np.asarray(see((cells[None, ..., None] / 3).astype(np.float32)))


def test_a_compass_says_how_near_each_value_is_in_eight_directions() -> None:
    cells = np.zeros((4, 5), np.int64)
    cells[1, 2] = 1  # the head; fruits (2) above right and far below, a body (3) to its left
    cells[0, 4], cells[3, 2], cells[1, 1], cells[1, 0] = 2, 2, 3, 3
    seen = compass(4, 5)(cells)
    names = ("up left", "up", "up right", "left", "right", "down left", "down", "down right")
    outside = dict(zip(names, seen[:, 2], strict=True))
    assert outside == pytest.approx(
        {"up": 1 / 2, "left": 1 / 3, "right": 1 / 3, "down": 1 / 3}
        | dict.fromkeys(("up left", "up right"), 1 / 3)
        | dict.fromkeys(("down left", "down right"), 1 / 4)
    )
    fruits, body = (
        dict(zip(names, seen[:, 0], strict=True)),
        dict(zip(names, seen[:, 1], strict=True)),
    )
    assert {name: near for name, near in fruits.items() if near} == {
        "up right": pytest.approx(1 / 3), "down": pytest.approx(1 / 2)
    }  # fmt: skip
    assert {name: near for name, near in body.items() if near} == {"left": 1}


@property_test
@given(st.sampled_from([(1, 3), (4, 5)]), seeds)  # each is compiled
def test_rotating_a_board_rotates_the_compass(shape: tuple[int, int], seed: int) -> None:
    dice = np.random.default_rng(seed)
    cells = dice.choice([0, 2, 3], shape)
    cells[tuple(dice.integers(shape))] = 1

    def read(board: np.ndarray) -> np.ndarray:
        seen = compass(*board.shape)(board)
        return np.insert(seen, 4, 0, axis=0).reshape(3, 3, 3)

    np.testing.assert_array_equal(read(np.rot90(cells)), np.rot90(read(cells)))


class Counted(eqx.Module):
    """A torso with an integer array, which no gradient can change."""

    count: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * self.count


@pytest.mark.parametrize(
    ("custom", "said"),
    [
        (
            lambda key, shape: Linear(rng(), 5, 8, 1.0),
            r"does not accept one observation of shape \[4\]",
        ),
        (lambda key, shape: lambda x: x[None], r"vector of features, not to .* shape \[1, 4\]\.$"),
        (lambda key, shape: lambda x: x.sum(), r"vector of features, not to .* shape \[\]\.$"),
        (lambda key, shape: lambda x: (x, x), r"vector of features, not to a tuple\.$"),
        (lambda key, shape: Counted(jnp.arange(4)), "array of int32"),
    ],
)
def test_custom_networks_that_do_not_fit_are_refused(custom: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        agent(custom=custom)


def test_custom_networks_that_cannot_be_built_are_refused() -> None:
    with pytest.raises(UsageError):
        agent(custom=lambda shape: Linear(rng(), 4, 8, 1.0))


def test_custom_networks_are_used_with_heads_of_their_width() -> None:
    custom = lambda key, shape: eqx.nn.MLP(shape[0], 7, 16, 1, key=key)  # noqa: E731
    algorithm = agent(ObservationSpec((3,), "float32"), custom=custom)
    networks = algorithm.shapes.params.networks
    assert networks.actor.head.weight.shape == (3, 7)
    assert networks.critic.head.weight.shape == (1, 7)
