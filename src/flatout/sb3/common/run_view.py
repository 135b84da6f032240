"""The run as callbacks of Stable-Baselines3's kind see it."""

from __future__ import annotations

from typing import Any, NoReturn

from flatout.errors import UsageError
from flatout.run.callbacks import Run


class Logger:
    """Where callbacks log numbers; rows of metrics hold the means."""

    def __init__(self, run: Run | None) -> None:
        self._run = run

    def record(self, key: str, value: Any, exclude: Any = None) -> None:
        """Log one number under a name."""
        if self._run is None:
            raise UsageError("logger.record works in a callback, while the agent learns.")
        self._run.log(key, value)

    record_mean = record

    def dump(self, step: int = 0) -> None:
        """Do nothing: rows are written every `log_every` steps."""


class Locals(dict[str, Any]):
    """The variables of a training loop that Stable-Baselines3 shows to callbacks."""

    def __missing__(self, name: str) -> NoReturn:
        raise UsageError(
            f"locals[{name!r}] is not available: a flatout.Callback has run.episodes, run.metrics "
            "and run.progress."
        )
