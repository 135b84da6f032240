"""The result of an evaluation, which `run/evaluate.py` makes and commands and callbacks read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        returns: raw, undiscounted returns of the episodes, in the order of their numbers.
        lengths: lengths of the episodes in steps, in the same order.
        success_rate: the mean of `is_success` over episodes whose final `info` has it, or None.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    success_rate: float | None = None

    @property
    def return_mean(self) -> float:
        """Mean of the returns over episodes."""
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        """Standard deviation of the returns over episodes."""
        return float(np.std(self.returns))

    @property
    def length_mean(self) -> float:
        """Mean of the lengths over episodes, in steps."""
        return float(np.mean(self.lengths))

    def words(self) -> str:
        """Return the result as a phrase for messages."""
        return (
            f"return {self.return_mean:.1f} ± {self.return_std:.1f} over {len(self.returns)} "
            "episodes"
        )

    def row(self) -> dict[str, float]:
        """Return the result as metrics by name."""
        success = {} if self.success_rate is None else {"eval/success_rate": self.success_rate}
        return {
            "eval/return_mean": self.return_mean, "eval/return_std": self.return_std,
            "eval/length_mean": self.length_mean, **success,
        }  # fmt: skip
