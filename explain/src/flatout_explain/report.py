"""A diagnosis in the terminal: the verdict, one thing to try, then the evidence.

The rows, words and figures that every form of the report shares are made here: the verdict
(`verdict_parts`), what to try (`advised`), the shares of the time (`time_rows`), measured gains in
words, and the mean use of the hardware (`meters`). Texts of the user (command lines, file names)
are shown as they are, never read as markup; characters that could steer a terminal are replaced
(`clean`).
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PureWindowsPath

from rich.console import Console
from rich.control import strip_control_codes
from rich.text import Text

from flatout_explain.causes import HEALTHY, OVERLAPPING, UNKNOWN
from flatout_explain.diagnosis import Diagnosis, Finding, MachineTime, MeasuredGain, Rank
from flatout_explain.hardware.core_use import seconds_within
from flatout_explain.hardware.gpus import GpuSample
from flatout_explain.output import on_one_line, plain, printable
from flatout_explain.phases import PHASES
from flatout_explain.ranking import LOST, causes, tied
from flatout_explain.timespans import weighted_mean

SHOWN_SHARE = 0.01  # phases below this share of the time are not listed in a terminal

TIE = "a tie"  # the verdict's name where two causes may be the largest

INDENT = 9
BAR = 24
GOOD, BAD, QUIET = "bold green", "bold yellow", "dim"


@dataclass(frozen=True)
class Meter:
    """How much of one piece of hardware was used over time."""

    name: str  # what is measured, for a reader ("GPU 0 busy")
    meaning: str  # what its share is a share of
    kind: str  # ``busy`` (the rest was idle), ``full`` or ``memory`` (the rest was merely unused)
    values: tuple[float | None, ...]  # a share, 0 to 1, for every sample; None where unknown
    others: tuple[float | None, ...]  # the same with everybody's programs counted
    mean: float | None  # over the explained time; None where unknown
    mean_others: float | None


CommandLines = Callable[[str, int], Sequence[str]]
"""Breaks a command into lines of a width, which a shell reads as one."""


def one_line(command: str, width: int) -> list[str]:
    """Leave a command on one line."""
    return [command]


def show(diagnosis: Diagnosis, console: Console, command_lines: CommandLines = one_line) -> None:
    """Print the report; in a pipe every paragraph is one line."""
    healthy = diagnosis.verdict == HEALTHY
    _say(console, "ENDED", [Text(words, style=BAD) for words in [diagnosis.ended] if words])
    words = ": ".join(filter(None, verdict_parts(diagnosis)))
    _say(console, "VERDICT", [Text(words, style=GOOD if healthy else BAD)])
    show_advice(diagnosis, console, command_lines)
    if diagnosis.findings:
        first = diagnosis.findings[0]
        _say(console, "EVIDENCE", [Text(sentence) for sentence in first.evidence])
        others = diagnosis.findings[1:]
        _say(console, "ALSO", _columns([_also(diagnosis, finding) for finding in others]))
    _say(console, "TIME", _bars(diagnosis, console))
    _say(console, "RANKS", [Text(line) for line in rank_lines(diagnosis)])
    _say(console, "MACHINES", [Text(line) for line in machine_lines(diagnosis)])
    used = (meter for meter in meters(diagnosis) if meter.kind != "memory")
    rows = [(meter.name, *mean_words(meter)) for meter in used]
    rows += [(name, f"{100 * share:.1f} %", "busy") for name, share in diagnosis.busy.items()]
    _say(console, "USE", _columns(rows))
    _say(console, "RECORD", [Text(sentence) for sentence in diagnosis.recorded])
    apart = ", ".join(f"{what} {duration(seconds)}" for what, seconds in diagnosis.apart)
    if apart:
        _say(console, "EXCLUDED", [Text(f"{apart} (left out of the shares)")])
    _say(console, "NOTES", [Text(note) for note in diagnosis.notes])
    about = [f"{duration(diagnosis.seconds)} of {diagnosis.subject}", diagnosis.machine]
    _say(console, "OBSERVED", [Text(words, style=QUIET) for words in about if words])


def show_advice(
    diagnosis: Diagnosis, console: Console, command_lines: CommandLines = one_line
) -> None:
    """Print what to try, with the gains that were measured."""
    for label, tried in advised(diagnosis):
        _try(console, label.upper(), diagnosis, tried, command_lines)


def rank_lines(diagnosis: Diagnosis) -> list[str]:
    """Return who waits for whom in a distributed program, then each rank; else nothing."""
    width = max((len(rank.name) for rank in diagnosis.ranks), default=0)
    rows = [f"{rank.name:<{width}}  {rank_words(rank)}" for rank in diagnosis.ranks]
    return [who_waits(diagnosis), *rows] if rows else []


def machine_lines(diagnosis: Diagnosis) -> list[str]:
    """Return which machine of a cluster a run waits for, a line for each machine, and how well
    their clocks are aligned; else nothing."""
    every = diagnosis.machines
    width = max((len(one.name) for one in every), default=0)
    rows = [f"{one.name:<{width}}  {machine_words(one)}" for one in every]
    return [machine_waits(diagnosis), *rows] if rows else []


def machine_waits(diagnosis: Diagnosis) -> str:
    """Return a sentence about the machine that a run waits for most, and about their clocks."""
    every = diagnosis.machines
    clocks = max(one.clock_s for one in every)
    aligned = f"clocks are aligned by round trips, to within {duration(clocks)}"
    if len(every) < 2:
        return f"all workers are on one machine; {aligned}"
    last = max(every, key=lambda one: one.held)
    if last.held < SHOWN_SHARE:
        return f"no machine is waited for alone; {aligned}"
    return f"{last.name} is waited for most: {percent(last.held)} of the time alone; {aligned}"


def machine_words(one: MachineTime) -> str:
    """Return how a machine of a cluster spends the time, in words."""
    return (
        f"{one.workers:>3} worker{' ' if one.workers == 1 else 's'}  collecting "
        f"{percent(one.work):>5}  on the way {percent(one.way):>5}  waited for alone "
        f"{percent(one.held):>5}"
    )


def waited(ranks: Sequence[Rank], name: str) -> float:
    """Return the mean share of their time that the other ranks wait for one."""
    return statistics.fmean(rank.late for rank in ranks if rank.name != name)


def who_waits(diagnosis: Diagnosis) -> str:
    """Return a sentence about the slowest rank, and how long the others wait for it."""
    every = diagnosis.ranks
    last = next((rank for rank in every if rank.name == diagnosis.slowest), None)
    if last is None:
        most = percent(max(rank.late for rank in every))
        return f"no rank holds the others up: their waits differ by at most {most} of the time"
    late = percent(waited(every, last.name))
    others, whose = ("the other waits", "its") if len(every) == 2 else ("the others wait", "their")
    own = f"its own work takes {percent(last.own)} of its time"
    return f"{last.name} is the slowest: {own}, and {others} for it {late} of {whose} time"


def rank_words(rank: Rank) -> str:
    """Return own work, exchanges and the largest phases of a rank, in words."""
    own = sorted(rank.phases.items(), key=lambda each: -each[1])
    most = [f"{phase} {percent(share)}" for phase, share in own if phase != "communicate"][:4]
    words = f"own work {percent(rank.own):>5}  exchanging {percent(rank.exchanges):>5}"
    return f"{words}  ({', '.join(most)})" if most else words


def show_lines(label: str, lines: Sequence[str], console: Console) -> None:
    """Print lines with a label, as the report's own lines."""
    _say(console, label, [Text(line) for line in lines])


