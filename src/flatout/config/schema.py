"""Settings: one frozen dataclass per component, with the possible values of each field.

`settings.py` builds these, and the components read them. The text under a field is its help on the
command line and in Python. Nothing here imports JAX.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, Literal

from flatout.config.hyper import HYPER, OnPolicyConfig
from flatout.config.placement import Placement, parse_or_auto
from flatout.config.schedules import check_float32
from flatout.config.values import Count, Probability, Range, Widths, check, need
from flatout.errors import UsageError, refuse_empty

ALGORITHMS = tuple(HYPER)

Affects = dict[str, str]
"""The metadata of a setting that does not affect what is learned: what it affects instead."""

Episodes = Annotated[int, EPISODES := Range(1, 1_000_000)]
Seed = Annotated[int, SEEDS := Range(0, 2**32 - 1)]
AtLeast1 = Annotated[int, Range(1, 2**63 - 1)]
AtLeast0 = Annotated[int, Range(0, 2**63 - 1)]
Devices = Annotated[int, Range(1, 64)]

SPEED: Affects = {"affects": "speed"}
"""The setting decides where the parts of a run are and how fast it is. What is learned changes
in the last bits only."""
LENGTH: Affects = {"affects": "length"}
"""The setting decides when a run ends."""
BEST: Affects = {"affects": "best"}
"""The setting decides which parameters are saved as the best ones."""
REPORT: Affects = {"affects": "report"}
"""The setting decides which files are written and what is shown."""


def check_length(name: str, text: str) -> None:
    """Check the length of an environment's name."""
    need(len(text) <= 1000, name, f"{text[:20]}...", "at most 1000 characters")


def sync_every(name: str, text: str) -> int:
    """Return K for ``every:K`` and 1 for ``every-step``.

    Raises:
        UsageError: the text has neither form.
    """
    if text == "every-step":
        return 1
    word, _, number = text.partition(":")
    if word != "every" or not number.isdecimal() or not 1 <= int(number) < 2**31:
        raise UsageError(f"{name} = {text!r} is neither every-step nor every:K, such as every:8.")
    return int(number)


def refuse_placement(name: str, text: str) -> None:
    """Refuse a text that describes no possible placement on any machine; raises as `parse`."""
    parse_or_auto(text)


@dataclass(frozen=True)
class EnvConfig:
    """The environment, and how its observations are prepared."""

    env: Annotated[str, check_length] = ""
    """Gymnasium id (CartPole-v1), gymnax:NAME, envpool:NAME, or module:factory for a function that
    makes an environment or a vector of environments."""
    envs: Annotated[int, Range(1, 100_000)] = 1
    """Number of environments that step together."""
    env_backend: Literal["host", "device", "auto"] | None = None
    """Where environments step: host (in Python, the default for Gymnasium ids), device (compiled,
    for environments written in JAX), or auto (device if the environment or its twin is written in
    JAX, unless a plan finds the host faster)."""
    spare_envs: Literal["all", "0"] | None = field(default=None, metadata=SPEED)
    """all: each environment has a spare that is reset in the background while the environment plays
    its episode, so that steps need not wait for resets; memory doubles. 0: none. By default Atari
    games have spares where they are faster, and other environments have none; a run whose steps
    wait long for resets says so."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment, KEY=VALUE; values as in TOML (size=12, flag=true, name="x")."""
    grayscale: bool = False
    """Convert RGB image observations to grayscale."""
    resize: Annotated[int, Range(1, 4096)] | None = None
    """Resize image observations to this many rows and columns."""
    frame_stack: Annotated[int, Range(1, 256)] | None = None
    """Number of last observations to stack (images: as channels; vectors: one after another); by
    default 4 for Atari ids and 1 for everything else."""
    frame_skip: Annotated[int, Range(1, 1000)] | None = None
    """Atari ids only: frames per step, for which the action is repeated. The default follows from
    the id: 4 for ALE/Breakout-v5, drawn from 2 to 4 at each step for Breakout-v0 and -v4, and 4 for
    BreakoutNoFrameskip ids, as with the usual wrapper."""
    sticky_actions: Probability | None = None
    """Atari ids only: probability that a frame repeats the previous frame's action. The default
    follows from the id: 0.25 for -v5 and -v0, 0 for -v4."""
    noop_max: Annotated[int, Range(0, 10_000)] = 30
    """Atari ids only: an episode starts with a random number of no-ops, less than this."""
    terminal_on_life_loss: bool = False
    """Atari ids only: learning treats a lost life as a terminal; the episode itself continues."""
    ignore_action_masks: bool = False
    """Train without the environment's action masks, as if every action were always allowed."""
    clip_reward: bool = False
    """Learn from the sign of each reward; reported returns use the raw rewards."""

    @property
    def spares(self) -> bool:
        """Whether environments are to have spares."""
        return self.spare_envs == "all"

    @property
    def backend_open(self) -> bool:
        """Whether Flatout decides where environments step."""
        return self.env_backend == "auto"

    @property
    def backend_device(self) -> bool:
        """Whether environments are to step on a device."""
        return self.env_backend == "device"


