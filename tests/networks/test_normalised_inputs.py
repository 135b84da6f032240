"""Normalised inputs of networks have mean 0 and deviation 1, whatever the observation is.

The cases are derived from the kinds of observations and networks that exist. A kind that is added
has to be among the cases, or `test_every_kind_of_observation_is_a_case` fails.
"""

from __future__ import annotations

import functools
from dataclasses import fields, replace
from typing import Any, NamedTuple, get_args, get_type_hints

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flatout import UsageError, tree
from flatout.algorithms.common.returns import initial_obs_moments, update_obs_moments
from flatout.api import standalone
from flatout.api.export import _Layers
from flatout.config.schema import NetworkConfig
from flatout.envs.masks import MaskSpace
from flatout.envs.spaces import as_array, observation_spec
from flatout.networks.encoder import Encoder
from flatout.types import ObservationSpec, ObsSpec

ROWS = 64
DTYPES = ("uint8", "int8", "uint16", "int32", "int64", "float16", "float32", "float64")
PIXELS, CELLS = (0, 255), (0, 4)
BOUNDS = (CELLS, PIXELS, (-3, 3), (999, 1001), (-np.inf, np.inf))
SHAPES = ((), (2, 3), (3, 17, 16), (36, 37, 4))
NETWORKS = get_args(get_type_hints(NetworkConfig)["network"])
BYTES, BOARD = "uint8 0 255 (5,)", "uint8 0 4 (6, 5, 1)"
IMAGE, MASK = "uint8 0 255 (36, 37, 4)", "mask"


class Case(NamedTuple):
    """An encoder, the names of its arrays in `specs`, and a user's network, if there is one, whose
    features are its input."""

    encoder: Encoder
    names: tuple[str, ...]
    torso: Any


class Result(NamedTuple):
    """The observations of two trajectories ``[2 * ROWS, ...]``, their statistics, prepared
    observations, and what the user's network sees of them."""

    obs: Any
    moments: Any
    prepared: Any
    seen: Any


@functools.cache
def spaces() -> dict[str, gym.Space[Any]]:
    """Return boxes of each type and of each shape with all bounds, and the other spaces."""
    found: dict[str, gym.Space[Any]] = {}
    each = [(dtype, bounds, (5,)) for dtype in DTYPES for bounds in BOUNDS]
    each += [(dtype, PIXELS, shape) for dtype in ("uint8", "float32") for shape in SHAPES]
    each += [("uint8", CELLS, (6, 5, 1))]
    for dtype, (low, high), shape in dict.fromkeys(each):
        kind = np.dtype(dtype)
        if kind.kind == "f" or np.iinfo(kind).min <= low <= high <= np.iinfo(kind).max:
            found[f"{dtype} {low} {high} {shape}"] = gym.spaces.Box(low, high, shape, kind.type)
    others = (
        gym.spaces.MultiBinary(4), gym.spaces.Text(9), gym.spaces.Discrete(3, start=2),
        gym.spaces.MultiDiscrete([2, 3]),
    )  # fmt: skip
    return found | {type(one).__name__: one for one in others} | {MASK: MaskSpace(4)}


@functools.cache
def specs() -> dict[str, ObservationSpec]:
    """Return the specs of `spaces`, and of stacks of frames."""
    found: dict[str, Any] = {name: observation_spec(one, name) for name, one in spaces().items()}
    stack = observation_spec(spaces()[IMAGE], "stack", 4)
    assert isinstance(stack, ObservationSpec)
    return found | {"stack": stack, "zeros": replace(stack, stack_pad="zeros")}


def rows(name: str, seed: int) -> np.ndarray:
    """Return independent observations ``[ROWS, ...]``."""
    spec, space = specs()[name], spaces().get(name)
    if space is None or spec.text:
        return np.random.default_rng(seed).integers(0, 9, (ROWS, *spec.shape)).astype(spec.dtype)
    space.seed(seed)
    return np.stack([as_array(space.sample(), spec) for _ in range(ROWS)]).astype(spec.dtype)


def same(key: Any, shape: Any) -> Any:
    """Return a user's network whose features are its input."""
    return jnp.ravel


