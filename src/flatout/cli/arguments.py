"""Reading the command line: flags over a file over a preset, or over a run that is resumed."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import field, fields, is_dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from flatout.config.hyper import HYPER
from flatout.config.schema import (
    ALGORITHMS,
    RESUMABLE,
    EnvConfig,
    NetworkConfig,
    RunConfig,
    TrainConfig,
)
from flatout.config.settings import (
    build,
    environments,
    load_preset,
    load_toml,
    parse_kwargs,
    parts_of,
    resolve,
)
from flatout.errors import UsageError, nearest
from flatout.storage.trust import Consent, keep_out, names_code


def arguments_class(algorithm: str) -> type:
    """The settings of one algorithm as one class, whose docstring heads its help."""
    hyper = HYPER[algorithm]
    parts: list[tuple[str, type]] = [("hyper", hyper), ("run", RunConfig)]
    if algorithm != "classify":  # which has images instead, and networks of its own
        parts = [("environment", EnvConfig), ("network", NetworkConfig), *parts]
    made = make_dataclass(
        f"{algorithm.upper()}Arguments",
        [(name, part, field(default_factory=part)) for name, part in parts],
        frozen=True,
    )
    title = (hyper.__doc__ or "").split("; ")[0]
    made.__doc__ = f"""Train: {title[0].lower()}{title[1:]}.

    Settings come from --preset NAME, then --config FILE.toml, then flags, later ones winning.
    --resume RUN_DIR goes on with a run. --env-kwargs KEY=VALUE ... go to the environment.
    --trust runs a module:factory that only a file names.
    """
    return made


def parse(cls: type, prog: str, argv: list[str], default: Any) -> Any:
    """Parse flags into a settings class; the parser's framed messages become one sentence.

    Raises:
        UsageError: an unknown flag, or a value that it cannot take.
    """
    import tyro

    argv = [_whole(argument) for argument in argv]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed, unknown = tyro.cli(
                cls, prog=prog, args=argv, default=default, return_unknown_args=True,
                config=(tyro.conf.OmitArgPrefixes,),
            )  # fmt: skip
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(
            f"{_plain(said.getvalue())} ({prog} --help lists every setting)."
        ) from None
    if unknown:
        names = [f"--{name.replace('_', '-')}" for name in _names(cls)]
        raise UsageError(
            f"{prog} does not know {unknown[0]!r}.{nearest(unknown[0].partition('=')[0], names)}"
        )
    return parsed


def _whole(argument: str) -> str:
    """1e6 as 1000000, so that whole numbers may be written so, too."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}", argument):
        number = float(argument)
        if number == int(number) < 2**53:
            return str(int(number))
    return argument


def _names(cls: type) -> list[str]:
    """Every setting's name, those of nested parts included."""
    hints, names = get_type_hints(cls), list[str]()
    for spec in fields(cls):
        part = hints[spec.name]
        nested = isinstance(part, type) and is_dataclass(part)
        names += _names(part) if nested else [spec.name]
    return names


def _plain(box: str) -> str:
    """The sentence inside the parser's framed message."""
    lines = [line.strip(" │╭╰╮╯─-") for line in box.splitlines()]
    rest = lines[1:]  # below the title
    while rest and not rest[0]:
        rest.pop(0)
    message = list[str]()
    for line in rest:
        if not line:
            break
        message.append(line)
    return " ".join(message).rstrip(".")


def take(argv: list[str], flag: str) -> tuple[str | None, list[str]]:
    """The last value of a flag, and the arguments without it.

    Raises:
        UsageError: the flag without a value.
    """
    value, rest, i = None, list[str](), 0
    while i < len(argv):
        name, separator, text = argv[i].partition("=")
        if name.replace("_", "-") != flag:
            rest.append(argv[i])
        elif separator:
            value = text
        elif i + 1 < len(argv) and not argv[i + 1].startswith("--"):
            i += 1
            value = argv[i]
        else:
            raise UsageError(f"{flag} needs a value.")
        i += 1
    return value, rest


def _take_list(argv: list[str], flag: str) -> tuple[list[str], list[str]]:
    """All values of a flag that takes several and may be repeated, and the arguments without."""
    values, rest, taking = list[str](), list[str](), False
    for argument in argv:
        name, separator, text = argument.partition("=")
        if name.replace("_", "-") == flag:
            taking = True
            values += [text] if separator else []
        elif argument.startswith("--"):
            taking = False
            rest.append(argument)
        elif taking:
            values.append(argument)
        else:
            rest.append(argument)
    return values, rest