@dataclass(frozen=True)
class NetworkConfig:
    """The network's torso, between observations and heads."""

    network: Literal[
        "auto", "mlp", "nature", "nature_same", "grid", "wide_grid", "onehot", "centred", "compass"
    ] = "auto"
    """The torso, between observations and heads. mlp; nature (the DQN convolutions, for pixels;
    nature_same pads them); for small boards grid (one-hot cells, convolutions), wide_grid (an
    image, conv 100@4x4 and 200@3x3, dense 200), onehot (dense layers, much cheaper on a CPU),
    centred (onehot, the board shifted so that the cell of value 1, Snake's head, is in the middle)
    or compass (how near each value is to that cell in eight directions)."""
    hidden: Widths = (64, 64)
    """Widths of the hidden layers, of actor and critic unless critic_hidden is given."""
    activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = "tanh"
    """Activation function between the hidden layers."""


@dataclass(frozen=True)
class RunConfig:
    """The run: how long, where, and what is saved."""

    steps: Count = field(default=100_000, metadata=LENGTH)
    """Environment steps in total, summed over environments."""
    seed: Seed = 0
    """Seed of every random number of the run."""
    placement: Annotated[str, refuse_placement] = field(default="auto", metadata=SPEED)
    """cpu, gpu, cpu+gpu, auto, or KEY=VALUE pairs such as 'act=cpu learn=gpu:0 memory=0.5'."""
    allow_lag: bool = False
    """Let placement auto collect while it learns; acting is then one version behind."""
    remeasure: bool = field(default=False, metadata=SPEED)
    """Let placement auto measure this machine again, even if it has measured this run before."""
    replan: bool = field(default=False, metadata=SPEED)
    """If the run is slower than predicted, measure again at a checkpoint and change to a placement
    that is faster then."""
    devices: Devices | None = field(default=None, metadata=SPEED)
    """Number of GPUs to learn on (CPU devices if there is no GPU), those with the most free memory;
    short for --placement 'learn=gpu:0,gpu:1,...'."""
    virtual_devices: Devices | None = field(default=None, metadata=SPEED)
    """Number of CPU devices to simulate, to try a run on several devices with one CPU."""
    shards: AtLeast1 = 1
    """Number of shards of each update, each with its own environments and rows. Any number of
    devices that divides this can carry them, with the same results."""
    reduce: Literal["fastest", "ordered"] = "fastest"
    """How the shards' gradients are summed: fastest (equal to 1e-5 on any number of devices) or
    ordered (equal bit for bit)."""
    sync: Annotated[str, sync_every] = "every-step"
    """When shards are synchronised: every-step averages the gradients of each update, every:K
    averages the parameters after K separate updates (and at the end of each iteration)."""
    micro_batch: AtLeast1 | None = None
    """Rows of a shard whose gradients are computed at a time and then summed: less memory, the same
    update (not for genetic)."""
    precision: Literal["highest", "default"] = "highest"
    """Precision of matrix products on a GPU: highest is full float32, so that a GPU learns the same
    as a CPU; default is the GPU's own (TF32: 10 bits of each factor, about 1e-3 relative error),
    which is faster with large networks only. CPUs always compute in float32."""
    soft_placement: bool = field(default=False, metadata=SPEED)
    """If a named device is missing, run on the devices that exist and say so."""
    worker_timeout: Annotated[float, Range(0, 1_000_000, above=True)] = field(
        default=60.0, metadata=SPEED
    )
    """Seconds after which an actor process that has not finished a step is restarted."""
    ray_address: Annotated[str, refuse_empty] | None = field(default=None, metadata=SPEED)
    """With sampler=cluster, plan, --placement auto, or a sweep on Ray: the cluster's HOST:PORT, or
    auto for one that runs on this machine. By default one is started on this machine."""
    ray_working_dir: Annotated[str, refuse_empty] | None = field(default=None, metadata=SPEED)
    """With sampler=cluster: a folder that Ray copies to the workers' machines, with the code of the
    environment."""
    same_bits: bool = field(default=False, metadata=SPEED)
    """With sampler=cluster: refuse machines whose results may differ from this machine's in the
    last bits."""
    run_dir: Annotated[str, refuse_empty] | None = field(default=None, metadata=REPORT)
    """Folder of the run; by default runs/ALGORITHM-ENV-SEED-TIME."""
    checkpoint_every: AtLeast0 | None = field(default=None, metadata=REPORT)
    """Steps between checkpoints; by default a tenth of the run. 0 saves only at the end."""
    keep_checkpoints: AtLeast1 = field(default=3, metadata=REPORT)
    """Number of newest checkpoints to keep."""
    eval_every: AtLeast0 = field(default=0, metadata=BEST)
    """Steps between evaluations, which choose the best parameters to save. 0 never evaluates."""
    eval_episodes: Episodes = field(default=10, metadata=BEST)
    """Episodes per evaluation."""
    stop_at_return: float | None = field(default=None, metadata=LENGTH)
    """Stop once the mean return of the last 100 training episodes reaches this."""
    threshold: tuple[float, ...] = field(default=(), metadata=REPORT)
    """Record the steps and seconds when the mean return of the last 100 episodes reaches each."""
    log_every: AtLeast1 | None = field(default=None, metadata=REPORT)
    """Steps between rows of metrics (at least one iteration); by default 128 at first, and from
    2,048 steps on a sixteenth to an eighth of the steps made so far, at most 2,048."""
    tensorboard: bool = field(default=True, metadata=REPORT)
    """Write TensorBoard events into the run folder."""
    wandb: str | None = field(default=None, metadata=REPORT)
    """Also log to this Weights & Biases project (needs the wandb extra)."""
    metric_names: Literal["flatout", "sb3", "cleanrl"] = field(default="flatout", metadata=REPORT)
    """Library whose metric names TensorBoard and W&B get; metrics.jsonl has Flatout's names."""
    trace: bool = field(default=False, metadata=REPORT)
    """Write trace.json, a timeline of every span, for Perfetto or chrome://tracing."""
    quiet: bool = field(default=False, metadata=REPORT)
    """Show no live display and no report."""
    json: bool = field(default=False, metadata=REPORT)
    """Print the summary as JSON, alone on stdout."""

    @cached_property
    def placed(self) -> Placement | None:
        """The placement that the user names; None if Flatout chooses it."""
        return parse_or_auto(self.placement)

    @property
    def leaves_sampler(self) -> bool:
        """Whether the placement does not say where environments step."""
        return self.placement.strip() in ("auto", "cpu", "gpu")

    @property
    def chosen_here(self) -> bool:
        """Whether Flatout chooses the placement, the number of devices included."""
        return self.placed is None and self.devices is None

    @cached_property
    def goals(self) -> list[float]:
        """The mean returns to record when they are reached, in ascending order."""
        stop = () if self.stop_at_return is None else (self.stop_at_return,)
        return sorted({*self.threshold, *stop})


