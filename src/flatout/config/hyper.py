"""Hyper-parameters: one frozen dataclass per algorithm, and which values are possible.

A sentence under each field is its help on the command line. Nothing here imports JAX.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Any, Literal

from flatout.errors import UsageError

_LINEAR = re.compile(r"lin_([^_]+)(?:_([^_]+))?")


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation (Schulman et al., 2017); Stable-Baselines3's defaults."""

    learning_rate: float | str = 3e-4
    """Adam's step size; lin_0.001 falls to 0 over the run, lin_0.001_0.0001 to the second."""
    n_steps: int = 2048
    """Steps per environment and rollout."""
    batch_size: int = 64
    """Transitions per minibatch; must divide n_steps x envs."""
    n_epochs: int = 10
    """Passes over each rollout."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation."""
    clip_range: float | str = 0.2
    """Clipping of the probability ratio; lin_0.2 falls to 0 over the run."""
    clip_range_vf: float | None = None
    """Clipping of the value's change; none by default."""
    normalize_advantage: bool = True
    """Centre and scale advantages in each minibatch."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float | None = 0.5
    """Largest norm of a gradient; None does not clip."""
    target_kl: float | None = None
    """Stop a rollout's updates once the approximate KL divergence passes 1.5 times this."""
    critic_learning_rate: float | None = None
    """A step size of its own for the critic, which falls in the same proportion; None uses
    learning_rate."""
    log_std_init: float = 0.0
    """Initial log standard deviation of continuous actions."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    normalize_observation: bool = False
    """Scale observations by running mean and variance (frozen within a rollout)."""
    normalize_reward: bool = False
    """Scale rewards by the running deviation of the discounted return."""
    rollout_episodes: int | None = None
    """Whole episodes per environment and rollout instead of n_steps (padded and masked)."""
    replay_trajectories: int = 1
    """Learn from this many last trajectories, each with the log-probabilities it was acted with."""


@dataclass(frozen=True)
class A2CConfig:
    """Advantage actor-critic (Mnih et al., 2016); Stable-Baselines3's defaults."""

    learning_rate: float | str = 7e-4
    """The optimiser's step size; lin_0.001 falls to 0 over the run."""
    n_steps: int = 5
    """Steps per environment and rollout; each rollout is one update."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 1.0
    """Lambda of generalised advantage estimation."""
    targets: Literal["returns", "next_reward"] = "returns"
    """What values learn: returns; or next_reward, whether a reward follows before the episode's
    end (1) or not (0), the advantage being what that exceeds the value by."""
    normalize_advantage: bool = False
    """Centre and scale advantages in each update."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float | None = 0.5
    """Largest norm of a gradient; None does not clip."""
    optimizer: Literal["rms", "adam"] = "rms"
    """rms (RMSProp, decay 0.99) or adam."""
    log_std_init: float = 0.0
    """Initial log standard deviation of continuous actions."""
    normalize_observation: bool = False
    """Scale observations by running mean and variance (frozen within a rollout)."""
    normalize_reward: bool = False
    """Scale rewards by the running deviation of the discounted return."""


@dataclass(frozen=True)
class GeneticConfig:
    """A genetic algorithm without crossover (Such et al., 2017); each environment has a member."""

    rollout_episodes: int = 1
    """Episodes that each member plays in a generation; their mean return is its fitness."""
    n_steps: int | None = None
    """The most steps of a member in a generation; by default as many as the environment's time
    limit allows."""
    elites: int = 4
    """Best members that stay as they are; the others become noisy copies of them."""
    noise: float | str = 0.05
    """Standard deviation of the noise on parameters; lin_0.1_0.01 falls over the run."""


