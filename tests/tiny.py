"""The smallest useful settings of each algorithm, shared by all tests.

A compiled program depends on an algorithm's settings and sizes, but not on the seed, the number of
steps or real-valued hyper-parameters. Runs with these settings are compiled once for the whole test
session. A test that needs other sizes explains why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout.config.schema import TrainConfig
    from flatout.engine.programs import Programs
    from flatout.sweeps.plan import SweepPlan

ITERATION = 64
"""Environment steps of one iteration of PPO with these settings, also with those of `ONE`."""

UPDATES = 4
"""Updates of one iteration of PPO with these settings."""

ONE: dict[str, Any] = {"envs": 1, "n_steps": 64}
"""Settings for PPO in an environment that is passed as an object: one, with equal iterations."""

SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"env": "CartPole-v1", "envs": 2, "n_steps": 32, "batch_size": 32, "n_epochs": 2},
    "a2c": {"env": "CartPole-v1", "envs": 2, "n_steps": 8},
    "dqn": {"env": "CartPole-v1", "envs": 2, "train_freq": 16, "gradient_steps": 4, "batch_size": 8,
            "learning_starts": 32, "buffer_size": 512},
    "sac": {"env": "Pendulum-v1", "envs": 2, "train_freq": 8, "gradient_steps": 2, "batch_size": 8,
            "learning_starts": 16, "buffer_size": 256, "hidden": [16]},
    "td3": {"env": "Pendulum-v1", "envs": 2, "train_freq": 8, "gradient_steps": 2, "batch_size": 8,
            "learning_starts": 16, "buffer_size": 256, "hidden": [16]},
    "tqc": {"env": "Pendulum-v1", "envs": 2, "train_freq": 8, "gradient_steps": 2, "batch_size": 8,
            "learning_starts": 16, "buffer_size": 256, "hidden": [16], "n_quantiles": 5},
    "genetic": {"env": "flatout/Snake-v0", "env_kwargs": {"size": 4, "patience": 20},
                "network": "mlp", "envs": 4,
                "n_steps": 24, "elites": 2, "hidden": [8]},
}  # fmt: skip


def settings(algorithm: str, **more: Any) -> dict[str, Any]:
    """Return the smallest settings of an algorithm; `more` replaces some or adds others."""
    return SETTINGS[algorithm] | more


def python(algorithm: str, **more: Any) -> dict[str, Any]:
    """Return the settings as keyword arguments of `PPO(env, ...)` and others, without the env."""
    return {name: value for name, value in settings(algorithm, **more).items() if name != "env"}


def flags(algorithm: str, **more: Any) -> tuple[str, ...]:
    """Return the settings as flags of the command line, after ``train ALGORITHM``."""
    words: list[str] = []
    for name, value in settings(algorithm, **more).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, dict):
            words += [f"{flag}={key}={each}" for key, each in value.items()]
        elif isinstance(value, list):
            words += [flag, ",".join(map(str, value))]
        else:
            words += [flag, str(value)]
    return tuple(words)


def train_config(words: Sequence[str]) -> tuple[TrainConfig, bool]:
    """Return the settings of `flatout train` with these arguments, and whether a run is resumed."""
    from flatout.cli.arguments import TrainArguments, read_settings, settle

    return settle(*read_settings(TrainArguments, "flatout train", words))


def sweep(words: Sequence[str]) -> SweepPlan:
    """Return the plan of a sweep with these arguments; nothing is trained."""
    from flatout.cli.arguments import read_settings
    from flatout.cli.sweep import SweepArguments, new_plan

    return new_plan(*read_settings(SweepArguments, "flatout sweep", words))


REPEATABLE = {
    "--env-kwargs", "--hp", "--population", "--grid", "--threshold", "--where", "--group",
    "--normalize", "--what-if", "--out",
}  # fmt: skip
"""Flags that may be given several times."""


def latest(words: Sequence[str]) -> list[str]:
    """Remove flags that a later one replaces, because Flatout refuses a flag that is given
    twice."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            parts.append([])
        parts[-1].append(word)
    names = [part[0].partition("=")[0] if part else "" for part in parts]
    kept = [
        part
        for at, (name, part) in enumerate(zip(names, parts, strict=True))
        if at == 0 or name in REPEATABLE or name not in names[at + 1 :]
    ]
    return [word for part in kept for word in part]


_PROGRAMS: dict[Any, tuple[Any, Any]] = {}
NO_PROGRAM = {
    "steps", "run_dir", "checkpoint_every", "keep_checkpoints", "eval_every", "stop_at_return",
    "threshold", "log_every", "tensorboard", "wandb", "metric_names", "trace", "quiet", "json",
}  # fmt: skip
"""Settings of a run that no program depends on."""


def programs(shape: Any, code: Any = None) -> Programs:
    """Return compiled programs that runs of one shape share, as members of a population do.

    Args:
        shape: all settings on which the programs depend, see the function `shape`.
        code: the `UserCode` of these runs; runs share programs only if its objects are the same.
    """
    from flatout.engine.programs import Programs

    given = () if code is None else (code.env, code.network, code.algorithm)
    under = (repr(shape), *map(id, given))
    # The objects are saved too: while they live, no other object can have their ids.
    return _PROGRAMS.setdefault(under, (Programs(), given))[0]


def shape(config: TrainConfig) -> list[Any]:
    """Return the settings on which a run's programs depend: all except `NO_PROGRAM`, the seed and
    real-valued hyper-parameters."""
    from flatout.config.settings import changeable

    values, free = config.flat(), changeable(config)
    if values.get("prioritized"):  # its schedule is a part of the program
        free = ["seed"]
    kept = [(name, value) for name, value in values.items() if name not in {*free, *NO_PROGRAM}]
    return [kept, values["steps"] if values.get("prioritized") else None,
            [values[name] is None for name in free]]  # fmt: skip
