"""The encoder: the only code that interprets raw observations and turns them into features.

Algorithms build networks with it. An observation is a tree of arrays (`flatout.tree`). Each array
is numbers, an image, a board of cells, or categories, and has a branch of its own:

- numbers are normalised, or scaled by the spec's `high`, and flattened;
- categories become one-hot vectors;
- images and boards pass through convolutions (`networks.torsos`, `networks.boards`).

A single array has dense layers or convolutions as before. The branches of several arrays are
concatenated, and dense layers follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flatout import tree
from flatout.config.schema import NetworkConfig
from flatout.config.torso import torso_kind
from flatout.errors import UsageError, nearest, one_line, with_full_stop
from flatout.networks.layers import MLP, Draw, FanIn
from flatout.networks.torsos import BOARDS, Network, OwnNetwork, Torso, make_torso
from flatout.types import Obs, ObservationSpec, ObsSpec, mask_path

CLIP = 10.0
"""Normalised inputs are at most this many deviations from 0."""

OWN, FLAT = "own", "flat"
"""Kinds of branches besides those of `torsos`: a user's module, and one without parameters."""


class Branches(eqx.Module):
    """The branches of several arrays by path, those without parameters left out, and the dense
    layers that follow their concatenation (None if the caller has its own)."""

    branches: dict[str, Torso]
    dense: MLP | None


