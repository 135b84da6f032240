"""Stable-Baselines3's monitor, which Flatout does not need."""

from __future__ import annotations

from typing import Any

from flatout.output import say


def Monitor(env: Any, filename: str | None = None, *_: Any, **__: Any) -> Any:  # noqa: N802
    """Return the environment as it is: returns and lengths of episodes are recorded without it."""
    if filename is not None:
        say("Monitor writes no file: learn(run_dir=...) writes episodes.jsonl")
    return env