def verdict_parts(diagnosis: Diagnosis) -> tuple[str, str]:
    """Return the verdict's id, or ``a tie``, and its sentence, which may be empty."""
    name = TIE if diagnosis.headline.startswith(f"{TIE}: ") else diagnosis.verdict
    return name, diagnosis.headline.removeprefix(f"{name}: ")


RESETS = "  resets"
"""The row below ``env`` of the time in which environments are reset, which is a part of it."""


def reset_words(resets: float, env: float) -> str:
    """Return a sentence about the share of the time that resets take, as a part of ``env``."""
    part = percent(min(resets / max(env, 1e-9), 1.0))
    return f"resets take {percent(resets)} of the time, {part} of the environments' own"


def time_rows(diagnosis: Diagnosis) -> list[tuple[str, float, str]]:
    """Return each phase with its share of the time, at most 1, and its heaviest line or meaning;
    below ``env`` its part that is resets."""
    rows = list[tuple[str, float, str]]()
    for phase in in_order(diagnosis.phases):
        share = min(diagnosis.phases[phase], 1.0)
        if share > 0.0:
            rows.append((phase, share, diagnosis.lines.get(phase) or PHASES.get(phase, "")))
            if phase == "env" and diagnosis.resets > 0.0:
                part = percent(min(diagnosis.resets / share, 1.0))
                words = f"beginning the next episodes, {part} of env"
                rows.append((RESETS, min(diagnosis.resets, share), words))
    return rows