class Encoder:
    """The preparation of observations and the structure of the torsos that read them.

    It holds no parameters: `build` draws a torso, and `features` applies it.

    Args:
        spec: the observations.
        config: settings of torsos and hidden layers.
        network: a user's function for the whole observation, or a dict of functions by path for
            some of its arrays; None for the configured torsos.

    Attributes:
        specs: the arrays by path, sorted; the path of a single array is empty. The action mask is
            not among them.
        shared: whether an actor and a critic should share a torso: one with convolutions.

    Raises:
        UsageError: `network` names a path that the observations do not have.
    """

    def __init__(self, spec: ObsSpec, config: NetworkConfig, network: OwnNetwork | None) -> None:
        self._config = config
        self._mask = mask_path(spec)
        spec, _ = self.split(spec)
        self.specs = dict(sorted(tree.items(spec)))
        self._single = not isinstance(spec, dict)
        self._own: dict[str, Network] = {}
        self._whole: Network | None = None
        if isinstance(network, Mapping):
            self._own = dict(network)
        elif network is not None and self._single:
            self._own = {"": network}
        else:
            self._whole = network
        self._refuse_networks()
        self._kinds = {path: self._kind(path) for path in self.specs}
        self._widths: dict[Any, int] = {}
        branches = any(kind != FLAT for kind in self._kinds.values())
        self.shared = self._images and config.network != "mlp" and branches

    @property
    def _images(self) -> bool:
        return any(spec.is_image for spec in self.specs.values())

    def _kind(self, path: str) -> str:
        """Return the kind of an array's branch."""
        spec = self.specs[path]
        if path in self._own:
            return OWN
        if len(self.specs) > 1 and not spec.is_image:
            return FLAT
        kind = torso_kind(spec, self._config)
        return FLAT if len(self.specs) > 1 and kind == "mlp" else kind

    def _refuse_networks(self) -> None:
        """Refuse networks for arrays that the observation does not have."""
        for path in self._own:
            if path not in self.specs:
                there = "one array" if self._single else ", ".join(self.specs)
                raise UsageError(
                    f"network has an entry {path!r}, but the observation has {there}."
                    f"{nearest(str(path), list(self.specs))}"
                )
        kind, several = self._config.network, len(self.specs) > 1 and self._whole is None
        if several and kind not in ("auto", "mlp") and not self._images:
            raise UsageError(
                f"network = {kind} needs image observations [rows, columns, channels], but none of "
                f"{', '.join(self.specs)} is one; use network = mlp."
            )

    @property
    def has_cells(self) -> bool:
        """Whether an array is a board whose cells become one-hot vectors in the torso."""
        return any(self.is_board(path) for path in self.specs)

    def is_board(self, path: str) -> bool:
        """Return whether the array at a path is a board whose cells become one-hot vectors."""
        return self._whole is None and self._kinds[path] in BOARDS

    @property
    def normalised(self) -> dict[str, ObservationSpec]:
        """The specs of the arrays that running statistics may normalise: all but boards of cells
        and categories."""
        return {
            path: spec for path, spec in self.specs.items()
            if not spec.categories and not self.is_board(path)
        }  # fmt: skip

    def refuse_critic_hidden(self, hidden: tuple[int, ...]) -> None:
        """Refuse widths of a critic's own hidden layers where its network has no such layers.

        Raises:
            UsageError: actor and critic share a torso, or the network is a user's function.
        """
        if self.shared:
            why = (
                "actor and critic share one network for images; leave it out, or set network = mlp"
            )
        elif self._whole is not None or (len(self.specs) == 1 and self._own):
            why = "hidden layers are part of the network that was given; leave it out"
        else:
            return
        raise UsageError(f"critic_hidden = {hidden} is impossible: {why}.")

    @property
    def plain(self) -> bool:
        """Whether dense layers may read the flattened observation: no network of the user's, and no
        convolutions."""
        kind, own = self._config.network, self._whole is not None or bool(self._own)
        return not own and (kind == "mlp" or (kind == "auto" and not self._images))

    # --- Building -----------------------------------------------------------------------------

    def build(self, draw: Draw, dense: bool = True, hidden: tuple[int, ...] | None = None) -> Any:
        """Draw a torso.

        Args:
            draw: the source of parameters.
            dense: whether dense layers follow the branches of several arrays.
            hidden: widths of the hidden layers; None for those of the settings.

        Raises:
            UsageError: a torso does not fit its array, or a user's function fails.
        """
        config = self._config if hidden is None else replace(self._config, hidden=hidden)
        if self._whole is not None:
            shapes = {path: _input_shape(spec) for path, spec in self.specs.items()}
            return _own_torso(draw, self._whole, shapes)
        if len(self.specs) == 1:
            return self._branch(draw, next(iter(self.specs)), config)
        branches = {
            path: self._branch(draw, path, config)
            for path, kind in self._kinds.items()
            if kind != FLAT
        }
        if not dense:
            return Branches(branches, None)
        width = self.width(Branches(branches, None))
        return Branches(branches, MLP(draw, width, config.hidden, config.activation))

    def _branch(self, draw: Draw, path: str, config: NetworkConfig) -> Torso:
        spec = self.specs[path]
        if path in self._own:
            return _own_torso(draw, self._own[path], _input_shape(spec), path)
        return make_torso(draw, _input_shape(spec), spec.high, self._kinds[path], config)

    def width(self, torso: Any) -> int:
        """Return F, the number of features of a torso; None stands for the flattened observation.

        Torsos of one type whose arrays have the same shapes have the same width. It is traced once
        for all of them, because a trace takes far longer than drawing a small torso.

        Raises:
            UsageError: a user's torso refuses an observation, or does not return a vector.
        """
        arrays = jax.tree.leaves(eqx.filter(torso, eqx.is_array))
        key = (type(torso), *(leaf.shape for leaf in arrays))
        if key not in self._widths:
            self._widths[key] = self._traced_width(torso)
        return self._widths[key]

    def _traced_width(self, torso: Any) -> int:
        x = {
            path: jax.ShapeDtypeStruct((1, *_prepared_shape(spec)), self._dtype(path))
            for path, spec in self.specs.items()
        }
        given = x[""] if self._single else x
        try:
            out = jax.eval_shape(lambda x: self.features(torso, x), given)
        except UsageError:
            raise
        except Exception as error:  # a user's module may raise anything
            shapes = {path: list(_input_shape(spec)) for path, spec in self.specs.items()}
            raise UsageError(
                f"the network does not accept one observation of shape "
                f"{shapes[''] if self._single else shapes}: "
                f"{type(error).__name__}: {with_full_stop(error)}"
            ) from error
        if not hasattr(out, "shape") or len(out.shape) != 2:
            raise UsageError(
                "the network must map one observation to a vector of features, not to "
                f"{_output_words(out)}."
            )
        return out.shape[1]

    def _dtype(self, path: str) -> Any:
        spec = self.specs[path]
        raw = bool(spec.categories) or self.is_board(path)
        return np.dtype(spec.dtype) if raw else np.dtype("float32")

    # --- Observations to features -------------------------------------------------------------

    def split(self, obs: Obs) -> tuple[Obs, Any]:
        """Return an observation without the mask of allowed actions, and the mask; None if there is
        no mask. One array next to the mask is a single array then. Specs are split likewise."""
        if not self._mask:
            return obs, None
        rest = {path: leaf for path, leaf in obs.items() if path != self._mask}
        return next(iter(rest.values())) if len(rest) == 1 else rest, obs[self._mask]

    def allowed(self, obs: Obs) -> tuple[Obs, jax.Array | None]:
        """Return raw observations ``[B, ...]`` without the mask, and the mask as bool ``[B, K]``;
        None if there is none. `prepare` takes the former."""
        rest, mask = self.split(obs)
        return rest, None if mask is None else mask.reshape(len(mask), -1) > 0

    def to_normalise(self, obs: Obs) -> Obs:
        """Return the arrays of `normalised` as float32 ``[B, ...]``. Statistics are of these
        arrays, and `prepare` applies the statistics to them.

        They are raw numbers, because normalised arrays are not scaled by `high`. After scaling, the
        variance of a pixel that rarely changes would be near the small constant that `normalise`
        adds to it; and whole numbers have exact float32 sums, up to 2**24.
        """
        kept = {path: _numbers(leaf) for path, leaf in tree.items(obs) if path in self.normalised}
        return kept[""] if self._single else kept

    def prepare(self, obs: Obs, moments: Any = None) -> Obs:
        """Normalise observations ``[B, ...]``, or scale them by `high` if they are not normalised;
        categories and cells of boards stay as they are. Images have their channels last in the
        result.

        Args:
            obs: raw observations.
            moments: `RunningMoments` of `to_normalise`'s arrays; None if observations are not
                normalised.
        """
        if self._single:
            return self._prepared("", obs, moments)
        return {
            path: self._prepared(path, leaf, (moments or {}).get(path))
            for path, leaf in obs.items()
        }

    def _prepared(self, path: str, x: jax.Array, moments: Any) -> jax.Array:
        spec = self.specs[path]
        if spec.categories:
            return x
        if not self.is_board(path):
            x = _numbers(x)
            if moments is not None:
                x = normalise(x, moments)
            elif spec.high is not None:
                x = x * np.float32(1.0 / spec.high)
        return jnp.moveaxis(x, -3, -1) if spec.channels_first else x

    def features(self, torso: Any, x: Obs) -> jax.Array:
        """Return the features ``[B, F]`` of prepared observations ``[B, ...]``.

        Args:
            torso: a result of `build`; None for the flattened observation.
            x: a result of `prepare`.
        """
        leaves = {"": x} if self._single else x
        given = {path: self._input(path, leaf) for path, leaf in leaves.items()}
        if self._whole is not None:
            return jax.vmap(torso)(given)
        if torso is None:
            return _joined([_flat(given[path], self.specs[path]) for path in self.specs])
        if len(self.specs) == 1:
            path = next(iter(self.specs))
            return self._applied(path, torso, given[path])
        parts = [
            self._applied(path, torso.branches[path], given[path])
            if path in torso.branches
            else _flat(given[path], self.specs[path])
            for path in self.specs
        ]
        features = _joined(parts)
        return features if torso.dense is None else torso.dense(features)

    def _input(self, path: str, x: jax.Array) -> jax.Array:
        """Return what a branch reads: one-hot vectors of categories, other arrays unchanged."""
        spec = self.specs[path]
        if not spec.categories:
            return x
        cells = x.reshape(len(x), -1) - np.asarray(spec.starts, np.int32)
        parts = [
            jax.nn.one_hot(cells[:, index], count) for index, count in enumerate(spec.categories)
        ]
        return _joined(parts)

    def _applied(self, path: str, torso: Torso, x: jax.Array) -> jax.Array:
        if path not in self._own:
            return torso(x)
        features = jax.vmap(torso)(x)  # Flatout's torsos map a batch, a user's one observation
        if path and getattr(features, "ndim", 0) != 2:
            raise UsageError(
                f"the network of {path!r} must map one array to a vector of features, not to "
                f"{_output_words(features)}."
            )
        return features


