"""Reading the command line: flags over a file over a preset, or over a run that is resumed."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
from dataclasses import field, fields, is_dataclass, make_dataclass, replace
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any, TypeVar

from flatout.cli.carried import carried_over, on_free_cards, without_learn
from flatout.config.aliases import meant
from flatout.config.hyper import OwnConfig, algorithm_called
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
    load_file,
    load_preset,
    parse_kwargs,
    parts_of,
    resolve,
)
from flatout.errors import UsageError
from flatout.storage.trust import Consent, keep_out, names_code

T = TypeVar("T")


def arguments_class(algorithm: str) -> type:
    """The settings of one algorithm as one class, whose docstring heads its help."""
    hyper = parts_of(algorithm)[2]
    parts: dict[str, type] = {"hyper": hyper, "run": RunConfig}
    if hyper.acts:  # what learns from a dataset has networks for that
        parts = {"environment": EnvConfig, "network": NetworkConfig} | parts
    made = make_dataclass(
        f"{hyper.__name__}Arguments",
        [(name, part, field(default_factory=part)) for name, part in parts.items()],
        frozen=True,
    )
    title = (hyper.__doc__ or "").split("; ")[0]
    made.__doc__ = f"""Train: {title[0].lower()}{title[1:]}.

    Settings come from --preset NAME, then --config FILE.toml, then flags, later ones winning.
    --resume RUN_DIR resumes a run; --continue resumes the run in --run-dir, if it holds one
    with equal settings (steps may differ), and starts it otherwise; --from RUN_DIR starts a new
    one from its parameters, optimiser and replay, with its settings but those that are given.
    --env-kwargs KEY=VALUE ... go to the environment. --trust runs a module:factory that only a
    file names. --seeds N and --population KEY=V1,V2 ... train many agents at once. --dry-run
    prints the memory that the run would take, by device and purpose, and trains nothing.
    """
    if hyper is OwnConfig:
        made.__doc__ += "--hp NAME=VALUE ... changes hyper-parameters of the algorithm.\n"
    return made


def parse(default: T, prog: str, argv: list[str]) -> T:
    """The settings with what the flags change; the parser's framed messages become a sentence.

    Raises:
        UsageError: an unknown flag, or a value that it cannot take.
    """
    import tyro

    argv = [_whole(argument) for argument in _without_commas(default, argv)]
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            parsed, unknown = tyro.cli(
                type(default), prog=prog, args=argv, default=default, return_unknown_args=True,
                config=(tyro.conf.OmitArgPrefixes,),
            )  # fmt: skip
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(
            f"{_sentence(stderr.getvalue())} ({prog} --help lists every setting)."
        ) from None
    if unknown:
        names = [f"--{name.replace('_', '-')}" for name in _values(default)]
        hint = meant(unknown[0].partition("=")[0], names, flag=True)
        if "--env" in names and not unknown[0].startswith("-"):
            hint = f" An environment is given as --env {unknown[0]}."
        raise UsageError(f"{prog} does not know {unknown[0]!r}.{hint}")
    return parsed


def _whole(argument: str) -> str:
    """1e6 as 1000000, so that whole numbers may be written so, too."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}", argument):
        number = float(argument)
        if number == int(number) < 2**53:
            return str(int(number))
    return argument


def _values(settings: Any) -> dict[str, Any]:
    """Every setting's value by its name, those of nested parts included."""
    values = dict[str, Any]()
    for spec in fields(settings):
        value = getattr(settings, spec.name)
        values |= _values(value) if is_dataclass(value) else {spec.name: value}
    return values


def _without_commas(settings: Any, argv: list[str]) -> list[str]:
    """The arguments with the values of lists as words: ``--hidden 64 64`` for ``64,64``."""
    names = {name for name, value in _values(settings).items() if isinstance(value, tuple)}
    found, listed, named = list[str](), False, ""
    for word in argv:
        flag, separator, text = word.partition("=")
        if flag.startswith("--"):
            listed, named = flag[2:].replace("-", "_") in names, flag
            within = listed and bool(separator)
            found += [flag] if within else [word]
        else:
            text, within = word, listed
            found += [] if within else [word]
        if within:
            parts = text.removesuffix(",").split(",")
            if "" in parts:
                raise UsageError(
                    f"{named} {text!r} has an empty place; write a list as 64,64 or 64 64."
                )
            found += parts
    return found


def _sentence(box: str) -> str:
    """The sentence inside the parser's framed message: what stands below the title, to the rule."""
    lines = [line.strip(" │╭╰╮╯─-") for line in box.splitlines()[1:]]
    message = takewhile(bool, dropwhile(lambda line: not line, lines))
    return " ".join(message).rstrip(".")


