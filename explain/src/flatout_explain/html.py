"""A diagnosis as one HTML file: no scripts, no network, no other files.

The page is made of a template (report.html, with its style sheet) and fragments built here. Every
text of the user goes through `_text`, which escapes it. Timelines are drawn with bounded detail:
a lane of any number of spans becomes at most `PIXELS` segments.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from flatout_explain import output_file, report
from flatout_explain.causes import CAUSES, HEALTHY
from flatout_explain.diagnosis import Diagnosis, Finding, Lane
from flatout_explain.drawing import PIXELS, curve, merge
from flatout_explain.output import command_name
from flatout_explain.phases import PHASES

SEEN = 0.005
"""Share of a drawing's width below which nothing is drawn faintly."""

SEGMENTS = 60_000
"""Bound on the segments of all lanes together: many lanes are drawn with fewer pixels."""


def write(diagnosis: Diagnosis, path: Path | str, compared: Sequence[str] = ()) -> None:
    """Write the page to a file; `compared` are the lines of a comparison with a second program.

    Raises:
        FlatoutError: the file cannot be written.
    """
    output_file.write(Path(path), page(diagnosis, compared))


def page(diagnosis: Diagnosis, compared: Sequence[str] = ()) -> str:
    """Return the report as one self-contained HTML document."""
    template = (resources.files("flatout_explain") / "report.html").read_text(encoding="utf-8")
    name, sentence = report.verdict_parts(diagnosis)
    tried = report.advised(diagnosis)
    shown = report.explained(diagnosis)
    end = report.extent(diagnosis) or 1.0  # nothing is drawn then
    sections = (
        ("Against a second program", _compared(compared)),
        ("Findings", [_finding(diagnosis, f, tried) for f in diagnosis.findings]),
        ("Where the time goes", _bars(diagnosis)),
        ("Ranks", _ranks(diagnosis)),
        ("Machines", _machines(diagnosis)),
        ("Timeline", _timeline(diagnosis.lanes, shown, end)),
        ("Utilisation over time", _utilisation(diagnosis, shown, end)),
        ("What the program's profiler recorded", _items(diagnosis.recorded)),
        (
            "Left out of the shares",
            _items(f"{w}: {report.duration(s)}" for w, s in diagnosis.apart),
        ),
        ("What could not be seen", _items(diagnosis.notes)),
    )
    return Template(template).substitute(
        command=command_name(),
        title=_text(": ".join(filter(None, (command_name(), name, sentence)))),
        state="healthy" if diagnosis.verdict == HEALTHY else "held-up",
        notice=f'<p class="notice">{_text(diagnosis.ended)}</p>' if diagnosis.ended else "",
        verdict=f'<span class="id">{_text(name)}</span> {_text(sentence)}',
        about=f"{report.duration(diagnosis.seconds)} of <code>{_text(diagnosis.subject)}</code>",
        advice="".join(_advice(diagnosis, label, finding) for label, finding in tried),
        sections="\n".join(
            f"<section><h2>{title}</h2>\n{''.join(body)}</section>"
            for title, body in sections
            if body
        ),
        machine=_machine(diagnosis),
    )


def _text(words: str) -> str:
    return re.sub(r"(\d) %", r"\1&nbsp;%", escape(report.clean(words)))


def _prose(words: str) -> str:
    """Escape a text in which `backticks` mark code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _text(words))


def _items(sentences: Iterable[str]) -> list[str]:
    items = [f"<li>{_prose(sentence)}</li>" for sentence in sentences]
    return ['<ul class="plain">', *items, "</ul>"] if items else []


def _advice(diagnosis: Diagnosis, label: str, finding: Finding) -> str:
    """Return a card with a remedy."""
    concern = re.sub("^(.*?&nbsp;%)", r"<strong>\1</strong>", _concern(diagnosis, finding))
    return (
        f'<div class="card try"><div><p class="eyebrow">{label}</p>{_remedy(finding)}</div>'
        f'<div class="concern soft">{concern}</div></div>'
    )


def _concern(diagnosis: Diagnosis, finding: Finding) -> str:
    """Return a finding's share of the time, and its place."""
    words = _text(report.concern_words(diagnosis, finding))
    if finding.place is None:
        return words
    return f"{words} (<code>{_text(report.place_words(finding.place))}</code>)"


def _remedy(finding: Finding) -> str:
    """Return a setting, a remedy in words, and the gain with how it was measured, as far as
    known."""
    setting = report.command_words(finding) or report.setting_words(finding.setting)
    shown = f"<pre><code>{_text(setting)}</code></pre>" if setting else ""
    shown += f"<p>{_prose(finding.remedy)}</p>" if finding.remedy else ""
    if finding.gain is not None:
        words = _text(report.gain_words(finding.gain))
        shown += f'<p class="gain"><strong>{words}</strong>: {_prose(finding.gain.how)}</p>'
    return shown


