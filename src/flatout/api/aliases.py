"""Translation of Stable-Baselines3's arguments to Flatout's settings; see docs/coming-from.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from flatout.api.arguments import flag
from flatout.api.translate import (
    SCHEDULES,
    WITHOUT_EFFECT,
    activation,
    environments_in,
    layers,
    noise_deviation,
    placement,
    schedule_of,
    steps_between_updates,
)
from flatout.config.aliases import REFUSED, RENAMED, meant, similar
from flatout.config.hyper import HYPER
from flatout.config.values import hints
from flatout.errors import UsageError, nearest, short

NETWORKS = {"Mlp": "mlp", "Cnn": "nature", "MultiInput": "auto"}
"""The network that the beginning of a policy's name stands for."""

POLICIES = [f"{network}{memory}Policy" for memory in ("", "Lstm") for network in NETWORKS]
"""The names of policies of Stable-Baselines3, and of sb3-contrib's policies with a memory."""

LSTM = {"recurrent": "lstm", "recurrent_size": 256, "critic_memory": "own"}
"""The settings for which a policy with a memory stands: sb3-contrib's defaults."""

ATTRIBUTES: dict[str, str] = {
    "num_timesteps": "agent.summary['steps'], or run.progress.steps in a callback",
    "ep_info_buffer": "run.progress.returns in a callback",
    "logger": "run.log(name, number) in a callback",
    "set_logger": "learn(run_dir=...)",
    "observation_space": "agent.task.obs_spec",
    "action_space": "agent.task.action_spec",
    "get_env": "agent.env is its name; evaluate(env=...) plays in another",
    "set_env": "save, and load(path, env=...)",
    "set_random_seed": "seed=... when it is made",
    "get_parameters": "save(path) writes them, as safetensors",
    "set_parameters": "load(path)",
    "save_replay_buffer": "learn(run_dir=...) keeps replay in the run folder",
    "load_replay_buffer": "load(RUN_DIR) takes the run folder's replay",
    "device": "agent.placement",
    "policy_kwargs": "agent.network, agent.hidden, agent.activation",
    "replay_buffer": "learn(run_dir=...) keeps replay in the run folder",
    "rollout_buffer": "run.episodes and run.metrics in a callback",
    "train": "learn(steps)",
}
"""Attributes of Stable-Baselines3's agents, with Flatout's replacements."""

LEARN = ("total_timesteps", "callback", "progress_bar", "run_dir", "reset")


class AttributeRefusedError(UsageError, AttributeError):
    """An attribute of an agent was set that nothing would read."""


def reset_argument(
    others: Mapping[str, Any], as_sb3: Any, reset: bool, kind: str, settings: Collection[str]
) -> bool | None:
    """Return `reset` of `learn`, or Stable-Baselines3's `reset_num_timesteps`; None if neither was
    given. False means that the counters of a loaded agent continue as well.

    Args:
        others: arguments that `learn` does not have.
        kind: the name of the agent's class.
        settings: the names of the agent's settings.

    Raises:
        UsageError: there are `others`; with advice.
    """
    for name, value in others.items():
        setting, advice = RENAMED.get(name, name), meant(name, LEARN)
        if setting == "steps":
            advice = " Did you mean 'total_timesteps'?"
        elif setting in settings:
            advice = f" It is a setting of the agent: {kind}(env, {setting}={short(value)})."
        raise UsageError(f"learn takes no {name}.{advice}")
    if as_sb3 is not None:
        return flag("reset_num_timesteps", as_sb3)
    return flag("reset", reset) or None


def attribute(name: str, kind: str, settings: Mapping[str, Any]) -> Any:
    """Return the value of the setting with an attribute's name.

    Raises:
        AttributeError: there is no such setting; with the replacement, if there is one.
    """
    setting = RENAMED.get(name, name)
    if setting in settings:
        return settings[setting]
    there = f" Instead: {ATTRIBUTES[name]}." if name in ATTRIBUTES else ""
    raise AttributeError(f"{kind} has no attribute {name!r}.{there or meant(name, [*settings])}")