FIRST_ROWS, LATER_ROWS = 128, 2048
"""Default steps between rows of metrics: at a run's start, and from 16,384 steps on. All steps
between are powers of two, so that each is a multiple of the earlier ones."""


def rows_every(log_every: int | None, steps: int) -> int:
    """Return the steps between rows of metrics once a run has made `steps`; None is the default."""
    if log_every is not None:
        return log_every
    return min(max(1 << max(steps.bit_length() - 4, 0), FIRST_ROWS), LATER_ROWS)


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run."""

    algorithm: str
    env: EnvConfig
    network: NetworkConfig
    hyper: Any
    run: RunConfig

    @property
    def parts(self) -> tuple[EnvConfig, NetworkConfig, Any, RunConfig]:
        """The components' settings."""
        return self.env, self.network, self.hyper, self.run

    def flat(self) -> dict[str, Any]:
        """Return every setting by its flag's name (with underscores), as `resolve` accepts it."""
        values: dict[str, Any] = {"algorithm": self.algorithm}
        for part in self.parts:
            values |= {spec.name: getattr(part, spec.name) for spec in fields(part)}
        return values

    def changed(self) -> dict[str, Any]:
        """Return the settings that differ from the algorithm's defaults."""
        defaults: dict[str, Any] = {"algorithm": self.algorithm}
        for part in self.parts:
            defaults |= vars(type(part)())
        defaults |= self.hyper.defaults
        return {name: value for name, value in self.flat().items() if value != defaults[name]}


