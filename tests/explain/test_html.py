"""The report as a page: one safe file, bounded in size, readable on a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout_explain import drawing, html
from flatout_explain.diagnosis import Diagnosis, Lane
from flatout_explain.errors import FlatoutError
from flatout_explain.hardware.monitor import MonitorSample
from flatout_explain.phases import PHASES
from flatout_explain.report import clean
from tests.explain.test_report import diagnoses, empty, example, gpu_sample

VOID = {"meta", "br", "hr", "img", "link", "input"}
TAGS = {
    "html", "head", "title", "style", "body", "header", "main", "footer", "section", "article",
    "div", "span", "p", "h1", "h2", "h3", "ul", "li", "b", "i", "strong", "code", "pre", "svg",
    "path", "meta",
}  # fmt: skip


class Page(HTMLParser):
    """A parsed page: its tags with their attributes, and its visible text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data.replace("\xa0", " ")

    def paths(self, fill: str) -> list[str]:
        """The drawings of one colour."""
        return [a["d"] for tag, a in self.tags if tag == "path" and fill in a.get("fill", "")]


def read(diagnosis: Diagnosis) -> Page:
    """The page, parsed; every tag that was opened has been closed."""
    page = Page(html.page(diagnosis))
    assert page.open == []
    return page


def test_the_page_says_what_the_terminal_says() -> None:
    diagnosis = example()
    text = " ".join(read(diagnosis).text.split())
    said = [
        "env-bound", diagnosis.headline, '--placement "sampler=processes workers=8x16"',
        "64 % of the time",
        "measured 1.7x (1.5-1.9): planning measured both placements here", "train.py:88",
        "losses.py:131", "env.step took 0.30 s of every 0.42 s", "imports: 8.1 s",
        diagnosis.subject, diagnosis.machine, *diagnosis.notes, "waiting, nothing to do", "64 %",
        "GPU 0 busy", "GPU 0 full", "worker 3", "at most 1,378 MiB",
    ]  # fmt: skip
    for words in said:
        assert words in text
    for finding in diagnosis.findings:
        assert finding.remedy.replace("`", "") in text


def test_nothing_is_fetched() -> None:
    source = html.page(example())
    assert "://" not in source
    assert not re.search(r"@import|url\(", source)
    page = read(example())
    assert {tag for tag, _ in page.tags} <= TAGS
    assert not any({"src", "href", "srcset"} & set(attributes) for _, attributes in page.tags)


@given(diagnosis=diagnoses())
@settings(max_examples=60, deadline=None)
def test_no_text_becomes_markup(diagnosis: Diagnosis) -> None:
    page = read(diagnosis)
    assert {tag for tag, _ in page.tags} <= TAGS
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
    assert clean(diagnosis.subject) in page.text
    for finding in diagnosis.findings:
        for sentence in finding.evidence:
            if "`" not in sentence:
                assert clean(sentence) in page.text


def test_a_script_in_a_file_name_is_only_its_name() -> None:
    name = '<script>alert("1")</script>.py'
    finding = replace(example().findings[0], evidence=(name,), remedy=name, setting=(name,))
    lane = Lane(name, ((0.0, 1.0, name), (1.0, 2.0, "env")))
    diagnosis = Diagnosis(
        name, name, name, (finding, finding), 1.0, ((name, 1.0),), {name: 1.0}, (lane,),
        machine=name, notes=(name,),
    )  # fmt: skip
    assert "<script" not in html.page(diagnosis)
    assert read(diagnosis).text.count(name) >= 12


@pytest.mark.parametrize("left_out", [(), ("lanes",), ("usage",), ("findings",), ("phases",)])
def test_parts_that_are_missing_leave_no_heading(left_out: tuple[str, ...]) -> None:
    headings = {
        "findings": "Findings", "phases": "Where the time goes", "lanes": "Timeline",
        "usage": "Utilisation over time",
    }  # fmt: skip
    missing = {name: {} if name == "phases" else () for name in left_out}
    page = read(replace(example(), **missing))
    for name, heading in headings.items():
        assert (heading in page.text) == (name not in left_out)
    assert not set(headings.values()) & set(read(empty()).text.splitlines())


TICKS = 8
PIXELS = 20


