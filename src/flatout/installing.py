"""Commands that install a missing package, for messages: they fit how this Flatout is installed."""

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
    """Return the command that installs an extra: ``pip install ...``.

    In a checkout it installs the checkout's extra. Elsewhere (installed from a wheel, say) it
    installs the extra's requirements, because Flatout may not be on a package index.
    """
    folder = checkout()
    if folder is not None:
        return pip("-e", f"{folder}[{extra}]")
    try:
        marked = re.compile(rf"\bextra == ['\"]{re.escape(extra)}['\"]")
        lines = [line for line in requires("flatout") or () if marked.search(line)]
    except PackageNotFoundError:  # a copy of the folder, of which pip knows nothing
        return f"install what the extra {extra!r} of Flatout's pyproject.toml lists"
    return pip(*(line.partition(";")[0].strip() for line in lines))


def checkout() -> Path | None:
    """Return the checkout that the running Flatout is in, or None if it is in none.

    This file's path decides, not pip's records: ``PYTHONPATH`` may name another checkout.
    """
    folder = Path(__file__).parents[2]
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        return folder if project["name"] == "flatout" else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def pip(*words: str) -> str:
    """Return ``pip install`` with these arguments for the running Python; the `pip` that a shell
    finds first may be another one's."""
    scripts = Path(sys.executable).parent
    if importlib.util.find_spec("pip") is None:  # an environment that uv made
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
