"""Hyper-parameters: one frozen dataclass per algorithm, with the possible values of each field.

`settings.py` builds these, and `algorithms/` reads them. The text under a field is its help on the
command line and in Python. Nothing here imports JAX.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from flatout.config.schedules import Schedule, check_schedule, entropy_coefficient
from flatout.config.values import (
    MAX_WIDTH,
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    Probability,
    Range,
    Widths,
    need,
)
from flatout.errors import UsageError, refuse_empty

BUILT_IN = "auto"
"""The name of a classifier's built-in network."""


def check_network(name: str, text: str) -> None:
    """Refuse a text that is neither `BUILT_IN` nor ``module:function``."""
    what = f"{BUILT_IN}, or module:function for a network of your own"
    need(text == BUILT_IN or ":" in text, name, text, what)


@dataclass(frozen=True)
class Hyper:
    """Base class of the settings of one algorithm."""

    defaults: ClassVar[dict[str, Any]] = {}  # other defaults for settings of other classes
    acts: ClassVar[bool] = True  # whether it learns from environments; else from a dataset
    differentiates: ClassVar[bool] = True  # whether it computes gradients
    only_serial: ClassVar[str] = ""  # the reason if it needs ``schedule=serial``
    no_limit: ClassVar[str] = ""  # more advice if an environment has no time limit

    @property
    def fixed_horizon(self) -> int | None:
        """T, the steps per environment and trajectory, if these settings determine it; None if a
        trajectory consists of whole episodes; 0 if the algorithm determines T."""
        return 0

    def check_together(self, envs: int) -> None:
        """Raise a `UsageError` if values contradict each other or the number of environments."""


