"""Run folders of given curves, without training: what a report reads of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.storage.checkpoint import FORMAT
from tests import tiny


def folder(
    path: Path, returns: Sequence[float], every: int = 100, ended: str = "steps",
    evaluations: Sequence[float] = (), **settings: Any,
) -> Path:  # fmt: skip
    """A finished run with these mean returns, one each `every` steps and half a second, and with
    evaluations at the last of these steps."""
    settings = {"algorithm": "ppo", "env": "CartPole-v1", "learning_rate": 3e-4} | settings
    path.mkdir(parents=True)
    config = {"format": FORMAT, "algorithm": settings["algorithm"], "settings": settings,
              "parent": None}  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    rows = [
        {"step": every * number, "time/wall_s": number / 2, "rollout/return_mean_100": value}
        for number, value in enumerate(returns, 1)
    ]
    for row, value in zip(reversed(rows), reversed(evaluations), strict=False):
        row["eval/return_mean"] = value
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {
        "steps": every * len(returns), "return_mean_100": None, "return_mean_last": returns[-1],
        "last_eval_return": evaluations[-1] if evaluations else None, "ended": ended,
        "steps_per_s": 1000.0 + len(returns), "verdict": "env-bound",
    }  # fmt: skip
    (path / "summary.json").write_text(json.dumps(summary))
    return path


def sweep_file(folder: Path, section: str, **settings: Any) -> Path:
    """A sweep of short trials with these settings, which a section of TOML tells apart."""
    file = folder / "sweep.toml"
    settings = {"algorithm": "ppo", "tensorboard": False} | tiny.settings("ppo") | settings
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    file.write_text("\n".join([*lines, section]))
    return file
