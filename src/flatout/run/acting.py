"""Acting with an agent's parameters: on one observation, on a batch, in whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from flatout import tree
from flatout.actions import forbids_all
from flatout.algorithms.base import Algorithm
from flatout.algorithms.registry import build_algorithm
from flatout.casts import stored
from flatout.config.actions import refuse_actions
from flatout.config.schema import TrainConfig
from flatout.engine.act import Policy
from flatout.envs.check import making, refuse, undisturbed
from flatout.envs.goals import refuse_without_goals
from flatout.envs.masks import MaskError, as_mask, with_mask
from flatout.envs.source import EnvSource
from flatout.envs.spaces import as_array, flattened, in_range, structure
from flatout.envs.task import Task
from flatout.errors import CheckpointError, UsageError, described, short
from flatout.evaluation import Evaluation
from flatout.hardware import backend
from flatout.hardware.inventory import inventory, resolve_placement
from flatout.output import say
from flatout.packing import PackedParams
from flatout.randomness import ACT, is_typed_key, raw_key
from flatout.run.evaluate import Evaluator
from flatout.run.opening import open_environment, other_environment
from flatout.spans import Spans
from flatout.storage import checkpoint
from flatout.types import NAMED, Obs, ObservationSpec, UserCode, has_images, mask_path

if TYPE_CHECKING:
    from flatout.engine.schedule import Schedule


class Acting:
    """An agent's parameters and the compiled policies that act with them, made on first use.

    Attributes:
        checked: whether `check` has looked at the environment's observations.
    """

    def __init__(self, config: TrainConfig, code: UserCode = NAMED) -> None:
        self._config = config
        self._code = code
        self._arrays: dict[str, np.ndarray] | None = None
        self._schedule: Schedule | None = None  # that learns now
        self._version: Callable[[], int] = lambda: 0
        self._policies: dict[tuple[int, bool], Policy] = {}
        self.checked = False

    def check(self) -> None:
        """Look at the environment and its first observations, without starting JAX.

        Names of libraries whose environments are written in JAX are left for later.

        Raises:
            UsageError, EnvironmentFailure: it cannot be made or used.
        """
        if EnvSource.of(self._config.env, self._code.env).library:
            return
        backend.show_virtual_devices(self._config.run.virtual_devices)
        patience = self._config.run.worker_timeout
        with undisturbed():
            task = self._checked(patience, in_info=False)
        self._opened, self.checked = task, True

    def _checked(self, patience: float, in_info: bool) -> Task:
        """Return the task, whose environment is closed again; raises as `check`."""
        with making(self._config.env.env, patience):
            task = open_environment(self._config, self._code, in_info=in_info)
        try:
            refuse_actions(self._config.algorithm, task.action_spec)
            if getattr(self._config.hyper, "hindsight", 0):
                refuse_without_goals(task, task.first)
            if refuse(task, self._config.run.seed, patience):
                return self._checked(patience, in_info=True)
            for note in task.notes:
                say(note)
        finally:
            task.close()
        return task

    @cached_property
    def _opened(self) -> Task:
        """The environment's spaces and how to make it, without one that is open."""
        task = open_environment(self._config, self._code)
        task.close()
        return task

    @cached_property
    def task(self) -> Task:
        """As `_opened`, with JAX started on the devices that act."""
        task = self._opened
        placement, _ = resolve_placement(
            self._config.run.placement, inventory(), images=has_images(task.obs_spec), soft=True
        )
        backend.start(placement)
        self._device = backend.device(placement.act[0])
        return task

    @property
    def training(self) -> bool:
        """Whether it follows a run."""
        return self._schedule is not None

    @property
    def arrays(self) -> dict[str, np.ndarray] | None:
        """The learning state by name."""
        return self._arrays if self._schedule is None else self._schedule.learned()

    def learned(self, arrays: dict[str, np.ndarray]) -> None:
        """Replace the parameters with which the agent acts."""
        self._arrays = arrays
        self._forget()

    def follow(
        self, schedule: Schedule | None = None, version: Callable[[], int] = lambda: 0
    ) -> None:
        """Act with the newest parameters of a running schedule; without one, act with the agent's
        own parameters again.

        Args:
            version: counts the run's iterations.
        """
        self._schedule, self._version = schedule, version
        self._forget()

    def _forget(self) -> None:
        for policy in self._policies.values():
            policy.version = -1

    def policy(self, count: int = 1, deterministic: bool = True) -> Policy:
        """Return a compiled policy for `count` environments; raises as `packed` does."""
        if (count, deterministic) not in self._policies:
            self.packed()  # refuse before compiling
            run, spec = self._config.run, self.task.obs_spec
            key = None if deterministic else raw_key(run.seed, ACT)
            policy = Policy(self._algorithm, spec, count, self._device, key, run.precision)
            policy.compile()
            self._policies[(count, deterministic)] = policy
        policy, version = self._policies[(count, deterministic)], self._version()
        if policy.version != version:
            policy.publish(self.packed(), version, Spans())
        return policy

    def observed(self, observation: Any, mask: Any = None) -> tuple[Obs, bool]:
        """Return raw observations as a batch ``[B, ...]``, and whether the input was a single
        observation.

        Args:
            observation: as the environment returns it.
            mask: the actions that it allows, ``[K]`` or ``[B, K]``; None if there are no masks, or
                if the observation holds it.

        Raises:
            UsageError: a missing or unexpected entry, a wrong shape, no numbers, or a mask that is
                missing, malformed or allows no action.
        """
        spec = self.task.obs_spec
        if mask_path(spec):
            observation = self._with_mask(observation, mask)
        elif mask is not None:
            raise UsageError(
                f"predict was given action_mask=, but this agent was trained on {self.task.name} "
                "without masks."
            )
        if isinstance(spec, ObservationSpec):
            return _observed(observation, spec)
        try:
            given = dict(flattened(observation, structure(spec)))
        except ValueError as error:
            raise UsageError(
                f"predict was given an observation with {error}; it takes {', '.join(spec)}."
            ) from None
        arrays = {path: _observed(given[path], one, path) for path, one in spec.items()}
        batched = {path: not single for path, (_, single) in arrays.items()}
        if len({*batched.values()}) > 1 or len({len(a) for a, _ in arrays.values()}) > 1:
            raise UsageError(
                "predict takes one observation or a batch, but the sizes of these entries differ: "
                + ", ".join(f"{path} {list(np.shape(given[path]))}" for path in spec)
                + "."
            )
        return {path: array for path, (array, _) in arrays.items()}, not any(batched.values())

    def _with_mask(self, observation: Any, mask: Any) -> Any:
        """Return an observation with its mask, in the form in which the prepared environment
        returns it."""
        spec, actions = self.task.obs_spec, self.task.action_spec
        path = mask_path(spec)
        observation, mask = with_mask(observation, mask, path, [*(structure(spec) or {})])
        if mask is None:
            raise UsageError(
                f"predict needs action_mask=, because {self.task.name} masks its actions: an array "
                "with 1 for each allowed value of the action and 0 for the others."
            )
        try:
            mask = as_mask(mask, actions, batches=True)
        except MaskError as error:
            raise UsageError(f"predict was given a mask {error}.") from None
        if (stuck := np.atleast_1d(forbids_all(np, actions, mask))).any():
            row = f" in row {int(stuck.argmax())}" if mask.ndim > 1 else ""
            raise UsageError(f"predict was given a mask that allows no action{row}.")
        assert isinstance(spec, dict)
        shape = (*mask.shape[:-1], *spec[path].shape)
        return {**observation, path: mask.reshape(shape)}

    @property
    def recurrent(self) -> bool:
        """Whether acting has a carry."""
        return self._algorithm.recurrent

    def remembered(self, state: Any, episode_start: Any, count: int) -> tuple[Any, np.ndarray]:
        """Return the carry of `count` environments that a user passes as the state, and the mask
        ``[count]`` of the episodes that begin.

        Raises:
            UsageError: it is not the state of `count` environments, or the mask is missing or of
                another length.
        """
        shapes = self._algorithm.carry_shapes(count)
        expected, given = jax.tree.leaves(shapes), jax.tree.leaves(state)
        if [np.shape(leaf) for leaf in given] != [leaf.shape for leaf in expected]:
            raise UsageError(
                f"predict was given a state of {_shapes(given)}, but the state of {count} "
                f"observation(s) has {_shapes(expected)}: pass the one that predict returned for "
                "the step before, or None where all episodes start."
            )
        if episode_start is None:
            raise UsageError(
                "predict was given a state without episode_start: pass one True or False for each "
                "observation, True where it starts an episode and the memory begins again."
            )
        begun = np.asarray(episode_start)
        if begun.shape not in ((count,), ()):
            raise UsageError(
                f"predict was given episode_start of shape {[*begun.shape]} for {count} "
                "observation(s): pass one True or False for each."
            )
        if not np.isin(begun, (0, 1)).all():
            raise UsageError(
                f"predict was given episode_start = {short(episode_start)}: pass True where an "
                "observation starts an episode, and False elsewhere."
            )
        leaves = [np.asarray(x, one.dtype) for x, one in zip(given, expected, strict=True)]
        carry = jax.tree.structure(shapes).unflatten(leaves)
        return carry, np.broadcast_to(begun.astype(np.bool_), count)

    def batch(
        self, obs: Obs, deterministic: bool, step: int = 0, carry: Any = None,
        begun: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any]:  # fmt: skip
        """Return the algorithm's actions ``[B, ...]`` for observations ``[B, ...]``, and the carry
        ``[B, ...]`` after them; () if the policy has none.

        Batches are padded to the next power of two, so that few sizes are ever compiled.

        Args:
            carry, begun: results of `remembered`; None begins all episodes.
        """
        count = len(tree.first(obs))
        policy = self.policy(1 << max(count - 1, 0).bit_length(), deterministic)
        more = policy.num_envs - count

        def padded(leaf: np.ndarray) -> np.ndarray:
            return np.concatenate([leaf, np.zeros((more, *leaf.shape[1:]), leaf.dtype)])

        obs = tree.map(padded, obs) if more else obs
        mask = None
        if policy.recurrent:
            mask = padded(np.ones(count, np.bool_) if begun is None else begun)
            if carry is not None:
                policy.set_carry(jax.tree.map(padded, carry))
        row = policy.greedy(obs, mask) if deterministic else policy.act(obs, step, 0, mask)
        actions = policy.layout.action(row)[:count]
        if not policy.recurrent:
            return actions, ()
        newest = policy.carry(0, np.zeros(policy.num_envs, np.bool_))
        return actions, jax.tree.map(lambda leaf: leaf[:count], newest)

    def evaluate(
        self, episodes: int, seed: int, env: str | None = None, source: Any = None,
        deterministic: bool = True,
    ) -> Evaluation:  # fmt: skip
        """Play episodes in separate environments.

        Args:
            env, source: another environment's name, and the object or function behind it.
            deterministic: act greedily, instead of drawing actions.

        Raises:
            UsageError: it has other spaces.
        """
        algorithm, precision = self._algorithm, self._config.run.precision
        if env is None:
            task = self.played(anew=True)
        else:
            task = other_environment(self._config, self._code, (env, source), self.task)
        limit = 1 if task.single else 16
        with closing(
            Evaluator(
                algorithm, task, episodes, seed, self._device, limit, precision, deterministic
            )
        ) as evaluator:
            evaluator.policy.compile()
            return evaluator.run(self.packed(), 0)

    def played(self, anew: bool = False) -> Task:
        """Return the task in which to play. It is opened again if a user's object was opened only
        for its spaces.

        Raises:
            UsageError: that object is training.
        """
        if self.task.single and self.training:
            raise UsageError(
                "the environment object is training: to evaluate or record meanwhile, pass a "
                "function that makes environments, or evaluate in another one (env=)."
            )
        anew = anew or self.task.single
        return open_environment(self._config, self._code) if anew else self.task

    @cached_property
    def _algorithm(self) -> Algorithm:
        return build_algorithm(self._config, *self.task.spaces, self._code)

    def packed(self) -> tuple[np.ndarray, ...]:
        """Return the actor's parameters, packed into few arrays; raises as `params` does."""
        if self._schedule is not None:
            return self._schedule.params
        return PackedParams(self._algorithm.actor_shapes).pack(self.params(), np)

    def params(self) -> Any:
        """The parameters for the algorithm's `act`.

        Raises:
            UsageError: nothing was learned yet.
            CheckpointError: the parameters do not fit the settings.
        """
        arrays = self.arrays
        if arrays is None:
            raise UsageError("this agent has learned nothing yet: call learn or load.")
        algorithm = self._algorithm
        shapes = algorithm.shapes._replace(opt=())  # a saved agent may have none
        names = checkpoint.leaf_names(shapes, checkpoint.PREFIX)
        state = checkpoint.rebuild(names, shapes, arrays | self._unread_counters)
        if unused := checkpoint.unmatched(jax.tree.leaves(names), arrays):
            raise CheckpointError(
                f"its array {unused} would not be used: it was saved with other settings."
            )
        return algorithm.actor(state, algorithm.hp)

    @cached_property
    def _unread_counters(self) -> dict[str, np.ndarray]:
        """Zeros, by name, for the arrays among the counters that acting does not read: those of a
        run's environments, of which there may have been another number."""
        algorithm, found = self._algorithm, dict[str, np.ndarray]()
        shapes = algorithm.shapes._replace(opt=())
        program = jax.make_jaxpr(algorithm.actor)(shapes, algorithm.hp).jaxpr
        read = {id(v) for equation in program.eqns for v in equation.invars}
        read |= {id(v) for v in program.outvars}
        names = jax.tree.leaves(checkpoint.leaf_names(shapes, checkpoint.PREFIX))
        leaves = jax.tree.leaves(shapes)
        for name, leaf, variable in zip(names, leaves, program.invars[: len(leaves)], strict=True):
            counts = name.startswith(f"{checkpoint.PREFIX}.counters") and leaf.shape
            if counts and id(variable) not in read and not is_typed_key(leaf):
                found[name] = np.zeros(leaf.shape, leaf.dtype)
        return found


