"""Saved agents: parameters by name in one safetensors file, with the settings that made them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from flatout.config.schema import TrainConfig
from flatout.config.settings import resolve
from flatout.errors import CheckpointError, FlatoutError, UsageError
from flatout.output import shell_word
from flatout.storage import checkpoint, signing
from flatout.storage.trust import Consent, code_of_run, refuse_foreign

BEST, FINAL = "best.safetensors", "params.safetensors"
AGENT_FILES = (BEST, FINAL)
"""A run folder's saved agents: the best by evaluation, and the final one."""


def save_parameters(
    path: Path,
    config: TrainConfig,
    arrays: dict[str, np.ndarray],
    reached: float | None,
    optimiser: bool = False,
    learned: int = 1,
    steps: int | None = None,
) -> None:
    """Write a saved agent: its learning state by name, with its settings.

    Args:
        arrays: a snapshot's.
        reached: the return to record, or None.
        optimiser: keep the optimiser's state too, so that learning can continue.
        learned: calls of `learn` so far; each draws other seeds.
        steps: environment steps that it has learned from, if they are known.
    """
    chosen = {
        name: array
        for name, array in arrays.items()
        if name.startswith(checkpoint.PREFIX)
        and (optimiser or not name.startswith(f"{checkpoint.PREFIX}.opt"))
    }
    settings = {"algorithm": config.algorithm, "settings": config.flat()}
    metadata = {"format": checkpoint.FORMAT, "config": settings}
    metadata |= {"return": reached, "learned": learned, "steps": steps}
    metadata[signing.CODE] = code_of_run(config)
    checkpoint.save_agent(path, chosen, metadata)


def saved_config(metadata: dict[str, Any], path: Path, consent: Consent | None) -> TrainConfig:
    """The settings in a saved agent's metadata.

    Args:
        consent: to code that the settings name; None where they are only read.

    Raises:
        CheckpointError: they are wrong, or name code without consent.
    """
    try:
        values = metadata["config"]
        config = resolve(str(values["algorithm"]), values["settings"])
    except (KeyError, TypeError, AttributeError, FlatoutError) as error:
        raise CheckpointError(
            f"{path} is not a saved agent: its settings are wrong ({str(error)[:500].rstrip('.')})."
        ) from error
    if consent is not None:
        refuse_foreign(config, path, signing.signed_code(signing.AGENT, metadata), consent)
    return config


def find_agent(path: Path) -> Path:
    """The saved agent at a path: a file, or a run folder's best or final parameters."""
    if not path.exists():
        raise UsageError(f"{path} does not exist.")
    if not path.is_dir():
        return path
    for name in AGENT_FILES:
        if os.path.lexists(path / name):
            return path / name
    why = f"{path} holds neither {' nor '.join(AGENT_FILES)}, and no checkpoint"
    if os.path.lexists(path / "config.json"):
        again = f"flatout train --resume {shell_word(path)}"
        why += f"; if its run was stopped before it saved one: {again}"
    raise UsageError(f"{why}.")
