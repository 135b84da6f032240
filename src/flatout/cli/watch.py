"""A trained agent at play in the terminal: text where the environment renders it, else pictures."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.text import Text

from flatout.api import Agent
from flatout.output import on_one_line, printable
from flatout.run.evaluate import greedy_episode
from flatout.run.screen import Screen

STYLES = {"@": "bold yellow", "o": "green", "*": "bold red", "·": "bright_black"}
"""Colours of single characters in lines of a board."""

DEFAULT_FPS = 10.0

COLOUR = re.compile(r"(\x1b\[[\d;]*m)")  # what a frame of text may send to a terminal beside text


def watch(
    newest: Callable[[], tuple[Agent, Path]],
    episodes: int,
    fps: float | None,
    seed: int | None,
    console: Console,
) -> list[float]:
    """Play greedy episodes in the terminal; return their returns.

    Args:
        newest: a function that returns the newest agent, called before each episode.
        fps: frames per second; by default the environment's.
        seed: the seed of the episodes; by default the agent's.
        console: the output; if it is no terminal, only each episode's last frame is printed.

    Raises:
        UsageError: the environment renders neither text nor pictures.
    """
    returns: list[float] = []
    for number in range(episodes):
        agent, file = newest()
        title = f"episode {number + 1} of {episodes}"
        where = Text(on_one_line(str(file)), "bright_black")
        frame, total, steps = None, 0.0, 0
        with closing(Screen(console, 0.0, 0.0, stays=True)) as screen:
            last = time.perf_counter()
            for frame, rate, total, steps in play(agent, number, seed):
                if screen.live:
                    screen.draw(_screen(frame, title, total, steps, where, console))
                    pause = 1.0 / (fps or rate or DEFAULT_FPS)
                    time.sleep(max(0.0, last + pause - time.perf_counter()))
                    last = time.perf_counter()
            if not screen.live:  # a picture takes longer than a step
                screen.draw(_screen(frame, title, total, steps, where, console))
        returns.append(total)
    return returns


def _screen(
    frame: Any, title: str, total: float, steps: int, where: Text, console: Console
) -> Group:
    """Return a frame with the lines below it."""
    words = Text(f"{title}   step {steps}   return {total:g}")
    return Group(picture(frame, console), words, where)


def play(agent: Agent, episode: int, seed: int | None) -> Iterator[tuple[Any, float, float, int]]:
    """Play one episode; see `greedy_episode`."""
    seed = agent.config.run.seed if seed is None else seed
    return greedy_episode(agent.task, agent.policy, seed, ("ansi", "rgb_array"), episode)


def picture(frame: Any, console: Console) -> RenderableType:
    """Return a frame for a terminal: coloured text, or half blocks of two pixels each."""
    if isinstance(frame, str):
        pieces = COLOUR.split(frame)
        pieces[::2] = (printable(piece.expandtabs()) for piece in pieces[::2])
        text = Text.from_ansi("".join(pieces))
        for symbol, style in STYLES.items():
            text.highlight_regex(rf"(?<=[ │]){'[' + symbol + ']'}(?=[ │])", style)
        return text
    pixels = np.asarray(frame, np.uint8)[..., :3]
    rows, columns = pixels.shape[:2]
    width = max(1, min(console.width, columns, 2 * (console.height - 4) * columns // rows))
    height = max(2, rows * width // columns // 2 * 2)
    pixels = pixels[np.arange(height) * rows // height][:, np.arange(width) * columns // width]
    text = Text(no_wrap=True)
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        for (r, g, b), (r2, g2, b2) in zip(upper.tolist(), lower.tolist(), strict=True):
            text.append("▀", f"rgb({r},{g},{b}) on rgb({r2},{g2},{b2})")
        text.append("\n")
    return text