@dataclass(frozen=True)
class ReplayConfig:
    """What every algorithm that learns from replayed transitions shares."""

    learning_rate: float | str = 3e-4
    """The optimiser's step size; lin_0.001 falls to 0 over the run."""
    buffer_size: int = 1_000_000
    """Transitions that replay holds, over all environments."""
    learning_starts: int = 100
    """Environment steps with random actions before the first update."""
    batch_size: int = 256
    """Transitions per update."""
    train_freq: int = 1
    """Environment steps, counted over all environments, that gradient_steps updates follow."""
    gradient_steps: int = 1
    """Updates for every train_freq environment steps."""
    gamma: float = 0.99
    """Discount per step."""
    tau: float = 0.005
    """Share by which the target networks move to the online ones; 1 copies them."""
    target_update_interval: int = 1
    """Between two moves of the target networks (dqn: environment steps; others: updates)."""
    n_step: int = 1
    """Rewards summed before the bootstrap."""
    prioritized: bool = False
    """Sample by the size of the last error (Schaul et al., 2016) instead of uniformly."""
    priority_alpha: float = 0.6
    """Exponent of the priorities; 0 would be uniform."""
    priority_beta: float | str = "lin_0.4_1.0"
    """Exponent of the importance weights, by default rising to 1 over the run."""
    max_grad_norm: float | None = None
    """Largest norm of a gradient; None does not clip."""


@dataclass(frozen=True)
class DQNConfig(ReplayConfig):
    """Deep Q-learning (Mnih et al., 2015); Stable-Baselines3's defaults."""

    learning_rate: float | str = 1e-4
    batch_size: int = 32
    train_freq: int = 4
    tau: float = 1.0
    target_update_interval: int = 10_000
    max_grad_norm: float | None = 10.0
    exploration_fraction: float = 0.1
    """Share of the run's steps over which epsilon falls linearly."""
    exploration_steps: int | None = None
    """The same as a number of environment steps (set, it replaces the fraction)."""
    exploration_initial_eps: float = 1.0
    """Epsilon, the probability of a random action, at the start."""
    exploration_final_eps: float = 0.05
    """Epsilon at the end of its fall."""
    double: bool = False
    """Choose the next action with the online network (van Hasselt et al., 2016)."""
    dueling: bool = False
    """A value and an advantage head on the last hidden layer (after Wang et al., 2016, whose
    streams have hidden layers of their own)."""
    loss: Literal["huber", "mse"] = "huber"
    """Of the temporal difference; huber is quadratic up to 1."""
    optimizer: Literal["adam", "rmsprop", "nesterov"] = "adam"
    """adam; rmsprop (centred, as in Mnih et al., 2015); nesterov (momentum 0.95)."""


@dataclass(frozen=True)
class DDPGConfig(ReplayConfig):
    """Deep deterministic policy gradient (Lillicrap et al., 2016); Stable-Baselines3's defaults."""

    learning_rate: float | str = 1e-3
    critic_learning_rate: float | None = None
    """A step size of its own for the critic, which falls in the same proportion; None uses
    learning_rate."""
    action_noise: float = 0.0
    """Standard deviation of Gaussian exploration, as a share of half the action's range."""


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """Twin delayed DDPG (Fujimoto et al., 2018); Stable-Baselines3's defaults."""

    policy_delay: int = 2
    """Updates of the critics for one of the actor and the targets."""
    target_policy_noise: float = 0.2
    """Standard deviation of the noise on target actions."""
    target_noise_clip: float = 0.5
    """Largest noise on target actions."""


@dataclass(frozen=True)
class SACConfig(ReplayConfig):
    """Soft actor-critic (Haarnoja et al., 2018); Stable-Baselines3's defaults."""

    critic_learning_rate: float | None = None
    """A step size of its own for the critics, which falls in the same proportion; None uses
    learning_rate."""
    ent_coef: float | str = "auto"
    """Weight of the entropy; auto learns it from 1, auto_0.1 learns it from 0.1."""
    target_entropy: float | None = None
    """Entropy that the automatic weight aims at; by default minus the action's components."""