@dataclass(frozen=True)
class OnPolicyConfig(Hyper):
    """Settings of the algorithms that learn from their newest rollout, PPO and A2C."""

    learning_rate: Schedule = 3e-4
    """The optimiser's step size; lin_0.001 falls linearly to 0 over the run, lin_0.001_0.0001 to
    0.0001."""
    n_steps: Count = 2048
    """Steps per environment and rollout."""
    gamma: Probability = 0.99
    """Discount per step."""
    critic_hidden: Widths | None = None
    """Widths of the critic's hidden layers; None uses those of hidden. Not for images, whose actor
    and critic share one network."""
    gae_lambda: Probability = 0.95
    """Lambda of generalised advantage estimation."""
    normalize_advantage: bool = True
    """Centre and scale advantages in each minibatch or update."""
    ent_coef: NotNegative = 0.0
    """Weight of the entropy bonus."""
    vf_coef: NotNegative = 0.5
    """Weight of the value loss."""
    max_grad_norm: Positive | None = 0.5
    """Clip the norm of the whole gradient to this; None does not clip."""
    log_std_init: float = 0.0
    """Initial log standard deviation of continuous actions."""
    normalize_observation: bool = False
    """Normalise observations by their running mean and variance (fixed within a rollout)."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    recurrent: Literal["gru", "lstm"] | None = None
    """A memory of the episode so far, between the network and the heads: a gru or lstm cell; None
    for a policy that sees the newest observation alone."""
    recurrent_size: Annotated[int, Range(1, MAX_WIDTH)] = 64
    """Units of the memory."""
    critic_memory: Literal["shared", "own"] = "shared"
    """Whether the critic of a recurrent policy reads the actor's memory (shared), or has a memory
    of its own (own), and hidden layers too where its network has no convolutions."""

    def check_together(self, envs: int) -> None:
        names = ("recurrent_size", "critic_memory", "sequence_length")
        for name in names if self.recurrent is None else ():
            value = getattr(self, name, None)
            ok = value == getattr(type(self), name, None)
            need(ok, name, value, "without recurrent = gru or lstm there is no memory")

    def normalised_together(self, envs: int) -> tuple[str, int]:
        """Return how many transitions have their advantages normalised together, in all shards, and
        the setting that decides it."""
        raise NotImplementedError


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Proximal policy optimisation (Schulman et al., 2017); Stable-Baselines3's defaults."""

    batch_size: Count = 64
    """Transitions per minibatch; must divide n_steps x envs x replay_trajectories."""
    n_epochs: Count = 10
    """Passes over each rollout."""
    clip_range: Schedule = 0.2
    """Clipping of the probability ratio; lin_0.2 falls to 0 over the run."""
    clip_range_vf: Positive | None = None
    """Clip the change of the value to this; None does not clip. The larger of the clipped and the
    unclipped loss counts (as in OpenAI Baselines; Stable-Baselines3 uses the clipped one)."""
    target_kl: Positive | None = None
    """Stop a rollout's updates once the approximate KL divergence passes 1.5 times this."""
    critic_learning_rate: Positive | None = None
    """Separate step size for the critic, which falls in the same proportion as learning_rate; None
    uses learning_rate."""
    adam_eps: Positive = 1e-5
    """Adam's epsilon."""
    rollout_episodes: Count | None = None
    """Whole episodes per environment and rollout, instead of n_steps steps (padded and masked)."""
    replay_trajectories: Count = 1
    """Newest trajectories to learn from, each with the log-probabilities of its own policy."""
    sequence_length: Count | None = None
    """Steps of the sequences that minibatches of a recurrent policy consist of, and through which
    gradients flow; must divide n_steps and batch_size. None: n_steps if minibatches hold whole
    trajectories, else batch_size."""

    @property
    def fixed_horizon(self) -> int | None:
        return self.n_steps if self.rollout_episodes is None else None

    def normalised_together(self, envs: int) -> tuple[str, int]:
        return "batch_size", self.batch_size

    def check_together(self, envs: int) -> None:
        super().check_together(envs)
        if self.rollout_episodes is not None:
            return
        trajectories, batch = self.replay_trajectories, self.batch_size
        rollout = self.n_steps * envs * trajectories
        if batch > rollout or rollout % batch:
            factor = f" x replay_trajectories {trajectories}" if trajectories > 1 else ""
            fits = (n for n in range(min(batch, 65536, rollout), 1, -1) if rollout % n == 0)
            raise UsageError(
                f"a rollout of n_steps {self.n_steps} x envs {envs}{factor} = {rollout} "
                f"transitions does not divide into minibatches of batch_size {batch}; choose a "
                f"batch_size such as {next(fits, rollout)}."
            )


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Advantage actor-critic (Mnih et al., 2016); Stable-Baselines3's defaults."""

    learning_rate: Schedule = 7e-4
    n_steps: Count = 5
    gae_lambda: Probability = 1.0
    normalize_advantage: bool = False
    targets: Literal["returns", "next_reward"] = "returns"
    """Target of the value function: returns; or next_reward, which is 1 if a reward follows before
    the episode ends and else 0 (the advantage is this target minus the value)."""
    optimizer: Literal["rms", "adam"] = "rms"
    """rms (RMSProp, decay 0.99) or adam."""

    def normalised_together(self, envs: int) -> tuple[str, int]:
        return "n_steps", self.n_steps * envs


@dataclass(frozen=True)
class GeneticConfig(Hyper):
    """A genetic algorithm without crossover (Such et al., 2017); one member per environment."""

    defaults: ClassVar[dict[str, Any]] = {"envs": 32}
    differentiates: ClassVar[bool] = False
    only_serial: ClassVar[str] = (
        "it selects among the members that played, and a schedule that learns meanwhile has "
        "already replaced them"
    )
    no_limit: ClassVar[str] = " Or set n_steps, the maximum number of steps."

    rollout_episodes: Count = 1
    """Episodes that each member plays per generation; their mean return is its fitness."""
    n_steps: Count | None = None
    """Maximum steps of a member per generation; by default rollout_episodes times the environment's
    time limit."""
    elites: Count = 4
    """Number of best members that survive unchanged; noisy copies of them replace the others."""
    noise: Schedule = 0.05
    """Standard deviation of the noise on parameters; lin_0.1_0.01 falls linearly over the run."""

    @property
    def fixed_horizon(self) -> int | None:
        return self.n_steps


