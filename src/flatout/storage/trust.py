"""Files are data: code that a run folder or a saved agent names runs only with consent."""

from __future__ import annotations

import glob
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.config.modules import LIBRARIES, PASSED, POOL, OwnModules, look_here
from flatout.config.own_code import find, folders_of, import_path, own_code
from flatout.config.schema import TrainConfig
from flatout.errors import CheckpointError, EnvironmentFailure, UsageError, with_full_stop
from flatout_explain.files.import_path import lies_in

OWN = frozenset({"flatout.envs.atari:cropped"})
"""Flatout's factories: with any arguments, they only make an environment."""

CODE = ("env", "algorithm", "network", "data")
"""Settings that may name code."""

WHAT = {"env": "environment"}
"""Words for settings in messages, where these differ from their names."""

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
    known = (*LIBRARIES, POOL)
    return ":" in name and name not in OWN and name.partition(":")[0] not in known


def refuse_foreign(
    config: TrainConfig, file: Path, code: Mapping[str, str] | None, consent: Consent = NO_CONSENT
) -> None:
    """Refuse settings from a file that reach outside of it, unless the user consents.

    A file's author chooses the function and its arguments, which may be ``os:system``. A file that
    the user signed may name a module if its code is as it was then. It may name none beside the
    file.

    Args:
        code: hashes of the user's code (`code_of`) that this user's key signed with the file; None
            if it did not sign the file.

    Raises:
        CheckpointError: with advice.
        EnvironmentFailure: the user's module fails to import.
    """
    for name, key, value in unconfirmed(_settings(config), consent):
        if name in CODE and names_code(str(value)):
            _refuse_module(name, str(value), file, code)
        elif code is None:
            raise CheckpointError(
                f"{file} was not created by this user and asks for {flag_of(name, key, value)}, "
                "which reaches outside of it; to allow that, say it as well, or --trust (in Python "
                "trust=True)."
            )


def refuse_unconfirmed(where: str, settings: Mapping[str, Any], consent: Consent) -> None:
    """Refuse settings that a settings file (``--config``, a sweep's) holds and that name code,
    files or addresses, unless the user consents: such a file may be somebody else's.

    Args:
        where: names the file in messages.

    Raises:
        UsageError: with advice.
    """
    for name, key, value in unconfirmed(settings, consent):
        what, flag = WHAT.get(name, name), flag_of(name, key, value)
        if name in CODE and names_code(str(value)):
            raise UsageError(
                f"{where} names the {what} {str(value)[:200]}, whose code is not run because a "
                f"file says so; say {flag} as well, or --trust."
            )
        raise UsageError(
            f"{where} asks for {flag}, which reaches files or addresses because a file says so; "
            "say it as well, or --trust."
        )


def unconfirmed(settings: Mapping[str, Any], consent: Consent) -> Iterator[tuple[str, str, Any]]:
    """Yield those of `reaching` to which the user has not consented."""
    for name, key, value in () if consent.trust else reaching(settings):
        typed = consent.named.get(name)
        if typed is None or (key and not (isinstance(typed, Mapping) and key in typed)):
            yield name, key, value


def flag_of(name: str, key: str, value: Any) -> str:
    """Return the words of a command that say a setting, at most 200 characters."""
    flag = "train" if name == "algorithm" else f"--{name.replace('_', '-')}"
    return f"{flag} {key}{'=' if key else ''}{value}"[:200]


def code_of(names: Iterable[str]) -> dict[str, str]:
    """Return a SHA-256 of each file of the user's code that some names stand for, by its module.

    That is what `own_code` finds, and whatever else of the same packages is imported here.

    Args:
        names: of environments, algorithms, networks and data.
    """
    path = import_path()
    modules = {name.partition(":")[0] for name in names if names_code(name)}
    found = dict(own_code(modules, path))
    packages = {name.partition(".")[0] for name in found}
    # A copy: other members' threads import meanwhile.
    loaded = [name for name in list(sys.modules) if name.partition(".")[0] in packages]
    found |= own_code((), path, loaded)
    return {name: _digest(file) for name, file in found.items()}


def code_of_run(config: TrainConfig) -> dict[str, str]:
    """Return `code_of` for all code that a run's settings name."""
    return code_of(value for _, value in named_code(config))


def import_here(*names: str, folder: Path | None = None) -> None:
    """Import from the working folder too, if a name of an environment or algorithm is of a module.

    Child processes import what this process imports.

    Args:
        names: to whose code the user has consented.
        folder: a run's; not if the working folder is this one or lies in it.
    """
    inside = folder is not None and lies_in(os.getcwd(), os.path.realpath(folder))
    if any(map(names_code, names)) and not inside:
        look_here()


