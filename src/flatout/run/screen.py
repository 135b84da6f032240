"""The screen of a running command: drawn again in place, or lines without a terminal."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from flatout.output import on_one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class Screen:
    """A picture that is drawn again at intervals, and notes above it.

    Args:
        console: where it is drawn. If that is no terminal, a line is printed instead.
        redraw_s: least seconds between two pictures on a terminal.
        line_s: least seconds between two lines elsewhere.
        stays: whether the last picture stays when the screen is closed.
        quiet: show nothing at all.
        at_once: whether the first picture or line is due at once, not after an interval.

    Attributes:
        live: whether pictures are drawn in place.
    """

    def __init__(
        self, console: Console, redraw_s: float, line_s: float, stays: bool = False,
        quiet: bool = False, at_once: bool = False,
    ) -> None:  # fmt: skip
        from rich.live import Live

        self._console, self._quiet = console, quiet
        self._drawn = -math.inf if at_once else time.monotonic()
        self.live = console.is_terminal and not quiet
        self._every_s = redraw_s if self.live else line_s
        self._live = Live(console=console, auto_refresh=False, transient=not stays)
        if self.live:
            self._live.start()

    def note(self, text: str) -> None:
        """Print one sentence."""
        from rich.text import Text

        if not self._quiet:
            line = Text(f"· {on_one_line(text)}", style="dim")
            self._console.print(line, soft_wrap=not self._console.is_terminal)

    def due(self) -> bool:
        """Return whether it is time for the next picture or line."""
        now = time.monotonic()
        if self._quiet or now - self._drawn < self._every_s:
            return False
        self._drawn = now
        return True

    def draw(self, picture: RenderableType) -> None:
        """Show a picture in place of the one before, or print it as the next line."""
        if self.live:
            self._live.update(picture, refresh=True)
        else:
            self._console.print(picture, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back."""
        if self.live:
            self._live.stop()
            self.live = False
