"""What a user types to install what is missing, where this Flatout lies."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path


def install(extra: str) -> str:
    """The command that installs an extra: ``pip install ...``.

    In a checkout it is the checkout's own extra. Elsewhere (installed from a wheel, say) these are
    the extra's requirements: no package index need have a Flatout.
    """
    folder = checkout()
    if folder is not None:
        return pip("-e", f"{folder}[{extra}]")
    try:
        marked = re.compile(rf"\bextra == ['\"]{re.escape(extra)}['\"]")
        lines = [line for line in requires("flatout") or () if marked.search(line)]
    except PackageNotFoundError:  # a copy of the folder: pip knows nothing of it
        return f"install what the extra {extra!r} of Flatout's pyproject.toml lists"
    return pip(*(line.partition(";")[0].strip() for line in lines))


def checkout() -> Path | None:
    """The folder of Flatout's source that is running, or None if it runs from elsewhere.

    What runs decides, not what pip has noted: ``PYTHONPATH`` may name another checkout.
    """
    folder = Path(__file__).parents[2]
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        return folder if project["name"] == "flatout" else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def pip(*words: str) -> str:
    """The command that installs these into the Python that runs, whichever a shell finds first."""
    scripts = Path(sys.executable).parent
    if importlib.util.find_spec("pip") is None:  # made by uv
        command = ["uv", "pip", "install", "--python", sys.executable]
    elif Path(shutil.which("pip") or "").parent == scripts:
        command = ["pip", "install"]
    else:
        command = [sys.executable, "-m", "pip", "install"]
    return " ".join(map(_quoted, [*command, *words]))


def _quoted(word: str) -> str:
    if os.name != "nt":
        return shlex.quote(word)
    return word if re.fullmatch(r"[\w@:.,/\\+-]+", word) else f'"{word}"'