@dataclass(frozen=True)
class ReplayConfig(Hyper):
    """Settings shared by the algorithms that learn from replayed transitions."""

    learning_rate: Schedule = 3e-4
    """The optimiser's step size; lin_0.001 falls linearly to 0 over the run."""
    buffer_size: Count = 1_000_000
    """Transitions that the replay buffer holds, summed over all environments."""
    learning_starts: CountOrZero = 100
    """Environment steps with random actions before the first update."""
    batch_size: Count = 256
    """Transitions per update."""
    train_freq: Count = 1
    """Environment steps, summed over all environments, per round of gradient_steps updates."""
    gradient_steps: Count = 1
    """Updates per train_freq environment steps."""
    gamma: Probability = 0.99
    """Discount per step."""
    tau: Annotated[float, Range(0, 1, above=True)] = 0.005
    """Fraction by which the target networks move towards the online ones; 1 copies them."""
    target_update_interval: Count = 1
    """Interval between moves of the target networks (dqn: in environment steps; others: in updates
    of the actor)."""
    n_step: Annotated[int, Range(1, 1000)] = 1
    """Number of rewards that are summed before the target bootstraps from a value."""
    prioritized: bool = False
    """Sample by the size of the last TD error (Schaul et al., 2016) instead of uniformly."""
    priority_alpha: Probability = 0.6
    """Exponent of the priorities; 0 samples uniformly."""
    priority_beta: Annotated[float | str, partial(check_schedule, positive=False)] = "lin_0.4_1.0"
    """Exponent of the importance weights; by default it rises linearly to 1 over the run."""
    hindsight: Annotated[int, Range(0, 1000)] = 0
    """For goal environments: of every hindsight + 1 sampled transitions, this many get a goal that
    their episode achieved later, with its rewards (Andrychowicz et al., 2017, who use 4). 0: none.
    """
    max_grad_norm: Positive | None = None
    """Clip the norm of the whole gradient to this; None does not clip."""

    def check_together(self, envs: int) -> None:
        least, size = max(envs, self.train_freq), self.buffer_size
        words = f"the steps that train_freq {self.train_freq} and envs {envs} collect at once"
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
    """Fraction of the run's steps over which epsilon falls linearly."""
    exploration_steps: CountOrZero | None = None
    """Environment steps over which epsilon falls linearly; replaces exploration_fraction if set."""
    exploration_initial_eps: Probability = 1.0
    """Epsilon, the probability of a random action, at the start."""
    exploration_final_eps: Probability = 0.05
    """Epsilon at the end of its fall."""
    double: bool = False
    """Choose the target's next action with the online network (van Hasselt et al., 2016)."""
    dueling: bool = False
    """Put a value head and an advantage head on the last hidden layer (after Wang et al., 2016,
    whose two streams have separate hidden layers)."""
    loss: Literal["huber", "mse"] = "huber"
    """Loss of the temporal-difference error: huber (quadratic up to 1, linear beyond) or mse."""
    optimizer: Literal["adam", "rmsprop", "nesterov"] = "adam"
    """adam; rmsprop (centred, as in Mnih et al., 2015); nesterov (momentum 0.95)."""


@dataclass(frozen=True)
class DDPGConfig(ReplayConfig):
    """Deep deterministic policy gradient (Lillicrap et al., 2016); Stable-Baselines3's defaults."""

    defaults: ClassVar[dict[str, Any]] = {"hidden": (400, 300), "activation": "relu"}

    learning_rate: Schedule = 1e-3
    critic_learning_rate: Positive | None = None
    """Separate step size for the critic, which falls in the same proportion as learning_rate; None
    uses learning_rate."""
    critic_hidden: Widths | None = None
    """Widths of the critic's hidden layers; None uses those of hidden."""
    action_noise: NotNegative = 0.0
    """Standard deviation of Gaussian exploration noise, in units of half the action's range."""


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """Twin delayed DDPG (Fujimoto et al., 2018); Stable-Baselines3's defaults."""

    policy_delay: Count = 2
    """Updates of the critics per update of the actor and the target networks."""
    target_policy_noise: NotNegative = 0.2
    """Standard deviation of the noise on target actions, in the unit of action_noise."""
    target_noise_clip: NotNegative = 0.5
    """Clip the noise on target actions to this, in the same unit."""