def existing(path: str) -> Path:
    """The run folder or file that the user named, from which nothing is imported.

    Commands call it before they import JAX, which takes seconds.

    Raises:
        UsageError: there is none.
    """
    if not os.path.lexists(path):
        raise UsageError(f"{path or 'the folder that is named'} does not exist.")
    keep_out(Path(path))
    return Path(path)


def take_all(argv: list[str], flag: str, each: float = math.inf) -> tuple[list[str], list[str]]:
    """All values of a flag, which takes so many each time, and the arguments without it."""
    values, rest, room = list[str](), list[str](), 0.0
    for argument in [*argv, "--"]:  # which ends what a flag takes
        name, separator, text = argument.partition("=")
        if room == 1 and argument.startswith("--"):
            raise UsageError(f"{flag} needs a value.")
        if name.replace("_", "-") == flag:
            room = each - bool(separator)
            values += [text] if separator else []
        elif room and not argument.startswith("--"):
            room -= 1
            values.append(argument)
        else:
            room = 0
            rest.append(argument)
    return values, rest[:-1]


def take(argv: list[str], flag: str) -> tuple[str | None, list[str]]:
    """The last value of a flag, and the arguments without it.

    Raises:
        UsageError: the flag without a value.
    """
    values, rest = take_all(argv, flag, 1)
    return values[-1] if values else None, rest


def train_config(
    argv: list[str], common: tuple[str, dict[str, Any]] | None = None
) -> tuple[TrainConfig, bool]:
    """Read `train`'s arguments: the settings, and whether a run is resumed.

    Args:
        common: another file's name and the settings that it holds, over ``--config``.

    Raises:
        UsageError: what is wrong with them.
    """
    trust = "--trust" in argv
    argv = [argument for argument in argv if argument != "--trust"]
    resumed, argv = take(argv, "--resume")
    source, argv = take(argv, "--from")
    preset, argv = take(argv, "--preset")
    file, argv = take(argv, "--config")
    pairs, argv = take_all(argv, "--env-kwargs")
    hyper, argv = take_all(argv, "--hp")
    thresholds, argv = take_all(argv, "--threshold")
    if thresholds:
        argv = [*argv, "--threshold", *thresholds]
    # What was typed of the settings by which a file may reach outside of itself.
    typed: dict[str, Any] = {name: take(argv, f"--{name}")[0] for name in ("env", "data", "wandb")}
    typed = {n: v for n, v in typed.items() if v is not None} | {"env_kwargs": parse_kwargs(pairs)}
    named = algorithm_called(argv.pop(0)) if argv and not argv[0].startswith("-") else None
    typed |= {} if named is None else {"algorithm": named}
    if resumed is not None and source is not None:
        raise UsageError("--resume goes on with a run, --from starts a new one: give one of them.")
    if resumed is None:
        layers = [] if source is None else [_settings_before(source, Consent(typed, trust))]
        layers += [] if preset is None else [load_preset(preset)]
        files = [] if file is None else [(f"--config {file}", load_file(file))]
        files += [] if common is None else [common]
        layers += [_file_settings(*one, typed, trust) for one in files]
        algorithm = _algorithm(named, layers, argv)
        if source is not None:
            given = {name: value for layer in layers[1:] for name, value in layer.items()}
            flags = _flags(argv)
            given |= dict.fromkeys(flags)
            given |= {name: take(argv, f"--{name}")[0] for name in flags & {"env", "placement"}}
            layers[0] = carried_over(layers[0], given)
    else:
        for flag, value in (("--preset", preset), ("--config", file)):
            if value is not None:
                raise UsageError(f"{flag} cannot change what --resume goes on with.")
        layers = [_settings_before(resumed, Consent(typed, trust)) | {"run_dir": resumed}]
        if take(argv, "--devices")[0] is not None:  # which says where to learn from now on
            layers[0]["placement"] = without_learn(layers[0]["placement"])
        elif take(argv, "--placement")[0] is None:
            layers[0]["placement"] = on_free_cards(layers[0]["placement"])
        algorithm = layers[0]["algorithm"]
        if named not in (None, algorithm):
            raise UsageError(f"{resumed} was trained with {algorithm}, not {named}.")
    before = build(algorithm, *layers)
    config = _with_flags(before, argv, pairs, hyper)
    if resumed is not None:
        if config.env.env_backend == "auto":  # where a run's environments step stays as it began
            same = replace(config.env, env_backend=before.env.env_backend)
            config = replace(config, env=same)
        _refuse_changes(before, config, resumed)
    return resolve(algorithm, config.flat()), resumed is not None