@given(
    runs=st.lists(
        st.tuples(st.integers(1, 30), st.none() | st.sampled_from(list(PHASES)[:4])), max_size=40
    )
)
@settings(max_examples=200, deadline=None)
def test_every_pixel_shows_what_fills_most_of_it(
    runs: list[tuple[int, str | None]],
) -> None:
    """Against counting ticks, eight to a pixel; None stands for time in no span."""
    ticks: list[str | None] = [phase for length, phase in runs for _ in range(length)]
    ticks = [*ticks, *[None] * TICKS * PIXELS][: TICKS * PIXELS]
    spans, start = [], 0
    for length, phase in runs:
        if phase is not None:
            spans.append((start / 100, (start + length) / 100, phase))
        start += length
    merged = drawing.merge(spans, TICKS * PIXELS / 100, PIXELS)
    shown: list[str | None] = [None] * PIXELS
    for first, after, phase in merged:
        assert first < after
        shown[first:after] = [phase] * (after - first)
    for pixel, phase in enumerate(shown):
        inside = ticks[pixel * TICKS : (pixel + 1) * TICKS]
        assert inside.count(phase) == max(inside.count(each) for each in inside)
    for (_, before, one), (after, _, other) in pairwise(merged):
        assert before <= after
        assert before < after or one != other


@pytest.mark.slow
def test_a_huge_timeline_is_a_modest_file() -> None:
    """100,000 spans in 40 lanes, and as many in one, that alternate faster than pixels."""
    kinds = list(PHASES)
    spans = [(0.01 * i, 0.01 * i + 0.009, kinds[i * 7 % 5]) for i in range(100_000)]
    many = tuple(Lane(f"worker {n}", tuple(spans[n * 2500 : n * 2500 + 2500])) for n in range(40))
    crowd = tuple(Lane(f"thread {n}", tuple(spans[:1000])) for n in range(400))
    for lanes in (many, (Lane("main", tuple(spans)),), crowd):
        source = html.page(replace(example(), lanes=lanes))
        assert len(source) < 1_500_000
        assert all(lane.name in source for lane in lanes)


@given(
    samples=st.lists(st.tuples(st.floats(0, 100), st.none() | st.floats(0, 1)), max_size=50),
    repeated=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_a_curve_stays_between_its_samples(
    samples: list[tuple[float, float | None]], repeated: int
) -> None:
    samples = [(t * (1 + i / 99), v) for t, v in samples for i in range(repeated)]
    steps = drawing.curve([t for t, _ in samples], [v for _, v in samples], 200.0)
    assert len(steps) <= min(drawing.SAMPLES, len(samples))
    known = [v for _, v in samples if v is not None]
    for start, stop, value in steps:
        assert 0.0 <= start <= stop <= 200.0
        assert value is None or min(known) - 1e-9 <= value <= max(known) + 1e-9
    for (_, stop, _), (start, _, _) in pairwise(steps):
        assert stop == start


def test_idle_time_is_red() -> None:
    """The GPU is idle for the first half and busy for the second; the CPU is always half idle."""
    usage = tuple(
        MonitorSample(float(t), 1.0, 4, 0.25, 0.5, gpus=(gpu_sample(float(t >= 50), 0.1, 0.3),))
        for t in range(101)
    )
    page = read(replace(empty(), usage=usage))
    cpu, gpu = page.paths("--idle")
    assert set(re.findall(r"V(\d+)H", cpu)) == {"50"}
    heights = {int(x): int(y) for y, x in re.findall(r"V(\d+)H(\d+)", gpu)}
    assert all(y == (100 if x <= drawing.PIXELS / 2 else 0) for x, y in heights.items())
    assert len(heights) > 90
    assert "idle" in page.text
    assert len(page.paths("--full")) == 1


def test_what_is_left_out_of_the_shares_is_faint() -> None:
    """Before the explained time and after it; the lanes' shares are of that time, too."""
    lane = Lane("main", ((0.0, 20.0, "io"), (20.0, 80.0, "learn"), (80.0, 100.0, "eval")))
    usage = tuple(MonitorSample(float(t), 1.0, 4, 0.5) for t in range(1, 101))
    page = read(replace(empty(), lanes=(lane,), usage=usage, explained=(20.0, 80.0)))
    faint = [a["d"] for tag, a in page.tags if tag == "path" and a.get("class") == "faint"]
    assert faint == [
        "M0 0H300v2H0z", "M1200 0H1500v2H1200z", "M0 0H300v100H0z", "M1200 0H1500v100H1200z",
    ]  # fmt: skip
    assert "learn 100" in page.text
    assert "faint" in page.text
    assert "faint" not in read(replace(empty(), lanes=(lane,), explained=(0.1, 99.9))).text


def test_samples_without_a_value_leave_a_gap() -> None:
    usage = tuple(
        MonitorSample(float(t), 1.0, 4, 0.5, gpus=(gpu_sample(0.5, None if 3 <= t <= 6 else 0.5),))
        for t in range(10)
    )
    (full,) = read(replace(empty(), usage=usage)).paths("--full")
    assert full.count("M") == full.count("z") == 2


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, 1 to 21, as WCAG 2 defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_told_from_the_paper() -> None:
    """Text has a contrast of 4.5 or more, drawings of 3 or more, in light and in dark."""
    template = (resources.files("flatout_explain") / "report.html").read_text()
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6})", block))
        for block in re.findall(r":root \{(.*?)\}", template, re.DOTALL)
    )
    phases = dict(re.findall(r"\.p-(\w+) \{ --phase: (#\w{6}); \}", template))
    for theme in (light, dark):
        for name in ("ink", "soft", "good", "bad"):
            assert contrast(theme[name], theme["paper"]) >= 4.5, name
            assert contrast(theme[name], theme["card"]) >= 4.5, name
        for name in ("used", "full", "memory"):
            assert contrast(theme[name], theme["empty"]) >= 3, name
        for phase in PHASES:
            assert contrast(phases[phase], theme["empty"]) >= 3, phase


