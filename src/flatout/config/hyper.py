"""Hyper-parameters: one frozen dataclass per algorithm, and which values are possible.

A sentence under each field is its help on the command line. Nothing here imports JAX.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from flatout.config.schedules import Schedule, check_schedule, entropy_coefficient
from flatout.config.values import (
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    Probability,
    Range,
    need,
)
from flatout.errors import UsageError, refuse_empty


@dataclass(frozen=True)
class Hyper:
    """What is said of every algorithm."""

    defaults: ClassVar[dict[str, Any]] = {}  # of other components' settings, for this algorithm
    acts: ClassVar[bool] = True  # learns from environments; else from a dataset
    differentiates: ClassVar[bool] = True  # computes gradients
    only_serial: ClassVar[str] = ""  # why it needs ``schedule=serial``, if it does
    no_limit: ClassVar[str] = ""  # what else to do where an environment has no time limit

    @property
    def fixed_horizon(self) -> int | None:
        """T, if these settings say it; None: of whole episodes; 0: the algorithm says it."""
        return 0

    def check_together(self, envs: int) -> None:
        """Refuse values that exclude each other or the number of environments."""


@dataclass(frozen=True)
class OnPolicyConfig(Hyper):
    """Settings of every algorithm that learns from its newest rollout."""

    learning_rate: Schedule = 3e-4
    """The optimiser's step size; lin_0.001 falls to 0 over the run, lin_0.001_0.0001 to the
    second."""
    n_steps: Count = 2048
    """Steps per environment and rollout."""
    gamma: Probability = 0.99
    """Discount per step."""
    gae_lambda: Probability = 0.95
    """Lambda of generalised advantage estimation."""
    normalize_advantage: bool = True
    """Centre and scale advantages in each minibatch or update."""
    ent_coef: NotNegative = 0.0
    """Weight of the entropy bonus."""
    vf_coef: NotNegative = 0.5
    """Weight of the value loss."""
    max_grad_norm: Positive | None = 0.5
    """Largest norm of a gradient; None does not clip."""
    log_std_init: float = 0.0
    """Initial log standard deviation of continuous actions."""
    normalize_observation: bool = False
    """Scale observations by running mean and variance (frozen within a rollout)."""
    normalize_reward: bool = False
    """Scale rewards by the running deviation of the discounted return."""


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Proximal policy optimisation (Schulman et al., 2017); Stable-Baselines3's defaults."""

    batch_size: Count = 64
    """Transitions per minibatch; must divide n_steps x envs."""
    n_epochs: Count = 10
    """Passes over each rollout."""
    clip_range: Schedule = 0.2
    """Clipping of the probability ratio; lin_0.2 falls to 0 over the run."""
    clip_range_vf: Positive | None = None
    """Clipping of the value's change, none by default. The larger loss counts, with or without it
    (as in OpenAI Baselines; Stable-Baselines3 takes the clipped loss alone)."""
    target_kl: Positive | None = None
    """Stop a rollout's updates once the approximate KL divergence passes 1.5 times this."""
    critic_learning_rate: Positive | None = None
    """A step size of its own for the critic, which falls in the same proportion; None uses
    learning_rate."""
    adam_eps: Positive = 1e-5
    """Adam's epsilon."""
    rollout_episodes: Count | None = None
    """Whole episodes per environment and rollout instead of n_steps (padded and masked)."""
    replay_trajectories: Count = 1
    """Learn from this many last trajectories, each with the log-probabilities it was acted with."""

    @property
    def fixed_horizon(self) -> int | None:
        return self.n_steps if self.rollout_episodes is None else None

    def check_together(self, envs: int) -> None:
        if self.rollout_episodes is not None:
            return
        kept, batch = self.replay_trajectories, self.batch_size
        rollout = self.n_steps * envs * kept
        if batch > rollout or rollout % batch:
            factor = f" x replay_trajectories {kept}" if kept > 1 else ""
            fits = (n for n in range(min(batch, 65536, rollout), 1, -1) if rollout % n == 0)
            raise UsageError(
                f"a rollout of n_steps {self.n_steps} x envs {envs}{factor} = {rollout} "
                f"transitions does not divide into minibatches of batch_size {batch}; choose a "
                f"batch_size such as {next(fits, rollout)}."
            )
        ok = not (self.normalize_advantage and min(rollout, batch) < 2)
        need(ok, "batch_size", batch, "advantage normalisation needs at least 2")


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Advantage actor-critic (Mnih et al., 2016); Stable-Baselines3's defaults."""

    learning_rate: Schedule = 7e-4
    n_steps: Count = 5
    gae_lambda: Probability = 1.0
    normalize_advantage: bool = False
    targets: Literal["returns", "next_reward"] = "returns"
    """What values learn: returns; or next_reward, whether a reward follows before the episode's
    end (1) or not (0), the advantage being what that exceeds the value by."""
    optimizer: Literal["rms", "adam"] = "rms"
    """rms (RMSProp, decay 0.99) or adam."""

    def check_together(self, envs: int) -> None:
        ok = not (self.normalize_advantage and self.n_steps * envs < 2)
        need(ok, "n_steps", self.n_steps, "advantage normalisation needs at least 2 transitions")


