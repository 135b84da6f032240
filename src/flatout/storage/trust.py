"""Files are data: code that a run folder or a saved agent names runs only with consent."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from flatout.config.modules import PASSED, look_here
from flatout.config.schema import TrainConfig
from flatout.errors import CheckpointError, EnvironmentFailure, one_line

OWN = frozenset({"flatout.envs.atari:cropped"})
"""Flatout's factories: with any arguments, they only make an environment."""

LIBRARIES = ("gymnax:", "envelope:")
"""Names in a library's list of environments; of the library, only these names are looked up."""

CODE = ("env", "algorithm", "network", "data")
"""Settings that may name code."""

_PLAIN = re.compile(r"[\w\- +,=()]([\w\- +,=().]*)")
"""Text that is no path and no module."""


@dataclass(frozen=True)
class Consent:
    """The user's consent to code and files that a file names."""

    named: Mapping[str, Any] = field(default_factory=dict[str, Any])  # typed as well, by name
    trust: bool = False  # consent to everything (``--trust``)


NO_CONSENT = Consent()


def names_code(name: str) -> bool:
    """Whether the name of an environment, an algorithm, a network or data imports a module:
    ``module:factory``."""
    return ":" in name and name not in OWN and not name.startswith(LIBRARIES)


def refuse_foreign(
    config: TrainConfig, file: Path, own: bool, consent: Consent = NO_CONSENT
) -> None:
    """Refuse settings from a file that reach outside of it, unless the user consents.

    A file's author chooses the function and its arguments, which may be ``os:system``. A file that
    the user signed may name a module, but none beside the file: the signature covers the name, not
    the code.

    Args:
        own: this user's key signed the file.

    Raises:
        CheckpointError: with advice.
        EnvironmentFailure: the user's module fails to import.
    """
    if consent.trust:
        return
    for name, key, value in reaching(config):
        typed = consent.named.get(name)
        if typed is not None and (not key or (isinstance(typed, Mapping) and key in typed)):
            continue
        if name in CODE and names_code(str(value)):
            _refuse_module(name, str(value), file, own)
        elif not own:
            flag = f"--{name.replace('_', '-')} {key}{'=' if key else ''}{value}"
            raise CheckpointError(
                f"{file} is not of this user's making and asks for {flag[:200]}, which reaches "
                "outside of it; to allow that, say it as well, or --trust (in Python trust=True)."
            )


def keep_out(folder: Path) -> None:
    """Keep this process and its children from importing from a run folder.

    What Python and Flatout themselves were started from stays.
    """
    root = os.path.realpath(folder)
    prefixes = [os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)]
    prefixes.append(os.path.realpath(Path(__file__).parents[2]))

    def inside(entry: str) -> bool:
        return _lies_in(entry, root) and not any(_lies_in(entry, prefix) for prefix in prefixes)

    sys.path[:] = [entry for entry in sys.path if not inside(entry)]
    listed = os.environ.get("PYTHONPATH")
    if listed:
        kept = [entry for entry in listed.split(os.pathsep) if not inside(entry)]
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)


def import_here(*names: str, folder: Path | None = None) -> None:
    """Import from the working folder too, if a name of an environment or algorithm is of a module.

    Child processes import what this process imports.

    Args:
        names: to whose code the user has consented.
        folder: a run's; not if the working folder is this one or lies in it.
    """
    inside = folder is not None and _lies_in(os.getcwd(), os.path.realpath(folder))
    if any(map(names_code, names)) and not inside:
        look_here()


def reaching(config: TrainConfig) -> Iterator[tuple[str, str, Any]]:
    """Settings that name code or files: name, key within it, value."""
    for name, value in named_code(config):
        yield name, "", value
    for key, value in config.env.env_kwargs.items():
        if not all(_PLAIN.fullmatch(text) for text in _texts({key: value})):
            yield "env_kwargs", key, value
    data = getattr(config.hyper, "data", None)
    if data is not None and not names_code(data) and not data.endswith(PASSED):
        yield "data", "", data
    if config.run.wandb is not None:
        yield "wandb", "", config.run.wandb


def named_code(config: TrainConfig) -> list[tuple[str, str]]:
    """Settings that name code as ``module:function``: name and value."""
    env = config.env.env if config.hyper.acts else ""
    named = {"env": env, "algorithm": config.algorithm}
    named |= {name: getattr(config.hyper, name, None) or "" for name in ("network", "data")}
    return [(name, value) for name, value in named.items() if names_code(value)]


def _texts(value: Any) -> Iterator[str]:
    """All text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield str(name)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _refuse_module(name: str, value: str, file: Path, signed: bool) -> None:
    module = value.partition(":")[0]
    if signed and module in sys.modules:
        return
    root = os.path.realpath(file.parent)
    paths = _places(module, [os.getcwd(), *sys.path])
    beside = any(_lies_in(place, root) for place in paths)
    if signed and not beside:
        _import_from_outside(module, value, root)
        return
    where = f" (it lies in {paths[-1]})" if paths else ""
    why = "lies beside that file" if signed else "is not imported because a file says so"
    what, flag = name, f"--{name} {value[:200]}"
    if name == "env":
        what = "environment"
    elif name == "algorithm":
        flag = f"train {value[:200]} (eval --algorithm)"
    raise CheckpointError(
        f"{file} names the {what} {value[:200]}, whose module {why}{where}; to run its code, "
        f"say {flag} as well (in Python {name}=), or --trust (trust=True)."
    )


def _places(module: str, path: Sequence[str]) -> list[str]:
    """Paths of a module and its parent packages, without importing them."""
    paths: list[str] = []
    search: Sequence[str] | None = path
    names = module.split(".")
    for count in range(1, len(names) + 1 if all(names) else 0):
        name = ".".join(names[:count])
        spec = None if search is None else PathFinder.find_spec(name, search)
        if spec is None and count == 1:
            with suppress(ValueError):  # a script's __main__ has none
                spec = importlib.util.find_spec(name)  # editable installations
        if spec is None:
            return paths
        search = spec.submodule_search_locations
        paths += search or ()
        if spec.has_location and spec.origin:
            paths.append(spec.origin)
    return paths


def _import_from_outside(module: str, value: str, root: str) -> None:
    """Import the user's module if the run folder could shadow it; else it is imported later."""
    path, cwd = list(sys.path), os.getcwd()
    outside = [entry for entry in path if not _lies_in(entry, root)]
    if len(outside) == len(path) and not _lies_in(cwd, root):
        return
    sys.path[:] = outside if _lies_in(cwd, root) else [cwd, *outside]
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise EnvironmentFailure(
            f"{value}: importing {module} failed: {type(error).__name__}: {one_line(error)}."
        ) from error
    finally:
        sys.path[:] = path


def _lies_in(path: str, root: str) -> bool:
    """Whether a path (empty: the working folder) is `root` or below it; `root` has no links."""
    real = os.path.realpath(path or ".")
    return real == root or real.startswith(root.rstrip(os.sep) + os.sep)
