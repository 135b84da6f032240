"""The JSON report as types: ``--json`` writes it, ``--diff`` reads it, and the schema describes it.

`tools/write_reference.py` writes the schema to docs/reference/explain-report.schema.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from flatout_explain.diagnosis import SCHEMA
from flatout_explain.errors import FlatoutError, one_line

Interval = tuple[float, float]


def says(words: str) -> Meta:
    """Return the description of a key in the schema."""
    return Meta(description=words)


Share = Annotated[float, Meta(description="A share of the time, 0 to 1.", ge=-0.01, le=1.01)]


class Start(msgspec.Struct):
    """A remedy that needs no change of the source, only another start of the program."""

    variables: Annotated[list[str], says("Variables of its environment, NAME=VALUE.")]
    processes: Annotated[int | None, says("Number of background processes that load data.")]


class Finding(msgspec.Struct, omit_defaults=True):
    """A cause of lost time."""

    id: Annotated[str, says("The cause: docs/reference/causes.md lists them.")]
    share: Share
    evidence: Annotated[list[str], says("Sentences with numbers, the most telling one first.")]
    remedy: Annotated[str, says("What to change; empty if nothing is proposed.")]
    place: Annotated[tuple[str, int] | None, says("File and line to change.")]
    interval: Annotated[Interval | None, says("Holds the share with 95 %; absent if unknown.")] = (
        None
    )
    setting: Annotated[list[str], says("Flags of Flatout that apply the remedy.")] = []
    command: Annotated[
        list[str], says("Words of a whole command that trains with these flags.")
    ] = []
    trial: Annotated[
        Start | None, says("How to start the program with the remedy, if that is all it needs.")
    ] = None
    gain: Annotated[
        float | None, says("The measured ratio of speeds, with the remedy to without.")
    ] = None
    low: Annotated[float | None, says("Lower end of the gain's interval.")] = None
    high: Annotated[float | None, says("Upper end of the gain's interval.")] = None
    how: Annotated[str | None, says("How the gain was measured.")] = None


class LineShare(msgspec.Struct):
    """A line of the program, and its share of the time in one phase."""

    phase: str
    place: Annotated[str, says("File and line, such as train.py:40; empty if unknown.")]
    text: Annotated[str, says("The line's source, or the name of its call.")]
    share: Share


class WorkRate(msgspec.Struct):
    """How much work of a kind was done per second."""

    per_s: Annotated[float, Meta(gt=0)]
    interval: Annotated[Interval | None, says("Holds the rate with 95 %.")] = None


class Rank(msgspec.Struct):
    """One of several processes that exchange data by collective operations."""

    name: Annotated[str, says("rank N, or process PID where its number is unknown.")]
    pid: Annotated[int, says("Its process's id; 0 in traces.")]
    own: Annotated[Share, says("Share of its time outside of collective operations.")]
    exchanges: Annotated[Share, says("Share of its time in them, with waiting for other ranks.")]
    late: Annotated[Share, says("By how much that is more than the slowest rank's.")]
    phases: Annotated[dict[str, Share], says("Shares of its time by phase.")]


class MachineTime(msgspec.Struct):
    """A machine of a cluster, on which workers of a run collect."""

    name: str
    workers: int
    work: Annotated[Share, says("Share of the time in which one of its workers collected.")]
    way: Annotated[Share, says("Share in which requests to it and its answers were on the way.")]
    held: Annotated[Share, says("Share for which the run waited for it alone.")]
    clock_s: Annotated[float, says("Seconds by which its aligned clock may be wrong.")]


class Moved(msgspec.Struct):
    """A phase whose share changed, of ``--against``."""

    phase: str
    was: Share
    now: Share
    was_s: Annotated[float | None, says("Seconds for one unit of work.")] = None
    now_s: Annotated[float | None, says("Seconds for one unit of work.")] = None


class Against(msgspec.Struct):
    """The comparison with a second program, of ``--against``."""

    command: Annotated[str, says("The second program's command line.")]
    count: Annotated[str | None, says("The function whose calls were counted.")]
    unit: Annotated[str, says("What the speeds count.")]
    was: Annotated[float, says("The first program's speed per second.")]
    now: Annotated[float, says("The second program's speed per second.")]
    gain: Annotated[float, says("The ratio of the speeds.")]
    low: Annotated[float | None, says("Lower end of its interval.")]
    high: Annotated[float | None, says("Upper end of its interval.")]
    pairs: Annotated[int, says("Number of pairs of speeds.")]
    moved: list[Moved]
    notes: list[str]
    same: Annotated[bool | None, says("Whether no difference was seen; null if that is undecided.")]


class Trial(msgspec.Struct):
    """The measured trial of a setting, of ``--try``."""

    finding: Annotated[Finding | None, says("The finding whose setting was tried.")]
    steps_per_s: Annotated[list[float], says("Speeds without the setting.")]
    steps_per_s_with: Annotated[list[float], says("Speeds with it.")]
    gain: float | None
    low: float | None
    high: float | None
    learning: Annotated[str, says("A sentence about how learning differs.")]


class Report(msgspec.Struct, omit_defaults=True):
    """The report of flatout explain, without its timeline. Other keys may be added to a version."""

    schema: Annotated[Literal[1], says("Version of this form.")]
    kind: Annotated[Literal["program", "run", "trace"], says("What was explained.")]
    subject: Annotated[str, says("The command line, the run's folder or the file of the trace.")]
    verdict: Annotated[str, says("A cause's id, healthy, or unknown.")]
    headline: Annotated[str, says("The verdict's sentence.")]
    findings: Annotated[list[Finding], says("The one to act on first comes first.")]
    seconds: Annotated[float, says("Explained time in seconds: the steady state.")]
    apart: Annotated[list[tuple[str, float]], says("What the shares leave out, with its seconds.")]
    phases: Annotated[dict[str, Share], says("Shares of the explained time by phase.")]
    intervals: Annotated[
        dict[str, Interval], says("Hold the phases' shares with 95 %, where known.")
    ]
    heaviest: Annotated[
        list[LineShare], says("The lines that take most time, in order of their phases.")
    ]
    work: Annotated[dict[str, WorkRate], says("By unit, counted work per second.")]
    ranks: Annotated[
        list[Rank], says("The ranks of a distributed program; empty for other programs.")
    ]
    slowest: Annotated[str, says("Name of the rank for which the others wait; empty without one.")]
    cores: Annotated[int, says("Logical cores that the program may use.")]
    machine: str
    notes: Annotated[list[str], says("What could not be seen.")]
    part: Annotated[str, says("Why only a part of a cycle was seen; empty if all was seen.")]
    lines: Annotated[dict[str, str], says("Each phase's heaviest line in words.")]
    marked: Annotated[dict[str, Share], says("Shares by phase that marks decided.")]
    busy: Annotated[dict[str, Share], says("Shares in which recorded devices computed.")]
    recorded: Annotated[list[str], says("What the program's own profiler recorded.")]
    ended: Annotated[str, says("How the program ended, if it failed or ended at once.")]
    resets: Annotated[
        Share, says("Share of the time in which environments are reset, a part of env's.")
    ] = 0.0
    machines: Annotated[
        list[MachineTime], says("Machines of a cluster; absent without one.")
    ] = []  # fmt: skip
    tie: Annotated[list[str], says("The two causes of a tie; absent without one.")] = []
    against: Against | None = None
    trial: Trial | None = None


def read(values: dict[str, Any], path: Path) -> Report:
    """Read the value of a saved report.

    Raises:
        FlatoutError: it is of another version, or damaged.
    """
    version = values.get("schema")
    if version != SCHEMA:
        form = "without a version" if version is None else f"of version {version}"
        raise FlatoutError(
            f"{path} is a report {form}, and this tool reads version {SCHEMA}: explain "
            "the program again, or use the version that wrote the file."
        )
    try:
        return msgspec.convert(values, Report)
    except msgspec.ValidationError as error:
        raise FlatoutError(
            f"{path} is a damaged report ({one_line(error)}): write it again."
        ) from None


def schema() -> dict[str, Any]:
    """Return the JSON schema of a report."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | msgspec.json.schema(Report)