def _numbers(x: jax.Array) -> jax.Array:
    """Return the numbers of an array in the type in which they are normalised or scaled."""
    return x.astype(jnp.float32)


def normalise(x: jax.Array, moments: Any) -> jax.Array:
    """Return ``(x - mean) / sqrt(var + 1e-8)``, clipped to ``[-CLIP, CLIP]``.

    Args:
        moments: has the fields `mean` and `var`, of the shape of one entry of `x`.
    """
    return jnp.clip((x - moments.mean) * jax.lax.rsqrt(moments.var + 1e-8), -CLIP, CLIP)


def _own_torso(draw: Draw, network: Network, shape: Any, path: str = "") -> Any:
    """Call a user's function with a key and the shape of an observation, or shapes by path."""
    of = f" of {path!r}" if path else ""
    rng = draw.rng if isinstance(draw, FanIn) else draw
    drawn = np.zeros(2, np.uint32) if rng is None else rng.integers(0, 2**32, 2, np.uint32)
    key = jax.random.wrap_key_data(jnp.asarray(drawn), impl="threefry2x32")
    try:
        torso = network(key, shape)
    except Exception as error:  # a user's function may raise anything
        raise UsageError(
            f"building the network{of} failed: {type(error).__name__}: {one_line(error)}; the "
            "function is called with (key, observation_shape)."
        ) from error
    if not callable(torso):
        raise UsageError(
            f"the network{of} returned {type(torso).__name__}; it must return a module that maps "
            "one observation to a vector of features."
        )
    return torso


def _prepared_shape(spec: ObservationSpec) -> tuple[int, ...]:
    """Return the shape of an array that `Encoder.prepare` returns, without the batch."""
    return spec.image_shape


def _input_shape(spec: ObservationSpec) -> tuple[int, ...]:
    """Return the shape of what a branch reads."""
    return (sum(spec.categories),) if spec.categories else spec.image_shape


def _output_words(out: Any) -> str:
    """Return what a user's network made of a batch, in words: the shape for one observation, or the
    type of anything but an array."""
    shape = getattr(out, "shape", None)
    return f"a {type(out).__name__}" if shape is None else f"an array of shape {list(shape[1:])}"


def _flat(x: jax.Array, spec: ObservationSpec) -> jax.Array:
    """Return vectors ``[B, n]`` of arrays ``[B, ...]``, which may be cells of a board."""
    return x.reshape(len(x), math.prod(_input_shape(spec))).astype(jnp.float32)


def _joined(parts: list[jax.Array]) -> jax.Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -1)
