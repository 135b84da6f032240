"""Optuna's samplers and pruners by their names in a sweep's file, and their proposals."""

from __future__ import annotations

import importlib
import json
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flatout.errors import CheckpointError, UsageError, one_line, short
from flatout.installing import install

SAMPLERS = {
    "tpe": "TPESampler", "random": "RandomSampler", "gp": "GPSampler", "nsgaii": "NSGAIISampler",
}  # fmt: skip
PRUNERS = {
    "none": "NopPruner", "median": "MedianPruner", "percentile": "PercentilePruner",
    "halving": "SuccessiveHalvingPruner", "hyperband": "HyperbandPruner",
}  # fmt: skip

LIMITS = {"n_ei_candidates": 1000, "min_early_stopping_rate": 64}
"""Maximum values of options with which Optuna's memory or time grows: the first by the number of
configurations, the second as a power of the `reduction_factor`."""

LARGEST = 2**31 - 1
"""Maximum value of all other options."""

TRIED, TRIED_S = 55, 1.0
"""Maximum configurations, and seconds, for which a sampler and a pruner are tried before a sweep:
most samplers begin with 10 random configurations, and `nsgaii` with 50."""


def optuna_package() -> Any:
    """Return the package `optuna`, set to print only errors; `UsageError` if it is missing."""
    try:
        made = importlib.import_module("optuna")
    except ImportError:
        raise UsageError(f"[optuna] needs its package: {install('optuna')}.") from None
    made.logging.set_verbosity(made.logging.ERROR)
    return made


def sampler(settings: Mapping[str, Any], number: int, where: str) -> Any:
    """Return the sampler for the trial with this number. Its draws do not depend on earlier ones,
    so that a resumed study continues like one that was never interrupted."""
    seed = settings["seed"] + number
    return _made("sampler", SAMPLERS, settings["sampler"], where, {"seed": seed})


def pruner(settings: Mapping[str, Any], first: int, last: int, where: str) -> Any:
    """Return the pruner, which may stop trials at steps from `first` to `last`."""
    given = settings["pruner"]
    name, _ = _named(given)
    halves = {"halving": {"min_resource": first},
              "hyperband": {"min_resource": first, "max_resource": last}}  # fmt: skip
    return _made("pruner", PRUNERS, given, where, halves.get(str(name), {}))


def _named(given: Any) -> tuple[Any, dict[str, Any]]:
    """Return the name and the options in ``sampler =`` or ``pruner =``; a name alone has none."""
    options = dict(given) if isinstance(given, dict) else {"name": given}
    return options.pop("name", None), options


def _made(
    what: str, names: Mapping[str, str], given: Any, where: str, defaults: Mapping[str, Any]
) -> Any:
    """Make one of Optuna's objects; its options replace the defaults."""
    optuna = optuna_package()
    name, options = _named(given)
    if name not in names:
        raise UsageError(f"{where} {what} = {str(given)[:100]} is none of {', '.join(names)}.")
    for key, value in options.items():
        most = LIMITS.get(key, LARGEST)
        if isinstance(value, int | float) and not value <= most:
            raise UsageError(
                f"{where} {what} {name}: {key} = {short(value)} is impossible: it is a number up "
                f"to {most:,}."
            )
    with _refused(what, given, where):
        return getattr(getattr(optuna, f"{what}s"), names[name])(**{**defaults, **options})


@contextmanager
def _refused(what: str, given: Any, where: str) -> Iterator[None]:
    """Turn errors of Optuna about the options of a sampler or pruner into a `UsageError`."""
    name, options = _named(given)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of experimental options
            yield
    except ImportError as error:
        missing = error.name or getattr(error.__cause__, "name", None) or "torch"
        raise UsageError(f"{where} {what} {name} needs the package {missing}.") from None
    except Exception as error:  # of any kind: Optuna computes with options that it has not checked
        shown = ", ".join(f"{key} = {value!r}" for key, value in options.items())
        raise UsageError(
            f"{where} {what} {name} does not work{f' with {shown[:200]}' if shown else ''}: "
            f"{one_line(error)[:300]}"
        ) from None


def try_options(settings: Mapping[str, Any], steps: int, where: str) -> None:
    """Try the sampler and the pruner with a study in memory, because Optuna looks at some options
    only when it needs them.

    Args:
        steps: the steps of a run.

    Raises:
        UsageError: one of them fails.
    """
    until, judge = time.monotonic() + TRIED_S, pruner(settings, 1, steps, where)
    study = optuna_package().create_study(direction="maximize", pruner=judge)
    for number in range(min(settings["trials"], TRIED)):
        study.sampler = sampler(settings, number, where)
        with _refused("sampler", settings["sampler"], where):
            trial = study.ask()
            for key, values in settings["space"].items():
                suggest(trial, key, values)
        with _refused("pruner", settings["pruner"], where):
            for step in sorted({max(steps * part // 5, 1) for part in range(5)}):
                trial.report(float(-number), step)
                trial.should_prune()
        with _refused("sampler", settings["sampler"], where):
            study.tell(trial, float(-number))
        if time.monotonic() > until:
            return


def choices_of(values: list[Any]) -> dict[Any, Any]:
    """Return choices by the values that Optuna gets: a list is passed as its text."""
    plain = (str, int, float, bool)
    return {one if isinstance(one, plain) else json.dumps(one): one for one in values}


def suggest(trial: Any, key: str, values: Any) -> Any:
    """Return Optuna's proposal for a setting; a trial that has a proposal keeps it."""
    if isinstance(values, list):
        return trial.suggest_categorical(key, list(choices_of(values)))
    whole = type(values["low"]) is int and type(values["high"]) is int
    ask = trial.suggest_int if whole else trial.suggest_float
    return ask(key, values["low"], values["high"], log=values.get("log", False))


def value_of(proposed: Any, key: str, values: Any) -> Any:
    """Return a setting's value; real numbers are rounded to four digits, as in folder names.

    Raises:
        CheckpointError: the value is outside of the space, because the study was changed.
    """
    if isinstance(values, list):
        choices = choices_of(values)
        if isinstance(proposed, str | int | float) and proposed in choices:
            return choices[proposed]
    elif type(proposed) in (int, float) and values["low"] <= proposed <= values["high"]:
        short = proposed if type(proposed) is int else float(f"{proposed:.4g}")
        return min(max(short, values["low"]), values["high"])
    raise CheckpointError(
        f"[optuna] the study holds {key} = {str(proposed)[:60]}, which this sweep cannot have "
        "proposed: it is damaged, or belongs to another sweep."
    )