def advice(diagnosis: Diagnosis) -> Finding | None:
    """Return the first finding with a remedy; of a healthy program, one of `LOST` or more. None if
    there is none, or if only a part was seen."""
    return next((finding for _, finding in advised(diagnosis)), None)


def advised(diagnosis: Diagnosis) -> list[tuple[str, Finding]]:
    """Return the finding of `advice`, with a label; of a tie, both findings that have remedies, and
    else the largest cause whose time is a part of the first one's; behind what other programs take,
    the largest cause, too; of a healthy program, the largest other cause. A finding whose trial has
    a measured gain is always among them."""
    if diagnosis.part:
        return []
    found = [one for one in diagnosis.findings if one.remedy or one.setting]
    shown = _proposed(diagnosis, found)
    for one in found:
        measured = one.trial is not None and one.gain is not None
        if measured and all(one is not proposed for _, proposed in shown):
            shown.append(("Or" if shown else "Try", one))
    return shown


def _proposed(diagnosis: Diagnosis, found: Sequence[Finding]) -> list[tuple[str, Finding]]:
    """Return the findings to act on, of those that have remedies."""
    if diagnosis.verdict == HEALTHY and not diagnosis.tie:
        rest = [one for one in found if one.id != "compute-bound" and one.share >= LOST]
        return [("Try", one) for one in rest[:1]]
    two = [one for one in found if one.id in diagnosis.tie]
    if not two:
        labels = ["Try", "Or"]
        within = [one for one in found[1:] if one.id in OVERLAPPING and one.share >= LOST]
        if [one.id for one in found[:1]] == ["contended"]:  # which users often cannot change
            labels = ["Try", "Then", "Or"]
            largest = [one for one in causes(found)[:1] if one.share >= LOST]
            within = [*largest, *(one for one in within if one not in largest)]
        return list(zip(labels, [*found[:1], *within], strict=False))
    first = [one for one in found if one.id == "contended"]
    return list(zip(["Try", "Then", "Or"] if first else ["Try", "Or"], first + two, strict=False))


def setting_words(setting: Sequence[str]) -> str:
    """Return flags as one would type them: ``--placement "sampler=processes workers=8x16"``."""
    return " ".join(_quoted(word) for word in setting)


def command_words(finding: Finding) -> str:
    """Return the command that applies a remedy, to be pasted into a shell; empty if unknown."""
    return on_one_line(shlex.join(finding.command))


def gain_words(gain: MeasuredGain) -> str:
    """Return a measured gain and its interval in words: ``measured 1.7x (1.5-1.9)``."""
    if gain.low is None or gain.high is None:
        return f"measured {ratio_words(gain.gain)[0]}x"
    ratio, low, high = ratio_words(gain.gain, gain.low, gain.high)
    return f"measured {ratio}x ({low}-{high})"


def ratio_words(gain: float, *ends: float) -> list[str]:
    """Return a ratio of speeds, and the ends of its interval, with as many digits: ``1.7``,
    ``1.5``."""
    # A gain of a few per cent needs the second digit to be seen at all.
    digits = 2 if gain < 1.2 else 1 if gain < 10 else 0
    return [f"{ratio:.{digits}f}" for ratio in (gain, *ends)]


def action_words(finding: Finding) -> str:
    """Return the change in words and its place: flags or a sentence, and ``(train.py:40)``."""
    action = setting_words(finding.setting) or finding.remedy
    if finding.place is None:
        return action
    return f"{action.removesuffix('.')} ({place_words(finding.place)})"


def concern_words(diagnosis: Diagnosis, finding: Finding) -> str:
    """Return how much of the time a finding is about: ``55 % of the time (50 to 60)``; an empty
    text for findings without a share. What others took is a share of the core time."""
    whole = "the core time" if finding.id == "contended" else "the time"
    words = f"{percent(finding.share)} of {whole}" if finding.share else ""
    sure = interval_words(diagnosis, finding)
    return f"{words} ({sure})" if sure else words


def interval_words(diagnosis: Diagnosis, finding: Finding) -> str:
    """Return the interval of a share: ``50 to 60``. It is empty if it is unknown or narrow, for
    causes after the first two, and for a tie, whose verdict has it."""
    shown = () if diagnosis.tie else causes(diagnosis.findings)[:2]
    if finding.interval is None or finding not in shown:
        return ""
    low, high = (f"{100 * end:.0f}" for end in finding.interval)
    return f"{low} to {high}" if low != high else ""