def refuse_setting(name: str, value: Any, kind: type, settings: Mapping[str, Any]) -> None:
    """Refuse ``agent.name = value`` where nothing would read it, or where it would hide a method.

    Args:
        kind: the agent's class. A class that the user defines may have further attributes.
        settings: the agent's settings.

    Raises:
        AttributeRefusedError: the attribute is refused; with advice.
    """
    defined = next((each for each in kind.__mro__ if name in vars(each)), None)
    if name in settings or (name == "config" and settings):
        given = "" if name in ("config", "env") else f", {name}={short(value)}"
        why = f"settings are chosen when an agent is made, by {kind.__name__}(env{given})"
        why += f", or loaded, by {kind.__name__}.load(path{given})." if given else "."
    elif defined is not None and _flatouts(defined):
        found = vars(defined)[name]
        if not isinstance(found, property | classmethod | FunctionType):
            return
        what = "a property" if isinstance(found, property) else "a method"
        raise AttributeRefusedError(
            f"agent.{name} = {short(value)} is impossible: {name} is {what} of every agent; for "
            f"another one, define it in a class of your own, class Mine({kind.__name__})."
        )
    elif name in ("config", "summary") or defined is not None or not _flatouts(kind):
        return
    else:
        why = f"{kind.__name__} has no such attribute; settings are given to "
        why += f"{kind.__name__}(env, ...).{meant(name, settings)}"
    raise AttributeRefusedError(f"agent.{name} = {short(value)} would change nothing: {why}")


def _flatouts(kind: type) -> bool:
    """Return whether a class is one of Flatout's own agents."""
    return kind.__module__ in (
        "flatout.api", "flatout.api.agents", "flatout.api.classifier", "flatout.sb3",
    )  # fmt: skip


def _is_policy(argument: Any) -> bool:
    """Return whether the first argument is a policy by its name or its class. The texts of other
    objects are the user's own: an environment may be called like one."""
    environment = isinstance(argument, type) and issubclass(argument, gym.Env | VectorEnv)
    named = isinstance(argument, str | type) and not environment
    return named and re.search("Policy", str(argument)) is not None


def translated(
    first: Sequence[Any], env: Any, given: Mapping[str, Any], names: Sequence[str],
    envs: int = 1,
) -> tuple[Any, dict[str, Any], bool]:  # fmt: skip
    """Return the environment, settings by Flatout's names, and whether `verbose` is above 0.

    Args:
        first: positional arguments: an environment, after a policy's name or without one.
        env, given: keyword arguments.
        names: the names of Flatout's settings.
        envs: the number of environments if the arguments name none.

    Raises:
        UsageError: an argument without a counterpart, with advice; or a setting given twice.
    """
    given = _translated_values(given, envs)
    settings = {name: value for name, value in given.items() if name in names or name == "preset"}
    others = {name: value for name, value in given.items() if name not in settings}

    def take(name: str, value: Any, setting: str) -> None:
        if setting in settings:
            raise UsageError(f"{name} and {setting} are one setting: give one of them.")
        settings[setting] = value

    verbose = others.pop("verbose", 0)
    if not isinstance(verbose, int | np.integer | np.bool_):
        raise UsageError(f"verbose = {short(verbose)} is not a whole number.")
    policy, memory = others.pop("policy", None), None
    rest = list(first)
    if policy is None and rest and _is_policy(rest[0]):
        policy = rest.pop(0)
    if rest and env is None:
        env = rest.pop(0)
    if rest:
        raise UsageError(
            f"an agent is made with one environment: {short(rest[0])} is one argument too many; "
            "settings are given by their names."
        )
    if policy is not None:
        if policy not in POLICIES:
            raise UsageError(
                f"the policy {short(policy)} is none of {', '.join(POLICIES)}; pass network= for "
                f"one of your own.{nearest(str(policy), POLICIES)}"
            )
        network, memory, _ = re.split("(Lstm)?Policy", policy)
        settings.setdefault("network", NETWORKS[network])
        if memory and "recurrent" not in names:
            raise UsageError(f"{policy} has a memory, which only PPO and A2C can have.")
    if "device" in others:
        take("device", placement(str(others.pop("device"))), "placement")
    kwargs = others.pop("policy_kwargs", None)
    if not isinstance(kwargs, Mapping | None):
        raise UsageError(f"policy_kwargs = {short(kwargs)} is not a dict.")
    kwargs = dict(kwargs or {})
    if "recurrent" in names:
        take_critic_memory(kwargs, take)
    others |= {f"policy_kwargs {n}": v for n, v in kwargs.items()}
    for name, value in others.items():
        plain = name.removeprefix("policy_kwargs ")
        setting = RENAMED.get(plain, plain)
        if plain in WITHOUT_EFFECT and _equal(value, WITHOUT_EFFECT[plain]):
            continue
        if plain == "net_arch":
            found = layers(value)
            take(name, found["hidden"], "hidden")
            if "critic_hidden" in found:
                if "critic_hidden" not in names:
                    raise UsageError(
                        f"net_arch = {short(value)}: there is no critic of its own; write "
                        "net_arch=[64, 64]."
                    )
                take(name, found["critic_hidden"], "critic_hidden")
            continue
        if plain == "activation_fn":
            value = activation(value)
        if plain in REFUSED:
            raise UsageError(f"{name}= is not a setting here. Instead: {REFUSED[plain]}.")
        if setting == "env":
            env = value if env is None else env
        elif setting in names:
            take(name, value, setting)
        else:
            having = [other for other, hyper in HYPER.items() if plain in hints(hyper)]
            hint = f" It is a setting of {', '.join(having)}." if having else ""
            if having and (own := similar(plain, names)):
                hint += f" This algorithm has {own!r}."
            hint = hint or meant(plain[:200], names)
            raise UsageError(f"unknown setting {name[:200]!r}.{hint}")
    if memory:
        settings = LSTM | settings
    return env, settings, bool(verbose > 0)