def _typed(argv: list[str], pairs: list[str]) -> dict[str, Any]:
    """What was typed of the settings by which a file may reach outside of itself."""
    typed = {name: take(argv, f"--{name}")[0] for name in ("env", "data", "wandb")}
    return {n: v for n, v in typed.items() if v is not None} | {"env_kwargs": parse_kwargs(pairs)}


def train_config(argv: list[str]) -> tuple[TrainConfig, bool]:
    """Read `train`'s arguments: the settings, and whether a run is resumed.

    Raises:
        UsageError: what is wrong with them.
    """
    trust = "--trust" in argv
    argv = [argument for argument in argv if argument != "--trust"]
    resumed, argv = take(argv, "--resume")
    preset, argv = take(argv, "--preset")
    file, argv = take(argv, "--config")
    pairs, argv = _take_list(argv, "--env-kwargs")
    thresholds, argv = _take_list(argv, "--threshold")
    if thresholds:
        argv = [*argv, "--threshold", *thresholds]
    named = argv.pop(0) if argv and not argv[0].startswith("-") else None
    layers: list[dict[str, Any]] = []
    if resumed is not None:
        from flatout.storage.run_folder import load_config

        keep_out(Path(resumed))
        for flag, value in (("--preset", preset), ("--config", file)):
            if value is not None:
                raise UsageError(f"{flag} cannot change what --resume goes on with.")
        saved = load_config(Path(resumed), Consent(_typed(argv, pairs), trust))
        layers.append(saved.flat() | {"run_dir": resumed})
        # How the run reports is asked anew each time.
        layers.append({"quiet": False, "json": False, "trace": False})
        algorithm = named or saved.algorithm
        if algorithm != saved.algorithm:
            raise UsageError(f"{resumed} was trained with {saved.algorithm}, not {algorithm}.")
    else:
        if preset is not None:
            layers.append(load_preset(preset))
        if file is not None:
            layers.append(load_toml(file))
            env = layers[-1].get("env")
            typed = trust or "env" in _typed(argv, pairs)
            if isinstance(env, str) and names_code(env) and not typed:
                raise UsageError(
                    f"--config {file} names the environment {env[:200]}, whose code is not run "
                    f"because a file says so; say --env {env[:200]} as well, or --trust."
                )
        chosen = [str(layer["algorithm"]) for layer in layers if "algorithm" in layer]
        algorithm = named or (chosen[-1] if chosen else "")
        if not algorithm and any(word in argv for word in ("-h", "--help")):
            algorithm = "ppo"
        if not algorithm:
            raise UsageError(f"train needs an algorithm: {', '.join(ALGORITHMS)}.")
        parts_of(algorithm)  # refuse an unknown one before its flags
        if named and chosen and chosen[-1] != named:
            raise UsageError(f"the preset or file is for {chosen[-1]}, not {named}.")
    base = build(algorithm, *layers)
    arguments = arguments_class(algorithm)
    given = {"environment": base.env, "network": base.network}
    known = {spec.name for spec in fields(arguments)}
    given = {name: part for name, part in given.items() if name in known}
    default = arguments(**given, hyper=base.hyper, run=base.run)
    parsed = parse(arguments, f"flatout train {algorithm}", argv, default)
    if pairs and not given:
        raise UsageError(f"--env-kwargs: {algorithm} has no environment.")
    kwargs = {**base.env.env_kwargs, **parse_kwargs(pairs)}
    own = replace(getattr(parsed, "environment", base.env), env_kwargs=kwargs)
    if not any(argument.partition("=")[0] == "--envs" for argument in argv):
        own = replace(own, **environments(parsed.run.placement))
    built = TrainConfig(
        algorithm,
        own,
        getattr(parsed, "network", base.network),
        parsed.hyper,
        parsed.run,
    )
    if resumed is not None:
        before = base.flat()
        for name, value in built.flat().items():
            if name not in RESUMABLE and value != before[name]:
                raise UsageError(
                    f"--resume cannot change {name} (from {before[name]} to {value}); only "
                    "placement, steps, logging and stopping may change."
                )
        if built.run.run_dir != resumed:
            raise UsageError("--resume names the run folder; --run-dir cannot change it.")
    config = resolve(algorithm, built.flat())
    return config, resumed is not None