def tie_words(findings: Sequence[Finding]) -> str:
    """Return a tie: ``a tie: acting-bound (41 % of the time, 36 to 47) or launch-bound (38 %, 33 to
    44)``; an empty text if the first two findings are none."""
    said = list[str]()
    for one in tied(findings):
        low, high = (100 * end for end in one.interval or (one.share, one.share))
        share = percent(one.share) + ("" if said else " of the time")
        said.append(f"{one.id} ({share}, {low:.0f} to {high:.0f})")
    return f"{TIE}: {' or '.join(said)}" if said else ""


def place_words(place: tuple[str, int]) -> str:
    """Return a file and line in words: ``train.py:40``."""
    return f"{PureWindowsPath(place[0]).name}:{place[1]}"  # of either kind of slash


def percent(share: float) -> str:
    """Return a share in words: ``71 %``; shares above 0 that would round to 0 are ``<1 %``."""
    return "<1 %" if 0.0 < share < 0.005 else f"{100 * share:.0f} %"


def shortened(text: str, most: int) -> str:
    """Return the first `most` characters of a text, with three dots if there are more."""
    return text[:most] + ("..." if len(text) > most else "")


def duration(seconds: float) -> str:
    """Return a length of time in words: ``35 µs``, ``4.0 ms``, ``0.8 s``, ``12 min``, ``3.5 h``."""
    if 0.0 < seconds < 0.1:
        return f"{1e3 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.0f} µs"
    if not seconds < 7200:  # also what is not a number
        return f"{seconds / 3600:.1f} h"
    if seconds >= 600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.1f} s"


def clean(text: str, encoding: str = "utf-8") -> str:
    """Return a text on one line, without characters that would steer a terminal."""
    # What rich would leave out anyway is left out in every form of the report.
    return plain(printable(strip_control_codes(text)).replace("\n", " "), encoding)


def in_order(phases: Iterable[str]) -> list[str]:
    """Sort phases in the order of `PHASES`; unknown ones come last, by name."""
    rank = {phase: number for number, phase in enumerate(PHASES)}
    return sorted(set(phases), key=lambda phase: (rank.get(phase, len(rank)), phase))


def extent(diagnosis: Diagnosis) -> float:
    """Return when the recording ends, in seconds."""
    moments = [stop for lane in diagnosis.lanes for _, stop, _ in lane.spans]
    moments += [sample.t for sample in diagnosis.usage]
    return max((moment for moment in moments if math.isfinite(moment)), default=0.0)


def explained(diagnosis: Diagnosis) -> tuple[float, float]:
    """Return when the explained time begins and ends, in seconds: start-up comes before it; what
    follows training (evaluation, saving), after it."""
    return diagnosis.explained or (0.0, extent(diagnosis))


def meters(diagnosis: Diagnosis) -> list[Meter]:
    """Return the meters of the sampled hardware: the CPU's, then three for each GPU."""
    usage = diagnosis.usage
    weights = seconds_within(usage, *explained(diagnosis))

    def meter(name: str, meaning: str, kind: str, *values: Sequence[float | None]) -> Meter:
        used, everybody = (tuple(map(_share, of)) for of in (*values, [None] * len(usage))[:2])
        means = [weighted_mean(zip(of, weights, strict=True)) for of in (used, everybody)]
        return Meter(name, meaning, kind, used, everybody, *means)

    cores = f"of {diagnosis.cores} {'core' if diagnosis.cores == 1 else 'cores'}"
    drawn = [meter("CPU", cores, "busy", [u.cpu for u in usage], [u.cpu_all for u in usage])]
    for number in range(max((len(u.gpus) for u in usage), default=0)):
        name, unknown = f"GPU {number}", GpuSample(number)
        gpus = [u.gpus[number] if number < len(u.gpus) else unknown for u in usage]
        memory = [gpu.used_mb / gpu.total_mb if gpu.total_mb else None for gpu in gpus]
        full = [gpu.full for gpu in gpus]
        drawn += [
            meter(
                f"{name} busy",
                "of the time with a kernel running",
                "busy",
                [gpu.busy for gpu in gpus],
            ),
            meter(f"{name} full", "of its multiprocessors in use meanwhile", "full", full),
            meter(f"{name} memory", "of its memory in use", "memory", memory),
        ]
    return drawn if usage else []


