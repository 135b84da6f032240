"""The tables of docs/performance.md, from the results of speed and learning."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from published import OURS, Json, marks, median_interval, ratios
from report import table

NAMES = {
    "flatout": "Flatout", "sb3": "Stable-Baselines3", "sbx": "SBX (Stable-Baselines3 in JAX)",
    "sb3-contrib": "sb3-contrib", "rejax": "rejax",
    "sample-factory": "Sample Factory", "rllib": "RLlib", "rltools": "RLtools",
    "pytorch": "PyTorch",
}  # fmt: skip
FIGURES = {
    "steps_per_s": "steps/s", "process_s": "whole process, s", "first_update_s": "first update, s",
    "peak_mib": "peak memory, MiB",
}  # fmt: skip
DEARER = (
    ("peak_mib", "took more memory"), ("first_update_s", "made its first update later"),
)  # fmt: skip
COSTS = {
    "ppo-cartpole": 100_000, "ppo-halfcheetah": 1_000_000, "sac-pendulum": 20_000,
    "ppo-breakout-8": 10_000_000, "dqn-breakout-8": 10_000_000,
}  # fmt: skip
"""Rows of docs/start.md, with the steps of a usual training."""
KINDS = {"steady": "while learning", "whole": "whole process"}
Rows = Sequence[tuple[str, Json, Json]]
"""Name, description and results of each measured row."""


def performance_parts(speed: Rows, learned: Rows) -> dict[str, str]:
    """Return the generated parts of the page, by the names of their markers."""
    return {
        "ratios": table(
            ["work", "compared with", *KINDS.values(), "marks"],
            [cells for row in speed for cells in multiples(*row)],
        ),
        "machines": f"Machines: {machines(speed)}.",
        "losses": losses(speed),
        "figures": table(
            ["work", "compared with", *FIGURES.values()],
            [cells for row in speed for cells in rates(*row)],
        ),
        "learning": table(
            ["goal", "side", "runs", "interquartile mean, 95 % interval", "verdict", "marks"],
            [cells for row in learned for cells in scores(*row)],
        ),
    }


def multiples(name: str, row: Json, found: Json) -> Iterator[list[str]]:
    """Yield a line for each peer of a row: Flatout's speed as a multiple of its speed."""
    for side, kinds in ratios(found).items():
        cells = [multiple(kinds[kind]) for kind in KINDS]
        yield [row["title"], NAMES[side], *cells, ", ".join(marks(found, row))]


def rates(name: str, row: Json, found: Json) -> Iterator[list[str]]:
    """Yield a line for each peer of a row: both sides' own figures."""
    for side in ratios(found):
        cells = []
        for key in FIGURES:
            medians = [statistics.median(values_of(found, one, key) or [math.nan])
                       for one in (OURS, side)]  # fmt: skip
            words = [f"{value:,.{digits(key)}f}" for value in medians]
            cells.append("-" if any(map(math.isnan, medians)) else " / ".join(words))
        yield [row["title"], NAMES[side], *cells]


def scores(name: str, row: Json, found: Json) -> Iterator[list[str]]:
    """Yield a line for each side of a row of learning."""
    for side, made in found["iqm"].items():
        verdict = found["tests"][side]["verdict"] if side in found["tests"] else ""
        yield [
            row["title"], NAMES[side], count(found, side), interval_text(made), verdict,
            ", ".join(marks(found, row)),
        ]  # fmt: skip


def count(found: Json, side: str) -> str:
    """Return the number of a side's runs."""
    return str(sum(run["side"] == side for run in found["runs"]))


def costs(speed: Rows) -> str:
    """Return the table of docs/start.md: how long usual trainings take, and their memory."""
    body = []
    for name, row, found in speed:
        if steps := COSTS.get(name):
            rate, first, peak = (
                statistics.median(values_of(found, OURS, key) or [0])
                for key in ("steps_per_s", "first_update_s", "peak_mib")
            )
            title = f"{row['title']}: {steps:,} steps{in_brackets(marks(found, row))}"
            cells = [duration(first + steps / rate), f"{rate:,.0f}", f"{peak / 1024:.1f} GiB"]
            body.append([title, *cells, f"`--row {name}`"])
    return table(["training", "time", "steps/s", "memory", "measured by"], body)


