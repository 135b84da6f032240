"""Reading the command line: flags over a file over a preset, or over a run that is resumed."""

from __future__ import annotations

from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import Any

from flatout.cli.carried import carried_over, on_free_cards, without_learn
from flatout.cli.flags import parse, take, take_all, take_file
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
    change,
    load_file,
    load_preset,
    parse_kwargs,
    parts_of,
    revise,
)
from flatout.errors import UsageError
from flatout.storage.trust import Consent, refuse_unconfirmed
from flatout_explain.cli.parsing import existing


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
    file, argv = take_file(argv, "--config")
    pairs, argv = take_all(argv, "--env-kwargs")
    hyper, argv = take_all(argv, "--hp")
    thresholds, argv = take_all(argv, "--threshold")
    if thresholds:
        argv = [*argv, "--threshold", *thresholds]
    # What was typed of the settings by which a file may reach outside of itself.
    reaching = ("env", "data", "network", "wandb")
    typed: dict[str, Any] = {name: take(argv, f"--{name}")[0] for name in reaching}
    typed = {n: v for n, v in typed.items() if v is not None} | {"env_kwargs": parse_kwargs(pairs)}
    named = algorithm_called(argv.pop(0)) if argv and not argv[0].startswith("-") else None
    typed |= {} if named is None else {"algorithm": named}
    if resumed is not None and source is not None:
        raise UsageError("--resume goes on with a run, --from starts a new one: give one of them.")
    if resumed is None:
        consent = Consent(typed, trust)
        layers = [] if source is None else [_settings_before(source, "--from", consent)]
        layers += [] if preset is None else [load_preset(preset)]
        files = [] if file is None else [(f"--config {file}", load_file(file))]
        files += [] if common is None else [common]
        for where, settings in files:
            refuse_unconfirmed(where, settings, consent)
            layers.append(settings)
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
        before = _settings_before(resumed, "--resume", Consent(typed, trust))
        layers = [before | {"run_dir": resumed}]
        if take(argv, "--devices")[0] is not None:  # which says where to learn from now on
            layers[0]["placement"] = without_learn(layers[0]["placement"])
        elif take(argv, "--placement")[0] is None:
            layers[0]["placement"] = on_free_cards(layers[0]["placement"])
        algorithm = layers[0]["algorithm"]
        if named not in (None, algorithm):
            raise UsageError(f"{resumed} was trained with {algorithm}, not {named}.")
    before = build(algorithm, *layers)
    config = change(before, _flag_values(before, argv, pairs, hyper))
    if resumed is not None:
        if config.env.backend_open:  # where a run's environments step stays as it began
            config = change(config, {"env_backend": before.env.env_backend})
        _refuse_changes(before, config, resumed)
    return revise(config), resumed is not None


def given_settings(argv: list[str]) -> set[str]:
    """The names of the settings that the user gives: by a flag, in the ``--config`` file or in the
    preset; raises as `load_file` and `load_preset` do."""
    preset, argv = take(argv, "--preset")
    file, argv = take_file(argv, "--config")
    layers = [] if preset is None else [load_preset(preset)]
    layers += [] if file is None else [load_file(file)]
    return {*_flags(argv), *(name for layer in layers for name in layer)}


def _flags(argv: list[str]) -> set[str]:
    """The names of the settings that flags give."""
    flags = (word[2:].partition("=")[0] for word in argv if word.startswith("--"))
    return {flag.replace("-", "_") for flag in flags}


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


def _settings_before(folder: str, flag: str, consent: Consent) -> dict[str, Any]:
    """The settings of the run that a flag names, with its reporting as by default."""
    existing(folder, flag)
    from flatout.storage.run_folder import POPULATION, load_config

    asked_anew = {"quiet": False, "json": False, "trace": False}
    name = POPULATION if (Path(folder) / POPULATION).exists() else "config.json"
    return load_config(Path(folder), consent, name).flat() | asked_anew | {"run_dir": None}


def _flag_values(
    base: TrainConfig, argv: list[str], pairs: list[str], hyper: list[str]
) -> dict[str, Any]:
    """The settings that the flags change, by name."""
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
    before, after = base.flat(), TrainConfig(base.algorithm, *parts.values()).flat()
    values = {name: value for name, value in after.items() if value != before[name]}
    if "envs" in _flags(argv):  # it holds, whatever number of workers a placement names
        values["envs"] = after["envs"]
    if pairs and not base.hyper.acts:
        raise UsageError(f"--env-kwargs: {base.algorithm} has no environment.")
    if hyper and not isinstance(base.hyper, OwnConfig):
        raise UsageError(
            f"--hp is for algorithms of your own; {base.algorithm} has a flag for each setting."
        )
    if hyper:
        values["hp"] = base.hyper.hp | parse_kwargs(hyper, "--hp")
    if pairs:
        values["env_kwargs"] = base.env.env_kwargs | parse_kwargs(pairs)
    return values


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
