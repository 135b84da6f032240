"""Translation of Stable-Baselines3's values to those of Flatout's settings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flatout.config.placement import parse_or_auto
from flatout.config.settings import load_preset
from flatout.errors import UsageError, one_line, short

SCHEDULES = ("learning_rate", "lr", "clip_range", "clip_coef", "clip_range_vf")
"""Arguments for which Stable-Baselines3 accepts a function of the remaining share of the run."""

WITHOUT_EFFECT: dict[str, Any] = {
    "use_sde": False, "sde_sample_freq": -1, "optimize_memory_usage": False,
    "stats_window_size": 100, "tensorboard_log": None, "replay_buffer_class": None,
    "replay_buffer_kwargs": None, "rollout_buffer_class": None, "rollout_buffer_kwargs": None,
    "ortho_init": True, "use_rms_prop": True, "rms_prop_eps": 1e-5, "target_entropy": "auto",
    "action_noise": None, "_init_setup_model": True, "seed": None, "policy_kwargs": None,
    "n_lstm_layers": 1, "lstm_kwargs": None,
}  # fmt: skip
"""Arguments that are ignored if they have Stable-Baselines3's default, as Flatout does the same."""


def linear(start: float, end: float = 0.0) -> str:
    """Return the text of a schedule that falls (or rises) linearly from `start` to `end` over the
    run, for settings such as `learning_rate`."""
    return f"lin_{float(start)!r}_{float(end)!r}" if end else f"lin_{float(start)!r}"


def schedule_of(name: str, function: Callable[[float], Any]) -> float | str:
    """Return a function of the remaining share of the run, 1 to 0, as a number or as a schedule.

    Raises:
        UsageError: it fails, or is neither constant nor linear.
    """
    remaining = np.linspace(1.0, 0.0, 9)
    try:
        found = np.array([float(function(float(share))) for share in remaining])
    except Exception as error:  # a user's function may raise anything
        raise UsageError(
            f"{name} is a function that raised {type(error).__name__} for a remaining share of the "
            f"run ({one_line(error)}): write {name}=flatout.linear(1e-3) or a number."
        ) from error
    start, end = float(found[0]), float(found[-1])
    if not np.allclose(found, end + (start - end) * remaining, rtol=1e-5, atol=0.0):
        raise UsageError(
            f"{name} is a function that is not linear in the remaining share of the run, and no "
            f"other schedule is available: write {name}=flatout.linear({start:g}, {end:g}) or a "
            "number."
        )
    return start if np.isclose(start, end, rtol=1e-6, atol=0.0) else linear(start, end)


def environments_in(given: Mapping[str, Any], default: int) -> Any:
    """Return the number of environments that arguments name: by themselves, by the placement's
    workers, or by a preset; `default` if they name none.

    Raises:
        UsageError: an impossible placement or preset.
    """
    for name in ("envs", "n_envs", "num_envs"):
        if name in given:
            return given[name]
    named = given.get("placement")
    placed = parse_or_auto(named) if isinstance(named, str) else None
    if placed is not None and placed.workers is not None:
        return math.prod(placed.workers)
    preset = given.get("preset")
    return load_preset(preset).get("envs", default) if isinstance(preset, str) else default


def steps_between_updates(value: Any, envs: Any) -> Any:
    """Return `train_freq` in environment steps, summed over environments.

    Args:
        value: a number, or Stable-Baselines3's pair of a number and ``"step"``.
        envs: the number of environments.

    Raises:
        UsageError: it counts episodes, or is a pair of something else.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value
    if len(value) == 2 and value[1] == "step":
        return int(value[0]) * int(envs)
    words = "train_freq counts environment steps, not episodes: write train_freq=200, say, about "
    if len(value) == 2 and value[1] == "episode":
        raise UsageError(f"train_freq = {short(value)}: {words}the length of an episode.")
    raise UsageError(f'train_freq = {short(value)}: write train_freq=4 or train_freq=(4, "step").')


def noise_deviation(noise: Any) -> Any:
    """Return the standard deviation of Stable-Baselines3's `NormalActionNoise`; numbers stay.

    Raises:
        UsageError: it is another process, has a mean, or several deviations.
    """
    kind = type(noise).__name__
    if kind == "VectorizedActionNoise":
        return noise_deviation(noise.base_noise)
    if not kind.endswith("ActionNoise"):
        return noise
    if kind != "NormalActionNoise":
        raise UsageError(
            f"action_noise = {kind} is not available: write action_noise=0.1, the standard "
            "deviation of Gaussian noise."
        )
    mean, deviations = np.atleast_1d(noise._mu), np.atleast_1d(noise._sigma)
    if mean.any() or np.ptp(deviations):
        raise UsageError(
            f"action_noise = {noise}: the noise has mean 0 and one standard deviation for all "
            f"components, such as action_noise={float(deviations.mean()):g}."
        )
    return float(deviations[0])


def layers(value: Any) -> dict[str, Any]:
    """Return `net_arch` as the settings `hidden` and, where the critic has other widths,
    `critic_hidden`.

    Raises:
        UsageError: layers are shared by actor and critic, or the dict has other keys.
    """
    if isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
        if len(value) > 1:
            raise UsageError(
                f"net_arch = {short(value)}: actor and critic share no hidden layers; write "
                "net_arch=dict(pi=[64, 64], vf=[64, 64])."
            )
        value = next(iter(value))
    if not isinstance(value, Mapping):
        return {"hidden": value}
    if not value or not {*value} <= {"pi", "vf", "qf"} or {"vf", "qf"} <= {*value}:
        raise UsageError(
            f"net_arch = {short(value)} has no pi with vf or qf: write net_arch=[64, 64], or "
            "network= for one of your own."
        )
    widths = {key: [*one] if np.iterable(one) else [one] for key, one in value.items()}
    actor = widths.pop("pi", [])
    critic = next(iter(widths.values()), [])
    return {"hidden": actor} if actor == critic else {"hidden": actor, "critic_hidden": critic}


def activation(function: Any) -> str:
    """Return the name of an activation: that of PyTorch's class, or of a function."""
    return str(getattr(function, "__name__", function)).lower()


def placement(device: str) -> str:
    """Return PyTorch's name of a device as a placement.

    Raises:
        UsageError: it is no such name.
    """
    match = re.fullmatch(r"(cuda|gpu)(?::(\d+))?", device)
    if device in ("auto", "cpu"):
        return device
    if match is None:
        raise UsageError(
            f"device = {device[:60]!r} is none of auto, cpu, cuda and cuda:0; placement= says more."
        )
    return f"act=gpu:{match[2]} learn=gpu:{match[2]}" if match[2] else "gpu"