@dataclass(frozen=True)
class SACConfig(ReplayConfig):
    """Soft actor-critic (Haarnoja et al., 2018); Stable-Baselines3's defaults."""

    defaults: ClassVar[dict[str, Any]] = {"hidden": (256, 256), "activation": "relu"}

    critic_learning_rate: Positive | None = None
    """Separate step size for the critics, which falls in the same proportion as learning_rate; None
    uses learning_rate."""
    critic_hidden: Widths | None = None
    """Widths of the critics' hidden layers; None uses those of hidden."""
    ent_coef: Annotated[float | str, entropy_coefficient] = "auto"
    """Weight of the entropy; auto learns it, starting at 1; auto_0.1 learns it, starting at 0.1."""
    target_entropy: float | None = None
    """Entropy that a learned weight aims at; by default minus the number of action components."""


@dataclass(frozen=True)
class TQCConfig(SACConfig):
    """Truncated quantile critics (Kuznetsov et al., 2020); the defaults of sb3-contrib and SBX."""

    n_critics: Annotated[int, Range(1, 100)] = 2
    """Number of critics; each estimates a distribution of returns (5 in the paper)."""
    n_quantiles: Annotated[int, Range(1, 1000)] = 25
    """Number of quantiles of each critic's distribution."""
    top_quantiles_to_drop_per_net: CountOrZero = 2
    """Number of the largest quantiles that the target leaves out, per critic."""

    def check_together(self, envs: int) -> None:
        super().check_together(envs)
        dropped, name = self.top_quantiles_to_drop_per_net, "top_quantiles_to_drop_per_net"
        need(dropped < self.n_quantiles, name, dropped, f"below n_quantiles {self.n_quantiles}")


@dataclass(frozen=True)
class ClassifyConfig(Hyper):
    """A classifier on one or more devices; Adam, with defaults of common tutorials."""

    defaults: ClassVar[dict[str, Any]] = {"env": "digits", "steps": 1000, "log_every": 10}
    acts: ClassVar[bool] = False

    data: Annotated[str, refuse_empty] | None = None
    """Folder with MNIST's four IDX files, compressed or not; file.npz with arrays x and y (and
    x_test and y_test); or module:function that returns them. By default the bundled 8x8 digits."""
    network: Annotated[str, check_network] = "auto"
    """The network. auto (the built-in convolutional network), or module:function for your own: it
    takes (key, shape of an example) and returns a module that maps one example to a logit for each
    class."""
    size: Literal["small", "large"] = "small"
    """The built-in network: small (conv 6 and 12, batch normalisation) or large (conv 12 and 24,
    dropout)."""
    learning_rate: Schedule = 1e-3
    """Adam's step size; lin_0.001 falls linearly to 0 over the run."""
    batch_size: Count = 1024
    """Examples per gradient step, summed over all devices."""
    l2: NotNegative = 5e-4
    """Weight of half the sum of squared weights in the loss, without biases and other vectors."""
    dropout: Annotated[float, Range(0, 1, below=True)] = 0.5
    """Fraction of the dense layer's outputs that dropout removes (size large)."""

    def check_together(self, envs: int) -> None:
        ok = self.network == BUILT_IN or self.size == type(self).size
        need(ok, "size", self.size, "it is of the built-in network; leave it or network out")


@dataclass(frozen=True)
class OwnConfig(Hyper):
    """A user-defined algorithm, named as module:function; see docs/own-algorithm.md."""

    hp: dict[str, Any] = field(default_factory=dict)
    """Hyper-parameters of the algorithm, NAME=VALUE; may be repeated."""


def algorithm_called(name: str) -> str:
    """Return a built-in algorithm's name in lower case (``PPO`` gives ``ppo``), any other as is."""
    return name.lower() if name.lower() in HYPER else name


def hyper_of(algorithm: str) -> type[Hyper] | None:
    """Return an algorithm's class: `OwnConfig` for ``module:function``, None if it is unknown."""
    return OwnConfig if ":" in algorithm else HYPER.get(algorithm)


HYPER: dict[str, type[Hyper]] = {
    "ppo": PPOConfig, "a2c": A2CConfig, "dqn": DQNConfig, "ddpg": DDPGConfig, "td3": TD3Config,
    "sac": SACConfig, "tqc": TQCConfig, "genetic": GeneticConfig, "classify": ClassifyConfig,
}  # fmt: skip
"""The settings' class of each built-in algorithm."""
