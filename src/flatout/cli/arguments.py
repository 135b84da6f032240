"""The settings of a run from the command line: flags over a file over a preset, or over a run that
is resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from flatout.cli.carried import carried_over, on_free_cards, without_learn
from flatout.cli.flags import Word, flags_of, run_folder, show_help, value_of, valued
from flatout.config.aliases import similar
from flatout.config.hyper import HYPER, OwnConfig, algorithm_called
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
    presets,
    revise,
)
from flatout.config.values import Range, check, hints
from flatout.errors import UsageError
from flatout.output import shell_word
from flatout.storage.trust import ADDRESSES, CODE, Consent, refuse_unconfirmed
from flatout_explain.cli.parsing import HELP, Flag, option, read

A = TypeVar("A", bound="SettingsArguments")


@dataclass(frozen=True)
class SettingsArguments:
    """The base class of commands that take the settings of a run."""

    usage: ClassVar[tuple[str, ...]] = ()

    algorithm: Annotated[str | None, Word("ALGORITHM")] = None
    """The algorithm, or your own as module:function."""
    preset: Annotated[str | None, "NAME"] = None
    """Tuned settings by name, which name the algorithm and the environment."""
    config: Annotated[str | None, "FILE"] = None
    """Settings from a TOML or JSON file, over those of the preset; flags are over both."""
    trust: bool = False
    """Run a module:factory that only a file names, and that another user may have written."""


@dataclass(frozen=True)
class TrainArguments(SettingsArguments):
    """Train an agent."""

    usage: ClassVar[tuple[str, ...]] = (
        "ALGORITHM --env ID [settings]",
        "[ALGORITHM] --preset NAME [settings]",
        "ALGORITHM --env ID --seeds N [--population KEY=V1,V2] [settings]",
        "--resume RUN_DIR",
        "--from RUN_DIR [settings]",
    )

    resume: Annotated[str | None, "RUN_DIR"] = None
    """Resume a run; placement, steps, logging and stopping may change."""
    continue_: bool = False
    """Resume the run in --run-dir, if it holds one with equal settings (steps may differ), and
    start it otherwise."""
    from_: Annotated[str | None, "RUN_DIR"] = None
    """Start a new run from another run's parameters, optimiser and replay, with its settings except
    those that are given."""
    seeds: Annotated[int | None, Range(1, 4096)] = None
    """Train this many agents at once, from --seed on."""
    population: Annotated[tuple[str, ...], "KEY=V1,V2"] = ()
    """Train an agent for each combination of these values at once; FILE.toml names members."""
    strategy: Literal["auto", "together", "spread"] | None = None
    """How many agents train at once: in one program, spread over devices, or as measured."""
    dry_run: bool = False
    """Print the memory that the run would take, by device and purpose, and train nothing."""


OFTEN = frozenset({
    "algorithm", "preset", "resume", "continue_", "seeds",
    "env", "envs", "env_backend", "env_kwargs", "network", "hidden", "data", "size",
    "learning_rate", "gamma", "n_steps", "batch_size", "n_epochs", "ent_coef", "clip_range",
    "buffer_size", "learning_starts", "train_freq", "gradient_steps", "exploration_fraction",
    "action_noise", "elites", "noise", "hp",
    "steps", "seed", "placement", "devices", "run_dir", "eval_every", "stop_at_return", "json",
    "grid", "at_once", "engine", "out", "what_if", "seconds", "compare_devices", "run",
    "table",
})  # fmt: skip
"""Flags that the short help shows."""

ATARI = frozenset({"frame_skip", "sticky_actions", "noop_max", "terminal_on_life_loss"})
"""Settings of Atari ids, which the short help shows for these alone."""

VALUES = {"env": "ID", "run_dir": "DIR", "data": "PATH", "hp": "NAME=VALUE"}
"""Words that stand for the values of settings in the help."""

SUPERVISED = {
    "steps": "Optimiser steps in total.",
    "checkpoint_every": "Optimiser steps between checkpoints; by default a tenth of the run. 0 "
    "saves only at the end.",
    "eval_every": "Optimiser steps between evaluations on the test set, which choose the best "
    "parameters to save. 0 never evaluates.",
    "log_every": "Optimiser steps between rows of metrics.",
    "shards": "Number of shards of each batch. Any number of devices that divides this can carry "
    "them, with the same results.",
}
"""The help of settings of a run that learns from a dataset, where others speak of environments."""

ACTING = frozenset({
    "stop_at_return", "threshold", "eval_episodes", "allow_lag", "remeasure", "replan",
    "worker_timeout", "ray_address", "ray_working_dir", "same_bits",
})  # fmt: skip
"""Settings that have no effect on a run that learns from a dataset."""


def setting_flags() -> list[Flag]:
    """Return the flags of all settings, those of every algorithm included."""
    parts = (EnvConfig, NetworkConfig, RunConfig, OwnConfig, *HYPER.values())
    every = [flag for part in parts for flag in flags_of(part)]
    return list({flag.name: flag for flag in reversed(every)}.values())[::-1]


def command_flags(kind: type[SettingsArguments]) -> list[Flag]:
    """Return the flags of a command that takes the settings of a run."""
    own = flags_of(kind)
    names = {flag.name for flag in own}
    return [*own, *(flag for flag in setting_flags() if flag.name not in names)]


def read_settings(kind: type[A], prog: str, argv: Sequence[str]) -> tuple[A, dict[str, Any]]:
    """Return a command's own flags, and the texts of the settings that are given.

    Raises:
        HelpShown: the help was asked for.
        UsageError: an unknown flag, or a value that it cannot take.
    """
    flags = command_flags(kind)
    if any(word in HELP for word in argv):
        _help(kind, prog, flags, argv)
    given = read(flags, prog, argv)
    own = hints(kind)
    asked = kind(**valued(kind, {name: given.pop(name) for name in list(given) if name in own}))
    check(asked, option)
    return asked, given


def _help(kind: type[A], prog: str, flags: Sequence[Flag], argv: Sequence[str]) -> None:
    """Print the help for the algorithm and the environment that the other arguments name."""
    try:
        given = read(flags, prog, [word for word in argv if word not in HELP])
    except UsageError:
        given = dict[str, Any]()
    preset = load_preset(given["preset"]) if given.get("preset") in presets() else {}
    algorithm = str(given.get("algorithm") or preset.get("algorithm") or "ppo")
    if algorithm_called(algorithm) not in HYPER and ":" not in algorithm:
        algorithm = "ppo"
    config = build(algorithm, preset)
    hyper, values = type(config.hyper), config.flat()
    parts: dict[str, type] = {config.algorithm: hyper, "run": RunConfig}
    if config.hyper.acts:
        parts = {"environment": EnvConfig, "network": NetworkConfig} | parts
    own = flags_of(kind, prog.removeprefix("flatout "), texts=True)
    shown = {flag.name: flag for flag in own}
    from flatout.envs.source import EnvSource

    env = str(given.get("env") or config.env.env)
    atari = EnvSource.of(replace(config.env, env=env)).atari
    for group, part in parts.items():
        for flag in flags_of(part, group, texts=True):
            text = flag.help if config.hyper.acts else SUPERVISED.get(flag.name, flag.help)
            if config.hyper.acts or flag.name not in ACTING:
                default = shown_value(values[flag.name])
                value = VALUES.get(flag.name, flag.value)
                made = replace(flag, help=text, default=default, value=value)
                shown.setdefault(flag.name, made)
    often = OFTEN | (ATARI if atari else frozenset())
    text = str(kind.__doc__)
    if hyper is OwnConfig:
        from flatout.algorithms.own import hyper_parameters

        if defaults := hyper_parameters(algorithm):
            text += f"\n\n--hp changes hyper-parameters of the algorithm: {defaults}"
    show_help(
        kind, prog, [replace(flag, often=flag.name in often) for flag in shown.values()],
        every="--help-all" in argv, text=text,
    )  # fmt: skip


def shown_value(value: Any) -> str:
    """Return a default as it would be typed; empty for a switch that is off and for None."""
    if value is None or value is False or value in ((), {}, ""):
        return ""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def settle(
    asked: SettingsArguments, given: Mapping[str, Any],
    common: tuple[str, dict[str, Any]] | None = None,
) -> tuple[TrainConfig, bool]:  # fmt: skip
    """Return the settings of a run, and whether a run is resumed.

    Args:
        asked, given: see `read_settings`.
        common: another file's name and the settings that it holds, over ``--config``.

    Raises:
        UsageError: something is wrong with them.
    """
    resumed = asked.resume if isinstance(asked, TrainArguments) else None
    source = asked.from_ if isinstance(asked, TrainArguments) else None
    # What was typed of the settings by which a file may reach outside of itself.
    typed = {name: given[name] for name in (*CODE, *ADDRESSES) if name in given}
    typed["env_kwargs"] = parse_kwargs(given.get("env_kwargs", ()))
    named = None if asked.algorithm is None else algorithm_called(asked.algorithm)
    typed |= {} if named is None else {"algorithm": named}
    if resumed is not None and source is not None:
        raise UsageError("--resume resumes a run, --from starts a new one: give one of them.")
    if resumed is None:
        consent = Consent(typed, asked.trust)
        layers = [] if source is None else [_settings_before(source, "--from", consent)]
        layers += [] if asked.preset is None else [load_preset(asked.preset)]
        files = [] if asked.config is None else [(f"--config {asked.config}", _file(asked))]
        files += [] if common is None else [common]
        for where, settings in files:
            refuse_unconfirmed(where, settings, consent)
            layers.append(settings)
        algorithm = _algorithm(named, layers)
        if source is not None:
            changed = {name: value for layer in layers[1:] for name, value in layer.items()}
            layers[0] = carried_over(layers[0], changed | dict(given))
    else:
        for flag, value in (("--preset", asked.preset), ("--config", asked.config)):
            if value is not None:
                raise UsageError(f"{flag} cannot change the settings of a run that is resumed.")
        before = _settings_before(resumed, "--resume", Consent(typed, asked.trust))
        layers = [before | {"run_dir": resumed}]
        if "devices" in given:  # which says where to learn from now on
            layers[0]["placement"] = without_learn(layers[0]["placement"])
        elif "placement" not in given:
            layers[0]["placement"] = on_free_cards(layers[0]["placement"])
        algorithm = layers[0]["algorithm"]
        if named not in (None, algorithm):
            raise UsageError(f"{resumed} was trained with {algorithm}, not {named}.")
    before = build(algorithm, *layers)
    config = change(before, setting_values(before, given))
    if resumed is not None:
        if config.env.backend_open:  # where a run's environments step stays as it began
            config = change(config, {"env_backend": before.env.env_backend})
        _refuse_changes(before, config, resumed)
    return revise(config), resumed is not None


def given_settings(asked: SettingsArguments, given: Mapping[str, Any]) -> set[str]:
    """Return the names of the settings that the user gives: by a flag, in the ``--config`` file or
    in the preset; raises as `load_file` and `load_preset` do."""
    layers = [] if asked.preset is None else [load_preset(asked.preset)]
    layers += [] if asked.config is None else [_file(asked)]
    return {*given, *(name for layer in layers for name in layer)}


def _file(asked: SettingsArguments) -> dict[str, Any]:
    return load_file(str(asked.config))


def _algorithm(named: str | None, layers: Sequence[Mapping[str, Any]]) -> str:
    """Return the algorithm that the command line names, else that of the preset or file."""
    chosen = [algorithm_called(str(one["algorithm"])) for one in layers if "algorithm" in one]
    algorithm = named or (chosen[-1] if chosen else "")
    if not algorithm:
        raise UsageError(f"name an algorithm: {', '.join(ALGORITHMS)}.")
    parts_of(algorithm)  # refuse an unknown one before its flags
    if named and chosen and chosen[-1] != named:
        raise UsageError(
            f"the preset, file or run that is given is for {chosen[-1]}, not {named}: give one of "
            f"{named}, or train {chosen[-1]}."
        )
    return algorithm


def _settings_before(folder: str, flag: str, consent: Consent) -> dict[str, Any]:
    """Return the settings of the run that a flag names, with the default reporting."""
    run_folder(folder, flag)
    from flatout.storage.run_folder import POPULATION, load_config

    reporting = {"quiet": False, "json": False, "trace": False}
    name = POPULATION if (Path(folder) / POPULATION).exists() else "config.json"
    return load_config(Path(folder), consent, name).flat() | reporting | {"run_dir": None}


def setting_values(base: TrainConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the flags give, by name.

    Args:
        base: the settings that they change, which name the algorithm.
        given: their texts.

    Raises:
        UsageError: a text that its setting cannot take, or a setting of another algorithm.
    """
    parts = [type(part) for part in (base.hyper, base.env, base.network, base.run)]
    if not base.hyper.acts:
        parts = [parts[0], parts[-1]]
    values = dict[str, Any]()
    for name, text in given.items():
        part = next((part for part in parts if name in hints(part)), None)
        # A sweep of classifiers measures how many of them to train at once.
        idle = name in ACTING - {"remeasure"} and not base.hyper.acts
        if part is None or idle:
            raise UsageError(_foreign(name, base.algorithm))
        values[name] = value_of(part, name, text)
    if "env_kwargs" in values:
        values["env_kwargs"] = base.env.env_kwargs | values["env_kwargs"]
    if "hp" in values:
        values["hp"] = base.hyper.hp | values["hp"]
    return values