ADDRESSES = ("wandb", "ray_address", "ray_working_dir")
"""Settings that send something to an address, and the folder that is sent."""

REACHING = (*CODE, "env_kwargs", *ADDRESSES)
"""Settings that may name code, files or addresses."""


def reaching(settings: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Flat settings that name code, files or addresses: name, key within it, value."""
    for name in CODE:
        value = settings.get(name)
        if isinstance(value, str) and names_code(value):
            yield name, "", value
    given = settings.get("env_kwargs") or {}
    for key, value in given.items() if isinstance(given, Mapping) else [("", given)]:
        if not all(_PLAIN.fullmatch(text) for text in _texts({key: value} if key else value)):
            yield "env_kwargs", key, value
    data = settings.get("data")
    if isinstance(data, str) and not names_code(data) and not data.endswith(PASSED):
        yield "data", "", data
    for name in ADDRESSES:
        # "auto" is the user's own cluster, on this machine.
        if settings.get(name) is not None and (name, settings[name]) != ("ray_address", "auto"):
            yield name, "", settings[name]


def named_code(config: TrainConfig) -> list[tuple[str, str]]:
    """Settings that name code as ``module:function``: name and value."""
    return [
        (name, value)
        for name, _, value in reaching_of(config)
        if name in CODE and names_code(value)
    ]


def reaching_of(config: TrainConfig) -> list[tuple[str, str, Any]]:
    """`reaching` of a run's settings."""
    return list(reaching(_settings(config)))


def _settings(config: TrainConfig) -> dict[str, Any]:
    """A run's flat settings; a dataset's name, which takes the environment's place, is none."""
    return config.flat() | ({} if config.hyper.acts else {"env": ""})


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


def _refuse_module(name: str, value: str, file: Path, code: Mapping[str, str] | None) -> None:
    module = value.partition(":")[0]
    if code is not None and module in sys.modules:
        return
    root = os.path.realpath(file.parent)
    paths = _places(module, import_path())
    where = f" (it lies in {paths[-1]})" if paths else ""
    why = f"module is not imported because a file says so{where}"
    if code is not None:
        why = f"module lies next to that file{where}"
        if not any(lies_in(place, root) for place in paths):
            path = [entry for entry in import_path() if not lies_in(entry, root)]
            if not (changed := _changed(module, code, path)):
                _import_from_outside(module, value, path)
                return
            why = f"code was changed or added since that file was signed ({changed})"
    what, flag = WHAT.get(name, name), flag_of(name, "", value)
    if name == "algorithm":
        flag = f"train {value[:200]} (eval --algorithm)"
    raise CheckpointError(
        f"{file} names the {what} {value[:200]}, whose {why}; to run its code, "
        f"say {flag} as well (in Python {name}=), or --trust (trust=True)."
    )


def _places(module: str, path: Sequence[str]) -> list[str]:
    """Paths of a module and its parent packages, without importing them."""
    paths: list[str] = []
    for _, spec in find(module, path):
        paths += folders_of(spec) or ()
        if spec.has_location and spec.origin:
            paths.append(spec.origin)
    return paths


def _changed(module: str, code: Mapping[str, str], path: Sequence[str]) -> str:
    """Return the first file of a module's code that is not as it was signed, or nothing.

    Compiled forms of the files are removed: Python would run one in the place of its source.

    Args:
        code: hashes of the signed files, by module.
        path: where the modules will be searched.
    """
    for name, file in own_code([module], path, code):
        if not (digest := _digest(file)) or digest != code.get(name):
            return file
        compiled = Path(importlib.util.cache_from_source(file)).parent
        for each in compiled.glob(f"{glob.escape(Path(file).stem)}.*.pyc"):
            try:
                each.unlink(missing_ok=True)
            except OSError:
                return str(each)
    return ""


def _digest(file: str) -> str:
    """Return the SHA-256 of a file; empty if it cannot be read, as in an archive of modules."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""


def _import_from_outside(module: str, value: str, path: Sequence[str]) -> None:
    """Import the user's module if the run folder could shadow it; else it is imported later.

    Args:
        path: where it is searched, without the run folder.
    """
    if path == import_path():
        return
    before = list(sys.path)
    OwnModules.add(module, path)
    here = [entry for entry in path[:1] if entry not in before]  # libraries come first
    sys.path[:] = [*(entry for entry in before if entry in path), *here]
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise EnvironmentFailure(
            f"{value}: importing {module} failed: {type(error).__name__}: {with_full_stop(error)}"
        ) from error
    finally:
        sys.path[:] = before