@dataclass(frozen=True)
class ClassifyConfig:
    """A classifier of images on one device or many; Adam, the settings of common tutorials."""

    data: str | None = None
    """Folder with MNIST's four IDX files, compressed or not; by default the bundled 8x8 digits."""
    size: Literal["small", "large"] = "small"
    """small (conv 6 and 12, batch normalisation) or large (conv 12 and 24, dropout)."""
    learning_rate: float | str = 1e-3
    """Adam's step size; lin_0.001 falls to 0 over the run."""
    batch_size: int = 1024
    """Images per gradient step, over all devices."""
    l2: float = 5e-4
    """Weight of half the squared weights in the loss."""
    dropout: float = 0.5
    """Share of the dense layer's outputs that are left out (size large)."""


HYPER: dict[str, type] = {
    "ppo": PPOConfig, "a2c": A2CConfig, "dqn": DQNConfig, "ddpg": DDPGConfig, "td3": TD3Config,
    "sac": SACConfig, "genetic": GeneticConfig, "classify": ClassifyConfig,
}  # fmt: skip

DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "a2c": {},
    "dqn": {"activation": "relu"},
    "ddpg": {"hidden": (400, 300), "activation": "relu"},
    "td3": {"hidden": (400, 300), "activation": "relu"},
    "sac": {"hidden": (256, 256), "activation": "relu"},
    "genetic": {"envs": 32},
    "classify": {"env": "digits", "steps": 1000, "log_every": 10},
}
"""Settings of other components whose defaults depend on the algorithm."""


def linear(name: str, value: float | str) -> tuple[float, float]:
    """A schedule's values at the start and at the end of the run.

    Raises:
        UsageError: not a number and not of the form ``lin_START`` or ``lin_START_END``.
    """
    if not isinstance(value, str):
        return float(value), float(value)
    match = _LINEAR.fullmatch(value)
    try:
        if match:
            return float(match[1]), float(match[2] or 0.0)
        return float(value), float(value)
    except ValueError:
        pass
    raise UsageError(
        f"{name} = {value[:200]!r} is neither a number nor a linear schedule such as lin_0.001 "
        "(to 0) or lin_0.001_0.0001."
    )


def entropy_coefficient(value: float | str) -> tuple[float, bool]:
    """SAC's entropy weight at the start, and whether it is learned.

    Raises:
        UsageError: not a number and not of the form ``auto`` or ``auto_START``.
    """
    text = str(value)
    learned = text == "auto" or text.startswith("auto_")
    try:
        start = 1.0 if text == "auto" else float(text.removeprefix("auto_"))
    except ValueError:
        start = math.nan
    if not math.isfinite(start) or start < 0 or (learned and not start):
        raise UsageError(
            f"ent_coef = {text[:200]!r} is neither a number of 0 or more nor auto or auto_START "
            "with a start above 0."
        )
    return start, learned


def need(ok: bool, name: str, value: Any, what: str) -> None:
    """Refuse an impossible value with its name and what is possible.

    Raises:
        UsageError: where it is not `ok`.
    """
    if not ok:
        raise UsageError(f"{name} = {str(value)[:200]} is impossible: {what}.")