def _observed(observation: Any, spec: ObservationSpec, path: str = "") -> tuple[np.ndarray, bool]:
    """Return one array of raw observations as a batch, and whether the input was a single
    observation."""
    of = f" for {path!r}" if path else ""
    if spec.text and isinstance(observation, list | tuple | np.ndarray):
        obs = np.stack([as_array(one, spec) for one in observation])
    else:
        obs = as_array(observation, spec)
    single = obs.shape == spec.shape
    if (not single and obs.shape[1:] != spec.shape) or obs.dtype.kind not in "fiub":
        given = obs if obs.dtype.kind in "fiub" else observation
        raise UsageError(
            f"predict takes observations of shape {list(spec.shape)}{of} or a batch of them, not "
            f"{described(given)}."
        )
    try:
        obs = stored(in_range(obs, spec), spec.dtype)
    except ValueError as error:
        raise UsageError(f"predict was given an observation{of} with {error}.") from None
    if obs.dtype.kind == "f" and not np.isfinite(obs).all():
        raise UsageError(f"predict was given an observation{of} with NaN or infinity.")
    return (obs[None] if single else obs), single


def _shapes(leaves: Sequence[Any]) -> str:
    """Return a phrase for arrays of these shapes."""
    return "arrays " + ", ".join(str([*np.shape(leaf)]) for leaf in leaves)
