"""Files are data: what a run folder or a saved agent names is not called because it says so."""

from __future__ import annotations

import sys
from pathlib import Path

from flatout.errors import CheckpointError

OWN = frozenset({"flatout.envs.atari:cropped"})
"""Factories that come with Flatout: whatever their arguments, they make an environment."""


def refuse_foreign(env: str, file: Path) -> None:
    """Refuse a ``module:factory`` from a file unless its module lies below the working folder.

    Whoever wrote the file chose the function and its arguments: ``os:system`` would do as it is
    told. Modules of the user's own project may be called, Python's and installed ones not.

    Raises:
        CheckpointError: with what to do instead.
    """
    module, separator, attribute = env.partition(":")
    if not separator or "/" in env or "-v" in attribute:  # Gymnasium's own ids
        return
    if env in OWN:
        return
    parts = module.split(".")
    places = [Path(part or ".") for part in {"", *sys.path}]
    for place in places:
        base = place.joinpath(*parts)
        for candidate in (base.with_suffix(".py"), base / "__init__.py"):
            path = candidate.resolve()
            if not path.is_file():
                continue
            own = path.is_relative_to(Path.cwd()) and "site-packages" not in path.parts
            if own:
                return
    raise CheckpointError(
        f"{file} names the environment {env}, which lies outside of this folder and is not called "
        f"because a file says so; say --env {env} as well (in Python env=), or work in the folder "
        "that holds its module."
    )
