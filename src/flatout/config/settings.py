"""Settings from layers (preset < file < flags), each a flat mapping, checked by name and type.

`cli` and `api` call `resolve` with the layers that the user has given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from flatout.config.aliases import meant
from flatout.config.hyper import Hyper, OwnConfig, algorithm_called, hyper_of
from flatout.config.placement import parse
from flatout.config.schedules import entropy_coefficient
from flatout.config.schema import (
    ALGORITHMS,
    CLUSTER_SETTINGS,
    EnvConfig,
    NetworkConfig,
    RunConfig,
    TrainConfig,
    validate,
)
from flatout.config.values import convert, hints
from flatout.errors import UsageError, nearest
from flatout_explain.documents import parse_toml, read_json, read_toml


def parts_of(algorithm: str) -> tuple[type, ...]:
    """Return the four settings classes of an algorithm: environment, network, algorithm, run.

    Raises:
        UsageError: the algorithm is unknown.
    """
    hyper = hyper_of(algorithm_called(algorithm))
    if hyper is None:
        raise UsageError(
            f"unknown algorithm {algorithm!r}; there is {', '.join(ALGORITHMS)}, or your own as "
            "module:function."
            f"{nearest(algorithm.lower(), ALGORITHMS)}"
        )
    return (EnvConfig, NetworkConfig, hyper, RunConfig)


def settings_of(algorithm: str) -> list[str]:
    """Return the names of an algorithm's settings; raises as `parts_of`."""
    return [name for part in parts_of(algorithm) for name in hints(part)]


def resolve(algorithm: str, *layers: Mapping[str, Any]) -> TrainConfig:
    """Build and validate the settings from layers of flat values, later layers winning.

    Raises:
        UsageError: unknown names, wrong types or impossible values.
    """
    return revise(build(algorithm, *layers))


def revise(config: TrainConfig, *layers: Mapping[str, Any]) -> TrainConfig:
    """Change and validate settings by layers of flat values; raises as `resolve`."""
    config = change(config, *layers)
    validate(config)
    return config


def build(algorithm: str, *layers: Mapping[str, Any]) -> TrainConfig:
    """Build the settings like `resolve`, but accept values that may still be changed.

    Raises:
        UsageError: unknown names or wrong types.
    """
    parts = (part() for part in parts_of(algorithm))
    default = TrainConfig(algorithm_called(algorithm), *parts)
    return change(default, default.hyper.defaults, *layers)


def change(config: TrainConfig, *layers: Mapping[str, Any]) -> TrainConfig:
    """Change settings like `revise`, but accept values that may still be changed."""
    kinds = [hints(type(part)) for part in config.parts]
    names = [name for part in kinds for name in part]
    values: dict[str, Any] = {}
    default = vars(RunConfig())
    for layer in layers:
        for name, value in layer.items():
            if name == "algorithm" and algorithm_called(str(value)) != config.algorithm:
                raise UsageError(f"these settings are for {value}, not {config.algorithm}.")
            if name != "algorithm" and name not in names:
                raise UsageError(f"unknown setting {name[:200]!r}.{meant(name[:200], names)}")
            values[name] = value
        if "placement" in layer and "envs" not in layer:
            # workers=8x16 says how many environments there are.
            values |= environments(layer["placement"])
        if "placement" in layer and "sampler=cluster" not in str(layer["placement"]).split():
            # The cluster that an earlier layer names, a resumed run's for example, has no use.
            values |= {name: default[name] for name in CLUSTER_SETTINGS if name not in layer}
    changed: list[Any] = []
    for part, known in zip(config.parts, kinds, strict=True):
        # A classifier's network replaces the torsos of agents.
        given = [n for n in known if n in values and (part is config.hyper or n not in kinds[2])]
        made = {name: convert(type(part), name, values[name]) for name in given}
        changed.append(replace(part, **made) if made else part)
    config = TrainConfig(config.algorithm, *changed)
    data = None if config.hyper.acts else config.hyper.data
    if data is None:
        return config
    # In reports the dataset's name takes the place of the environment's.
    return replace(config, env=replace(config.env, env=Path(data).name or data))


def environments(placement: Any) -> dict[str, int]:
    """Return ``{"envs": N}`` if a placement names workers for N environments, otherwise ``{}``."""
    if not isinstance(placement, str) or "workers=" not in placement:
        return {}
    workers = parse(placement).workers
    return {} if workers is None else {"envs": workers[0] * workers[1]}


