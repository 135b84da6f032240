"""Explanations of errors that MuJoCo, for example, raises if it cannot render because a display or
a library is missing. `envs.make` and `run.evaluate` use them."""

from __future__ import annotations

import os
import re
import sys

from flatout.errors import NotInstalledError, one_line

OFFSCREEN = {"osmesa": "OSMesa", "egl": "EGL"}
"""The libraries with which MuJoCo renders without a display, by the value of `MUJOCO_GL`."""

_WORDS = re.compile(
    r"opengl|glfw|gladload|glgeterror|\begl\b|osmesa|\bx11\b|\bdisplay\b|nosuchdisplay",
    re.IGNORECASE,
)
"""Words of the exceptions that MuJoCo and its libraries raise if they cannot render."""


def has_display() -> bool:
    """Return whether there is a display to draw on. Only on Linux can it be missing."""
    return sys.platform != "linux" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def missing_library(name: str, error: BaseException) -> NotInstalledError | None:
    """Explain an exception of the environment `name` if the cause is that the rendering library
    which the environment variable `MUJOCO_GL` names is missing; otherwise return None.

    MuJoCo's environments may import the library when they are made, even if they never render.
    """
    tried = os.environ.get("MUJOCO_GL", "")
    if tried not in OFFSCREEN or not _is_about_rendering(error):
        return None
    other = "osmesa (in software)" if tried == "egl" else "egl"
    return NotInstalledError(
        f"{name} cannot be used with the environment variable MUJOCO_GL={tried}: the rendering "
        f"library {OFFSCREEN[tried]} is missing or does not work here; install it, or set "
        f"MUJOCO_GL={other}."
    )


def cannot_render(name: str, error: BaseException) -> NotInstalledError | None:
    """Explain an exception of the environment `name` if the cause is a missing display or rendering
    library; otherwise return None."""
    refused = missing_library(name, error)
    if refused is not None or has_display() or not _is_about_rendering(error):
        return refused
    tried = os.environ.get("MUJOCO_GL")
    failed = f", and MUJOCO_GL={tried} does not work here" if tried else ""
    return NotInstalledError(
        f"{name} cannot render: there is no display{failed}. Set the environment variable "
        "MUJOCO_GL=egl, with which MuJoCo needs none; other environments run under xvfb-run."
    )


def _is_about_rendering(error: BaseException | None) -> bool:
    while error is not None:
        if _WORDS.search(f"{type(error).__name__} {one_line(error)}"):
            return True
        error = error.__cause__ or error.__context__
    return False
