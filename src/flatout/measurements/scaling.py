"""The speed-up by several devices, and the cause of what is missing from a full one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flatout.errors import UsageError

PARTS = ("compute", "averaging", "input", "dispatch", "waiting", "other")
"""The parts into which the seconds of training are divided."""

CAUSES = {
    "compute": ("compute-bound", "the arithmetic itself: each device's share is too small to be "
                "done faster"),
    "averaging": ("communication-bound", "averaging gradients between the devices"),
    "dispatch": ("launch-bound", "starting programs on the devices"),
    "input": ("input-bound", "what one host does: collecting what is learned, and handing it over"),
    "waiting": ("waiting", "waiting for the slowest"),
    "other": ("io-bound", "logs, checkpoints and tests, which do not become faster"),
}  # fmt: skip
WINS = 1.05
"""The least speed-up that counts as one."""


@dataclass(frozen=True)
class Row:
    """The measurements on one number of devices.

    Attributes:
        seconds: the time of training, after start-up.
        steps_per_s: environment steps (classify: gradient steps) per second.
        examples_per_s: rows for which gradients were computed, per second.
        parts: `seconds` divided into `PARTS`.
    """

    devices: int
    seconds: float
    steps_per_s: float
    examples_per_s: float
    parts: dict[str, float]


@dataclass(frozen=True)
class Scaling:
    """The same work on several numbers of devices, the smallest first.

    Attributes:
        cores: the number of the host's cores.
        virtual: whether the devices are virtual devices of the CPU.
    """

    rows: Sequence[Row]
    cores: int
    virtual: bool

    def speed_up(self, row: Row) -> float:
        """Return the speed as a multiple of that on the smallest number of devices."""
        return self.rows[0].seconds / row.seconds

    def efficiency(self, row: Row) -> float:
        """Return the speed-up as a share of the increase in devices."""
        return self.speed_up(row) * self.rows[0].devices / row.devices

    def as_json(self) -> dict[str, Any]:
        """Return the values that ``--json`` prints."""
        cause, words = self.verdict()
        return {
            "rows": [
                asdict(row)
                | {"speed_up": self.speed_up(row), "efficiency": self.efficiency(row)}
                for row in self.rows
            ],
            "cores": self.cores, "virtual": self.virtual, "verdict": cause, "headline": words,
        }  # fmt: skip

    def verdict(self) -> tuple[str, str]:
        """Return a cause (or ``healthy``) and its sentence, about the largest number of devices."""
        first, last = self.rows[0], self.rows[-1]
        if len(self.rows) < 2:
            return "healthy", "there is nothing to compare with"
        gained, efficiency = self.speed_up(last), self.efficiency(last)
        # The part that most exceeds its expected time on this number of devices.
        ideal = first.parts | {"compute": first.parts["compute"] * first.devices / last.devices}
        excess = {name: last.parts[name] - ideal[name] for name in PARTS}
        eaten, more = max(excess.items(), key=lambda item: item[1])
        faster, many = gained >= WINS, f"{last.devices} devices"
        few = "one" if first.devices == 1 else str(first.devices)
        slower = "no faster" if gained > 1 / WINS else f"{1 / gained:.2f} times slower"
        words = f"{many} are {slower} than {few}"
        if faster:
            share = f"{efficiency:.0%} of {last.devices} times"
            words = f"{many} are {gained:.2f} times as fast, {share}"
        if faster and (efficiency > 0.8 or more <= 0):
            return "healthy", words
        join = "; " if faster else ": "
        if self.virtual and eaten == "compute":
            shared = f"they are virtual, and share the same {self.cores} cores"
            return "oversubscribed", f"{words}{join}{shared}"
        cause, what = CAUSES[eaten]
        if eaten == "compute" and not faster:
            cause = "launch-bound"
        lost = (
            "most of the rest goes" if faster else f"{more:.2f} s more than {many} should take go"
        )
        return cause, f"{words}{join}{lost} into {what}"


def split(summary: Mapping[str, Any], costs: Mapping[str, float]) -> dict[str, float]:
    """Divide the seconds of training in a run's summary into `PARTS`.

    Args:
        summary: the values of summary.json.
        costs: the seconds of one average of the gradients (`average_s`) and of starting a program
            (`dispatch_s`), and the numbers of both (`averages` and `dispatches`).
    """
    wall = summary["wall_s"]
    spent = {name: share * wall for name, share in summary["phases"].items()}
    learn = spent["learn"]
    averaging = min(costs["average_s"] * costs["averages"], learn)
    dispatch = min(costs["dispatch_s"] * costs["dispatches"], learn - averaging)
    feeding = ("env", "act", "input", "replay", "transfer", "publish")
    parts = {
        "compute": learn - averaging - dispatch, "averaging": averaging,
        "input": sum(spent[name] for name in feeding),
        "dispatch": dispatch, "waiting": spent["wait"],
    }  # fmt: skip
    return parts | {"other": max(training_s(summary) - sum(parts.values()), 0.0)}


def training_s(summary: Mapping[str, Any]) -> float:
    """Return the seconds of training after start-up."""
    return summary["steps"] / summary["steps_per_s"]


def refuse_unequal(work: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse to compare runs whose work (numbers and settings by name) differs.

    Raises:
        UsageError: the message names what differs.
    """
    for key in sorted({key for done in work.values() for key in done}):
        values = {name: done.get(key) for name, done in work.items()}
        if len({repr(value) for value in values.values()}) > 1:
            shown = ", ".join(
                f"{name} {value:{',' if type(value) is int else ''}}"
                for name, value in values.items()
            )
            raise UsageError(
                f"these runs did unequal work, so their times do not compare: {key} is {shown}."
            )