def test_the_page_is_written(tmp_path: Path) -> None:
    html.write(example(), tmp_path / "größe.html")
    assert (tmp_path / "größe.html").read_text(encoding="utf-8") == html.page(example())
    with pytest.raises(FlatoutError, match=r"cannot write .*: No such file or directory"):
        html.write(example(), tmp_path / "none" / "report.html")


MEASURE = """<script>addEventListener("load", () => {
  const wide = [...document.querySelectorAll("body *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName);
  const page = document.documentElement;
  parent.postMessage(`${page.scrollWidth} ${innerWidth} ${page.scrollHeight} [${wide}]`, "*");
})</script>"""
FRAME = """<!doctype html><title>waits</title><body style="margin:0">
<script>addEventListener("message", e => document.title = "measured " + e.data)</script>
<iframe src="report.html" style="border:0;width:{width}px;height:{height}px"></iframe>"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(360, 4000), (1280, 2600)])
def test_a_browser_shows_it_without_sideways_scrolling(
    width: int, height: int, tmp_path: Path
) -> None:
    """In headless Chromium; in a frame, for a window cannot be as narrow as a phone."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip(f"no browser here: looked for {', '.join(names)}")
    long = "x" * 300
    diagnosis = example()
    finding = replace(diagnosis.findings[0], evidence=(long, f"`{long}`"), setting=(long,))
    lanes = (*diagnosis.lanes, Lane(long, ((0.0, 9.0, "env"),)))
    diagnosis = replace(diagnosis, findings=(*diagnosis.findings, finding), lanes=lanes)
    diagnosis = replace(diagnosis, subject=f"{diagnosis.subject} {long}", notes=(long,))
    page = html.page(diagnosis).replace("</body>", f"{MEASURE}</body>")
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width, height=height), encoding="utf-8")
    picture = tmp_path / "report.png"

    def run(*flags: str) -> str:
        return subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-quic", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--no-first-run",
             f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000",
             f"--window-size={max(width, 500)},{height}", *flags, frame.as_uri()],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, timeout=120,
        ).stdout  # fmt: skip

    found = re.search(r"<title>measured (\d+) (\d+) (\d+) \[(.*)\]</title>", run("--dump-dom"))
    assert found is not None
    assert int(found[2]) == width
    assert int(found[1]) <= width
    assert found[4] == "", "these reach beyond the right edge"
    assert int(found[3]) > 1000
    run(f"--screenshot={picture}")
    assert picture.stat().st_size > 20_000
