"""Make docs/pictures/: what the terminal and the reports show, from real runs.

    python tools/make_pictures.py --trace worker0.1623143089861.pt.trace.json.gz    # all
    python tools/make_pictures.py train curves

Commands run in tmux, whose screen is read several times a second and drawn with Pillow. Pages are
photographed by Chromium. Both programs have to be installed; neither is needed to use Flatout.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageChops, ImageDraw, ImageFont
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
MOST = 2_000_000
"""Bytes that all pictures together may have."""
FONT = Path("/usr/share/fonts/truetype/dejavu")
SIZE, MARGIN = 15, 14
THEME = TerminalTheme(
    (13, 17, 23), (220, 226, 232),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255),
     (188, 140, 255), (57, 197, 207), (200, 208, 216)],
    [(139, 148, 158), (255, 161, 152), (86, 211, 100), (227, 179, 65), (121, 192, 255),
     (210, 168, 255), (86, 212, 221), (240, 246, 252)],
)  # fmt: skip
"""A dark terminal, readable on light and dark pages."""


class Terminal:
    """A tmux session of one shell, in a folder."""

    def __init__(self, folder: Path, columns: int, rows: int) -> None:
        self.name = f"flatout-pictures-{os.getpid()}"
        self.columns, self.rows = columns, rows
        # Only what the commands need: pictures show no other setting of the person who makes them.
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "JAX_COMPILATION_CACHE_DIR")
                if name in os.environ}  # fmt: skip
        setting = {
            **kept,
            "PATH": os.environ["PATH"],
            "PS1": "$ ",
            "COLORTERM": "truecolor",
            "LC_ALL": "C.UTF-8",
        }
        assigned = " ".join(f"{name}={shlex.quote(value)}" for name, value in setting.items())
        shell = f"env -i TERM=tmux-256color {assigned} bash --norc --noprofile"
        self.call("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows),
                  "-c", str(folder), shell)  # fmt: skip

    def call(self, *words: str) -> str:
        """Run a command of tmux and return what it prints."""
        done = subprocess.run(
            ["tmux", "-L", self.name, *words], check=True, capture_output=True, text=True
        )
        return done.stdout

    def screen(self) -> tuple[Text, ...]:
        """Return the lines on the screen with their styles."""
        lines = self.call("capture-pane", "-p", "-e").split("\n")[: self.rows]
        return tuple(Text.from_ansi(line) for line in lines)

    def at_prompt(self) -> bool:
        """Return whether the shell waits for a command."""
        last = [line.plain for line in self.screen() if line.plain.strip()]
        return bool(last) and last[-1].rstrip() == "$"

    def record(self, command: str, seconds: float) -> list[tuple[tuple[Text, ...], float]]:
        """Type a command, wait for its end, and return the screens with how long each was shown.

        Raises:
            SystemExit: the command did not end in time.
        """
        seen = list[tuple[tuple[Text, ...], float]]()
        while not self.at_prompt():
            time.sleep(0.1)
        self.call("send-keys", "-l", command)
        time.sleep(0.3)
        seen.append((self.screen(), 1.5))
        self.call("send-keys", "Enter")
        began = last = time.monotonic()
        while True:
            time.sleep(0.2)
            now = time.monotonic()
            seen.append((self.screen(), now - last))
            last = now
            if self.at_prompt():
                return seen
            if now - began > seconds:
                sys.exit(f"pictures: did not end within {seconds:.0f} s: {command}")

    def close(self) -> None:
        """End the shell."""
        self.call("kill-server")


def draw(screen: tuple[Text, ...], columns: int) -> Image.Image:
    """Return a picture of a terminal's screen."""
    plain = ImageFont.truetype(FONT / "DejaVuSansMono.ttf", SIZE)
    bold = ImageFont.truetype(FONT / "DejaVuSansMono-Bold.ttf", SIZE)
    wide, high = round(plain.getlength("M")), round(SIZE * 1.28)
    size = (columns * wide + 2 * MARGIN, len(screen) * high + 2 * MARGIN)
    picture = Image.new("RGB", size, tuple(THEME.background_color))
    pen, console = ImageDraw.Draw(picture), Console(color_system="truecolor")
    for row, line in enumerate(screen):
        column = 0
        for segment in line.render(console):
            ink, paper = colours(segment.style or Style.null())
            font = bold if segment.style and segment.style.bold else plain
            for character in segment.text.rstrip("\n"):
                x, y = MARGIN + column * wide, MARGIN + row * high
                pen.rectangle((x, y, x + wide - 1, y + high - 1), paper)
                if character == "█":  # without gaps between cells
                    pen.rectangle((x, y + 2, x + wide - 1, y + high - 3), ink)
                elif character == "━":
                    pen.rectangle((x, y + high // 2 - 1, x + wide - 1, y + high // 2 + 1), ink)
                elif character.strip():
                    pen.text((x, y), character, ink, font)
                column += cell_len(character)
    return picture


def colours(style: Style) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the colours of text and of what lies behind it."""
    ink = style.color.get_truecolor(THEME) if style.color else THEME.foreground_color
    paper = style.bgcolor.get_truecolor(THEME, False) if style.bgcolor else THEME.background_color
    if style.dim:
        pairs = zip(ink, paper, strict=True)
        return tuple((3 * a + 2 * b) // 5 for a, b in pairs), tuple(paper)
    return (tuple(paper), tuple(ink)) if style.reverse else (tuple(ink), tuple(paper))


def animate(seen: list[tuple[tuple[Text, ...], float]], columns: int, path: Path) -> None:
    """Write screens as a GIF, the last one for eight seconds. Rows that stay empty are left out."""
    last = seen[-1][0]
    full = max(
        number for screen, _ in seen for number, line in enumerate(screen, 1) if line.plain.strip()
    )
    shown = list[tuple[tuple[Text, ...], float]]()
    for screen, seconds in [*seen[:-1], (last, 8.0)]:
        if shown and [line.markup for line in shown[-1][0]] == [line.markup for line in screen]:
            shown[-1] = (shown[-1][0], shown[-1][1] + seconds)
        else:
            shown.append((screen, seconds))
    pictures = [draw(screen[:full], columns) for screen, _ in shown]
    palette = pictures[-1].quantize(128)
    first, *others = (one.quantize(palette=palette, dither=Image.Dither.NONE) for one in pictures)
    # A long wait with one screen is cut to three seconds.
    times = [round(1000 * min(3.0, seconds)) for _, seconds in shown]
    times[-1] = 8000
    first.save(path, save_all=True, append_images=others, duration=times, loop=0, optimize=True)


def photograph(page: Path, scheme: str, width: int, path: Path) -> None:
    """Write what Chromium shows of a page, without the empty space below it.

    Args:
        scheme: "light" or "dark", which the page can follow.
    """
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if browser is None:
        sys.exit("pictures: Chromium is not installed")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-background-networking", "--disable-component-update", "--no-first-run",
             f"--user-data-dir={profile}", "--virtual-time-budget=3000",
             f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
             f"--window-size={width},2600", f"--screenshot={path}", page.as_uri()],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=120,
        )  # fmt: skip
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    empty = Image.new("RGB", picture.size, picture.getpixel((2, picture.height - 2)))
    box = ImageChops.difference(picture, empty).getbbox()
    bottom = min(picture.height, box[3] + 24) if box else picture.height
    picture.crop((0, 0, width, bottom)).save(path, optimize=True)


def run(command: str, folder: Path) -> str:
    """Run a command line of this installation and return what it prints."""
    done = subprocess.run(shlex.split(command), cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"pictures: {command}: {done.stderr.strip()}")
    return done.stdout


def record(command: str, folder: Path, columns: int, rows: int, path: Path) -> None:
    """Write what the terminal shows while a command runs."""
    terminal = Terminal(folder, columns, rows)
    try:
        animate(terminal.record(command, 240), columns, path)
    finally:
        terminal.close()


def train(folder: Path, _: Path | None) -> None:
    """A first run: its live display, and its report as a page."""
    command = "flatout train ppo --preset cartpole-ppo --run-dir runs/first"
    record(command, folder, 96, 34, FOLDER / "train.gif")
    run("flatout explain runs/first --html run.html", folder)
    for scheme in ("light", "dark"):
        photograph(folder / "run.html", scheme, 900, FOLDER / f"run-{scheme}.png")


def explain(folder: Path, trace: Path | None) -> None:
    """The explanation of a GPU program's trace, in the terminal and as a page."""
    if trace is None or not trace.is_file():
        sys.exit("pictures: --trace names the trace of PyTorch's tutorial (see docs/explain.md)")
    shutil.copy(trace, folder)
    terminal = Terminal(folder, 112, 28)
    try:
        screen = terminal.record(f"flatout explain {trace.name} --html gpu.html", 240)[-1][0]
    finally:
        terminal.close()
    shown = [line for line in screen if line.plain.strip()][:-1]  # without the next prompt
    draw(tuple(shown), 112).save(FOLDER / "explain.png", optimize=True)
    for scheme in ("light", "dark"):
        photograph(folder / "gpu.html", scheme, 900, FOLDER / f"explain-{scheme}.png")


def curves(folder: Path, _: Path | None) -> None:
    """Learning curves of three learning rates with five seeds each, with intervals; prints the
    ranked table of the same runs, which docs/statistics.md shows."""
    rates = "--population learning-rate=1e-3,3e-4,1e-4 --seeds 5 --steps 50000 --run-dir runs/rates"
    run(f"flatout train ppo --env CartPole-v1 --env-backend device {rates}", folder)
    print(run("flatout report runs/rates --group learning_rate", folder))
    run("flatout report --curves runs/rates --group learning_rate --out curves.svg", folder)
    shutil.copy(folder / "curves.svg", FOLDER)


PARTS: dict[str, Callable[[Path, Path | None], None]] = {
    "train": train,
    "explain": explain,
    "curves": curves,
}


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="by default all")
    parser.add_argument(
        "--trace", type=Path, help="of PyTorch's tutorial: docs/explain.md names it"
    )
    asked = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="flatout-pictures-") as name:
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        for part in asked.parts or PARTS:
            PARTS[part](Path(name), asked.trace)
    total = sum(one.stat().st_size for one in FOLDER.iterdir())
    print(f"{FOLDER}: {total / 1e6:.2f} MB")
    if total > MOST:
        sys.exit(f"pictures: more than {MOST / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
