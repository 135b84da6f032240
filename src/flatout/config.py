"""Settings: one frozen dataclass per component, and what values are possible.

No field is known to more than its own component; nothing here imports JAX. A sentence under each
field is its help on the command line.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from flatout.errors import UsageError

ALGORITHMS = ("ppo",)

_LINEAR = re.compile(r"lin_([^_]+)(?:_([^_]+))?")


@dataclass(frozen=True)
class EnvConfig:
    """The environment and how its observations are prepared."""

    env: str = ""
    """Gymnasium id (CartPole-v1), or module:factory for a function that makes an environment."""
    envs: int = 1
    """Environments stepped together."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """KEY=VALUE ... passed to the environment; values as in TOML (size=12 flag=true name="x")."""
    grayscale: bool = False
    """Turn RGB image observations into gray ones."""
    resize: int | None = None
    """Scale image observations to this many rows and columns."""
    frame_stack: int = 1
    """Stack this many last observations (images: as channels; vectors: one after another)."""


@dataclass(frozen=True)
class NetworkConfig:
    """The torso between observations and heads."""

    network: Literal["auto", "mlp", "nature", "grid", "onehot"] = "auto"
    """mlp; nature (the DQN convolutions, for pixels); for small boards grid (one-hot cells,
    convolutions) or onehot (without convolutions, much cheaper on a CPU)."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of actor and critic."""
    activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = "tanh"
    """Between the hidden layers."""


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
    """A step size of its own for the critic; None uses learning_rate."""
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


@dataclass(frozen=True)
class RunConfig:
    """The run: how long, where, and what is kept."""

    steps: int = 100_000
    """Environment steps in all, summed over environments."""
    seed: int = 0
    """Seed of every random number of the run."""
    placement: str = "auto"
    """cpu, gpu, cpu+gpu, auto, or KEY=VALUE pairs such as 'act=cpu learn=gpu:0 memory=0.5'."""
    soft_placement: bool = False
    """Where a named device is missing, run on what is there and say so."""
    run_dir: str | None = None
    """Folder of the run; by default runs/ALGORITHM-ENV-SEED-TIME."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; by default a tenth of the run. 0 saves only at the end."""
    keep_checkpoints: int = 3
    """How many of the newest checkpoints stay."""
    eval_every: int = 0
    """Steps between evaluations; the best parameters by them are kept. 0 never evaluates."""
    eval_episodes: int = 10
    """Episodes per evaluation."""
    stop_at_return: float | None = None
    """Stop once the mean return of the last 100 training episodes reaches this."""
    threshold: tuple[float, ...] = ()
    """Record when the mean return of the last 100 episodes reaches this; repeatable."""
    log_every: int = 2048
    """Steps between rows of metrics (at least one iteration)."""
    tensorboard: bool = True
    """Write TensorBoard events into the run folder."""
    wandb: str | None = None
    """Also log to this Weights & Biases project (needs the wandb extra)."""
    trace: bool = False
    """Write trace.json, every span on a time line, for Perfetto or chrome://tracing."""
    quiet: bool = False
    """No live display and no report."""
    json: bool = False
    """Print the summary as JSON, alone on stdout."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that a run was asked to do."""

    algorithm: str
    env: EnvConfig
    network: NetworkConfig
    hyper: PPOConfig
    run: RunConfig

    def flat(self) -> dict[str, Any]:
        """Every setting by its flag's name (underscores), as `resolve` takes it."""
        values: dict[str, Any] = {"algorithm": self.algorithm}
        for part in (self.env, self.network, self.hyper, self.run):
            values |= {spec.name: getattr(part, spec.name) for spec in fields(part)}
        return values


RESUMABLE = frozenset(
    {
        "placement", "soft_placement", "steps", "run_dir", "checkpoint_every", "keep_checkpoints",
        "stop_at_return", "threshold", "log_every", "tensorboard", "wandb", "trace", "quiet",
        "json",
    }
)  # fmt: skip
"""The settings that a resumed run may change: placement, steps, logging and stopping."""


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
        f"{name} = {value!r} is neither a number nor a linear schedule such as lin_0.001 "
        "(to 0) or lin_0.001_0.0001."
    )


def validate(config: TrainConfig) -> None:
    """Refuse impossible values, each with its name and what is possible.

    Raises:
        UsageError: the first impossible value found.
    """
    hyper, env, run = config.hyper, config.env, config.run

    def need(ok: bool, name: str, value: Any, what: str) -> None:
        if not ok:
            raise UsageError(f"{name} = {value} is impossible: {what}.")

    for part in (hyper, env, run, config.network):
        for spec in fields(part):
            value = getattr(part, spec.name)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, float):
                    need(math.isfinite(number), spec.name, value, "it must be a finite number")
    for name in ("n_steps", "batch_size", "n_epochs"):
        number = getattr(hyper, name)
        need(number >= 1, name, number, "at least 1")
        need(name == "n_steps" or number < 2**31, name, number, "below 2147483648")
    for name in ("gamma", "gae_lambda"):
        need(0 <= getattr(hyper, name) <= 1, name, getattr(hyper, name), "it lies in 0 to 1")
    for name in ("learning_rate", "clip_range"):
        ends = linear(name, getattr(hyper, name))
        ok = all(math.isfinite(end) and end >= 0 for end in ends) and ends[0] > 0
        need(ok, name, getattr(hyper, name), "it must be above 0")
    for name in ("clip_range_vf", "max_grad_norm", "target_kl", "critic_learning_rate"):
        value = getattr(hyper, name)
        need(value is None or value > 0, name, value, "it must be above 0")
    for name in ("ent_coef", "vf_coef"):
        need(getattr(hyper, name) >= 0, name, getattr(hyper, name), "it must not be negative")
    need(hyper.adam_eps > 0, "adam_eps", hyper.adam_eps, "it must be above 0")
    need(
        hyper.rollout_episodes is None or hyper.rollout_episodes >= 1,
        "rollout_episodes", hyper.rollout_episodes, "at least 1",
    )  # fmt: skip
    need(env.envs >= 1, "envs", env.envs, "at least 1 environment")
    need(1 <= env.frame_stack <= 1024, "frame_stack", env.frame_stack, "it lies in 1 to 1024")
    need(env.resize is None or env.resize >= 1, "resize", env.resize, "at least 1")
    widths = config.network.hidden
    need(all(w >= 1 for w in widths), "hidden", widths, "every width is at least 1")
    need(run.steps >= 1, "steps", run.steps, "at least 1")
    need(run.steps < 2**31, "steps", run.steps, "below 2147483648")
    need(0 <= run.seed < 2**32, "seed", run.seed, "it lies in 0 to 4294967295")
    need(
        run.checkpoint_every is None or run.checkpoint_every >= 0,
        "checkpoint_every", run.checkpoint_every, "0 or more",
    )  # fmt: skip
    need(run.keep_checkpoints >= 1, "keep_checkpoints", run.keep_checkpoints, "at least 1")
    need(run.eval_every >= 0, "eval_every", run.eval_every, "0 or more")
    need(run.eval_episodes >= 1, "eval_episodes", run.eval_episodes, "at least 1")
    need(run.log_every >= 1, "log_every", run.log_every, "at least 1")
    if hyper.rollout_episodes is None:
        rollout = hyper.n_steps * env.envs
        if hyper.batch_size > rollout or rollout % hyper.batch_size:
            raise UsageError(
                f"a rollout of n_steps {hyper.n_steps} x envs {env.envs} = {rollout} transitions "
                f"does not divide into minibatches of batch_size {hyper.batch_size}; choose a "
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
