"""Draw docs/data-flow.svg: the way of data through one PPO iteration, inline and in one program.

python tools/draw_flow.py             # writes the picture
python tools/draw_flow.py --check     # 1 where docs/data-flow.svg is not what this draws
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "data-flow.svg"
WIDTH, BOX, HIGH, GAP, TOP, INDENT = 760, 350, 50, 12, 56, 26


@dataclass(frozen=True)
class Step:
    """One file of the walk: its path below src/flatout, its part in it, and how many of the files
    before it are in the middle of a call."""

    file: str
    part: str
    depth: int


INLINE = (
    Step("run/trainer.py", "asks for iterations; logs, saves, evaluates", 0),
    Step("engine/schedule.py", "owns the run's state: collect, learn, publish", 1),
    Step("engine/collect.py", "T steps of N environments", 2),
    Step("engine/act.py", "observations to actions in one call", 3),
    Step("envs/host.py", "actions to observations and rewards", 3),
    Step("engine/rollout_buffer.py", "the arrays of the trajectory", 3),
    Step("engine/learn.py", "state and trajectory to the next state", 2),
    Step("algorithms/ppo.py", "trajectory to new parameters", 3),
)
FUSED = (
    Step("run/trainer.py", "asks for iterations; logs, saves, evaluates", 0),
    Step("engine/fused.py", "owns the run's state: chunks of iterations", 1),
    Step("engine/loop.py", "the compiled loop: state to a later state", 2),
    Step("engine/rollout.py", "T steps of N environments", 3),
    Step("envs/device/classic.py", "actions to observations, rewards", 4),
    Step("engine/learn.py", "all updates, within the loop", 3),
    Step("algorithms/ppo.py", "trajectory to new parameters", 4),
)


def picture() -> str:
    """The SVG's text."""
    rows = max(len(INLINE), len(FUSED))
    height = TOP + rows * (HIGH + GAP) - GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif">',
        "<style>text{fill:#1f2328}.part{fill:#57606a}.box{fill:#f6f8fa;stroke:#8c959f}"
        ".line{stroke:#57606a;fill:none}@media(prefers-color-scheme:dark){text{fill:#e6edf3}"
        ".part{fill:#9da7b3}.box{fill:#161b22;stroke:#6e7681}.line{stroke:#9da7b3}}</style>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="line" d="M0 0 7 4 0 8"/></marker></defs>',
    ]
    columns = (("Step by step (inline)", INLINE, 10), ("In one program (fused)", FUSED, 400))
    for title, steps, left in columns:
        parts.append(f'<text x="{left}" y="28" font-size="17" font-weight="bold">{title}</text>')
        callers: list[int] = []  # the tops of the boxes whose calls are under way
        for number, step in enumerate(steps):
            top = TOP - 12 + number * (HIGH + GAP)
            callers[step.depth :] = [top]
            parts += _box(left + step.depth * INDENT, top, number + 1, step)
            if step.depth:
                parts.append(_arrow(left + step.depth * INDENT, callers[step.depth - 1], top))
    return "\n".join([*parts, "</svg>", ""])


def _box(left: int, top: int, number: int, step: Step) -> list[str]:
    width = BOX - step.depth * INDENT
    return [
        f'<rect class="box" x="{left}" y="{top}" width="{width}" height="{HIGH}" rx="6"/>',
        f'<text x="{left + 12}" y="{top + 21}" font-size="14">{number}. {escape(step.file)}</text>',
        f'<text class="part" x="{left + 12}" y="{top + 40}" font-size="13">'
        f"{escape(step.part)}</text>",
    ]


def _arrow(left: int, caller: int, top: int) -> str:
    """Draw the call of the box at (left, top) by the box at the height `caller`, one indent to the
    left."""
    start = left - INDENT // 2
    return (
        f'<path class="line" marker-end="url(#end)" d="M{start} {caller + HIGH}V{top + HIGH // 2}'
        f'H{left - 1}"/>'
    )


def main() -> int:
    """Write the picture, or compare it."""
    if "--check" in sys.argv[1:]:
        return int(not PICTURE.exists() or PICTURE.read_text() != picture())
    PICTURE.write_text(picture())
    return 0


if __name__ == "__main__":
    sys.exit(main())
