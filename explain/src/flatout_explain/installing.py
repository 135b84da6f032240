"""Commands that install a missing package, for messages: they fit how this tool is installed."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

NAME = "flatout-explain"


def install(extra: str) -> str:
    """Return the command that installs an extra of this tool: ``pip install ...``.

    In a checkout it installs the checkout's extra, elsewhere the extra's requirements: the tool may
    not be on a package index.
    """
    folder = project_folder(NAME, Path(__file__).parents[2])
    if folder is not None:
        return pip("-e", f"{folder}[{extra}]")
    lines = requirements(NAME, extra)
    if not lines:
        return f"install what the extra {extra!r} of {NAME}'s pyproject.toml lists"
    return pip(*lines)


def requirements(distribution: str, extra: str) -> list[str]:
    """Return the requirements of an extra; none if pip knows nothing of the distribution."""
    marked = re.compile(rf"\bextra == ['\"]{re.escape(extra)}['\"]")
    try:
        lines = requires(distribution) or ()
    except PackageNotFoundError:  # a copy of the folder
        return []
    return [line.partition(";")[0].strip() for line in lines if marked.search(line)]


def project_folder(name: str, folder: Path) -> Path | None:
    """Return a folder if its ``pyproject.toml`` is that of the project `name`, else None.

    The path of the running code decides, not pip's records: ``PYTHONPATH`` may name another
    checkout.
    """
    import tomllib

    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        return folder if project["name"] == name else None
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
