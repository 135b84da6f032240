"""Stable-Baselines3's callbacks, called from Flatout's.

Flatout calls callbacks after each iteration. Callbacks of this module are then called once for each
step of all environments in that iteration, so that `n_calls` and `num_timesteps` count as in
Stable-Baselines3; the agent has already learned from these steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flatout.errors import UsageError
from flatout.output import say
from flatout.run.callbacks import stops
from flatout.sb3.common.run_view import Locals, Logger
from flatout.sb3.common.vec_env import VecEnv


class BaseCallback:
    """Base of callbacks: override `_on_step`, which stops training by returning False.

    Attributes:
        model: the agent.
        n_calls, num_timesteps: the steps of all environments together, and their sum.
        parent: the callback that calls this one, if any.
    """

    parent: Any = None
    model: Any

    def __init__(self, verbose: int = 0) -> None:
        self.verbose: int = verbose
        self.n_calls: int = 0
        self.num_timesteps: int = 0
        self.locals: dict[str, Any] = {}
        self.globals: dict[str, Any] = {}

    @property
    def logger(self) -> Logger:
        """Where numbers are logged."""
        return self.model.logger

    @property
    def training_env(self) -> VecEnv:
        """Environments like those that the agent learns in."""
        return self.model.get_env()

    def init_callback(self, model: Any) -> None:
        """Set the agent; called when training starts."""
        self.model = model
        self.locals = Locals({"self": model})
        self._init_callback()

    def on_training_start(self, locals_: Any = None, globals_: Any = None) -> None:
        """Call `_on_training_start`."""
        self.num_timesteps = self.model.num_timesteps
        self._on_training_start()

    def on_rollout_start(self) -> None:
        """Call `_on_rollout_start`."""
        self._on_rollout_start()

    def on_step(self) -> bool:
        """Count a step and return what `_on_step` says."""
        self.n_calls += 1
        self.num_timesteps = self.model.num_timesteps
        return not stops(self._on_step())

    def on_rollout_end(self) -> None:
        """Call `_on_rollout_end`."""
        self._on_rollout_end()

    def on_training_end(self) -> None:
        """Call `_on_training_end`."""
        self._on_training_end()

    def update_locals(self, locals_: dict[str, Any]) -> None:
        """Do nothing: there are no local variables."""

    def update_child_locals(self, locals_: dict[str, Any]) -> None:
        """Do nothing: there are no local variables."""

    def _init_callback(self) -> None: ...

    def _on_training_start(self) -> None: ...

    def _on_rollout_start(self) -> None: ...

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None: ...

    def _on_training_end(self) -> None: ...


class CallbackList(BaseCallback):
    """Several callbacks, called in their order; each is called even if one stops training."""

    def __init__(self, callbacks: Sequence[BaseCallback]) -> None:
        super().__init__()
        self.callbacks = list(callbacks)

    def _init_callback(self) -> None:
        for one in self.callbacks:
            one.parent = self.parent
            one.init_callback(self.model)

    def _on_training_start(self) -> None:
        for one in self.callbacks:
            one.on_training_start()

    def _on_rollout_start(self) -> None:
        for one in self.callbacks:
            one.on_rollout_start()

    def _on_step(self) -> bool:
        found = [one.on_step() for one in self.callbacks]
        return all(found)

    def _on_rollout_end(self) -> None:
        for one in self.callbacks:
            one.on_rollout_end()

    def _on_training_end(self) -> None:
        for one in self.callbacks:
            one.on_training_end()


class ConvertCallback(BaseCallback):
    """A function ``callback(locals, globals)``, where locals hold the agent as ``"self"``."""

    def __init__(self, callback: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
        super().__init__()
        self.callback = callback

    def _on_step(self) -> bool:
        return not stops(self.callback(self.locals, self.globals))


class EventCallback(BaseCallback):
    """A callback that calls another one at an event."""

    def __init__(self, callback: BaseCallback | None = None, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.callback = callback
        if callback is not None:
            callback.parent = self

    def _init_callback(self) -> None:
        if self.callback is not None:
            self.callback.init_callback(self.model)

    def _on_training_start(self) -> None:
        if self.callback is not None:
            self.callback.on_training_start()

    def _on_event(self) -> bool:
        return self.callback is None or self.callback.on_step()


class EveryNTimesteps(EventCallback):
    """Call a callback every `n_steps` environment steps."""

    def __init__(self, n_steps: int, callback: BaseCallback) -> None:
        super().__init__(callback)
        self.n_steps, self.last_time_trigger = n_steps, 0

    def _on_step(self) -> bool:
        if self.num_timesteps - self.last_time_trigger < self.n_steps:
            return True
        self.last_time_trigger = self.num_timesteps
        return self._on_event()


class CheckpointCallback(BaseCallback):
    """Save the agent every `save_freq` steps of all environments, as
    ``PREFIX_STEPS_steps.safetensors``. Statistics of normalisation are part of the file."""

    def __init__(
        self, save_freq: int, save_path: str | Path, name_prefix: str = "rl_model",
        save_replay_buffer: bool = False, save_vecnormalize: bool = False, verbose: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(verbose)
        if save_replay_buffer:
            raise UsageError(
                "CheckpointCallback does not save replay: learn(run_dir=...) keeps it in the run "
                "folder."
            )
        self.save_freq, self.save_path = save_freq, Path(save_path).absolute()
        self.name_prefix = name_prefix

    def _on_step(self) -> bool:
        if self.n_calls % self.save_freq == 0:
            name = f"{self.name_prefix}_{self.num_timesteps}_steps.safetensors"
            self.model.save(self.save_path / name)
            if self.verbose >= 2:
                say(f"saved {self.save_path / name}")
        return True


class EvalCallback(EventCallback):
    """Evaluate every `eval_freq` steps of all environments, and save the best agent as
    ``best_model.safetensors``.

    Steps of one iteration have the same parameters, and so the same evaluation.
    """

    def __init__(
        self, eval_env: Any, callback_on_new_best: BaseCallback | None = None,
        callback_after_eval: BaseCallback | None = None, n_eval_episodes: int = 5,
        eval_freq: int = 10_000, log_path: str | Path | None = None,
        best_model_save_path: str | Path | None = None, deterministic: bool = True,
        render: bool = False, verbose: int = 1, warn: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(callback_after_eval, verbose)
        if render:
            raise UsageError("EvalCallback does not render: flatout.RecordEvery writes videos.")
        self.eval_env = eval_env
        self.callback_on_new_best = callback_on_new_best
        if callback_on_new_best is not None:
            callback_on_new_best.parent = self
        self.n_eval_episodes, self.eval_freq = n_eval_episodes, eval_freq
        self.deterministic = deterministic
        self.best_mean_reward = self.last_mean_reward = -np.inf
        folders = (log_path, best_model_save_path)  # an environment may change the working folder
        self._logs, self._best = (None if f is None else Path(os.path.abspath(f)) for f in folders)
        self.evaluations_timesteps: list[int] = []
        self.evaluations_results: list[list[float]] = []
        self.evaluations_length: list[list[int]] = []
        self._found: tuple[int, Any] | None = None

    def _init_callback(self) -> None:
        super()._init_callback()
        self._found = None  # of the run before
        if self.callback_on_new_best is not None:
            self.callback_on_new_best.init_callback(self.model)

    def _on_step(self) -> bool:
        if self.eval_freq <= 0 or self.n_calls % self.eval_freq:
            return True
        found = self._evaluated()
        self.last_mean_reward = found.return_mean
        self.evaluations_timesteps.append(self.num_timesteps)
        self.evaluations_results.append(list(found.returns))
        self.evaluations_length.append(list(found.lengths))
        if self._logs is not None:
            self._logs.mkdir(parents=True, exist_ok=True)
            np.savez(
                self._logs / "evaluations.npz", timesteps=self.evaluations_timesteps,
                results=self.evaluations_results, ep_lengths=self.evaluations_length,
            )  # fmt: skip
        self.logger.record("eval/return_mean", found.return_mean)
        if self.verbose:
            say(
                f"evaluation after {self.num_timesteps:,} steps: mean return "
                f"{found.return_mean:.2f} of {self.n_eval_episodes} episodes"
            )
        goes_on = True
        if found.return_mean > self.best_mean_reward:
            self.best_mean_reward = found.return_mean
            if self._best is not None:
                self.model.save(self._best / "best_model.safetensors")
            if self.callback_on_new_best is not None:
                goes_on = self.callback_on_new_best.on_step()
        return self._on_event() and goes_on

    def _evaluated(self) -> Any:
        """Return the evaluation of the present parameters."""
        version = self.model._run_view.progress.iterations
        if self._found is None or self._found[0] != version:
            found = self.model.evaluate(
                self.n_eval_episodes, env=self.eval_env, deterministic=self.deterministic
            )
            self._found = version, found
        return self._found[1]


class StopTrainingOnRewardThreshold(BaseCallback):
    """Stop once the mean return of an evaluation reaches a threshold; for `EvalCallback`."""

    def __init__(self, reward_threshold: float, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.reward_threshold = reward_threshold

    def _on_step(self) -> bool:
        return _evaluations(self).best_mean_reward < self.reward_threshold


class StopTrainingOnNoModelImprovement(BaseCallback):
    """Stop after more than `max_no_improvement_evals` evaluations in a row without a better one,
    not counting the first `min_evals`; for `EvalCallback`."""

    def __init__(
        self, max_no_improvement_evals: int, min_evals: int = 0, verbose: int = 0
    ) -> None:  # fmt: skip
        super().__init__(verbose)
        self.max_no_improvement_evals, self.min_evals = max_no_improvement_evals, min_evals
        self.last_best_mean_reward, self.no_improvement_evals = -np.inf, 0

    def _on_step(self) -> bool:
        best = _evaluations(self).best_mean_reward
        if self.n_calls > self.min_evals:
            better = best > self.last_best_mean_reward
            self.no_improvement_evals = 0 if better else self.no_improvement_evals + 1
        self.last_best_mean_reward = best
        return self.no_improvement_evals <= self.max_no_improvement_evals


class StopTrainingOnMaxEpisodes(BaseCallback):
    """Stop once each environment has ended `max_episodes` episodes on average since the first
    `learn` with this callback."""

    def __init__(self, max_episodes: int, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.max_episodes, self.n_episodes = max_episodes, 0
        self._before = 0  # episodes of the run that are not counted

    def _on_training_start(self) -> None:
        self._before = self.model._run_view.progress.episodes - self.n_episodes

    def _on_step(self) -> bool:
        self.n_episodes = self.model._run_view.progress.episodes - self._before
        return self.n_episodes < self.max_episodes * self.model.n_envs


class ProgressBarCallback(BaseCallback):
    """A callback that does nothing: ``learn(progress_bar=True)`` shows the live display."""


def _evaluations(callback: BaseCallback) -> EvalCallback:
    if not isinstance(callback.parent, EvalCallback):
        raise UsageError(
            f"{type(callback).__name__} is a part of EvalCallback: pass it as callback_on_new_best="
            " or callback_after_eval=."
        )
    return callback.parent
