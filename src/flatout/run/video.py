"""Frames as an animated GIF or an mp4."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import numpy as np

from flatout.errors import FlatoutError, UsageError
from flatout.installing import install
from flatout.output import printable, say
from flatout_explain.output_file import replacing

MOST = 64
"""Maximum pictures in a grid."""
WIDE = 1280
"""Maximum columns of a grid of several pictures; they are made smaller by whole factors."""

SHOWN_S = 5.0
"""Seconds between two lines about a video that is being made, where stderr is no terminal."""


@contextmanager
def progress() -> Generator[Callable[[str], object]]:
    """Yield a function that shows on stderr how far a long operation is: on a terminal always the
    newest text in the same line, elsewhere a line every `SHOWN_S` seconds."""
    if sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("") as status:
            yield status.update
        return
    last = time.monotonic()

    def show(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= SHOWN_S:
            say(text)
            last = time.monotonic()

    yield show


def writer(path: Path) -> Callable[[Path, Iterator[np.ndarray], float], None]:
    """Return the function that writes a video of frames ``[H, W, 3]``, by the file's ending.

    It replaces an earlier video only once all frames are written.

    Raises:
        UsageError: another ending than .gif and .mp4, or a package is missing.
    """
    packages = {".gif": ("PIL.Image", _gif), ".mp4": ("imageio_ffmpeg", _mp4)}
    if path.suffix.lower() not in packages:
        raise UsageError(f"{path}: videos are .gif or .mp4 files.")
    package, write = packages[path.suffix.lower()]
    try:
        module = importlib.import_module(package)
    except ImportError:
        raise UsageError(
            f"{path}: {path.suffix.lower()} videos need packages: {install('video')}."
        ) from None

    def save(path: Path, frames: Iterator[np.ndarray], rate: float) -> None:
        with replacing(path) as part:
            write(module, path, part, frames, rate)

    return save


def _gif(image: Any, _: Path, part: Path, frames: Iterator[np.ndarray], rate: float) -> None:
    first, *others = (image.fromarray(frame) for frame in frames)
    first.save(
        part, format="GIF", save_all=True, append_images=others, loop=0, optimize=True,
        duration=max(20, round(1000 / rate)),
    )  # fmt: skip


def _mp4(ffmpeg: Any, path: Path, part: Path, frames: Iterator[np.ndarray], rate: float) -> None:
    first = next(frames)
    rows, columns = first.shape[:2]
    even = ((0, rows % 2), (0, columns % 2), (0, 0))  # which the format wants
    words = [
        ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24",
        "-s", f"{columns + columns % 2}x{rows + rows % 2}", "-r", f"{rate:g}", "-i", "-", "-c:v",
        "libx264", "-pix_fmt", "yuv420p", "-f", "mp4", str(part),
    ]  # fmt: skip
    # By hand: the package's own writer forks a process in which JAX has threads.
    with Popen(words, stdin=PIPE, stderr=PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            for frame in chain([first], frames):
                if frame.shape != first.shape:
                    raise FlatoutError(
                        f"cannot write {path}: the pictures change their size from "
                        f"{columns}x{rows} to {frame.shape[1]}x{frame.shape[0]}; a .gif may do so."
                    )
                process.stdin.write(np.pad(frame, even, "edge").tobytes())
            process.stdin.close()
        except BrokenPipeError:
            pass  # it says why
        except BaseException:
            process.kill()
            with suppress(BrokenPipeError):
                process.stdin.close()
            raise
        why = process.stderr.read().decode(errors="replace")
    if process.returncode:
        raise FlatoutError(f"cannot write {path}: ffmpeg says {printable(why.strip()[-300:])}.")


def grid(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Return pictures side by side in rows, uint8 ``[H, W, 3]``; a single picture stays as it
    is."""
    pictures = [np.asarray(one)[..., :3].astype(np.uint8) for one in pictures]
    if len(pictures) == 1:
        return pictures[0]
    across = math.ceil(math.sqrt(len(pictures)))
    every = max(math.ceil(across * max(one.shape[1] for one in pictures) / WIDE), 1)
    small = [one[::every, ::every] for one in pictures]
    rows, columns = (max(one.shape[axis] for one in small) for axis in (0, 1))
    down = math.ceil(len(small) / across)
    whole = np.zeros((down * rows, across * columns, 3), np.uint8)
    for number, one in enumerate(small):
        row, column = divmod(number, across)
        top, left = row * rows, column * columns
        whole[top : top + one.shape[0], left : left + one.shape[1]] = one
    return whole
