"""The agents by algorithm. tools/write_agents.py writes this file from the settings' classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from flatout.api import Agent
from flatout.networks.torsos import OwnNetwork

# fmt: off


class ClassifierSettings(TypedDict, total=False):
    """Keyword arguments of `Classifier`.

    Args:
        data = None: Folder with MNIST's four IDX files, compressed or not; file.npz with arrays
            x and y (and x_test and y_test); or module:function that returns them. By default
            the bundled 8x8 digits.
        network = 'auto': The network. auto (the built-in convolutional network), or
            module:function for your own: it takes (key, shape of an example) and returns a
            module that maps one example to a logit for each class.
        size = 'small': The built-in network: small (conv 6 and 12, batch normalisation) or
            large (conv 12 and 24, dropout).
        learning_rate = 0.001: Adam's step size; lin_0.001 falls linearly to 0 over the run.
        batch_size = 1024: Examples per gradient step, summed over all devices.
        l2 = 0.0005: Weight of half the sum of squared weights in the loss, without biases and
            other vectors.
        dropout = 0.5: Fraction of the dense layer's outputs that dropout removes (size large).
        steps = 1000: Environment steps in total, summed over environments.
        seed = 0: Seed of every random number of the run.
        placement = 'auto': cpu, gpu, cpu+gpu, auto, or KEY=VALUE pairs such as 'act=cpu
            learn=gpu:0 memory=0.5'.
        allow_lag = False: Let placement auto collect while it learns; acting is then one
            version behind.
        remeasure = False: Let placement auto measure this machine again, even if it has
            measured this run before.
        replan = False: If the run is slower than predicted, measure again at a checkpoint and
            change to a placement that is faster then.
        devices = None: Number of GPUs to learn on (CPU devices if there is no GPU), those with
            the most free memory; short for --placement 'learn=gpu:0,gpu:1,...'.
        virtual_devices = None: Number of CPU devices to simulate, to try a run on several
            devices with one CPU.
        shards = 1: Number of shards of each update, each with its own environments and rows.
            Any number of devices that divides this can carry them, with the same results.
        reduce = 'fastest': How the shards' gradients are summed: fastest (equal to 1e-5 on any
            number of devices) or ordered (equal bit for bit).
        sync = 'every-step': When shards are synchronised: every-step averages the gradients of
            each update, every:K averages the parameters after K separate updates (and at the
            end of each iteration).
        micro_batch = None: Rows of a shard whose gradients are computed at a time and then
            summed: less memory, the same update (not for genetic).
        precision = 'highest': Precision of matrix products on a GPU: highest is full float32,
            so that a GPU learns the same as a CPU; default is the GPU's own (TF32: 10 bits of
            each factor, about 1e-3 relative error), which is faster with large networks only.
            CPUs always compute in float32.
        soft_placement = False: If a named device is missing, run on the devices that exist and
            say so.
        worker_timeout = 60.0: Seconds after which an actor process that has not finished a step
            is restarted.
        ray_address = None: With sampler=cluster, plan, --placement auto, or a sweep on Ray: the
            cluster's HOST:PORT, or auto for one that runs on this machine. By default one is
            started on this machine.
        ray_working_dir = None: With sampler=cluster: a folder that Ray copies to the workers'
            machines, with the code of the environment.
        same_bits = False: With sampler=cluster: refuse machines whose results may differ from
            this machine's in the last bits.
        run_dir = None: Folder of the run; by default runs/ALGORITHM-ENV-SEED-TIME.
        checkpoint_every = None: Steps between checkpoints; by default a tenth of the run. 0
            saves only at the end.
        keep_checkpoints = 3: Number of newest checkpoints to keep.
        eval_every = 0: Steps between evaluations, which choose the best parameters to save. 0
            never evaluates.
        eval_episodes = 10: Episodes per evaluation.
        stop_at_return = None: Stop once the mean return of the last 100 training episodes
            reaches this.
        threshold = (): Record the steps and seconds when the mean return of the last 100
            episodes reaches each.
        log_every = 10: Steps between rows of metrics (at least one iteration); by default 128
            at first, and from 2,048 steps on a sixteenth to an eighth of the steps made so far,
            at most 2,048.
        tensorboard = True: Write TensorBoard events into the run folder.
        wandb = None: Also log to this Weights & Biases project (needs the wandb extra).
        metric_names = 'flatout': Library whose metric names TensorBoard and W&B get;
            metrics.jsonl has Flatout's names.
        trace = False: Write trace.json, a timeline of every span, for Perfetto or
            chrome://tracing.
        quiet = False: Show no live display and no report.
        json = False: Print the summary as JSON, alone on stdout.
    """

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
    ray_address: str | None
    ray_working_dir: str | None
    same_bits: bool
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
    size: Literal["small", "large"]
    learning_rate: float | str
    batch_size: int
    l2: float
    dropout: float
    device: str | None
    verbose: int
    lr: float | str | None
    total_timesteps: int | None


class PPO(Agent):
    """Proximal policy optimisation (Schulman et al., 2017); Stable-Baselines3's defaults.

    Args:
        env = None: a Gymnasium id, module:factory, an environment object, also a
            gymnasium.vector.VectorEnv, a flatout.DeviceEnv, or a function that makes
            environments.
        eval_env = None: another environment with the same spaces, for evaluations during
            training (eval_every); by default one like env, which an object cannot be.
        network = None: a torso's name, a function (key, observation_shape) -> equinox.Module,
            or a dict of such functions by the paths of a nested observation.
        preset = None: tuned settings by name, which the others change.
        learning_rate = 0.0003: The optimiser's step size; lin_0.001 falls linearly to 0 over
            the run, lin_0.001_0.0001 to 0.0001.
        n_steps = 2048: Steps per environment and rollout.
        gamma = 0.99: Discount per step.
        critic_hidden = None: Widths of the critic's hidden layers; None uses those of hidden.
            Not for images, whose actor and critic share one network.
        gae_lambda = 0.95: Lambda of generalised advantage estimation.
        normalize_advantage = True: Centre and scale advantages in each minibatch or update.
        ent_coef = 0.0: Weight of the entropy bonus.
        vf_coef = 0.5: Weight of the value loss.
        max_grad_norm = 0.5: Clip the norm of the whole gradient to this; None does not clip.
        log_std_init = 0.0: Initial log standard deviation of continuous actions.
        normalize_observation = False: Normalise observations by their running mean and variance
            (fixed within a rollout).
        normalize_reward = False: Divide rewards by the running standard deviation of the
            discounted return.
        recurrent = None: A memory of the episode so far, between the network and the heads: a
            gru or lstm cell; None for a policy that sees the newest observation alone.
        recurrent_size = 64: Units of the memory.
        critic_memory = 'shared': Whether the critic of a recurrent policy reads the actor's
            memory (shared), or has a memory of its own (own), and hidden layers too where its
            network has no convolutions.
        batch_size = 64: Transitions per minibatch; must divide n_steps x envs x
            replay_trajectories.
        n_epochs = 10: Passes over each rollout.
        clip_range = 0.2: Clipping of the probability ratio; lin_0.2 falls to 0 over the run.
        clip_range_vf = None: Clip the change of the value to this; None does not clip. The
            larger of the clipped and the unclipped loss counts (as in OpenAI Baselines; Stable-
            Baselines3 uses the clipped one).
        target_kl = None: Stop a rollout's updates once the approximate KL divergence passes 1.5
            times this.
        critic_learning_rate = None: Separate step size for the critic, which falls in the same
            proportion as learning_rate; None uses learning_rate.
        adam_eps = 1e-05: Adam's epsilon.
        rollout_episodes = None: Whole episodes per environment and rollout, instead of n_steps
            steps (padded and masked).
        replay_trajectories = 1: Newest trajectories to learn from, each with the log-
            probabilities of its own policy.
        sequence_length = None: Steps of the sequences that minibatches of a recurrent policy
            consist of, and through which gradients flow; must divide n_steps and batch_size.
            None: n_steps if minibatches hold whole trajectories, else batch_size.
        envs = 1: Number of environments that step together.
        env_backend = None: Where environments step: host (in Python, the default for Gymnasium
            ids), device (compiled, for environments written in JAX), or auto (device if the
            environment or its twin is written in JAX, unless a plan finds the host faster).
        spare_envs = None: all: each environment has a spare that is reset in the background
            while the environment plays its episode, so that steps need not wait for resets;
            memory doubles. 0: none. By default Atari games have spares where they are faster,
            and other environments have none; a run whose steps wait long for resets says so.
        env_kwargs = {}: Arguments of the environment, KEY=VALUE; values as in TOML (size=12,
            flag=true, name="x").
        grayscale = False: Convert RGB image observations to grayscale.
        resize = None: Resize image observations to this many rows and columns.
        frame_stack = None: Number of last observations to stack (images: as channels; vectors:
            one after another); by default 4 for Atari ids and 1 for everything else.
        frame_skip = None: Atari ids only: frames per step, for which the action is repeated.
            The default follows from the id: 4 for ALE/Breakout-v5, drawn from 2 to 4 at each
            step for Breakout-v0 and -v4, and 4 for BreakoutNoFrameskip ids, as with the usual
            wrapper.
        sticky_actions = None: Atari ids only: probability that a frame repeats the previous
            frame's action. The default follows from the id: 0.25 for -v5 and -v0, 0 for -v4.
        noop_max = 30: Atari ids only: an episode starts with a random number of no-ops, less
            than this.
        terminal_on_life_loss = False: Atari ids only: learning treats a lost life as a
            terminal; the episode itself continues.
        ignore_action_masks = False: Train without the environment's action masks, as if every
            action were always allowed.
        clip_reward = False: Learn from the sign of each reward; reported returns use the raw
            rewards.
        hidden = (64, 64): Widths of the hidden layers, of actor and critic unless critic_hidden
            is given.
        activation = 'tanh': Activation function between the hidden layers.
        steps = 100000: Environment steps in total, summed over environments.
        seed = 0: Seed of every random number of the run.
        placement = 'auto': cpu, gpu, cpu+gpu, auto, or KEY=VALUE pairs such as 'act=cpu
            learn=gpu:0 memory=0.5'.
        allow_lag = False: Let placement auto collect while it learns; acting is then one
            version behind.
        remeasure = False: Let placement auto measure this machine again, even if it has
            measured this run before.
        replan = False: If the run is slower than predicted, measure again at a checkpoint and
            change to a placement that is faster then.
        devices = None: Number of GPUs to learn on (CPU devices if there is no GPU), those with
            the most free memory; short for --placement 'learn=gpu:0,gpu:1,...'.
        virtual_devices = None: Number of CPU devices to simulate, to try a run on several
            devices with one CPU.
        shards = 1: Number of shards of each update, each with its own environments and rows.
            Any number of devices that divides this can carry them, with the same results.
        reduce = 'fastest': How the shards' gradients are summed: fastest (equal to 1e-5 on any
            number of devices) or ordered (equal bit for bit).
        sync = 'every-step': When shards are synchronised: every-step averages the gradients of
            each update, every:K averages the parameters after K separate updates (and at the
            end of each iteration).
        micro_batch = None: Rows of a shard whose gradients are computed at a time and then
            summed: less memory, the same update (not for genetic).
        precision = 'highest': Precision of matrix products on a GPU: highest is full float32,
            so that a GPU learns the same as a CPU; default is the GPU's own (TF32: 10 bits of
            each factor, about 1e-3 relative error), which is faster with large networks only.
            CPUs always compute in float32.
        soft_placement = False: If a named device is missing, run on the devices that exist and
            say so.
        worker_timeout = 60.0: Seconds after which an actor process that has not finished a step
            is restarted.
        ray_address = None: With sampler=cluster, plan, --placement auto, or a sweep on Ray: the
            cluster's HOST:PORT, or auto for one that runs on this machine. By default one is
            started on this machine.
        ray_working_dir = None: With sampler=cluster: a folder that Ray copies to the workers'
            machines, with the code of the environment.
        same_bits = False: With sampler=cluster: refuse machines whose results may differ from
            this machine's in the last bits.
        run_dir = None: Folder of the run; by default runs/ALGORITHM-ENV-SEED-TIME.
        checkpoint_every = None: Steps between checkpoints; by default a tenth of the run. 0
            saves only at the end.
        keep_checkpoints = 3: Number of newest checkpoints to keep.
        eval_every = 0: Steps between evaluations, which choose the best parameters to save. 0
            never evaluates.
        eval_episodes = 10: Episodes per evaluation.
        stop_at_return = None: Stop once the mean return of the last 100 training episodes
            reaches this.
        threshold = (): Record the steps and seconds when the mean return of the last 100
            episodes reaches each.
        log_every = None: Steps between rows of metrics (at least one iteration); by default 128
            at first, and from 2,048 steps on a sixteenth to an eighth of the steps made so far,
            at most 2,048.
        tensorboard = True: Write TensorBoard events into the run folder.
        wandb = None: Also log to this Weights & Biases project (needs the wandb extra).
        metric_names = 'flatout': Library whose metric names TensorBoard and W&B get;
            metrics.jsonl has Flatout's names.
        trace = False: Write trace.json, a timeline of every span, for Perfetto or
            chrome://tracing.
        quiet = False: Show no live display and no report.
        json = False: Print the summary as JSON, alone on stdout.
    """

    algorithm = "ppo"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            learning_rate: float | str | Callable[[float], float] = 0.0003,
            n_steps: int = 2048,
            gamma: float = 0.99,
            critic_hidden: Sequence[int] | int | None = None,
            gae_lambda: float = 0.95,
            normalize_advantage: bool = True,
            ent_coef: float = 0.0,
            vf_coef: float = 0.5,
            max_grad_norm: float | None = 0.5,
            log_std_init: float = 0.0,
            normalize_observation: bool = False,
            normalize_reward: bool = False,
            recurrent: Literal["gru", "lstm"] | None = None,
            recurrent_size: int = 64,
            critic_memory: Literal["shared", "own"] = "shared",
            batch_size: int = 64,
            n_epochs: int = 10,
            clip_range: float | str | Callable[[float], float] = 0.2,
            clip_range_vf: float | None = None,
            target_kl: float | None = None,
            critic_learning_rate: float | None = None,
            adam_eps: float = 1e-05,
            rollout_episodes: int | None = None,
            replay_trajectories: int = 1,
            sequence_length: int | None = None,
            envs: int = 1,
            env_backend: Literal["host", "device", "auto"] | None = None,
            spare_envs: Literal["all", "0"] | None = None,
            env_kwargs: Mapping[str, Any] = ...,
            grayscale: bool = False,
            resize: int | None = None,
            frame_stack: int | None = None,
            frame_skip: int | None = None,
            sticky_actions: float | None = None,
            noop_max: int = 30,
            terminal_on_life_loss: bool = False,
            ignore_action_masks: bool = False,
            clip_reward: bool = False,
            hidden: Sequence[int] | int = (64, 64),
            activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = "tanh",
            steps: int = 100000,
            seed: int = 0,
            placement: str = "auto",
            allow_lag: bool = False,
            remeasure: bool = False,
            replan: bool = False,
            devices: int | None = None,
            virtual_devices: int | None = None,
            shards: int = 1,
            reduce: Literal["fastest", "ordered"] = "fastest",
            sync: str = "every-step",
            micro_batch: int | None = None,
            precision: Literal["highest", "default"] = "highest",
            soft_placement: bool = False,
            worker_timeout: float = 60.0,
            ray_address: str | None = None,
            ray_working_dir: str | None = None,
            same_bits: bool = False,
            run_dir: str | Path | None = None,
            checkpoint_every: int | None = None,
            keep_checkpoints: int = 3,
            eval_every: int = 0,
            eval_episodes: int = 10,
            stop_at_return: float | None = None,
            threshold: Sequence[float] | float = (),
            log_every: int | None = None,
            tensorboard: bool = True,
            wandb: str | None = None,
            metric_names: Literal["flatout", "sb3", "cleanrl"] = "flatout",
            trace: bool = False,
            quiet: bool = False,
            json: bool = False,
            policy: str | None = None,
            policy_kwargs: Mapping[str, Any] | None = None,
            device: str | None = None,
            verbose: int = 0,
            lr: float | str | None = None,
            total_timesteps: int | None = None,
            n_envs: int | None = None,
            num_envs: int | None = None,
            preset: str | None = None,
            eval_env: Any = None,
        ) -> None: ...


class A2C(Agent):
    """Advantage actor-critic (Mnih et al., 2016); Stable-Baselines3's defaults.

    Args:
        env = None: a Gymnasium id, module:factory, an environment object, also a
            gymnasium.vector.VectorEnv, a flatout.DeviceEnv, or a function that makes
            environments.
        eval_env = None: another environment with the same spaces, for evaluations during
            training (eval_every); by default one like env, which an object cannot be.
        network = None: a torso's name, a function (key, observation_shape) -> equinox.Module,
            or a dict of such functions by the paths of a nested observation.
        preset = None: tuned settings by name, which the others change.
        learning_rate = 0.0007: The optimiser's step size; lin_0.001 falls linearly to 0 over
            the run, lin_0.001_0.0001 to 0.0001.
        n_steps = 5: Steps per environment and rollout.
        gamma = 0.99: Discount per step.
        critic_hidden = None: Widths of the critic's hidden layers; None uses those of hidden.
            Not for images, whose actor and critic share one network.
        gae_lambda = 1.0: Lambda of generalised advantage estimation.
        normalize_advantage = False: Centre and scale advantages in each minibatch or update.
        ent_coef = 0.0: Weight of the entropy bonus.
        vf_coef = 0.5: Weight of the value loss.
        max_grad_norm = 0.5: Clip the norm of the whole gradient to this; None does not clip.
        log_std_init = 0.0: Initial log standard deviation of continuous actions.
        normalize_observation = False: Normalise observations by their running mean and variance
            (fixed within a rollout).
        normalize_reward = False: Divide rewards by the running standard deviation of the
            discounted return.
        recurrent = None: A memory of the episode so far, between the network and the heads: a
            gru or lstm cell; None for a policy that sees the newest observation alone.
        recurrent_size = 64: Units of the memory.
        critic_memory = 'shared': Whether the critic of a recurrent policy reads the actor's
            memory (shared), or has a memory of its own (own), and hidden layers too where its
            network has no convolutions.
        targets = 'returns': Target of the value function: returns; or next_reward, which is 1
            if a reward follows before the episode ends and else 0 (the advantage is this target
            minus the value).
        optimizer = 'rms': rms (RMSProp, decay 0.99) or adam.
        envs = 1: Number of environments that step together.
        env_backend = None: Where environments step: host (in Python, the default for Gymnasium
            ids), device (compiled, for environments written in JAX), or auto (device if the
            environment or its twin is written in JAX, unless a plan finds the host faster).
        spare_envs = None: all: each environment has a spare that is reset in the background
            while the environment plays its episode, so that steps need not wait for resets;
            memory doubles. 0: none. By default Atari games have spares where they are faster,
            and other environments have none; a run whose steps wait long for resets says so.
        env_kwargs = {}: Arguments of the environment, KEY=VALUE; values as in TOML (size=12,
            flag=true, name="x").
        grayscale = False: Convert RGB image observations to grayscale.
        resize = None: Resize image observations to this many rows and columns.
        frame_stack = None: Number of last observations to stack (images: as channels; vectors:
            one after another); by default 4 for Atari ids and 1 for everything else.
        frame_skip = None: Atari ids only: frames per step, for which the action is repeated.
            The default follows from the id: 4 for ALE/Breakout-v5, drawn from 2 to 4 at each
            step for Breakout-v0 and -v4, and 4 for BreakoutNoFrameskip ids, as with the usual
            wrapper.
        sticky_actions = None: Atari ids only: probability that a frame repeats the previous
            frame's action. The default follows from the id: 0.25 for -v5 and -v0, 0 for -v4.
        noop_max = 30: Atari ids only: an episode starts with a random number of no-ops, less
            than this.
        terminal_on_life_loss = False: Atari ids only: learning treats a lost life as a
            terminal; the episode itself continues.
        ignore_action_masks = False: Train without the environment's action masks, as if every
            action were always allowed.
        clip_reward = False: Learn from the sign of each reward; reported returns use the raw
            rewards.
        hidden = (64, 64): Widths of the hidden layers, of actor and critic unless critic_hidden
            is given.
        activation = 'tanh': Activation function between the hidden layers.
        steps = 100000: Environment steps in total, summed over environments.
        seed = 0: Seed of every random number of the run.
        placement = 'auto': cpu, gpu, cpu+gpu, auto, or KEY=VALUE pairs such as 'act=cpu
            learn=gpu:0 memory=0.5'.
        allow_lag = False: Let placement auto collect while it learns; acting is then one
            version behind.
        remeasure = False: Let placement auto measure this machine again, even if it has
            measured this run before.
        replan = False: If the run is slower than predicted, measure again at a checkpoint and
            change to a placement that is faster then.
        devices = None: Number of GPUs to learn on (CPU devices if there is no GPU), those with
            the most free memory; short for --placement 'learn=gpu:0,gpu:1,...'.
        virtual_devices = None: Number of CPU devices to simulate, to try a run on several
            devices with one CPU.
        shards = 1: Number of shards of each update, each with its own environments and rows.
            Any number of devices that divides this can carry them, with the same results.
        reduce = 'fastest': How the shards' gradients are summed: fastest (equal to 1e-5 on any
            number of devices) or ordered (equal bit for bit).
        sync = 'every-step': When shards are synchronised: every-step averages the gradients of
            each update, every:K averages the parameters after K separate updates (and at the
            end of each iteration).
        micro_batch = None: Rows of a shard whose gradients are computed at a time and then
            summed: less memory, the same update (not for genetic).
        precision = 'highest': Precision of matrix products on a GPU: highest is full float32,
            so that a GPU learns the same as a CPU; default is the GPU's own (TF32: 10 bits of
            each factor, about 1e-3 relative error), which is faster with large networks only.
            CPUs always compute in float32.
        soft_placement = False: If a named device is missing, run on the devices that exist and
            say so.
        worker_timeout = 60.0: Seconds after which an actor process that has not finished a step
            is restarted.
        ray_address = None: With sampler=cluster, plan, --placement auto, or a sweep on Ray: the
            cluster's HOST:PORT, or auto for one that runs on this machine. By default one is
            started on this machine.
        ray_working_dir = None: With sampler=cluster: a folder that Ray copies to the workers'
            machines, with the code of the environment.
        same_bits = False: With sampler=cluster: refuse machines whose results may differ from
            this machine's in the last bits.
        run_dir = None: Folder of the run; by default runs/ALGORITHM-ENV-SEED-TIME.
        checkpoint_every = None: Steps between checkpoints; by default a tenth of the run. 0
            saves only at the end.
        keep_checkpoints = 3: Number of newest checkpoints to keep.
        eval_every = 0: Steps between evaluations, which choose the best parameters to save. 0
            never evaluates.
        eval_episodes = 10: Episodes per evaluation.
        stop_at_return = None: Stop once the mean return of the last 100 training episodes
            reaches this.
        threshold = (): Record the steps and seconds when the mean return of the last 100
            episodes reaches each.
        log_every = None: Steps between rows of metrics (at least one iteration); by default 128
            at first, and from 2,048 steps on a sixteenth to an eighth of the steps made so far,
            at most 2,048.
        tensorboard = True: Write TensorBoard events into the run folder.
        wandb = None: Also log to this Weights & Biases project (needs the wandb extra).
        metric_names = 'flatout': Library whose metric names TensorBoard and W&B get;
            metrics.jsonl has Flatout's names.
        trace = False: Write trace.json, a timeline of every span, for Perfetto or
            chrome://tracing.
        quiet = False: Show no live display and no report.
        json = False: Print the summary as JSON, alone on stdout.
    """

    algorithm = "a2c"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            learning_rate: float | str | Callable[[float], float] = 0.0007,
            n_steps: int = 5,
            gamma: float = 0.99,
            critic_hidden: Sequence[int] | int | None = None,
            gae_lambda: float = 1.0,
            normalize_advantage: bool = False,
            ent_coef: float = 0.0,
            vf_coef: float = 0.5,
            max_grad_norm: float | None = 0.5,
            log_std_init: float = 0.0,
            normalize_observation: bool = False,
            normalize_reward: bool = False,
            recurrent: Literal["gru", "lstm"] | None = None,
            recurrent_size: int = 64,
            critic_memory: Literal["shared", "own"] = "shared",
            targets: Literal["returns", "next_reward"] = "returns",
            optimizer: Literal["rms", "adam"] = "rms",
            envs: int = 1,
            env_backend: Literal["host", "device", "auto"] | None = None,
            spare_envs: Literal["all", "0"] | None = None,
            env_kwargs: Mapping[str, Any] = ...,
            grayscale: bool = False,
            resize: int | None = None,
            frame_stack: int | None = None,
            frame_skip: int | None = None,
            sticky_actions: float | None = None,
            noop_max: int = 30,
            terminal_on_life_loss: bool = False,
            ignore_action_masks: bool = False,
            clip_reward: bool = False,
            hidden: Sequence[int] | int = (64, 64),
            activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = "tanh",
            steps: int = 100000,
            seed: int = 0,
            placement: str = "auto",
            allow_lag: bool = False,
            remeasure: bool = False,
            replan: bool = False,
            devices: int | None = None,
            virtual_devices: int | None = None,
            shards: int = 1,
            reduce: Literal["fastest", "ordered"] = "fastest",
            sync: str = "every-step",
            micro_batch: int | None = None,
            precision: Literal["highest", "default"] = "highest",
            soft_placement: bool = False,
            worker_timeout: float = 60.0,
            ray_address: str | None = None,
            ray_working_dir: str | None = None,
            same_bits: bool = False,
            run_dir: str | Path | None = None,
            checkpoint_every: int | None = None,
            keep_checkpoints: int = 3,
            eval_every: int = 0,
            eval_episodes: int = 10,
            stop_at_return: float | None = None,
            threshold: Sequence[float] | float = (),
            log_every: int | None = None,
            tensorboard: bool = True,
            wandb: str | None = None,
            metric_names: Literal["flatout", "sb3", "cleanrl"] = "flatout",
            trace: bool = False,
            quiet: bool = False,
            json: bool = False,
            policy: str | None = None,
            policy_kwargs: Mapping[str, Any] | None = None,
            device: str | None = None,
            verbose: int = 0,
            lr: float | str | None = None,
            total_timesteps: int | None = None,
            n_envs: int | None = None,
            num_envs: int | None = None,
            preset: str | None = None,
            eval_env: Any = None,
        ) -> None: ...


class DQN(Agent):
    """Deep Q-learning (Mnih et al., 2015); Stable-Baselines3's defaults.

    Args:
        env = None: a Gymnasium id, module:factory, an environment object, also a
            gymnasium.vector.VectorEnv, a flatout.DeviceEnv, or a function that makes
            environments.
        eval_env = None: another environment with the same spaces, for evaluations during
            training (eval_every); by default one like env, which an object cannot be.
        network = None: a torso's name, a function (key, observation_shape) -> equinox.Module,
            or a dict of such functions by the paths of a nested observation.
        preset = None: tuned settings by name, which the others change.
        learning_rate = 0.0001: The optimiser's step size; lin_0.001 falls linearly to 0 over
            the run.
        buffer_size = 1000000: Transitions that the replay buffer holds, summed over all
            environments.
        learning_starts = 100: Environment steps with random actions before the first update.
        batch_size = 32: Transitions per update.
        train_freq = 4: Environment steps, summed over all environments, per round of
            gradient_steps updates.
        gradient_steps = 1: Updates per train_freq environment steps.
        gamma = 0.99: Discount per step.
        tau = 1.0: Fraction by which the target networks move towards the online ones; 1 copies
            them.
        target_update_interval = 10000: Interval between moves of the target networks (dqn: in
            environment steps; others: in updates of the actor).
        n_step = 1: Number of rewards that are summed before the target bootstraps from a value.
        prioritized = False: Sample by the size of the last TD error (Schaul et al., 2016)
            instead of uniformly.
        priority_alpha = 0.6: Exponent of the priorities; 0 samples uniformly.
        priority_beta = 'lin_0.4_1.0': Exponent of the importance weights; by default it rises
            linearly to 1 over the run.
        hindsight = 0: For goal environments: of every hindsight + 1 sampled transitions, this
            many get a goal that their episode achieved later, with its rewards (Andrychowicz et
            al., 2017, who use 4). 0: none.
        max_grad_norm = 10.0: Clip the norm of the whole gradient to this; None does not clip.
        exploration_fraction = 0.1: Fraction of the run's steps over which epsilon falls
            linearly.
        exploration_steps = None: Environment steps over which epsilon falls linearly; replaces
            exploration_fraction if set.
        exploration_initial_eps = 1.0: Epsilon, the probability of a random action, at the
            start.
        exploration_final_eps = 0.05: Epsilon at the end of its fall.
        double = False: Choose the target's next action with the online network (van Hasselt et
            al., 2016).
        dueling = False: Put a value head and an advantage head on the last hidden layer (after
            Wang et al., 2016, whose two streams have separate hidden layers).
        loss = 'huber': Loss of the temporal-difference error: huber (quadratic up to 1, linear
            beyond) or mse.
        optimizer = 'adam': adam; rmsprop (centred, as in Mnih et al., 2015); nesterov (momentum
            0.95).
        envs = 1: Number of environments that step together.
        env_backend = None: Where environments step: host (in Python, the default for Gymnasium
            ids), device (compiled, for environments written in JAX), or auto (device if the
            environment or its twin is written in JAX, unless a plan finds the host faster).
        spare_envs = None: all: each environment has a spare that is reset in the background
            while the environment plays its episode, so that steps need not wait for resets;
            memory doubles. 0: none. By default Atari games have spares where they are faster,
            and other environments have none; a run whose steps wait long for resets says so.
        env_kwargs = {}: Arguments of the environment, KEY=VALUE; values as in TOML (size=12,
            flag=true, name="x").
        grayscale = False: Convert RGB image observations to grayscale.
        resize = None: Resize image observations to this many rows and columns.
        frame_stack = None: Number of last observations to stack (images: as channels; vectors:
            one after another); by default 4 for Atari ids and 1 for everything else.
        frame_skip = None: Atari ids only: frames per step, for which the action is repeated.
            The default follows from the id: 4 for ALE/Breakout-v5, drawn from 2 to 4 at each
            step for Breakout-v0 and -v4, and 4 for BreakoutNoFrameskip ids, as with the usual
            wrapper.
        sticky_actions = None: Atari ids only: probability that a frame repeats the previous
            frame's action. The default follows from the id: 0.25 for -v5 and -v0, 0 for -v4.
        noop_max = 30: Atari ids only: an episode starts with a random number of no-ops, less
            than this.
        terminal_on_life_loss = False: Atari ids only: learning treats a lost life as a
            terminal; the episode itself continues.
        ignore_action_masks = False: Train without the environment's action masks, as if every
            action were always allowed.
        clip_reward = False: Learn from the sign of each reward; reported returns use the raw
            rewards.
        hidden = (64, 64): Widths of the hidden layers, of actor and critic unless critic_hidden
            is given.
        activation = 'relu': Activation function between the hidden layers.
        steps = 100000: Environment steps in total, summed over environments.
        seed = 0: Seed of every random number of the run.
        placement = 'auto': cpu, gpu, cpu+gpu, auto, or KEY=VALUE pairs such as 'act=cpu
            learn=gpu:0 memory=0.5'.
        allow_lag = False: Let placement auto collect while it learns; acting is then one
            version behind.
        remeasure = False: Let placement auto measure this machine again, even if it has
            measured this run before.
        replan = False: If the run is slower than predicted, measure again at a checkpoint and
            change to a placement that is faster then.
        devices = None: Number of GPUs to learn on (CPU devices if there is no GPU), those with
            the most free memory; short for --placement 'learn=gpu:0,gpu:1,...'.
        virtual_devices = None: Number of CPU devices to simulate, to try a run on several
            devices with one CPU.
        shards = 1: Number of shards of each update, each with its own environments and rows.
            Any number of devices that divides this can carry them, with the same results.
        reduce = 'fastest': How the shards' gradients are summed: fastest (equal to 1e-5 on any
            number of devices) or ordered (equal bit for bit).
        sync = 'every-step': When shards are synchronised: every-step averages the gradients of
            each update, every:K averages the parameters after K separate updates (and at the
            end of each iteration).
        micro_batch = None: Rows of a shard whose gradients are computed at a time and then
            summed: less memory, the same update (not for genetic).
        precision = 'highest': Precision of matrix products on a GPU: highest is full float32,
            so that a GPU learns the same as a CPU; default is the GPU's own (TF32: 10 bits of
            each factor, about 1e-3 relative error), which is faster with large networks only.
            CPUs always compute in float32.
        soft_placement = False: If a named device is missing, run on the devices that exist and
            say so.
        worker_timeout = 60.0: Seconds after which an actor process that has not finished a step
            is restarted.
        ray_address = None: With sampler=cluster, plan, --placement auto, or a sweep on Ray: the
            cluster's HOST:PORT, or auto for one that runs on this machine. By default one is
            started on this machine.
        ray_working_dir = None: With sampler=cluster: a folder that Ray copies to the workers'
            machines, with the code of the environment.
        same_bits = False: With sampler=cluster: refuse machines whose results may differ from
            this machine's in the last bits.
        run_dir = None: Folder of the run; by default runs/ALGORITHM-ENV-SEED-TIME.
        checkpoint_every = None: Steps between checkpoints; by default a tenth of the run. 0
            saves only at the end.
        keep_checkpoints = 3: Number of newest checkpoints to keep.
        eval_every = 0: Steps between evaluations, which choose the best parameters to save. 0
            never evaluates.
        eval_episodes = 10: Episodes per evaluation.
        stop_at_return = None: Stop once the mean return of the last 100 training episodes
            reaches this.
        threshold = (): Record the steps and seconds when the mean return of the last 100
            episodes reaches each.
        log_every = None: Steps between rows of metrics (at least one iteration); by default 128
            at first, and from 2,048 steps on a sixteenth to an eighth of the steps made so far,
            at most 2,048.
        tensorboard = True: Write TensorBoard events into the run folder.
        wandb = None: Also log to this Weights & Biases project (needs the wandb extra).
        metric_names = 'flatout': Library whose metric names TensorBoard and W&B get;
            metrics.jsonl has Flatout's names.
        trace = False: Write trace.json, a timeline of every span, for Perfetto or
            chrome://tracing.
        quiet = False: Show no live display and no report.
        json = False: Print the summary as JSON, alone on stdout.
    """

    algorithm = "dqn"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            learning_rate: float | str | Callable[[float], float] = 0.0001,
            buffer_size: int = 1000000,
            learning_starts: int = 100,
            batch_size: int = 32,
            train_freq: int | tuple[int, str] = 4,
            gradient_steps: int = 1,
            gamma: float = 0.99,
            tau: float = 1.0,
            target_update_interval: int = 10000,
            n_step: int = 1,
            prioritized: bool = False,
            priority_alpha: float = 0.6,
            priority_beta: float | str = "lin_0.4_1.0",
            hindsight: int = 0,
            max_grad_norm: float | None = 10.0,
            exploration_fraction: float = 0.1,
            exploration_steps: int | None = None,
            exploration_initial_eps: float = 1.0,
            exploration_final_eps: float = 0.05,
            double: bool = False,
            dueling: bool = False,
            loss: Literal["huber", "mse"] = "huber",
            optimizer: Literal["adam", "rmsprop", "nesterov"] = "adam",
            envs: int = 1,
            env_backend: Literal["host", "device", "auto"] | None = None,
            spare_envs: Literal["all", "0"] | None = None,
            env_kwargs: Mapping[str, Any] = ...,
            grayscale: bool = False,
            resize: int | None = None,
            frame_stack: int | None = None,
            frame_skip: int | None = None,
            sticky_actions: float | None = None,
            noop_max: int = 30,
            terminal_on_life_loss: bool = False,
            ignore_action_masks: bool = False,
            clip_reward: bool = False,
            hidden: Sequence[int] | int = (64, 64),
            activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = "relu",
            steps: int = 100000,
            seed: int = 0,
            placement: str = "auto",
            allow_lag: bool = False,
            remeasure: bool = False,
            replan: bool = False,
            devices: int | None = None,
            virtual_devices: int | None = None,
            shards: int = 1,
            reduce: Literal["fastest", "ordered"] = "fastest",
            sync: str = "every-step",
            micro_batch: int | None = None,
            precision: Literal["highest", "default"] = "highest",
            soft_placement: bool = False,
            worker_timeout: float = 60.0,
            ray_address: str | None = None,
            ray_working_dir: str | None = None,
            same_bits: bool = False,
            run_dir: str | Path | None = None,
            checkpoint_every: int | None = None,
            keep_checkpoints: int = 3,
            eval_every: int = 0,
            eval_episodes: int = 10,
            stop_at_return: float | None = None,
            threshold: Sequence[float] | float = (),
            log_every: int | None = None,
            tensorboard: bool = True,
            wandb: str | None = None,
            metric_names: Literal["flatout", "sb3", "cleanrl"] = "flatout",
            trace: bool = False,
            quiet: bool = False,
            json: bool = False,
            policy: str | None = None,
            policy_kwargs: Mapping[str, Any] | None = None,
            device: str | None = None,
            verbose: int = 0,
            lr: float | str | None = None,
            total_timesteps: int | None = None,
            n_envs: int | None = None,
            num_envs: int | None = None,
            preset: str | None = None,
            eval_env: Any = None,
        ) -> None: ...


class DDPG(Agent):
    """Deep deterministic policy gradient (Lillicrap et al., 2016); Stable-Baselines3's defaults.

    Args:
        env = None: a Gymnasium id, module:factory, an environment object, also a
            gymnasium.vector.VectorEnv, a flatout.DeviceEnv, or a function that makes
            environments.
        eval_env = None: another environment with the same spaces, for evaluations during
            training (eval_every); by default one like env, which an object cannot be.
        network = None: a torso's name, a function (key, observation_shape) -> equinox.Module,
            or a dict of such functions by the paths of a nested observation.
        preset = None: tuned settings by name, which the others change.
        learning_rate = 0.001: The optimiser's step size; lin_0.001 falls linearly to 0 over the
            run.
        buffer_size = 1000000: Transitions that the replay buffer holds, summed over all
            environments.
        learning_starts = 100: Environment steps with random actions before the first update.
        batch_size = 256: Transitions per update.
        train_freq = 1: Environment steps, summed over all environments, per round of
            gradient_steps updates.
        gradient_steps = 1: Updates per train_freq environment steps.
        gamma = 0.99: Discount per step.
        tau = 0.005: Fraction by which the target networks move towards the online ones; 1
            copies them.
        target_update_interval = 1: Interval between moves of the target networks (dqn: in
            environment steps; others: in updates of the actor).
        n_step = 1: Number of rewards that are summed before the target bootstraps from a value.
        prioritized = False: Sample by the size of the last TD error (Schaul et al., 2016)
            instead of uniformly.
        priority_alpha = 0.6: Exponent of the priorities; 0 samples uniformly.
        priority_beta = 'lin_0.4_1.0': Exponent of the importance weights; by default it rises
            linearly to 1 over the run.
        hindsight = 0: For goal environments: of every hindsight + 1 sampled transitions, this
            many get a goal that their episode achieved later, with its rewards (Andrychowicz et
            al., 2017, who use 4). 0: none.
        max_grad_norm = None: Clip the norm of the whole gradient to this; None does not clip.
        critic_learning_rate = None: Separate step size for the critic, which falls in the same
            proportion as learning_rate; None uses learning_rate.
        critic_hidden = None: Widths of the critic's hidden layers; None uses those of hidden.
        action_noise = 0.0: Standard deviation of Gaussian exploration noise, in units of half
            the action's range.
        envs = 1: Number of environments that step together.
        env_backend = None: Where environments step: host (in Python, the default for Gymnasium
            ids), device (compiled, for environments written in JAX), or auto (device if the
            environment or its twin is written in JAX, unless a plan finds the host faster).
        spare_envs = None: all: each environment has a spare that is reset in the background
            while the environment plays its episode, so that steps need not wait for resets;
            memory doubles. 0: none. By default Atari games have spares where they are faster,
            and other environments have none; a run whose steps wait long for resets says so.
        env_kwargs = {}: Arguments of the environment, KEY=VALUE; values as in TOML (size=12,
            flag=true, name="x").
        grayscale = False: Convert RGB image observations to grayscale.
        resize = None: Resize image observations to this many rows and columns.
        frame_stack = None: Number of last observations to stack (images: as channels; vectors:
            one after another); by default 4 for Atari ids and 1 for everything else.
        frame_skip = None: Atari ids only: frames per step, for which the action is repeated.
            The default follows from the id: 4 for ALE/Breakout-v5, drawn from 2 to 4 at each
            step for Breakout-v0 and -v4, and 4 for BreakoutNoFrameskip ids, as with the usual
            wrapper.
        sticky_actions = None: Atari ids only: probability that a frame repeats the previous
            frame's action. The default follows from the id: 0.25 for -v5 and -v0, 0 for -v4.
        noop_max = 30: Atari ids only: an episode starts with a random number of no-ops, less
            than this.
        terminal_on_life_loss = False: Atari ids only: learning treats a lost life as a
            terminal; the episode itself continues.
        ignore_action_masks = False: Train without the environment's action masks, as if every
            action were always allowed.
        clip_reward = False: Learn from the sign of each reward; reported returns use the raw
            rewards.
        hidden = (400, 300): Widths of the hidden layers, of actor and critic unless
            critic_hidden is given.
        activation = 'relu': Activation function between the hidden layers.
        steps = 100000: Environment steps in total, summed over environments.
        seed = 0: Seed of every random number of the run.
        placement = 'auto': cpu, gpu, cpu+gpu, auto, or KEY=VALUE pairs such as 'act=cpu
            learn=gpu:0 memory=0.5'.
        allow_lag = False: Let placement auto collect while it learns; acting is then one
            version behind.
        remeasure = False: Let placement auto measure this machine again, even if it has
            measured this run before.
        replan = False: If the run is slower than predicted, measure again at a checkpoint and
            change to a placement that is faster then.
        devices = None: Number of GPUs to learn on (CPU devices if there is no GPU), those with
            the most free memory; short for --placement 'learn=gpu:0,gpu:1,...'.
        virtual_devices = None: Number of CPU devices to simulate, to try a run on several
            devices with one CPU.
        shards = 1: Number of shards of each update, each with its own environments and rows.
            Any number of devices that divides this can carry them, with the same results.
        reduce = 'fastest': How the shards' gradients are summed: fastest (equal to 1e-5 on any
            number of devices) or ordered (equal bit for bit).
        sync = 'every-step': When shards are synchronised: every-step averages the gradients of
            each update, every:K averages the parameters after K separate updates (and at the
            end of each iteration).
        micro_batch = None: Rows of a shard whose gradients are computed at a time and then
            summed: less memory, the same update (not for genetic).
        precision = 'highest': Precision of matrix products on a GPU: highest is full float32,
            so that a GPU learns the same as a CPU; default is the GPU's own (TF32: 10 bits of
            each factor, about 1e-3 relative error), which is faster with large networks only.
            CPUs always compute in float32.
        soft_placement = False: If a named device is missing, run on the devices that exist and
            say so.
        worker_timeout = 60.0: Seconds after which an actor process that has not finished a step
            is restarted.
        ray_address = None: With sampler=cluster, plan, --placement auto, or a sweep on Ray: the
            cluster's HOST:PORT, or auto for one that runs on this machine. By default one is
            started on this machine.
        ray_working_dir = None: With sampler=cluster: a folder that Ray copies to the workers'
            machines, with the code of the environment.
        same_bits = False: With sampler=cluster: refuse machines whose results may differ from
            this machine's in the last bits.
        run_dir = None: Folder of the run; by default runs/ALGORITHM-ENV-SEED-TIME.
        checkpoint_every = None: Steps between checkpoints; by default a tenth of the run. 0
            saves only at the end.
        keep_checkpoints = 3: Number of newest checkpoints to keep.
        eval_every = 0: Steps between evaluations, which choose the best parameters to save. 0
            never evaluates.
        eval_episodes = 10: Episodes per evaluation.
        stop_at_return = None: Stop once the mean return of the last 100 training episodes
            reaches this.
        threshold = (): Record the steps and seconds when the mean return of the last 100
            episodes reaches each.
        log_every = None: Steps between rows of metrics (at least one iteration); by default 128
            at first, and from 2,048 steps on a sixteenth to an eighth of the steps made so far,
            at most 2,048.
        tensorboard = True: Write TensorBoard events into the run folder.
        wandb = None: Also log to this Weights & Biases project (needs the wandb extra).
        metric_names = 'flatout': Library whose metric names TensorBoard and W&B get;
            metrics.jsonl has Flatout's names.
        trace = False: Write trace.json, a timeline of every span, for Perfetto or
            chrome://tracing.
        quiet = False: Show no live display and no report.
        json = False: Print the summary as JSON, alone on stdout.
    """

    algorithm = "ddpg"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            learning_rate: float | str | Callable[[float], float] = 0.001,
            buffer_size: int = 1000000,
            learning_starts: int = 100,
            batch_size: int = 256,
            train_freq: int | tuple[int, str] = 1,
            gradient_steps: int = 1,
            gamma: float = 0.99,
            tau: float = 0.005,
            target_update_interval: int = 1,
            n_step: int = 1,
            prioritized: bool = False,
            priority_alpha: float = 0.6,
            priority_beta: float | str = "lin_0.4_1.0",
            hindsight: int = 0,
            max_grad_norm: float | None = None,
            critic_learning_rate: float | None = None,
            critic_hidden: Sequence[int] | int | None = None,
            action_noise: float | Any = 0.0,
            envs: int = 1,
            env_backend: Literal["host", "device", "auto"] | None = None,
            spare_envs: Literal["all", "0"] | None = None,
            env_kwargs: Mapping[str, Any] = ...,
            grayscale: bool = False,
            resize: int | None = None,
            frame_stack: int | None = None,
            frame_skip: int | None = None,
            sticky_actions: float | None = None,
            noop_max: int = 30,
            terminal_on_life_loss: bool = False,
            ignore_action_masks: bool = False,
            clip_reward: bool = False,
            hidden: Sequence[int] | int = (400, 300),
            activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = "relu",
            steps: int = 100000,
            seed: int = 0,
            placement: str = "auto",
            allow_lag: bool = False,
            remeasure: bool = False,
            replan: bool = False,
            devices: int | None = None,
            virtual_devices: int | None = None,
            shards: int = 1,
            reduce: Literal["fastest", "ordered"] = "fastest",
            sync: str = "every-step",
            micro_batch: int | None = None,
            precision: Literal["highest", "default"] = "highest",
            soft_placement: bool = False,
            worker_timeout: float = 60.0,
            ray_address: str | None = None,
            ray_working_dir: str | None = None,
            same_bits: bool = False,
            run_dir: str | Path | None = None,
            checkpoint_every: int | None = None,
            keep_checkpoints: int = 3,
            eval_every: int = 0,
            eval_episodes: int = 10,
            stop_at_return: float | None = None,
            threshold: Sequence[float] | float = (),
            log_every: int | None = None,
            tensorboard: bool = True,
            wandb: str | None = None,
            metric_names: Literal["flatout", "sb3", "cleanrl"] = "flatout",
            trace: bool = False,
            quiet: bool = False,
            json: bool = False,
            policy: str | None = None,
            policy_kwargs: Mapping[str, Any] | None = None,
            device: str | None = None,
            verbose: int = 0,
            lr: float | str | None = None,
            total_timesteps: int | None = None,
            n_envs: int | None = None,
            num_envs: int | None = None,
            preset: str | None = None,
            eval_env: Any = None,
        ) -> None: ...


class TD3(Agent):
    """Twin delayed DDPG (Fujimoto et al., 2018); Stable-Baselines3's defaults.

    Args:
        env = None: a Gymnasium id, module:factory, an environment object, also a
            gymnasium.vector.VectorEnv, a flatout.DeviceEnv, or a function that makes
            environments.
        eval_env = None: another environment with the same spaces, for evaluations during
            training (eval_every); by default one like env, which an object cannot be.
        network = None: a torso's name, a function (key, observation_shape) -> equinox.Module,
            or a dict of such functions by the paths of a nested observation.
        preset = None: tuned settings by name, which the others change.
        learning_rate = 0.001: The optimiser's step size; lin_0.001 falls linearly to 0 over the
            run.
        buffer_size = 1000000: Transitions that the replay buffer holds, summed over all
            environments.
        learning_starts = 100: Environment steps with random actions before the first update.
        batch_size = 256: Transitions per update.
        train_freq = 1: Environment steps, summed over all environments, per round of
            gradient_steps updates.
        gradient_steps = 1: Updates per train_freq environment steps.
        gamma = 0.99: Discount per step.
        tau = 0.005: Fraction by which the target networks move towards the online ones; 1
            copies them.
        target_update_interval = 1: Interval between moves of the target networks (dqn: in
            environment steps; others: in updates of the actor).
        n_step = 1: Number of rewards that are summed before the target bootstraps from a value.
        prioritized = False: Sample by the size of the last TD error (Schaul et al., 2016)
            instead of uniformly.
        priority_alpha = 0.6: Exponent of the priorities; 0 samples uniformly.
        priority_beta = 'lin_0.4_1.0': Exponent of the importance weights; by default it rises
            linearly to 1 over the run.
        hindsight = 0: For goal environments: of every hindsight + 1 sampled transitions, this
            many get a goal that their episode achieved later, with its rewards (Andrychowicz et
            al., 2017, who use 4). 0: none.
        max_grad_norm = None: Clip the norm of the whole gradient to this; None does not clip.
        critic_learning_rate = None: Separate step size for the critic, which falls in the same
            proportion as learning_rate; None uses learning_rate.
        critic_hidden = None: Widths of the critic's hidden layers; None uses those of hidden.
        action_noise = 0.0: Standard deviation of Gaussian exploration noise, in units of half
            the action's range.
        policy_delay = 2: Updates of the critics per update of the actor and the target
            networks.
        target_policy_noise = 0.2: Standard deviation of the noise on target actions, in the
            unit of action_noise.
        target_noise_clip = 0.5: Clip the noise on target actions to this, in the same unit.
        envs = 1: Number of environments that step together.
        env_backend = None: Where environments step: host (in Python, the default for Gymnasium
            ids), device (compiled, for environments written in JAX), or auto (device if the
            environment or its twin is written in JAX, unless a plan finds the host faster).
        spare_envs = None: all: each environment has a spare that is reset in the background
            while the environment plays its episode, so that steps need not wait for resets;
            memory doubles. 0: none. By default Atari games have spares where they are faster,
            and other environments have none; a run whose steps wait long for resets says so.
        env_kwargs = {}: Arguments of the environment, KEY=VALUE; values as in TOML (size=12,
            flag=true, name="x").
        grayscale = False: Convert RGB image observations to grayscale.
        resize = None: Resize image observations to this many rows and columns.
        frame_stack = None: Number of last observations to stack (images: as channels; vectors:
            one after another); by default 4 for Atari ids and 1 for everything else.
        frame_skip = None: Atari ids only: frames per step, for which the action is repeated.
            The default follows from the id: 4 for ALE/Breakout-v5, drawn from 2 to 4 at each
            step for Breakout-v0 and -v4, and 4 for BreakoutNoFrameskip ids, as with the usual
            wrapper.
        sticky_actions = None: Atari ids only: probability that a frame repeats the previous
            frame's action. The default follows from the id: 0.25 for -v5 and -v0, 0 for -v4.
        noop_max = 30: Atari ids only: an episode starts with a random number of no-ops, less
            than this.
        terminal_on_life_loss = False: Atari ids only: learning treats a lost life as a
            terminal; the episode itself continues.
        ignore_action_masks = False: Train without the environment's action masks, as if every
            action were always allowed.
        clip_reward = False: Learn from the sign of each reward; reported returns use the raw
            rewards.
        hidden = (400, 300): Widths of the hidden layers, of actor and critic unless
            critic_hidden is given.
        activation = 'relu': Activation function between the hidden layers.
        steps = 100000: Environment steps in total, summed over environments.
        seed = 0: Seed of every random number of the run.
        placement = 'auto': cpu, gpu, cpu+gpu, auto, or KEY=VALUE pairs such as 'act=cpu
            learn=gpu:0 memory=0.5'.
        allow_lag = False: Let placement auto collect while it learns; acting is then one
            version behind.
        remeasure = False: Let placement auto measure this machine again, even if it has
            measured this run before.
        replan = False: If the run is slower than predicted, measure again at a checkpoint and
            change to a placement that is faster then.
        devices = None: Number of GPUs to learn on (CPU devices if there is no GPU), those with
            the most free memory; short for --placement 'learn=gpu:0,gpu:1,...'.
        virtual_devices = None: Number of CPU devices to simulate, to try a run on several
            devices with one CPU.
        shards = 1: Number of shards of each update, each with its own environments and rows.
            Any number of devices that divides this can carry them, with the same results.
        reduce = 'fastest': How the shards' gradients are summed: fastest (equal to 1e-5 on any
            number of devices) or ordered (equal bit for bit).
        sync = 'every-step': When shards are synchronised: every-step averages the gradients of
            each update, every:K averages the parameters after K separate updates (and at the
            end of each iteration).
        micro_batch = None: Rows of a shard whose gradients are computed at a time and then
            summed: less memory, the same update (not for genetic).
        precision = 'highest': Precision of matrix products on a GPU: highest is full float32,
            so that a GPU learns the same as a CPU; default is the GPU's own (TF32: 10 bits of
            each factor, about 1e-3 relative error), which is faster with large networks only.
            CPUs always compute in float32.
        soft_placement = False: If a named device is missing, run on the devices that exist and
            say so.
        worker_timeout = 60.0: Seconds after which an actor process that has not finished a step
            is restarted.
        ray_address = None: With sampler=cluster, plan, --placement auto, or a sweep on Ray: the
            cluster's HOST:PORT, or auto for one that runs on this machine. By default one is
            started on this machine.
        ray_working_dir = None: With sampler=cluster: a folder that Ray copies to the workers'
            machines, with the code of the environment.
        same_bits = False: With sampler=cluster: refuse machines whose results may differ from
            this machine's in the last bits.
        run_dir = None: Folder of the run; by default runs/ALGORITHM-ENV-SEED-TIME.
        checkpoint_every = None: Steps between checkpoints; by default a tenth of the run. 0
            saves only at the end.
        keep_checkpoints = 3: Number of newest checkpoints to keep.
        eval_every = 0: Steps between evaluations, which choose the best parameters to save. 0
            never evaluates.
        eval_episodes = 10: Episodes per evaluation.
        stop_at_return = None: Stop once the mean return of the last 100 training episodes
            reaches this.
        threshold = (): Record the steps and seconds when the mean return of the last 100
            episodes reaches each.
        log_every = None: Steps between rows of metrics (at least one iteration); by default 128
            at first, and from 2,048 steps on a sixteenth to an eighth of the steps made so far,
            at most 2,048.
        tensorboard = True: Write TensorBoard events into the run folder.
        wandb = None: Also log to this Weights & Biases project (needs the wandb extra).
        metric_names = 'flatout': Library whose metric names TensorBoard and W&B get;
            metrics.jsonl has Flatout's names.
        trace = False: Write trace.json, a timeline of every span, for Perfetto or
            chrome://tracing.
        quiet = False: Show no live display and no report.
        json = False: Print the summary as JSON, alone on stdout.
    """

    algorithm = "td3"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            learning_rate: float | str | Callable[[float], float] = 0.001,
            buffer_size: int = 1000000,
            learning_starts: int = 100,
            batch_size: int = 256,
            train_freq: int | tuple[int, str] = 1,
            gradient_steps: int = 1,
            gamma: float = 0.99,
            tau: float = 0.005,
            target_update_interval: int = 1,
            n_step: int = 1,
            prioritized: bool = False,
            priority_alpha: float = 0.6,
            priority_beta: float | str = "lin_0.4_1.0",
            hindsight: int = 0,
            max_grad_norm: float | None = None,
            critic_learning_rate: float | None = None,
            critic_hidden: Sequence[int] | int | None = None,
            action_noise: float | Any = 0.0,
            policy_delay: int = 2,
            target_policy_noise: float = 0.2,
            target_noise_clip: float = 0.5,
            envs: int = 1,
            env_backend: Literal["host", "device", "auto"] | None = None,
            spare_envs: Literal["all", "0"] | None = None,
            env_kwargs: Mapping[str, Any] = ...,
            grayscale: bool = False,
            resize: int | None = None,
            frame_stack: int | None = None,
            frame_skip: int | None = None,
            sticky_actions: float | None = None,
            noop_max: int = 30,
            terminal_on_life_loss: bool = False,
            ignore_action_masks: bool = False,
            clip_reward: bool = False,
            hidden: Sequence[int] | int = (400, 300),
            activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = "relu",
            steps: int = 100000,
            seed: int = 0,
            placement: str = "auto",
            allow_lag: bool = False,
            remeasure: bool = False,
            replan: bool = False,
            devices: int | None = None,
            virtual_devices: int | None = None,
            shards: int = 1,
            reduce: Literal["fastest", "ordered"] = "fastest",
            sync: str = "every-step",
            micro_batch: int | None = None,
            precision: Literal["highest", "default"] = "highest",
            soft_placement: bool = False,
            worker_timeout: float = 60.0,
            ray_address: str | None = None,
            ray_working_dir: str | None = None,
            same_bits: bool = False,
            run_dir: str | Path | None = None,
            checkpoint_every: int | None = None,
            keep_checkpoints: int = 3,
            eval_every: int = 0,
            eval_episodes: int = 10,
            stop_at_return: float | None = None,
            threshold: Sequence[float] | float = (),
            log_every: int | None = None,
            tensorboard: bool = True,
            wandb: str | None = None,
            metric_names: Literal["flatout", "sb3", "cleanrl"] = "flatout",
            trace: bool = False,
            quiet: bool = False,
            json: bool = False,
            policy: str | None = None,
            policy_kwargs: Mapping[str, Any] | None = None,
            device: str | None = None,
            verbose: int = 0,
            lr: float | str | None = None,
            total_timesteps: int | None = None,
            n_envs: int | None = None,
            num_envs: int | None = None,
            preset: str | None = None,
            eval_env: Any = None,
        ) -> None: ...


class SAC(Agent):
    """Soft actor-critic (Haarnoja et al., 2018); Stable-Baselines3's defaults.

    Args:
        env = None: a Gymnasium id, module:factory, an environment object, also a
            gymnasium.vector.VectorEnv, a flatout.DeviceEnv, or a function that makes
            environments.
        eval_env = None: another environment with the same spaces, for evaluations during
            training (eval_every); by default one like env, which an object cannot be.
        network = None: a torso's name, a function (key, observation_shape) -> equinox.Module,
            or a dict of such functions by the paths of a nested observation.
        preset = None: tuned settings by name, which the others change.
        learning_rate = 0.0003: The optimiser's step size; lin_0.001 falls linearly to 0 over
            the run.
        buffer_size = 1000000: Transitions that the replay buffer holds, summed over all
            environments.
        learning_starts = 100: Environment steps with random actions before the first update.
        batch_size = 256: Transitions per update.
        train_freq = 1: Environment steps, summed over all environments, per round of
            gradient_steps updates.
        gradient_steps = 1: Updates per train_freq environment steps.
        gamma = 0.99: Discount per step.
        tau = 0.005: Fraction by which the target networks move towards the online ones; 1
            copies them.
        target_update_interval = 1: Interval between moves of the target networks (dqn: in
            environment steps; others: in updates of the actor).
        n_step = 1: Number of rewards that are summed before the target bootstraps from a value.
        prioritized = False: Sample by the size of the last TD error (Schaul et al., 2016)
            instead of uniformly.
        priority_alpha = 0.6: Exponent of the priorities; 0 samples uniformly.
        priority_beta = 'lin_0.4_1.0': Exponent of the importance weights; by default it rises
            linearly to 1 over the run.
        hindsight = 0: For goal environments: of every hindsight + 1 sampled transitions, this
            many get a goal that their episode achieved later, with its rewards (Andrychowicz et
            al., 2017, who use 4). 0: none.
        max_grad_norm = None: Clip the norm of the whole gradient to this; None does not clip.
        critic_learning_rate = None: Separate step size for the critics, which falls in the same
            proportion as learning_rate; None uses learning_rate.
        critic_hidden = None: Widths of the critics' hidden layers; None uses those of hidden.
        ent_coef = 'auto': Weight of the entropy; auto learns it, starting at 1; auto_0.1 learns
            it, starting at 0.1.
        target_entropy = None: Entropy that a learned weight aims at; by default minus the
            number of action components.
        envs = 1: Number of environments that step together.
        env_backend = None: Where environments step: host (in Python, the default for Gymnasium
            ids), device (compiled, for environments written in JAX), or auto (device if the
            environment or its twin is written in JAX, unless a plan finds the host faster).
        spare_envs = None: all: each environment has a spare that is reset in the background
            while the environment plays its episode, so that steps need not wait for resets;
            memory doubles. 0: none. By default Atari games have spares where they are faster,
            and other environments have none; a run whose steps wait long for resets says so.
        env_kwargs = {}: Arguments of the environment, KEY=VALUE; values as in TOML (size=12,
            flag=true, name="x").
        grayscale = False: Convert RGB image observations to grayscale.
        resize = None: Resize image observations to this many rows and columns.
        frame_stack = None: Number of last observations to stack (images: as channels; vectors:
            one after another); by default 4 for Atari ids and 1 for everything else.
        frame_skip = None: Atari ids only: frames per step, for which the action is repeated.
            The default follows from the id: 4 for ALE/Breakout-v5, drawn from 2 to 4 at each
            step for Breakout-v0 and -v4, and 4 for BreakoutNoFrameskip ids, as with the usual
            wrapper.
        sticky_actions = None: Atari ids only: probability that a frame repeats the previous
            frame's action. The default follows from the id: 0.25 for -v5 and -v0, 0 for -v4.
        noop_max = 30: Atari ids only: an episode starts with a random number of no-ops, less
            than this.
        terminal_on_life_loss = False: Atari ids only: learning treats a lost life as a
            terminal; the episode itself continues.
        ignore_action_masks = False: Train without the environment's action masks, as if every
            action were always allowed.
        clip_reward = False: Learn from the sign of each reward; reported returns use the raw
            rewards.
        hidden = (256, 256): Widths of the hidden layers, of actor and critic unless
            critic_hidden is given.
        activation = 'relu': Activation function between the hidden layers.
        steps = 100000: Environment steps in total, summed over environments.
        seed = 0: Seed of every random number of the run.
        placement = 'auto': cpu, gpu, cpu+gpu, auto, or KEY=VALUE pairs such as 'act=cpu
            learn=gpu:0 memory=0.5'.
        allow_lag = False: Let placement auto collect while it learns; acting is then one
            version behind.
        remeasure = False: Let placement auto measure this machine again, even if it has
            measured this run before.
        replan = False: If the run is slower than predicted, measure again at a checkpoint and
            change to a placement that is faster then.
        devices = None: Number of GPUs to learn on (CPU devices if there is no GPU), those with
            the most free memory; short for --placement 'learn=gpu:0,gpu:1,...'.
        virtual_devices = None: Number of CPU devices to simulate, to try a run on several
            devices with one CPU.
        shards = 1: Number of shards of each update, each with its own environments and rows.
            Any number of devices that divides this can carry them, with the same results.
        reduce = 'fastest': How the shards' gradients are summed: fastest (equal to 1e-5 on any
            number of devices) or ordered (equal bit for bit).
        sync = 'every-step': When shards are synchronised: every-step averages the gradients of
            each update, every:K averages the parameters after K separate updates (and at the
            end of each iteration).
        micro_batch = None: Rows of a shard whose gradients are computed at a time and then
            summed: less memory, the same update (not for genetic).
        precision = 'highest': Precision of matrix products on a GPU: highest is full float32,
            so that a GPU learns the same as a CPU; default is the GPU's own (TF32: 10 bits of
            each factor, about 1e-3 relative error), which is faster with large networks only.
            CPUs always compute in float32.
        soft_placement = False: If a named device is missing, run on the devices that exist and
            say so.
        worker_timeout = 60.0: Seconds after which an actor process that has not finished a step
            is restarted.
        ray_address = None: With sampler=cluster, plan, --placement auto, or a sweep on Ray: the
            cluster's HOST:PORT, or auto for one that runs on this machine. By default one is
            started on this machine.
        ray_working_dir = None: With sampler=cluster: a folder that Ray copies to the workers'
            machines, with the code of the environment.
        same_bits = False: With sampler=cluster: refuse machines whose results may differ from
            this machine's in the last bits.
        run_dir = None: Folder of the run; by default runs/ALGORITHM-ENV-SEED-TIME.
        checkpoint_every = None: Steps between checkpoints; by default a tenth of the run. 0
            saves only at the end.
        keep_checkpoints = 3: Number of newest checkpoints to keep.
        eval_every = 0: Steps between evaluations, which choose the best parameters to save. 0
            never evaluates.
        eval_episodes = 10: Episodes per evaluation.
        stop_at_return = None: Stop once the mean return of the last 100 training episodes
            reaches this.
        threshold = (): Record the steps and seconds when the mean return of the last 100
            episodes reaches each.
        log_every = None: Steps between rows of metrics (at least one iteration); by default 128
            at first, and from 2,048 steps on a sixteenth to an eighth of the steps made so far,
            at most 2,048.
        tensorboard = True: Write TensorBoard events into the run folder.
        wandb = None: Also log to this Weights & Biases project (needs the wandb extra).
        metric_names = 'flatout': Library whose metric names TensorBoard and W&B get;
            metrics.jsonl has Flatout's names.
        trace = False: Write trace.json, a timeline of every span, for Perfetto or
            chrome://tracing.
        quiet = False: Show no live display and no report.
        json = False: Print the summary as JSON, alone on stdout.
    """

    algorithm = "sac"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            learning_rate: float | str | Callable[[float], float] = 0.0003,
            buffer_size: int = 1000000,
            learning_starts: int = 100,
            batch_size: int = 256,
            train_freq: int | tuple[int, str] = 1,
            gradient_steps: int = 1,
            gamma: float = 0.99,
            tau: float = 0.005,
            target_update_interval: int = 1,
            n_step: int = 1,
            prioritized: bool = False,
            priority_alpha: float = 0.6,
            priority_beta: float | str = "lin_0.4_1.0",
            hindsight: int = 0,
            max_grad_norm: float | None = None,
            critic_learning_rate: float | None = None,
            critic_hidden: Sequence[int] | int | None = None,
            ent_coef: float | str = "auto",
            target_entropy: float | None = None,
            envs: int = 1,
            env_backend: Literal["host", "device", "auto"] | None = None,
            spare_envs: Literal["all", "0"] | None = None,
            env_kwargs: Mapping[str, Any] = ...,
            grayscale: bool = False,
            resize: int | None = None,
            frame_stack: int | None = None,
            frame_skip: int | None = None,
            sticky_actions: float | None = None,
            noop_max: int = 30,
            terminal_on_life_loss: bool = False,
            ignore_action_masks: bool = False,
            clip_reward: bool = False,
            hidden: Sequence[int] | int = (256, 256),
            activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = "relu",
            steps: int = 100000,
            seed: int = 0,
            placement: str = "auto",
            allow_lag: bool = False,
            remeasure: bool = False,
            replan: bool = False,
            devices: int | None = None,
            virtual_devices: int | None = None,
            shards: int = 1,
            reduce: Literal["fastest", "ordered"] = "fastest",
            sync: str = "every-step",
            micro_batch: int | None = None,
            precision: Literal["highest", "default"] = "highest",
            soft_placement: bool = False,
            worker_timeout: float = 60.0,
            ray_address: str | None = None,
            ray_working_dir: str | None = None,
            same_bits: bool = False,
            run_dir: str | Path | None = None,
            checkpoint_every: int | None = None,
            keep_checkpoints: int = 3,
            eval_every: int = 0,
            eval_episodes: int = 10,
            stop_at_return: float | None = None,
            threshold: Sequence[float] | float = (),
            log_every: int | None = None,
            tensorboard: bool = True,
            wandb: str | None = None,
            metric_names: Literal["flatout", "sb3", "cleanrl"] = "flatout",
            trace: bool = False,
            quiet: bool = False,
            json: bool = False,
            policy: str | None = None,
            policy_kwargs: Mapping[str, Any] | None = None,
            device: str | None = None,
            verbose: int = 0,
            lr: float | str | None = None,
            total_timesteps: int | None = None,
            n_envs: int | None = None,
            num_envs: int | None = None,
            preset: str | None = None,
            eval_env: Any = None,
        ) -> None: ...


class TQC(Agent):
    """Truncated quantile critics (Kuznetsov et al., 2020); the defaults of sb3-contrib and SBX.

    Args:
        env = None: a Gymnasium id, module:factory, an environment object, also a
            gymnasium.vector.VectorEnv, a flatout.DeviceEnv, or a function that makes
            environments.
        eval_env = None: another environment with the same spaces, for evaluations during
            training (eval_every); by default one like env, which an object cannot be.
        network = None: a torso's name, a function (key, observation_shape) -> equinox.Module,
            or a dict of such functions by the paths of a nested observation.
        preset = None: tuned settings by name, which the others change.
        learning_rate = 0.0003: The optimiser's step size; lin_0.001 falls linearly to 0 over
            the run.
        buffer_size = 1000000: Transitions that the replay buffer holds, summed over all
            environments.
        learning_starts = 100: Environment steps with random actions before the first update.
        batch_size = 256: Transitions per update.
        train_freq = 1: Environment steps, summed over all environments, per round of
            gradient_steps updates.
        gradient_steps = 1: Updates per train_freq environment steps.
        gamma = 0.99: Discount per step.
        tau = 0.005: Fraction by which the target networks move towards the online ones; 1
            copies them.
        target_update_interval = 1: Interval between moves of the target networks (dqn: in
            environment steps; others: in updates of the actor).
        n_step = 1: Number of rewards that are summed before the target bootstraps from a value.
        prioritized = False: Sample by the size of the last TD error (Schaul et al., 2016)
            instead of uniformly.
        priority_alpha = 0.6: Exponent of the priorities; 0 samples uniformly.
        priority_beta = 'lin_0.4_1.0': Exponent of the importance weights; by default it rises
            linearly to 1 over the run.
        hindsight = 0: For goal environments: of every hindsight + 1 sampled transitions, this
            many get a goal that their episode achieved later, with its rewards (Andrychowicz et
            al., 2017, who use 4). 0: none.
        max_grad_norm = None: Clip the norm of the whole gradient to this; None does not clip.
        critic_learning_rate = None: Separate step size for the critics, which falls in the same
            proportion as learning_rate; None uses learning_rate.
        critic_hidden = None: Widths of the critics' hidden layers; None uses those of hidden.
        ent_coef = 'auto': Weight of the entropy; auto learns it, starting at 1; auto_0.1 learns
            it, starting at 0.1.
        target_entropy = None: Entropy that a learned weight aims at; by default minus the
            number of action components.
        n_critics = 2: Number of critics; each estimates a distribution of returns (5 in the
            paper).
        n_quantiles = 25: Number of quantiles of each critic's distribution.
        top_quantiles_to_drop_per_net = 2: Number of the largest quantiles that the target
            leaves out, per critic.
        envs = 1: Number of environments that step together.
        env_backend = None: Where environments step: host (in Python, the default for Gymnasium
            ids), device (compiled, for environments written in JAX), or auto (device if the
            environment or its twin is written in JAX, unless a plan finds the host faster).
        spare_envs = None: all: each environment has a spare that is reset in the background
            while the environment plays its episode, so that steps need not wait for resets;
            memory doubles. 0: none. By default Atari games have spares where they are faster,
            and other environments have none; a run whose steps wait long for resets says so.
        env_kwargs = {}: Arguments of the environment, KEY=VALUE; values as in TOML (size=12,
            flag=true, name="x").
        grayscale = False: Convert RGB image observations to grayscale.
        resize = None: Resize image observations to this many rows and columns.
        frame_stack = None: Number of last observations to stack (images: as channels; vectors:
            one after another); by default 4 for Atari ids and 1 for everything else.
        frame_skip = None: Atari ids only: frames per step, for which the action is repeated.
            The default follows from the id: 4 for ALE/Breakout-v5, drawn from 2 to 4 at each
            step for Breakout-v0 and -v4, and 4 for BreakoutNoFrameskip ids, as with the usual
            wrapper.
        sticky_actions = None: Atari ids only: probability that a frame repeats the previous
            frame's action. The default follows from the id: 0.25 for -v5 and -v0, 0 for -v4.
        noop_max = 30: Atari ids only: an episode starts with a random number of no-ops, less
            than this.
        terminal_on_life_loss = False: Atari ids only: learning treats a lost life as a
            terminal; the episode itself continues.
        ignore_action_masks = False: Train without the environment's action masks, as if every
            action were always allowed.
        clip_reward = False: Learn from the sign of each reward; reported returns use the raw
            rewards.
        hidden = (256, 256): Widths of the hidden layers, of actor and critic unless
            critic_hidden is given.
        activation = 'relu': Activation function between the hidden layers.
        steps = 100000: Environment steps in total, summed over environments.
        seed = 0: Seed of every random number of the run.
        placement = 'auto': cpu, gpu, cpu+gpu, auto, or KEY=VALUE pairs such as 'act=cpu
            learn=gpu:0 memory=0.5'.
        allow_lag = False: Let placement auto collect while it learns; acting is then one
            version behind.
        remeasure = False: Let placement auto measure this machine again, even if it has
            measured this run before.
        replan = False: If the run is slower than predicted, measure again at a checkpoint and
            change to a placement that is faster then.
        devices = None: Number of GPUs to learn on (CPU devices if there is no GPU), those with
            the most free memory; short for --placement 'learn=gpu:0,gpu:1,...'.
        virtual_devices = None: Number of CPU devices to simulate, to try a run on several
            devices with one CPU.
        shards = 1: Number of shards of each update, each with its own environments and rows.
            Any number of devices that divides this can carry them, with the same results.
        reduce = 'fastest': How the shards' gradients are summed: fastest (equal to 1e-5 on any
            number of devices) or ordered (equal bit for bit).
        sync = 'every-step': When shards are synchronised: every-step averages the gradients of
            each update, every:K averages the parameters after K separate updates (and at the
            end of each iteration).
        micro_batch = None: Rows of a shard whose gradients are computed at a time and then
            summed: less memory, the same update (not for genetic).
        precision = 'highest': Precision of matrix products on a GPU: highest is full float32,
            so that a GPU learns the same as a CPU; default is the GPU's own (TF32: 10 bits of
            each factor, about 1e-3 relative error), which is faster with large networks only.
            CPUs always compute in float32.
        soft_placement = False: If a named device is missing, run on the devices that exist and
            say so.
        worker_timeout = 60.0: Seconds after which an actor process that has not finished a step
            is restarted.
        ray_address = None: With sampler=cluster, plan, --placement auto, or a sweep on Ray: the
            cluster's HOST:PORT, or auto for one that runs on this machine. By default one is
            started on this machine.
        ray_working_dir = None: With sampler=cluster: a folder that Ray copies to the workers'
            machines, with the code of the environment.
        same_bits = False: With sampler=cluster: refuse machines whose results may differ from
            this machine's in the last bits.
        run_dir = None: Folder of the run; by default runs/ALGORITHM-ENV-SEED-TIME.
        checkpoint_every = None: Steps between checkpoints; by default a tenth of the run. 0
            saves only at the end.
        keep_checkpoints = 3: Number of newest checkpoints to keep.
        eval_every = 0: Steps between evaluations, which choose the best parameters to save. 0
            never evaluates.
        eval_episodes = 10: Episodes per evaluation.
        stop_at_return = None: Stop once the mean return of the last 100 training episodes
            reaches this.
        threshold = (): Record the steps and seconds when the mean return of the last 100
            episodes reaches each.
        log_every = None: Steps between rows of metrics (at least one iteration); by default 128
            at first, and from 2,048 steps on a sixteenth to an eighth of the steps made so far,
            at most 2,048.
        tensorboard = True: Write TensorBoard events into the run folder.
        wandb = None: Also log to this Weights & Biases project (needs the wandb extra).
        metric_names = 'flatout': Library whose metric names TensorBoard and W&B get;
            metrics.jsonl has Flatout's names.
        trace = False: Write trace.json, a timeline of every span, for Perfetto or
            chrome://tracing.
        quiet = False: Show no live display and no report.
        json = False: Print the summary as JSON, alone on stdout.
    """

    algorithm = "tqc"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            learning_rate: float | str | Callable[[float], float] = 0.0003,
            buffer_size: int = 1000000,
            learning_starts: int = 100,
            batch_size: int = 256,
            train_freq: int | tuple[int, str] = 1,
            gradient_steps: int = 1,
            gamma: float = 0.99,
            tau: float = 0.005,
            target_update_interval: int = 1,
            n_step: int = 1,
            prioritized: bool = False,
            priority_alpha: float = 0.6,
            priority_beta: float | str = "lin_0.4_1.0",
            hindsight: int = 0,
            max_grad_norm: float | None = None,
            critic_learning_rate: float | None = None,
            critic_hidden: Sequence[int] | int | None = None,
            ent_coef: float | str = "auto",
            target_entropy: float | None = None,
            n_critics: int = 2,
            n_quantiles: int = 25,
            top_quantiles_to_drop_per_net: int = 2,
            envs: int = 1,
            env_backend: Literal["host", "device", "auto"] | None = None,
            spare_envs: Literal["all", "0"] | None = None,
            env_kwargs: Mapping[str, Any] = ...,
            grayscale: bool = False,
            resize: int | None = None,
            frame_stack: int | None = None,
            frame_skip: int | None = None,
            sticky_actions: float | None = None,
            noop_max: int = 30,
            terminal_on_life_loss: bool = False,
            ignore_action_masks: bool = False,
            clip_reward: bool = False,
            hidden: Sequence[int] | int = (256, 256),
            activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = "relu",
            steps: int = 100000,
            seed: int = 0,
            placement: str = "auto",
            allow_lag: bool = False,
            remeasure: bool = False,
            replan: bool = False,
            devices: int | None = None,
            virtual_devices: int | None = None,
            shards: int = 1,
            reduce: Literal["fastest", "ordered"] = "fastest",
            sync: str = "every-step",
            micro_batch: int | None = None,
            precision: Literal["highest", "default"] = "highest",
            soft_placement: bool = False,
            worker_timeout: float = 60.0,
            ray_address: str | None = None,
            ray_working_dir: str | None = None,
            same_bits: bool = False,
            run_dir: str | Path | None = None,
            checkpoint_every: int | None = None,
            keep_checkpoints: int = 3,
            eval_every: int = 0,
            eval_episodes: int = 10,
            stop_at_return: float | None = None,
            threshold: Sequence[float] | float = (),
            log_every: int | None = None,
            tensorboard: bool = True,
            wandb: str | None = None,
            metric_names: Literal["flatout", "sb3", "cleanrl"] = "flatout",
            trace: bool = False,
            quiet: bool = False,
            json: bool = False,
            policy: str | None = None,
            policy_kwargs: Mapping[str, Any] | None = None,
            device: str | None = None,
            verbose: int = 0,
            lr: float | str | None = None,
            total_timesteps: int | None = None,
            n_envs: int | None = None,
            num_envs: int | None = None,
            preset: str | None = None,
            eval_env: Any = None,
        ) -> None: ...


class Genetic(Agent):
    """A genetic algorithm without crossover (Such et al., 2017); one member per environment.

    Args:
        env = None: a Gymnasium id, module:factory, an environment object, also a
            gymnasium.vector.VectorEnv, a flatout.DeviceEnv, or a function that makes
            environments.
        eval_env = None: another environment with the same spaces, for evaluations during
            training (eval_every); by default one like env, which an object cannot be.
        network = None: a torso's name, a function (key, observation_shape) -> equinox.Module,
            or a dict of such functions by the paths of a nested observation.
        preset = None: tuned settings by name, which the others change.
        rollout_episodes = 1: Episodes that each member plays per generation; their mean return
            is its fitness.
        n_steps = None: Maximum steps of a member per generation; by default rollout_episodes
            times the environment's time limit.
        elites = 4: Number of best members that survive unchanged; noisy copies of them replace
            the others.
        noise = 0.05: Standard deviation of the noise on parameters; lin_0.1_0.01 falls linearly
            over the run.
        envs = 32: Number of environments that step together.
        env_backend = None: Where environments step: host (in Python, the default for Gymnasium
            ids), device (compiled, for environments written in JAX), or auto (device if the
            environment or its twin is written in JAX, unless a plan finds the host faster).
        spare_envs = None: all: each environment has a spare that is reset in the background
            while the environment plays its episode, so that steps need not wait for resets;
            memory doubles. 0: none. By default Atari games have spares where they are faster,
            and other environments have none; a run whose steps wait long for resets says so.
        env_kwargs = {}: Arguments of the environment, KEY=VALUE; values as in TOML (size=12,
            flag=true, name="x").
        grayscale = False: Convert RGB image observations to grayscale.
        resize = None: Resize image observations to this many rows and columns.
        frame_stack = None: Number of last observations to stack (images: as channels; vectors:
            one after another); by default 4 for Atari ids and 1 for everything else.
        frame_skip = None: Atari ids only: frames per step, for which the action is repeated.
            The default follows from the id: 4 for ALE/Breakout-v5, drawn from 2 to 4 at each
            step for Breakout-v0 and -v4, and 4 for BreakoutNoFrameskip ids, as with the usual
            wrapper.
        sticky_actions = None: Atari ids only: probability that a frame repeats the previous
            frame's action. The default follows from the id: 0.25 for -v5 and -v0, 0 for -v4.
        noop_max = 30: Atari ids only: an episode starts with a random number of no-ops, less
            than this.
        terminal_on_life_loss = False: Atari ids only: learning treats a lost life as a
            terminal; the episode itself continues.
        ignore_action_masks = False: Train without the environment's action masks, as if every
            action were always allowed.
        clip_reward = False: Learn from the sign of each reward; reported returns use the raw
            rewards.
        hidden = (64, 64): Widths of the hidden layers, of actor and critic unless critic_hidden
            is given.
        activation = 'tanh': Activation function between the hidden layers.
        steps = 100000: Environment steps in total, summed over environments.
        seed = 0: Seed of every random number of the run.
        placement = 'auto': cpu, gpu, cpu+gpu, auto, or KEY=VALUE pairs such as 'act=cpu
            learn=gpu:0 memory=0.5'.
        allow_lag = False: Let placement auto collect while it learns; acting is then one
            version behind.
        remeasure = False: Let placement auto measure this machine again, even if it has
            measured this run before.
        replan = False: If the run is slower than predicted, measure again at a checkpoint and
            change to a placement that is faster then.
        devices = None: Number of GPUs to learn on (CPU devices if there is no GPU), those with
            the most free memory; short for --placement 'learn=gpu:0,gpu:1,...'.
        virtual_devices = None: Number of CPU devices to simulate, to try a run on several
            devices with one CPU.
        shards = 1: Number of shards of each update, each with its own environments and rows.
            Any number of devices that divides this can carry them, with the same results.
        reduce = 'fastest': How the shards' gradients are summed: fastest (equal to 1e-5 on any
            number of devices) or ordered (equal bit for bit).
        sync = 'every-step': When shards are synchronised: every-step averages the gradients of
            each update, every:K averages the parameters after K separate updates (and at the
            end of each iteration).
        micro_batch = None: Rows of a shard whose gradients are computed at a time and then
            summed: less memory, the same update (not for genetic).
        precision = 'highest': Precision of matrix products on a GPU: highest is full float32,
            so that a GPU learns the same as a CPU; default is the GPU's own (TF32: 10 bits of
            each factor, about 1e-3 relative error), which is faster with large networks only.
            CPUs always compute in float32.
        soft_placement = False: If a named device is missing, run on the devices that exist and
            say so.
        worker_timeout = 60.0: Seconds after which an actor process that has not finished a step
            is restarted.
        ray_address = None: With sampler=cluster, plan, --placement auto, or a sweep on Ray: the
            cluster's HOST:PORT, or auto for one that runs on this machine. By default one is
            started on this machine.
        ray_working_dir = None: With sampler=cluster: a folder that Ray copies to the workers'
            machines, with the code of the environment.
        same_bits = False: With sampler=cluster: refuse machines whose results may differ from
            this machine's in the last bits.
        run_dir = None: Folder of the run; by default runs/ALGORITHM-ENV-SEED-TIME.
        checkpoint_every = None: Steps between checkpoints; by default a tenth of the run. 0
            saves only at the end.
        keep_checkpoints = 3: Number of newest checkpoints to keep.
        eval_every = 0: Steps between evaluations, which choose the best parameters to save. 0
            never evaluates.
        eval_episodes = 10: Episodes per evaluation.
        stop_at_return = None: Stop once the mean return of the last 100 training episodes
            reaches this.
        threshold = (): Record the steps and seconds when the mean return of the last 100
            episodes reaches each.
        log_every = None: Steps between rows of metrics (at least one iteration); by default 128
            at first, and from 2,048 steps on a sixteenth to an eighth of the steps made so far,
            at most 2,048.
        tensorboard = True: Write TensorBoard events into the run folder.
        wandb = None: Also log to this Weights & Biases project (needs the wandb extra).
        metric_names = 'flatout': Library whose metric names TensorBoard and W&B get;
            metrics.jsonl has Flatout's names.
        trace = False: Write trace.json, a timeline of every span, for Perfetto or
            chrome://tracing.
        quiet = False: Show no live display and no report.
        json = False: Print the summary as JSON, alone on stdout.
    """

    algorithm = "genetic"

    if TYPE_CHECKING:
        def __init__(
            self, *given: Any, env: Any = None, network: OwnNetwork | str | None = None,
            rollout_episodes: int = 1,
            n_steps: int | None = None,
            elites: int = 4,
            noise: float | str = 0.05,
            envs: int = 32,
            env_backend: Literal["host", "device", "auto"] | None = None,
            spare_envs: Literal["all", "0"] | None = None,
            env_kwargs: Mapping[str, Any] = ...,
            grayscale: bool = False,
            resize: int | None = None,
            frame_stack: int | None = None,
            frame_skip: int | None = None,
            sticky_actions: float | None = None,
            noop_max: int = 30,
            terminal_on_life_loss: bool = False,
            ignore_action_masks: bool = False,
            clip_reward: bool = False,
            hidden: Sequence[int] | int = (64, 64),
            activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = "tanh",
            steps: int = 100000,
            seed: int = 0,
            placement: str = "auto",
            allow_lag: bool = False,
            remeasure: bool = False,
            replan: bool = False,
            devices: int | None = None,
            virtual_devices: int | None = None,
            shards: int = 1,
            reduce: Literal["fastest", "ordered"] = "fastest",
            sync: str = "every-step",
            micro_batch: int | None = None,
            precision: Literal["highest", "default"] = "highest",
            soft_placement: bool = False,
            worker_timeout: float = 60.0,
            ray_address: str | None = None,
            ray_working_dir: str | None = None,
            same_bits: bool = False,
            run_dir: str | Path | None = None,
            checkpoint_every: int | None = None,
            keep_checkpoints: int = 3,
            eval_every: int = 0,
            eval_episodes: int = 10,
            stop_at_return: float | None = None,
            threshold: Sequence[float] | float = (),
            log_every: int | None = None,
            tensorboard: bool = True,
            wandb: str | None = None,
            metric_names: Literal["flatout", "sb3", "cleanrl"] = "flatout",
            trace: bool = False,
            quiet: bool = False,
            json: bool = False,
            policy: str | None = None,
            policy_kwargs: Mapping[str, Any] | None = None,
            device: str | None = None,
            verbose: int = 0,
            lr: float | str | None = None,
            total_timesteps: int | None = None,
            n_envs: int | None = None,
            num_envs: int | None = None,
            preset: str | None = None,
            eval_env: Any = None,
        ) -> None: ...