def take_critic_memory(kwargs: dict[str, Any], take: Callable[[str, Any, str], None]) -> None:
    """Take sb3-contrib's `shared_lstm` and `enable_critic_lstm` out of `policy_kwargs`, as the
    setting `critic_memory`; raises a `UsageError` if the critic would have no memory."""
    given = {name: kwargs.pop(name) for name in ("shared_lstm", "enable_critic_lstm")
             if name in kwargs}  # fmt: skip
    if not given:
        return
    shared = flag("shared_lstm", given.get("shared_lstm", False))
    own = flag("enable_critic_lstm", given.get("enable_critic_lstm", not shared))
    if shared == own:
        raise UsageError(
            f"policy_kwargs with shared_lstm={shared} and enable_critic_lstm={own}: the critic has "
            "either its own memory or the actor's; critic_memory is own or shared."
        )
    take(" and ".join(given), "own" if own else "shared", "critic_memory")


def _translated_values(given: Mapping[str, Any], envs: int) -> dict[str, Any]:
    """Return arguments with values of Stable-Baselines3's forms translated to Flatout's. Arguments
    that are None or have no effect are left out. `envs` as in `translated`.

    Raises:
        UsageError: a value has no counterpart; with advice.
    """
    same = ("seed", "target_entropy", "action_noise")
    found = {
        name: value for name, value in given.items()
        if not (name in same and _equal(value, WITHOUT_EFFECT[name]))
    }  # fmt: skip
    for name, value in found.items():
        if name in SCHEDULES and callable(value):
            found[name] = schedule_of(name, value)
    if "train_freq" in found:
        count = environments_in(found, envs)
        found["train_freq"] = steps_between_updates(found["train_freq"], count)
    if found.get("gradient_steps") == -1:
        if "train_freq" not in found:
            raise UsageError(
                "gradient_steps = -1 makes as many updates as steps: give train_freq, too, for "
                "example train_freq=1, gradient_steps=1."
            )
        found["gradient_steps"] = found["train_freq"]
    if "action_noise" in found:
        found["action_noise"] = noise_deviation(found["action_noise"])
    return found


def _equal(value: Any, other: Any) -> bool:
    """Return whether two values are equal and of the same type."""
    return value is other or (type(value) is type(other) and value == other)
