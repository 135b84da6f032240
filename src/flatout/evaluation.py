"""The result of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Evaluation:
    """Raw returns and lengths of evaluation episodes, in the order of their numbers; and the mean
    of `is_success` over those whose final `info` has it."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    success_rate: float | None = None

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        """Standard deviation of the returns over episodes."""
        return float(np.std(self.returns))

    @property
    def length_mean(self) -> float:
        return float(np.mean(self.lengths))

    def words(self) -> str:
        """The result in a sentence."""
        return (
            f"return {self.return_mean:.1f} ± {self.return_std:.1f} over {len(self.returns)} "
            "episodes"
        )

    def row(self) -> dict[str, float]:
        """The result as a row of metrics."""
        success = {} if self.success_rate is None else {"eval/success_rate": self.success_rate}
        return {
            "eval/return_mean": self.return_mean, "eval/return_std": self.return_std,
            "eval/length_mean": self.length_mean, **success,
        }  # fmt: skip