def mean_words(meter: Meter) -> tuple[str, str]:
    """Return the mean use: ``26 %`` and ``of 8 cores (all programs: 31 %)``."""
    if meter.mean is None:
        return "?", f"{meter.meaning}: unknown here"
    everybody = meter.mean_others
    more = "" if everybody is None else f" (all programs: {percent(everybody)})"
    return percent(meter.mean), meter.meaning + more


def _try(
    console: Console, label: str, diagnosis: Diagnosis, finding: Finding,
    command_lines: CommandLines,
) -> None:  # fmt: skip
    action = clean(action_words(finding), console.encoding)
    concern = concern_words(diagnosis, finding)
    lines = [Text(action).append("   ").append(concern, style=GOOD)]
    if console.is_terminal and lines[0].cell_len > console.width - INDENT:
        lines = [text for text in (Text(action), Text(concern, style=GOOD)) if text]
    if command := command_words(finding):  # alone on its lines, so that it can be pasted
        words = [command]
        if console.is_terminal:
            words = command_lines(command, max(console.width - INDENT, BAR))
        _say(console, label, list(map(Text, words)), wrapped=False)
        label, lines = "", [Text(f"concerns {concern}", style=GOOD)] if concern else []
    if finding.setting and finding.remedy:
        lines.append(Text(finding.remedy))
    if finding.gain is not None:
        lines.append(Text(gain_words(finding.gain), style=GOOD).append(f": {finding.gain.how}"))
    _say(console, label, lines)


def _also(diagnosis: Diagnosis, finding: Finding) -> tuple[str, str, str]:
    """Return a row for a finding that is not the first: its id, share and place, its first
    sentence if it is unknown or has no share, and a measured gain."""
    share = percent(finding.share) if finding.share else ""
    words = [f"({sure})"] if (sure := interval_words(diagnosis, finding)) else []
    words += [] if finding.place is None else [place_words(finding.place)]
    words += finding.evidence[:1] if finding.id == UNKNOWN or not finding.share else ()
    if finding.gain is not None:
        words += [setting_words(finding.setting), f"{gain_words(finding.gain)}: {finding.gain.how}"]
    return finding.id, share, "   ".join(filter(None, words))


def _columns(rows: Sequence[tuple[str, str, str]]) -> list[Text]:
    """Align rows of a name, a share and words below each other."""
    width = max((len(name) for name, _, _ in rows), default=0)
    return [Text(f"{name:<{width}}  {share:>5}  {words}") for name, share, words in rows]


def _bars(diagnosis: Diagnosis, console: Console) -> list[Text]:
    rows = [row for row in time_rows(diagnosis) if row[1] > SHOWN_SHARE]
    letter = "#" if console.options.ascii_only else "█"
    width = BAR if console.width >= 80 else BAR // 2
    room = max(console.width - (INDENT + 11 + 2 + 5 + 2 + width + 2), 0)
    # All rows have their meaning or none: ragged ones would be wrapped into the bars.
    ragged = not diagnosis.lines and any(len(words) > room for _, _, words in rows)
    lines = []
    for phase, share, words in rows:
        bar = letter * max(1, round(share * width))
        line = Text(f"{phase:<11}  {percent(share):>5}  ")
        about = Text("" if console.is_terminal and ragged else words)
        if console.is_terminal:
            about.truncate(room, overflow="ellipsis")
        lines.append(line.append(f"{bar:<{width}}", "cyan").append("  ").append_text(about))
    return lines


def _say(console: Console, label: str, paragraphs: Sequence[Text], wrapped: bool = True) -> None:
    """Print paragraphs with their label; in a terminal they are wrapped, unless they are lines of
    a command, and indented to it."""
    head = Text(f"{label:<{INDENT}}", style="bold")
    for paragraph in paragraphs:
        paragraph.plain = clean(paragraph.plain, console.encoding).rstrip()
        lines: Iterable[Text] = [paragraph]
        if console.is_terminal and wrapped:
            lines = paragraph.wrap(console, max(console.width - INDENT, BAR))
        for line in lines:
            line.rstrip()
            console.print(Text.assemble(head, line), soft_wrap=True)
            head = Text(" " * INDENT)


def _quoted(word: str) -> str:
    # Double quotes read better, and are enough where nothing inside means something to a shell.
    plain = shlex.quote(word)
    return f'"{word}"' if plain != word and not set(word) & set("\"'$`\\!\n") else plain


def _share(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else min(max(value, 0.0), 1.0)
