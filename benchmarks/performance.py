"""docs/performance.md from the results of speed and learning."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from published import OURS, Json, marks, median_interval
from report import table

NAMES = {
    "flatout": "Flatout", "sb3": "Stable-Baselines3", "sbx": "SBX (Stable-Baselines3 in JAX)",
    "sb3-contrib": "sb3-contrib", "rejax": "rejax", "purejaxrl": "PureJaxRL",
    "sample-factory": "Sample Factory", "rllib": "RLlib", "rltools": "RLtools",
    "pytorch": "PyTorch",
}  # fmt: skip
RESULTS = "../benchmarks/RESULTS.md"
ELSEWHERE = (
    ("How fast are games alone?", "Atari", "atari.md", "steps-of-atari-games-alone"),
    ("What do spare environments save?", "slow resets", "guides/slow-environment.md#slow-resets",
     "slow-resets-with-and-without-spare-environments"),
    ("What does an actor process cost?", "placement", "placement.md#actor-processes",
     "what-an-actor-process-costs"),
    ("Are plans right?", "planning", "planning.md",
     "planning-predictions-and-choices-against-real-runs-long-tier"),
    ("How much sooner is a sweep done?", "sweeps", "sweeps.md",
     "sweep-32-trials-environments-on-the-device"),
    ("What does a long replay cost?", "replay", "replay.md", "memory-of-a-long-replay"),
    ("Do killed runs resume?", "reliability", "reliability.md", "kills"),
    ("What does a network cost?", "several machines", "guides/several-machines.md",
     "workers-on-a-ray-cluster-slow-environments"),
    ("Why can two devices be slower than one?", "two devices", "two-devices.md",
     "why-two-devices-can-be-slower-than-one"),
    ("What happens on a GPU?", "at 8 %", "guides/gpu-at-8-percent.md", "on-a-gpu-nvidia-h200"),
    ("Is `flatout explain` right?", "its reference", "explain-reference.md",
     "explaining-the-zoo-planted-causes-and-verdicts"),
)  # fmt: skip
"""Questions, with the name and address of a page and the place in RESULTS.md of their answers."""

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
TEXT = """# Performance

`python benchmarks/write_results.py` writes this page from the files in `benchmarks/results`.
[RESULTS.md]({results}) has each row's command, settings, versions, date and single
runs. Marks: *old*: the code or the settings have changed since the measurement. *mixed*: the runs
are of two versions of the code or of two kinds of machine.

## Speed at equal work

Flatout's speed divided by the other library's: at 2x Flatout is twice as fast. Each number is the
median of three pairs of runs, with the lowest and the highest. It is bold if the lowest is above
1.05.

{ratios}

Machines: {machines}.

## What was lost

Comparisons in which the lower end of the interval is not above 1:

{losses}

## Each side's own figures

Medians, Flatout / the other side; RESULTS.md has their intervals. The first update counts from the
start of the process, with imports and compilation; the memory is that of the largest process.

{figures}

## Do agents learn as well?

RESULTS.md says for each row what the score of a run is: the mean return of 20 greedy episodes after
training, the mean return of the last 100 training episodes, or the seconds to a goal. The verdict
depends on the difference of the interquartile means and its 95 % interval. If the whole interval is
within 10 % of the peer's mean, the sides are equal. If not, and it excludes zero, one side is
better. Otherwise the row is undecided. This test was fixed before the runs.

{learning}

## How it was measured

- **Equal work.** Every side makes the same number of steps and of updates, of equally many samples.
  Its own counters are read, and a row whose sides differ is refused. RESULTS.md states what
  differs all the same.
- **In turns.** The sides of a pair run one after another on the same machine, each in a process of
  its own, measured from outside. The lowest and the highest of three pairs hold the median of many
  pairs in 75 % of cases.
- **While learning** counts from a step at which every side has compiled its program and made an
  update, to the end. **Whole process** also includes imports, compilation and the steps before
  learning. The runs are short (RESULTS.md has their steps), so this part is large. No program was
  compiled in an earlier run.
- **The peers.** PyTorch has one thread where a second one slows it down. Releases are pinned,
  installed from registries, and not patched. Beside Stable-Baselines3, both sides step their
  environments in the main process.
- **Not measured**: peers on a GPU, other CPUs than those named, CleanRL, Brax.

## What limits a run

`flatout train` prints at its end where the time went, and `flatout explain RUN` what to change.

- **Environments in Python** take most of the time if the network is small. A faster environment,
  more processes ([placement](placement.md)) or a [compiled one](device-environments.md) helps; a
  GPU does not.