@dataclass(frozen=True)
class GeneticConfig(Hyper):
    """A genetic algorithm without crossover (Such et al., 2017); each environment has a member."""

    defaults: ClassVar[dict[str, Any]] = {"envs": 32}
    differentiates: ClassVar[bool] = False
    only_serial: ClassVar[str] = (
        "it selects among the members that played, which a schedule that learns meanwhile has "
        "already replaced"
    )
    no_limit: ClassVar[str] = " Or say with n_steps how many."

    rollout_episodes: Count = 1
    """Episodes that each member plays in a generation; their mean return is its fitness."""
    n_steps: Count | None = None
    """The most steps of a member in a generation; by default as many as the environment's time
    limit allows."""
    elites: Count = 4
    """Best members that stay as they are; the others become noisy copies of them."""
    noise: Schedule = 0.05
    """Standard deviation of the noise on parameters; lin_0.1_0.01 falls over the run."""

    @property
    def fixed_horizon(self) -> int | None:
        return self.n_steps


@dataclass(frozen=True)
class ReplayConfig(Hyper):
    """What every algorithm that learns from replayed transitions shares."""

    learning_rate: Schedule = 3e-4
    """The optimiser's step size; lin_0.001 falls to 0 over the run."""
    buffer_size: Count = 1_000_000
    """Transitions that replay holds, over all environments."""
    learning_starts: CountOrZero = 100
    """Environment steps with random actions before the first update."""
    batch_size: Count = 256
    """Transitions per update."""
    train_freq: Count = 1
    """Environment steps, counted over all environments, that gradient_steps updates follow."""
    gradient_steps: Count = 1
    """Updates for every train_freq environment steps."""
    gamma: Probability = 0.99
    """Discount per step."""
    tau: Annotated[float, Range(0, 1, above=True)] = 0.005
    """Share by which the target networks move to the online ones; 1 copies them."""
    target_update_interval: Count = 1
    """Between two moves of the target networks (dqn: environment steps; others: updates)."""
    n_step: Annotated[int, Range(1, 1000)] = 1
    """Rewards summed before the bootstrap."""
    prioritized: bool = False
    """Sample by the size of the last error (Schaul et al., 2016) instead of uniformly."""
    priority_alpha: Probability = 0.6
    """Exponent of the priorities; 0 would be uniform."""
    priority_beta: Annotated[float | str, partial(check_schedule, positive=False)] = "lin_0.4_1.0"
    """Exponent of the importance weights, by default rising to 1 over the run."""
    max_grad_norm: Positive | None = None
    """Largest norm of a gradient; None does not clip."""

    def check_together(self, envs: int) -> None:
        least, size = max(envs, self.train_freq), self.buffer_size
        words = f"what train_freq {self.train_freq} and envs {envs} collect at once"
        need(size >= least, "buffer_size", size, f"at least {least}, {words}")
        need(self.batch_size <= size, "batch_size", self.batch_size, f"at most buffer_size {size}")