def duration(seconds: float) -> str:
    """Return seconds in the unit that people would use."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def in_brackets(found: Sequence[str]) -> str:
    """Return a row's marks, as they stand behind its title."""
    return f" (*{', '.join(found)}*)" if found else ""


def costlier(speed: Rows, key: str, words: str) -> str:
    """Say in how many comparisons Flatout's median of a figure is the larger one."""
    pairs = list[bool]()
    for _, _, found in speed:
        medians = {side: statistics.median(made) for side in sides_of(found)
                   if (made := values_of(found, side, key))}  # fmt: skip
        pairs += [medians[OURS] > medians[side] for side in medians if side != OURS]
    return f"Flatout {words} in {sum(pairs)} of {len(pairs)} comparisons."


def losses(speed: Rows) -> str:
    """Return a list of the comparisons whose lower end is not above 1."""
    lines = []
    for _, row, found in speed:
        for side, kinds in ratios(found).items():
            for kind, pairs in kinds.items():
                _, low, high = median_interval(pairs)
                if low <= 1:
                    word = "slower" if high < 1 else "undecided"
                    lines.append(
                        f"- {row['title']}, {KINDS[kind]}: {multiple(pairs)} {NAMES[side]}, {word}."
                    )
    return "\n".join([*(lines or ["- None."]), "", *(costlier(speed, *kind) for kind in DEARER)])


def machines(speed: Rows) -> str:
    """Return the classes of machine of the rows of speed, with the number of rows."""
    found = dict[str, int]()
    for _, _, made in speed:
        for name in sorted(set(machines_of(made))):
            found[name] = found.get(name, 0) + 1
    return "; ".join(f"{name} ({count} rows)" for name, count in found.items())


def machines_of(found: Json) -> list[str]:
    """Return the class of machine of each of a row's runs."""
    return [run["machine"] + (f", {run['isa']}" if run["isa"] else "") for run in found["runs"]]


def sides_of(found: Json) -> list[str]:
    """Return the sides of a row's results, in the order of `NAMES`."""
    return sorted({run["side"] for run in found["runs"]}, key=list(NAMES).index)


def values_of(found: Json, side: str, key: str) -> list[float]:
    """Return one figure of a side's runs, as far as it was recorded."""
    return [run[key] for run in found["runs"] if run["side"] == side and run[key] is not None]


def figure(found: Json, side: str, key: str) -> str:
    """Return the median of one figure of a side, with its interval."""
    values = values_of(found, side, key)
    if not values:
        return "-"
    middle, low, high = (f"{value:,.{digits(key)}f}" for value in median_interval(values))
    return middle if len(values) == 1 else f"{middle} ({low}-{high})"


def digits(key: str) -> int:
    """Return the number of digits after the point of a figure."""
    return 0 if key in ("steps_per_s", "peak_mib") else 1


def multiple(pairs: Sequence[float]) -> str:
    """Return a multiple with its interval; bold if even the lower end is a gain."""
    middle, low, high = median_interval(pairs)
    digits = 2 if middle < 1.5 else 1
    words = f"{middle:.{digits}f}x"
    return f"{f'**{words}**' if low > 1.05 else words} ({low:.{digits}f}-{high:.{digits}f})"


def interval_text(values: Sequence[float]) -> str:
    """Return a number with the ends of its interval."""
    middle, low, high = (f"{value:,.{places(values)}f}" for value in values)
    return f"{middle} ({low} to {high})"


def places(values: Sequence[float]) -> int:
    """Return the digits after the point that scores of this size need."""
    largest = max(map(abs, values))
    return 0 if largest >= 100 else 1 if largest >= 10 else 2
