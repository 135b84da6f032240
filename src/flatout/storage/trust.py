"""Files are data: what a run folder or a saved agent names is not called because it says so."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from flatout.config.schema import TrainConfig
from flatout.errors import CheckpointError, EnvironmentFailure, one_line

OWN = frozenset({"flatout.envs.atari:cropped"})
"""Factories that come with Flatout: whatever their arguments, they make an environment."""

_PLAIN = re.compile(r"[\w\- +,=()]([\w\- +,=().]*)")
"""Text that names neither a file nor a module."""


@dataclass(frozen=True)
class Consent:
    """What the user said beside naming a file.

    Attributes:
        named: settings that were typed once more, by name.
        trust: whatever the file names may be used (``--trust``).
    """

    named: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trust: bool = False


NO_CONSENT = Consent()


def names_code(env: str) -> bool:
    """Whether opening an environment imports a module that its name says.

    Gymnasium's own ``module:Id-v0`` does as ``module:factory`` does.
    """
    return ":" in env and env not in OWN


def refuse_foreign(config: TrainConfig, file: Path, own: bool, said: Consent = NO_CONSENT) -> None:
    """Refuse settings from a file that reach outside of it, unless the user trusts them.

    Whoever wrote the file chose the function and its arguments: ``os:system`` would do as it is
    told. In one's own file they may stand, but never a module that lies beside the file: what is
    signed is the name, not the code.

    Args:
        config: what the file says.
        file: the file.
        own: this user's key signed it.
        said: what the user said.

    Raises:
        CheckpointError: with what to do instead.
        EnvironmentFailure: one's own module fails to import.
    """
    if said.trust:
        return
    for name, key, value in _reaching(config):
        known = said.named.get(name)
        if known is not None and (not key or (isinstance(known, Mapping) and key in known)):
            continue
        if name == "env":
            _refuse_module(str(value), file, own)
        elif not own:
            flag = f"--{name.replace('_', '-')} {key}{'=' if key else ''}{value}"
            raise CheckpointError(
                f"{file} is not of this user's making and asks for {flag[:200]}, which reaches "
                "outside of it; to allow that, say it as well, or --trust (in Python trust=True)."
            )


def keep_out(folder: Path) -> None:
    """Import nothing from a run folder from now on, nor let child processes do so.

    Args:
        folder: of the run, which may lie on ``sys.path`` or be the working folder.
    """
    root = os.path.realpath(folder)
    here = [os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)]

    def inside(entry: str) -> bool:
        return _lies_in(entry, root) and not any(_lies_in(entry, prefix) for prefix in here)

    sys.path[:] = [entry for entry in sys.path if not inside(entry)]
    listed = os.environ.get("PYTHONPATH")
    if listed:
        kept = [entry for entry in listed.split(os.pathsep) if not inside(entry)]
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)


def add_here(folder: Path) -> None:
    """Look for modules in the working folder, too, unless it is or lies in a run folder."""
    here = os.getcwd()
    if here not in sys.path and not _lies_in(here, os.path.realpath(folder)):
        sys.path.insert(0, here)


def child_variables() -> dict[str, str]:
    """The environment variables of a child process (``python -P``) that imports what this does."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def _reaching(config: TrainConfig) -> Iterator[tuple[str, str, Any]]:
    """Settings by which a file reaches outside of itself: name, key within it, value."""
    if names_code(config.env.env):
        yield "env", "", config.env.env
    for key, value in config.env.env_kwargs.items():
        if not all(_PLAIN.fullmatch(text) for text in _texts({key: value})):
            yield "env_kwargs", key, value
    for name, value in (("data", getattr(config.hyper, "data", None)), ("wandb", config.run.wandb)):
        if value is not None:
            yield name, "", value


def _texts(value: Any) -> Iterator[str]:
    """All text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield str(name)
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _refuse_module(env: str, file: Path, own: bool) -> None:
    module = env.partition(":")[0]
    if own and module in sys.modules:
        return
    root = os.path.realpath(file.parent)
    places = _places(module, [os.getcwd(), *sys.path])
    beside = any(_lies_in(place, root) for place in places)
    if own and not beside:
        _import_from_outside(module, env, root)
        return
    where = f" (it lies in {places[-1]})" if places else ""
    why = "lies beside that file" if own else "is not imported because a file says so"
    raise CheckpointError(
        f"{file} names the environment {env[:200]}, whose module {why}{where}; to run its code, "
        f"say --env {env[:200]} as well (in Python env=), or --trust (trust=True)."
    )


def _places(module: str, path: Sequence[str]) -> list[str]:
    """Where a module and the packages around it lie; nothing is imported."""
    found: list[str] = []
    search: Sequence[str] | None = path
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        spec: ModuleSpec | None = None
        if search is not None and all(parts):
            spec = PathFinder.find_spec(name, search)
        if spec is None and count == 1 and all(parts):
            spec = importlib.util.find_spec(name)  # what an editable installation adds
        if spec is None:
            return found
        search = spec.submodule_search_locations
        found += [*(search or ()), *([spec.origin] if spec.has_location and spec.origin else [])]
    return found


def _import_from_outside(module: str, env: str, root: str) -> None:
    """Import one's own module where the run folder could get in between; else later will do."""
    path, here = list(sys.path), os.getcwd()
    outside = [entry for entry in path if not _lies_in(entry, root)]
    if len(outside) == len(path) and not _lies_in(here, root):
        return
    sys.path[:] = outside if _lies_in(here, root) else [here, *outside]
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise EnvironmentFailure(
            f"--env {env}: importing {module} failed: {type(error).__name__}: {one_line(error)}."
        ) from error
    finally:
        sys.path[:] = path


def _lies_in(path: str, root: str) -> bool:
    """Whether a path is a folder (given without links) or below it; an empty one is here."""
    real = os.path.realpath(path or ".")
    return real == root or real.startswith(root.rstrip(os.sep) + os.sep)