- **Resets** that take longer than some steps:
  [spare environments](guides/slow-environment.md#slow-resets).
- **Emulators** of Atari games take all cores: [pixels](guides/pixels.md).
- **Arithmetic** of large networks and of image classifiers is the same work in every library, so
  that gains are small. A GPU computes it faster ([at 8 %](guides/gpu-at-8-percent.md)).
- **Starting**: imports and compilation take seconds. Short runs do not earn them back.
- **The network** between machines: [several machines](guides/several-machines.md).

## Where the other measurements are

{elsewhere}
"""

Rows = Sequence[tuple[str, Json, Json]]
"""Name, description and results of each measured row."""


def performance_page(speed: Rows, learned: Rows) -> str:
    """The whole page."""
    tables = {
        "ratios": table(
            ["work", "compared with", *KINDS.values(), "marks"],
            [cells for row in speed for cells in ratios(*row)],
        ),
        "figures": table(
            ["work", "compared with", *FIGURES.values()],
            [cells for row in speed for cells in rates(*row)],
        ),
        "losses": losses(speed),
        "machines": machines(speed),
        "learning": table(
            ["goal", "side", "runs", "interquartile mean, 95 % interval", "verdict", "marks"],
            [cells for row in learned for cells in scores(*row)],
        ),
        "elsewhere": table(
            ["question", "page", "measured"],
            [
                [question, f"[{page}]({address})", f"[results]({RESULTS}#{place})"]
                for question, page, address, place in ELSEWHERE
            ],
        ),
    }
    return TEXT.format(results=RESULTS, **tables)


def ratios(name: str, row: Json, found: Json) -> Iterator[list[str]]:
    """A line for each peer of a row: Flatout's speed as a multiple of its speed."""
    for side, kinds in found["ratios"].items():
        cells = [multiple(kinds[kind]) if kind in kinds else "-" for kind in KINDS]
        yield [row["title"], NAMES[side], *cells, ", ".join(marks(found, row))]


def rates(name: str, row: Json, found: Json) -> Iterator[list[str]]:
    """A line for each peer of a row: both sides' own figures."""
    for side in found["ratios"]:
        cells = []
        for key in FIGURES:
            medians = [statistics.median(values_of(found, one, key) or [math.nan])
                       for one in (OURS, side)]  # fmt: skip
            words = [f"{value:,.{digits(key)}f}" for value in medians]
            cells.append("-" if any(map(math.isnan, medians)) else " / ".join(words))
        yield [row["title"], NAMES[side], *cells]


def scores(name: str, row: Json, found: Json) -> Iterator[list[str]]:
    """A line for each side of a row of learning."""
    for side, made in found["iqm"].items():
        verdict = found["tests"][side]["verdict"] if side in found["tests"] else ""
        runs = sum(run["side"] == side for run in found["runs"])
        yield [
            row["title"], NAMES[side], str(runs), interval_text(made), verdict,
            ", ".join(marks(found, row)),
        ]  # fmt: skip


def costs(speed: Rows) -> str:
    """The table of docs/start.md: how long usual trainings take, and their memory."""
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
    """Seconds in the unit that people would use."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def in_brackets(found: Sequence[str]) -> str:
    """A row's marks, behind its title."""
    return f" (*{', '.join(found)}*)" if found else ""


def costlier(speed: Rows, key: str, words: str) -> str:
    """In how many comparisons Flatout's median of a figure is the larger one."""
    pairs = list[bool]()
    for _, _, found in speed:
        medians = {side: statistics.median(made) for side in sides_of(found)
                   if (made := values_of(found, side, key))}  # fmt: skip
        pairs += [medians[OURS] > medians[side] for side in medians if side != OURS]
    return f"Flatout {words} in {sum(pairs)} of {len(pairs)} comparisons."


def losses(speed: Rows) -> str:
    """A list of the comparisons that are no gain: whose lower end is not above 1."""
    lines = []
    for _, row, found in speed:
        for side, kinds in found["ratios"].items():
            for kind, pairs in kinds.items():
                _, low, high = median_interval(pairs)
                if low <= 1:
                    word = "slower" if high < 1 else "undecided"
                    lines.append(
                        f"- {row['title']}, {KINDS[kind]}: {multiple(pairs)} {NAMES[side]}, {word}."
                    )
    return "\n".join([*(lines or ["- None."]), "", *(costlier(speed, *kind) for kind in DEARER)])


def machines(speed: Rows) -> str:
    """The classes of machine on which rows of speed were measured, with the number of rows."""
    found = dict[str, int]()
    for _, _, made in speed:
        named = {run["machine"] + (f", {run['isa']}" * bool(run["isa"])) for run in made["runs"]}
        for name in sorted(named or {made["published"]["machine"]}):
            found[name] = found.get(name, 0) + 1
    return "; ".join(f"{name} ({count} rows)" for name, count in found.items())


def sides_of(found: Json) -> list[str]:
    """The sides of a row's results, in the order of `NAMES`."""
    named = {run["side"] for run in found["runs"]} or found["published"]["sides"]
    return sorted(named, key=list(NAMES).index)


def values_of(found: Json, side: str, key: str) -> list[float]:
    """One figure of a side's runs, in so far as it was recorded."""
    values = [run[key] for run in found["runs"] if run["side"] == side and run[key] is not None]
    return values or found.get("published", {}).get("sides", {}).get(side, {}).get(key, [])


def figure(found: Json, side: str, key: str) -> str:
    """The median of one figure of a side, with its interval."""
    values = values_of(found, side, key)
    if not values:
        return "-"
    middle, low, high = (f"{value:,.{digits(key)}f}" for value in median_interval(values))
    return middle if len(values) == 1 else f"{middle} ({low}-{high})"


def digits(key: str) -> int:
    """Digits after the point of a figure."""
    return 0 if key in ("steps_per_s", "peak_mib") else 1


def multiple(pairs: Sequence[float]) -> str:
    """A multiple with the ends of its interval; bold where even the lower end is a gain."""
    middle, low, high = median_interval(pairs)
    digits = 2 if middle < 1.5 else 1
    words = f"{middle:.{digits}f}x"
    return f"{f'**{words}**' if low > 1.05 else words} ({low:.{digits}f}-{high:.{digits}f})"


def interval_text(values: Sequence[float]) -> str:
    """A number with the ends of its interval."""
    middle, low, high = (f"{value:,.{places(values)}f}" for value in values)
    return f"{middle} ({low} to {high})"


def places(values: Sequence[float]) -> int:
    """Digits after the point that scores of this size need."""
    largest = max(map(abs, values))
    return 0 if largest >= 100 else 1 if largest >= 10 else 2
