"""The inspection of one environment: the order in which it is tried, its code's exceptions, and
notes of what Flatout would do with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from flatout import tree
from flatout.actions import choices
from flatout.config.actions import UNSCALED, refuse_actions, unsuited_range
from flatout.config.hyper import HYPER
from flatout.config.schema import EnvConfig, NetworkConfig
from flatout.config.torso import torso_kind
from flatout.envs.check import Watch
from flatout.envs.checking.calls import ATTRIBUTES, COMPARISON, CONSTRUCTOR, MODULE, REWARDS, SPACES
from flatout.envs.checking.findings import Findings
from flatout.envs.checking.process_state import ProcessState
from flatout.envs.checking.trials import Trial, Trials
from flatout.envs.checking.vectors import try_vector
from flatout.envs.deadline import DeadlineExceeded
from flatout.envs.device.on_host import OneDevice
from flatout.envs.goals import (
    ACHIEVED,
    DESIRED,
    REWARD,
    GoalRewards,
    has_goals,
    reward_method,
)
from flatout.envs.make import Factory, close_quietly, episode_limit, specs, unprepared
from flatout.envs.mask_places import attribute, visible_masks
from flatout.envs.source import EnvSource
from flatout.errors import FlatoutError, Interrupt, UsageError, failure, short
from flatout.types import ActionSpec, ObservationSpec, mask_path

SLOW_S = 5e-4
"""Seconds of a step from which on actor processes may gain more than they cost."""


MANY_OUTPUTS = 100_000
"""Values of all choices of an action from which on a policy is very large."""


def action_warnings(spec: ActionSpec) -> Iterator[str]:
    """Yield sentences about actions that algorithms take, but learn badly with."""
    if why := unsuited_range(spec):
        yield f"{why}. This concerns {', '.join(UNSCALED)}; ddpg, td3, sac and tqc scale theirs."
    if (count := sum(choices(spec))) > MANY_OUTPUTS:
        yield (
            f"{spec.kind} actions have {count:,} values, and a policy has an output for each: it "
            "needs much memory, and learns slowly. Use fewer values or components."
        )


def acting_algorithms(spec: ActionSpec) -> list[str]:
    """Return the names of the built-in algorithms that can choose such actions."""
    fitting: list[str] = []
    for algorithm in (name for name, hyper in HYPER.items() if hyper.acts):
        with suppress(UsageError):
            refuse_actions(algorithm, spec)
            fitting.append(algorithm)
    return fitting


def notes(
    config: EnvConfig, env: gym.Env[Any, Any], trial: Trial, single: bool, findings: Findings
) -> Iterator[tuple[str, str]]:
    """Yield what Flatout would do with the environment: topics and sentences."""
    spec, actions = trial.task.obs_spec, trial.task.action_spec
    for path, leaf in tree.items(spec):
        yield "encoder", f"observation{f' {path!r}' if path else ''}: {_described(leaf)}."
    if mask_path(spec):
        places = [*visible_masks(env), *(["its infos"] if trial.in_info else [])]
        yield "mask", f"actions are masked, by {' and '.join(places)}; masks are obeyed."
    yield "actions", f"{actions.kind} actions: {', '.join(acting_algorithms(actions))}."
    yield "episodes", _episodes(episode_limit(env), trial.lengths)
    same = not findings.has("determinism", "shared")
    yield "resume", (
        "the same seeds and actions repeat an episode: a resumed run continues exactly."
        if same else "a resumed run begins new episodes, because these do not repeat."
    )  # fmt: skip
    step_s = float(np.median(trial.tap.step_s))
    yield (
        "speed",
        (
            f"{1 / max(step_s, 1e-9):,.0f} steps/s in one process, without learning: "
            + (
                "actor processes may be faster (placement auto measures that)."
                if step_s > SLOW_S and not single
                else "it steps in the training process (sampler=inline)."
            )
        ),
    )
    if single:
        yield "samplers", "an environment object steps alone, inline; pass a function for more."
    elif EnvSource.of(config).has_twin:
        yield "samplers", "it has a twin in JAX: --env-backend device steps it with learning."


def _episodes(limit: int | None, ends: list[tuple[int, bool, bool]]) -> str:
    """Return a sentence about the time limit and the lengths of random episodes.

    Args:
        limit: the declared limit in steps.
        ends: of each episode its length, and whether it was terminated and truncated.
    """
    cut = [length for length, _, truncated in ends if truncated]
    if limit:
        limited = f"a time limit of {limit:,} steps"
    elif cut:
        steps = f"{min(cut):,}" if min(cut) == max(cut) else f"{min(cut):,} to {max(cut):,}"
        limited = (
            f"the environment itself truncated {len(cut)} of {len(ends)} episodes, after {steps} "
            "steps, and declares no time limit (max_episode_steps)"
        )
    else:
        limited = "no time limit is declared"
    mean = sum(length for length, *_ in ends) / max(len(ends), 1)
    some = f"{len(ends)} ended, after {mean:.0f} steps on average" if ends else "none ended"
    return f"{limited}; of the episodes of random play {some}."


def _described(leaf: ObservationSpec) -> str:
    """Return what the encoder makes of an array, as a phrase."""
    shape = "x".join(map(str, leaf.shape)) or "one number"
    if leaf.mask:
        return f"{shape}, the mask of allowed actions"
    if leaf.categories:
        numbers = f"{sum(leaf.categories):,} one-hot numbers"
        return numbers if not leaf.shape else f"{len(leaf.categories)} categories, {numbers}"
    if leaf.text:
        return f"a text, counted into {shape} numbers by its words"
    if leaf.is_image:
        kind = torso_kind(leaf, NetworkConfig())
        first = ", transposed from channels first" if leaf.channels_first else ""
        return f"an image {shape}{first}, read by network = {kind}"
    return f"{shape} {leaf.dtype}, dense layers"


KNOWN_SPACES = (
    gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary,
    gym.spaces.Text, gym.spaces.Dict, gym.spaces.Tuple,
)  # fmt: skip
"""The kinds of spaces that are never sampled here."""


@dataclass(frozen=True)
class Request:
    """A request to check an environment.

    Attributes:
        config: its name and arguments.
        source: an environment object or a function, used instead of the name.
        steps, seed, patience: see `check_env`.
        registered: the spec of its id in the registry of the process that asks.
    """

    config: EnvConfig
    source: Any
    steps: int
    seed: int
    patience: float
    registered: EnvSpec | None = None


def inspect(
    request: Request, findings: Findings, watch: Watch, state: ProcessState,
    close_limit: float | None,
) -> None:  # fmt: skip
    """Try an environment. Whatever its code raises becomes a finding, except interrupts.

    Args:
        request: which environment, and how.
        findings: receives what is found.
        watch: gets the name of each call before it begins.
        state: the state of the process before the first call.
        close_limit: seconds after which a call of close is interrupted; None does not.
    """
    report = watch.on_change

    def changed(last: str, call: str) -> None:
        state.examine(last)
        if report is not None:
            report(last, call)

    watch.on_change = changed
    try:
        _Inspection(request, findings, watch, close_limit).run()
        state.examine(watch.call)
    except FlatoutError as error:
        findings.add("error", "returns", str(error))
    except (Interrupt, KeyboardInterrupt, DeadlineExceeded):
        raise
    except BaseException as error:  # a user's environment may raise anything
        findings.add("error", "returns", f"the {watch.call} raised {failure(error)}.")


class _Inspection:
    """The steps of an inspection."""

    def __init__(
        self, request: Request, findings: Findings, watch: Watch, close_limit: float | None
    ) -> None:
        self._request, self._findings, self._watch = request, findings, watch
        self._single = isinstance(request.source, gym.Env | VectorEnv)
        self._trials = Trials(
            request.config, findings, watch, request.steps, request.seed, request.patience,
            close_limit,
        )  # fmt: skip

    def run(self) -> None:
        """Make environments, try them, and close those that were made here."""
        config, source = self._request.config, self._request.source
        self._watch.call = MODULE
        make = unprepared(config, source)
        envs: list[gym.Env[Any, Any]] = []
        try:
            envs.append(self._make(make))
            self._try(make, envs)
        except BaseException:  # an interrupt, or a call that took too long
            if not self._single:
                for env in envs:
                    close_quietly(env)
            raise
        if not self._single:
            self._trials.close(envs)

    def _make(self, make: Factory) -> gym.Env[Any, Any]:
        self._watch.call = CONSTRUCTOR
        return make()

    def _try(self, make: Factory, envs: list[gym.Env[Any, Any]]) -> None:
        """Try an environment. The copies that `make` makes are appended to `envs`."""
        (env,), config, findings = envs, self._request.config, self._findings
        if isinstance(env, VectorEnv):
            request = self._request
            try_vector(env, config, findings, self._watch, request.steps, request.seed)
            return
        self._try_attributes(env)
        self._watch.call = SPACES
        inner = attribute(env, "unwrapped")
        if isinstance(inner, OneDevice):
            from flatout.envs.device.check import check_device_env

            for problem in check_device_env(inner.device):
                findings.add("error", "device", problem, problem)
        self._try_samples(env)
        try:
            specs(env, config.env)
        except UsageError as error:
            findings.add("error", "space", str(error))
            return
        trial = self._trials.first(env)
        if trial is None:
            return
        copies = [] if self._single else self._copies(make, envs)
        self._trials.repeat(trial, copies)
        self._trials.try_resets(env)
        self._watch.call = ATTRIBUTES
        for text in action_warnings(trial.task.action_spec):
            findings.add("warning", "actions", text, text)
        self._try_goals(env, trial)
        for topic, text in notes(config, env, trial, self._single, findings):
            findings.add("note", topic, text, text)
        if not trial.lengths and episode_limit(env) is None:
            findings.add(
                "warning", "truncation",
                f"no episode ended within {len(trial.tap.seen) - 1:,} random steps, and no time "
                "limit is declared: wrap it in gymnasium.wrappers.TimeLimit, unless it truncates "
                "longer episodes itself.",
            )  # fmt: skip

    def _try_goals(self, env: gym.Env[Any, Any], trial: Trial) -> None:
        """Compare the rewards of a goal environment's steps with those of `compute_reward`."""
        if not has_goals(trial.task.obs_spec):
            return
        if reward_method(env) is None:
            text = (
                f"it has goals, but no method {REWARD}(achieved_goal, desired_goal, info): "
                "hindsight replay (--hindsight 4) needs it."
            )
            self._findings.add("warning", "goals", text)
            return
        self._watch.call = REWARDS
        steps = [(obs, float(rest[0])) for obs, rest in trial.tap.seen if rest]
        names = (ACHIEVED, DESIRED)
        achieved, desired = (np.stack([obs[goal] for obs, _ in steps]) for goal in names)
        try:
            rewards = GoalRewards(env, self._request.config.env or type(env.unwrapped).__name__)
            rewards.compare(achieved[0], desired[0])
            found = rewards(achieved, desired)
        except FlatoutError as error:
            self._findings.add("warning", "goals", str(error))
            return
        given = np.array([reward for _, reward in steps])
        other = np.flatnonzero(~np.isclose(found, given, rtol=1e-4, atol=1e-6))
        if len(other):
            self._findings.add(
                "warning", "goals",
                f"{REWARD} returns {found[other[0]]:g} for the goals of a step with the reward "
                f"{given[other[0]]:g}: hindsight replay (--hindsight 4) would learn rewards that "
                "the environment does not give.",
            )  # fmt: skip
            return
        self._findings.add(
            "note", "goals",
            f"{REWARD} returns the rewards of its steps: hindsight replay is "
            "possible (--hindsight 4).",
        )  # fmt: skip

    def _try_attributes(self, env: gym.Env[Any, Any]) -> None:
        """Look up an attribute that an environment need not have."""
        self._watch.call = ATTRIBUTES
        inner = attribute(env, "unwrapped") or env
        try:
            getattr(inner, "action_masks", None)
        except (Exception, SystemExit) as error:
            self._findings.add(
                "error", "attributes",
                f"the {ATTRIBUTES} raised {failure(error)}, for the name 'action_masks': it has to "
                "raise AttributeError for names that it does not know.",
            )  # fmt: skip

    def _try_samples(self, env: gym.Env[Any, Any]) -> None:
        """Sample spaces of other libraries: their samples show whether they hold texts."""
        space = env.observation_space
        inner = (
            space.spaces.values() if isinstance(space, gym.spaces.Dict)
            else space.spaces if isinstance(space, gym.spaces.Tuple) else [space]
        )  # fmt: skip
        for one in inner:
            if not isinstance(one, KNOWN_SPACES):
                try:
                    one.sample()
                except (Exception, SystemExit) as error:
                    text = f"sample of its {type(one).__name__} space raised {failure(error)}."
                    self._findings.add("error", "space", text, "sample")

    def _copies(
        self, make: Factory, envs: list[gym.Env[Any, Any]]
    ) -> list[gym.Env[Any, Any]]:  # fmt: skip
        """Make two further environments; none if the function gives the same object again, or if
        their spaces differ."""
        env, findings = envs[0], self._findings
        copies = [self._make(make), self._make(make)]
        self._watch.call = COMPARISON
        objects = [attribute(one, "unwrapped") or one for one in (env, *copies)]
        if len({id(one) for one in objects}) < len(objects):
            findings.add(
                "error", "shared",
                "the function made the same environment object twice: it has to make a new one at "
                "each call.",
            )  # fmt: skip
            return []
        envs += copies
        for name in ("observation_space", "action_space"):
            if not all(self._equal(name, copy, env) for copy in copies):
                findings.add(
                    "error", "space",
                    f"two environments have a different {name}: all copies need the same spaces.",
                )  # fmt: skip
                return []
        return copies

    def _equal(self, name: str, one: gym.Env[Any, Any], other: gym.Env[Any, Any]) -> bool:
        """Compare a space of two environments; a comparison that fails is an error of its own."""
        try:
            equal: object = getattr(one, name) == getattr(other, name)
        except (Exception, SystemExit) as error:
            said = f"raised {failure(error)}"
        else:
            if isinstance(equal, bool | np.bool_):
                return bool(equal)
            said = f"returned {short(equal)} instead of True or False"
        self._findings.add("error", "space", f"== of {name} {said}.", f"== {name}")
        return True