def _foreign(name: str, algorithm: str) -> str:
    """Return a sentence about a setting that an algorithm does not have."""
    flag = option(name)
    if name == "hp":
        return f"--hp is for algorithms of your own; {algorithm} has a flag for each setting."
    having = [other for other, hyper in HYPER.items() if name in hints(hyper)]
    if not having:
        return f"{flag} is for runs with an environment; {algorithm} has none."
    own = similar(name, hints(HYPER[algorithm])) if algorithm in HYPER else None
    but = f" It has {option(own)}." if own else ""
    return f"{flag} is a setting of {', '.join(having)}; {algorithm} does not have it.{but}"


def _refuse_changes(before: TrainConfig, config: TrainConfig, run_dir: str) -> None:
    """Refuse flags that would change what a resumed run learns."""
    saved = before.flat()
    for name, value in config.flat().items():
        if name not in RESUMABLE and value != saved[name]:
            raise UsageError(
                f"--resume cannot change {name} (from {saved[name]} to {value}); only "
                "placement, steps, logging and stopping may change. A new run may start from this "
                f"one with other settings (flatout train --from {shell_word(run_dir)} "
                f"{option(name)} VALUE)."
            )
    if config.run.run_dir != run_dir:
        raise UsageError("--resume names the run folder; --run-dir cannot change it.")
