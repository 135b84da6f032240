"""How the recording of a run reads its settings, and what a resumed run keeps of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.run.recording import shows_images
from flatout.storage.span_records import SPANS, json_lines, read_lines
from tests.conftest import TINY, Result


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


@pytest.mark.usefixtures("shared_programs")
def test_a_run_that_goes_on_keeps_the_records_of_all_steps(
    flatout: Callable[..., Result], tmp_path: Path
) -> None:
    """The last checkpoint was written before the last record, which therefore did not count."""
    words = ("ppo", *TINY, "--checkpoint-every", 64, "--run-dir", tmp_path)
    assert flatout("train", *words).code == 0
    assert flatout("train", "--resume", tmp_path, "--quiet", "--steps", 512).code == 0
    _, records = read_lines(json_lines(tmp_path / SPANS))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert sum(record.steps for record in records) == summary["steps"] == 512
    assert sum(record.updates for record in records) == summary["updates"]
