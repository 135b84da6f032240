"""Why the hardware is idle: evidence is recorded, pure rules name the cause, a report tells it."""

from __future__ import annotations

import sys

from flatout_explain.version import __version__ as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:  # imported on first use, because the command imports this file
    from typing import Any

    from flatout_explain.program.block import explaining

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    # `python -m flatout_explain` puts the working folder first in `sys.path`: a file psutil.py in
    # a stranger's folder would be imported.
    module = sys.orig_argv[sys.orig_argv.index("-m") + 1] if "-m" in sys.orig_argv else ""
    here = sys.path[0] + "/flatout_explain/"
    if module.partition(".")[0] == "flatout_explain" and not __file__.startswith(here):
        del sys.path[0]
    del module, here

__all__ = ["explaining"]


def load_ipython_extension(shell: Any) -> None:
    """Register the magic commands %explain and %%explain (``%load_ext flatout_explain``)."""
    from flatout_explain.notebook import register

    register(shell)


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name == "explaining":
        from flatout_explain.program.block import explaining

        return explaining
    raise AttributeError(f"module 'flatout_explain' has no attribute {name!r}")