def given_settings(argv: list[str]) -> set[str]:
    """The names of the settings that the user gives: by a flag, in the ``--config`` file or in the
    preset; raises as `load_file` and `load_preset` do."""
    preset, argv = take(argv, "--preset")
    file, argv = take(argv, "--config")
    layers = [] if preset is None else [load_preset(preset)]
    layers += [] if file is None else [load_file(file)]
    return {*_flags(argv), *(name for layer in layers for name in layer)}


def _flags(argv: list[str]) -> set[str]:
    """The names of the settings that flags give."""
    flags = (word[2:].partition("=")[0] for word in argv if word.startswith("--"))
    return {flag.replace("-", "_") for flag in flags}


def _file_settings(
    file: str, settings: dict[str, Any], typed: dict[str, Any], trust: bool
) -> dict[str, Any]:
    """The settings of a file; code that it names runs only where that was typed."""
    for name, flag in (("env", "--env "), ("algorithm", "train ")):
        value = settings.get(name)
        if isinstance(value, str) and names_code(value) and not trust and name not in typed:
            raise UsageError(
                f"{file} names the {'environment' if name == 'env' else name} "
                f"{value[:200]}, whose code is not run because a file says so; say "
                f"{flag}{value[:200]} as well, or --trust."
            )
    return settings


def _algorithm(named: str | None, layers: list[dict[str, Any]], argv: list[str]) -> str:
    """The algorithm that the command line names, else the preset or file."""
    chosen = [algorithm_called(str(one["algorithm"])) for one in layers if "algorithm" in one]
    algorithm = named or (chosen[-1] if chosen else "")
    if not algorithm and any(word in argv for word in ("-h", "--help")):
        algorithm = "ppo"
    if not algorithm:
        raise UsageError(f"train needs an algorithm: {', '.join(ALGORITHMS)}.")
    parts_of(algorithm)  # refuse an unknown one before its flags
    if named and chosen and chosen[-1] != named:
        raise UsageError(
            f"the preset, file or run that is taken is for {chosen[-1]}, not {named}: give one of "
            f"{named}, or train {chosen[-1]}."
        )
    return algorithm


def _settings_before(folder: str, consent: Consent) -> dict[str, Any]:
    """The settings of a run; how it reports is asked anew each time."""
    existing(folder)
    from flatout.storage.run_folder import POPULATION, load_config

    asked_anew = {"quiet": False, "json": False, "trace": False}
    name = POPULATION if (Path(folder) / POPULATION).exists() else "config.json"
    return load_config(Path(folder), consent, name).flat() | asked_anew | {"run_dir": None}


def _with_flags(
    base: TrainConfig, argv: list[str], pairs: list[str], hyper: list[str]
) -> TrainConfig:
    """The settings that the flags leave or change."""
    cls = arguments_class(base.algorithm)
    parts = {
        "environment": base.env, "network": base.network, "hyper": base.hyper, "run": base.run,
    }  # fmt: skip
    names = [spec.name for spec in fields(cls)]
    default = cls(**{name: parts[name] for name in names})
    if isinstance(base.hyper, OwnConfig) and {"-h", "--help"} & set(argv):
        from flatout.algorithms.own import hyper_parameters

        if defaults := hyper_parameters(base.algorithm):
            cls.__doc__ = f"{cls.__doc__}Their defaults: {defaults}\n"
    parsed = parse(default, f"flatout train {base.algorithm}", argv)
    parts |= {name: getattr(parsed, name) for name in names}
    if pairs and not base.hyper.acts:
        raise UsageError(f"--env-kwargs: {base.algorithm} has no environment.")
    if hyper and not isinstance(base.hyper, OwnConfig):
        raise UsageError(
            f"--hp is for algorithms of your own; {base.algorithm} has a flag for each setting."
        )
    if hyper:
        values = base.hyper.hp | parse_kwargs(hyper, "--hp")
        parts["hyper"] = replace(parts["hyper"], hp=values)
    changes: dict[str, Any] = {"env_kwargs": {**base.env.env_kwargs, **parse_kwargs(pairs)}}
    if not any(argument.partition("=")[0] == "--envs" for argument in argv):
        changes |= environments(parts["run"].placement)
    env = replace(parts["environment"], **changes)
    return TrainConfig(base.algorithm, env, parts["network"], parts["hyper"], parts["run"])


def _refuse_changes(before: TrainConfig, config: TrainConfig, run_dir: str) -> None:
    """Refuse flags that would change what a resumed run learns."""
    saved = before.flat()
    for name, value in config.flat().items():
        if name not in RESUMABLE and value != saved[name]:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"--resume cannot change {name} (from {saved[name]} to {value}); only "
                "placement, steps, logging and stopping may change. A new run may start from this "
                f"one with other settings (flatout train --from {run_dir} {flag} VALUE)."
            )
    if config.run.run_dir != run_dir:
        raise UsageError("--resume names the run folder; --run-dir cannot change it.")