def affecting(*kinds: Affects) -> frozenset[str]:
    """Return the names of the settings that affect one of these and nothing else. A setting without
    metadata affects what is learned."""
    specs = *fields(EnvConfig), *fields(RunConfig)
    return frozenset(spec.name for spec in specs if spec.metadata in kinds)


CLUSTER_SETTINGS = ("ray_address", "ray_working_dir", "same_bits")
"""The settings that only workers on the machines of a Ray cluster use."""

RESUMABLE = affecting(SPEED, LENGTH, REPORT) | {"reduce", "allow_lag"}
"""The settings that a resumed run may change. ``reduce`` changes only the last bits, and
``allow_lag`` belongs to the placement, which may change."""


def validate(config: TrainConfig) -> None:
    """Refuse impossible values and impossible combinations of settings.

    Raises:
        UsageError: the first one; the message names the setting and what is possible.
    """
    hyper, envs, run = config.hyper, config.env.envs, config.run
    for part in (hyper, config.env, config.network, run):
        check(part)
    check_float32(hyper)
    hyper.check_together(envs)
    need(
        not hyper.acts or envs % run.shards == 0, "shards", run.shards,
        f"it must divide envs = {envs}: all shards have equally many environments",
    )  # fmt: skip
    batch = getattr(hyper, "batch_size", run.shards)
    need(
        batch % run.shards == 0, "shards", run.shards,
        f"it must divide batch_size = {batch}: all shards have equally many of its rows",
    )  # fmt: skip
    if isinstance(hyper, OnPolicyConfig) and hyper.normalize_advantage:
        apart = run.shards if sync_every("sync", run.sync) > 1 else 1
        name, count = hyper.normalised_together(envs)
        each = " for each of the shards, which learn apart with --sync every:K" * (apart > 1)
        need(
            count >= 2 * apart, name, getattr(hyper, name),
            f"advantage normalisation needs at least 2 transitions{each}",
        )  # fmt: skip
    need(
        run.micro_batch is None or hyper.differentiates, "micro_batch", run.micro_batch,
        f"{config.algorithm} computes no gradients; leave it out",
    )  # fmt: skip
