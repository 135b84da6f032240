"""The agents by algorithm. tools/write_agents.py writes this file from the settings' classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from flatout.api import Agent
from flatout.networks.torsos import OwnNetwork

# fmt: off


class RunSettings(TypedDict, total=False):
    """Keyword arguments of every agent and classifier; `help(PPO)` says what they mean."""

    steps: int
    seed: int
    placement: str
    allow_lag: bool
    remeasure: bool
    replan: bool
    devices: int | None
    virtual_devices: int | None
    shards: int
    reduce: Literal["fastest", "ordered"]
    sync: str
    micro_batch: int | None
    precision: Literal["highest", "default"]
    soft_placement: bool
    worker_timeout: float
    run_dir: str | Path | None
    checkpoint_every: int | None
    keep_checkpoints: int
    eval_every: int
    eval_episodes: int
    stop_at_return: float | None
    threshold: Sequence[float] | float
    log_every: int | None
    tensorboard: bool
    wandb: str | None
    metric_names: Literal["flatout", "sb3", "cleanrl"]
    trace: bool
    quiet: bool
    json: bool
    # as Stable-Baselines3 calls them: docs/coming-from.md
    device: str
    verbose: int
    lr: float | str
    total_timesteps: int


class Settings(RunSettings, total=False):
    """Keyword arguments of every agent."""

    policy: str
    policy_kwargs: Mapping[str, Any] | None
    n_envs: int
    num_envs: int
    preset: str
    envs: int
    env_backend: Literal["host", "device", "auto"] | None
    env_kwargs: Mapping[str, Any]
    grayscale: bool
    resize: int | None
    frame_stack: int | None
    frame_skip: int | None
    sticky_actions: float | None
    noop_max: int
    terminal_on_life_loss: bool
    ignore_action_masks: bool
    clip_reward: bool
    hidden: Sequence[int] | int
    activation: Literal["tanh", "relu", "silu", "gelu", "elu"]


class PPOSettings(Settings, total=False):
    """Keyword arguments of `PPO`."""

    learning_rate: float | str
    n_steps: int
    gamma: float
    critic_hidden: Sequence[int] | int | None
    gae_lambda: float
    normalize_advantage: bool
    ent_coef: float
    vf_coef: float
    max_grad_norm: float | None
    log_std_init: float
    normalize_observation: bool
    normalize_reward: bool
    batch_size: int
    n_epochs: int
    clip_range: float | str
    clip_range_vf: float | None
    target_kl: float | None
    critic_learning_rate: float | None
    adam_eps: float
    rollout_episodes: int | None
    replay_trajectories: int


class A2CSettings(Settings, total=False):
    """Keyword arguments of `A2C`."""

    learning_rate: float | str
    n_steps: int
    gamma: float
    critic_hidden: Sequence[int] | int | None
    gae_lambda: float
    normalize_advantage: bool
    ent_coef: float
    vf_coef: float
    max_grad_norm: float | None
    log_std_init: float
    normalize_observation: bool
    normalize_reward: bool
    targets: Literal["returns", "next_reward"]
    optimizer: Literal["rms", "adam"]


class DQNSettings(Settings, total=False):
    """Keyword arguments of `DQN`."""

    learning_rate: float | str
    buffer_size: int
    learning_starts: int
    batch_size: int
    train_freq: int
    gradient_steps: int
    gamma: float
    tau: float
    target_update_interval: int
    n_step: int
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str
    max_grad_norm: float | None
    exploration_fraction: float
    exploration_steps: int | None
    exploration_initial_eps: float
    exploration_final_eps: float
    double: bool
    dueling: bool
    loss: Literal["huber", "mse"]
    optimizer: Literal["adam", "rmsprop", "nesterov"]


class DDPGSettings(Settings, total=False):
    """Keyword arguments of `DDPG`."""

    learning_rate: float | str
    buffer_size: int
    learning_starts: int
    batch_size: int
    train_freq: int
    gradient_steps: int
    gamma: float
    tau: float
    target_update_interval: int
    n_step: int
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str
    max_grad_norm: float | None
    critic_learning_rate: float | None
    critic_hidden: Sequence[int] | int | None
    action_noise: float


class TD3Settings(Settings, total=False):
    """Keyword arguments of `TD3`."""

    learning_rate: float | str
    buffer_size: int
    learning_starts: int
    batch_size: int
    train_freq: int
    gradient_steps: int
    gamma: float
    tau: float
    target_update_interval: int
    n_step: int
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str
    max_grad_norm: float | None
    critic_learning_rate: float | None
    critic_hidden: Sequence[int] | int | None
    action_noise: float
    policy_delay: int
    target_policy_noise: float
    target_noise_clip: float


class SACSettings(Settings, total=False):
    """Keyword arguments of `SAC`."""

    learning_rate: float | str
    buffer_size: int
    learning_starts: int
    batch_size: int
    train_freq: int
    gradient_steps: int
    gamma: float
    tau: float
    target_update_interval: int
    n_step: int
    prioritized: bool
    priority_alpha: float
    priority_beta: float | str
    max_grad_norm: float | None
    critic_learning_rate: float | None
    critic_hidden: Sequence[int] | int | None
    ent_coef: float | str
    target_entropy: float | None


class GeneticSettings(Settings, total=False):
    """Keyword arguments of `Genetic`."""

    rollout_episodes: int
    n_steps: int | None
    elites: int
    noise: float | str


class ClassifierSettings(RunSettings, total=False):
    """Keyword arguments of `Classifier`."""

    size: Literal["small", "large"]
    learning_rate: float | str
    batch_size: int
    l2: float
    dropout: float


class PPO(Agent):
    """Proximal policy optimisation (Schulman et al., 2017); Stable-Baselines3's defaults."""

    algorithm = "ppo"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            **settings: Unpack[PPOSettings],
        ) -> None: ...


class A2C(Agent):
    """Advantage actor-critic (Mnih et al., 2016); Stable-Baselines3's defaults."""

    algorithm = "a2c"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            **settings: Unpack[A2CSettings],
        ) -> None: ...


class DQN(Agent):
    """Deep Q-learning (Mnih et al., 2015); Stable-Baselines3's defaults."""

    algorithm = "dqn"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            **settings: Unpack[DQNSettings],
        ) -> None: ...


class DDPG(Agent):
    """Deep deterministic policy gradient (Lillicrap et al., 2016); Stable-Baselines3's defaults."""

    algorithm = "ddpg"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            **settings: Unpack[DDPGSettings],
        ) -> None: ...


class TD3(Agent):
    """Twin delayed DDPG (Fujimoto et al., 2018); Stable-Baselines3's defaults."""

    algorithm = "td3"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            **settings: Unpack[TD3Settings],
        ) -> None: ...


class SAC(Agent):
    """Soft actor-critic (Haarnoja et al., 2018); Stable-Baselines3's defaults."""

    algorithm = "sac"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            **settings: Unpack[SACSettings],
        ) -> None: ...


class Genetic(Agent):
    """A genetic algorithm without crossover (Such et al., 2017); one member per environment."""

    algorithm = "genetic"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            **settings: Unpack[GeneticSettings],
        ) -> None: ...
