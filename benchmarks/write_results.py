"""The pages about speed and learning, from ``results/speed`` and ``results/learning``.

    python benchmarks/write_results.py

It writes the sections of RESULTS.md and the tables of README.md, docs/start.md and
docs/performance.md, between their markers. With ``--check`` it writes nothing and ends with 1 if a
page is stale.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence

from chart import COLOURS, Bar, chart
from performance import (
    FIGURES,
    KINDS,
    NAMES,
    Rows,
    costs,
    count,
    figure,
    in_brackets,
    interval_text,
    machines_of,
    multiple,
    performance_parts,
    places,
    sides_of,
)
from published import (
    HERE,
    OURS,
    REPO,
    RESULTS,
    BenchmarkError,
    Json,
    load,
    marks,
    median_interval,
    ratios,
    rows_of,
    work_done,
)
from report import table, with_part

MEANINGS = {
    "old": "a file that it measures, or its settings, changed since",
    "mixed": "its pairs are of two sources or two classes of machine",
    "incomplete": "a side has fewer runs than the row asks for",
}


def main() -> int:
    """Write the pages, or compare them."""
    speed, learned = (measured(kind) for kind in ("speed", "learning"))
    bars = front(speed)
    parts = {
        REPO / "benchmarks" / "RESULTS.md": {
            "speed": "\n\n".join(speed_section(*row) for row in speed),
            "learning": "\n\n".join(learning_section(*row) for row in learned),
        },
        REPO / "README.md": {
            "speed": speed_table(bars), "learning": learning_table(learned),
        },
        REPO / "README.zh.md": {
            "speed": in_chinese(speed_table(bars, chinese=True)),
            "learning": in_chinese(learning_table(learned)),
        },
        REPO / "docs" / "start.md": {"costs": costs(speed)},
        REPO / "docs" / "performance.md": performance_parts(speed, learned),
    }  # fmt: skip
    pages = {}
    for path, bodies in parts.items():
        pages[path] = path.read_text()
        for name, body in bodies.items():
            pages[path] = with_part(pages[path], name, body)
    for scheme in COLOURS:
        pages[REPO / "docs" / f"speed-{scheme}.svg"] = chart(bars, scheme)
    stale = [path for path, new in pages.items() if not path.exists() or path.read_text() != new]
    if "--check" in sys.argv[1:]:
        return int(bool(stale))
    for path in stale:
        path.write_text(pages[path])
    return 0


def measured(kind: str) -> Rows:
    """Name, description and results of each row that was measured, in the order of the rows."""
    rows = rows_of(kind)
    found = ((name, row, load(RESULTS / kind, name)) for name, row in rows.items())
    return [(name, row, made) for name, row, made in found if made is not None]


# --- Speed --------------------------------------------------------------------------------------


def speed_section(name: str, row: Json, found: Json) -> str:
    """A row's section of RESULTS.md."""
    done = "; ".join(
        f"{done} on {NAMES.get(side, side)}" for side, done in work_done(found).items()
    )
    lines = [
        *origin(name, "speed", row, found),
        f"- {done}, of {row['batch']:,} samples; {row['work']}.",
        f"- Rates count from step {row['full']['window_from']:,} to the end.",
        *versions(found),
    ]
    body = [
        [NAMES[side], *(figure(found, side, key) for key in FIGURES)] for side in sides_of(found)
    ]
    multiples = []
    for side, kinds in ratios(found).items():
        for kind, pairs in kinds.items():
            middle, low, high = median_interval(pairs)
            multiples.append([
                f"flatout / {side}, {KINDS[kind]}", f"{low:.2f}", f"{middle:.2f}", f"{high:.2f}",
                ", ".join(f"{value:.2f}" for value in pairs),
            ])  # fmt: skip
    head = ["ratio", "low", "median", "high", "each pair"]
    return "\n".join([
        f"## Speed: {row['title']}", "", *lines, "",
        table(["side", *FIGURES.values()], body), "", table(head, multiples),
    ])  # fmt: skip