@functools.cache
def cases() -> dict[str, Case]:
    """Return each array alone with a user's network, and images with each built-in network; all
    arrays in one tree; and an array with a mask."""
    arrays = tuple(name for name, spec in specs().items() if not spec.mask)
    found: dict[str, Case] = {}

    def add(name: str, names: tuple[str, ...], network: Any = "auto", own: Any = None) -> None:
        spec: ObsSpec = {each: specs()[each] for each in names}
        encoder = Encoder(
            spec if len(names) > 1 else specs()[names[0]], NetworkConfig(network=network), own
        )
        if encoder.normalised:
            found[name] = Case(encoder, names, None if own is None else same(None, None))

    for name in arrays:
        add(name, (name,), own=same)
    for network in NETWORKS:
        add(network, (BOARD,), network)
    add("tree", arrays)
    add("masked", (MASK, BYTES))
    return found


@functools.cache
def results() -> dict[str, Result]:
    """Compute the result of each case, all in one program."""
    given = {}
    for name, case in cases().items():
        parts = [{each: rows(each, seed) for each in case.names} for seed in (1, 2)]
        alone = len(case.names) == 1
        given[name] = [next(iter(part.values())) if alone else part for part in parts]

    def compute(given: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, (encoder, _, torso) in cases().items():
            moments = initial_obs_moments(encoder)
            parts = [encoder.split(obs)[0] for obs in given[name]]
            for obs in parts:
                moments = update_obs_moments(encoder, moments, obs)
            obs = tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
            x = encoder.prepare(obs, moments)
            seen = None if torso is None else encoder.features(torso, x)
            found[name] = Result(obs, moments, x, seen)
        return found

    return jax.device_get(jax.jit(compute)(given))


def test_normalised_inputs_have_mean_0_and_deviation_1() -> None:
    count = 0
    for name, (encoder, _, torso) in cases().items():
        for path in encoder.normalised:
            _, _, prepared, seen = results()[name]
            x = seen if torso is not None else prepared[path] if path else prepared
            x = x.reshape(2 * ROWS, -1).astype(np.float64)
            varies = np.ptp(x, 0) > 0
            assert varies.mean() > 0.9, (name, path)
            np.testing.assert_allclose(x.mean(0), 0, atol=2e-3, err_msg=f"{name} {path}")
            np.testing.assert_allclose(x.std(0)[varies], 1, atol=2e-3, err_msg=f"{name} {path}")
            count += 1
    assert count > 80


def test_exported_files_prepare_observations_as_the_encoder_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, (encoder, _, _) in cases().items():
        obs, moments, prepared, _ = results()[name]
        layers = _Layers()
        for path, spec in encoder.specs.items():
            of = moments.get(path) if isinstance(moments, dict) else moments
            layers.prepared(spec, of, encoder.is_board(path))
            monkeypatch.setattr(standalone, "ARRAYS", layers.arrays)
            raw, wanted = (obs[path], prepared[path]) if path else (obs, prepared)
            if path in encoder.normalised:
                found = standalone.applied(raw.astype(np.float32), layers.taken())
                np.testing.assert_allclose(found, wanted, atol=1e-4, err_msg=f"{name} {path}")
            layers.taken()


def test_every_kind_of_observation_is_a_case() -> None:
    """A space that Flatout takes is among the cases, and so are at least two values of each field
    of a spec: a field that is added, for a kind that is scaled, say, has to be varied here."""
    kinds = {type(space) for space in spaces().values()} | {gym.spaces.Dict}
    examples = {
        gym.spaces.Tuple: lambda: gym.spaces.Tuple([gym.spaces.Discrete(2)]),
        gym.spaces.Graph: lambda: gym.spaces.Graph(gym.spaces.Discrete(2), None),
        gym.spaces.Sequence: lambda: gym.spaces.Sequence(gym.spaces.Discrete(2)),
        gym.spaces.OneOf: lambda: gym.spaces.OneOf([gym.spaces.Discrete(2)]),
    }
    for name in gym.spaces.__all__:
        kind = getattr(gym.spaces, name)
        if not isinstance(kind, type) or not issubclass(kind, gym.Space) or kind is gym.Space:
            continue
        if kind not in kinds and kind is not gym.spaces.Tuple:  # entries of a Tuple have paths
            with pytest.raises(UsageError):
                observation_spec(examples[kind](), name)
    for field in fields(ObservationSpec):
        values = {str(getattr(spec, field.name)) for spec in specs().values()}
        assert len(values) > 1, f"no case varies {field.name}"
