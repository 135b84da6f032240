"""Stable-Baselines3's callbacks as one of Flatout's."""

from __future__ import annotations

from typing import Any

from flatout.errors import UsageError, short
from flatout.run.callbacks import Callback, Run, refuse_arguments
from flatout.sb3.common.callbacks import BaseCallback, ConvertCallback


class _Adapter(Callback):
    """A callback of Flatout's kind that calls one of Stable-Baselines3's kind."""

    def __init__(self, callback: BaseCallback, agent: Any) -> None:
        self._callback, self._agent = callback, agent
        self._steps = 0

    def on_start(self, run: Run) -> None:
        self._agent._run_view, self._steps = run, run.progress.steps
        self._callback.init_callback(self._agent)
        self._callback.on_training_start()

    def on_iteration(self, run: Run) -> bool:
        callback, each = self._callback, self._agent.n_envs
        callback.on_rollout_start()
        before, self._steps = self._steps, run.progress.steps
        goes_on = True
        try:
            for step in range(before + each, self._steps + 1, each):
                self._agent._step = step
                goes_on = callback.on_step()
                if not goes_on:
                    break
        finally:
            self._agent._step = None
        callback.on_rollout_end()
        return goes_on

    def on_end(self, run: Run) -> None:
        self._callback.on_training_end()


def attached(given: Any, agent: Any) -> list[Any]:
    """Return callbacks as `flatout.Agent.learn` takes them.

    Raises:
        UsageError: one is a class, or neither a callback nor a function; or a function takes other
            arguments than ``(locals, globals)``.
    """
    if given is None:
        return []
    each = list(given) if isinstance(given, list | tuple) else [given]
    found: list[Any] = []
    for one in each:
        if isinstance(one, Callback):
            found.append(one)
        elif isinstance(one, BaseCallback):
            found.append(_Adapter(one, agent))
        elif callable(one) and not isinstance(one, type):
            refuse_arguments(one, ("locals", "globals"))
            found.append(_Adapter(ConvertCallback(one), agent))
        else:
            raise UsageError(
                f"callback = {short(one)} is neither a callback of flatout.sb3 or of Flatout nor a "
                "function callback(locals, globals)."
            )
    return found