_PRESETS = resources.files("flatout.config") / "presets"


def presets() -> list[str]:
    """Return the names of the presets, tuned settings that come with Flatout."""
    return sorted(file.name.removesuffix(".toml") for file in _PRESETS.iterdir())


def load_preset(name: str) -> dict[str, Any]:
    """Return the flat settings of a preset, including its algorithm.

    Raises:
        UsageError: the name is unknown.
    """
    names = presets()
    if name not in names:
        raise UsageError(
            f"unknown preset {name!r}; there are {', '.join(names)}.{nearest(name, names)}"
        )
    return parse_toml((_PRESETS / f"{name}.toml").read_text())


def load_file(path: str, named: str = "--config") -> dict[str, Any]:
    """Return the table of a file of settings, JSON if it ends in .json and else TOML.

    Args:
        named: the flag or word before its name in messages.

    Raises:
        UsageError: the file cannot be read, or is not a table in that format.
    """
    json_file = path.endswith(".json")
    try:
        values = read_json(Path(path)) if json_file else read_toml(Path(path))
        if not isinstance(values, dict):
            raise ValueError("it is no table of settings")
        return values
    except OSError as error:
        raise UsageError(f"{named} {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # the base class of both parsers' errors
        kind = "JSON" if json_file else "TOML"
        raise UsageError(f"{named} {path} is not {kind} of settings: {error}.") from None


def parse_grid(words: Iterable[str], flag: str) -> dict[str, dict[str, Any]]:
    """Parse the ``KEY=V1,V2`` words of a grid: each setting's values by their texts.

    Values are as in TOML, so that ``[64,64]`` is one value; any other text is a number if Python
    reads it as one (``.5``), and else a string.

    Raises:
        UsageError: a word of another form, or a setting or value that is named twice.
    """
    grid = dict[str, dict[str, Any]]()
    for word in words:
        key, separator, text = word.partition("=")
        key, texts = key.replace("-", "_"), [one.strip() for one in _COMMA.split(text)]
        if not separator or not key or not all(texts):
            raise UsageError(f"{flag}: {word!r} is not KEY=VALUE,VALUE ...")
        if key in grid:
            raise UsageError(f"{flag} names {key} twice.")
        values = [_number(_toml_value(one)) for one in texts]
        if len({json.dumps(one) for one in values}) < len(values):
            raise UsageError(f"{flag}: {word} names a value twice.")
        grid[key] = dict(zip(texts, values, strict=True))
    return grid


_COMMA = re.compile(r",(?![^\[]*\])")  # outside of a list


def _number(value: Any) -> Any:
    """Return the number that a text holds, or the value itself."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def parse_kwargs(pairs: Iterable[str], flag: str = "--env-kwargs") -> dict[str, Any]:
    """Parse ``KEY=VALUE`` pairs with values as in TOML; any other text is a string.

    Raises:
        UsageError: a pair without ``=`` or with an impossible name.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key.isidentifier():
            raise UsageError(f"{flag}: {pair!r} is not KEY=VALUE.")
        values[key] = _toml_value(text)
    return values


def _toml_value(text: str) -> Any:
    """Return the value if `text` is one TOML value that JSON can hold, else the text itself."""
    try:
        table = parse_toml(f"value = {text}")
        json.dumps(table)  # raises for dates, which config.json cannot hold
    except (ValueError, TypeError):
        return text
    return table["value"] if len(table) == 1 else text


def with_run(config: TrainConfig, **changes: Any) -> TrainConfig:
    """Return the settings with the changes to their `RunConfig`."""
    return replace(config, run=replace(config.run, **changes))


def changeable(config: TrainConfig) -> list[str]:
    """Return the settings in which the runs of one compiled program may differ: the seed, and each
    hyper-parameter that changes no shape."""
    if isinstance(config.hyper, OwnConfig):
        return ["seed", *config.hyper.hp]
    kinds = hints(type(config.hyper))
    return ["seed", *(name for name, (types, _) in kinds.items() if float in types)]


def present(hyper: Hyper) -> frozenset[str]:
    """Return the settings that have a value: one that is left out makes another program, as does
    an entropy weight that is learned."""
    found = {name for name in hints(type(hyper)) if getattr(hyper, name) is not None}
    weight = getattr(hyper, "ent_coef", None)
    if weight is not None and not entropy_coefficient("ent_coef", weight)[1]:
        found.add("a number for ent_coef")
    return frozenset(found)
