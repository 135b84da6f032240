"""Stable-Baselines3's checker of environments."""

from __future__ import annotations

from typing import Any

from flatout.envs.checking.check_env import check_env as findings_of
from flatout.errors import UsageError
from flatout.output import say


def check_env(env: Any, warn: bool = True, skip_render_check: bool = True) -> None:
    """Check an environment; `flatout.check_env` returns everything that was found.

    Args:
        env: the environment.
        warn: print what training survives.
        skip_render_check: ignored.

    Raises:
        UsageError: an error was found.
    """
    found = findings_of(env)
    for one in found:
        if one.kind == "error":
            raise UsageError(str(one))
    for one in found if warn else ():
        say(str(one))
