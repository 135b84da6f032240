"""The choice of a torso for one array of an observation, which needs no JAX: `networks` builds the
torso, and `envs.checking` names it."""

from __future__ import annotations

from flatout.config.schema import NetworkConfig
from flatout.types import ObservationSpec

MOST_CELLS = 31
"""The largest value of a board's cells, which become one-hot vectors."""


def torso_kind(spec: ObservationSpec, config: NetworkConfig) -> str:
    """Return the name of the torso for an array: the configured one, or for ``auto`` a fitting one:
    convolutions for images, one-hot cells for small boards, else dense layers."""
    if config.network != "auto":
        return config.network
    if not spec.is_image:
        return "mlp"
    if min(spec.image_shape[:2]) >= 36:
        return "nature"
    return "mlp" if spec.high is None or spec.high > MOST_CELLS else "grid"