def origin(name: str, kind: str, row: Json, found: Json) -> list[str]:
    """Where, when and by which command a row was measured, and its marks."""
    counted = {sum(run["side"] == side for run in found["runs"]) for side in row["sides"]}
    fewer = f" --pairs {max(counted)}" if kind == "speed" and counted != {row["pairs"]} else ""
    command = f"`python benchmarks/{kind}.py --row {name}{fewer}`"
    found_marks = marks(found, row)
    lines = [f"- Marks: {', '.join(f'**{mark}** ({MEANINGS[mark]})' for mark in found_marks)}."]
    runs, places = found["runs"], list(dict.fromkeys(machines_of(found)))
    days = sorted({run["when"][:10] for run in runs})
    commits = list(dict.fromkeys(run["commit"] or "not recorded" for run in runs))
    loads = [run["other_load"] for run in runs if run["other_load"] is not None]
    return [
        *(lines if found_marks else []),
        f"- Machine{'s' if places[1:] else ''}: {'; '.join(places)}.",
        f"- Date: {days[0]}{f' to {days[-1]}' if days[1:] else ''}. "
        f"Commit: {', '.join(commits)}." + (" By an earlier program." * (not found["settings"])),
        f"- Command: {command}" + (" measures it again." if not found["settings"] else ""),
        *([f"- Other work on the machine during the runs, in cores: at most {max(loads):.2f}."]
          if loads else []),
    ]  # fmt: skip


def versions(found: Json) -> list[str]:
    """The versions of each side, one line each."""
    return [
        f"- Versions, {side}: {', '.join(f'{name} {number}' for name, number in used.items())}."
        for side, used in found.get("versions", {}).items()
        if used
    ]


def front(rows: Rows) -> list[Bar]:
    """The comparisons that README.md shows, the largest gain first."""
    bars = [
        Bar(row["readme"][side], row["title"], row["zh"], NAMES[side], kinds, marks(found, row))
        for _, row, found in rows
        for side, kinds in ratios(found).items()
        if side in row.get("readme", {})
    ]
    return sorted(bars, key=lambda bar: -median_interval(bar.ratios["steady"])[0])


def in_chinese(text: str) -> str:
    """A generated part with Chinese words."""
    words = tomllib.loads((HERE / "chinese.toml").read_text())
    for word, chinese in words.items():
        text = text.replace(word, chinese)
    return text


def speed_table(bars: Sequence[Bar], chinese: bool = False) -> str:
    """The table of README.md, or with the titles of README.zh.md."""
    body = []
    for bar in bars:
        cells = [multiple(bar.ratios[kind]) for kind in KINDS]
        title = bar.zh if chinese else bar.title
        body.append([title + in_brackets(bar.marks), bar.peer, *cells])
    return table(["Work", "Compared with", *KINDS.values()], body)


# --- Learning -----------------------------------------------------------------------------------


def learning_section(name: str, row: Json, found: Json) -> str:
    """A row's section of RESULTS.md."""
    score = {
        "eval": "The score is the mean return of 20 greedy episodes with the final parameters.",
        "training": "The score is the mean return of the last 100 training episodes.",
        "goal": "The score is the seconds from the start of the process until the mean return of "
        f"ten training episodes in a row is at least {row.get('goal')}.",
    }[row["score"]]
    lines = [*origin(name, "learning", row, found), f"- {score}", *versions(found)]
    if "published" in row:
        lines.append(f"- Published: {row['published']}.")
    if "work" in row:
        lines.append(f"- {row['work'][0].upper()}{row['work'][1:]}.")
    body = [
        [NAMES[side], count(found, side), interval_text(made), each(found, side)]
        for side, made in found["iqm"].items()
    ]
    parts = [
        f"## Learning: {row['title']}", "", *lines, "",
        table(["side", "runs", "interquartile mean, 95 % interval", "each run"], body),
    ]  # fmt: skip
    for side, test in found["tests"].items():
        difference = interval_text(test["difference"])
        parts += [
            "",
            f"Beside {NAMES[side]}: **{test['verdict']}** (difference {difference}; within "
            f"±{test['margin']:,.0f} is equal).",
        ]
    return "\n".join(parts)


def each(found: Json, side: str) -> str:
    """The scores of a side's runs, in the order of their seeds."""
    runs = sorted(found["runs"], key=lambda run: run["seed"])
    scores = [run["score"] for run in runs if run["side"] == side]
    return ", ".join(f"{score:,.{places(scores)}f}" for score in scores)


def learning_table(rows: Rows) -> str:
    """The table of README.md: each comparison with a peer that it shows."""
    body = []
    for _, row, found in rows:
        for side, test in found["tests"].items() if row.get("readme") else ():
            ours, theirs = (interval_text(found["iqm"][one]) for one in (OURS, side))
            counts = f"{count(found, OURS)} and {count(found, side)}"
            title = row["title"].split(", ")[1] + in_brackets(marks(found, row))
            body.append([title, ours, theirs, counts, test["verdict"]])
    return table(["Work", NAMES[OURS], NAMES["sb3"], "Runs", "Verdict"], body)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"write_results.py: {error}")
