"""Settings from layers: preset < file < flags, each a flat mapping, checked by name and type."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from flatout.config.hyper import DEFAULTS, HYPER
from flatout.config.placement import parse
from flatout.config.schema import (
    ALGORITHMS,
    EnvConfig,
    NetworkConfig,
    RunConfig,
    TrainConfig,
    validate,
)
from flatout.errors import UsageError, nearest


def parts_of(algorithm: str) -> tuple[type, ...]:
    """The config classes of one algorithm.

    Raises:
        UsageError: an unknown algorithm.
    """
    if algorithm not in HYPER:
        raise UsageError(
            f"unknown algorithm {algorithm!r}; there is {', '.join(ALGORITHMS)}."
            f"{nearest(algorithm, ALGORITHMS)}"
        )
    return (EnvConfig, NetworkConfig, HYPER[algorithm], RunConfig)


def resolve(algorithm: str, *layers: Mapping[str, Any]) -> TrainConfig:
    """Build and validate the settings from layers of flat values, later layers winning.

    Raises:
        UsageError: unknown names, wrong types or impossible values.
    """
    config = build(algorithm, *layers)
    validate(config)
    return config


def build(algorithm: str, *layers: Mapping[str, Any]) -> TrainConfig:
    """`resolve` without judging values, which a later layer may still change.

    Raises:
        UsageError: unknown names or wrong types.
    """
    classes = parts_of(algorithm)
    known = [spec.name for cls in classes for spec in fields(cls)]
    values: dict[str, Any] = {}
    for layer in (DEFAULTS[algorithm], *layers):
        for name, value in layer.items():
            if name == "algorithm":
                if value != algorithm:
                    raise UsageError(f"these settings are for {value}, not {algorithm}.")
                continue
            if name not in known:
                raise UsageError(f"unknown setting {name[:200]!r}.{nearest(name[:200], known)}")
            values[name] = value
        if "placement" in layer and "envs" not in layer:
            # workers=8x16 says how many environments there are.
            values |= environments(layer["placement"])
    built: list[Any] = []
    for cls in classes:
        chosen: dict[str, Any] = {}
        for spec in fields(cls):
            if spec.name in values:
                chosen[spec.name] = _coerce(spec.name, str(spec.type), values[spec.name])
        built.append(cls(**chosen))
    return TrainConfig(algorithm, *built)


def environments(placement: Any) -> dict[str, int]:
    """The number of environments that a placement's workers step, where it names any."""
    if not isinstance(placement, str) or "workers=" not in placement:
        return {}
    workers = parse(placement).workers
    return {} if workers is None else {"envs": workers[0] * workers[1]}


def _coerce(name: str, kind: str, value: Any) -> Any:
    """Check a layer's value (from TOML, JSON or Python) against the field's annotation."""
    refused = UsageError(f"{name} = {repr(value)[:200]} is not {_words(kind)}.")
    if value is None or (value == "none" and "None" in kind):  # TOML has no null
        if "None" in kind:
            return None
        raise refused
    if kind.startswith("tuple"):
        item = float if "float" in kind else int
        items = value if isinstance(value, list | tuple) else [value]
        if not all(_is_number(entry, item) for entry in items):
            raise refused
        return tuple(item(entry) for entry in items)
    if kind.startswith("Literal"):
        choices = get_args(eval(kind, {"Literal": Literal}))  # our own annotation, not input
        if str(value).lower() in ("lstm", "gru", "rnn", "recurrent"):
            raise UsageError(
                f"{name} = {value!r}: recurrent policies are not available in this version; stack "
                "observations with frame_stack instead."
            )
        if value not in choices:
            raise UsageError(
                f"{name} = {repr(value)[:200]} is not one of {', '.join(choices)}."
                f"{nearest(str(value)[:200], choices)}"
            )
        return value
    if kind.startswith("dict"):
        if not isinstance(value, Mapping):
            raise refused
        return dict(value)
    if kind.startswith("bool"):
        if not isinstance(value, bool):
            raise refused
        return value
    if kind.startswith("int"):
        if not _is_number(value, int):
            raise refused
        return int(value)
    if kind.startswith("float"):
        if _is_number(value, float):
            return float(value)
        if "str" in kind and isinstance(value, str):
            return value
        raise refused
    if not isinstance(value, str | Path):
        raise refused
    return str(value)


def _is_number(value: Any, kind: type) -> bool:
    if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, str):
        return False
    try:
        number = float(value)
    except (OverflowError, ValueError, TypeError):
        return False
    return kind is float or (math.isfinite(number) and number == int(value))


def _words(kind: str) -> str:
    for start, words in (
        ("tuple[float", "a number or a list of numbers"), ("tuple", "a list of whole numbers"),
        ("bool", "true or false"), ("int", "a whole number"), ("float", "a number"),
        ("dict", "a table of names and values"),
    ):  # fmt: skip
        if kind.startswith(start):
            return words
    return "text"


def presets() -> list[str]:
    """The names of the tuned settings that come with Flatout."""
    folder = resources.files("flatout.config") / "presets"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def load_preset(name: str) -> dict[str, Any]:
    """The flat settings of a preset, its algorithm among them.

    Raises:
        UsageError: an unknown name.
    """
    known = presets()
    if name not in known:
        raise UsageError(
            f"unknown preset {name!r}; there are {', '.join(known)}.{nearest(name, known)}"
        )
    text = (resources.files("flatout.config") / "presets" / f"{name}.toml").read_text()
    return tomllib.loads(text)


def load_toml(path: str) -> dict[str, Any]:
    """The flat settings of a ``--config`` file.

    Raises:
        UsageError: the file cannot be read or is not TOML.
    """
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # TOML's own errors are ValueErrors
        raise UsageError(f"--config {path} is not TOML: {error}.") from None


def parse_kwargs(pairs: Iterable[str]) -> dict[str, Any]:
    """Read ``KEY=VALUE`` pairs, values as TOML; a bare word is a string.

    Raises:
        UsageError: a pair without ``=`` or with an impossible name.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key.isidentifier():
            raise UsageError(f"--env-kwargs: {pair!r} is not KEY=VALUE.")
        values[key] = _toml_value(text)
    return values


def _toml_value(text: str) -> Any:
    """One TOML number, flag, string or list of them; anything else is the text itself."""
    try:
        table = tomllib.loads(f"value = {text}")
        json.dumps(table)  # dates and the like have no place in config.json
    except (ValueError, TypeError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def with_run(config: TrainConfig, **changes: Any) -> TrainConfig:
    """The same settings with other run settings."""
    return replace(config, run=replace(config.run, **changes))
