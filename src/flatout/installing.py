"""Commands that install a missing package, for messages: they fit how this Flatout is installed."""

from __future__ import annotations

from pathlib import Path

from flatout_explain.installing import pip, project_folder, requirements


def install(extra: str) -> str:
    """Return the command that installs an extra: ``pip install ...``.

    In a checkout it installs the checkout's extra, and the tool `flatout-explain` of the same
    checkout in the same command: neither may be on a package index. Elsewhere (installed from a
    wheel, say) it installs the extra's requirements.
    """
    folder = checkout()
    if folder is not None:
        return pip("-e", str(folder / "explain"), "-e", f"{folder}[{extra}]")
    lines = requirements("flatout", extra)
    if not lines:  # a copy of the folder, of which pip knows nothing
        return f"install what the extra {extra!r} of Flatout's pyproject.toml lists"
    return pip(*lines)


def checkout() -> Path | None:
    """Return the checkout that the running Flatout is in, or None if it is in none."""
    return project_folder("flatout", Path(__file__).parents[2])