def _finding(diagnosis: Diagnosis, finding: Finding, tried: Sequence[tuple[str, Finding]]) -> str:
    """Return a card for a finding, without remedy and gain if it is one of `tried`, shown above."""
    shown = any(finding is one for _, one in tried)
    evidence = "".join(f"<li>{_prose(sentence)}</li>" for sentence in finding.evidence)
    return (
        f'<article class="card"><div class="head"><h3>{_text(finding.id)}</h3>'
        f'<p class="soft">{_concern(diagnosis, finding)}</p></div>'
        f'<p class="soft">{_text(CAUSES.get(finding.id, ""))}</p>'
        + (f"<ul>{evidence}</ul>" if evidence else "")
        + ("" if shown else _remedy(finding))
        + "</article>\n"
    )


def _compared(lines: Sequence[str]) -> list[str]:
    """Return a card that says how much faster the second program is, and which phases changed."""
    if not lines:
        return []
    first, *rest = map(_text, lines)
    return [
        f'<div class="card"><strong>{first}</strong>',
        *(f"<p>{line}</p>" for line in rest),
        "</div>",
    ]


def _row(name: str, words: str, drawing: str) -> str:
    name = _text(name)
    return (
        f'<div class="row"><div class="name"><b title="{name}">{name}</b>'
        f"<span>{words}</span></div>{drawing}</div>\n"
    )


def _bars(diagnosis: Diagnosis) -> list[str]:
    return [
        _row(
            f"{report.percent(share)} {phase}",
            _text(words),
            f'<div class="bar {_class(phase)}"><i style="width:{100 * share:.1f}%"></i></div>',
        )
        for phase, share, words in report.time_rows(diagnosis)
    ]


def _ranks(diagnosis: Diagnosis) -> list[str]:
    """Return who waits for whom, and a bar of phases for each rank."""
    if not diagnosis.ranks:
        return []
    rows = [f'<p class="soft">{_text(report.who_waits(diagnosis))}</p>']
    for rank in diagnosis.ranks:
        paths, at = "", 0.0
        for phase in report.in_order(rank.phases):
            share = rank.phases[phase]
            first, after = round(PIXELS * at), round(PIXELS * (at + share))
            title = f"<title>{_text(f'{phase} {report.percent(share)}')}</title>"
            paths += f'<path class="{_class(phase)}" d="M{first} 1H{after}">{title}</path>'
            at += share
        words = report.rank_words(rank)
        drawing = _drawing("lane", (PIXELS, 2), (), f"{rank.name}: {words}", paths)
        rows.append(_row(rank.name, _text(words), drawing))
    return rows


def _machines(diagnosis: Diagnosis) -> list[str]:
    """Return which machine is waited for, and a row for each machine of a cluster."""
    if not diagnosis.machines:
        return []
    words = f'<p class="soft">{_text(report.machine_waits(diagnosis))}</p>'
    rows = _items(f"{one.name}: {report.machine_words(one)}" for one in diagnosis.machines)
    return [words, *rows]


def _class(phase: str) -> str:
    known = "env" if phase == report.RESETS else phase
    return f"p-{known if known in PHASES else 'other'}"


def _faint(shown: tuple[float, float], end: float) -> list[tuple[float, float]]:
    """Return the parts of a drawing, as shares of its width, that are before the explained time and
    after it, if they can be seen."""
    parts = [(0.0, shown[0] / end), (shown[1] / end, 1.0)]
    return [(first, after) for first, after in parts if after - first > SEEN]


def _legend(entries: Iterable[tuple[str, str]], faint: bool) -> str:
    """Return a legend of entries: (attribute that gives the colour, escaped words)."""
    items = "".join(f"<li><i {colour}></i>{words}</li>" for colour, words in entries)
    if faint:
        items += "<li>faint: left out of the shares</li>"
    return f'<ul class="legend">{items}</ul>\n'