@dataclass(frozen=True)
class DQNConfig(ReplayConfig):
    """Deep Q-learning (Mnih et al., 2015); Stable-Baselines3's defaults."""

    defaults: ClassVar[dict[str, Any]] = {"activation": "relu"}

    learning_rate: Schedule = 1e-4
    batch_size: Count = 32
    train_freq: Count = 4
    tau: Annotated[float, Range(0, 1, above=True)] = 1.0
    target_update_interval: Count = 10_000
    max_grad_norm: Positive | None = 10.0
    exploration_fraction: Probability = 0.1
    """Share of the run's steps over which epsilon falls linearly."""
    exploration_steps: CountOrZero | None = None
    """The same as a number of environment steps (set, it replaces the fraction)."""
    exploration_initial_eps: Probability = 1.0
    """Epsilon, the probability of a random action, at the start."""
    exploration_final_eps: Probability = 0.05
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

    defaults: ClassVar[dict[str, Any]] = {"hidden": (400, 300), "activation": "relu"}

    learning_rate: Schedule = 1e-3
    critic_learning_rate: Positive | None = None
    """A step size of its own for the critic, which falls in the same proportion; None uses
    learning_rate."""
    action_noise: NotNegative = 0.0
    """Standard deviation of Gaussian exploration, as a share of half the action's range."""


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """Twin delayed DDPG (Fujimoto et al., 2018); Stable-Baselines3's defaults."""

    policy_delay: Count = 2
    """Updates of the critics for one of the actor and the targets."""
    target_policy_noise: NotNegative = 0.2
    """Standard deviation of the noise on target actions."""
    target_noise_clip: NotNegative = 0.5
    """Largest noise on target actions."""


@dataclass(frozen=True)
class SACConfig(ReplayConfig):
    """Soft actor-critic (Haarnoja et al., 2018); Stable-Baselines3's defaults."""

    defaults: ClassVar[dict[str, Any]] = {"hidden": (256, 256), "activation": "relu"}

    critic_learning_rate: Positive | None = None
    """A step size of its own for the critics, which falls in the same proportion; None uses
    learning_rate."""
    ent_coef: Annotated[float | str, entropy_coefficient] = "auto"
    """Weight of the entropy; auto learns it from 1, auto_0.1 learns it from 0.1."""
    target_entropy: float | None = None
    """Entropy that the automatic weight aims at; by default minus the action's components."""


@dataclass(frozen=True)
class ClassifyConfig(Hyper):
    """A classifier of images on one device or many; Adam, the settings of common tutorials."""

    defaults: ClassVar[dict[str, Any]] = {"env": "digits", "steps": 1000, "log_every": 10}
    acts: ClassVar[bool] = False

    data: Annotated[str, refuse_empty] | None = None
    """Folder with MNIST's four IDX files, compressed or not; by default the bundled 8x8 digits."""
    size: Literal["small", "large"] = "small"
    """small (conv 6 and 12, batch normalisation) or large (conv 12 and 24, dropout)."""
    learning_rate: Schedule = 1e-3
    """Adam's step size; lin_0.001 falls to 0 over the run."""
    batch_size: Count = 1024
    """Images per gradient step, over all devices."""
    l2: NotNegative = 5e-4
    """Weight of half the squared weights in the loss."""
    dropout: Annotated[float, Range(0, 1, below=True)] = 0.5
    """Share of the dense layer's outputs that are left out (size large)."""


@dataclass(frozen=True)
class OwnConfig(Hyper):
    """An algorithm of your own, from module:function; see docs/own-algorithm.md."""

    hp: dict[str, Any] = field(default_factory=dict)
    """NAME=VALUE ... of the algorithm's hyper-parameters."""


def algorithm_called(name: str) -> str:
    """The algorithm's own name, where `name` is that in other letters: ``PPO`` is ``ppo``."""
    return name.lower() if name.lower() in HYPER else name


def hyper_of(algorithm: str) -> type[Hyper] | None:
    """The config class of an algorithm: ``module:function`` is a user's; None is unknown."""
    return OwnConfig if ":" in algorithm else HYPER.get(algorithm)


HYPER: dict[str, type[Hyper]] = {
    "ppo": PPOConfig, "a2c": A2CConfig, "dqn": DQNConfig, "ddpg": DDPGConfig, "td3": TD3Config,
    "sac": SACConfig, "genetic": GeneticConfig, "classify": ClassifyConfig,
}  # fmt: skip
