"""Export of a trained agent as one Python file that needs only NumPy, based on `standalone`."""

from __future__ import annotations

import base64
import pprint
from importlib import resources
from inspect import getsource
from typing import Any

import jax
import numpy as np

from flatout.actions import CompositeSpec, mask_columns
from flatout.algorithms.common.actor_critic import Actor
from flatout.algorithms.common.continuous import Bounds, Trunk
from flatout.algorithms.common.distributions import distribution
from flatout.algorithms.dqn import QNetwork
from flatout.algorithms.sac import LOG_STD
from flatout.casts import cast_actions, stored, word_counts
from flatout.config.schema import TrainConfig
from flatout.envs.task import Task
from flatout.errors import UsageError
from flatout.networks.boards import Centred, Compass, Grid, OneHot, WideGrid
from flatout.networks.encoder import Branches, Encoder
from flatout.networks.layers import MLP, Conv, Linear
from flatout.networks.memory import CELLS, Cell
from flatout.networks.torsos import NatureCNN
from flatout.output import printable
from flatout.types import ActionSpec, ContinuousSpec, ObservationSpec, mask_path

LINE = 96
BOARDS: dict[type[Any], str] = {
    Grid: "one_hot", OneHot: "one_hot", Centred: "centred", Compass: "compass",
}  # fmt: skip


class _Layers:
    """The steps of a network, and the arrays that they use."""

    def __init__(self) -> None:
        self.steps: list[list[Any]] = []
        self.arrays: list[np.ndarray] = []

    def add(self, name: str, *arrays: Any, settings: tuple[Any, ...] = ()) -> None:
        first = len(self.arrays)
        self.arrays += [np.asarray(array, np.float32) for array in arrays]
        self.steps.append([name, list(range(first, len(self.arrays))), list(settings)])

    def linear(self, *layers: Linear) -> None:
        name = "dueling" if len(layers) > 1 else "linear"
        self.add(name, *(array for layer in layers for array in (layer.weight, layer.bias)))

    def conv(self, layers: tuple[Conv, ...]) -> None:
        for layer in layers:
            settings = (layer.stride, layer.padding)
            self.add("conv", layer.weight, layer.bias, settings=settings)
            self.add("relu")

    def mlp(self, mlp: MLP) -> None:
        self.add("flatten")
        for layer in mlp.layers:
            self.linear(layer)
            self.add(mlp.activation)

    def torso(self, torso: Any) -> None:
        """Add the steps of a built-in torso."""
        kind = type(torso)
        if kind is MLP:
            self.mlp(torso)
        elif kind in (NatureCNN, WideGrid):
            self.conv(torso.convolutions)
            self.add("flatten")
            self.linear(torso.dense)
            self.add("relu")
        elif kind in BOARDS:
            self.add(BOARDS[kind], settings=(torso.values,))
            self.conv(torso.convolutions if kind is Grid else ())
            self.mlp(torso.dense)
        else:
            raise UsageError(
                f"an agent with a network of your own ({kind.__name__}) cannot be exported: only "
                "the built-in networks can be written with NumPy."
            )

    def cell(self, cell: Cell | None) -> list[int]:
        """Add the step of a recurrent policy's memory, and return the widths of its arrays; none
        without a memory."""
        if cell is None:
            return []
        name = next(name for name, kind in CELLS.items() if isinstance(cell, kind))
        layers = (cell.inputs, cell.recurrent)
        self.add(name, *(array for one in layers for array in (one.weight, one.bias)))
        return [leaf.shape[1] for leaf in jax.eval_shape(lambda: cell.initial(1))]

    def prepared(self, spec: ObservationSpec, moments: Any, board: bool) -> None:
        """Add the steps that prepare one array as `Encoder.prepare` does."""
        if spec.categories:
            self.add("categories", settings=(list(spec.categories), list(spec.starts)))
        elif not board:
            if moments is not None:
                self.add("normalise", moments.mean, moments.var)
            elif spec.high is not None:
                self.add("scale", settings=(spec.high,))
        if spec.channels_first:
            self.add("channels_last")

    def taken(self) -> list[list[Any]]:
        """Return the steps added since the last call."""
        steps, self.steps = self.steps, []
        return steps

    def inputs(self, encoder: Encoder, torso: Any, moments: Any) -> list[list[Any]]:
        """Return each array's path, shape, type, whether it is text, and steps.

        Afterwards `steps` holds the steps that follow the concatenation of the arrays.
        """
        found: list[list[Any]] = []
        branches = torso.branches if isinstance(torso, Branches) else {}
        for path, spec in encoder.specs.items():
            of = moments.get(path) if isinstance(moments, dict) else moments
            self.prepared(spec, of, encoder.is_board(path))
            if path in branches:
                self.torso(branches[path])
            elif len(encoder.specs) > 1 or torso is None:
                self.add("flatten")
            found.append([path, list(spec.shape), spec.dtype, spec.text, self.taken()])
        if isinstance(torso, Branches):
            if torso.dense is not None:
                self.mlp(torso.dense)
        elif torso is not None:
            self.torso(torso)
        return found