def _timeline(lanes: Sequence[Lane], shown: tuple[float, float], end: float) -> list[str]:
    if not lanes:
        return []
    pixels = max(min(PIXELS, SEGMENTS // len(lanes)), 100)
    legend = [
        (f'class="{_class(phase)}"', _text(f"{phase}: {PHASES.get(phase, '')}".rstrip(": ")))
        for phase in report.in_order(phase for lane in lanes for _, _, phase in lane.spans)
    ]
    rows = [_lane(lane, shown, end, pixels) for lane in lanes]
    return [*rows, _axis(end), _legend(legend, bool(_faint(shown, end)))]


def _lane(lane: Lane, shown: tuple[float, float], end: float, pixels: int) -> str:
    """Return a row of strokes, one path for each phase, on a canvas 2 high."""
    spans = [span for span in lane.spans if all(map(math.isfinite, span[:2]))]
    begin, until = shown
    shares: defaultdict[str, float] = defaultdict(float)
    for start, stop, phase in spans:
        within = max(min(stop, until) - max(start, begin), 0.0)
        shares[phase] += within / max(until - begin, 1e-9)
    strokes: defaultdict[str, str] = defaultdict(str)
    for first, after, phase in merge(spans, end, pixels):
        strokes[phase] += f"M{first} 1h{after - first}"
    paths = "".join(
        f'<path class="{_class(phase)}" d="{drawn}">'
        f"<title>{_text(f'{lane.name}: {phase} {report.percent(shares[phase])}')}</title></path>"
        for phase, drawn in strokes.items()
    )
    most = sorted((phase for phase in shares if shares[phase]), key=lambda phase: -shares[phase])
    words = (
        ", ".join(f"{phase} {report.percent(shares[phase])}" for phase in most[:2])
        or "nothing seen"
    )
    drawing = _drawing("lane", (pixels, 2), _faint(shown, end), f"{lane.name}: {words}", paths)
    return _row(lane.name, _text(words), drawing)


def _utilisation(diagnosis: Diagnosis, shown: tuple[float, float], end: float) -> list[str]:
    drawn = report.meters(diagnosis)
    if not drawn:
        return []
    times = [sample.t for sample in diagnosis.usage]
    kinds = {meter.kind for meter in drawn if meter.mean is not None}
    entries = (
        ("used", "used", True),
        ("others", "used by other programs", any(m.mean_others is not None for m in drawn)),
        ("idle", "idle", True),
        ("full", "how full a GPU was while some kernel ran", "full" in kinds),
        ("memory", "memory in use", "memory" in kinds),
    )
    legend = [(f'style="--phase:var(--{name})"', words) for name, words, there in entries if there]
    faint = _faint(shown, end)
    rows = [_meter(meter, times, faint, end) for meter in drawn]
    return [*rows, _axis(end), _legend(legend, bool(faint))]


def _meter(
    meter: report.Meter, times: Sequence[float], faint: Sequence[tuple[float, float]], end: float
) -> str:
    used = curve(times, meter.values, end)
    layers = [(meter.kind, used, 100, "used")]
    if meter.kind == "busy":
        both = zip(meter.values, meter.others, strict=True)
        measured = ([value for value in pair if value is not None] for pair in both)
        total = curve(times, [max(values, default=None) for values in measured], end)
        layers = [
            ("idle", total, 0, "idle"), ("others", total, 100, "used by all programs"),
            ("used", used, 100, "used"),
        ]  # fmt: skip
    words = " ".join(report.mean_words(meter))
    paths = "".join(
        f'<path fill="var(--{colour})" d="{_area(steps, end, base)}">'
        f"<title>{meter.name}: {what}</title></path>"
        for colour, steps, base, what in layers
    )
    drawing = _drawing("use", (PIXELS, 100), faint, f"{meter.name}: mean {words}", paths)
    return _row(meter.name, _text(words), drawing)


def _drawing(
    kind: str, size: tuple[int, int], faint: Sequence[tuple[float, float]], label: str, paths: str
) -> str:
    """Return a canvas that fills its place; parts of its width are faint."""
    width, height = size
    for first, after in faint:
        left, right = round(width * first), round(width * after)
        paths += f'<path class="faint" d="M{left} 0H{right}v{height}H{left}z"></path>'
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" preserveAspectRatio="none" '
        f'role="img" aria-label="{_text(label)}">{paths}</svg>'
    )


def _area(steps: Sequence[tuple[float, float, float | None]], end: float, base: int) -> str:
    """Draw the area between a curve and the bottom (`base` 100) or top (0) of a canvas 100 high."""
    drawn: list[str] = []
    before = None
    for start, stop, value in [*steps, (end, end, None)]:
        left, right = round(PIXELS * start / end), round(PIXELS * stop / end)
        if value is not None:
            begin = f"M{left} {base}" if before is None else ""
            drawn.append(f"{begin}V{round(100 - 100 * value)}H{right}")
        elif before is not None:
            drawn.append(f"V{base}z")
        before = value
    return "".join(drawn)


def _axis(end: float) -> str:
    """Return at most eight round times to write under the drawings."""
    end = max(end, 1e-9)  # of a program that was hardly seen
    power = 10.0 ** math.floor(math.log10(end / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if end / (power * factor) <= 7)
    spans = "".join(
        f'<span style="left:{100 * tick / end:.2f}%">{tick:g} s</span>'
        for number in range(int(end / step) + 1)
        if (tick := number * step) <= 0.94 * end
    )
    return f'<div class="row ticks"><div class="name"></div><div class="axis">{spans}</div></div>\n'


def _machine(diagnosis: Diagnosis) -> str:
    largest = max((sample.rss_mb for sample in diagnosis.usage if sample.rss_mb), default=None)
    memory = "" if largest is None else f"The program held at most {largest:,.0f} MiB of memory."
    return " · ".join(_text(words) for words in (diagnosis.machine, memory) if words)
