"""How the recording of a run reads its settings."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.run.recording import shows_images


@pytest.mark.parametrize(
    ("settings", "images"),
    [
        ({"network": "nature"}, True), ({"network": "nature_same"}, True),
        ({"grayscale": True}, True), ({"resize": [84, 84]}, True),
        ({"env": "ALE/Pong-v5", "network": "auto"}, True),
        ({"network": "mlp", "env": "CartPole-v1", "grayscale": False, "resize": None}, False),
        ({}, False),
    ],
)  # fmt: skip
def test_images_are_known_by_the_settings(settings: dict[str, Any], images: bool) -> None:
    assert shows_images(settings) is images