def source(config: TrainConfig, task: Task, params: Any) -> str:
    """Return the text of the exported file.

    Args:
        params: the arrays with which the agent acts (`Acting.params`).

    Raises:
        UsageError: the agent has a user's network or algorithm.
    """
    layers, action = _Layers(), task.action_spec
    moments = None
    if config.algorithm in ("ppo", "a2c"):
        moments, network = params.moments, params.actor
    elif config.algorithm == "genetic":  # the best member plays
        network = jax.tree.map(lambda leaf: leaf[0], params)
    elif config.algorithm == "dqn":
        network = params.network
    elif config.algorithm in ("ddpg", "td3", "sac", "tqc"):
        network = params.actor
    else:
        raise UsageError(
            f"an agent of {config.algorithm} cannot be exported: an algorithm of your own acts by "
            "code that Flatout cannot write with NumPy."
        )
    encoder, memory = Encoder(task.obs_spec, config.network, None), []
    inputs = layers.inputs(encoder, network.torso, moments)
    if isinstance(network, Trunk):
        layers.mlp(network.dense)
        layers.linear(network.head)
        bounds = Bounds(action, config.algorithm)
        if config.algorithm in ("sac", "tqc"):
            layers.add("squashed", settings=LOG_STD)
        layers.add("first", settings=(bounds.size,))  # the deviations of sac and tqc follow
        layers.add("tanh")
        if config.algorithm in ("ddpg", "td3"):
            layers.add("noisy", np.full(bounds.size, params.noise))
        layers.add("to_box", bounds.middle, bounds.half, bounds.low, bounds.high)
    else:
        assert isinstance(network, Actor | QNetwork)
        if isinstance(network, Actor):
            memory = layers.cell(network.cell)
        baseline = getattr(network, "baseline", None)
        layers.linear(network.head, *([] if baseline is None else [baseline]))
        dist = distribution(action)
        if config.algorithm in ("ppo", "a2c"):
            layers.add("sampled", _deviations(action, params.actor.extra))
        elif config.algorithm == "dqn":
            layers.add("epsilon_greedy", params.epsilon)
        if dist.deviations:
            layers.add("clip", dist.low, dist.high)
    spec = {
        "algorithm": config.algorithm,
        "environment": printable(config.env.env),
        "inputs": inputs,
        "action": action.exported(),
        "mask": mask_columns(action) if mask_path(task.obs_spec) else None,
        "memory": memory,
        "layers": layers.steps,
        "shapes": [list(array.shape) for array in layers.arrays],
    }
    flat = np.concatenate([array.reshape(-1) for array in layers.arrays]).astype("<f4")
    data = base64.b64encode(flat.tobytes()).decode()
    lines = "\n".join(data[i : i + LINE] for i in range(0, len(data), LINE))
    text = (resources.files("flatout.api") / "standalone.py").read_text(encoding="utf-8")
    # Literals of plain values: nothing that a stranger's run holds becomes code.
    literal = pprint.pformat(spec, width=LINE, sort_dicts=False)
    text = text.replace("SPEC: dict[str, Any] = {}", f"SPEC = {literal}")
    casts = "".join(f"\n{getsource(one)}\n" for one in (stored, word_counts, cast_actions))
    text = text.replace("from flatout.casts import cast_actions, stored, word_counts\n", casts)
    return text.replace('DATA = ""', f'DATA = """\n{lines}\n"""')


def _deviations(action: ActionSpec, log_std: Any) -> np.ndarray:
    """Return the standard deviation of each of a head's outputs ``[P]``; -1 for a logit."""
    box = np.array(_continuous(action))
    found = np.full(len(box), -1, np.float32)
    found[box] = np.exp(np.asarray(log_std))
    return found


def _continuous(action: ActionSpec) -> list[bool]:
    """Return for each of a head's outputs whether it is a component of a box."""
    if isinstance(action, CompositeSpec):
        return [one for part in action.parts for one in _continuous(part)]
    return [isinstance(action, ContinuousSpec)] * distribution(action).parameters