def check(hyper: Any, envs: int) -> None:
    """Refuse impossible hyper-parameters.

    Args:
        hyper: one of `HYPER`'s.
        envs: environments stepped together.

    Raises:
        UsageError: the first impossible value found.
    """
    rules: dict[str, tuple[Any, str]] = {
        name: (lambda v: 1 <= v < 2**31, "it lies in 1 to 2147483647")
        for name in (
            "n_steps", "batch_size", "n_epochs", "train_freq", "gradient_steps", "buffer_size",
            "target_update_interval", "policy_delay", "rollout_episodes", "replay_trajectories",
            "elites",
        )
    }  # fmt: skip
    rules |= {
        name: (lambda v: 0 <= v <= 1, "it lies in 0 to 1")
        for name in (
            "gamma", "gae_lambda", "exploration_fraction", "exploration_initial_eps",
            "exploration_final_eps", "priority_alpha",
        )
    }  # fmt: skip
    rules |= {
        name: (lambda v: v > 0, "it must be above 0")
        for name in (
            "clip_range_vf", "max_grad_norm", "target_kl", "critic_learning_rate", "adam_eps",
        )
    }  # fmt: skip
    rules |= {
        name: (lambda v: v >= 0, "it must not be negative")
        for name in ("vf_coef", "l2", "action_noise", "target_policy_noise", "target_noise_clip")
    }
    rules |= {
        name: (lambda v: 0 <= v < 2**31, "it lies in 0 to 2147483647")
        for name in ("learning_starts", "exploration_steps")
    }
    rules["dropout"] = (lambda v: 0 <= v < 1, "it lies in 0 to below 1")
    rules["tau"] = (lambda v: 0 < v <= 1, "it lies above 0 and up to 1")
    rules["n_step"] = (lambda v: 1 <= v <= 1000, "it lies in 1 to 1000")
    for spec in fields(hyper):
        value = getattr(hyper, spec.name)
        if spec.name in rules and value is not None:
            possible, what = rules[spec.name]
            need(possible(value), spec.name, value, what)
    for name in ("learning_rate", "clip_range", "priority_beta", "noise"):
        if not hasattr(hyper, name):
            continue
        ends = linear(name, getattr(hyper, name))
        ok = all(math.isfinite(end) and end >= 0 for end in ends)
        ok = ok and (ends[0] > 0 or name == "priority_beta")
        need(ok, name, getattr(hyper, name), "it must be above 0")
    if isinstance(hyper, PPOConfig | A2CConfig):
        need(hyper.ent_coef >= 0, "ent_coef", hyper.ent_coef, "it must not be negative")
    if isinstance(hyper, PPOConfig):
        _check_ppo(hyper, envs)
    if isinstance(hyper, A2CConfig):
        need(
            not (hyper.normalize_advantage and hyper.n_steps * envs < 2), "n_steps", hyper.n_steps,
            "advantage normalisation needs at least 2 transitions",
        )  # fmt: skip
    if isinstance(hyper, SACConfig):
        entropy_coefficient(hyper.ent_coef)
    if isinstance(hyper, ReplayConfig):
        least = max(envs, hyper.train_freq)
        need(
            hyper.buffer_size >= least, "buffer_size", hyper.buffer_size,
            f"at least {least}, what train_freq {hyper.train_freq} and envs {envs} collect at once",
        )  # fmt: skip
        need(
            hyper.batch_size <= hyper.buffer_size, "batch_size", hyper.batch_size,
            f"at most buffer_size {hyper.buffer_size}",
        )  # fmt: skip


def _check_ppo(hyper: PPOConfig, envs: int) -> None:
    if hyper.rollout_episodes is not None:
        return
    envs *= hyper.replay_trajectories
    rollout = hyper.n_steps * envs
    if hyper.batch_size > rollout or rollout % hyper.batch_size:
        kept = f" x replay_trajectories {hyper.replay_trajectories}"
        raise UsageError(
            f"a rollout of n_steps {hyper.n_steps} x envs {envs // hyper.replay_trajectories}"
            f"{kept if hyper.replay_trajectories > 1 else ''} = {rollout} transitions does not "
            f"divide into minibatches of batch_size {hyper.batch_size}; choose a "
            f"batch_size such as {_divisor(rollout, min(hyper.batch_size, 65536))}."
        )
    need(
        not (hyper.normalize_advantage and min(rollout, hyper.batch_size) < 2),
        "batch_size", hyper.batch_size, "advantage normalisation needs at least 2",
    )  # fmt: skip


def _divisor(number: int, near: int) -> int:
    """The largest divisor of `number` from 2 to `near`, else `number` itself."""
    smaller = range(min(near, number), 1, -1)
    return next((divisor for divisor in smaller if number % divisor == 0), number)
