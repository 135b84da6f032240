"""Alternative settings for a run, as flags of `flatout train`. Pure.

Proposals are validated as a user's settings are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flatout.config.placement import Placement, parse
from flatout.config.placement_checks import refuse_unavailable
from flatout.config.settings import revise
from flatout.config.workers import with_workers
from flatout.errors import FlatoutError
from flatout.explain.facts import RunFacts

Changes = dict[str, Any]  # settings by name, and their new values


def possible(facts: RunFacts, changes: Changes) -> bool:
    """Return whether a run's settings with these changes are valid on its cores."""
    try:
        config = revise(facts.config, changes)
        placement = config.run.placed
        if placement is None:
            return True
        refuse_unavailable(placement)
        with_workers(placement, config.env.envs, facts.cores)
    except FlatoutError:
        return False
    return not (config.hyper.only_serial and placement.overlapped)


def flags(changes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return settings as command-line arguments."""
    words: list[str] = []
    for name, value in changes.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        if isinstance(value, dict):
            for key, one in value.items():
                words += [f"--{flag}", f"{key}={_toml(one)}"]
        else:
            listed = value if isinstance(value, tuple) else [value]
            words += [f"--{flag}", ",".join(map(str, listed))]
    return tuple(words)


def _toml(value: Any) -> str:
    """Return a JSON value, in which nothing is null, as TOML in one line."""
    if isinstance(value, Mapping):
        pairs = (f"{_toml(str(key))} = {_toml(one)}" for key, one in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def arguments(setting: Sequence[str]) -> dict[str, Any]:
    """Return such flags as keyword arguments of an agent in Python."""
    values, words = dict[str, Any](), list(setting)
    while words:
        name = words.pop(0).removeprefix("--").replace("-", "_")
        if not words or words[0].startswith("--"):
            values[name.removeprefix("no_")] = not name.startswith("no_")
            continue
        text = words.pop(0)
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def named(setting: tuple[str, ...]) -> set[str]:
    """Return the names of the settings that such flags change."""
    return {
        word.removeprefix("--").removeprefix("no-").replace("-", "_")
        for word in setting
        if word.startswith("--")
    }


def placed(placement: Placement, **changes: Any) -> Changes:
    """Return a changed placement as a setting."""
    changed = replace(placement, **changes)
    text = str(changed)
    # The CPU is the default device.
    short = text.removeprefix("act=cpu ")
    return {"placement": short if short and parse(short) == changed else text}


def worker_count(envs: int, most: int) -> int:
    """Return the largest number of equal workers up to `most`, or 1."""
    return next((n for n in range(min(most, envs), 1, -1) if envs % n == 0), 1)


def more_envs(facts: RunFacts, factor: int) -> Changes | None:
    """Return changes to `factor` times as many environments, with rollouts of the same size; None
    if that is impossible."""
    config = facts.config
    if config.algorithm == "genetic":  # each environment is a member of the population
        return None
    changes: Changes = {"envs": config.env.envs * factor}
    if config.algorithm == "ppo" and config.hyper.rollout_episodes is None:
        steps = config.hyper.n_steps
        if steps % factor or steps // factor < 8:
            return None
        changes["n_steps"] = steps // factor
    placement = config.run.placed
    if placement is not None and placement.workers is not None:
        count, each = placement.workers
        changes |= placed(placement, workers=(count, each * factor))
    return changes if possible(facts, changes) else None
