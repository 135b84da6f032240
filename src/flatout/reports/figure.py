"""Figures of matplotlib that no file of the working folder decides on."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import sys
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from flatout.errors import FlatoutError, UsageError, one_line
from flatout.installing import install
from flatout_explain import output_file

PICTURES = (".svg", ".png", ".pdf")
"""Endings of pictures."""

SETTINGS = "matplotlibrc"
"""The file from which matplotlib reads its settings at its import: first in the working folder."""


def check_file(
    path: Path, endings: Collection[str], own: Collection[str] = (), flag: str = ""
) -> None:
    """Refuse a file that cannot be written, before anything is done.

    Args:
        endings: the possible ones, each of which stands for a format.
        own: those of pictures that are drawn without matplotlib.
        flag: that names the file, for messages.

    Raises:
        UsageError: another ending, a file in no folder, or a picture without matplotlib.
    """
    named = f"{flag} {path}".lstrip()
    if path.suffix not in endings:
        raise UsageError(f"{named}: the format is the file's ending, of {', '.join(endings)}.")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{named} is no file in an existing folder.")
    drawn = path.suffix in PICTURES and path.suffix not in own
    if drawn and importlib.util.find_spec("matplotlib") is None:
        other = " or ".join(one for one in endings if one in own or one not in PICTURES)
        hint = f"; or use the ending {other}" if other else ""
        raise UsageError(f"{named}: {path.suffix} needs a package: {install('plot')}{hint}.")


@contextlib.contextmanager
def figure(width: float, height: float) -> Iterator[Any]:
    """An empty figure, to be drawn and saved in this context: with matplotlib's own defaults.

    Texts are shown as they are, without mathematics between dollar signs: they may be names that
    somebody else has chosen.

    Args:
        width, height: in inches.

    Raises:
        FlatoutError: matplotlib fails.
    """
    try:
        matplotlib = _matplotlib()
        with matplotlib.rc_context(), warnings.catch_warnings():
            # A box takes the place of a character that matplotlib's own font lacks.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            matplotlib.rcdefaults()
            matplotlib.rcParams["text.parse_math"] = False
            figures = importlib.import_module("matplotlib.figure")
            yield figures.Figure(figsize=(width, height), layout="constrained")
    except FlatoutError:
        raise
    except Exception as error:  # of any kind: a damaged installation, too
        raise FlatoutError(
            f"matplotlib cannot draw this ({type(error).__name__}: {one_line(error)[:300]})."
        ) from error


def save(drawn: Any, path: Path) -> None:
    """Write a figure in the format of the file's ending, whole or not at all.

    Raises:
        FlatoutError: the file cannot be written.
    """
    output_file.write(path, content(drawn, path.suffix))


def content(drawn: Any, ending: str) -> bytes:
    """Return a figure as the content of a file with this ending."""
    file = io.BytesIO()
    drawn.savefig(file, format=ending[1:])
    return file.getvalue()


def _matplotlib() -> Any:
    """The package. Flatout's own command imports it without the settings of the working folder:
    they may be a stranger's, and versions before 3.10.9 run code that they contain. A user's
    program keeps its settings, because its other figures may need them.
    """
    first = "matplotlib" not in sys.modules and "flatout.cli.commands" in sys.modules
    elsewhere = contextlib.chdir(sys.prefix) if first and os.path.lexists(SETTINGS) else None
    with elsewhere or contextlib.nullcontext():
        return importlib.import_module("matplotlib")
