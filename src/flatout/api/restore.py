"""Restoring of a saved agent: its learned parameters and its settings, some of them changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, TypeVar

from gymnasium.vector import VectorEnv

from flatout.algorithms.own import MakeAlgorithm
from flatout.api.aliases import translated
from flatout.api.history import History
from flatout.config.modules import PASSED
from flatout.config.schema import TrainConfig
from flatout.config.settings import settings_of
from flatout.envs.vector_kind import size_of
from flatout.errors import CheckpointError, NotInstalledError, UsageError
from flatout.networks.torsos import OwnNetwork
from flatout.run.acting import Acting
from flatout.run.resume import Saved


class Restorable(Protocol):
    """The parts of an agent that `restored` uses."""

    algorithm: str
    config: TrainConfig

    def __init__(self, env: Any, **settings: Any) -> None: ...

    _loads: bool
    _acting: Acting
    _history: History

    @property
    def task(self) -> Any: ...


A = TypeVar("A", bound=Restorable)


def restored(
    kind: type[A], saved: Saved, path: Path, env: Any, network: OwnNetwork | None,
    algorithm: MakeAlgorithm | str | None, changes: dict[str, Any], advice: str = "pass env=",
    eval_env: Any = None,
) -> A:  # fmt: skip
    """Return a saved agent as an object of this class.

    Args:
        path: the path that the user named.
        env, network, algorithm, changes, eval_env: see `Agent.load`.
        advice: how the caller gives another environment, for messages.

    Raises:
        UsageError, CheckpointError: the agent has another algorithm, or its parameters do not fit
            its settings.
    """
    config = saved.config
    if kind.algorithm not in ("", config.algorithm):
        raise CheckpointError(f"{path} holds an agent of {config.algorithm}.")
    if algorithm is not None and ":" not in config.algorithm:
        raise UsageError(
            f"{path} holds an agent of {config.algorithm}, which is no algorithm of your own: "
            "leave algorithm= out."
        )
    if "preset" in changes:
        raise UsageError(
            f"preset = {changes['preset']!r} is for a new agent: {path} keeps the settings with "
            "which it learned; name those that are to change."
        )
    envs = size_of(env) if isinstance(env, VectorEnv) else config.env.envs
    names = settings_of(config.algorithm)
    env, changes, verbose = translated((), env, changes, names, envs)
    settings = config.flat() | {"run_dir": None, "verbose": verbose} | changes
    saved_env, built_in = settings.pop("env"), settings.pop("network")
    named = settings.pop("algorithm")
    if not kind.algorithm:
        settings["algorithm"] = algorithm or named
    agent = kind.__new__(kind)
    agent._loads = True
    kind.__init__(
        agent, saved_env if env is None else env, network=network or built_in, eval_env=eval_env,
        **settings,
    )  # fmt: skip
    agent._acting.learned(saved.arrays)
    agent._history.load(saved, path, changes)
    if env is None:
        try:
            _ = agent.task
        except NotInstalledError:  # another environment is not the remedy
            raise
        except UsageError as error:
            why = f" {error}"
            if saved_env.endswith(PASSED):  # the error would repeat it
                why = " It was passed as a Python object, which is not saved."
            raise UsageError(
                f"the environment {saved_env} of {path} cannot be made: {advice}.{why}"
            ) from error
    try:  # check it now
        agent._acting.packed()
    except CheckpointError as error:
        python = f"in Python: {kind.__name__}.load(path, network=NETWORK)."
        other = not network and ".params" in str(error) and "network" in str(error)
        hint = f" An agent with a network of its own is loaded {python}" if other else ""
        there, here = config.flat(), agent.config.flat()
        shaping = (*vars(config.network), *vars(config.hyper))
        if others := [name for name in changes if name in shaping and there[name] != here[name]]:
            hint = f" Leave out {', '.join(others)}: the agent learned with another value.{hint}"
        if env is not None:
            hint = (
                f" Perhaps the environment given has other spaces than {saved_env}, in which it "
                "learned."
            )
        raise CheckpointError(f"{saved.file} does not fit its settings: {error}{hint}") from error
    return agent
