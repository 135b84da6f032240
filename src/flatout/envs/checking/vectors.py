"""The trial of a user's vector environment: random steps, what its autoreset mode promises, and
arrays that change after they were returned."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from flatout import tree
from flatout.actions import allowed
from flatout.config.schema import EnvConfig
from flatout.envs.base import TRAINING
from flatout.envs.check import Watch
from flatout.envs.checking.calls import OWN_WORK, SPACES
from flatout.envs.checking.findings import Findings
from flatout.envs.make import specs
from flatout.envs.mask_places import info_masks
from flatout.envs.own_vector import OwnVectorEnvs
from flatout.envs.prepared_vector import PreparedVector, has_mask_method, prepared_vector
from flatout.envs.vector_kind import Resets, hidden_resets, resets_of
from flatout.errors import EnvironmentFailure, UsageError
from flatout.types import ActionSpec, Obs, ObsSpec, mask_path

LIMIT_S = 4.0
"""Seconds after which a trial ends, however few steps it has made."""

REPEATED = 200
"""Steps that are repeated with the same seeds and actions."""


def try_vector(
    vector: VectorEnv[Any, Any, Any], config: EnvConfig, findings: Findings, watch: Watch,
    steps: int, seed: int,
) -> None:  # fmt: skip
    """Take random steps in a vector environment; whatever is wrong becomes a finding.

    Args:
        vector: the vector environment.
        config: its name.
        findings: receives what is found.
        watch: see `flatout.envs.check.watched`.
        steps: the most steps of each environment.
        seed: the seed of episodes and actions.
    """
    watch.call = SPACES
    try:
        action_spec = specs(_as_env(vector), config.env)[1]
        vector = prepared_vector(vector, config, _gives_masks(vector, seed))
        obs_spec = specs(_as_env(vector), config.env)[0]
    except UsageError as error:
        findings.add("error", "space", str(error))
        return
    if has_mask_method(vector):
        findings.add(
            "note", "mask", "its environments have a method action_masks, and a run steps them one "
            "by one: check one of them.",
        )  # fmt: skip
        return
    count = vector.num_envs
    try:
        batched = batch_space(vector.single_observation_space, count)
        if batched != vector.observation_space:
            text = f"its observation_space is not that of num_envs = {count} environments with "
            findings.add("warning", "space", f"{text}its single_observation_space.")
    except (Exception, SystemExit):  # a space of another library
        pass
    watch.call = "reset"
    try:
        inner = vector.env if isinstance(vector, PreparedVector) else vector
        resets = resets_of(inner, config.env, action_spec)
    except UsageError as error:
        findings.add("error", "reset", str(error))
        return
    trial = _VectorTrial(vector, resets, config, (obs_spec, action_spec), findings, watch)
    try:
        trial.play(steps, seed)
        if not findings.has("returns"):
            trial.repeat(min(steps, REPEATED), seed)
            trial.look_after_ends(min(steps, REPEATED), seed)
            trial.look_at_dead_steps(min(steps, REPEATED), seed)
            watch.call = "step"
            trial.look_for_hidden_resets()
    except UsageError as error:
        findings.add("error", "mask", str(error))
    except EnvironmentFailure as error:
        findings.add("error", "returns", str(error))
        return
    trial.note(config)


def _gives_masks(vector: Any, seed: int) -> bool:
    """Return whether the infos of a reset hold masks; what is wrong with the reset shows later."""
    try:
        return bool(info_masks(vector.reset(seed=seed)[1]))
    except (Exception, SystemExit):
        return False


def _as_env(vector: Any) -> Any:
    """Return a vector environment for functions that take any environment."""
    return vector


class _Recorded:
    """A vector environment whose calls are named, and whose last observations are compared with
    copies of them."""

    def __init__(self, vector: Any, findings: Findings, watch: Watch) -> None:
        self._vector, self._findings, self._watch = vector, findings, watch
        self.num_envs, self.metadata = vector.num_envs, vector.metadata
        self.step_s: list[float] = []
        self._last: list[tuple[Any, np.ndarray]] = []

    def reset(self, **kwargs: Any) -> Any:
        """Reset the vector environment."""
        self._watch.call = "reset"
        result = self._vector.reset(**kwargs)
        if isinstance(result, tuple) and result:
            self._look(result[0])
        return result

    def step(self, actions: Any) -> Any:
        """Step the vector environment."""
        self._watch.call, began = "step", time.perf_counter()
        result = self._vector.step(actions)
        self.step_s.append(time.perf_counter() - began)
        if isinstance(result, tuple) and result:
            self._look(result[0])
        self._watch.call = OWN_WORK
        return result

    def _look(self, obs: Any) -> None:
        add = self._findings.add
        if any(not np.array_equal(array, copy, equal_nan=copy.dtype.kind == "f")
               for array, copy in self._last):  # fmt: skip
            add(
                "warning", "reused",
                "its arrays of observations change after they were returned, with the next step: "
                "return copies; Flatout copies them, but other programs may not.",
            )  # fmt: skip
        arrays = _arrays(obs)
        if any(a.ndim and len(a) > 1 and not a.strides[0] and a.dtype != object for a in arrays):
            add(
                "error", "reused",
                "the observations of all its environments are one array in memory "
                "(numpy.broadcast_to): each environment needs its own.", "one",
            )  # fmt: skip
        self._last = [(array, array.copy()) for array in arrays]


def _arrays(obs: Any) -> list[np.ndarray]:
    """Return the arrays of batched observations."""
    if isinstance(obs, Mapping):
        return [array for inner in obs.values() for array in _arrays(inner)]
    if isinstance(obs, tuple | list):
        return [array for inner in obs for array in _arrays(inner)]
    return [obs] if isinstance(obs, np.ndarray) else []


class _VectorTrial:
    """Random steps in a vector environment, and what they showed."""

    def __init__(
        self, vector: Any, resets: Resets, config: EnvConfig, spaces: tuple[ObsSpec, ActionSpec],
        findings: Findings, watch: Watch,
    ) -> None:  # fmt: skip
        self._vector, self._resets, self._findings = vector, resets, findings
        self._config, self._spaces = config, spaces
        self._recorded = _Recorded(vector, findings, watch)
        self._lengths: list[int] = []
        self._steps = 0

    def play(self, steps: int, seed: int) -> list[Any]:
        """Take random steps as a run does; return what they gave."""
        envs, (obs_spec, actions) = self._opened(seed), self._spaces
        count = envs.num_envs
        out, rewards, rng = (
            tree.zeros(obs_spec, count),
            np.zeros(count),
            np.random.default_rng(seed),
        )

        def ended(env: int, terminated: bool, truncated: bool, final: Obs) -> None:
            self._lengths.append(envs.lengths[env])

        envs.reset_all(out, 0)
        seen: list[Any] = [*map(np.array, tree.leaves(out))]
        end = time.monotonic() + LIMIT_S
        for self._steps in range(1, steps + 1):
            envs.step(self._allowed(actions.random(rng, count), out), out, rewards, ended)
            seen += [*map(np.array, tree.leaves(out)), rewards.copy()]
            if not all(np.isfinite(one).all() for one in (*tree.leaves(out), rewards)):
                self._findings.add(
                    "error", "nan", f"an observation or reward of step {self._steps} holds NaN or "
                    "infinity.",
                )  # fmt: skip
                break
            if time.monotonic() > end:
                break
        return seen

    def _opened(self, seed: int) -> OwnVectorEnvs:
        return OwnVectorEnvs(
            self._recorded, self._resets, self._config.env, *self._spaces, seed, TRAINING,
            ignore_masks=self._config.ignore_action_masks,
        )  # fmt: skip

    def _allowed(self, actions: np.ndarray, obs: Obs) -> np.ndarray:
        """Return actions that the masks in the observations allow."""
        path = mask_path(self._spaces[0])
        return allowed(np, self._spaces[1], obs[path], actions) if path else actions

    def look_after_ends(self, steps: int, seed: int) -> None:
        """Look at the first step after an episode's end and a reset by the mask: it has to be the
        same as after that reset alone."""
        if not self._resets.seeded or self._findings.has("determinism"):
            return
        envs, (obs_spec, actions) = self._opened(seed), self._spaces
        count, rng = envs.num_envs, np.random.default_rng(seed)
        out, rewards = tree.zeros(obs_spec, count), np.zeros(count)
        envs.reset_all(out, 0)
        for _ in range(steps):
            begun = [env for env in range(count) if not envs.lengths[env] and envs.episode[env]]
            numbers, chosen = list(envs.episode), self._allowed(actions.random(rng, count), out)
            envs.step(chosen, out, rewards, lambda *end: None)
            if not begun:
                continue
            env = begun[0]
            after = [np.array(leaf[env]) for leaf in tree.leaves(out)]
            envs.reset(env, out, numbers[env])
            envs.step(self._allowed(chosen, out), out, rewards, lambda *end: None)
            if not all(map(np.array_equal, after, [leaf[env] for leaf in tree.leaves(out)])):
                self._findings.add(
                    "error", "reset",
                    "the first step after an end and a reset by the mask is another one than after "
                    "that reset alone: let reset forget that the environment was about to reset "
                    "itself.", "pending",
                )  # fmt: skip
            return

    def repeat(self, steps: int, seed: int) -> None:
        """Repeat steps with the same seeds and actions."""
        one, other = self.play(steps, seed), self.play(steps, seed)
        same = all(map(np.array_equal, one, other))
        if not same and self._resets.seeded:
            self._findings.add(
                "error", "determinism",
                "the same seeds and actions gave other steps when they were repeated: seed each "
                "environment with its entry of reset(seed=[...]), and keep nothing from earlier "
                "episodes. Without that no result can be reproduced, and a resumed run begins new "
                "episodes.",
            )  # fmt: skip
        elif not same:
            self._findings.add(
                "warning", "determinism",
                "reset(seed=...) does not decide its episodes: no result can be reproduced.",
            )  # fmt: skip

    def look_at_dead_steps(self, steps: int, seed: int) -> None:
        """In mode NEXT_STEP, look at the step after the end of an episode, which a run never makes
        where it can reset one environment alone."""
        if self._resets.mode != AutoresetMode.NEXT_STEP or mask_path(self._spaces[0]):
            return
        actions, count = self._spaces[1], self._recorded.num_envs
        rng, ended = np.random.default_rng(seed), np.zeros(count, np.bool_)
        self._recorded.reset(seed=seed)
        for _ in range(steps):
            chosen = actions.to_env(actions.random(rng, count))
            _, rewards, terminated, truncated, _ = self._recorded.step(chosen)
            gained = np.asarray(rewards)[ended]
            if gained.any():
                self._findings.add(
                    "error", "reset",
                    "it declares AutoresetMode.NEXT_STEP, but the step after the end of an episode "
                    f"gave the reward {gained[gained != 0][0]:g}: it has reset by itself in the "
                    'same step; set metadata["autoreset_mode"] to what it does.',
                )  # fmt: skip
                return
            ended = np.asarray(terminated) | np.asarray(truncated)

    def look_for_hidden_resets(self) -> None:
        """Look for resets within the steps that end episodes, of which training is not certain."""
        if hidden_resets(self._vector, self._resets) == "possible":
            self._findings.add(
                "warning", "reset",
                "the last observation of each episode is the first one of a next episode: if it "
                "resets by itself in the step that ends an episode, return the last observation "
                'instead, or set metadata["autoreset_mode"] to SAME_STEP and add '
                "infos['final_obs'].", "hidden",
            )  # fmt: skip

    def note(self, config: EnvConfig) -> None:
        """Say what Flatout would do with the vector environment."""
        add, resets = self._findings.add, self._resets
        count = self._recorded.num_envs
        how = {
            AutoresetMode.SAME_STEP: "it resets by itself in the step that ends an episode",
            AutoresetMode.NEXT_STEP: "its step after an end would only reset",
            AutoresetMode.DISABLED: "it never resets by itself",
        }[resets.mode]
        then = "each environment is reset alone, with a seed of its own, right after its end"
        if not resets.seeded:
            then = "each environment is reset alone right after its end, without a seed of its own"
        if not resets.masked:
            then = "its own reset begins the next episode, and its infos have the last observation"
        if resets.together:
            then = "all environments end at the same time, and are reset together right after that"
        some = f"{count} environment{'s' * (count != 1)}"
        add("note", "reset", f"{some}; {how} ({resets.mode.name}): {then}.", "mode")
        if mask_path(self._spaces[0]):
            add("note", "mask", "actions are masked; masks are obeyed.")
        same = resets.seeded and not self._findings.has("determinism")
        add("note", "resume", (
            "the same seeds and actions repeat an episode: a resumed run continues exactly."
            if same else "a resumed run begins new episodes, because these do not repeat."
        ))  # fmt: skip
        if not resets.seeded:
            text = "trajectories of whole episodes (genetic, --rollout-episodes) need a seed for "
            add("note", "episodes", f"{text}each environment, and are refused.", "whole")
        mean = sum(self._lengths) / max(len(self._lengths), 1)
        some = f"{len(self._lengths)} ended, after {mean:.0f} steps on average"
        text = some if self._lengths else "none ended"
        add("note", "episodes", f"of the episodes of random play {text}.")
        if not self._lengths:
            add(
                "warning", "truncation",
                f"no episode ended within {self._steps:,} random steps of each environment: "
                "truncate long ones.",
            )  # fmt: skip
        step_s = float(np.median(self._recorded.step_s or [0.0])) / count
        text = f"{1 / max(step_s, 1e-9):,.0f} steps/s in one process, without learning."
        add("note", "speed", text)
